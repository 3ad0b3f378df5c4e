//! The Linux layer: bare system calls where the scheduler may stand, libc where
//! a thread is being set up. Calls newer than the oldest kernels in use fall back by themselves.

mod barrier;
mod clock;
mod cpu_timer;
mod cpus;
mod env;
mod epoll;
mod futex;
mod inject;
mod interrupted;
mod io;
mod mem;
mod net;
mod pagevec;
mod proc;
mod signal;
mod syscall;
mod sysname;
mod task;
mod thread;

pub(crate) use barrier::*;
pub(crate) use clock::*;
pub(crate) use cpu_timer::*;
pub(crate) use cpus::*;
pub(crate) use env::*;
pub(crate) use epoll::*;
pub(crate) use futex::*;
pub(crate) use inject::*;
pub(crate) use interrupted::*;
pub(crate) use io::*;
pub(crate) use mem::*;
pub(crate) use net::*;
pub(crate) use pagevec::*;
pub(crate) use proc::*;
pub(crate) use signal::*;
pub(crate) use syscall::*;
pub(crate) use sysname::*;
pub(crate) use task::*;
pub(crate) use thread::*;
