//! Waits for descriptors that the program opened itself.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::sched::model::current::current_g;
use crate::sched::sources::netpoll::foreign::Ended;
use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys;

/// A direction of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Data, a connection or the end arrives.
    Read,
    /// There is room for data.
    Write,
}

impl Direction {
    fn side(self) -> Side {
        match self {
            Direction::Read => Side::Read,
            Direction::Write => Side::Write,
        }
    }
}

/// Until when a wait lasts at most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Deadline(u64);

impl Deadline {
    /// No deadline.
    pub const NEVER: Deadline = Deadline(u64::MAX);

    /// From now on so long.
    pub fn after(length: Duration) -> Deadline {
        Deadline(sys::deadline_after(length))
    }

    /// As [`Deadline::after`], by the clock that sysmon writes: it reads no clock of the system, and
    /// may be some milliseconds early or late.
    pub fn about(length: Duration) -> Deadline {
        match current_g() {
            Some(g) => {
                let ms = u64::from(g.sched().coarse_ms()) + length.as_millis() as u64;
                Deadline(g.sched().started_ns + ms * 1_000_000)
            }
            None => Deadline::after(length),
        }
    }

    /// How long it is until then.
    pub fn remaining(self) -> Duration {
        match self.0 {
            u64::MAX => Duration::MAX,
            at => Duration::from_nanos(at.saturating_sub(sys::monotonic_ns())),
        }
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        sys::has_passed(self.0)
    }
}

/// The count of events of one direction. A caller takes it before it tries an operation; a wait
/// ends if an event has come since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u32);

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// An event has woken the caller. The caller tries again, and calls [`Descriptor::pass_on`]
    /// when it is done.
    Woken,
    /// Something has changed before the wait began: try again.
    Changed,
    /// The deadline has passed.
    TimedOut,
    /// The runtime asks the goroutine to unwind, which it cannot do here.
    Cancelled,
    /// The kernel does not wait for such a descriptor, with this errno.
    Refused(i32),
}

/// The waiters of one descriptor number of the program.
///
/// ```
/// use gosched::hook::{Deadline, Descriptor, Direction, Waited};
/// use std::io::{Read, Write};
/// use std::os::fd::AsRawFd;
///
/// gosched::run(|| {
///     let (mut reader, mut writer) = std::io::pipe().unwrap();
///     let descriptor = Descriptor::new();
///     let ticket = descriptor.ticket(Direction::Read);
///     gosched::thread::spawn(move || writer.write_all(b"x").unwrap());
///     let fd = reader.as_raw_fd();
///     let waited = descriptor.wait(fd, Direction::Read, ticket, Deadline::NEVER);
///     assert!(matches!(waited, Waited::Woken | Waited::Changed));
///     reader.read_exact(&mut [0]).unwrap();
///     descriptor.pass_on(Direction::Read);
///     descriptor.end(fd);
/// });
/// ```
pub struct Descriptor(Desc);

impl Descriptor {
    /// For a number that is in use.
    #[must_use]
    pub fn new() -> Descriptor {
        Descriptor(Desc::new())
    }

    /// The count of events, to be taken before an operation is tried.
    #[inline]
    pub fn ticket(&self, direction: Direction) -> Ticket {
        Ticket(self.0.seq(direction.side()))
    }

    /// Whether a read has taken all there was, and no event has come since.
    #[inline]
    pub fn is_drained(&self, ticket: Ticket) -> bool {
        self.0.is_dry(ticket.0)
    }

    /// A read that began with `ticket` has taken all there was.
    #[inline]
    pub fn set_drained(&self, ticket: Ticket) {
        self.0.set_dry(ticket.0);
    }

    /// Registers the descriptor with the kernel again: the number may have another file since.
    /// Waits see what it is ready for. Returns whether it was registered: then it is the same file.
    ///
    /// # Errors
    /// The errno with which the kernel refuses such a descriptor.
    pub fn renew(&self, fd: RawFd) -> Result<bool, i32> {
        let renewed = self.0.renew_foreign(fd);
        renewed.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Parks the goroutine until an event comes after `ticket`. Registers the descriptor if it was
    /// not. May end early.
    #[inline]
    pub fn wait(
        &self,
        fd: RawFd,
        direction: Direction,
        ticket: Ticket,
        deadline: Deadline,
    ) -> Waited {
        let side = direction.side();
        match self.0.wait_foreign(fd, side, ticket.0, deadline.0) {
            Ok(Ended::Woken) => Waited::Woken,
            Ok(Ended::Changed) => Waited::Changed,
            Ok(Ended::TimedOut) => Waited::TimedOut,
            Ok(Ended::Cancelled) => Waited::Cancelled,
            Err(error) => Waited::Refused(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// A woken caller is done: wakes the next waiter, which the event may satisfy, too.
    pub fn pass_on(&self, direction: Direction) {
        self.0.pass_on(direction.side());
    }

    /// Wakes all waiters, which look again. After a close: a waiter that [`end`](Descriptor::end) has
    /// woken may have looked, and waited again, before the kernel closed the number.
    ///
    /// As `end`, it does nothing in a signal handler that has interrupted the runtime.
    pub fn nudge(&self) {
        if super::is_outside_the_runtime() {
            self.0.wake_foreign();
        }
    }

    /// The number is about to be closed, or has a new file: ends all waits, and the registration.
    ///
    /// Returns false, and does nothing, in a signal handler that has interrupted the runtime. Later
    /// waits then have to renew the registration.
    pub fn end(&self, fd: RawFd) -> bool {
        let can = super::is_outside_the_runtime();
        if can {
            self.0.forget_foreign(fd);
        }
        can
    }
}

impl Default for Descriptor {
    fn default() -> Descriptor {
        Descriptor::new()
    }
}

impl std::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptor").finish_non_exhaustive()
    }
}
