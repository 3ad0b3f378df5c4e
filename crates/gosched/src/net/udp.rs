//! [`UdpSocket`]: a UDP socket.
//!
//! std's socket blocks the thread. A wait here frees the thread for other goroutines.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::lookup::{look_up, with_each};
use super::socket::{delegate, descriptor, shared_state, timeouts};
use super::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, socket};
use crate::sched::sources::netpoll::{Desc, Side};

/// A UDP socket, for goroutines and plain threads.
///
/// Only binding, connecting, receiving and sending can block. See [`std::net::UdpSocket`].
///
/// ```
/// use gosched::net::UdpSocket;
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let server = UdpSocket::bind("127.0.0.1:0")?;
///     let addr = server.local_addr()?;
///     gosched::go(move || {
///         let mut buf = [0; 1500];
///         let (n, from) = server.recv_from(&mut buf).unwrap();
///         server.send_to(&buf[..n], from).unwrap();
///     });
///
///     let client = UdpSocket::bind("127.0.0.1:0")?;
///     client.connect(addr)?;
///     client.send(b"ping")?;
///     let mut answer = [0; 16];
///     let n = client.recv(&mut answer)?;
///     assert_eq!(&answer[..n], b"ping");
///     Ok(())
/// })
/// # }
/// ```
pub struct UdpSocket {
    // Fields in this order: the poller's state must outlive the descriptor.
    inner: std::net::UdpSocket,
    desc: Desc,
}

impl UdpSocket {
    /// Creates a socket at the first address that is available; port 0 means a free port.
    ///
    /// A name lookup blocks the calling goroutine or plain thread. See the example of
    /// [`UdpSocket`].
    ///
    /// # Errors
    /// The error of the last address, or of the lookup.
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address.
    pub fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<UdpSocket> {
        let inner = with_each(addr, std::net::UdpSocket::bind)?;
        inner.set_nonblocking(true)?;
        Ok(UdpSocket {
            inner,
            desc: Desc::new(),
        })
    }

    /// Waits for a datagram and returns its length and its sender.
    ///
    /// Bytes that do not fit into the buffer are lost. Blocks the calling goroutine or plain
    /// thread. See the example of [`UdpSocket`].
    ///
    /// # Errors
    /// - [`TimedOut`](io::ErrorKind::TimedOut) after the deadline.
    /// - [`WouldBlock`](io::ErrorKind::WouldBlock) after the timeout, or if no datagram is
    ///   available and `set_nonblocking(true)` was called.
    /// - Otherwise errors of the system.
    #[inline]
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let op = || self.inner.recv_from(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    /// As [`recv_from`](UdpSocket::recv_from), but keeps the datagram in the socket.
    ///
    /// Blocks the calling goroutine or plain thread.
    ///
    /// # Errors
    /// The errors of `recv_from`.
    ///
    /// ```
    /// use gosched::net::UdpSocket;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let [a, b] = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    ///     a.send_to(b"twice", b.local_addr()?)?;
    ///     let mut buf = [0; 16];
    ///     assert_eq!(b.peek_from(&mut buf)?, (5, a.local_addr()?));
    ///     assert_eq!(b.peek(&mut buf)?, 5);
    ///     assert_eq!(b.recv_from(&mut buf)?, (5, a.local_addr()?));
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let op = || self.inner.peek_from(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    /// Sends a datagram to the first of the addresses.
    ///
    /// Blocks the calling goroutine or plain thread while the socket's buffer is full or a name is
    /// looked up. See the example of [`UdpSocket`].
    ///
    /// # Errors
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address.
    /// - [`TimedOut`](io::ErrorKind::TimedOut) after the deadline.
    /// - [`WouldBlock`](io::ErrorKind::WouldBlock) after the timeout, or if the call would wait and
    ///   `set_nonblocking(true)` was called.
    /// - Otherwise errors of the system.
    #[inline]
    pub fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], addr: A) -> io::Result<usize> {
        let Some(addr) = look_up(addr)?.next() else {
            let text = "no addresses to send data to";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let op = || self.inner.send_to(buf, addr);
        self.desc.write(self.inner.as_fd(), op)
    }

    /// Connects the socket to an address: it then sends to and receives from that address only.
    ///
    /// It takes the first address that works, and sends nothing. A name lookup blocks the calling
    /// goroutine or plain thread. See the example of [`UdpSocket`].
    ///
    /// # Errors
    /// The error of the last address, or of the lookup.
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address.
    pub fn connect<A: ToSocketAddrs>(&self, addr: A) -> io::Result<()> {
        with_each(addr, |addr| self.inner.connect(addr))
    }

    /// Sends a datagram to the connected address.
    ///
    /// Blocks the calling goroutine or plain thread while the socket's buffer is full. See the
    /// example of [`UdpSocket`].
    ///
    /// # Errors
    /// The errors of [`send_to`](UdpSocket::send_to), and
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if an earlier datagram had no
    /// receiver.
    #[inline]
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        let op = || self.inner.send(buf);
        self.desc.write(self.inner.as_fd(), op)
    }

    /// Waits for a datagram and returns its length.
    ///
    /// Bytes that do not fit into the buffer are lost. Blocks the calling goroutine or plain
    /// thread. See the example of [`UdpSocket`].
    ///
    /// # Errors
    /// The errors of [`recv_from`](UdpSocket::recv_from), and
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if a datagram of a connected socket
    /// had no receiver.
    #[inline]
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let op = || self.inner.recv(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    /// As [`recv`](UdpSocket::recv), but keeps the datagram in the socket.
    ///
    /// Blocks the calling goroutine or plain thread. See the example of
    /// [`peek_from`](UdpSocket::peek_from).
    ///
    /// # Errors
    /// The errors of `recv`.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let op = || self.inner.peek(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    shared_state!(
        UdpSocket,
        "receiving and sending",
        "See the example of [`TcpStream::try_clone`](crate::net::TcpStream::try_clone)."
    );
    timeouts!(
        dur,
        "[`TcpStream::peek`](crate::net::TcpStream::peek); receiving is reading, sending is writing"
    );

    delegate! {
        /// Returns the connected address.
        ///
        /// # Errors
        /// [`NotConnected`](io::ErrorKind::NotConnected) if the socket is not
        /// [connected](UdpSocket::connect).
        ///
        /// ```
        /// # fn main() -> std::io::Result<()> {
        /// let [a, b] = [(); 2].map(|()| gosched::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        /// assert!(a.peer_addr().is_err());
        /// a.connect(b.local_addr()?)?;
        /// assert_eq!(a.peer_addr()?, b.local_addr()?);
        /// # Ok(())
        /// # }
        /// ```
        fn peer_addr(&self) -> io::Result<SocketAddr>;

        /// Returns the local address.
        ///
        /// See the example of [`UdpSocket`].
        ///
        /// # Errors
        /// Errors of the system.
        fn local_addr(&self) -> io::Result<SocketAddr>;

        /// Sets whether the socket may send to broadcast addresses (`SO_BROADCAST`).
        ///
        /// # Errors
        /// Errors of the system.
        ///
        /// ```
        /// # fn main() -> std::io::Result<()> {
        /// let socket = gosched::net::UdpSocket::bind("127.0.0.1:0")?;
        /// socket.set_broadcast(true)?;
        /// assert!(socket.broadcast()?);
        /// socket.set_ttl(64)?;
        /// assert_eq!(socket.ttl()?, 64);
        /// socket.set_multicast_ttl_v4(2)?;
        /// assert_eq!(socket.multicast_ttl_v4()?, 2);
        /// socket.set_multicast_loop_v4(false)?;
        /// assert!(!socket.multicast_loop_v4()?);
        /// assert!(socket.take_error()?.is_none());
        /// # Ok(())
        /// # }
        /// ```
        fn set_broadcast(&self, broadcast: bool) -> io::Result<()>;

        /// Returns whether the socket may send to broadcast addresses.
        ///
        /// See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Errors of the system.
        fn broadcast(&self) -> io::Result<bool>;

        /// Sets whether this host receives what the socket sends to a group (`IP_MULTICAST_LOOP`).
        ///
        /// See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Errors of the system.
        fn set_multicast_loop_v4(&self, multicast_loop_v4: bool) -> io::Result<()>;

        /// Returns whether this host receives what the socket sends to a group.
        ///
        /// See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Errors of the system.
        fn multicast_loop_v4(&self) -> io::Result<bool>;

        /// Sets how many routers a packet to a group may pass (`IP_MULTICAST_TTL`).
        ///
        /// See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Errors of the system.
        fn set_multicast_ttl_v4(&self, multicast_ttl_v4: u32) -> io::Result<()>;

        /// Returns how many routers a packet to a group may pass.
        ///
        /// See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Errors of the system.
        fn multicast_ttl_v4(&self) -> io::Result<u32>;

        /// Sets whether this host receives what the socket sends to a group
        /// (`IPV6_MULTICAST_LOOP`).
        ///
        /// See the example of [`set_broadcast`](UdpSocket::set_broadcast), for IPv4.
        ///
        /// # Errors
        /// Errors of the system.
        fn set_multicast_loop_v6(&self, multicast_loop_v6: bool) -> io::Result<()>;

        /// Returns whether this host receives what the socket sends to a group, for IPv6.
        ///
        /// See the example of [`set_broadcast`](UdpSocket::set_broadcast), for IPv4.
        ///
        /// # Errors
        /// Errors of the system.
        fn multicast_loop_v6(&self) -> io::Result<bool>;

        /// Sets the time to live: how many routers a packet may pass.
        ///
        /// See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Errors of the system.
        fn set_ttl(&self, ttl: u32) -> io::Result<()>;

        /// Returns the time to live: how many routers a packet may pass.
        ///
        /// See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Errors of the system.
        fn ttl(&self) -> io::Result<u32>;

        /// Joins an IPv4 multicast group on the interface with this address.
        ///
        /// With `0.0.0.0` the system chooses the interface.
        ///
        /// # Errors
        /// Errors of the system.
        ///
        /// ```
        /// use gosched::net::{Ipv4Addr, UdpSocket};
        ///
        /// # fn main() -> std::io::Result<()> {
        /// let socket = UdpSocket::bind("127.0.0.1:0")?;
        /// let group = Ipv4Addr::new(224, 0, 0, 251);
        /// socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST)?;
        /// socket.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST)?;
        /// # Ok(())
        /// # }
        /// ```
        fn join_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()>;

        /// Joins an IPv6 multicast group on the interface with this index.
        ///
        /// With 0 the system chooses the interface. See the example of
        /// [`join_multicast_v4`](UdpSocket::join_multicast_v4).
        ///
        /// # Errors
        /// Errors of the system.
        fn join_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()>;

        /// Leaves an IPv4 multicast group.
        ///
        /// See the example of [`join_multicast_v4`](UdpSocket::join_multicast_v4).
        ///
        /// # Errors
        /// Errors of the system.
        fn leave_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()>;

        /// Leaves an IPv6 multicast group.
        ///
        /// See the example of [`join_multicast_v4`](UdpSocket::join_multicast_v4).
        ///
        /// # Errors
        /// Errors of the system.
        fn leave_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()>;

        /// Takes the pending error of the socket, if any, and clears it.
        ///
        /// See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Errors of the system.
        fn take_error(&self) -> io::Result<Option<io::Error>>;
    }
}

descriptor!(UdpSocket, std::net::UdpSocket);
