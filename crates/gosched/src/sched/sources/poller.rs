//! The watcher: the one M that sleeps until the next timer, without a P.
//!
//! It exists so that an idle runtime wakes for timers and the network. Where the network is in use,
//! it sleeps in the network poller, so that the first event of either kind wakes it.
//!
//! ```text
//!  until          meaning
//!  NOBODY         no M watches
//!  COMING         an M is about to watch
//!  anything else  an M watches until this time (ns)
//! ```
//!
//! The watcher publishes its wake-up time and then loads the timers again. A thread that inserts an
//! earlier timer publishes it and then loads the watcher's word. With a barrier on both sides one
//! of them sees the other (timer/1, timer/2). A watcher that leaves stores NOBODY, and its M looks
//! for timers once more (timer/3).
//!
//! A thread that needs the watcher back sets its note, and rings the bell if the watcher is in the
//! poller. The watcher stores that it goes there and then loads its note (bell/1, bell/2).

use crate::base::note::Note;
use crate::base::static_ref::StaticRef;
use crate::sched::sources::netpoll::driver::Driver;
use crate::sched::waiting::waitq::WakeList;
use crate::shim::{self, AtomicBool, AtomicU64, Relaxed, SeqCst, fence};
use crate::sys;

const NOBODY: u64 = 0;
const COMING: u64 = 1;
/// The kernel ends a sleep up to this much late, so that one interrupt ends several sleeps. It is a
/// thread's timer slack, unless the program changes it. Goroutines run on this thread next, so it
/// stays as it is.
const SLACK_NS: u64 = 50_000;
/// In `epoll_wait` the slack of longer sleeps is this fraction of the sleep, up to a maximum.
const POLL_SLACK_PART: u64 = 1_000;
const POLL_SLACK_MAX_NS: u64 = 100_000_000;
/// How late the watcher may be. Timers that are due within this time of each other cost one
/// wake-up.
const LATE_NS: u64 = 20_000;

/// The wait for the next timer and for the network.
pub(crate) struct Poller {
    until: AtomicU64,
    note: Note,
    /// The network driver; None: not in use yet. Once set it stays.
    driver: StaticRef<Driver>,
    /// The watcher is in the driver, or about to be.
    is_inside: AtomicBool,
}

impl Poller {
    pub(crate) fn new() -> Poller {
        Poller {
            until: AtomicU64::new(NOBODY),
            note: Note::new(),
            driver: StaticRef::none(),
            is_inside: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn driver(&self) -> Option<&'static Driver> {
        self.driver.load()
    }

    /// Puts the network into use; returns the first driver set, perhaps by another thread. A
    /// watcher that sleeps without it comes back.
    pub(crate) fn set_driver(&self, driver: &'static Driver) -> &'static Driver {
        let first = self.driver.set_once(driver);
        self.wake();
        first
    }

    pub(crate) fn is_watching(&self) -> bool {
        self.until.load(Relaxed) != NOBODY
    }

    /// Becomes the watcher, if there is none; true: `sleep` must follow. Under the scheduler lock:
    /// a thread that queues a P for the next free M sees either that M or a watcher to wake.
    #[must_use = "the watcher must sleep"]
    pub(crate) fn begin(&self) -> bool {
        self.until
            .compare_exchange(NOBODY, COMING, SeqCst, Relaxed)
            .is_ok()
    }

    /// Sleeps until the next timer is due, `wake` is called, or the network has an event. Returns
    /// the waiters to wake.
    pub(crate) fn sleep(&self, next: impl Fn() -> u64) -> WakeList {
        let mut wake = WakeList::new();
        loop {
            let until = next();
            let driver = self.driver();
            if until == u64::MAX && !driver.is_some_and(Driver::has_waiters) {
                break;
            }
            self.until.store(until.max(COMING), SeqCst);
            // FENCE: timer/2 — the store of `until` before the second load of the timers; meets
            // timer/1 in `kick`.
            fence(SeqCst);
            if next() >= until {
                match driver {
                    Some(driver) => wake = self.sleep_in(driver, until),
                    None => self.sleep_on_note(until),
                }
                break;
            }
        }
        // The note is cleared before the next watcher can come, never after: a wake-up for that one
        // must stay. A late wake-up for this watcher costs the next one a needless turn.
        self.note.clear();
        self.until.store(NOBODY, SeqCst);
        // FENCE: timer/3 — the end of the watch before the caller's look for timers, which may
        // begin another watch; meets timer/1 in `kick`. The thread that sets a timer has
        // relied on this one until now.
        fence(SeqCst);
        wake
    }

    fn sleep_on_note(&self, until: u64) {
        let is_woken = self.note.sleep_until(ask_for(until, SLACK_NS));
        if !is_woken && sys::monotonic_ns() < until {
            self.note.sleep_until(until);
        }
    }

    fn sleep_in(&self, driver: &Driver, until: u64) -> WakeList {
        self.is_inside.store(true, SeqCst);
        // FENCE: bell/2 — the store of `is_inside` before the load of the note; meets bell/1 in
        // `wake`.
        fence(SeqCst);
        let wake = match self.note.is_set() {
            true => WakeList::new(),
            false => self.poll_until(driver, until),
        };
        self.is_inside.store(false, SeqCst);
        wake
    }

    fn poll_until(&self, driver: &Driver, until: u64) -> WakeList {
        if until == u64::MAX {
            return driver.poll(until);
        }
        let left = until.saturating_sub(sys::monotonic_ns());
        let slack = (left / POLL_SLACK_PART).clamp(SLACK_NS, POLL_SLACK_MAX_NS);
        let wake = driver.poll(ask_for(until, slack));
        match wake.is_empty() && !self.note.is_set() && sys::monotonic_ns() < until {
            true => driver.poll(until),
            false => wake,
        }
    }

    /// A timer for `when` was inserted as the first of its heap, and the heap's lock released: the
    /// watcher must not oversleep. Returns false if no M watches.
    pub(crate) fn kick(&self, when: u64) -> bool {
        // FENCE: timer/1 — the timer, by the release of the heap's lock, before the load of
        // `until`; meets timer/2 in `sleep`.
        shim::fence_after_rmw();
        let until = self.until.load(SeqCst);
        if until > when && !self.note.is_set() {
            self.wake();
        }
        until != NOBODY
    }

    /// Ends any wait: a P waits for a thread, or the runtime is being dropped.
    pub(crate) fn wake(&self) {
        self.note.wakeup();
        // FENCE: bell/1 — the note before the load of `is_inside`; meets bell/2 in `sleep_in`.
        fence(SeqCst);
        if self.is_inside.load(SeqCst)
            && let Some(driver) = self.driver()
        {
            driver.ring();
        }
    }
}

/// The deadline to pass to the kernel in order to wake `LATE_NS` after `until`, if the kernel adds
/// `slack`. If the kernel adds less, the sleep ends early and the caller sleeps for the rest.
fn ask_for(until: u64, slack: u64) -> u64 {
    until.saturating_sub(slack - LATE_NS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slack_is_asked_for_beforehand() {
        assert_eq!(ask_for(1_000_000, SLACK_NS) + SLACK_NS, 1_000_000 + LATE_NS);
        let long = POLL_SLACK_MAX_NS;
        assert_eq!(ask_for(10 * long, long) + long, 10 * long + LATE_NS);
        assert_eq!(ask_for(5, SLACK_NS), 1, "0 would mean: do not wait");
    }
}
