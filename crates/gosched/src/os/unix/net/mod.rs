//! Sockets of the Unix domain: `std::os::unix::net`, for goroutines.
//!
//! ```
//! use gosched::os::unix::net::UnixStream;
//! use std::io::{Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! gosched::run(|| {
//!     let (mut here, mut there) = UnixStream::pair()?;
//!     gosched::go(move || here.write_all(b"over the pair").unwrap());
//!     let mut all = String::new();
//!     there.read_to_string(&mut all)?;
//!     assert_eq!(all, "over the pair");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! What [`gosched::net`](crate::net) says of deadlines, of `set_nonblocking` and of conversions holds here too. Whatever goes through
//! the file system, as binding and connecting do, is a [`blocking`](crate::blocking()) call.

mod datagram;
mod listener;
mod stream;

pub use std::os::unix::net::SocketAddr;

pub use self::datagram::UnixDatagram;
pub use self::listener::{Incoming, UnixListener};
pub use self::stream::UnixStream;
