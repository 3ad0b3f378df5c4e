//! The slot for one waiter: how a park's commit meets the event it waits for.
//!
//! One side *commits* a waiter, the other *completes* the event, each once, in any order and from any
//! thread. Exactly one of two things happens: the commit comes first, and the completion gets the
//! waiter and must wake it; or the completion comes first, and the commit is refused, so its caller
//! goes on at once (PK: the unlock function refuses).
//!
//! ```text
//!  word     meaning                       next
//!  EMPTY    pending, nobody waits         waiter (commit), DONE (complete)
//!  waiter   pending, the waiter sleeps    DONE (complete), EMPTY (withdraw)
//!  DONE     it happened                   –
//! ```

use crate::shim::{AcqRel, Acquire, AtomicUsize};

const EMPTY: usize = 0;
const DONE: usize = 1;

/// The word; a waiter is any value above 1 (a tagged pointer).
pub(crate) struct SlotWord(AtomicUsize);

impl SlotWord {
    pub(crate) fn new() -> SlotWord {
        SlotWord(AtomicUsize::new(EMPTY))
    }

    /// Whether the event has happened.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        // ORDER: Acquire; pairs with the AcqRel in `complete`: the event's data may be read.
        self.0.load(Acquire) == DONE
    }

    /// Registers the waiter; false when the event has happened already.
    #[must_use = "a refused waiter must not sleep"]
    pub(crate) fn commit(&self, waiter: usize) -> bool {
        debug_assert!(waiter > DONE);
        // ORDER: AcqRel; success publishes the waiter to `complete`, failure sees the event's data.
        match self.0.compare_exchange(EMPTY, waiter, AcqRel, Acquire) {
            Ok(_) => true,
            Err(found) => {
                assert_eq!(found, DONE, "a slot takes one waiter");
                false
            }
        }
    }

    /// Takes a registered waiter back; false when the event has happened, so a wake-up is on its way.
    pub(crate) fn withdraw(&self, waiter: usize) -> bool {
        // ORDER: AcqRel; as in `commit`.
        self.0
            .compare_exchange(waiter, EMPTY, AcqRel, Acquire)
            .is_ok()
    }

    /// The event has happened; returns the waiter that must be woken. Later calls return None.
    ///
    /// The slot may be gone once the word is DONE and nobody waits, so it is not touched afterwards.
    pub(crate) fn complete(&self) -> Option<usize> {
        // ORDER: AcqRel; publishes the event's data to `is_done` and `commit`, sees the waiter.
        match self.0.swap(DONE, AcqRel) {
            EMPTY | DONE => None,
            waiter => Some(waiter),
        }
    }
}
