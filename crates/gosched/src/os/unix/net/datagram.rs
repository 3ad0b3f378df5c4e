//! [`UnixDatagram`]: datagrams within one machine, none of which is lost.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net as std_net;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Backoff, SocketAddr};
use crate::net::socket::{self, delegate, descriptor, shared_state, timeouts};
use crate::sched::sources::netpoll::{Desc, Side};

/// A datagram socket of the Unix domain: `std::os::unix::net::UnixDatagram`, for goroutines.
///
/// To bind, to connect, to receive and to send blocks as it says there; nothing else here blocks.
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
    // In this order: the poller's state outlives the descriptor.
    inner: std_net::UnixDatagram,
    desc: Desc,
}

impl UnixDatagram {
    /// Makes a socket at `path`, where nothing may be yet; its file stays when it is dropped.
    ///
    /// Blocks the goroutine, or the plain thread it is called on, for as long as the file system takes; a goroutine needs a thread
    /// for that long.
    ///
    /// # Errors
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if there is something, [`InvalidInput`](io::ErrorKind::InvalidInput) if the path is too
    /// long, and those of the file system.
    ///
    /// ```
    /// use gosched::os::unix::net::UnixDatagram;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("gosched-doc-datagram-{}", std::process::id()));
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

    /// As [`bind`](UnixDatagram::bind), at an address, which may be an abstract one. See the example of
    /// [`send_to_addr`](UnixDatagram::send_to_addr).
    ///
    /// Blocks as `bind` does.
    ///
    /// # Errors
    /// Those of `bind`.
    pub fn bind_addr(socket_addr: &SocketAddr) -> io::Result<UnixDatagram> {
        UnixDatagram::fresh(std_net::UnixDatagram::bind_addr(socket_addr)?)
    }

    /// A socket without an address: it can send, and receive once it is connected. See the example of
    /// [`bind`](UnixDatagram::bind).
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// Those of the system, if it has no descriptor left.
    pub fn unbound() -> io::Result<UnixDatagram> {
        UnixDatagram::fresh(std_net::UnixDatagram::unbound()?)
    }

    /// Two sockets that are connected to each other. See the example of [`UnixDatagram`].
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// Those of the system, if it has no descriptor left.
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

    /// Makes the socket at `path` the one that this one sends to and receives from. See the example of
    /// [`bind`](UnixDatagram::bind).
    ///
    /// Blocks the goroutine, or the plain thread it is called on, for as long as the file system takes; a goroutine needs a thread
    /// for that long.
    ///
    /// # Errors
    /// Those of the file system, [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if nobody has that socket.
    pub fn connect<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.inner.connect(path)
    }

    /// As [`connect`](UnixDatagram::connect), to an address, which may be an abstract one. See the example of
    /// [`send_to_addr`](UnixDatagram::send_to_addr).
    ///
    /// Blocks as `connect` does.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn connect_addr(&self, socket_addr: &SocketAddr) -> io::Result<()> {
        self.inner.connect_addr(socket_addr)
    }

    /// Waits for a datagram and says who sent it; what does not fit is lost. See the example of [`bind`](UnixDatagram::bind).
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) past the deadline, [`WouldBlock`](io::ErrorKind::WouldBlock) after the timeout or if
    /// nothing is there and `set_nonblocking(true)` was called, and those of the system.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let op = || self.inner.recv_from(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    /// Waits for a datagram; what does not fit is lost. See the example of [`UnixDatagram`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// Those of [`recv_from`](UnixDatagram::recv_from).
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let op = || self.inner.recv(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    /// Sends a datagram to the socket at `path`. See the example of [`bind`](UnixDatagram::bind).
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while the receiver has too many already. It is not told when that
    /// ends and looks again after up to 5 milliseconds; a connected socket is told.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) past the deadline, [`WouldBlock`](io::ErrorKind::WouldBlock) after the timeout or where
    /// it would wait and `set_nonblocking(true)` was called, and those of the system.
    pub fn send_to<P: AsRef<Path>>(&self, buf: &[u8], path: P) -> io::Result<usize> {
        let path = path.as_ref();
        self.send_by(|| self.inner.send_to(buf, path))
    }

    /// As [`send_to`](UnixDatagram::send_to), to an address, which may be an abstract one.
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while the receiver has too many already, as `send_to` does.
    ///
    /// # Errors
    /// Those of `send_to`.
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

    /// Sends to whom this socket is not connected to. While that one has too many already the kernel says so, and says nothing when
    /// that ends: this socket counts as writable throughout.
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

    /// Sends a datagram to the socket it is connected to. See the example of [`UnixDatagram`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while the receiver has too many already.
    ///
    /// # Errors
    /// Those of [`send_to`](UnixDatagram::send_to), and [`NotConnected`](io::ErrorKind::NotConnected).
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
        /// The address of this side; a pair has none.
        ///
        /// # Errors
        /// Those of the system.
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

        /// The address of the other side. See the example of [`local_addr`](UnixDatagram::local_addr).
        ///
        /// # Errors
        /// [`NotConnected`](io::ErrorKind::NotConnected) if there is none.
        fn peer_addr(&self) -> io::Result<SocketAddr>;

        /// The error that the socket has come across since the last one was told, if any; it is told once. See the example of
        /// [`local_addr`](UnixDatagram::local_addr).
        ///
        /// # Errors
        /// Those of the system.
        fn take_error(&self) -> io::Result<Option<io::Error>>;

        /// Ends receiving, sending or both, for all clones; whoever waits in one is woken.
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
