//! [`UnixListener`]: a socket that accepts Unix domain connections.
//!
//! std's listener blocks the thread. A wait here frees the thread for other goroutines.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net as std_net;
use std::path::Path;
use std::time::Instant;

use super::{SocketAddr, UnixStream};
use crate::net::socket::{self, accept_deadline, delegate, descriptor, shared_state};
use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys;

/// A socket that accepts Unix domain connections, for goroutines and plain threads.
///
/// Dropping it does not delete its file. See the example of [`UnixStream`].
///
/// Only [`bind`](UnixListener::bind), [`accept`](UnixListener::accept) and
/// [`incoming`](UnixListener::incoming) can block. See [`std::os::unix::net::UnixListener`].
pub struct UnixListener {
    // Fields in this order: the poller's state must outlive the descriptor.
    inner: std_net::UnixListener,
    desc: Desc,
}

impl UnixListener {
    /// Creates a socket file at `path` and listens there.
    ///
    /// The file must not exist yet. Blocks the calling goroutine or plain thread while the file
    /// system works; a goroutine keeps its thread meanwhile. See the example of [`UnixStream`].
    ///
    /// # Errors
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if the file exists,
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the path is too long, otherwise errors of
    /// the file system.
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<UnixListener> {
        UnixListener::fresh(std_net::UnixListener::bind(path)?)
    }

    /// As [`bind`](UnixListener::bind), with an address, which may be abstract.
    ///
    /// Blocks as `bind` does. See the example of [`UnixStream::connect_addr`].
    ///
    /// # Errors
    /// The errors of `bind`.
    pub fn bind_addr(socket_addr: &SocketAddr) -> io::Result<UnixListener> {
        UnixListener::fresh(std_net::UnixListener::bind_addr(socket_addr)?)
    }

    fn fresh(inner: std_net::UnixListener) -> io::Result<UnixListener> {
        inner.set_nonblocking(true)?;
        sys::listen_longest(inner.as_fd());
        Ok(UnixListener {
            inner,
            desc: Desc::new(),
        })
    }

    /// Waits for a connection and accepts it.
    ///
    /// Several goroutines and threads may wait; each connection goes to one of them. Blocks the
    /// calling goroutine or plain thread. See the example of [`UnixStream`].
    ///
    /// # Errors
    /// The errors of [`TcpListener::accept`](crate::net::TcpListener::accept). It pauses in the
    /// same way if no descriptor is left.
    pub fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let op = || self.inner.accept();
        match self.desc.read(self.inner.as_fd(), op) {
            Ok((stream, addr)) => Ok((UnixStream::fresh(stream)?, addr)),
            Err(error) => Err(socket::accept_failed(&self.desc, error)),
        }
    }

    /// Returns an endless iterator over incoming connections.
    ///
    /// It calls [`accept`](UnixListener::accept) in a loop. Its `next` blocks the calling goroutine
    /// or plain thread; creating it never blocks.
    ///
    /// ```
    /// use gosched::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    /// use std::os::linux::net::SocketAddrExt;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let name = format!("gosched-doc-incoming-{}", std::process::id());
    /// gosched::run(|| {
    ///     let addr = SocketAddr::from_abstract_name(&name)?;
    ///     let listener = UnixListener::bind_addr(&addr)?;
    ///     let _client = UnixStream::connect_addr(&addr)?;
    ///     for stream in &listener {
    ///         let stream: UnixStream = stream?;
    ///         assert!(stream.peer_addr()?.is_unnamed());
    ///         break;
    ///     }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    delegate! {
        /// Returns the local address.
        ///
        /// # Errors
        /// Errors of the system.
        ///
        /// ```
        /// # fn main() -> std::io::Result<()> {
        /// # let path = std::env::temp_dir()
        /// #     .join(format!("gosched-doc-local-{}", std::process::id()));
        /// let listener = gosched::os::unix::net::UnixListener::bind(&path)?;
        /// assert_eq!(listener.local_addr()?.as_pathname(), Some(&*path));
        /// assert!(listener.take_error()?.is_none());
        /// # std::fs::remove_file(&path)
        /// # }
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;

        /// Takes the pending error of the socket, if any, and clears it.
        ///
        /// See the example of [`local_addr`](UnixListener::local_addr).
        ///
        /// # Errors
        /// Errors of the system.
        fn take_error(&self) -> io::Result<Option<io::Error>>;
    }

    shared_state!(
        UnixListener,
        "`accept`",
        "See the example of [`TcpStream::try_clone`](crate::net::TcpStream::try_clone)."
    );
    accept_deadline!(
        "See the example of [`TcpListener::set_deadline`](crate::net::TcpListener::set_deadline)."
    );
}

/// An endless iterator over the connections of a [`UnixListener`].
///
/// [`incoming`](UnixListener::incoming) returns it; see its example. `next` blocks the calling
/// goroutine or plain thread, and never returns `None`.
#[must_use = "iterators are lazy and do nothing unless consumed"]
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a UnixListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<UnixStream>;

    fn next(&mut self) -> Option<io::Result<UnixStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

impl<'a> IntoIterator for &'a UnixListener {
    type Item = io::Result<UnixStream>;
    type IntoIter = Incoming<'a>;

    fn into_iter(self) -> Incoming<'a> {
        self.incoming()
    }
}

descriptor!(UnixListener, std_net::UnixListener);
