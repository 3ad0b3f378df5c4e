//! Blocking calls of unmodified code park the goroutine and hold no thread.
//!
//! A program needs one line, in its binary:
//!
//! ```
//! use gosched_hook as _;
//! ```
//!
//! The program's calls of `recv` and other blocking functions of libc then reach this crate. On a
//! goroutine such a call parks the goroutine until the call can continue. Anywhere else the call is
//! libc's. So std's sockets and locks run at the cost of goroutines, and so do crates and C
//! libraries built on these functions.
//!
//! A hook may always fall back to libc's function. The call then holds its thread, as every
//! blocking call does without this crate.
//!
//! [`FUNCTIONS`] lists every hooked function and what its hook does. The environment variable
//! `GOSCHED_HOOK` turns hooks off, see [`install`].

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
