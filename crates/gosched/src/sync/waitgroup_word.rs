//! The word of a WaitGroup: its counter, and whether waiters may be queued.
//!
//! It is apart from the WaitGroup so that loom can check it alone.
//!
//! ```text
//!  count  WAITERS  add        done                          wait
//!  0      0        one swap   refused: negative             returns at once
//!  n      0        one swap   one swap, also to 0           sets WAITERS † and sleeps
//!  n      1        one swap   one swap; from 1 to 0:        sleeps
//!                             clears both, wakes all †
//!
//!  † under the parking table's lock for this word
//! ```
//!
//! Orderings (U10): a wait that returns sees everything before each done of its round. A wait that
//! finds 0 reads it with Acquire, after a chain of swaps with Release. The last done reads that
//! chain with Acquire, and the end of the wait orders a sleeping waiter after it.

use crate::shim::{AcqRel, Acquire, AtomicUsize, Relaxed};

const WAITERS: usize = 1;
const ONE: usize = 2;

/// The word. Its owner creates it.
pub(crate) struct GroupWord(pub(crate) AtomicUsize);

/// The result of a done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// The counter is changed.
    Counted,
    /// The counter would become zero and waiters are queued. The caller must use `done_last`, under
    /// the table's lock.
    Last,
    /// The counter is zero already.
    Negative,
}

impl GroupWord {
    /// Adds `n`. False if the counter would overflow.
    #[must_use = "the counter may be unchanged"]
    pub(crate) fn add(&self, n: usize) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            let more = n.checked_mul(ONE).and_then(|more| word.checked_add(more));
            let Some(next) = more else { return false };
            // ORDER: AcqRel; part of the chain of swaps that the last done and a wait read.
            match self.0.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Subtracts one.
    #[must_use = "the last done must wake the waiters"]
    pub(crate) fn done(&self) -> Done {
        let mut word = self.0.load(Relaxed);
        loop {
            if word < ONE {
                return Done::Negative;
            }
            if word == ONE | WAITERS {
                return Done::Last;
            }
            // ORDER: AcqRel; part of the chain of swaps that the last done and a wait read.
            match self
                .0
                .compare_exchange_weak(word, word - ONE, AcqRel, Relaxed)
            {
                Ok(_) => return Done::Counted,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: subtracts one, after `done` returned `Last`. `Last`: the caller must
    /// wake all queued waiters. `Counted`: another add came first, or no waiter is left.
    #[must_use = "the waiters must be woken"]
    pub(crate) fn done_last(&self) -> Done {
        let mut word = self.0.load(Relaxed);
        loop {
            if word < ONE {
                return Done::Negative;
            }
            let is_last = word == ONE | WAITERS;
            let next = if is_last { 0 } else { word - ONE };
            // ORDER: AcqRel; part of the chain of swaps. The end of each wait passes on what it has
            // read.
            match self.0.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) if is_last => return Done::Last,
                Ok(_) => return Done::Counted,
                Err(found) => word = found,
            }
        }
    }

    /// The counter.
    pub(crate) fn count(&self) -> usize {
        // ORDER: Acquire; pairs with the Release of every `done` up to this value.
        self.0.load(Acquire) / ONE
    }

    /// Under the table's lock: returns whether the caller must wait. If so, WAITERS is set.
    pub(crate) fn queue_up(&self) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            if word < ONE {
                return false;
            }
            // ORDER: AcqRel; part of the chain of swaps that the last done and a wait read.
            match self
                .0
                .compare_exchange_weak(word, word | WAITERS, AcqRel, Relaxed)
            {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: a waiter has left the queue without a wake-up.
    pub(crate) fn queue_left(&self, are_more: bool) {
        if !are_more {
            // ORDER: AcqRel; part of the chain of swaps that the last done and a wait read.
            self.0.fetch_and(!WAITERS, AcqRel);
        }
    }
}
