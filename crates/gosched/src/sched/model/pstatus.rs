//! The status word of a P.
//!
//! ```text
//!  status   where it is                            who may change it
//!  Idle     the idle list, or on its way to an M   the holder of the scheduler lock
//!  Running  bound to an M (P1)                     that M; a claimer that has confirmed its claim
//!  Syscall  left behind by an M in a marked call   whoever wins the swap: that M, sysmon, who needs a P, the leader (P3)
//!  GcStop   the stopped world (P4)                 the leader
//!  Dead     beyond GOMAXPROCS (P5)                 the leader, when growing again
//! ```

use crate::shim::{AcqRel, Acquire, AtomicU32, Relaxed, Release};

/// What a P is doing. The numbers are Go's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum PStatus {
    Idle = 0,
    Running = 1,
    Syscall = 2,
    GcStop = 3,
    Dead = 4,
}

/// A P's atomic status.
pub(crate) struct PStatusWord(AtomicU32);

impl PStatusWord {
    pub(crate) fn new(status: PStatus) -> PStatusWord {
        PStatusWord(AtomicU32::new(status as u32))
    }

    #[inline]
    pub(crate) fn get(&self) -> PStatus {
        // ORDER: Acquire; pairs with the Release in `set`.
        match self.0.load(Acquire) {
            0 => PStatus::Idle,
            1 => PStatus::Running,
            2 => PStatus::Syscall,
            3 => PStatus::GcStop,
            _ => PStatus::Dead,
        }
    }

    /// Whoever may change it does.
    #[inline]
    pub(crate) fn set(&self, status: PStatus) {
        // ORDER: Release; pairs with the Acquire of whoever takes the P next: its queue and caches come along.
        self.0.store(status as u32, Release);
    }

    /// Takes a P that a marked call left behind; one of those who try gets it.
    #[inline]
    #[must_use = "the winner has a P in its hands"]
    pub(crate) fn retake(&self, to: PStatus) -> bool {
        // ORDER: AcqRel; pairs with the Release in `set` and with the next owner's Acquire.
        self.0
            .compare_exchange(PStatus::Syscall as u32, to as u32, AcqRel, Relaxed)
            .is_ok()
    }
}
