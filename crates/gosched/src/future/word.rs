//! The word between a future's wakers and whoever polls it.
//!
//! ```text
//!  word     meaning                            next
//!  EMPTY    no waker was called since the      WOKEN (wake), waiter (commit)
//!           last poll began
//!  waiter   asleep: a G, or a thread's note    WOKEN (wake: the wake-up is its own), EMPTY (withdraw: likewise)
//!  WOKEN    the future is to be polled again   EMPTY (take)
//! ```
//!
//! Any number of wakers may call at any time; one goroutine or thread takes, commits and sleeps. It takes before it polls, so a
//! waker that is called during the poll is seen after it.

use crate::shim::{AcqRel, Acquire, AtomicUsize, Relaxed, Release};

const EMPTY: usize = 0;
const WOKEN: usize = 1;

/// The word; a waiter is any value above 1 (a tagged pointer).
pub(super) struct WakeWord(AtomicUsize);

impl WakeWord {
    pub(super) fn new() -> WakeWord {
        WakeWord(AtomicUsize::new(EMPTY))
    }

    /// A waker was called; returns the waiter that must be woken.
    #[must_use = "who sleeps must be woken"]
    pub(super) fn wake(&self) -> Option<usize> {
        // ORDER: AcqRel; what was done before the call is seen after `take`, the waiter's sleep is seen here. A swap even where it
        // is WOKEN already: each of the callers is seen.
        match self.0.swap(WOKEN, AcqRel) {
            EMPTY | WOKEN => None,
            waiter => Some(waiter),
        }
    }

    /// Whether a waker was called; the next poll answers it. By the one who polls, awake.
    pub(super) fn take(&self) -> bool {
        // ORDER: Acquire; pairs with the Release of `wake`. Nobody else makes it EMPTY, so a look is enough to leave it alone.
        self.0.load(Relaxed) == WOKEN && self.0.swap(EMPTY, Acquire) == WOKEN
    }

    /// The one who polls goes to sleep; false: a waker was called meanwhile.
    #[must_use = "a refused waiter must not sleep"]
    pub(super) fn commit(&self, waiter: usize) -> bool {
        debug_assert!(waiter > WOKEN);
        // ORDER: Release; pairs with the Acquire of `wake`: the note, or the G off its stack.
        self.0
            .compare_exchange(EMPTY, waiter, Release, Relaxed)
            .is_ok()
    }

    /// Takes the sleeper back; true: its wake-up is the caller's.
    pub(super) fn withdraw(&self, waiter: usize) -> bool {
        // ORDER: AcqRel; whoever takes the waiter out owns its wake-up.
        self.0
            .compare_exchange(waiter, EMPTY, AcqRel, Relaxed)
            .is_ok()
    }
}
