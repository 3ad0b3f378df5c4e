//! The word of a Semaphore: the number of free permits, and whether waiters may be queued.
//!
//! It is apart from the Semaphore so that loom can check it alone.
//!
//! ```text
//!  free  WAITERS  acquire                      release
//!  n     0        one swap                     one swap
//!  0     0        sets WAITERS † and sleeps    one swap
//!  0     1        queues at the end, sleeps    hands the permit to the first waiter †;
//!                                              if none is left: frees it, clears WAITERS †
//!
//!  † under the parking table's lock for this word
//! ```
//!
//! A permit is never free while a waiter is queued, so no caller overtakes the queue.
//!
//! Orderings (U10): the Release of a release pairs with the Acquire of an acquire. A permit that is
//! handed over is ordered by the end of the wait.

use crate::shim::{Acquire, AtomicUsize, Relaxed, Release};

const WAITERS: usize = 1;
const ONE: usize = 2;

/// The largest number of permits.
pub(crate) const PERMITS_MAX: usize = usize::MAX / ONE;

/// The word. Its owner creates it in a constant, with [`SemaphoreWord::of`].
pub(crate) struct SemaphoreWord(pub(crate) AtomicUsize);

impl SemaphoreWord {
    /// The word with `permits` free permits and no waiters.
    pub(crate) const fn of(permits: usize) -> usize {
        permits * ONE
    }

    /// Takes a free permit if one exists.
    #[inline]
    pub(crate) fn acquire(&self) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            if word < ONE {
                return false;
            }
            // ORDER: Acquire; pairs with the Release of `release` and `release_to`.
            match self
                .0
                .compare_exchange_weak(word, word - ONE, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Returns a permit if no waiter is queued. On false the caller must use `release_to`, under
    /// the table's lock.
    #[inline]
    pub(crate) fn release(&self) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            if word & WAITERS != 0 {
                return false;
            }
            // ORDER: Release; pairs with the Acquire of `acquire`.
            match self
                .0
                .compare_exchange_weak(word, word + ONE, Release, Relaxed)
            {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: returns a permit, to the popped waiter or to the free ones.
    pub(crate) fn release_to(&self, has_popped: bool, are_more: bool) {
        let mut word = self.0.load(Relaxed);
        loop {
            let mut next = word & !WAITERS;
            if are_more {
                next |= WAITERS;
            }
            if !has_popped {
                next += ONE;
            }
            // ORDER: Release; pairs with the Acquire of `acquire`.
            match self.0.compare_exchange_weak(word, next, Release, Relaxed) {
                Ok(_) => return,
                Err(found) => word = found,
            }
        }
    }

    /// The number of free permits.
    pub(crate) fn free(&self) -> usize {
        self.0.load(Relaxed) / ONE
    }

    /// Under the table's lock: returns whether the caller must wait. If so, WAITERS is set.
    pub(crate) fn queue_up(&self) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            if word >= ONE {
                return false;
            }
            // ORDER: Relaxed; a release's swap fails on an older word, and the table's lock orders
            // the queue.
            match self
                .0
                .compare_exchange_weak(word, word | WAITERS, Relaxed, Relaxed)
            {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: a waiter has left the queue without a wake-up.
    pub(crate) fn queue_left(&self, are_more: bool) {
        if !are_more {
            self.0.fetch_and(!WAITERS, Relaxed);
        }
    }
}
