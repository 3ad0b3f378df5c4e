//! Waits on descriptors that the program opened itself, for `gosched-hook`.
//!
//! Such a descriptor may be closed, and its number used again, without a call that the runtime
//! sees. It may also be one that `gosched::net` has registered. So these descriptors are registered
//! in an epoll of their own, inside the driver's, and a caller may ask for the registration to be
//! made anew before a wait ([`Desc::renew_foreign`]).
//!
//! A wait here never unwinds.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;

use crate::sched::park::enter;
use crate::sched::sources::netpoll::driver::Driver;
use crate::sched::sources::netpoll::slot::Slot;
use crate::sched::sources::netpoll::{Desc, SIDES, Side, driver};
use crate::sched::waiting::waitq::{Outcome, WakeList};

/// How a wait for a foreign descriptor ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// An event has woken the caller. It wakes the next waiter when it is done
    /// ([`Desc::pass_on`]): the event may satisfy several.
    Woken,
    /// An event came before the wait began, or the descriptor has lost its home.
    Changed,
    TimedOut,
    /// The runtime asks the goroutine to unwind.
    Cancelled,
}

impl Desc {
    /// Waits for an event after `seq`, at most until the deadline.
    ///
    /// # Errors
    /// The descriptor cannot be waited for, or the system refuses to register it.
    pub(crate) fn wait_foreign(
        &self,
        fd: RawFd,
        side: Side,
        seq: u32,
        deadline_ns: u64,
    ) -> io::Result<Ended> {
        if self.0.home().is_none() {
            self.renew_foreign(fd)?;
        }
        let rt = enter();
        if rt.g().is_some_and(|g| g.must_unwind()) {
            return Ok(Ended::Cancelled);
        }
        let (outcome, _) = self.wait_event(rt, side, seq, deadline_ns);
        Ok(match outcome {
            Some(Outcome::TimedOut) => Ended::TimedOut,
            Some(Outcome::Cancelled) => Ended::Cancelled,
            Some(Outcome::Case(_)) => Ended::Woken,
            None => Ended::Changed,
        })
    }

    /// A woken waiter is done.
    pub(crate) fn pass_on(&self, side: Side) {
        self.0.wake_next(side);
    }

    /// Registers the descriptor with its home, or with the caller's driver. The kernel reports at
    /// once what it is ready for. Returns whether it was registered.
    pub(crate) fn renew_foreign(&self, fd: RawFd) -> io::Result<bool> {
        let home = self.0.home();
        let driver = home.map_or_else(driver::of_caller, Ok)?;
        driver.foreign()?;
        let _rt = enter();
        let _queues = self.0.queues.lock();
        match self.0.home() {
            Some(home) => home.rearm_foreign(self.0, fd),
            None => driver.adopt_foreign(self.0, fd),
        }
    }

    /// The descriptor is about to be closed, or its number has a new owner: ends its registration
    /// and all waits.
    pub(crate) fn forget_foreign(&self, fd: RawFd) {
        self.wake_foreign_after(|slot| {
            if let Some(foreign) = slot.home().and_then(|home| home.foreign.load()) {
                foreign.remove(fd);
            }
            slot.set_home(None);
        });
    }

    /// Ends all waits: the waiters look again.
    pub(crate) fn wake_foreign(&self) {
        self.wake_foreign_after(|_| ());
    }

    fn wake_foreign_after(&self, change: impl FnOnce(&Slot)) {
        let rt = enter();
        let mut wake = WakeList::new();
        let mut queues = self.0.queues.lock();
        change(self.0);
        for side in SIDES {
            self.flow(side).changes.happened(false);
            Slot::wake_all(queues.of(side), &mut wake);
        }
        drop(queues);
        wake.wake_in(&rt);
    }

    /// The count of events, to be loaded before an operation is tried.
    #[inline]
    pub(crate) fn seq(&self, side: Side) -> u32 {
        self.flow(side).changes.seq()
    }

    /// Whether a read has emptied the descriptor and no event has come since.
    #[inline]
    pub(crate) fn is_dry(&self, seq: u32) -> bool {
        self.flow(Side::Read).changes.is_dry(seq)
    }

    /// A read that began at `seq` has emptied the descriptor.
    #[inline]
    pub(crate) fn set_dry(&self, seq: u32) {
        self.flow(Side::Read).changes.set_dry(seq);
    }
}

impl Driver {
    /// As [`Driver::adopt`], for a foreign descriptor. Under the slot's lock, while the slot has no
    /// home.
    fn adopt_foreign(&'static self, slot: &'static Slot, fd: RawFd) -> io::Result<bool> {
        if self.is_closed() {
            return Ok(false); // the caller looks for a home again
        }
        self.rearm_foreign(slot, fd)?;
        slot.set_home(Some(self));
        Ok(false)
    }

    /// Registers a descriptor whose home this is. Returns whether it was registered. Under the
    /// slot's lock.
    fn rearm_foreign(&self, slot: &Slot, fd: RawFd) -> io::Result<bool> {
        let Some(foreign) = self.foreign.load() else {
            return Ok(false);
        };
        let was_in = foreign.rearm(fd, slot.data())?;
        slot.fd.store(fd, Relaxed);
        Ok(was_in)
    }
}
