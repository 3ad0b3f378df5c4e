//! Waiting for descriptors of any kind: pipes, standard input, and whatever epoll takes.
//!
//! A wait blocks only the goroutine. On a plain thread the same calls block the thread.
//!
//! - [`pipe`] and [`stdin`] have the names and the behaviour of [`std::io`].
//! - [`Pollable`] waits for any other descriptor: a terminal, a timerfd, an eventfd, inotify, the
//!   socket of a C library.
//!
//! ```
//! use std::io::{Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! gosched::run(|| {
//!     let (mut reader, mut writer) = gosched::io::pipe()?;
//!     gosched::go(move || writer.write_all(b"through the pipe").unwrap());
//!     let mut all = String::new();
//!     reader.read_to_string(&mut all)?;
//!     assert_eq!(all, "through the pipe");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! Child processes and their pipes are in [`gosched::process`](crate::process).

mod pipe;
pub(crate) mod pipe_end;
mod pollable;
mod registration;
mod stdin;

pub use self::pipe::{PipeReader, PipeWriter, pipe};
pub use self::pollable::Pollable;
pub(crate) use self::registration::Registration;
pub use self::stdin::{Stdin, StdinLock, stdin};
