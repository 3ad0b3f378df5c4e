//! The word of a Mutex, and of the writers' side of a RwLock: who gets it next, and who has to wake whom.
//!
//! Two modes, as Go's. *Normal*: a waiter that is woken competes with whoever comes by, and those who come by mostly win, for they
//! have a CPU already; that is what makes it fast. A waiter that lost queues first again. *Starving*: a waiter that has got
//! nothing for a millisecond says so, and from then on the lock is handed from its holder to the first waiter, and nobody else
//! takes it. It ends with the last waiter, or with one that did not wait long.
//!
//! ```text
//!  bit           set by                              cleared by                          says
//!  LOCKED        acquire                             unlock, release                     somebody has it
//!  WAITERS       queue_up †                          release †, queue_left †             somebody may be queued
//!  WOKEN         release † (for whom it wakes),      acquire and queue_up, by whoever    somebody awake wants it:
//!                announce (by one that spins)        it was set for; passed_on †         an unlock need wake nobody
//!  STARVING      queue_up †, by one that starves     release †, queue_left †,            it goes to the first waiter
//!                                                    calm_down (the holder)
//!  PASSES        acquire, one each, if WOKEN         with WOKEN                          how often others were faster
//!  the rest      the owner of the word               the owner of the word               no business of this file
//!
//!  † under the parking table's lock for this word
//! ```
//!
//! What holds, and why nobody is forgotten:
//! - STARVING only with LOCKED: it is set while somebody holds the lock, and every release either hands the lock over or
//!   clears both. So `acquire` need not look at it.
//! - Whoever is queued has set WAITERS while LOCKED was set, under the table's lock. The holder of that moment releases
//!   later, by a swap from a word with WAITERS: it wakes one, or WOKEN is set.
//! - WOKEN is set only while somebody awake will clear it: by getting the lock (then its own unlock wakes), by queueing while
//!   somebody else has it (then that one's unlock wakes), or by waking somebody else in its place (`passed_on`). Two may have set it
//!   and one clear it for both: then somebody is woken too many.
//! - Nor is somebody awake for ever if it was abandoned with its runtime: after PASSES_MAX others got the lock before it, the
//!   next unlock wakes another one.
//! - The swap that clears LOCKED, or that hands the lock over, is the last touch of the word by whoever had it.

use crate::shim::{Acquire, AtomicUsize, Relaxed, Release};

pub(crate) const LOCKED: usize = 1;
pub(crate) const WAITERS: usize = 2;
pub(crate) const WOKEN: usize = 4;
pub(crate) const STARVING: usize = 8;
/// The first bits that belong to the owner of the word.
pub(crate) const OWN: usize = 16;

const PASS: usize = 1 << 8;
const PASSES: usize = 0xFF * PASS;
/// How many may get the lock before one that was woken, until another one is woken as well.
const PASSES_MAX: usize = 250 * PASS;

/// The first bit above those that this file uses.
pub(crate) const ABOVE: usize = 1 << 16;

/// The word. Made by its owner, in a constant.
pub(crate) struct LockWord(pub(crate) AtomicUsize);

/// What a locker is, between two attempts.
#[derive(Clone, Copy, Default)]
pub(crate) struct Locker {
    /// WOKEN is set on its behalf.
    pub(crate) is_woken: bool,
    /// It has waited too long.
    pub(crate) is_starving: bool,
}

impl LockWord {
    /// Takes a lock that nobody has or wants.
    #[inline]
    pub(crate) fn lock_fast(&self) -> bool {
        // ORDER: Acquire; pairs with the Release of `unlock_fast`, `unlock` and `release` (U10).
        self.0.compare_exchange(0, LOCKED, Acquire, Relaxed).is_ok()
    }

    /// Takes the lock if none of `unless` is set (LOCKED among them) and returns what was there before; Err: what is in the way.
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
            // ORDER: as in `lock_fast`.
            match self.0.compare_exchange_weak(word, next, Acquire, Relaxed) {
                Ok(_) => return Ok(word),
                Err(found) => word = found,
            }
        }
    }

    /// One that spins asks the holder to wake nobody; true: WOKEN was set for it.
    pub(crate) fn announce(&self) -> bool {
        let word = self.0.load(Relaxed);
        word & (LOCKED | WAITERS | WOKEN | STARVING) == LOCKED | WAITERS
            && self
                .0
                .compare_exchange(word, word | WOKEN, Relaxed, Relaxed)
                .is_ok()
    }

    /// Under the table's lock: whether it is time to wait. The word then knows of a waiter.
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
            // ORDER: Relaxed; the swap of whoever unlocks fails on an older word, and the table's lock orders the queue.
            match self.0.compare_exchange_weak(word, next, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: a waiter has left the queue by itself.
    pub(crate) fn queue_left(&self, are_more: bool) {
        if !are_more {
            self.0.fetch_and(!(WAITERS | STARVING), Relaxed);
        }
    }

    /// Under the table's lock: one for whom WOKEN is set goes away; it has woken another one, or found nobody.
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

    /// Gives the lock back if nobody else wants it.
    #[inline]
    pub(crate) fn unlock_fast(&self) -> bool {
        // ORDER: Release; pairs with the Acquire of `lock_fast` and `acquire`.
        self.0.compare_exchange(LOCKED, 0, Release, Relaxed).is_ok()
    }

    /// Gives the lock back if nobody has to be woken; false: that is to be done under the table's lock, with `release`. Any of
    /// `or` is a reason to wake, too.
    pub(crate) fn unlock(&self, or: usize) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            debug_assert!(word & LOCKED != 0, "unlock of a lock that nobody has");
            if wants_waiter(word) || word & or != 0 {
                return false;
            }
            debug_assert!(word & STARVING == 0, "starving with nobody waiting");
            // ORDER: as in `unlock_fast`.
            match self
                .0
                .compare_exchange_weak(word, word & !LOCKED, Release, Relaxed)
            {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock, the holder: whether a waiter is to be popped for `release`.
    pub(crate) fn wants_waiter(&self) -> bool {
        wants_waiter(self.0.load(Relaxed))
    }

    /// Under the table's lock, the holder: gives the lock back, with one popped or none; true: it was handed over to the one
    /// that was popped. Bits of `clear` go as well.
    #[must_use = "the one that was popped must know"]
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
            // ORDER: Release; pairs with the Acquire of `lock_fast` and `acquire`. Whom it is handed to sees it by the wait's end.
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
