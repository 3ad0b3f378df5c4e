//! [`TcpListener`]: a socket that accepts TCP connections.
//!
//! std's listener blocks the thread. A wait here frees the thread for other goroutines.

use std::io;
use std::iter::FusedIterator;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Instant;

use super::lookup::with_each;
use super::socket::{accept_deadline, delegate, descriptor, shared_state};
use super::{SocketAddr, TcpStream, ToSocketAddrs, socket};
use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys;

/// A socket that accepts TCP connections, for goroutines and plain threads.
///
/// Only [`bind`](TcpListener::bind), [`accept`](TcpListener::accept) and
/// [`incoming`](TcpListener::incoming) can block. See [`std::net::TcpListener`].
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
    // Fields in this order: the poller's state must outlive the descriptor.
    inner: std::net::TcpListener,
    desc: Desc,
}

impl TcpListener {
    /// Listens on the first address that is available; port 0 means a free port.
    ///
    /// The queue of pending connections is as long as the system allows. A name lookup blocks the
    /// calling goroutine or plain thread.
    ///
    /// # Errors
    /// The error of the last address, or of the lookup.
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address.
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

    /// Waits for a connection and accepts it.
    ///
    /// Several goroutines and threads may wait; each connection goes to one of them. Blocks the
    /// calling goroutine or plain thread. See the example of [`TcpListener`].
    ///
    /// # Errors
    /// - [`TimedOut`](io::ErrorKind::TimedOut) after the deadline.
    /// - [`WouldBlock`](io::ErrorKind::WouldBlock) after `set_nonblocking(true)`, if no connection
    ///   is pending.
    /// - Otherwise errors of the system. They concern one connection, or are temporary: a server
    ///   should continue. If no descriptor is left (`EMFILE`, `ENFILE`), the connection stays
    ///   pending. The error is then returned after a pause of some milliseconds, so that a retry
    ///   loop does not spin.
    #[inline]
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let fd = self.inner.as_fd();
        match self.desc.read(fd, || sys::accept(fd)) {
            Ok((fd, addr)) => Ok((TcpStream::fresh(fd, self.desc.is_plain()), addr)),
            Err(error) => Err(socket::accept_failed(&self.desc, error)),
        }
    }

    /// Returns an endless iterator over incoming connections.
    ///
    /// It calls [`accept`](TcpListener::accept) in a loop. Its `next` blocks the calling goroutine
    /// or plain thread; creating it never blocks.
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

    /// Turns the listener into an endless iterator over incoming connections.
    ///
    /// As [`incoming`](TcpListener::incoming), but it owns the listener. Its `next` blocks the
    /// calling goroutine or plain thread; creating it never blocks.
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
        /// Returns the local address.
        ///
        /// See the example of [`bind`](TcpListener::bind).
        ///
        /// # Errors
        /// Errors of the system.
        fn local_addr(&self) -> io::Result<SocketAddr>;

        /// Sets the time to live of accepted connections: how many routers a packet may pass.
        ///
        /// # Errors
        /// Errors of the system.
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

        /// Returns the time to live: how many routers a packet may pass.
        ///
        /// See the example of [`set_ttl`](TcpListener::set_ttl).
        ///
        /// # Errors
        /// Errors of the system.
        fn ttl(&self) -> io::Result<u32>;

        /// Restricts the socket to IPv6, which always fails on a bound socket.
        ///
        /// It is deprecated in std too.
        ///
        /// # Errors
        /// Always an error of the system.
        #[deprecated(note = "this setting works only before the socket is bound")]
        #[allow(deprecated)]
        fn set_only_v6(&self, only_v6: bool) -> io::Result<()>;

        /// Returns whether the socket accepts connections over IPv6 only.
        ///
        /// # Errors
        /// Errors of the system.
        #[deprecated(note = "this setting works only before the socket is bound")]
        #[allow(deprecated)]
        fn only_v6(&self) -> io::Result<bool>;

        /// Takes the pending error of the socket, if any, and clears it.
        ///
        /// See the example of [`set_ttl`](TcpListener::set_ttl).
        ///
        /// # Errors
        /// Errors of the system.
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

/// An endless iterator over the connections of a [`TcpListener`].
///
/// [`incoming`](TcpListener::incoming) returns it; see its example. `next` blocks the calling
/// goroutine or plain thread, and never returns `None`.
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

/// An endless iterator over connections that owns its [`TcpListener`].
///
/// [`into_incoming`](TcpListener::into_incoming) returns it; see its example. `next` blocks the
/// calling goroutine or plain thread, and never returns `None`.
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
