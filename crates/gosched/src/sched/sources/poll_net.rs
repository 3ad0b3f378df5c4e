//! When the scheduler polls the network (FR, SM, F5).
//!
//! A goroutine whose socket is ready must not wait long, and a poll costs a system call.
//!
//! ```text
//!  thread                                       how it polls
//!  an M whose P has nothing to run              without waiting, before it steals
//!  an M about to take from the global queue     the same, if the last poll is a while ago
//!  the watcher, an M without a P (`poller`)     until the next timer
//!  sysmon                                       the same, if the last poll is longer ago
//! ```
//!
//! No thread polls while no goroutine waits. No other thread polls while the watcher is in the
//! poller: the kernel wakes it at once. A goroutine is counted before it parks. The M that parks it
//! loads the count when it has nothing else to do, so some thread polls.

use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::sched::Sched;
use crate::sched::model::g::GQueue;
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::park::enter;
use crate::sched::sources::netpoll::driver::Driver;
use crate::sched::waiting::waitq::WakeList;
use crate::sched::worker::Worker;
use crate::sys;

/// sysmon polls if no other thread has for this long: while all Ps make progress, and otherwise.
const LATE_NS: u64 = 2_000_000;
const LATE_BUSY_NS: u64 = 1_000_000;
/// How often the network comes before the global queue.
const BETWEEN_NS: u64 = 200_000;

impl Sched {
    /// This runtime's driver, made when it is first needed. Outside the runtime.
    pub(crate) fn net_driver(&self) -> io::Result<&'static Driver> {
        if let Some(driver) = self.poller.driver() {
            return Ok(driver);
        }
        let driver = Driver::new()?;
        let _rt = enter();
        let first = self.poller.set_driver(driver);
        if !std::ptr::eq(first, driver) {
            driver.close(true); // another thread was faster; no thread has seen this one
        }
        Ok(first)
    }

    /// The driver, if a goroutine or thread waits for it.
    #[inline]
    fn wanted_driver(&self) -> Option<&'static Driver> {
        self.poller.driver().filter(|driver| driver.has_waiters())
    }

    pub(crate) fn has_net_waiters(&self) -> bool {
        self.wanted_driver().is_some()
    }

    /// A goroutine on `m` is the first to wait for the driver. If this M continues with other work,
    /// another M must poll.
    pub(crate) fn net_waiter_came(&self, m: Mp) {
        let p = m.p.load(Relaxed);
        if !self.poller.is_watching() && p.is_some_and(|p| !p.runq.is_empty()) {
            crate::sched::model::spin::submitted();
            self.wake_p();
        }
    }

    /// As `net_waiter_came`, for a waiter outside this runtime. All its Ms may be asleep.
    pub(crate) fn net_stranger_came(&self) {
        if !self.poller.is_watching() {
            self.wake_after_put(self.core.lock());
        }
    }

    /// For an M with nothing to run: returns a ready goroutine; the others are queued on p.
    #[inline]
    pub(crate) fn poll_net(&self, w: Worker<'_>) -> Option<Gp> {
        self.ask(self.wanted_driver()?, w)
    }

    /// For an M about to take from the global queue. The goroutines there may be loops, so the
    /// network is polled now and then.
    #[inline]
    pub(crate) fn poll_net_between(&self, w: Worker<'_>) -> Option<Gp> {
        let driver = self.wanted_driver()?;
        if self.runq_is_empty() || sys::monotonic_ns() < driver.looked_ns() + BETWEEN_NS {
            return None;
        }
        self.ask(driver, w)
    }

    fn ask(&self, driver: &Driver, w: Worker<'_>) -> Option<Gp> {
        if self.poller.is_watching() {
            return None;
        }
        let mut due = GQueue::new();
        self.collect(driver.try_poll()?, &mut due);
        self.share_due(w, due)
    }

    /// sysmon polls if no thread has for a while.
    pub(crate) fn poll_net_if_late(&self, now: u64) {
        if self.net_late_at() > now || self.is_stopping() {
            return;
        }
        let Some(wake) = self.wanted_driver().and_then(Driver::try_poll) else {
            return;
        };
        self.is_carrying.store(true, SeqCst);
        let mut due = GQueue::new();
        self.collect(wake, &mut due);
        if !due.is_empty() {
            self.inject_list(None, &mut due);
            self.press_if_busy();
        }
        self.is_carrying.store(false, SeqCst);
    }

    /// When no thread will have polled for too long.
    pub(crate) fn net_late_at(&self) -> u64 {
        match self.wanted_driver() {
            Some(driver) if !self.poller.is_watching() => {
                let patience = match self.sysmon.is_calm() {
                    true => LATE_NS,
                    false => LATE_BUSY_NS,
                };
                driver.looked_ns() + patience
            }
            _ => u64::MAX,
        }
    }

    /// Wakes the waiters in `wake`. This runtime's goroutines become Runnable, for the caller to
    /// queue.
    pub(crate) fn collect(&self, wake: WakeList, due: &mut GQueue) {
        wake.wake_into(&enter(), self, due);
    }
}
