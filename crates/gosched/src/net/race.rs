//! Connections to several addresses of one peer, of which the first wins (RFC 8305).
//!
//! A name has several addresses, and an address that does not answer costs minutes. So the next
//! attempt starts beside the last one after a delay, and at once when an attempt fails.
//!
//! All attempts belong to the caller: it starts the non-blocking connects itself, and waits for the
//! first that is done in one place, a [`RaceSet`]. So it needs no goroutine per attempt, works the
//! same on plain threads, and has closed the losers when it returns.
//!
//! ```text
//!  start an attempt ──connected──────────────────────────────► won
//!     ▲         │ failed: the next one         ▲
//!     │         ▼                              │
//!     │    wait for the first that is done ────┘
//!     ├──────────┤ failed: the next one, or wait for the others
//!     └──────────┤ the delay is over, and there is a next one
//!                └ the limit: all are closed
//! ```

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::limit::{Limit, Watch};
use super::lookup::no_addresses;
use super::{SocketAddr, TcpStream};
use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys::{self, RaceSet};

/// The text of std's `connect_timeout`.
pub(super) const LATE: &str = "connection timed out";

/// The delay between two attempts that RFC 8305 recommends.
const DELAY: Duration = Duration::from_millis(250);

/// How to race.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// How long an attempt runs before the next one starts beside it.
    pub(super) delay: Duration,
    pub(super) local: Option<SocketAddr>,
    /// The families do not take turns.
    pub(super) keeps_order: bool,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            delay: DELAY,
            local: None,
            keeps_order: false,
        }
    }
}

/// Connects to the first of the addresses that accepts the connection.
pub(super) fn connect(
    addrs: Vec<SocketAddr>,
    plan: &Plan,
    limit: &Limit<'_>,
) -> io::Result<TcpStream> {
    let addrs = plan.order(addrs)?;
    let delay = match plan.local {
        Some(local) if local.port() != 0 => Duration::MAX, // two sockets cannot have the port
        _ => plan.delay,
    };
    let mut race = Race::new(limit);
    let mut addrs = addrs.into_iter().peekable();
    loop {
        let done = match addrs.next() {
            Some(addr) => race.start(&addr, plan.local),
            None if race.under_way == 0 => return Err(race.failed()),
            None => Ok(None),
        };
        match done {
            Ok(None) => {}
            Ok(Some(stream)) => return Ok(stream),
            Err(error) => {
                race.note(race.attempts.len() - 1, error);
                continue;
            }
        }
        if let Some(stream) = race.wait(addrs.peek().map(|_| delay))? {
            return Ok(stream);
        }
    }
}

impl Plan {
    /// The addresses that may be tried, in the order of the attempts.
    fn order(&self, mut addrs: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
        if addrs.is_empty() {
            return Err(no_addresses());
        }
        if let Some(local) = self.local {
            addrs.retain(|addr| addr.is_ipv4() == local.is_ipv4());
            if addrs.is_empty() {
                let text = "no address of the local address's family";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        }
        Ok(match self.keeps_order {
            true => addrs,
            false => take_turns(addrs),
        })
    }
}

/// Lets the families take turns, beginning with that of the first address.
fn take_turns(addrs: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let len = addrs.len();
    let starts_with_v4 = addrs.first().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) = addrs
        .into_iter()
        .partition(|addr| addr.is_ipv4() == starts_with_v4);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut turns = Vec::with_capacity(len);
    while turns.len() < len {
        turns.extend(first.next());
        turns.extend(second.next());
    }
    turns
}

/// Attempts under way.
struct Race<'a> {
    limit: &'a Limit<'a>,
    /// By number. None: it has failed.
    attempts: Vec<Option<TcpStream>>,
    under_way: usize,
    /// The error of the last address that has failed, and its number.
    error: Option<(usize, io::Error)>,
    /// Made when the first attempt has to wait.
    arena: Option<Arena>,
}

/// Where the attempts wait.
struct Arena {
    // Fields in this order: the poller's state must outlive the descriptor.
    set: RaceSet,
    desc: Desc,
    _watch: Option<Watch>,
}

impl<'a> Race<'a> {
    fn new(limit: &'a Limit<'a>) -> Race<'a> {
        Race {
            limit,
            attempts: Vec::new(),
            under_way: 0,
            error: None,
            arena: None,
        }
    }

    /// Starts the next attempt. Returns its stream if it is connected at once.
    fn start(
        &mut self,
        addr: &SocketAddr,
        local: Option<SocketAddr>,
    ) -> io::Result<Option<TcpStream>> {
        let number = self.attempts.len();
        self.attempts.push(None);
        let stream = TcpStream::fresh(sys::tcp_socket(addr)?, true);
        if let Some(local) = &local {
            sys::tcp_bind(stream.socket(), local)?;
        }
        if sys::connect_begin(stream.socket(), addr)? {
            return Ok(Some(stream));
        }
        self.arena()?.set.add(stream.socket(), number as u64)?;
        self.attempts[number] = Some(stream);
        self.under_way += 1;
        Ok(None)
    }

    fn arena(&mut self) -> io::Result<&Arena> {
        if self.arena.is_none() {
            let (set, desc) = (RaceSet::new()?, Desc::new());
            let _watch = self.limit.cut(&desc)?;
            self.arena = Some(Arena { set, desc, _watch });
        }
        Ok(self.arena.as_ref().expect("made above"))
    }

    /// Waits until an attempt is done. None: it has failed, or the delay is over.
    fn wait(&mut self, delay: Option<Duration>) -> io::Result<Option<TcpStream>> {
        let Some(arena) = self.arena.as_ref().filter(|_| self.under_way > 0) else {
            return Ok(None);
        };
        if delay == Some(Duration::ZERO) {
            return Ok(None);
        }
        arena.desc.set_timeout(Side::Read, delay)?;
        let done = arena.desc.read(arena.set.as_fd(), || arena.set.next());
        let number = match done {
            Ok(number) => number as usize,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(None), // after the delay
                    io::ErrorKind::TimedOut => Err(self.limit.error(LATE)),
                    _ => Err(error),
                };
            }
        };
        let Some(stream) = self.attempts[number].take() else {
            return Ok(None);
        };
        self.under_way -= 1;
        match stream.take_error() {
            Ok(None) => Ok(Some(stream)),
            Ok(Some(error)) | Err(error) => {
                self.note(number, error);
                Ok(None)
            }
        }
    }

    /// Keeps the error of the last address, which std returns.
    fn note(&mut self, number: usize, error: io::Error) {
        if self.error.as_ref().is_none_or(|(last, _)| *last < number) {
            self.error = Some((number, error));
        }
    }

    /// The error of a race in which every attempt has failed.
    fn failed(self) -> io::Error {
        self.error.map_or_else(no_addresses, |(_, error)| error)
    }
}

#[cfg(test)]
mod tests;
