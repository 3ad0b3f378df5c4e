//! [`UnixDatagram`]: datagrams within one machine, delivered without loss.
//!
//! std's socket blocks the thread. A wait here frees the thread for other goroutines.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net as std_net;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Backoff, SocketAddr};
use crate::net::socket::{self, delegate, descriptor, shared_state, timeouts};
use crate::sched::sources::netpoll::{Desc, Side};

/// A Unix domain datagram socket, for goroutines and plain threads.
///
/// Only binding, connecting, receiving and sending can block. See
/// [`std::os::unix::net::UnixDatagram`].
///
/// ```
/// use gosched::os::unix::net::UnixDatagram;
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let (a, b) = UnixDatagram::pair()?;
///     gosched::go(move || drop(a.send(b"one datagram").unwrap()));
///     let mut buf = [0; 64];
///     let n = b.recv(&mut buf)?;
///     assert_eq!(&buf[..n], b"one datagram");
///     Ok(())
/// })
/// # }
/// ```
pub struct UnixDatagram {
    // Fields in this order: the poller's state must outlive the descriptor.
    inner: std_net::UnixDatagram,
    desc: Desc,
}

impl UnixDatagram {
    /// Creates a socket with a file at `path`.
    ///
    /// The file must not exist yet, and stays when the socket is dropped. Blocks the calling
    /// goroutine or plain thread while the file system works; a goroutine keeps its thread
    /// meanwhile.
    ///
    /// # Errors
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if the file exists,
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the path is too long, otherwise errors of
    /// the file system.
    ///
    /// ```
    /// use gosched::os::unix::net::UnixDatagram;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir()
    /// #     .join(format!("gosched-doc-datagram-{}", std::process::id()));
    /// gosched::run(|| {
    ///     let server = UnixDatagram::bind(&path)?;
    ///     let client = UnixDatagram::unbound()?;
    ///     client.send_to(b"to a path", &path)?;
    ///     client.connect(&path)?;
    ///     client.send(b"to a peer")?;
    ///
    ///     let mut buf = [0; 64];
    ///     let (n, from) = server.recv_from(&mut buf)?;
    ///     assert_eq!(&buf[..n], b"to a path");
    ///     assert!(from.is_unnamed());
    /// #   std::fs::remove_file(&path)?;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<UnixDatagram> {
        UnixDatagram::fresh(std_net::UnixDatagram::bind(path)?)
    }

    /// As [`bind`](UnixDatagram::bind), with an address, which may be abstract.
    ///
    /// Blocks as `bind` does. See the example of [`send_to_addr`](UnixDatagram::send_to_addr).
    ///
    /// # Errors
    /// The errors of `bind`.
    pub fn bind_addr(socket_addr: &SocketAddr) -> io::Result<UnixDatagram> {
        UnixDatagram::fresh(std_net::UnixDatagram::bind_addr(socket_addr)?)
    }

    /// Creates a socket without an address.
    ///
    /// It can send, and receive once it is connected. Never blocks. See the example of
    /// [`bind`](UnixDatagram::bind).
    ///
    /// # Errors
    /// Errors of the system, if no descriptor is left.
    pub fn unbound() -> io::Result<UnixDatagram> {
        UnixDatagram::fresh(std_net::UnixDatagram::unbound()?)
    }

    /// Creates two sockets that are connected to each other.
    ///
    /// Never blocks. See the example of [`UnixDatagram`].
    ///
    /// # Errors
    /// Errors of the system, if no descriptor is left.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (a, b) = std_net::UnixDatagram::pair()?;
        Ok((UnixDatagram::fresh(a)?, UnixDatagram::fresh(b)?))
    }

    fn fresh(inner: std_net::UnixDatagram) -> io::Result<UnixDatagram> {
        inner.set_nonblocking(true)?;
        Ok(UnixDatagram {
            inner,
            desc: Desc::new(),
        })
    }

    /// Connects the socket to `path`: it then sends to and receives from that socket only.
    ///
    /// Blocks the calling goroutine or plain thread while the file system works; a goroutine keeps
    /// its thread meanwhile. See the example of [`bind`](UnixDatagram::bind).
    ///
    /// # Errors
    /// Errors of the file system, or [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if no
    /// process has that socket open.
    pub fn connect<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.inner.connect(path)
    }

    /// As [`connect`](UnixDatagram::connect), with an address, which may be abstract.
    ///
    /// Blocks as `connect` does. See the example of [`send_to_addr`](UnixDatagram::send_to_addr).
    ///
    /// # Errors
    /// The errors of `connect`.
    pub fn connect_addr(&self, socket_addr: &SocketAddr) -> io::Result<()> {
        self.inner.connect_addr(socket_addr)
    }

    /// Waits for a datagram and returns its length and its sender.
    ///
    /// Bytes that do not fit into the buffer are lost. Blocks the calling goroutine or plain
    /// thread. See the example of [`bind`](UnixDatagram::bind).
    ///
    /// # Errors
    /// - [`TimedOut`](io::ErrorKind::TimedOut) after the deadline.
    /// - [`WouldBlock`](io::ErrorKind::WouldBlock) after the timeout, or if no datagram is
    ///   available and `set_nonblocking(true)` was called.
    /// - Otherwise errors of the system.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let op = || self.inner.recv_from(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    /// Waits for a datagram and returns its length.
    ///
    /// Bytes that do not fit into the buffer are lost. Blocks the calling goroutine or plain
    /// thread. See the example of [`UnixDatagram`].
    ///
    /// # Errors
    /// The errors of [`recv_from`](UnixDatagram::recv_from).
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let op = || self.inner.recv(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    /// Sends a datagram to the socket at `path`.
    ///
    /// Blocks the calling goroutine or plain thread while the receiver's queue is full. The kernel
    /// does not report the end of that, so the call retries at least every 5 milliseconds. For
    /// a connected socket the kernel reports it. See the example of [`bind`](UnixDatagram::bind).
    ///
    /// # Errors
    /// - [`TimedOut`](io::ErrorKind::TimedOut) after the deadline.
    /// - [`WouldBlock`](io::ErrorKind::WouldBlock) after the timeout, or if the call would wait and
    ///   `set_nonblocking(true)` was called.
    /// - Otherwise errors of the system.
    pub fn send_to<P: AsRef<Path>>(&self, buf: &[u8], path: P) -> io::Result<usize> {
        let path = path.as_ref();
        self.send_by(|| self.inner.send_to(buf, path))
    }

    /// As [`send_to`](UnixDatagram::send_to), with an address, which may be abstract.
    ///
    /// Blocks the calling goroutine or plain thread while the receiver's queue is full, as
    /// `send_to`.
    ///
    /// # Errors
    /// The errors of `send_to`.
    ///
    /// ```
    /// use gosched::os::unix::net::{SocketAddr, UnixDatagram};
    /// use std::os::linux::net::SocketAddrExt;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let name = format!("gosched-doc-send-to-addr-{}", std::process::id());
    /// gosched::run(|| {
    ///     let addr = SocketAddr::from_abstract_name(&name)?;
    ///     let server = UnixDatagram::bind_addr(&addr)?;
    ///     let client = UnixDatagram::unbound()?;
    ///     client.send_to_addr(b"first", &addr)?;
    ///     client.connect_addr(&addr)?;
    ///     client.send(b"second")?;
    ///     let mut buf = [0; 16];
    ///     assert_eq!(server.recv(&mut buf)?, 5);
    ///     assert_eq!(server.recv(&mut buf)?, 6);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn send_to_addr(&self, buf: &[u8], socket_addr: &SocketAddr) -> io::Result<usize> {
        self.send_by(|| self.inner.send_to_addr(buf, socket_addr))
    }

    /// Sends to a socket that this socket is not connected to. The send fails while the receiver's
    /// queue is full. The kernel does not report when that ends: this socket is always writable.
    fn send_by(&self, mut op: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        let started = Instant::now();
        let mut pause = Backoff::new();
        loop {
            let mut full = None;
            let sent = self.desc.write(self.inner.as_fd(), || match op() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    full = Some(error);
                    Ok(0)
                }
                sent => sent,
            });
            let Some(error) = full else {
                return sent;
            };
            let timeout = self.desc.timeout(Side::Write);
            if self.desc.is_nonblocking() || timeout.is_some_and(|t| started.elapsed() >= t) {
                return Err(error);
            }
            pause.sleep();
        }
    }

    /// Sends a datagram to the connected socket.
    ///
    /// Blocks the calling goroutine or plain thread while the receiver's queue is full. See the
    /// example of [`UnixDatagram`].
    ///
    /// # Errors
    /// The errors of [`send_to`](UnixDatagram::send_to), and
    /// [`NotConnected`](io::ErrorKind::NotConnected).
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        let op = || self.inner.send(buf);
        self.desc.write(self.inner.as_fd(), op)
    }

    shared_state!(
        UnixDatagram,
        "receiving and sending",
        "See the example of [`TcpStream::try_clone`](crate::net::TcpStream::try_clone)."
    );
    timeouts!(
        timeout,
        "[`TcpStream::peek`](crate::net::TcpStream::peek); receiving is reading, sending is writing"
    );

    delegate! {
        /// Returns the local address; a socket of a pair has none.
        ///
        /// # Errors
        /// Errors of the system.
        ///
        /// ```
        /// # fn main() -> std::io::Result<()> {
        /// let (a, b) = gosched::os::unix::net::UnixDatagram::pair()?;
        /// assert!(a.local_addr()?.is_unnamed());
        /// assert!(a.peer_addr()?.is_unnamed());
        /// assert!(b.take_error()?.is_none());
        /// # Ok(())
        /// # }
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;

        /// Returns the connected address.
        ///
        /// See the example of [`local_addr`](UnixDatagram::local_addr).
        ///
        /// # Errors
        /// [`NotConnected`](io::ErrorKind::NotConnected) if the socket is not connected.
        fn peer_addr(&self) -> io::Result<SocketAddr>;

        /// Takes the pending error of the socket, if any, and clears it.
        ///
        /// See the example of [`local_addr`](UnixDatagram::local_addr).
        ///
        /// # Errors
        /// Errors of the system.
        fn take_error(&self) -> io::Result<Option<io::Error>>;

        /// Shuts down receiving, sending or both, for all clones, and wakes waiting calls.
        ///
        /// # Errors
        /// [`NotConnected`](io::ErrorKind::NotConnected) if the socket is not connected.
        ///
        /// ```
        /// use gosched::os::unix::net::UnixDatagram;
        /// use std::net::Shutdown;
        ///
        /// # fn main() -> std::io::Result<()> {
        /// let (a, b) = UnixDatagram::pair()?;
        /// a.shutdown(Shutdown::Both)?;
        /// assert!(a.send(b"too late").is_err());
        /// # drop(b);
        /// # Ok(())
        /// # }
        /// ```
        fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    }
}

descriptor!(UnixDatagram, std_net::UnixDatagram);
