//! Child processes with the API of [`std::process`], for goroutines.
//!
//! A goroutine that waits for a child or for one of its pipes holds no thread. On a plain thread
//! the same calls block the thread.
//!
//! ```
//! use gosched::process::Command;
//! use gosched::thread;
//!
//! # fn main() -> std::io::Result<()> {
//! gosched::run(|| {
//!     let children = (0..4).map(|n| {
//!         thread::spawn(move || Command::new("echo").arg(n.to_string()).output())
//!     });
//!     let children: Vec<_> = children.collect();
//!     for (n, child) in children.into_iter().enumerate() {
//!         assert_eq!(child.join().unwrap()?.stdout, format!("{n}\n").as_bytes());
//!     }
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # What differs from std
//! - [`Child::wait_timeout`] is a wait that gives up.
//! - Pipes have deadlines: [`ChildStdout::set_deadline`] and its relatives.
//! - [`Command`] is made of std's, and [`Command::as_std_mut`] gives access to it for the methods
//!   of [`CommandExt`](std::os::unix::process::CommandExt).
//! - A wait takes a descriptor of the child (*pidfd*) until the child has ended. Where the system
//!   has none, the wait holds a thread.
//!
//! A drop is as std's: it neither ends the child nor waits for it. The other names are re-exported
//! from std.

mod child;
mod command;
mod wait;

pub use std::process::{
    CommandArgs, CommandEnvs, ExitCode, ExitStatus, Output, Stdio, Termination, abort, exit, id,
};

pub use self::child::{Child, ChildStderr, ChildStdin, ChildStdout};
pub use self::command::Command;
