//! [`UnixListener`]: where connections come in.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net as std_net;
use std::path::Path;
use std::time::Instant;

use super::{SocketAddr, UnixStream};
use crate::net::socket::{self, accept_deadline, delegate, descriptor, shared_state};
use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys;

/// A socket that accepts connections of the Unix domain: `std::os::unix::net::UnixListener`, for goroutines.
///
/// Its file stays when it is dropped. See the example of [`UnixStream`].
///
/// To bind, to accept and to go through [`incoming`](UnixListener::incoming) blocks as it says there; nothing else here blocks.
pub struct UnixListener {
    // In this order: the poller's state outlives the descriptor.
    inner: std_net::UnixListener,
    desc: Desc,
}

impl UnixListener {
    /// Makes a socket at `path`, where nothing may be yet, and listens there. See the example of [`UnixStream`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, for as long as the file system takes; a goroutine needs a thread
    /// for that long.
    ///
    /// # Errors
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if there is something, [`InvalidInput`](io::ErrorKind::InvalidInput) if the path is too
    /// long, and those of the file system.
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<UnixListener> {
        UnixListener::fresh(std_net::UnixListener::bind(path)?)
    }

    /// As [`bind`](UnixListener::bind), at an address, which may be an abstract one. See the example of
    /// [`UnixStream::connect_addr`].
    ///
    /// Blocks as `bind` does.
    ///
    /// # Errors
    /// Those of `bind`.
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

    /// Waits for a connection; several goroutines and threads may do so, and each connection goes to one of them.
    ///
    /// Blocks the goroutine, or the plain thread it is called on. See the example of [`UnixStream`].
    ///
    /// # Errors
    /// Those of [`TcpListener::accept`](crate::net::TcpListener::accept), and where there is no descriptor left as there.
    pub fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let op = || self.inner.accept();
        match self.desc.read(self.inner.as_fd(), op) {
            Ok((stream, addr)) => Ok((UnixStream::fresh(stream)?, addr)),
            Err(error) => Err(socket::accept_failed(&self.desc, error)),
        }
    }

    /// The connections that come in, one after the other, without end: the same as [`accept`](UnixListener::accept) in a loop.
    ///
    /// Making it blocks nothing; its `next` blocks the goroutine, or the plain thread it is called on.
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
        /// The address that it listens at.
        ///
        /// # Errors
        /// Those of the system.
        ///
        /// ```
        /// # fn main() -> std::io::Result<()> {
        /// # let path = std::env::temp_dir().join(format!("gosched-doc-local-{}", std::process::id()));
        /// let listener = gosched::os::unix::net::UnixListener::bind(&path)?;
        /// assert_eq!(listener.local_addr()?.as_pathname(), Some(&*path));
        /// assert!(listener.take_error()?.is_none());
        /// # std::fs::remove_file(&path)
        /// # }
        /// ```
        fn local_addr(&self) -> io::Result<SocketAddr>;

        /// The error that the socket has come across since the last one was told, if any; it is told once. See the example of
        /// [`local_addr`](UnixListener::local_addr).
        ///
        /// # Errors
        /// Those of the system.
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

/// The connections of a [`UnixListener`], from [`incoming`](UnixListener::incoming); see its example.
///
/// `next` blocks the goroutine, or the plain thread it is called on, and never returns `None`.
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
