//! When the scheduler asks the kernel about the network (FR, SM, F5).
//!
//! ```text
//!  who                                          how
//!  an M whose P has nothing to run              without waiting, before it steals
//!  one that turns to the global queue           the same, if nobody has for a while
//!  the watcher, an M without a P (`poller`)     until the next timer
//!  sysmon                                       without waiting, if nobody has for a while
//! ```
//!
//! Nobody asks while no goroutine waits for an answer, and nobody else while the watcher is there: it is told at once. Who goes to
//! wait is counted before it parks, and the M that parks it looks at the count when it has nothing else to do: somebody asks.

use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::sched::Sched;
use crate::sched::model::g::GQueue;
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::model::worker::Worker;
use crate::sched::park::enter;
use crate::sched::sources::netpoll::driver::Driver;
use crate::sched::waitq::WakeList;
use crate::sys;

/// sysmon asks if nobody else has for so long: where everybody gets on, and where somebody does not.
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
            driver.close(true); // somebody was faster, and nobody has seen this one
        }
        Ok(first)
    }

    /// The driver, if somebody waits for what it will tell.
    #[inline]
    fn wanted_driver(&self) -> Option<&'static Driver> {
        self.poller.driver().filter(|driver| driver.has_waiters())
    }

    pub(crate) fn has_net_waiters(&self) -> bool {
        self.wanted_driver().is_some()
    }

    /// A goroutine on `m` is the first to wait for the driver: if this M goes on with something else, another one must ask.
    pub(crate) fn net_waiter_came(&self, m: Mp) {
        let p = m.p.load(Relaxed);
        if !self.poller.is_watching() && p.is_some_and(|p| !p.runq.is_empty()) {
            crate::sched::spin::submitted();
            self.wake_p();
        }
    }

    /// The same for somebody who is none of this runtime's: it may be asleep altogether.
    pub(crate) fn net_stranger_came(&self) {
        if !self.poller.is_watching() {
            self.wake_after_put(self.core.lock());
        }
    }

    /// An M with nothing to run: a goroutine that can go on, the others are queued on its P.
    #[inline]
    pub(crate) fn poll_net(&self, w: Worker<'_>) -> Option<Gp> {
        self.ask(self.wanted_driver()?, w)
    }

    /// An M that is about to turn to the global queue: what is there may be loops, and the network is to be asked now and then.
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

    /// sysmon: nobody has asked for a while.
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

    /// When nobody will have asked for long.
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

    /// Wakes those who are to be woken; this runtime's goroutines are made Runnable, for the caller to queue.
    pub(crate) fn collect(&self, wake: WakeList, due: &mut GQueue) {
        wake.wake_into(&enter(), self, due);
    }
}
