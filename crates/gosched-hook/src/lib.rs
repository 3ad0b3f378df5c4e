//! Blocking calls of unmodified code park the goroutine and hold no thread.
//!
//! A program says once, in its binary:
//!
//! ```
//! use gosched_hook as _;
//! ```
//!
//! From then on functions of libc that block, such as `recv`, belong to this crate. Called on a
//! goroutine they park it until the call can continue. Called anywhere else they are libc's. So
//! std's sockets and locks, and crates and C libraries built on them, run at the cost of
//! goroutines.
//!
//! A hook may always fall back to libc's function: the call then holds its thread, as every
//! blocking call does without this crate.
//!
//! [`FUNCTIONS`] lists every function with what it does. The environment variable `GOSCHED_HOOK`
//! turns hooks off, see [`install`].

#[cfg(feature = "net")]
mod errno;
#[cfg(feature = "net")]
mod fd;
#[cfg(feature = "net")]
mod files;
#[cfg(feature = "net")]
mod fortified;
#[cfg(feature = "sync")]
mod futex;
#[cfg(feature = "net")]
mod memory;
#[cfg(feature = "net")]
mod messages;
#[cfg(feature = "net")]
mod names;
#[cfg(feature = "net")]
mod polling;
#[cfg(feature = "net")]
mod processes;
mod real;
mod sleep;
#[cfg(feature = "net")]
mod sockets;
mod switches;
mod table;
#[cfg(feature = "thread")]
mod threads;
#[cfg(feature = "net")]
mod transfer;
#[cfg(feature = "net")]
mod vectors;

pub use switches::{InstallError, install};
pub use table::{FUNCTIONS, Family, Function};
#[cfg(feature = "thread")]
pub use threads::real_threads;

/// Runs the examples of the README and of the guide as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
#[cfg(all(doctest, feature = "sync"))]
#[doc = include_str!("../../../docs/guide/existing-code.md")]
mod guide {}
