//! The word of a WaitGroup: how many are to come, and whether anybody waits for them.
//!
//! ```text
//!  count  WAITERS  who may do what
//!  0      0        wait: returns at once. add: count + n. done: refused, there is nothing to be done
//!  n      0        add, done: one swap, also to 0. wait: sets WAITERS † and sleeps
//!  n      1        add, done: one swap; but from 1 to 0 under the table's lock: both go to 0 †, all who wait are woken
//!
//!  † under the parking table's lock for this word
//! ```
//!
//! Orderings (U10): everything before a done is seen by whoever returns from a wait that it ended. A wait that finds 0 reads it with
//! Acquire, after a chain of swaps with Release; one that slept is told by the last done, which has read that chain with
//! Acquire, through the end of its wait.

use crate::shim::{AcqRel, Acquire, AtomicUsize, Relaxed};

const WAITERS: usize = 1;
const ONE: usize = 2;

/// The word. Made by its owner, in a constant.
pub(crate) struct GroupWord(pub(crate) AtomicUsize);

/// What a done has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// It is counted.
    Counted,
    /// It is the last one and somebody waits: it is to be counted under the table's lock, with `done_last`.
    Last,
    /// Nothing was to be done.
    Negative,
}

impl GroupWord {
    /// `n` more are to come; false: more than can be counted.
    #[must_use = "it may not have been counted"]
    pub(crate) fn add(&self, n: usize) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            let more = n.checked_mul(ONE).and_then(|more| word.checked_add(more));
            let Some(next) = more else { return false };
            // ORDER: AcqRel; it is in the chain that the last done and a wait read.
            match self.0.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// One has come.
    #[must_use = "the last one has more to do"]
    pub(crate) fn done(&self) -> Done {
        let mut word = self.0.load(Relaxed);
        loop {
            if word < ONE {
                return Done::Negative;
            }
            if word == ONE | WAITERS {
                return Done::Last;
            }
            // ORDER: AcqRel; as in `add`.
            match self
                .0
                .compare_exchange_weak(word, word - ONE, AcqRel, Relaxed)
            {
                Ok(_) => return Done::Counted,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: one has come that found itself the last. Counted: so it was not, or nobody waits any more. Last: whoever
    /// is queued is to be woken.
    #[must_use = "those who wait are to be woken"]
    pub(crate) fn done_last(&self) -> Done {
        let mut word = self.0.load(Relaxed);
        loop {
            if word < ONE {
                return Done::Negative;
            }
            let is_last = word == ONE | WAITERS;
            let next = if is_last { 0 } else { word - ONE };
            // ORDER: AcqRel; as in `add`. What it has read it passes on to those it wakes.
            match self.0.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) if is_last => return Done::Last,
                Ok(_) => return Done::Counted,
                Err(found) => word = found,
            }
        }
    }

    /// How many are to come.
    pub(crate) fn count(&self) -> usize {
        // ORDER: Acquire; pairs with the Release of every `done` before it came to this.
        self.0.load(Acquire) / ONE
    }

    /// Under the table's lock: whether it is time to wait. The word then knows of a waiter.
    pub(crate) fn queue_up(&self) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            if word < ONE {
                return false;
            }
            // ORDER: AcqRel; as in `add`.
            match self
                .0
                .compare_exchange_weak(word, word | WAITERS, AcqRel, Relaxed)
            {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: a waiter has left the queue by itself.
    pub(crate) fn queue_left(&self, are_more: bool) {
        if !are_more {
            // ORDER: AcqRel; as in `add`.
            self.0.fetch_and(!WAITERS, AcqRel);
        }
    }
}
