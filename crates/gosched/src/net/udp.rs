//! [`UdpSocket`]: datagrams.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::lookup::{look_up, with_each};
use super::socket::{delegate, descriptor, shared_state, timeouts};
use super::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, socket};
use crate::sched::sources::netpoll::{Desc, Side};

/// A UDP socket: `std::net::UdpSocket`, for goroutines.
///
/// To bind, to connect, to receive and to send blocks as it says there; nothing else here blocks.
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
    // In this order: the poller's state outlives the descriptor.
    inner: std::net::UdpSocket,
    desc: Desc,
}

impl UdpSocket {
    /// A socket at the first address that can be had; port 0 is one that is free. See the example of [`UdpSocket`].
    ///
    /// A look-up of a name blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// That of the last address, or of the look-up; [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address at all.
    pub fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<UdpSocket> {
        let inner = with_each(addr, std::net::UdpSocket::bind)?;
        inner.set_nonblocking(true)?;
        Ok(UdpSocket {
            inner,
            desc: Desc::new(),
        })
    }

    /// Waits for a datagram and says who sent it; what does not fit is lost. See the example of [`UdpSocket`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) past the deadline, [`WouldBlock`](io::ErrorKind::WouldBlock) after the timeout or if
    /// nothing is there and `set_nonblocking(true)` was called, and those of the system.
    #[inline]
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let op = || self.inner.recv_from(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    /// As [`recv_from`](UdpSocket::recv_from), and leaves the datagram there.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// Those of `recv_from`.
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

    /// Sends a datagram to the first of the addresses. See the example of [`UdpSocket`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while the socket's buffer is full or a name is looked up.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address, [`TimedOut`](io::ErrorKind::TimedOut) past the deadline,
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) after the timeout or where it would wait and `set_nonblocking(true)` was called,
    /// and those of the system.
    #[inline]
    pub fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], addr: A) -> io::Result<usize> {
        let Some(addr) = look_up(addr)?.next() else {
            let text = "no addresses to send data to";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let op = || self.inner.send_to(buf, addr);
        self.desc.write(self.inner.as_fd(), op)
    }

    /// Makes one address the only one that this socket sends to and receives from: the first of these that it can be.
    ///
    /// Nothing is sent. A look-up of a name blocks the goroutine, or the plain thread it is called on. See the example of
    /// [`UdpSocket`].
    ///
    /// # Errors
    /// That of the last address, or of the look-up; [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address at all.
    pub fn connect<A: ToSocketAddrs>(&self, addr: A) -> io::Result<()> {
        with_each(addr, |addr| self.inner.connect(addr))
    }

    /// Sends a datagram to the address it is connected to. See the example of [`UdpSocket`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while the socket's buffer is full.
    ///
    /// # Errors
    /// Those of [`send_to`](UdpSocket::send_to), and [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if there was nobody to
    /// receive an earlier one.
    #[inline]
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        let op = || self.inner.send(buf);
        self.desc.write(self.inner.as_fd(), op)
    }

    /// Waits for a datagram; what does not fit is lost. See the example of [`UdpSocket`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// Those of [`recv_from`](UdpSocket::recv_from), and [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if there was nobody
    /// to receive what a connected socket has sent.
    #[inline]
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let op = || self.inner.recv(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    /// As [`recv`](UdpSocket::recv), and leaves the datagram there. See the example of [`peek_from`](UdpSocket::peek_from).
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// Those of `recv`.
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
        /// The address of the other side.
        ///
        /// # Errors
        /// [`NotConnected`](io::ErrorKind::NotConnected) if the socket is not [connected](UdpSocket::connect).
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

        /// The address of this side. See the example of [`UdpSocket`].
        ///
        /// # Errors
        /// Those of the system.
        fn local_addr(&self) -> io::Result<SocketAddr>;

        /// Allows sending to all hosts of a network at once (`SO_BROADCAST`), or not.
        ///
        /// # Errors
        /// Those of the system.
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

        /// Whether it may send to all. See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Those of the system.
        fn broadcast(&self) -> io::Result<bool>;

        /// Sets whether this host gets what the socket sends to a group (`IP_MULTICAST_LOOP`). See the example of
        /// [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Those of the system.
        fn set_multicast_loop_v4(&self, multicast_loop_v4: bool) -> io::Result<()>;

        /// Whether this host gets what the socket sends to a group. See the example of
        /// [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Those of the system.
        fn multicast_loop_v4(&self) -> io::Result<bool>;

        /// Sets how many routers a packet to a group may pass (`IP_MULTICAST_TTL`). See the example of
        /// [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Those of the system.
        fn set_multicast_ttl_v4(&self, multicast_ttl_v4: u32) -> io::Result<()>;

        /// How many routers a packet to a group may pass. See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Those of the system.
        fn multicast_ttl_v4(&self) -> io::Result<u32>;

        /// Sets whether this host gets what the socket sends to a group (`IPV6_MULTICAST_LOOP`). See the example of
        /// [`set_broadcast`](UdpSocket::set_broadcast), which is about IPv4.
        ///
        /// # Errors
        /// Those of the system.
        fn set_multicast_loop_v6(&self, multicast_loop_v6: bool) -> io::Result<()>;

        /// Whether this host gets what the socket sends to a group. See the example of
        /// [`set_broadcast`](UdpSocket::set_broadcast), which is about IPv4.
        ///
        /// # Errors
        /// Those of the system.
        fn multicast_loop_v6(&self) -> io::Result<bool>;

        /// Sets how many routers a packet may pass. See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Those of the system.
        fn set_ttl(&self, ttl: u32) -> io::Result<()>;

        /// How many routers a packet may pass. See the example of [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Those of the system.
        fn ttl(&self) -> io::Result<u32>;

        /// Receives what is sent to a group, through the interface with that address, or one that the system chooses
        /// (`0.0.0.0`).
        ///
        /// # Errors
        /// Those of the system.
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

        /// Receives what is sent to a group, through the interface with that index, or one that the system chooses (0). See the
        /// example of [`join_multicast_v4`](UdpSocket::join_multicast_v4).
        ///
        /// # Errors
        /// Those of the system.
        fn join_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()>;

        /// Undoes [`join_multicast_v4`](UdpSocket::join_multicast_v4); see its example.
        ///
        /// # Errors
        /// Those of the system.
        fn leave_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()>;

        /// Undoes [`join_multicast_v6`](UdpSocket::join_multicast_v6). See the example of
        /// [`join_multicast_v4`](UdpSocket::join_multicast_v4).
        ///
        /// # Errors
        /// Those of the system.
        fn leave_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()>;

        /// The error that the socket has come across since the last one was told, if any; it is told once. See the example of
        /// [`set_broadcast`](UdpSocket::set_broadcast).
        ///
        /// # Errors
        /// Those of the system.
        fn take_error(&self) -> io::Result<Option<io::Error>>;
    }
}

descriptor!(UdpSocket, std::net::UdpSocket);
