//! The status word of a P.
//!
//! ```text
//!  status   where it is                             may change it
//!  Idle     the idle list, or on its way to an M    the holder of the scheduler lock
//!  Running  bound to an M (P1)                      that M; a claimer that confirmed its claim
//!  Syscall  left behind by an M in a marked call    the winner of the swap: that M, sysmon,
//!                                                   an M that needs a P, the leader (P3)
//!  GcStop   in the stopped world (P4)               the leader
//!  Dead     beyond GOMAXPROCS (P5)                  the leader, when GOMAXPROCS grows
//! ```

use crate::shim::{AcqRel, Acquire, AtomicU32, Relaxed, Release};

/// The state of a P. The numbers are Go's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum PStatus {
    Idle = 0,
    Running = 1,
    Syscall = 2,
    GcStop = 3,
    Dead = 4,
}

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

    /// The caller may leave the present state, by the table above.
    #[inline]
    pub(crate) fn set(&self, status: PStatus) {
        // ORDER: Release; pairs with the Acquire of the P's next owner, which gets its queue and
        // caches.
        self.0.store(status as u32, Release);
    }

    /// Takes a P that a marked call left behind. One of the threads that try gets it.
    #[inline]
    #[must_use = "the winner has a P in its hands"]
    pub(crate) fn retake(&self, to: PStatus) -> bool {
        // ORDER: AcqRel; pairs with the Release in `set` and with the next owner's Acquire.
        self.0
            .compare_exchange(PStatus::Syscall as u32, to as u32, AcqRel, Relaxed)
            .is_ok()
    }
}
