//! A channel whose values come from the clock: `after`, `at`, `tick`, `time::Timer` and `time::Ticker`.
//!
//! Nothing runs for it. When its time has come is seen by whoever looks; who waits does so with that deadline, and whoever
//! changes it makes them look again. So a timer that nobody waits on costs nothing, and one that is stopped or set anew can have
//! no stale value (Go ≥ 1.23): a value that was not received never existed.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use super::Receiver;
use super::core::{Chan, Flavor, Header, Queues};
use super::ring::No;
use crate::os;
use crate::sched::park::enter;
use crate::sched::waitq::WakeList;

/// When the next value is due; values are made from that moment.
pub(super) struct Clock<T> {
    /// Monotonic ns; `u64::MAX`: never. Changes under the channel's lock.
    when: AtomicU64,
    /// Whether a value is still to come or to be received, be it never. Under the lock.
    is_set: AtomicBool,
    /// 0: once.
    period_ns: AtomicU64,
    make: fn(Instant) -> T,
}

impl<T> Receiver<T> {
    /// Sets a receiver of the clock's anew, or stops it; whether a value was still to come or to be received.
    pub(crate) fn set_clock(&self, when_ns: Option<u64>, period_ns: u64) -> bool {
        match self.chan() {
            Some(Chan {
                header,
                flavor: Flavor::Clock(clock),
            }) => clock.set(header, when_ns, period_ns),
            _ => false,
        }
    }
}

impl<T> Clock<T> {
    pub(super) fn new(when: u64, period_ns: u64, make: fn(Instant) -> T) -> Clock<T> {
        os::instant_of(0); // what converts moments is made now, not under a lock
        Clock {
            when: AtomicU64::new(when),
            is_set: AtomicBool::new(true),
            period_ns: AtomicU64::new(period_ns),
            make,
        }
    }

    #[inline]
    pub(super) fn when(&self) -> u64 {
        self.when.load(SeqCst)
    }

    /// The value, if it is due: one receiver gets it. Outside the runtime.
    pub(super) fn take(&self, header: &Header) -> Result<T, No> {
        if self.when() == u64::MAX {
            return Err(No::NotNow);
        }
        let now = os::monotonic_ns();
        if self.when() > now {
            return Err(No::NotNow);
        }
        let mut wake = WakeList::new();
        let when = {
            let _rt = enter();
            let mut q = header.queues.lock();
            let when = self.take_due(header, &mut q, now, &mut wake);
            drop(q);
            wake.wake();
            when
        };
        when.map(|when| self.value(when)).ok_or(No::NotNow)
    }

    /// The moment of the value, if it is due. Missed ones are dropped, the phase is kept. Under the lock.
    pub(super) fn take_due(
        &self,
        header: &Header,
        q: &mut Queues,
        now: u64,
        wake: &mut WakeList,
    ) -> Option<u64> {
        let when = self.when();
        if when > now {
            return None;
        }
        let next = match self.period_ns.load(Relaxed) {
            0 => {
                self.is_set.store(false, Relaxed);
                u64::MAX
            }
            period => when.saturating_add(period.saturating_mul(1 + (now - when) / period)),
        };
        self.when.store(next, SeqCst);
        header.look_again(q, wake); // their deadline has moved on
        Some(when)
    }

    /// The value of a moment. Outside the runtime: it is the user's.
    pub(super) fn value(&self, when: u64) -> T {
        (self.make)(os::instant_of(when))
    }

    /// Sets it anew, or stops it; whether a value was still to come or to be received.
    pub(super) fn set(&self, header: &Header, when: Option<u64>, period_ns: u64) -> bool {
        let _rt = enter();
        let mut q = header.queues.lock();
        let was_set = self.is_set.swap(when.is_some(), Relaxed);
        self.when.store(when.unwrap_or(u64::MAX), SeqCst);
        self.period_ns.store(period_ns, Relaxed);
        let mut wake = WakeList::new();
        header.look_again(&mut q, &mut wake);
        drop(q);
        wake.wake();
        was_set
    }
}
