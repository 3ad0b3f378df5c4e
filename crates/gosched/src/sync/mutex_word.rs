//! The word of a Mutex, also used for the writers of a RwLock: its bits and their transitions.
//!
//! The word decides which locker gets the lock next, and which unlock must wake a waiter. It is
//! apart from the Mutex so that loom can check it alone.
//!
//! There are two modes, as in Go:
//! - *Normal*: a woken waiter competes with lockers that are already running. Running lockers
//!   usually win, because they have a CPU. This makes the lock fast. A waiter that lost queues at
//!   the front again.
//! - *Starving*: a waiter that has waited more than a millisecond sets STARVING. From then on each
//!   unlock hands the lock to the first waiter, and no other locker can take it. The mode ends with
//!   the last waiter, or with a waiter that waited less than that.
//!
//! ```text
//!  bit       set by                        cleared by                   meaning
//!  LOCKED    acquire                       unlock, release              the lock is held
//!  WAITERS   queue_up †                    release †, queue_left †      waiters may be queued
//!  WOKEN     release † (for the waiter it  acquire and queue_up of the  an awake locker competes,
//!            wakes), announce (by a        locker that it was set for;  so an unlock need not
//!            spinning locker)              passed_on †                  wake a waiter
//!  STARVING  queue_up † of a starving      release †, queue_left †,     the lock is handed to
//!            waiter                        calm_down (the holder)       the first waiter
//!  PASSES    acquire, +1 each, if WOKEN    together with WOKEN          times that others won
//!  the rest  the owner of the word         the owner of the word        unused in this file
//!
//!  † under the parking table's lock for this word
//! ```
//!
//! Invariants, and why no waiter is lost:
//! - STARVING is set only together with LOCKED. It is set while the lock is held, and every release
//!   either hands the lock over or clears both. So `acquire` need not test it.
//! - A queued waiter has set WAITERS while LOCKED was set, under the table's lock. The holder at
//!   that moment releases later, by a swap from a word with WAITERS. So it wakes a waiter, or WOKEN
//!   is set.
//! - WOKEN is set only while an awake locker will clear it. That locker acquires the lock, and its
//!   own unlock wakes. Or it queues while the lock is held, and that holder's unlock wakes. Or it
//!   wakes a waiter in its place (`passed_on`). Two lockers may set WOKEN and one of them clear it
//!   for both: then an unlock wakes one waiter too many.
//! - The awake locker may get no P for long, in a runtime of its own. So after PASSES_MAX other
//!   lockers got the lock before it, the next unlock wakes another waiter.
//! - The swap that clears LOCKED, or that hands the lock over, is the holder's last access to the
//!   word.

use crate::shim::{Acquire, AtomicUsize, Relaxed, Release};

pub(crate) const LOCKED: usize = 1;
pub(crate) const WAITERS: usize = 2;
pub(crate) const WOKEN: usize = 4;
pub(crate) const STARVING: usize = 8;
/// The lowest bit that belongs to the owner of the word.
pub(crate) const OWN: usize = 16;

const PASS: usize = 1 << 8;
const PASSES: usize = 0xFF * PASS;
/// How many lockers may pass a woken waiter before an unlock wakes a second waiter.
const PASSES_MAX: usize = 250 * PASS;

/// The lowest bit that this file does not use.
pub(crate) const ABOVE: usize = 1 << 16;

/// The word. Its owner creates it in a constant.
pub(crate) struct LockWord(pub(crate) AtomicUsize);

/// The state of a locker between two attempts.
#[derive(Clone, Copy, Default)]
pub(crate) struct Locker {
    /// WOKEN is set on behalf of this locker.
    pub(crate) is_woken: bool,
    /// The locker has waited for more than the limit of a millisecond.
    pub(crate) is_starving: bool,
}

impl LockWord {
    /// Acquires the lock if the word is 0: free, without waiters or other bits.
    #[inline]
    pub(crate) fn lock_fast(&self) -> bool {
        // ORDER: Acquire; pairs with the Release of `unlock_fast`, `unlock` and `release` (U10).
        self.0.compare_exchange(0, LOCKED, Acquire, Relaxed).is_ok()
    }

    /// Acquires the lock if no bit of `unless` is set, and returns the word before. `unless`
    /// includes LOCKED. On failure returns the word found.
    pub(crate) fn acquire(&self, unless: usize, me: Locker) -> Result<usize, usize> {
        let mut word = self.0.load(Relaxed);
        loop {
            if word & unless != 0 {
                return Err(word);
            }
            let mut next = word | LOCKED;
            if me.is_woken {
                next &= !(WOKEN | PASSES);
            } else if word & WOKEN != 0 && word & PASSES < PASSES_MAX {
                next += PASS;
            }
            // ORDER: Acquire; pairs with the Release of `unlock_fast`, `unlock` and `release`
            // (U10).
            match self.0.compare_exchange_weak(word, next, Acquire, Relaxed) {
                Ok(_) => return Ok(word),
                Err(found) => word = found,
            }
        }
    }

    /// A spinning locker asks the holder to wake no waiter. Returns whether WOKEN was set for it.
    pub(crate) fn announce(&self) -> bool {
        let word = self.0.load(Relaxed);
        word & (LOCKED | WAITERS | WOKEN | STARVING) == LOCKED | WAITERS
            && self
                .0
                .compare_exchange(word, word | WOKEN, Relaxed, Relaxed)
                .is_ok()
    }

    /// Under the table's lock: returns whether the locker must wait. If so, WAITERS is set.
    pub(crate) fn queue_up(&self, me: Locker) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            if word & LOCKED == 0 {
                return false;
            }
            let mut next = word | WAITERS;
            if me.is_woken {
                next &= !(WOKEN | PASSES);
            }
            if me.is_starving {
                next |= STARVING;
            }
            // ORDER: Relaxed; an unlock's swap fails on an older word, and the table's lock orders
            // the queue.
            match self.0.compare_exchange_weak(word, next, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: a waiter has left the queue without a wake-up.
    pub(crate) fn queue_left(&self, are_more: bool) {
        if !are_more {
            self.0.fetch_and(!(WAITERS | STARVING), Relaxed);
        }
    }

    /// Under the table's lock: the locker for which WOKEN is set leaves. `has_woken`: it has woken
    /// a waiter in its place; else the queue was empty.
    pub(crate) fn passed_on(&self, has_woken: bool, are_more: bool) {
        if !has_woken {
            self.0.fetch_and(!(WOKEN | PASSES), Relaxed);
        }
        self.queue_left(are_more);
    }

    /// The holder ends the starving mode.
    pub(crate) fn calm_down(&self) {
        self.0.fetch_and(!STARVING, Relaxed);
    }

    /// Releases the lock if no bit but LOCKED is set. The caller holds the lock.
    #[inline]
    pub(crate) fn unlock_fast(&self) -> bool {
        // ORDER: Release; pairs with the Acquire of `lock_fast` and `acquire`.
        self.0.compare_exchange(LOCKED, 0, Release, Relaxed).is_ok()
    }

    /// Releases the lock if no waiter must be woken and no bit of `or` is set. On false the holder
    /// must use `release`, under the table's lock.
    pub(crate) fn unlock(&self, or: usize) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            debug_assert!(word & LOCKED != 0, "unlock of a lock that is not held");
            if wants_waiter(word) || word & or != 0 {
                return false;
            }
            debug_assert!(word & STARVING == 0, "STARVING without waiters");
            // ORDER: Release; pairs with the Acquire of `lock_fast` and `acquire` (U10).
            match self
                .0
                .compare_exchange_weak(word, word & !LOCKED, Release, Relaxed)
            {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock, by the holder: whether `release` needs a popped waiter.
    pub(crate) fn wants_waiter(&self) -> bool {
        wants_waiter(self.0.load(Relaxed))
    }

    /// Under the table's lock, by the holder: releases the lock. Also clears the bits of `clear`.
    /// Returns whether the lock was handed to the popped waiter.
    #[must_use = "the popped waiter must be told whether it has the lock"]
    pub(crate) fn release(&self, has_popped: bool, are_more: bool, clear: usize) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            let hands_over = has_popped && word & STARVING != 0;
            let mut next = word & !(LOCKED | WAITERS | STARVING | clear);
            if are_more {
                next |= WAITERS;
            }
            if hands_over {
                next |= LOCKED | if are_more { STARVING } else { 0 };
            } else if has_popped {
                next = next & !PASSES | WOKEN;
            }
            // ORDER: Release; pairs with the Acquire of `lock_fast` and `acquire`. A waiter that
            // the lock is handed to is ordered by the end of its wait instead.
            match self.0.compare_exchange_weak(word, next, Release, Relaxed) {
                Ok(_) => return hands_over,
                Err(found) => word = found,
            }
        }
    }
}

fn wants_waiter(word: usize) -> bool {
    let is_somebody_awake = word & WOKEN != 0 && word & PASSES < PASSES_MAX;
    word & WAITERS != 0 && (word & STARVING != 0 || !is_somebody_awake)
}
