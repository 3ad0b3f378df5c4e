//! The counters of Ms that search for work. They guarantee that no runnable goroutine is left with
//! an idle P and no M that searches (WK, L1).
//!
//! A *spinning* M holds a P, has found its queues empty and searches the others'. A *submitter* has
//! just made a goroutine runnable.
//!
//! ```text
//!  submit                          stop spinning
//!  1 enqueue the goroutine         1 drop the P, then nmspinning − 1
//!  2 full barrier        (wake/1)  2 full barrier             (wake/2)
//!  3 if nmspinning == 0:           3 look at every queue again; work and an idle P:
//!    swap 0 → 1, start an M          spin again
//! ```
//!
//! Proof sketch. The two barriers are totally ordered. If the submitter's is first, the re-check of
//! the stopping M sees the goroutine. If it is second, the submitter sees the decrement. Either it
//! finds 0 and wakes an M, or another M still spins, and the same argument holds for that M. Every
//! spinner re-checks, not only the last one: a submitter's transient 0 → 1 → 0 (no idle P) may hide
//! which one is last.
//!
//! `need` closes the second race. A submitter that finds no idle P must not take a lock to record
//! that. A P that goes idle at that moment must not miss it.
//!
//! ```text
//!  submit, no idle P               a P goes idle
//!  1 enqueue, barrier    (wake/1)  1 npidle + 1
//!  2 need = 1, barrier   (need/1)  2 full barrier             (need/2)
//!  3 if npidle == 0: done,         3 if need: wake a P as a submitter does,
//!    else wake as above              or spin
//! ```
//!
//! Again one of the two sees the other. Only an M that begins to spin clears `need`, before it
//! looks at any queue. A submitter that found `need` set before that enqueued before that, so the
//! spinner finds the goroutine.

use crate::shim::{self, AtomicBool, AtomicU32, Relaxed, SeqCst};

/// The count of spinning Ms, whether a wake found no idle P, and the count of idle Ps. A wake-up
/// reads all three and mostly changes two: they share a cache line.
pub(crate) struct Spin {
    spinning: AtomicU32,
    need: AtomicU32,
    /// The length of the idle list; changed under the scheduler lock.
    pub(crate) npidle: AtomicU32,
}

/// Proof that an M is counted in `nmspinning`. It ends in [`Spin::end`], or moves into the
/// [`SpinningSlot`] of an M or a P.
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

/// Where an M keeps its [`Spinning`], and a pending P that of its next M.
pub(crate) struct SpinningSlot(AtomicBool);

impl SpinningSlot {
    pub(crate) fn new() -> SpinningSlot {
        SpinningSlot(AtomicBool::new(false))
    }

    // ORDER: Relaxed; the slot has one user at a time. The note or the lock that hands the M or the
    // P on orders the accesses.
    #[inline]
    pub(crate) fn put(&self, spinning: Option<Spinning>) {
        self.0.store(spinning.is_some(), Relaxed);
        std::mem::forget(spinning);
    }

    #[inline]
    pub(crate) fn take(&self) -> Option<Spinning> {
        if !self.is_set() {
            return None;
        }
        self.0.store(false, Relaxed);
        Some(Spinning(()))
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
            npidle: AtomicU32::new(0),
        }
    }

    /// Go's `nmspinning`.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.spinning.load(SeqCst)
    }

    /// Whether a wake found no idle P since an M last began to spin. A thread that puts a P on the
    /// idle list looks here afterwards, behind a barrier (need/2).
    #[inline]
    pub(crate) fn is_needed(&self) -> bool {
        self.need.load(SeqCst) != 0
    }

    /// A wake found no idle P. Includes the barrier need/1, so the caller looks for an idle P
    /// again.
    #[inline]
    pub(crate) fn set_needed(&self) {
        // If it is set already: an M that clears it does so before it looks at the queues.
        if self.need.load(SeqCst) == 0 {
            self.need.store(1, SeqCst);
            // FENCE: need/1 — `need` before the second look at the idle Ps; meets need/2 in
            // `idle_p_added`.
            shim::fence(SeqCst);
        }
    }

    /// Whether a P is idle. If none is, sets `need` and looks again (need/1).
    #[inline]
    pub(crate) fn has_idle_p_or_sets_need(&self) -> bool {
        if self.npidle.load(SeqCst) != 0 {
            return true;
        }
        self.set_needed();
        self.npidle.load(SeqCst) != 0
    }

    /// Whether no M spins: the cheap half of `claim_wake`.
    #[inline]
    pub(crate) fn has_no_spinner(&self) -> bool {
        self.spinning.load(SeqCst) == 0
    }

    /// The submitter's step 3, after its barrier (wake/1). The winner must start a spinning M,
    /// which is counted already.
    #[inline]
    pub(crate) fn claim_wake(&self) -> Option<Spinning> {
        self.spinning
            .compare_exchange(0, 1, SeqCst, Relaxed)
            .is_ok()
            .then(|| Spinning(()))
    }

    /// One more M spins, by its own decision or because it is needed.
    #[inline]
    pub(crate) fn begin(&self) -> Spinning {
        self.spinning.fetch_add(1, SeqCst);
        if self.need.load(Relaxed) != 0 {
            self.need.store(0, SeqCst);
            // FENCE: need/3 — the clearing before the search of the queues; meets wake/1 in
            // `submitted`.
            shim::fence(SeqCst);
        }
        Spinning(())
    }

    /// One M stops spinning. Includes the barrier wake/2, so the caller looks at the queues
    /// afterwards.
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

/// The same after an enqueue that ended in a read-modify-write (`next`, a lock's release).
#[inline]
pub(crate) fn submitted_by_rmw() {
    // FENCE: wake/1 — as in `submitted`; free where the read-modify-write is a barrier itself.
    shim::fence_after_rmw();
}

/// The barrier between a P's way to the idle list (a read-modify-write) and the load of `need`.
#[inline]
pub(crate) fn idle_p_added() {
    // FENCE: need/2 — the count of idle Ps before the load of `need`; meets need/1 in `set_needed`.
    shim::fence_after_rmw();
}
