//! Who is looking for work: the counters behind "no runnable goroutine is left with an idle P and
//! nobody looking" (WK, L1).
//!
//! Words. A *spinning* M holds a P, has found its queues empty and searches the others'. A *submitter*
//! has just made a goroutine runnable.
//!
//! ```text
//!  submit                          stop spinning
//!  1 enqueue the goroutine         1 drop the P, then nmspinning − 1
//!  2 full barrier        (wake/1)  2 full barrier             (wake/2)
//!  3 if nmspinning == 0:           3 look at every queue again; found work and an idle P:
//!    swap 0 → 1, start an M          become spinning again
//! ```
//!
//! Proof sketch. The two barriers are totally ordered. If the submitter's comes first, the stopping M's
//! re-check sees the goroutine. If it comes second, the submitter sees the decrement, so either it finds 0
//! and wakes somebody, or somebody else still spins, and the same argument holds for that one. Every
//! spinner re-checks, not only the last: a submitter's transient 0 → 1 → 0 (no idle P) may hide who the
//! last one is.
//!
//! `need` closes the second race: a submitter that finds no idle P must not take a lock to say so, and a P that
//! goes idle right then must not miss it.
//!
//! ```text
//!  submit, no idle P               a P goes idle
//!  1 enqueue, barrier    (wake/1)  1 npidle + 1
//!  2 need = 1, barrier   (need/1)  2 full barrier             (need/2)
//!  3 if npidle == 0: done,         3 if need: wake a P as a submitter does,
//!    else wake as above              or become spinning
//! ```
//!
//! Again one of the two sees the other. `need` is cleared only by an M that begins to spin, before it looks at any
//! queue: who found it set before that enqueued before that, so the spinner finds the work.

use crate::shim::{self, AtomicBool, AtomicU32, Relaxed, SeqCst};

/// Counts of spinning Ms and of wakes that found no idle P.
pub(crate) struct Spin {
    spinning: AtomicU32,
    need: AtomicU32,
}

/// Proof that an M is counted in `nmspinning`. It ends in [`Spin::end`], or moves into the
/// [`SpinningSlot`] of the M or P that it was given to.
#[must_use = "counted as a spinning M: start one, or end the count"]
pub(crate) struct Spinning(());

impl Drop for Spinning {
    fn drop(&mut self) {
        debug_assert!(
            std::thread::panicking(),
            "I6: an M stays counted in nmspinning"
        );
    }
}

/// Where an M keeps its [`Spinning`], and a P that waits for a thread the one for its next M.
pub(crate) struct SpinningSlot(AtomicBool);

impl SpinningSlot {
    pub(crate) fn new() -> SpinningSlot {
        SpinningSlot(AtomicBool::new(false))
    }

    // ORDER: Relaxed; the slot has one user at a time, and the note or the lock that hands the M or
    // the P on orders the accesses.
    #[inline]
    pub(crate) fn put(&self, spinning: Option<Spinning>) {
        self.0.store(spinning.is_some(), Relaxed);
        std::mem::forget(spinning);
    }

    #[inline]
    pub(crate) fn take(&self) -> Option<Spinning> {
        let is_spinning = self.is_set();
        self.0.store(false, Relaxed);
        is_spinning.then(|| Spinning(()))
    }

    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl Spin {
    pub(crate) fn new() -> Spin {
        Spin {
            spinning: AtomicU32::new(0),
            need: AtomicU32::new(0),
        }
    }

    /// Go's `nmspinning`.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.spinning.load(SeqCst)
    }

    /// Whether a wake found no idle P since anybody last became spinning. Whoever puts a P on the idle list looks here
    /// afterwards, behind a barrier (need/2).
    #[inline]
    pub(crate) fn is_needed(&self) -> bool {
        self.need.load(SeqCst) != 0
    }

    /// A wake found no idle P; includes the barrier need/1, so the caller looks for an idle P once more.
    #[inline]
    pub(crate) fn set_needed(&self) {
        // Set already: whoever cleared it since would have done so before looking at the queues.
        if self.need.load(SeqCst) == 0 {
            self.need.store(1, SeqCst);
            // FENCE: need/1 — `need` before the second look at the idle Ps; meets need/2 in `idle_p_added`.
            shim::fence(SeqCst);
        }
    }

    /// Whether a P is idle, of which `npidle` is the number; if not, `need` is set before a second
    /// look, and the next P to go idle finds it (need/1).
    #[inline]
    pub(crate) fn has_idle_p_or_sets_need(&self, npidle: &AtomicU32) -> bool {
        if npidle.load(SeqCst) != 0 {
            return true;
        }
        self.set_needed();
        npidle.load(SeqCst) != 0
    }

    /// Whether nobody spins: the cheap half of `claim_wake`.
    #[inline]
    pub(crate) fn is_nobody_spinning(&self) -> bool {
        self.spinning.load(SeqCst) == 0
    }

    /// The submitter's step 3: the winner must start a spinning M, which has been counted.
    /// The caller has passed its barrier (wake/1) after the enqueue.
    #[inline]
    pub(crate) fn claim_wake(&self) -> Option<Spinning> {
        self.spinning
            .compare_exchange(0, 1, SeqCst, Relaxed)
            .is_ok()
            .then(|| Spinning(()))
    }

    /// One more M spins (a self-promotion, or one that was found needed).
    #[inline]
    pub(crate) fn begin(&self) -> Spinning {
        self.spinning.fetch_add(1, SeqCst);
        if self.need.load(Relaxed) != 0 {
            self.need.store(0, SeqCst);
            // FENCE: need/3 — the clearing before the search of the queues; meets wake/1.
            shim::fence(SeqCst);
        }
        Spinning(())
    }

    /// One M stops spinning; includes the barrier wake/2, so the caller looks at the queues afterwards.
    #[inline]
    pub(crate) fn end(&self, spinning: Spinning) {
        std::mem::forget(spinning);
        let before = self.spinning.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "I6: nmspinning went below zero");
        // FENCE: wake/2 — the decrement before the re-check; meets wake/1 in `submitted`.
        shim::fence_after_rmw();
    }
}

/// The submitter's barrier after an enqueue that ended in a plain store (a ring's tail).
#[inline]
pub(crate) fn submitted() {
    // FENCE: wake/1 — the enqueue before the look at `spinning`; meets wake/2 in `Spin::end`.
    shim::fence(SeqCst);
}

/// The submitter's barrier after an enqueue that ended in a read-modify-write (`next`, a lock's release).
#[inline]
pub(crate) fn submitted_by_rmw() {
    // FENCE: wake/1 — as above, at no cost where the read-modify-write is a barrier itself.
    shim::fence_after_rmw();
}

/// The barrier of a P that has gone idle (a read-modify-write), before the look at `need`.
#[inline]
pub(crate) fn idle_p_added() {
    // FENCE: need/2 — the count of idle Ps before the look at `need`; meets need/1 in `Spin::set_needed`.
    shim::fence_after_rmw();
}
