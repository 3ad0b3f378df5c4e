//! Inside the runtime or not, and who has the P: two words of an M, and the protocol by which its P is taken away while it
//! is stuck in the kernel (D8).
//!
//! Whoever enters the runtime says so in `depth` and then looks at `word`. That is the path everybody takes all the time, so it
//! has no barrier: a store, a load, and the compiler kept from exchanging them. The *claimer* (sysmon, or the leader of a stopping
//! world, one at a time by the claim lock) pays for both sides with a barrier that every running thread passes.
//!
//! ```text
//!  the M enters                          the claimer
//!  1 depth + 1                           1 word: FREE → CLAIMED
//!  2 (the claimer's barrier) (claim/1)   2 barrier on every CPU               (claim/2)
//!  3 word FREE: go on with the P         3 depth 0, and nothing else moved:  CLAIMED → TAKING; the P is the claimer's
//!    CLAIMED: → FREE, keep the P           else:                             CLAIMED → FREE
//!    TAKING: wait for TAKEN              4 the goroutine and the P are unbound:  TAKING → TAKEN
//! ```
//!
//! Proof sketch. If the claimer reads depth 0 after its barrier, then the M's next step 1 comes after the barrier, and so its
//! step 3 sees CLAIMED or later. From there the two swaps on one word decide: either the M takes the claim back, or the claimer has
//! the P and the M knows it. A system that refuses the barrier leaves the claimer knowing nothing
//! of `depth`: its claim is off.
//!
//! ```text
//!  word     meaning                                             who leaves it
//!  FREE     nobody wants the P                                  a claimer, or the M (MARKED)
//!  CLAIMED  a claimer looks whether it may have it              whoever swaps first
//!  TAKING   the P is the claimer's                              the claimer
//!  TAKEN    the M is without a P and may not have noticed       the M, when it has one again
//!  MARKED   the M gave its P up for a blocking call (`syscall`) the M, when it has one again
//!  FORKED   this is the child of a fork: there is no runtime    nobody
//! ```

use crate::shim::{self, AcqRel, Acquire, AtomicU32, Relaxed, Release};

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const TAKING: u32 = 2;
const TAKEN: u32 = 3;
const MARKED: u32 = 4;
const FORKED: u32 = 5;

/// What an M that has entered finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// It has what it had.
    Kept,
    /// It gave its P up for a blocking call, and may find it where it left it.
    Marked,
    /// Its P was taken.
    Taken,
    /// It is all that is left of the process.
    Forked,
}

/// The two words.
pub(crate) struct Claim {
    /// How deep the thread is inside the runtime; at 0 it runs user code (D9). Written by the thread alone.
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

    /// How deep its thread is inside the runtime.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        // ORDER: Acquire; pairs with the Release in `leave`: who sees that the M has left sees what it did inside.
        self.depth.load(Acquire)
    }

    /// Enters; false: the word must be looked at (`look`). On the M's thread.
    #[inline]
    #[must_use = "something may have happened to the P"]
    pub(crate) fn enter(&self) -> bool {
        self.depth.store(self.depth.load(Relaxed) + 1, Relaxed);
        // FENCE: claim/1 — `depth` before the look at the word; meets claim/2 in `confirm`.
        shim::light_barrier();
        self.word.load(Relaxed) == FREE
    }

    /// Leaves; returns the depth that is left. On the M's thread.
    #[inline]
    pub(crate) fn leave(&self) -> u32 {
        let depth = self.depth.load(Relaxed) - 1;
        // ORDER: Release; pairs with the Acquire in `depth`.
        self.depth.store(depth, Release);
        // `depth` before the look at what was asked: who asks meanwhile and finds the M inside asks again.
        shim::light_barrier();
        depth
    }

    /// The thread begins, or ends, at this depth. It has no P: a claimer that still looks finds nothing to take.
    pub(crate) fn reset(&self, depth: u32) {
        self.depth.store(depth, Relaxed);
        // ORDER: Release; pairs with the claimer's Acquire in `begin`.
        self.word.store(FREE, Release);
    }

    /// What the word means for an M that is inside.
    pub(crate) fn look(&self) -> Found {
        // Most come back from a marked call.
        if self.word.load(Relaxed) == MARKED {
            return Found::Marked;
        }
        // ORDER: AcqRel, Acquire; pairs with the claimer's swaps and its Release in `finish`.
        match self.word.compare_exchange(CLAIMED, FREE, AcqRel, Acquire) {
            Ok(_) | Err(FREE) => Found::Kept,
            Err(MARKED) => Found::Marked,
            Err(FORKED) => Found::Forked,
            Err(_) => {
                // The claimer is between two instructions, or waits for a CPU.
                // ORDER: Acquire; pairs with the Release in `finish`: the unbinding is seen.
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
        // A claimer that is about to ask finds depth above 0, or this. ORDER: Relaxed; `leave` publishes it.
        self.word.store(MARKED, Relaxed);
    }

    /// The M has a P again. Inside.
    #[inline]
    pub(crate) fn resume(&self) {
        // ORDER: Release; pairs with the claimer's Acquire in `begin`: it sees the new P.
        self.word.store(FREE, Release);
    }

    /// Whether the M runs without a P, or is in a marked call.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `finish`. MARKED is published by the Release in `leave`.
        matches!(self.word.load(Acquire), TAKEN | MARKED)
    }

    /// Whether its P was taken and it has not come back.
    pub(crate) fn is_taken(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `finish`: the unbinding is seen.
        self.word.load(Acquire) == TAKEN
    }

    /// Whether it is in a marked call.
    pub(crate) fn is_marked(&self) -> bool {
        // ORDER: Acquire, as above; `depth` pairs with the Release in `leave`, which publishes MARKED.
        self.word.load(Acquire) == MARKED && self.depth() == 0
    }

    /// The calling thread is the only one of a new process.
    pub(crate) fn set_forked(&self) {
        self.word.store(FORKED, Relaxed);
    }

    /// Asks for the P; false: there is none to be had. The claimer, who must `confirm`.
    #[must_use = "a claim must be confirmed"]
    pub(crate) fn begin(&self) -> bool {
        // ORDER: AcqRel; success sees what the M did before it became FREE, the M's `look` sees ours.
        self.word
            .compare_exchange(FREE, CLAIMED, AcqRel, Relaxed)
            .is_ok()
    }

    /// Takes the P if the M is outside the runtime and `is_same` says that nothing has moved (it reads atomics only: the M may be
    /// coming in); the claimer then unbinds P and goroutine and calls `finish`. False: the claim is off.
    #[must_use = "the winner must finish"]
    pub(crate) fn confirm(&self, is_same: impl FnOnce() -> bool) -> bool {
        // FENCE: claim/2 — CLAIMED before the look at `depth`; meets claim/1 in `enter`.
        let has_passed = shim::heavy_barrier();
        let next = if has_passed && self.depth() == 0 && is_same() {
            TAKING
        } else {
            FREE
        };
        // ORDER: AcqRel; pairs with the M's in `look`.
        let swapped = self
            .word
            .compare_exchange(CLAIMED, next, AcqRel, Relaxed)
            .is_ok();
        swapped && next == TAKING
    }

    /// All that belonged to the M is unbound.
    pub(crate) fn finish(&self) {
        // ORDER: Release; pairs with the Acquire in `look`.
        self.word.store(TAKEN, Release);
    }
}
