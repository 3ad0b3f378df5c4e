//! TCP and UDP: `std::net`, for goroutines.
//!
//! Ordinary blocking reads and writes, and a goroutine for each connection: who waits costs no thread. All types work from plain
//! threads too, in any mixture, and across runtimes.
//!
//! ```
//! use gosched::net::{TcpListener, TcpStream};
//! use std::io::{Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! gosched::run(|| {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let addr = listener.local_addr()?;
//!     gosched::go(move || {
//!         for stream in listener.incoming() {
//!             let mut stream = stream.unwrap();
//!             gosched::go(move || drop(std::io::copy(&mut &stream, &mut &stream)));
//!         }
//!     });
//!
//!     let mut stream = TcpStream::connect(addr)?;
//!     stream.write_all(b"echo")?;
//!     let mut answer = [0; 4];
//!     stream.read_exact(&mut answer)?;
//!     assert_eq!(&answer, b"echo");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # What differs from std
//! - [`TcpStream::set_deadline`] and its kin, as in Go: a moment after which reads and writes fail with
//!   [`TimedOut`](std::io::ErrorKind::TimedOut), shared by all clones of a socket, and for a listener the end of `accept`. A
//!   timeout (`set_read_timeout`) fails with [`WouldBlock`](std::io::ErrorKind::WouldBlock), as std's does on Linux.
//! - To the kernel every socket is non-blocking. `set_nonblocking`, timeouts and deadlines are kept by this crate, for all clones of
//!   a socket. Conversions to and from std's types carry the flag and the timeouts over; deadlines end there. A descriptor and its
//!   duplicates share the kernel's flag, so convert all clones of a socket or none.
//! - A read of a stream into an empty buffer returns `Ok(0)` at once, as in Go. std's waits until there is data, or for its timeout.
//!   A datagram socket consumes a datagram even into an empty buffer, as std's does.
//! - A name is looked up in a [`blocking`](crate::blocking()) call, by 500 goroutines of a runtime at a time unless
//!   [`Builder::max_lookups`](crate::Builder::max_lookups) says otherwise; the others wait in order. A literal address, as a value or
//!   as text, needs no such call.
//!
//! Addresses, `Shutdown` and [`ToSocketAddrs`] are std's own.

mod listener;
pub(crate) mod lookup;
pub(crate) mod socket;
mod tcp;
mod udp;

pub use std::net::{
    AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6,
    ToSocketAddrs,
};

pub use self::listener::{Incoming, IntoIncoming, TcpListener};
pub use self::tcp::TcpStream;
pub use self::udp::UdpSocket;
