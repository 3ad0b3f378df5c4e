//! [`TcpListener`]: where connections come in.

use std::io;
use std::iter::FusedIterator;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Instant;

use super::lookup::with_each;
use super::socket::{accept_deadline, delegate, descriptor, shared_state};
use super::{SocketAddr, TcpStream, ToSocketAddrs, socket};
use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys;

/// A socket that accepts TCP connections: `std::net::TcpListener`, for goroutines.
///
/// To bind, to accept and to go through [`incoming`](TcpListener::incoming) blocks as it says there; nothing else here blocks.
///
/// ```
/// use gosched::net::{TcpListener, TcpStream};
/// use std::io::{Read, Write};
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let addr = listener.local_addr()?;
///     gosched::go(move || {
///         while let Ok((mut stream, _)) = listener.accept() {
///             gosched::go(move || stream.write_all(b"welcome").unwrap());
///         }
///     });
///     let mut greeting = String::new();
///     TcpStream::connect(addr)?.read_to_string(&mut greeting)?;
///     assert_eq!(greeting, "welcome");
///     Ok(())
/// })
/// # }
/// ```
pub struct TcpListener {
    // In this order: the poller's state outlives the descriptor.
    inner: std::net::TcpListener,
    desc: Desc,
}

impl TcpListener {
    /// Listens at the first address that can be had; port 0 is one that is free.
    ///
    /// As many connections as the system allows may wait to be accepted. A look-up of a name blocks the goroutine, or the plain
    /// thread it is called on.
    ///
    /// # Errors
    /// That of the last address, or of the look-up; [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address at all.
    ///
    /// ```
    /// use gosched::net::TcpListener;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// assert_ne!(listener.local_addr()?.port(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<TcpListener> {
        let inner = with_each(addr, std::net::TcpListener::bind)?;
        inner.set_nonblocking(true)?;
        sys::listen_longest(inner.as_fd());
        let desc = Desc::new();
        desc.set_plain();
        Ok(TcpListener { inner, desc })
    }

    /// Waits for a connection; several goroutines and threads may do so, and each connection goes to one of them.
    ///
    /// Blocks the goroutine, or the plain thread it is called on. See the example of [`TcpListener`].
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) past the deadline, [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing waits and
    /// `set_nonblocking(true)` was called, otherwise those of the system. They are about one connection, or pass: it makes sense to
    /// go on. Where the process or the system has no descriptor left (`EMFILE`, `ENFILE`) the connection keeps waiting and the
    /// error comes after a pause of some milliseconds, so that a loop which tries again does not spin.
    #[inline]
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let fd = self.inner.as_fd();
        match self.desc.read(fd, || sys::accept(fd)) {
            Ok((fd, addr)) => Ok((TcpStream::fresh(fd, self.desc.is_plain()), addr)),
            Err(error) => Err(socket::accept_failed(&self.desc, error)),
        }
    }

    /// The connections that come in, one after the other, without end: the same as [`accept`](TcpListener::accept) in a loop.
    ///
    /// Making it blocks nothing; its `next` blocks the goroutine, or the plain thread it is called on.
    ///
    /// ```
    /// use gosched::net::{TcpListener, TcpStream};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     let client = TcpStream::connect(listener.local_addr()?)?;
    ///     let server = listener.incoming().next().unwrap()?;
    ///     assert_eq!(server.peer_addr()?, client.local_addr()?);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// As [`incoming`](TcpListener::incoming), with the listener in it.
    ///
    /// Making it blocks nothing; its `next` blocks the goroutine, or the plain thread it is called on.
    ///
    /// ```
    /// use gosched::net::{TcpListener, TcpStream};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     let addr = listener.local_addr()?;
    ///     let mut incoming = listener.into_incoming();
    ///     let client = TcpStream::connect(addr)?;
    ///     let server = incoming.next().unwrap()?;
    ///     assert_eq!(server.peer_addr()?, client.local_addr()?);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    #[must_use = "`into_incoming` consumes the listener"]
    pub fn into_incoming(self) -> IntoIncoming {
        IntoIncoming { listener: self }
    }

    delegate! {
        /// The address that it listens at. See the example of [`bind`](TcpListener::bind).
        ///
        /// # Errors
        /// Those of the system.
        fn local_addr(&self) -> io::Result<SocketAddr>;

        /// Sets how many routers a packet of an accepted connection may pass.
        ///
        /// # Errors
        /// Those of the system.
        ///
        /// ```
        /// use gosched::net::TcpListener;
        ///
        /// # fn main() -> std::io::Result<()> {
        /// let listener = TcpListener::bind("127.0.0.1:0")?;
        /// listener.set_ttl(64)?;
        /// assert_eq!(listener.ttl()?, 64);
        /// assert!(listener.take_error()?.is_none());
        /// # Ok(())
        /// # }
        /// ```
        fn set_ttl(&self, ttl: u32) -> io::Result<()>;

        /// How many routers a packet may pass. See the example of [`set_ttl`](TcpListener::set_ttl).
        ///
        /// # Errors
        /// Those of the system.
        fn ttl(&self) -> io::Result<u32>;

        /// Asks for IPv6 alone, which std has given up: it has to be decided before the socket is bound.
        ///
        /// # Errors
        /// Those of the system, and there is always one.
        #[deprecated(note = "this must be set before the socket is bound, when there is no listener yet")]
        #[allow(deprecated)]
        fn set_only_v6(&self, only_v6: bool) -> io::Result<()>;

        /// Whether it takes connections over IPv6 alone.
        ///
        /// # Errors
        /// Those of the system.
        #[deprecated(note = "this must be set before the socket is bound, when there is no listener yet")]
        #[allow(deprecated)]
        fn only_v6(&self) -> io::Result<bool>;

        /// The error that the socket has come across since the last one was told, if any; it is told once. See the example of
        /// [`set_ttl`](TcpListener::set_ttl).
        ///
        /// # Errors
        /// Those of the system.
        fn take_error(&self) -> io::Result<Option<io::Error>>;
    }

    shared_state!(
        TcpListener,
        "`accept`",
        "See the example of [`TcpStream::try_clone`](crate::net::TcpStream::try_clone)."
    );
    accept_deadline!(
        r#"
```
use gosched::net::{TcpListener, TcpStream};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

# fn main() -> std::io::Result<()> {
gosched::run(|| {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_deadline(Some(Instant::now() + Duration::from_millis(1)))?;
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::TimedOut);

    listener.set_deadline(None)?;
    let _client = TcpStream::connect(listener.local_addr()?)?;
    listener.accept()?;
    Ok(())
})
# }
```
"#
    );
}

/// The connections of a [`TcpListener`], from [`incoming`](TcpListener::incoming); see its example.
///
/// `next` blocks the goroutine, or the plain thread it is called on, and never returns `None`.
#[must_use = "iterators are lazy and do nothing unless consumed"]
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for Incoming<'_> {}

/// The connections of a [`TcpListener`], from [`into_incoming`](TcpListener::into_incoming); see its example.
///
/// `next` blocks the goroutine, or the plain thread it is called on, and never returns `None`.
#[derive(Debug)]
pub struct IntoIncoming {
    listener: TcpListener,
}

impl Iterator for IntoIncoming {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for IntoIncoming {}

descriptor!(TcpListener, std::net::TcpListener);
