//! [`Barrier`]: std's, for goroutines and threads.
//!
//! The count of those who have come is changed under the parking table's lock; the one that completes it wakes the others, who are the
//! barrier's queue, in the same hold of the lock. So the next round cannot mix with this one.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::atomic::AtomicUsize;

use super::sema::{KeyWait, ParkResult, QueueLeft, key_of, lock};
use crate::sched::model::g::WaitReason;
use crate::sched::park::enter;
use crate::sched::waitq::{WaitKind, WakeList};
use crate::shim::Relaxed;
use crate::thread::check_cancelled;

static KIND: WaitKind = WaitKind::new(WaitReason::Barrier);

/// A point at which so many wait for each other, again and again; see [`std::sync::Barrier`].
///
/// Only [`wait`](Barrier::wait) blocks.
///
/// ```
/// use gosched::sync::{Arc, Barrier};
///
/// let leaders = gosched::run(|| {
///     let barrier = Arc::new(Barrier::new(4));
///     let all: Vec<_> = (0..4)
///         .map(|_| {
///             let barrier = Arc::clone(&barrier);
///             gosched::thread::spawn(move || barrier.wait().is_leader())
///         })
///         .collect();
///     let leads = all.into_iter().map(|one| one.join().unwrap());
///     leads.filter(|leads| *leads).count()
/// });
/// assert_eq!(leaders, 1);
/// ```
pub struct Barrier {
    /// Who has come in this round. Under the table's lock.
    arrived: AtomicUsize,
    size: usize,
}

impl RefUnwindSafe for Barrier {}

/// Whether one was the last to come; see [`std::sync::BarrierWaitResult`]. See the example of [`Barrier`].
pub struct BarrierWaitResult(bool);

impl Barrier {
    /// A barrier for `n`; see [`std::sync::Barrier::new`]. One for none is as good as one for one.
    ///
    /// ```
    /// assert!(gosched::sync::Barrier::new(1).wait().is_leader());
    /// ```
    #[must_use]
    #[inline]
    pub const fn new(n: usize) -> Barrier {
        Barrier {
            arrived: AtomicUsize::new(0),
            size: n,
        }
    }

    /// Waits until all have come; see [`std::sync::Barrier::wait`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on. See the example of [`Barrier`].
    pub fn wait(&self) -> BarrierWaitResult {
        loop {
            check_cancelled();
            let key = key_of(&self.arrived);
            if self.is_last() && self.open(key) {
                return BarrierWaitResult(true);
            }
            let mut has_opened = false;
            let parked = KeyWait::new(key, &KIND).park(
                |_| self.arrive(),
                || {},
                |left| has_opened = !self.leave(left),
            );
            match parked {
                ParkResult::Refused => {} // all others have come meanwhile
                ParkResult::Got(_) => return BarrierWaitResult(false),
                ParkResult::Cancelled | ParkResult::TimedOut => {
                    check_cancelled();
                    if has_opened {
                        return BarrierWaitResult(false);
                    }
                }
            }
        }
    }

    /// Whether the next to come is the last of its round. A hint without the table's lock.
    fn is_last(&self) -> bool {
        self.arrived.load(Relaxed) + 1 >= self.size
    }

    /// The last one has come: the round ends, and the next begins. False: it was not the last.
    fn open(&self, key: usize) -> bool {
        let mut wake = WakeList::new();
        let rt = enter(); // until they are woken: who was popped relies on it
        let mut table = lock(key);
        let is_last = self.is_last();
        if is_last {
            self.arrived.store(0, Relaxed);
            table.pop_all(key, || {}, &mut wake);
        }
        drop(table);
        wake.wake_in(&rt);
        is_last
    }

    /// Under the table's lock: one more has come, and waits; false: it is the last.
    fn arrive(&self) -> bool {
        let is_last = self.is_last();
        if !is_last {
            self.arrived.store(self.arrived.load(Relaxed) + 1, Relaxed);
        }
        !is_last
    }

    /// Under the table's lock: one goes away; false: it was counted in a round that is complete.
    fn leave(&self, left: QueueLeft) -> bool {
        if left.was_in {
            self.arrived.store(self.arrived.load(Relaxed) - 1, Relaxed);
        }
        left.was_in
    }
}

impl BarrierWaitResult {
    /// Whether this was the last one to come. Blocks nothing. See the example of [`Barrier`].
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.0
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier").finish_non_exhaustive()
    }
}

impl fmt::Debug for BarrierWaitResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BarrierWaitResult")
            .field("is_leader", &self.is_leader())
            .finish()
    }
}
