//! [`TcpStream`]: one TCP connection.
//!
//! std's stream blocks the thread. A wait here frees the thread for other goroutines.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::linux::net::TcpStreamExt;
use std::time::{Duration, Instant};

use super::limit::Limit;
use super::lookup::{Found, each, look_up};
use super::race::{self, Plan};
use super::socket::{delegate, descriptor, shared_state, stream_io, stream_writes, timeouts};
use super::{Shutdown, SocketAddr, ToSocketAddrs, socket};
use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys;

/// A TCP connection, for goroutines and plain threads.
///
/// Connecting, reading, [`peek`](TcpStream::peek) and writing block the calling goroutine or plain
/// thread. Nothing else blocks, except the last drop after [`set_linger`](TcpStream::set_linger). A
/// read into an empty buffer returns `Ok(0)` at once, even after the deadline; std waits for data
/// first.
///
/// Several goroutines and threads may use one stream at the same time, through references or
/// clones. Dropping the last clone closes the connection. Written data is still delivered. See
/// [`std::net::TcpStream`].
///
/// ```
/// use gosched::net::{TcpListener, TcpStream};
/// use std::io::{Read, Write};
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let mut client = TcpStream::connect(listener.local_addr()?)?;
///     let (mut server, _) = listener.accept()?;
///
///     client.write_all(b"hello")?;
///     drop(client);
///     let mut all = String::new();
///     server.read_to_string(&mut all)?;
///     assert_eq!(all, "hello");
///     Ok(())
/// })
/// # }
/// ```
pub struct TcpStream {
    // Fields in this order: the poller's state must outlive the descriptor.
    inner: std::net::TcpStream,
    desc: Desc,
}

impl TcpStream {
    /// Connects to the first address that accepts the connection.
    ///
    /// A name is looked up first. Its addresses are tried as a [`Dialer`](crate::net::Dialer) does:
    /// IPv6 and IPv4 take turns, and an attempt that takes 250 ms gets the next one beside it. A
    /// list of addresses, or a type of your own with [`ToSocketAddrs`], is tried in order, as in
    /// std. Blocks the calling goroutine or plain thread until the connection is established or the
    /// last address has failed.
    ///
    /// # Errors
    /// The error of the last address, or of the lookup.
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address.
    ///
    /// ```
    /// use gosched::net::{TcpListener, TcpStream};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     let addr = listener.local_addr()?;
    ///     let stream = TcpStream::connect(("localhost", addr.port()))?;
    ///     assert_eq!(stream.peer_addr()?, addr);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn connect<A: ToSocketAddrs>(addr: A) -> io::Result<TcpStream> {
        match look_up(addr)? {
            Found::Named(addrs) => race::connect(addrs.collect(), &Plan::default(), &Limit::NONE),
            addrs => each(addrs, |addr| TcpStream::connect_within(&addr, None)),
        }
    }

    /// Connects to one address, with a timeout.
    ///
    /// Blocks the calling goroutine or plain thread for at most `timeout`. For a name with a timeout
    /// there is [`Dialer`](crate::net::Dialer).
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) after the timeout,
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the timeout is zero, otherwise the error of
    /// the connection.
    ///
    /// ```
    /// use gosched::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     TcpStream::connect_timeout(&listener.local_addr()?, Duration::from_secs(10))?;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        TcpStream::connect_within(addr, Some(timeout))
    }

    fn connect_within(addr: &SocketAddr, timeout: Option<Duration>) -> io::Result<TcpStream> {
        let stream = TcpStream::fresh(sys::tcp_socket(addr)?, true);
        // The write timeout serves as the timeout of the connection: no other goroutine can write
        // yet.
        stream.desc.set_timeout(Side::Write, timeout)?;
        let fd = stream.inner.as_fd();
        if !sys::connect_begin(fd, addr)? {
            let done = stream.desc.write(fd, || match sys::is_writable(fd) {
                true => stream.inner.take_error(),
                false => Err(io::ErrorKind::WouldBlock.into()),
            });
            match done {
                Ok(None) => {}
                Ok(Some(error)) => return Err(error),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let text = "connection timed out";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                Err(error) => return Err(error),
            }
        }
        stream.desc.set_timeout(Side::Write, None)?;
        Ok(stream)
    }

    /// The descriptor, for calls of this crate: it is not handed out.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }

    /// Wraps a non-blocking descriptor that this crate has opened. `is_plain`: no protocol on top
    /// of TCP.
    pub(super) fn fresh(fd: OwnedFd, is_plain: bool) -> TcpStream {
        let desc = Desc::new();
        if is_plain {
            desc.set_plain();
        }
        TcpStream {
            inner: fd.into(),
            desc,
        }
    }

    delegate! {
        /// Returns the remote address.
        ///
        /// # Errors
        /// [`NotConnected`](io::ErrorKind::NotConnected) after the other side has reset the
        /// connection.
        ///
        /// See the example of [`connect`](TcpStream::connect).
        fn peer_addr(&self) -> io::Result<SocketAddr>;

        /// Returns the local address.
        ///
        /// # Errors
        /// Errors of the system.
        ///
        /// ```
        /// use gosched::net::{TcpListener, TcpStream};
        ///
        /// # fn main() -> std::io::Result<()> {
        /// gosched::run(|| {
        ///     let listener = TcpListener::bind("127.0.0.1:0")?;
        ///     let stream = TcpStream::connect(listener.local_addr()?)?;
        ///     assert_eq!(listener.accept()?.1, stream.local_addr()?);
        ///     Ok(())
        /// })
        /// # }
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;

        /// Shuts down reading, writing or both, for all clones.
        ///
        /// Waiting reads and writes return and see the end of the stream. After a shutdown of
        /// writing the other side reads the data under way, and then the end.
        ///
        /// # Errors
        /// [`NotConnected`](io::ErrorKind::NotConnected) if the connection no longer exists.
        ///
        /// ```
        /// use gosched::net::{Shutdown, TcpListener, TcpStream};
        /// use std::io::{Read, Write};
        ///
        /// # fn main() -> std::io::Result<()> {
        /// gosched::run(|| {
        ///     let listener = TcpListener::bind("127.0.0.1:0")?;
        ///     let mut client = TcpStream::connect(listener.local_addr()?)?;
        ///     gosched::go(move || {
        ///         let (mut server, _) = listener.accept().unwrap();
        ///         let mut question = Vec::new();
        ///         server.read_to_end(&mut question).unwrap();
        ///         server.write_all(&question.repeat(2)).unwrap();
        ///     });
        ///     client.write_all(b"twice")?;
        ///     client.shutdown(Shutdown::Write)?;
        ///     let mut answer = String::new();
        ///     client.read_to_string(&mut answer)?;
        ///     assert_eq!(answer, "twicetwice");
        ///     Ok(())
        /// })
        /// # }
        /// ```
        fn shutdown(&self, how: Shutdown) -> io::Result<()>;

        /// Sends small packets immediately instead of collecting data (`TCP_NODELAY`).
        ///
        /// # Errors
        /// Errors of the system.
        ///
        /// ```
        /// use gosched::net::{TcpListener, TcpStream};
        ///
        /// # fn main() -> std::io::Result<()> {
        /// gosched::run(|| {
        ///     let listener = TcpListener::bind("127.0.0.1:0")?;
        ///     let stream = TcpStream::connect(listener.local_addr()?)?;
        ///     stream.set_nodelay(true)?;
        ///     assert!(stream.nodelay()?);
        ///     stream.set_ttl(64)?;
        ///     assert_eq!(stream.ttl()?, 64);
        ///     assert!(stream.take_error()?.is_none());
        ///     Ok(())
        /// })
        /// # }
        /// ```
        fn set_nodelay(&self, nodelay: bool) -> io::Result<()>;

        /// Returns whether small packets are sent immediately.
        ///
        /// See the example of [`set_nodelay`](TcpStream::set_nodelay).
        ///
        /// # Errors
        /// Errors of the system.
        fn nodelay(&self) -> io::Result<bool>;

        /// Sets the time to live: how many routers a packet may pass.
        ///
        /// See the example of [`set_nodelay`](TcpStream::set_nodelay).
        ///
        /// # Errors
        /// Errors of the system.
        fn set_ttl(&self, ttl: u32) -> io::Result<()>;

        /// Returns the time to live: how many routers a packet may pass.
        ///
        /// See the example of [`set_nodelay`](TcpStream::set_nodelay).
        ///
        /// # Errors
        /// Errors of the system.
        fn ttl(&self) -> io::Result<u32>;

        /// Takes the pending error of the socket, if any, and clears it.
        ///
        /// See the example of [`set_nodelay`](TcpStream::set_nodelay).
        ///
        /// # Errors
        /// Errors of the system.
        fn take_error(&self) -> io::Result<Option<io::Error>>;

        /// Acknowledges incoming data immediately (`TCP_QUICKACK`).
        ///
        /// See the example of [`quickack`](TcpStream::quickack), and
        /// [`std::os::linux::net::TcpStreamExt`].
        ///
        /// # Errors
        /// Errors of the system.
        fn set_quickack(&self, quickack: bool) -> io::Result<()>;

        /// Returns whether incoming data is acknowledged immediately.
        ///
        /// # Errors
        /// Errors of the system.
        ///
        /// ```
        /// # use gosched::net::{TcpListener, TcpStream};
        /// # fn main() -> std::io::Result<()> {
        /// # let listener = TcpListener::bind("127.0.0.1:0")?;
        /// let stream = TcpStream::connect(listener.local_addr()?)?;
        /// stream.set_quickack(true)?;
        /// assert!(stream.quickack()?);
        /// # Ok(())
        /// # }
        /// ```
        fn quickack(&self) -> io::Result<bool>;
    }

    shared_state!(
        TcpStream,
        "reads and writes",
        r#"
```
use gosched::net::{TcpListener, TcpStream};
use std::io::{ErrorKind, Read, Write};

# fn main() -> std::io::Result<()> {
gosched::run(|| {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let (mut peer, _) = listener.accept()?;
    let mut clone = stream.try_clone()?;

    let reader = gosched::thread::spawn(move || {
        let mut buf = [0; 6];
        clone.read_exact(&mut buf).map(|()| (clone, buf))
    });
    stream.write_all(b"question")?;
    peer.write_all(b"answer")?;
    let (clone, answer) = reader.join().unwrap()?;
    assert_eq!(&answer, b"answer");

    clone.set_nonblocking(true)?;
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    Ok(())
})
# }
```
"#
    );
    timeouts!(dur, "[`peek`](TcpStream::peek)");

    /// Reads data without removing it from the stream.
    ///
    /// Blocks the calling goroutine or plain thread until data is available, as a read does.
    ///
    /// # Errors
    /// The errors of a read.
    ///
    /// ```
    /// use gosched::net::{TcpListener, TcpStream};
    /// use std::io::{ErrorKind, Write};
    /// use std::time::{Duration, Instant};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     let mut client = TcpStream::connect(listener.local_addr()?)?;
    ///     let (server, _) = listener.accept()?;
    ///     let mut buf = [0; 8];
    ///
    ///     server.set_read_timeout(Some(Duration::from_millis(1)))?;
    ///     assert_eq!(server.peek(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
    ///     server.set_read_timeout(None)?;
    ///
    ///     client.write_all(b"here")?;
    ///     assert_eq!(server.peek(&mut buf)?, 4);
    ///     assert_eq!(server.peek(&mut buf)?, 4);
    ///
    ///     // A moment that has passed ends reading, whatever is there.
    ///     server.set_read_deadline(Some(Instant::now()))?;
    ///     assert_eq!(server.peek(&mut buf).unwrap_err().kind(), ErrorKind::TimedOut);
    ///     server.set_read_deadline(None)?;
    ///     assert_eq!(server.peek(&mut buf)?, 4);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.desc.read(self.inner.as_fd(), || self.inner.peek(buf))
    }

    /// Sets how closing the connection treats data that is not sent yet.
    ///
    /// - `None`: the kernel sends it in the background.
    /// - Zero: it is discarded, and the other side gets a reset.
    /// - Otherwise dropping the last clone blocks until it is sent, for at most that many whole
    ///   seconds.
    ///
    /// # Errors
    /// Errors of the system.
    ///
    /// ```
    /// use gosched::net::{TcpListener, TcpStream};
    /// use std::io::{ErrorKind, Read};
    /// use std::time::Duration;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     let client = TcpStream::connect(listener.local_addr()?)?;
    ///     let (mut server, _) = listener.accept()?;
    ///
    ///     assert_eq!(client.linger()?, None);
    ///     client.set_linger(Some(Duration::ZERO))?;
    ///     drop(client);
    ///     let error = server.read(&mut [0]).unwrap_err();
    ///     assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        sys::set_linger(self.inner.as_fd(), linger)
    }

    /// Returns the setting of [`set_linger`](TcpStream::set_linger).
    ///
    /// See the example there.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        sys::linger(self.inner.as_fd())
    }

    #[inline]
    fn read_to(&self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(sys::RW_MAX);
        self.read_by(len, || sys::recv(self.inner.as_fd(), buf))
    }

    fn read_to_many(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let bufs = socket::with_room(bufs);
        let len = socket::receivable(bufs);
        self.read_by(len, || (&self.inner).read_vectored(bufs))
    }

    #[inline]
    fn read_by(&self, len: usize, op: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        let fd = self.inner.as_fd();
        match len {
            // As in Go. The kernel would wait for data and leave it in the stream.
            0 => Ok(0),
            _ => self.desc.read_some(fd, len, op),
        }
    }

    stream_writes!();
}

stream_io!(TcpStream, &TcpStream);
descriptor!(TcpStream, std::net::TcpStream);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::TcpListener;

    /// Which sockets count as plain, and until when.
    #[test]
    fn short_reads_prove_something_until_the_descriptor_is_handed_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let client = TcpStream::connect(addr).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert!(client.desc.is_plain() && server.desc.is_plain());
        let clone = client.try_clone().unwrap();
        assert!(clone.desc.is_plain());
        clone.as_raw_fd();
        assert!(!client.desc.is_plain(), "the clone is the same socket");

        let back = TcpStream::from(std::net::TcpStream::from(server));
        assert!(!back.desc.is_plain(), "there may be another descriptor");
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!TcpStream::from(OwnedFd::from(unix)).desc.is_plain());

        let listener = TcpListener::from(std::net::TcpListener::from(listener));
        let _client = TcpStream::connect(addr).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert!(server.desc.is_plain(), "nobody else has this one");

        _ = listener.as_fd();
        let _client = TcpStream::connect(addr).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert!(!server.desc.is_plain(), "options are inherited");
    }
}
