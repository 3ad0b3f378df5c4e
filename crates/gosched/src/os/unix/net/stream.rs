//! [`UnixStream`]: one Unix domain connection.
//!
//! std's stream blocks the thread. A wait here frees the thread for other goroutines.

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

/// A Unix domain connection, for goroutines and plain threads.
///
/// Connecting, reading and writing block the calling goroutine or plain thread. Nothing else
/// blocks. Several goroutines and threads may use one stream at the same time, through references
/// or clones. A read into an empty buffer returns `Ok(0)` at once, as with
/// [`TcpStream`](crate::net::TcpStream). See [`std::os::unix::net::UnixStream`].
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
    // Fields in this order: the poller's state must outlive the descriptor.
    inner: std_net::UnixStream,
    desc: Desc,
}

impl UnixStream {
    /// Connects to the socket at `path`.
    ///
    /// Blocks the calling goroutine or plain thread while the listener's queue is full. The kernel
    /// does not report the end of that, so the call retries at least every 5 milliseconds. See
    /// the example of [`UnixStream`].
    ///
    /// # Errors
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if there is no listener, otherwise
    /// errors of the system.
    pub fn connect<P: AsRef<Path>>(path: P) -> io::Result<UnixStream> {
        UnixStream::connect_addr(&SocketAddr::from_pathname(path)?)
    }

    /// As [`connect`](UnixStream::connect), with an address, which may be abstract.
    ///
    /// Blocks the calling goroutine or plain thread while the listener's queue is full, and retries
    /// as `connect` does.
    ///
    /// # Errors
    /// The errors of `connect`.
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

    /// Creates two streams that are connected to each other.
    ///
    /// Never blocks.
    ///
    /// # Errors
    /// Errors of the system, if no descriptor is left.
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

    /// Wraps a stream that this crate has opened.
    pub(super) fn fresh(inner: std_net::UnixStream) -> io::Result<UnixStream> {
        inner.set_nonblocking(true)?;
        Ok(UnixStream {
            inner,
            desc: Desc::new(),
        })
    }

    delegate! {
        /// Returns the local address; most streams have none.
        ///
        /// # Errors
        /// Errors of the system.
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

        /// Returns the remote address.
        ///
        /// See the example of [`local_addr`](UnixStream::local_addr).
        ///
        /// # Errors
        /// Errors of the system.
        fn peer_addr(&self) -> io::Result<SocketAddr>;

        /// Takes the pending error of the socket, if any, and clears it.
        ///
        /// See the example of [`local_addr`](UnixStream::local_addr).
        ///
        /// # Errors
        /// Errors of the system.
        fn take_error(&self) -> io::Result<Option<io::Error>>;

        /// Shuts down reading, writing or both, for all clones.
        ///
        /// Waiting reads and writes return and see the end of the stream.
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

    // `read`, not `read_some`: a read may return less than the buffer holds although more is there.
    // It stops at a message with descriptors, or of another sender.
    #[inline]
    fn read_to(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0); // as with TCP
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
