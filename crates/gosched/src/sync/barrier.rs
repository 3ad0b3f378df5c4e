//! [`Barrier`]: std's barrier for goroutines and plain threads.
//!
//! std's barrier blocks the thread. A wait here frees the thread for other goroutines.
//!
//! The count of arrivals changes only under the parking table's lock. The last arrival empties the
//! barrier's queue in the same critical section. So two rounds cannot mix.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::atomic::AtomicUsize;

use crate::sched::model::g::WaitReason;
use crate::sched::park::enter;
use crate::sched::waiting::sema::{KeyWait, ParkResult, QueueLeft, key_of, lock};
use crate::sched::waiting::waitq::{WaitKind, WakeList};
use crate::shim::Relaxed;
use crate::thread::check_cancelled;

static KIND: WaitKind = WaitKind::new(WaitReason::Barrier);

/// A point at which a number of goroutines or threads wait for each other.
///
/// It can be used for several rounds. Only [`wait`](Barrier::wait) blocks. See
/// [`std::sync::Barrier`].
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
    /// Waiters of this round. Changes only under the table's lock.
    arrived: AtomicUsize,
    size: usize,
}

impl RefUnwindSafe for Barrier {}

/// The result of [`Barrier::wait`]: whether the caller was the last to arrive.
///
/// See the example of [`Barrier`], and [`std::sync::BarrierWaitResult`].
pub struct BarrierWaitResult(bool);

impl Barrier {
    /// Creates a barrier for `n` goroutines or threads.
    ///
    /// A barrier for 0 behaves as a barrier for 1. See [`std::sync::Barrier::new`].
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

    /// Waits until all have arrived.
    ///
    /// Blocks the calling goroutine or plain thread. See the example of [`Barrier`], and
    /// [`std::sync::Barrier::wait`].
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

    /// Whether the next arrival completes the round. Without the table's lock it is only a hint.
    fn is_last(&self) -> bool {
        self.arrived.load(Relaxed) + 1 >= self.size
    }

    /// Ends the round and wakes its waiters. False: another round has begun, and the caller is not
    /// its last arrival.
    fn open(&self, key: usize) -> bool {
        let mut wake = WakeList::new();
        let rt = enter(); // until the wake-up: the popped waiters rely on it (`waitq`)
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

    /// Under the table's lock: counts a waiter. False: the caller completes the round and must not
    /// wait.
    fn arrive(&self) -> bool {
        let is_last = self.is_last();
        if !is_last {
            self.arrived.store(self.arrived.load(Relaxed) + 1, Relaxed);
        }
        !is_last
    }

    /// Under the table's lock: subtracts a waiter that leaves. False: its round is complete
    /// already.
    fn leave(&self, left: QueueLeft) -> bool {
        if left.was_in {
            self.arrived.store(self.arrived.load(Relaxed) - 1, Relaxed);
        }
        left.was_in
    }
}

impl BarrierWaitResult {
    /// Returns whether this call was the last to arrive.
    ///
    /// Never blocks. See the example of [`Barrier`].
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
