//! Unix domain sockets with the API of [`std::os::unix::net`], for goroutines.
//!
//! A wait blocks only the goroutine. All types also work on plain threads.
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
//! Deadlines, `set_nonblocking` and conversions work as in [`gosched::net`](crate::net). Binding
//! and connecting access the file system. A slow file system blocks the goroutine's thread.

mod datagram;
mod listener;
mod stream;

use std::time::Duration;

pub use std::os::unix::net::SocketAddr;

pub use self::datagram::UnixDatagram;
pub use self::listener::{Incoming, UnixListener};
pub use self::stream::UnixStream;

/// Pauses between attempts, where the kernel does not report when the next attempt can succeed.
struct Backoff(Duration);

impl Backoff {
    const MIN: Duration = Duration::from_micros(50);
    const MAX: Duration = Duration::from_millis(5);

    fn new() -> Backoff {
        Backoff(Backoff::MIN)
    }

    /// Sleeps, each time twice as long as before. Blocks the calling goroutine or plain thread.
    fn sleep(&mut self) {
        crate::time::sleep(self.0);
        self.0 = Backoff::MAX.min(self.0 * 2);
    }
}
