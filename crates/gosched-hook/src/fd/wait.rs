//! One call of a goroutine that would wait for a descriptor.

use std::ffi::c_int;
use std::time::Duration;

use gosched::hook::{Deadline, Descriptor, Direction, Ticket, Waited};

use super::entry::{Entry, entry};
use super::handler;
use super::settings::is_nonblocking;
use crate::errno;
use crate::table::{self, Function};

/// A wait on a seen number that lasts longer than this looks whether the number has the same file.
/// Each look that finds the same file doubles the time, at most `DOUBLINGS` times.
pub(crate) const RECHECK: Duration = Duration::from_millis(10);
pub(crate) const DOUBLINGS: u8 = 5;

/// Why a hook stops trying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The call fails with this errno.
    Fail(c_int),
    /// The goroutine cannot wait here: libc's function does.
    Libc,
}

/// A call under way.
pub(crate) struct Wait {
    fd: c_int,
    direction: Direction,
    /// None: the number is too large to be known, or negative.
    entry: Option<&'static Entry>,
    incarnation: u32,
    /// From the first wait on: until when the call may take.
    deadline: Option<Deadline>,
    /// The deadline is the call's own, and O_NONBLOCK does not concern it.
    has_own_limit: bool,
    /// This call has registered the number anew. A call concerns the file that the number had when
    /// it began, so once is enough.
    is_renewed: bool,
    is_woken: bool,
}

impl Wait {
    #[inline]
    pub(crate) fn new(fd: c_int, direction: Direction) -> Wait {
        let entry = entry(fd);
        Wait {
            fd,
            direction,
            entry,
            incarnation: entry.map_or(0, Entry::incarnation),
            deadline: None,
            has_own_limit: false,
            is_renewed: false,
            is_woken: false,
        }
    }

    /// Waits until `deadline` whatever the user has set for the descriptor.
    pub(crate) fn until(mut self, deadline: Deadline) -> Wait {
        self.deadline = Some(deadline);
        self.has_own_limit = true;
        self
    }

    /// Calls `op` until it returns something else than EAGAIN, and waits in between.
    #[inline]
    pub(crate) fn until_done(
        &mut self,
        mut op: impl FnMut() -> Result<usize, c_int>,
    ) -> Result<usize, Stop> {
        loop {
            let ticket = self.ticket();
            match op() {
                Err(libc::EAGAIN) => {}
                done => return done.map_err(Stop::Fail),
            }
            if self.is_ready_in_vain() {
                return last_look(op());
            }
            self.wait(ticket)?;
        }
    }

    /// Whether the call has waited, would wait again, and the kernel reports the descriptor ready
    /// all the same. No event ends such a wait. Two examples: a Unix datagram socket whose peer is
    /// full, and a datagram socket that was shut down while the call waited.
    pub(crate) fn is_ready_in_vain(&self) -> bool {
        let events = match self.direction {
            Direction::Read => libc::POLLIN,
            Direction::Write => libc::POLLOUT,
        };
        self.deadline.is_some() && !self.has_own_limit && is_ready_now(self.fd, events)
    }

    /// The count of events, before an attempt; None: no goroutine has waited for the number yet.
    #[inline]
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        let descriptor = self.entry?.descriptor()?;
        Some(descriptor.ticket(self.direction))
    }

    /// Whether an attempt would find nothing: the last read has taken all there was, and the user
    /// waits for more.
    #[inline]
    pub(crate) fn is_drained(&self, ticket: Option<Ticket>) -> bool {
        let (Some(entry), Some(ticket)) = (self.entry, ticket) else {
            return false;
        };
        entry.is_plain_stream()
            && entry
                .descriptor()
                .is_some_and(|descriptor| descriptor.is_drained(ticket))
            && entry
                .remembered(self.direction)
                .is_some_and(|known| !known.is_nonblocking)
    }

    /// A read that began with `ticket` has returned less than its buffer holds.
    #[inline]
    pub(crate) fn was_short(&self, ticket: Option<Ticket>) {
        if let (Some(entry), Some(ticket)) = (self.entry, ticket)
            && entry.is_plain_stream()
            && let Some(descriptor) = entry.descriptor()
        {
            descriptor.set_drained(ticket);
        }
    }

    /// Waits for an event after the ticket.
    #[inline(never)]
    pub(crate) fn wait(&mut self, ticket: Option<Ticket>) -> Result<(), Stop> {
        let Some(entry) = self.entry else {
            return Err(Stop::Libc);
        };
        let Some(ticket) = ticket else {
            // An event may have come since the attempt. From here on events are counted.
            entry.make_descriptor();
            return Ok(());
        };
        let descriptor = entry.make_descriptor();
        let deadline = self.deadline(entry)?;
        if self.direction == Direction::Write && !self.has_own_limit && handler::may_be_in_one() {
            return Err(Stop::Libc);
        }
        let waited = if self.is_renewed {
            descriptor.wait(self.fd, self.direction, ticket, deadline)
        } else if entry.is_seen() {
            self.wait_seen(entry, descriptor, ticket, deadline)?
        } else {
            self.is_renewed = true;
            // The kernel has the right errno, or waits by itself.
            descriptor.renew(self.fd).map_err(|_| Stop::Libc)?;
            descriptor.wait(self.fd, self.direction, ticket, deadline)
        };
        self.is_woken |= waited == Waited::Woken;
        if entry.incarnation() != self.incarnation {
            return Err(Stop::Fail(libc::EBADF)); // the number was closed
        }
        match waited {
            Waited::Woken | Waited::Changed => Ok(()),
            Waited::TimedOut => Err(Stop::Fail(libc::EAGAIN)),
            Waited::Cancelled | Waited::Refused(_) => Err(Stop::Libc),
        }
    }

    /// A wait on a seen number: looks once whether the number still has the same file.
    fn wait_seen(
        &mut self,
        entry: &Entry,
        descriptor: &Descriptor,
        ticket: Ticket,
        deadline: Deadline,
    ) -> Result<Waited, Stop> {
        let limit = deadline.min(Deadline::about(entry.recheck_after()));
        let waited = descriptor.wait(self.fd, self.direction, ticket, limit);
        if waited != Waited::TimedOut {
            return Ok(waited);
        }
        self.is_renewed = true;
        match descriptor.renew(self.fd) {
            Ok(true) => entry.is_still_there(),
            // A close was not seen: the number has another file, with settings of its own.
            Ok(false) => {
                entry.lost();
                if !self.has_own_limit {
                    self.deadline = None; // from the settings of the file that is gone
                }
                return Ok(Waited::Changed);
            }
            Err(_) => return Err(Stop::Libc),
        }
        match limit == deadline {
            true => Ok(Waited::TimedOut),
            false => Ok(descriptor.wait(self.fd, self.direction, ticket, deadline)),
        }
    }

    /// Until when the call may take. Fails if the user wants no wait at all. As in the kernel, what
    /// is set while the call waits concerns later calls only.
    fn deadline(&mut self, entry: &Entry) -> Result<Deadline, Stop> {
        if let Some(deadline) = self.deadline {
            return Ok(deadline);
        }
        let mut remembered = entry.remembered(self.direction);
        if remembered.is_some_and(|known| known.is_nonblocking) && !is_nonblocking(self.fd) {
            // A close was not seen, or another process has changed the flag. This wait would not
            // last until the look that finds that.
            entry.lost();
            remembered = None;
        }
        let known = remembered.or_else(|| entry.ask(self.fd, self.direction));
        let Some(known) = known else {
            return Err(Stop::Libc);
        };
        if known.is_nonblocking {
            return Err(Stop::Fail(libc::EAGAIN));
        }
        let deadline = known.timeout.map_or(Deadline::NEVER, Deadline::after);
        self.deadline = Some(deadline);
        Ok(deadline)
    }
}

impl Drop for Wait {
    #[inline]
    fn drop(&mut self) {
        if self.is_woken
            && let Some(descriptor) = self.entry.and_then(Entry::descriptor)
        {
            descriptor.pass_on(self.direction);
        }
    }
}

/// The result of a call that would wait for no event: if it is EAGAIN once more, libc waits.
#[cold]
pub(crate) fn last_look(done: Result<usize, c_int>) -> Result<usize, Stop> {
    match done {
        Err(libc::EAGAIN) => Err(Stop::Libc),
        done => done.map_err(Stop::Fail),
    }
}

/// The result of a call of libc: the errno if it is negative.
#[inline]
pub(crate) fn attempt(result: isize) -> Result<usize, c_int> {
    usize::try_from(result).map_err(|_| errno::get())
}

/// What the hook returns to its caller. `libc` is the call as the user made it.
#[inline]
pub(crate) fn answer(
    function: &Function,
    result: Result<usize, Stop>,
    libc: impl FnOnce() -> isize,
) -> isize {
    match result {
        Ok(n) => n as isize,
        Err(Stop::Fail(errno)) => {
            errno::set(errno);
            -1
        }
        Err(Stop::Libc) => {
            function.count_left();
            libc()
        }
    }
}

/// Whether the connection has failed, with an error that the next call returns. Data in the queue
/// of errors, which the user asks for, does not count.
pub(crate) fn has_failed(fd: c_int) -> bool {
    const FAILED: libc::c_short = libc::POLLERR | libc::POLLHUP;
    poll_now(fd, 0) & FAILED == FAILED
}

/// Whether the next call would return an error.
pub(crate) fn has_error(fd: c_int) -> bool {
    poll_now(fd, 0) & libc::POLLERR != 0
}

/// Whether `poll` reports one of the events, or an error, at once. A failure counts as ready: the
/// call itself then fails.
pub(crate) fn is_ready_now(fd: c_int, events: libc::c_short) -> bool {
    poll_now(fd, events) != 0
}

fn poll_now(fd: c_int, events: libc::c_short) -> libc::c_short {
    type Poll = unsafe extern "C" fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int;
    let mut poll = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: libc's poll has this type; it writes the struct.
    match unsafe { table::poll.real.get::<Poll>()(&mut poll, 1, 0) } {
        0.. => poll.revents,
        _ => libc::POLLNVAL,
    }
}
