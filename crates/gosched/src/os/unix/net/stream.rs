//! [`UnixStream`]: one connection.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net as std_net;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Backoff, SocketAddr};
use crate::net::socket::{
    self, delegate, descriptor, shared_state, stream_io, stream_writes, timeouts,
};
use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys;

/// A stream of the Unix domain: `std::os::unix::net::UnixStream`, for goroutines.
///
/// To connect, to read and to write blocks the goroutine, or the plain thread it is done on; nothing else here blocks. Any number
/// may use one stream at a time, through references or clones. A read into an empty buffer returns `Ok(0)` at once, as that of
/// [`TcpStream`](crate::net::TcpStream) does.
///
/// ```
/// use gosched::os::unix::net::{UnixListener, UnixStream};
/// use std::io::{Read, Write};
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("gosched-doc-stream-{}", std::process::id()));
/// gosched::run(|| {
///     let listener = UnixListener::bind(&path)?;
///     let mut client = UnixStream::connect(&path)?;
///     let (mut server, _) = listener.accept()?;
///     client.write_all(b"hello")?;
///     drop(client);
///     let mut all = String::new();
///     server.read_to_string(&mut all)?;
///     assert_eq!(all, "hello");
/// #   std::fs::remove_file(&path)?;
///     Ok(())
/// })
/// # }
/// ```
pub struct UnixStream {
    // In this order: the poller's state outlives the descriptor.
    inner: std_net::UnixStream,
    desc: Desc,
}

impl UnixStream {
    /// Connects to the socket at `path`. See the example of [`UnixStream`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while too many wait there to be accepted. The kernel does not
    /// report the end of that, so the connection is tried again and again, every five milliseconds at the latest.
    ///
    /// # Errors
    /// Those of the system, [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if nobody listens.
    pub fn connect<P: AsRef<Path>>(path: P) -> io::Result<UnixStream> {
        UnixStream::connect_addr(&SocketAddr::from_pathname(path)?)
    }

    /// As [`connect`](UnixStream::connect), to an address, which may be an abstract one.
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while too many wait there to be accepted. The kernel does not
    /// report the end of that, so the connection is tried again and again, every five milliseconds at the latest.
    ///
    /// # Errors
    /// Those of `connect`.
    ///
    /// ```
    /// use gosched::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    /// use std::os::linux::net::SocketAddrExt;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let name = format!("gosched-doc-connect-addr-{}", std::process::id());
    /// gosched::run(|| {
    ///     let addr = SocketAddr::from_abstract_name(&name)?;
    ///     let listener = UnixListener::bind_addr(&addr)?;
    ///     let client = UnixStream::connect_addr(&addr)?;
    ///     assert_eq!(client.peer_addr()?.as_abstract_name(), Some(name.as_bytes()));
    /// #   drop(listener);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn connect_addr(socket_addr: &SocketAddr) -> io::Result<UnixStream> {
        let fd = sys::unix_socket()?;
        let mut pause = Backoff::new();
        loop {
            match sys::unix_connect(fd.as_fd(), socket_addr) {
                Ok(()) => break,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => pause.sleep(),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(UnixStream {
            inner: fd.into(),
            desc: Desc::new(),
        })
    }

    /// Two streams that are connected to each other.
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// Those of the system, if it has no descriptor left.
    ///
    /// ```
    /// use gosched::os::unix::net::UnixStream;
    /// use std::io::{Read, Write};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (mut a, mut b) = UnixStream::pair()?;
    /// a.write_all(b"x")?;
    /// let mut byte = [0];
    /// b.read_exact(&mut byte)?;
    /// assert_eq!(&byte, b"x");
    /// # Ok(())
    /// # }
    /// ```
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (a, b) = std_net::UnixStream::pair()?;
        Ok((UnixStream::fresh(a)?, UnixStream::fresh(b)?))
    }

    /// Around a stream that this crate has opened.
    pub(super) fn fresh(inner: std_net::UnixStream) -> io::Result<UnixStream> {
        inner.set_nonblocking(true)?;
        Ok(UnixStream {
            inner,
            desc: Desc::new(),
        })
    }

    delegate! {
        /// The address of this side; most often it has none.
        ///
        /// # Errors
        /// Those of the system.
        ///
        /// ```
        /// # fn main() -> std::io::Result<()> {
        /// let (a, b) = gosched::os::unix::net::UnixStream::pair()?;
        /// assert!(a.local_addr()?.is_unnamed());
        /// assert!(a.peer_addr()?.is_unnamed());
        /// assert!(b.take_error()?.is_none());
        /// # Ok(())
        /// # }
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;

        /// The address of the other side. See the example of [`local_addr`](UnixStream::local_addr).
        ///
        /// # Errors
        /// Those of the system.
        fn peer_addr(&self) -> io::Result<SocketAddr>;

        /// The error that the connection has come across since the last one was told, if any; it is told once. See the example of
        /// [`local_addr`](UnixStream::local_addr).
        ///
        /// # Errors
        /// Those of the system.
        fn take_error(&self) -> io::Result<Option<io::Error>>;

        /// Ends reading, writing or both, for all clones; whoever waits in one is woken and sees the end.
        ///
        /// # Errors
        /// [`NotConnected`](io::ErrorKind::NotConnected) if there is no connection.
        ///
        /// ```
        /// use gosched::os::unix::net::UnixStream;
        /// use std::io::Read;
        /// use std::net::Shutdown;
        ///
        /// # fn main() -> std::io::Result<()> {
        /// gosched::run(|| {
        ///     let (a, mut b) = UnixStream::pair()?;
        ///     let reader = gosched::thread::spawn(move || b.read(&mut [0]));
        ///     a.shutdown(Shutdown::Write)?;
        ///     assert_eq!(reader.join().unwrap()?, 0);
        ///     Ok(())
        /// })
        /// # }
        /// ```
        fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    }

    shared_state!(
        UnixStream,
        "reads and writes",
        "See the example of [`TcpStream::try_clone`](crate::net::TcpStream::try_clone)."
    );
    timeouts!(timeout, "[`TcpStream::peek`](crate::net::TcpStream::peek)");

    // A read may end short of its buffer and of what is there: at a message that carried descriptors, or another sender's.
    #[inline]
    fn read_to(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0); // as TCP's
        }
        let op = || (&self.inner).read(buf);
        self.desc.read(self.inner.as_fd(), op)
    }

    fn read_to_many(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let bufs = socket::with_room(bufs);
        if socket::receivable(bufs) == 0 {
            return Ok(0);
        }
        let op = || (&self.inner).read_vectored(bufs);
        self.desc.read(self.inner.as_fd(), op)
    }

    stream_writes!();
}

stream_io!(UnixStream, &UnixStream);
descriptor!(UnixStream, std_net::UnixStream);
