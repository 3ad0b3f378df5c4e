//! TCP and UDP sockets with the API of [`std::net`], for goroutines.
//!
//! A wait blocks only the goroutine, so each connection can have a goroutine with ordinary blocking
//! reads and writes. All types also work on plain threads, mixed with goroutines, and across
//! runtimes.
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
//! - [`TcpStream::set_deadline`] and its relatives set a deadline, as in Go. After it reads and
//!   writes fail with [`TimedOut`](std::io::ErrorKind::TimedOut); so does `accept` of a listener.
//!   All clones of a socket share it. A timeout (`set_read_timeout`) fails with
//!   [`WouldBlock`](std::io::ErrorKind::WouldBlock), as in std on Linux.
//! - Every socket is non-blocking for the kernel: the raw descriptor has `O_NONBLOCK` set. This
//!   crate implements `set_nonblocking`, timeouts and deadlines, for all clones of a socket.
//!   Conversions to and from std's types keep the flag and the timeouts, and drop the deadlines. A
//!   descriptor and its duplicates share the kernel's flag, so convert all clones of a socket or
//!   none.
//! - A read from a stream into an empty buffer returns `Ok(0)` at once, as in Go. std waits for
//!   data or for its timeout. A datagram socket consumes a datagram even into an empty buffer, as
//!   in std.
//! - [`TcpStream::connect`] to a name tries IPv6 and IPv4 addresses in turn, and does not wait for
//!   one that does not answer (RFC 8305). [`Dialer`] has the options: a limit for lookup and
//!   connection together, a context, a local address.
//! - [`lookup_host`] looks up a name, also with a timeout or a context.
//! - A name lookup is a [`blocking`](crate::blocking()) call. At most 500 goroutines of a runtime
//!   look up names at the same time; further ones wait in order.
//!   [`Builder::max_lookups`](crate::Builder::max_lookups) changes the limit. A literal address, as
//!   a value or as text, needs no lookup.
//!
//! Addresses, `Shutdown` and [`ToSocketAddrs`] are re-exported from std.

mod dial;
mod limit;
mod listener;
pub(crate) mod lookup;
mod lookup_host;
mod race;
pub(crate) mod socket;
mod tcp;
mod udp;

pub use std::net::{
    AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6,
    ToSocketAddrs,
};

pub use self::dial::Dialer;
pub use self::listener::{Incoming, IntoIncoming, TcpListener};
pub use self::lookup_host::{lookup_host, lookup_host_in, lookup_host_timeout};
pub use self::tcp::TcpStream;
pub use self::udp::UdpSocket;
