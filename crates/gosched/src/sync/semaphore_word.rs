//! The word of a Semaphore: permits that are free, and whether anybody waits for one.
//!
//! ```text
//!  free  WAITERS  who may do what
//!  n     0        acquire: one swap. release: one swap
//!  0     0        acquire: sets WAITERS † and sleeps. release: one swap
//!  0     1        acquire: sleeps behind the others. release: hands the permit to the first one †; none there after all: it is
//!                 free, and WAITERS goes †
//!
//!  † under the parking table's lock for this word
//! ```
//!
//! A permit is never free while somebody waits, so nobody gets in ahead of the queue. Orderings (U10): a release's Release pairs with the
//! Acquire of an acquire; a permit that is handed over passes it on through the end of the wait.

use crate::shim::{Acquire, AtomicUsize, Relaxed, Release};

const WAITERS: usize = 1;
const ONE: usize = 2;

/// The most permits that can be counted.
pub(crate) const PERMITS_MAX: usize = usize::MAX / ONE;

/// The word. Made by its owner, in a constant: [`SemaphoreWord::of`].
pub(crate) struct SemaphoreWord(pub(crate) AtomicUsize);

impl SemaphoreWord {
    /// The word with so many free permits and nobody waiting.
    pub(crate) const fn of(permits: usize) -> usize {
        permits * ONE
    }

    /// Takes a free permit, if there is one.
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

    /// Gives a permit back if nobody waits; false: that is to be done under the table's lock, with `release_to`.
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

    /// Under the table's lock: gives a permit back, to the one that was popped or to nobody.
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
            // ORDER: Release; as in `release`.
            match self.0.compare_exchange_weak(word, next, Release, Relaxed) {
                Ok(_) => return,
                Err(found) => word = found,
            }
        }
    }

    /// Permits that are free.
    pub(crate) fn free(&self) -> usize {
        self.0.load(Relaxed) / ONE
    }

    /// Under the table's lock: whether it is time to wait. The word then knows of a waiter.
    pub(crate) fn queue_up(&self) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            if word >= ONE {
                return false;
            }
            // ORDER: Relaxed; the swap of a release fails on an older word, and the table's lock orders the queue.
            match self
                .0
                .compare_exchange_weak(word, word | WAITERS, Relaxed, Relaxed)
            {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: a waiter has left the queue by itself.
    pub(crate) fn queue_left(&self, are_more: bool) {
        if !are_more {
            self.0.fetch_and(!WAITERS, Relaxed);
        }
    }
}
