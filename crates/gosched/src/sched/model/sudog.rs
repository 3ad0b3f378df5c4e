//! The word of one wait: how several that could end it agree on one (G4).
//!
//! A goroutine or a plain thread that waits may be on many queues at once: a select's cases, and a timer. Whoever wants to end
//! the wait *claims* the word; one claim succeeds, everybody else leaves the waiter alone. The winner then hands over what was
//! waited for and *finishes*; after that the waiter's memory is not touched any more unless it was parked, for then it
//! stays where it is until the winner wakes it.
//!
//! ```text
//!  word           meaning                                   next
//!  PENDING        queued, not asleep yet                    waiter (commit), claimed
//!  waiter         asleep: a G, or a thread's note           claimed
//!  claimed(case)  somebody ends the wait, as this case      late(case), done(case) (finish)
//!  late(case)     claimed before it slept, asleep by now    done(case) (finish)
//!  done(case)     what was waited for is there              –
//! ```
//!
//! Nothing is held while the waiter goes to sleep, so a claim may come before the commit: the commit is refused (PK) and the
//! waiter looks until the word is done. That is a matter of a copy, but for a select's sender, which has yet to evaluate its
//! message: so a waiter that has looked for a while goes to sleep after all, and the finish says that it must be woken.

use crate::shim::{AcqRel, Acquire, AtomicUsize, Relaxed, Release};

const PENDING: usize = 0;
/// The low bits of a word that is no waiter.
const CLAIMED: usize = 0b001;
const LATE: usize = 0b101;
const DONE: usize = 0b011;
const TAG: usize = 0b111;
pub(crate) const CASE_SHIFT: u32 = 3;

/// The word; a waiter is any value above 0 with its lowest bit clear (a tagged pointer).
pub(crate) struct WaitWord(AtomicUsize);

/// What a claim found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The wait was over already.
    Over,
    /// It was ours to end; the waiter is awake and will see it.
    Awake,
    /// It was ours to end; this one sleeps and must be woken after `finish`.
    Asleep(usize),
}

impl WaitWord {
    pub(crate) fn new() -> WaitWord {
        WaitWord(AtomicUsize::new(PENDING))
    }

    /// The waiter goes to sleep; false: somebody has claimed it, it must not.
    #[must_use = "a refused waiter must not sleep"]
    #[inline]
    pub(crate) fn commit(&self, waiter: usize) -> bool {
        debug_assert!(waiter != PENDING && waiter & 1 == 0);
        // ORDER: Release; pairs with the Acquire of `claim`: the waiter's note, or its G off its stack.
        self.0
            .compare_exchange(PENDING, waiter, Release, Relaxed)
            .is_ok()
    }

    /// Ends the wait as `case`, if nobody else has.
    #[must_use = "who claims must finish"]
    #[inline]
    pub(crate) fn claim(&self, case: usize) -> Found {
        let claimed = case << CASE_SHIFT | CLAIMED;
        let mut word = self.0.load(Relaxed);
        loop {
            if word & 1 != 0 {
                return Found::Over;
            }
            // ORDER: AcqRel; pairs with the Release of `commit`, and between two that claim.
            match self.0.compare_exchange_weak(word, claimed, AcqRel, Relaxed) {
                Ok(PENDING) => return Found::Awake,
                Ok(waiter) => return Found::Asleep(waiter),
                Err(found) => word = found,
            }
        }
    }

    /// As [`WaitWord::claim`], but a waiter that sleeps and is `gone` is left to the drop of its runtime (D2).
    #[must_use = "who claims must finish"]
    #[inline]
    pub(crate) fn claim_unless(&self, case: usize, gone: impl Fn(usize) -> bool) -> Found {
        let claimed = case << CASE_SHIFT | CLAIMED;
        // ORDER: Acquire; as in `waiter`.
        let mut word = self.0.load(Acquire);
        loop {
            if word & 1 != 0 || word != PENDING && gone(word) {
                return Found::Over;
            }
            // ORDER: AcqRel; as in `claim`. Acquire on failure, as for the first load.
            match self.0.compare_exchange_weak(word, claimed, AcqRel, Acquire) {
                Ok(PENDING) => return Found::Awake,
                Ok(waiter) => return Found::Asleep(waiter),
                Err(found) => word = found,
            }
        }
    }

    /// Who sleeps, unclaimed. A look: it may change at once.
    #[inline]
    pub(crate) fn waiter(&self) -> Option<usize> {
        // ORDER: Acquire; pairs with the Release of `commit`: the G that sleeps may be read.
        let word = self.0.load(Acquire);
        (word != PENDING && word & 1 == 0).then_some(word)
    }

    /// Takes back what a waiter that never goes on was given: the word becomes done as `revoked`. Returns the case as which it was
    /// done; None: it is not done, or another caller took it back.
    #[must_use = "what was taken back must be passed on"]
    pub(crate) fn revoke(&self, revoked: usize) -> Option<usize> {
        // ORDER: Acquire; pairs with the Release of `finish`: what was handed over may be read.
        let word = self.0.load(Acquire);
        let revoked = revoked << CASE_SHIFT | DONE;
        if word & TAG != DONE || word == revoked {
            return None;
        }
        // ORDER: AcqRel; between two that revoke.
        let swapped = self.0.compare_exchange(word, revoked, AcqRel, Relaxed);
        swapped.ok().map(|word| word >> CASE_SHIFT)
    }

    /// The waiter was refused and goes to sleep until the claimer is done; false: it is.
    #[must_use = "a refused waiter must not sleep"]
    pub(crate) fn commit_late(&self) -> bool {
        let word = self.0.load(Relaxed);
        debug_assert!(word & 1 != 0 && word & TAG != LATE);
        // ORDER: Release; pairs with the Acquire of `finish_awake`: who sleeps is written down.
        word & TAG == CLAIMED
            && self
                .0
                .compare_exchange(word, word & !TAG | LATE, Release, Relaxed)
                .is_ok()
    }

    /// What was waited for is there, for a waiter that the claim found asleep: it must be woken.
    #[inline]
    pub(crate) fn finish_asleep(&self, case: usize) {
        debug_assert_eq!(self.0.load(Relaxed), case << CASE_SHIFT | CLAIMED);
        // ORDER: Release; pairs with the Acquire of `outcome`: the value that was handed over (U10).
        self.0.store(case << CASE_SHIFT | DONE, Release);
    }

    /// What was waited for is there, for a waiter that the claim found awake. True: it sleeps by now and must be woken; otherwise
    /// it may be gone.
    #[must_use = "who sleeps must be woken"]
    #[inline]
    pub(crate) fn finish_awake(&self, case: usize) -> bool {
        // ORDER: AcqRel; as in `finish_asleep`, and pairs with the Release of `commit_late`.
        let was = self.0.swap(case << CASE_SHIFT | DONE, AcqRel);
        debug_assert_eq!(was | LATE, case << CASE_SHIFT | LATE);
        was & TAG == LATE
    }

    /// The case that ended the wait, once it is done.
    #[inline]
    pub(crate) fn outcome(&self) -> Option<usize> {
        // ORDER: Acquire; pairs with the Release of `finish`.
        let word = self.0.load(Acquire);
        (word & TAG == DONE).then_some(word >> CASE_SHIFT)
    }

    /// Whether somebody has claimed it. A look: it may change at once.
    #[inline]
    pub(crate) fn is_claimed(&self) -> bool {
        self.0.load(Relaxed) & 1 != 0
    }
}
