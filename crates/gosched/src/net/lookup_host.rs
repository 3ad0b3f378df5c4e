//! [`lookup_host`]: name lookups for programs, with a timeout or a context.
//!
//! libc's lookup cannot be cut short. So a lookup that may be given up runs in a helper. The caller
//! waits for the helper's result or for the limit. A helper that is given up ends by itself, at the
//! latest by libc's timeouts, and keeps its permit until then. So the number of lookups under way
//! stays bounded (`Builder::max_lookups`).

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use std::vec;

use super::limit::{Limit, start_beside};
use super::lookup::{Text, is_address, look_up, text_of};
use crate::chan::{self, Receiver, Sender, select, select_biased};
use crate::context::Context;
use crate::sched::model::current::current_g;

const LATE: &str = "name lookup timed out";

/// How many lookups with a limit plain threads run at a time, in the whole process.
const PLAIN_MAX: usize = 500;

/// Looks up a name and returns its addresses, in the order of the system.
///
/// `host` is a name with a port, as `"localhost:80"` or `("localhost", 80)`. A literal address needs
/// no lookup. The order is that of [`ToSocketAddrs`], which most programs try in turn.
///
/// Blocks the calling goroutine or plain thread. A runtime runs
/// [`max_lookups`](crate::Builder::max_lookups) lookups at a time; further goroutines wait in order.
///
/// # Errors
/// The error of the lookup.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     for addr in gosched::net::lookup_host(("localhost", 80))? {
///         assert!(addr.ip().is_loopback() && addr.port() == 80);
///     }
///     Ok(())
/// })
/// # }
/// ```
pub fn lookup_host<A: ToSocketAddrs>(host: A) -> io::Result<vec::IntoIter<SocketAddr>> {
    find(&host, &Limit::NONE).map(Vec::into_iter)
}

/// As [`lookup_host`], but waits for at most `timeout`.
///
/// The timeout includes the wait for other lookups. After it the lookup itself continues in a
/// helper until libc gives it up, and counts as one of
/// [`max_lookups`](crate::Builder::max_lookups) until then. The helper is a goroutine. For a plain
/// thread it is a thread; the process runs 500 such lookups at a time.
///
/// This holds for names in std's types: `&str`, `String`, and pairs of one and a port. A type of
/// your own with [`ToSocketAddrs`] runs on the caller. Its time is checked before and afterwards.
///
/// `Duration::MAX` means no timeout. Blocks the calling goroutine or plain thread.
///
/// # Errors
/// [`TimedOut`](io::ErrorKind::TimedOut) after the timeout, otherwise the error of the lookup.
///
/// ```
/// use gosched::net::lookup_host_timeout;
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let mut addrs = lookup_host_timeout("localhost:80", Duration::from_secs(60))?;
///     assert!(addrs.all(|addr| addr.ip().is_loopback()));
///
///     let error = lookup_host_timeout("localhost:80", Duration::ZERO).unwrap_err();
///     assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
///     Ok(())
/// })
/// # }
/// ```
pub fn lookup_host_timeout<A: ToSocketAddrs>(
    host: A,
    timeout: Duration,
) -> io::Result<vec::IntoIter<SocketAddr>> {
    let limit = Limit::new(Instant::now().checked_add(timeout), None);
    find(&host, &limit).map(Vec::into_iter)
}

/// As [`lookup_host`], but gives up when the context ends.
///
/// What [`lookup_host_timeout`] says of the lookup itself holds here too. Blocks the calling
/// goroutine or plain thread.
///
/// # Errors
/// The [`ContextError`](crate::context::ContextError) as an [`io::Error`] if the context has ended,
/// otherwise the error of the lookup.
///
/// ```
/// use gosched::context::{Context, ContextError};
/// use gosched::net::lookup_host_in;
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let request = Context::background().with_cancel();
///     let mut addrs = lookup_host_in(&request, "localhost:80")?;
///     assert!(addrs.all(|addr| addr.ip().is_loopback()));
///
///     request.cancel();
///     let error = lookup_host_in(&request, "localhost:80").unwrap_err();
///     assert_eq!(error.downcast::<ContextError>().unwrap(), ContextError::Canceled);
///     Ok(())
/// })
/// # }
/// ```
pub fn lookup_host_in<A: ToSocketAddrs>(
    ctx: &Context,
    host: A,
) -> io::Result<vec::IntoIter<SocketAddr>> {
    find(&host, &Limit::new(None, Some(ctx))).map(Vec::into_iter)
}

/// Returns the addresses that `addr` stands for. Gives up a lookup at the limit.
pub(super) fn find<A: ToSocketAddrs>(addr: &A, limit: &Limit<'_>) -> io::Result<Vec<SocketAddr>> {
    if limit.is_none() || is_address::<A>() {
        return Ok(look_up(addr)?.collect());
    }
    match text_of(addr) {
        Some(text) => match text.literal() {
            Some(addr) => Ok(vec![addr]),
            None => find_beside(Text::to_lookup(text), limit),
        },
        None => {
            limit.check(LATE)?;
            let found = look_up(addr)?.collect();
            limit.check(LATE).map(|()| found)
        }
    }
}

/// Runs the lookup in a helper and waits for its result, or until the limit.
fn find_beside<F>(f: F, limit: &Limit<'_>) -> io::Result<Vec<SocketAddr>>
where
    F: FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
{
    limit.check(LATE)?;
    // The helper's end of `wanted` sees whether the caller has given up.
    let wanted = Arc::new(());
    let is_wanted = Arc::downgrade(&wanted);
    let f = move || (is_wanted.strong_count() > 0).then(f);
    let (report, result) = chan::bounded(1);
    let answer = move |found: Option<_>| _ = found.map(|found| report.send(found));
    if current_g().is_some() {
        start_beside("gosched-lookup", move || {
            if let Some(g) = current_g() {
                answer(g.sched().lookups.run(f));
            }
        })?;
    } else {
        let permit = Permit::acquire(limit)?;
        start_beside("gosched-lookup", move || {
            let _permit = permit;
            answer(f());
        })?;
    }
    select_biased! {
        recv(result) -> found => found.unwrap_or_else(|_| Err(lost())),
        recv(limit.done()) -> _ => Err(limit.error(LATE)),
        recv(limit.timer()) -> _ => Err(limit.error(LATE)),
    }
}

/// The helper has ended without a result: its runtime ends.
fn lost() -> io::Error {
    io::Error::other("the name lookup was abandoned with its runtime")
}

/// A permit for a lookup beside a plain thread.
struct Permit;

/// A message in this channel is a permit that is taken. Unlike a semaphore, a channel is waited for
/// together with the limit.
static TAKEN: LazyLock<(Sender<()>, Receiver<()>)> = LazyLock::new(|| chan::bounded(PLAIN_MAX));

impl Permit {
    fn acquire(limit: &Limit<'_>) -> io::Result<Permit> {
        select! {
            send(TAKEN.0, ()) -> _ => Ok(Permit),
            recv(limit.done()) -> _ => Err(limit.error(LATE)),
            recv(limit.timer()) -> _ => Err(limit.error(LATE)),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        _ = TAKEN.1.try_recv();
    }
}

#[cfg(test)]
mod tests;
