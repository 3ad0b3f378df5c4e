//! The Linux layer: bare system calls on g0 and in handlers, libc while a thread is being set up.
//!
//! Each call that old kernels lack has its fallback here, so that no caller needs to know the
//! kernel.

mod barrier;
mod clock;
mod cpu_timer;
mod cpus;
mod descriptor;
mod env;
mod epoll;
mod frame;
mod futex;
mod inject;
mod interrupted;
mod io;
mod mem;
mod net;
mod pagevec;
mod proc;
mod race;
mod signal;
mod syscall;
mod sysname;
mod task;
mod thread;

pub(crate) use barrier::*;
pub(crate) use clock::*;
pub(crate) use cpu_timer::*;
pub(crate) use cpus::*;
pub(crate) use descriptor::*;
pub(crate) use env::*;
pub(crate) use epoll::*;
pub(crate) use frame::*;
pub(crate) use futex::*;
pub(crate) use inject::*;
pub(crate) use io::*;
pub(crate) use mem::*;
pub(crate) use net::*;
pub(crate) use pagevec::*;
pub(crate) use proc::*;
pub(crate) use race::*;
pub(crate) use signal::*;
pub(crate) use syscall::*;
pub(crate) use sysname::*;
pub(crate) use task::*;
pub(crate) use thread::*;
