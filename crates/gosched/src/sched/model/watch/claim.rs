//! Two words of an M: how deep its thread is inside the runtime, and whether it still has its P. By
//! them a P is taken from an M that is blocked in the kernel (D8).
//!
//! Every entry into the runtime stores `depth` and then loads `word`. Entries are frequent, so they
//! have no barrier: a store, a load, and the compiler kept from reordering them. The *claimer* is
//! sysmon or the leader of a stopping world, one at a time by the claim lock. It pays for both
//! sides, with a barrier on every CPU.
//!
//! ```text
//!  the M enters                          the claimer
//!  1 depth + 1                           1 word: FREE → CLAIMED
//!  2 compiler fence only     (claim/1)   2 barrier on every CPU                (claim/2)
//!  3 word FREE: keep the P               3 depth 0, and the same P and slice:
//!    CLAIMED: → FREE, keep the P             CLAIMED → TAKING; the claimer has the P
//!    TAKING: wait for TAKEN                else: CLAIMED → FREE
//!                                        4 unbind goroutine and P: TAKING → TAKEN
//! ```
//!
//! Proof sketch. Suppose the claimer reads depth 0 after its barrier. Then the M's next step 1
//! comes after the barrier, and its step 3 sees CLAIMED or later. From there two swaps on one word
//! decide. Either the M takes the claim back, or the claimer has the P and the M finds out. If the
//! system refuses the barrier, the claimer knows nothing of `depth`, and its claim is off.
//!
//! The proof needs a barrier between the first and the third step, not one for each M. So a claimer
//! begins many claims, makes one barrier, and confirms each: the barrier interrupts every CPU.
//!
//! ```text
//!  word     meaning                                          leaves the state
//!  FREE     no claim                                         a claimer, or the M (to MARKED)
//!  CLAIMED  a claimer checks whether it may take the P       the first swap, by either
//!  TAKING   the claimer has the P                            the claimer
//!  TAKEN    the M has no P and may not know it               the M, once it has a P again
//!  MARKED   the M gave its P up for a call (`syscall`)       the M, once it has a P again
//!  FORKED   the child of a fork: there is no runtime         no thread
//! ```

use crate::shim::{self, AcqRel, Acquire, AtomicU32, Relaxed, Release};

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const TAKING: u32 = 2;
const TAKEN: u32 = 3;
const MARKED: u32 = 4;
const FORKED: u32 = 5;

/// What an M finds when it has entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// It has the P that it had.
    Kept,
    /// It gave its P up for a marked call, and may still get that P back.
    Marked,
    Taken,
    /// It is the only thread of a forked child.
    Forked,
}

pub(crate) struct Claim {
    /// The thread's depth inside the runtime; at 0 it runs user code (D9). Only the thread writes
    /// it.
    depth: AtomicU32,
    word: AtomicU32,
}

impl Claim {
    pub(crate) fn new() -> Claim {
        Claim {
            depth: AtomicU32::new(0),
            word: AtomicU32::new(FREE),
        }
    }

    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        // ORDER: Acquire; pairs with the Release in `leave`: a thread that reads 0 sees what the M
        // did inside.
        self.depth.load(Acquire)
    }

    /// Enters. False: the caller must look at the word (`look`). On the M's thread.
    #[inline]
    #[must_use = "something may have happened to the P"]
    pub(crate) fn enter(&self) -> bool {
        self.depth.store(self.depth.load(Relaxed) + 1, Relaxed);
        // FENCE: claim/1 — `depth` before the load of the word; meets claim/2 in `barrier`.
        shim::light_barrier();
        self.word.load(Relaxed) == FREE
    }

    /// Leaves; returns the depth that remains. On the M's thread.
    #[inline]
    pub(crate) fn leave(&self) -> u32 {
        let depth = self.depth.load(Relaxed) - 1;
        // ORDER: Release; pairs with the Acquire in `depth`.
        self.depth.store(depth, Release);
        // `depth` before the load of `asked`. A thread that asks in between and finds the M inside
        // asks again.
        shim::light_barrier();
        depth
    }

    /// The thread begins, or ends, at this depth. It has no P, so a claimer finds nothing to take.
    pub(crate) fn reset(&self, depth: u32) {
        self.depth.store(depth, Relaxed);
        // ORDER: Release; pairs with the claimer's Acquire in `begin`.
        self.word.store(FREE, Release);
    }

    /// What the word means for an M that has entered.
    pub(crate) fn look(&self) -> Found {
        // The most frequent case.
        if self.word.load(Relaxed) == MARKED {
            return Found::Marked;
        }
        // ORDER: AcqRel, Acquire; pairs with the claimer's swaps and its Release in `finish`.
        match self.word.compare_exchange(CLAIMED, FREE, AcqRel, Acquire) {
            Ok(_) | Err(FREE) => Found::Kept,
            Err(MARKED) => Found::Marked,
            Err(FORKED) => Found::Forked,
            Err(_) => {
                // The claimer is about to finish.
                // ORDER: Acquire; pairs with the Release in `finish`: the M sees the unbinding.
                while self.word.load(Acquire) != TAKEN {
                    shim::yield_thread();
                }
                Found::Taken
            }
        }
    }

    /// The M gives its P up by itself. Inside, with a P.
    #[inline]
    pub(crate) fn mark(&self) {
        // A claimer that is about to begin finds MARKED, or a depth above 0.
        // ORDER: Relaxed; the Release in `leave` publishes it.
        self.word.store(MARKED, Relaxed);
    }

    /// The M has a P again. Inside.
    #[inline]
    pub(crate) fn resume(&self) {
        // ORDER: Release; pairs with the claimer's Acquire in `begin`, which then sees the new P.
        self.word.store(FREE, Release);
    }

    /// Whether the M runs without a P, or is in a marked call.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `finish`. The Release in `leave` publishes
        // MARKED.
        matches!(self.word.load(Acquire), TAKEN | MARKED)
    }

    /// Whether its P was taken and it has not come back.
    pub(crate) fn is_taken(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `finish`: the caller sees the unbinding.
        self.word.load(Acquire) == TAKEN
    }

    pub(crate) fn is_marked(&self) -> bool {
        // ORDER: Acquire; `depth` pairs with the Release in `leave`, which publishes MARKED.
        self.word.load(Acquire) == MARKED && self.depth() == 0
    }

    /// Called in the child of a fork, by its only thread.
    pub(crate) fn set_forked(&self) {
        self.word.store(FORKED, Relaxed);
    }

    /// Begins a claim; the claimer must `confirm` it. False: there is no P to take.
    #[must_use = "a claim must be confirmed"]
    pub(crate) fn begin(&self) -> bool {
        // ORDER: AcqRel; pairs with the Release that stored FREE and with the swap in `look`.
        self.word
            .compare_exchange(FREE, CLAIMED, AcqRel, Relaxed)
            .is_ok()
    }

    /// Takes the P if the M is outside the runtime and `is_same` finds that nothing changed. Then
    /// the claimer unbinds P and goroutine and calls `finish`. False: the claim is off.
    /// `has_passed`: the [`barrier`] after `begin` was made.
    ///
    /// `is_same` reads atomics only, because the M may be entering.
    #[must_use = "the winner must finish"]
    pub(crate) fn confirm(&self, has_passed: bool, is_same: impl FnOnce() -> bool) -> bool {
        let next = if has_passed && self.depth() == 0 && is_same() {
            TAKING
        } else {
            FREE
        };
        // ORDER: AcqRel; pairs with the swap in `look`.
        let swapped = self
            .word
            .compare_exchange(CLAIMED, next, AcqRel, Relaxed)
            .is_ok();
        swapped && next == TAKING
    }

    /// The claimer has unbound goroutine and P.
    pub(crate) fn finish(&self) {
        // ORDER: Release; pairs with the Acquire in `look`.
        self.word.store(TAKEN, Release);
    }
}

/// The claimer's barrier, between the `begin` and the `confirm` of every claim that it serves.
/// False: the system refuses it, and these claims are off.
#[must_use = "without the barrier no claim may be confirmed"]
pub(crate) fn barrier() -> bool {
    // FENCE: claim/2 — CLAIMED before the load of `depth`; meets claim/1 in `enter`.
    shim::heavy_barrier()
}
