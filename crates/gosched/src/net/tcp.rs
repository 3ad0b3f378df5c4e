//! [`TcpStream`]: one connection.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::linux::net::TcpStreamExt;
use std::time::{Duration, Instant};

use super::lookup::with_each;
use super::socket::{delegate, descriptor, shared_state, stream_io, stream_writes, timeouts};
use super::{Shutdown, SocketAddr, ToSocketAddrs, socket};
use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys;

/// A TCP connection: `std::net::TcpStream`, for goroutines.
///
/// To connect, to read (and [`peek`](TcpStream::peek)) and to write blocks the goroutine, or the plain thread it is done on;
/// nothing else here blocks, unless [`set_linger`](TcpStream::set_linger) makes the last drop do so. A read into an empty buffer
/// returns `Ok(0)` at once, whatever the deadline (std's waits for data first). Any number may use one stream
/// at a time, through references or clones. Dropping the last clone closes the connection; what has been written is still
/// delivered.
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
    // In this order: the poller's state outlives the descriptor.
    inner: std::net::TcpStream,
    desc: Desc,
}

impl TcpStream {
    /// Connects to the first address that answers; a name is looked up first.
    ///
    /// Blocks the goroutine, or the plain thread it is called on, until the connection stands or the last address has refused.
    ///
    /// # Errors
    /// That of the last address, or of the look-up; [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address at all.
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
        with_each(addr, |addr| TcpStream::connect_within(&addr, None))
    }

    /// Connects to one address, or gives up after `timeout`.
    ///
    /// Blocks the goroutine, or the plain thread it is called on, for no longer than that.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) if nothing has come of it in time, [`InvalidInput`](io::ErrorKind::InvalidInput) for a
    /// timeout of zero, and those of the connection.
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
        // Its write timeout, as long as nobody else can write.
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

    /// Around a descriptor that this crate has opened, non-blocking; `is_plain`: for TCP alone.
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
        /// The address of the other side.
        ///
        /// # Errors
        /// [`NotConnected`](io::ErrorKind::NotConnected) after the other side has reset the connection.
        ///
        /// See the example of [`connect`](TcpStream::connect).
        fn peer_addr(&self) -> io::Result<SocketAddr>;

        /// The address of this side.
        ///
        /// # Errors
        /// Those of the system.
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

        /// Ends reading, writing or both, for all clones; whoever waits in one is woken and sees the end.
        ///
        /// After the end of writing the other side reads what is on its way and then the end.
        ///
        /// # Errors
        /// [`NotConnected`](io::ErrorKind::NotConnected) if there is no connection any more.
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

        /// Sends small packets at once instead of waiting for more (`TCP_NODELAY`).
        ///
        /// # Errors
        /// Those of the system.
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

        /// Whether small packets are sent at once. See the example of [`set_nodelay`](TcpStream::set_nodelay).
        ///
        /// # Errors
        /// Those of the system.
        fn nodelay(&self) -> io::Result<bool>;

        /// Sets how many routers a packet may pass. See the example of [`set_nodelay`](TcpStream::set_nodelay).
        ///
        /// # Errors
        /// Those of the system.
        fn set_ttl(&self, ttl: u32) -> io::Result<()>;

        /// How many routers a packet may pass. See the example of [`set_nodelay`](TcpStream::set_nodelay).
        ///
        /// # Errors
        /// Those of the system.
        fn ttl(&self) -> io::Result<u32>;

        /// The error that the connection has come across since the last one was told, if any; it is told once. See the example of
        /// [`set_nodelay`](TcpStream::set_nodelay).
        ///
        /// # Errors
        /// Those of the system.
        fn take_error(&self) -> io::Result<Option<io::Error>>;

        /// Acknowledges at once what comes (`TCP_QUICKACK`), as `std::os::linux::net::TcpStreamExt` has it. See the example of
        /// [`quickack`](TcpStream::quickack).
        ///
        /// # Errors
        /// Those of the system.
        fn set_quickack(&self, quickack: bool) -> io::Result<()>;

        /// Whether what comes is acknowledged at once.
        ///
        /// # Errors
        /// Those of the system.
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

    /// Reads what comes next and leaves it there.
    ///
    /// Blocks the goroutine, or the plain thread it is called on, until something comes, as a read does.
    ///
    /// # Errors
    /// Those of a read.
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

    /// Sets what closing the connection does with data that has not been sent yet: `None`, the kernel sends it in the background;
    /// zero, it is thrown away and the other side gets a reset; otherwise dropping the last clone blocks until it is sent, for as
    /// many whole seconds at most.
    ///
    /// # Errors
    /// Those of the system.
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

    /// What [`set_linger`](TcpStream::set_linger) has set; see its example.
    ///
    /// # Errors
    /// Those of the system.
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
            // Go's answer. The kernel would wait for something and leave it there.
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

    /// What may be assumed of a short read, and until when.
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
