//! The note: a one-shot event that a thread sleeps on. Every M parks on its own.
//!
//! Protocol. The owner `clear`s the note. Then it publishes that it will sleep (an M puts itself on
//! the idle list, under the scheduler lock). Then it `sleep`s. A waker takes it off that list and
//! calls `wakeup` exactly once. `sleep` returns only after that `wakeup`, whichever of the two came
//! first.
//!
//! ```text
//!  word   meaning
//!  CLEAR  not woken; a sleeper may be in the kernel
//!  SET    woken; stays so until the owner clears it
//! ```

use crate::shim::{Acquire, Futex, Relaxed, Release};

const CLEAR: u32 = 0;
const SET: u32 = 1;

/// A one-shot sleep and wake-up.
pub(crate) struct Note {
    word: Futex,
}

impl Note {
    pub(crate) fn new() -> Note {
        Note {
            word: Futex::new(CLEAR),
        }
    }

    /// Makes the note usable again. The sleeper calls it, before a waker can find the sleeper.
    pub(crate) fn clear(&self) {
        // ORDER: Relaxed; the step that publishes the sleeper to wakers orders this store before
        // them.
        self.word.0.store(CLEAR, Relaxed);
    }

    /// Sleeps until `wakeup`.
    pub(crate) fn sleep(&self) {
        while !self.is_set() {
            self.word.wait(CLEAR, None);
        }
    }

    /// Sleeps until `wakeup`; calls `hear` after each `nudge`, and sometimes without one.
    pub(crate) fn sleep_hearing(&self, mut hear: impl FnMut()) {
        while !self.is_set() {
            hear();
            self.word.wait(CLEAR, None);
        }
    }

    /// Makes a sleeper in `sleep_hearing` call `hear`, if it is asleep by now. It sleeps on
    /// afterwards.
    pub(crate) fn nudge(&self) {
        Futex::wake_one(&self.word);
    }

    /// Sleeps until `wakeup` or the deadline; returns whether it was woken.
    ///
    /// After a false return a waker may still call `wakeup`. The sleeper must withdraw itself,
    /// under the lock that wakers take, before it reuses the note.
    pub(crate) fn sleep_until(&self, deadline_ns: u64) -> bool {
        while !self.is_set() {
            if !self.word.wait(CLEAR, Some(deadline_ns)) {
                return self.is_set();
            }
        }
        true
    }

    /// Wakes the sleeper, now or as soon as it sleeps.
    pub(crate) fn wakeup(&self) {
        let word: *const Futex = &self.word;
        // ORDER: Release; pairs with the Acquire in `is_set`: the woken thread sees what the waker
        // wrote (nextp, spinning). After this store the note may be freed, so the wake uses only
        // the address.
        self.word.0.store(SET, Release);
        Futex::wake_one(word);
    }

    /// Whether `wakeup` has happened.
    pub(crate) fn is_set(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `wakeup`.
        self.word.0.load(Acquire) == SET
    }
}
