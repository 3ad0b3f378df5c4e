//! [`Dialer`]: TCP connections to names, with a limit for lookup and connection together.
//!
//! A client has one time limit for both, and a name has several addresses of which some may not
//! answer. `TcpStream::connect_timeout` takes one address only. The lookup is in `lookup_host`, the
//! connection in `race`.

use std::io;
use std::time::{Duration, Instant};

use super::limit::Limit;
use super::lookup_host::find;
use super::race::{self, LATE, Plan};
use super::{SocketAddr, TcpStream, ToSocketAddrs};
use crate::context::Context;

/// Options for connecting to a name, as Go's `net.Dialer`.
///
/// A dial looks the name up and connects to its addresses as [RFC 8305] ("Happy Eyeballs") says:
/// - The addresses of IPv6 and IPv4 take turns, beginning with the system's first choice.
/// - The next attempt starts when the last one fails, or after 250 ms. Earlier attempts continue.
/// - The first connection wins. The other attempts are closed before the dial returns.
///
/// A dialer may be used many times, by several goroutines. Only [`connect`](Dialer::connect) and
/// [`connect_in`](Dialer::connect_in) block.
///
/// ```
/// use gosched::net::{Dialer, TcpListener};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let port = listener.local_addr()?.port();
///     let dialer = Dialer::new().timeout(Duration::from_secs(60));
///     let stream = dialer.connect(("localhost", port))?;
///     assert_eq!(stream.peer_addr()?.port(), port);
///     Ok(())
/// })
/// # }
/// ```
///
/// [RFC 8305]: https://www.rfc-editor.org/rfc/rfc8305
#[derive(Clone, Debug, Default)]
#[must_use = "a dialer does nothing until `connect`"]
pub struct Dialer {
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    plan: Plan,
}

impl Dialer {
    /// Creates a dialer without a limit.
    ///
    /// ```
    /// let dialer = gosched::net::Dialer::new();
    /// # let _ = dialer;
    /// ```
    pub fn new() -> Dialer {
        Dialer::default()
    }

    /// Sets the timeout of a dial: of its lookup and all its attempts together.
    ///
    /// `Duration::MAX` means no timeout. With a timeout of zero each dial fails with
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), as in std. See the example of [`Dialer`].
    pub fn timeout(mut self, timeout: Duration) -> Dialer {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the moment at which a dial gives up.
    ///
    /// With a timeout too, the earlier of both counts.
    ///
    /// ```
    /// use gosched::net::Dialer;
    /// use std::io::ErrorKind;
    /// use std::time::Instant;
    ///
    /// let dialer = Dialer::new().deadline(Instant::now());
    /// let error = dialer.connect("localhost:80").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::TimedOut);
    /// ```
    pub fn deadline(mut self, deadline: Instant) -> Dialer {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the local address of the connection; port 0 means a free port.
    ///
    /// Only addresses of the same family are tried. With a port, one attempt runs at a time,
    /// because two sockets cannot have the port.
    ///
    /// ```
    /// use gosched::net::{Dialer, TcpListener};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     let dialer = Dialer::new().local_addr(([127, 0, 0, 2], 0).into());
    ///     let stream = dialer.connect(listener.local_addr()?)?;
    ///     assert_eq!(stream.local_addr()?.ip().to_string(), "127.0.0.2");
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn local_addr(mut self, addr: SocketAddr) -> Dialer {
        self.plan.local = Some(addr);
        self
    }

    /// Sets how long an attempt runs before the next one starts beside it.
    ///
    /// The default is 250 ms. With zero all attempts start at once. With `Duration::MAX` the next
    /// attempt starts when the last one has failed, as in std.
    ///
    /// ```
    /// use gosched::net::Dialer;
    /// use std::time::Duration;
    ///
    /// let one_by_one = Dialer::new().attempt_delay(Duration::MAX).keep_order(true);
    /// # let _ = one_by_one;
    /// ```
    pub fn attempt_delay(mut self, delay: Duration) -> Dialer {
        self.plan.delay = delay;
        self
    }

    /// Sets whether the addresses are tried in the order in which the lookup returns them.
    ///
    /// The default is no: IPv6 and IPv4 take turns. See the example of
    /// [`attempt_delay`](Dialer::attempt_delay).
    pub fn keep_order(mut self, keep: bool) -> Dialer {
        self.plan.keeps_order = keep;
        self
    }

    /// Connects to a name or an address.
    ///
    /// Several addresses, as a slice, are tried as the addresses of a name. Blocks the calling
    /// goroutine or plain thread. What
    /// [`lookup_host_timeout`](crate::net::lookup_host_timeout) says of a lookup at its limit holds
    /// here too. See the example of [`Dialer`].
    ///
    /// # Errors
    /// - [`TimedOut`](io::ErrorKind::TimedOut) after the timeout or the deadline.
    /// - The error of the lookup.
    /// - The error of the last address, if all have failed.
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput) if there is no address, or none of the local
    ///   address's family, or if the timeout is zero.
    pub fn connect<A: ToSocketAddrs>(&self, addr: A) -> io::Result<TcpStream> {
        self.dial(&addr, None)
    }

    /// As [`connect`](Dialer::connect), but gives up when the context ends.
    ///
    /// Blocks the calling goroutine or plain thread. While it waits, a helper watches the context:
    /// a goroutine, or a thread if the caller is a plain thread.
    ///
    /// # Errors
    /// The [`ContextError`](crate::context::ContextError) as an [`io::Error`] if the context has
    /// ended, otherwise the errors of `connect`.
    ///
    /// ```
    /// use gosched::context::Context;
    /// use gosched::net::{Dialer, TcpListener};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     let address = ("localhost", listener.local_addr()?.port());
    ///     let request = Context::background().with_cancel();
    ///     Dialer::new().connect_in(&request, address)?;
    ///
    ///     request.cancel();
    ///     let error = Dialer::new().connect_in(&request, address).unwrap_err();
    ///     assert_eq!(error.to_string(), "context canceled");
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn connect_in<A: ToSocketAddrs>(&self, ctx: &Context, addr: A) -> io::Result<TcpStream> {
        self.dial(&addr, Some(ctx))
    }

    fn dial<A: ToSocketAddrs>(&self, addr: &A, ctx: Option<&Context>) -> io::Result<TcpStream> {
        if self.timeout == Some(Duration::ZERO) {
            let text = "cannot set a 0 duration timeout";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let ends = self.timeout.and_then(|d| Instant::now().checked_add(d));
        let deadline = [ends, self.deadline].into_iter().flatten().min();
        let limit = Limit::new(deadline, ctx);
        limit.check(LATE)?;
        race::connect(find(addr, &limit)?, &self.plan, &limit)
    }
}
