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
//! What [`gosched::net`](crate::net) says of deadlines, of `set_nonblocking` and of conversions holds here too. Binding and connecting
//! go through the file system; where that is slow the goroutine needs a thread meanwhile.

mod datagram;
mod listener;
mod stream;

use std::time::Duration;

pub use std::os::unix::net::SocketAddr;

pub use self::datagram::UnixDatagram;
pub use self::listener::{Incoming, UnixListener};
pub use self::stream::UnixStream;

/// Pauses between two tries where the kernel does not report when the next one is worthwhile.
struct Backoff(Duration);

impl Backoff {
    const MIN: Duration = Duration::from_micros(50);
    const MAX: Duration = Duration::from_millis(5);

    fn new() -> Backoff {
        Backoff(Backoff::MIN)
    }

    /// Parks the goroutine, or blocks the plain thread, for twice as long as the last time.
    fn sleep(&mut self) {
        crate::time::sleep(self.0);
        self.0 = Backoff::MAX.min(self.0 * 2);
    }
}
