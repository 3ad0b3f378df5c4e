//! The timer fields of a goroutine and a P: the goroutine's word, the P's heap, how often it
//! checks.
//!
//! `sched/sources/timers.rs` has the protocol.

pub(crate) mod heap;

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::base::lock::{Lock, Rank};
use crate::sched::model::ptr::Gp;
use crate::sched::model::timer::heap::Heap;
use crate::sched::model::word::Plain;

/// In `G::timer_p`: in no heap.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Claims the wake-up of a goroutine whose deadline has passed; returns false if another thread has
/// claimed it.
pub(crate) type Claim = unsafe fn(Gp) -> bool;

/// A goroutine's timer word: its deadline on the way into a wait; while in a heap, how to claim its
/// wake-up.
#[derive(Clone, Copy)]
pub(crate) union TimerWord {
    pub(in crate::sched) when: u64,
    pub(in crate::sched) claim: Claim,
}

// SAFETY: both fields are 8 bytes and may be sent to another thread.
unsafe impl Plain for TimerWord {}

#[repr(align(128))]
pub(crate) struct PTimers {
    pub(in crate::sched) heap: Lock<Heap>,
    pub(in crate::sched) next: AtomicU64,
    /// When the P's own M last checked; for sysmon.
    looked_ns: AtomicU64,
}

/// How often a busy P reads the clock to check its timers; only its holder uses it.
pub(crate) struct Pace {
    /// Turns until the next check, and from one check to the next.
    left: Cell<u32>,
    turns: Cell<u32>,
}

/// A busy P should check at intervals of about this length. It counts turns, because a count costs
/// nothing.
const LOOK_MIN_NS: u64 = 4_000;
const LOOK_MAX_NS: u64 = 16_000;
const TURNS_MAX: u32 = 16;

impl Pace {
    pub(crate) const fn new() -> Pace {
        Pace {
            left: Cell::new(0),
            turns: Cell::new(1),
        }
    }

    /// One more turn of a busy P; returns whether it should check now.
    #[inline]
    pub(crate) fn is_time(&self) -> bool {
        match self.left.get().checked_sub(1) {
            Some(left) => {
                self.left.set(left);
                false
            }
            None => true,
        }
    }

    /// The P has checked, `since_ns` after the last check.
    fn looked(&self, since_ns: u64) {
        let turns = self.turns.get();
        if since_ns < LOOK_MIN_NS {
            self.turns.set((turns * 2).min(TURNS_MAX));
        } else if since_ns > LOOK_MAX_NS {
            self.turns.set((turns / 2).max(1));
        }
        self.left.set(self.turns.get() - 1);
    }
}

impl PTimers {
    pub(crate) fn new() -> PTimers {
        PTimers {
            heap: Lock::new(Rank::Timers, Heap::new()),
            next: AtomicU64::new(u64::MAX),
            looked_ns: AtomicU64::new(0),
        }
    }

    /// The earliest deadline; `u64::MAX` if there is none.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next.load(Relaxed)
    }

    pub(crate) fn looked_ns(&self) -> u64 {
        self.looked_ns.load(Relaxed)
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.lock().len()
    }

    /// The P's own M has read the clock. Only the holder calls this.
    pub(crate) fn note_look(&self, pace: &Pace, now: u64) {
        pace.looked(now.saturating_sub(self.looked_ns.load(Relaxed)));
        self.looked_ns.store(now, Relaxed);
    }
}
