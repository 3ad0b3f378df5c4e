//! Counts the events in one direction of a descriptor.
//!
//! By the count a goroutine notices an event that came before it waits.
//!
//! ```text
//!  seq   changes with every event of that direction. A reader loads it before it tries, and waits
//!        only if seq has not changed since. It compares under the slot's lock, which the event
//!        takes too, so no event is missed
//!  ODD   the lowest bit of seq, once set for good: the descriptor has reported more than data
//!  dry   the seq before a read that emptied the descriptor: while both are equal, a read need not
//!        be tried
//! ```

use crate::shim::{Acquire, AtomicU32, Relaxed, Release};

/// In `seq`: the descriptor has reported more than data.
const ODD: u32 = 1;
const STEP: u32 = 2;
/// A `dry` that equals no `seq` of a descriptor that could be dry.
const NOT_DRY: u32 = ODD;

/// The events of one direction, counted.
pub(super) struct Changes {
    seq: AtomicU32,
    dry: AtomicU32,
}

impl Changes {
    pub(super) fn new() -> Changes {
        Changes {
            seq: AtomicU32::new(0),
            dry: AtomicU32::new(NOT_DRY),
        }
    }

    /// Resets the counts for the next descriptor. Under the slot's lock.
    pub(super) fn reset(&self) {
        self.seq.store(0, Relaxed);
        self.dry.store(NOT_DRY, Relaxed);
    }

    /// The count, to be loaded before an operation is tried.
    #[inline]
    pub(super) fn seq(&self) -> u32 {
        // ORDER: Acquire; pairs with the Release in `happened`. The operation that follows is not
        // moved before this load.
        self.seq.load(Acquire)
    }

    /// Whether a read emptied the descriptor and no event has come since.
    #[inline]
    pub(super) fn is_dry(&self, seq: u32) -> bool {
        seq & ODD == 0 && self.dry.load(Relaxed) == seq
    }

    /// A read that began at `seq` has emptied the descriptor.
    #[inline]
    pub(super) fn set_dry(&self, seq: u32) {
        self.dry.store(seq, Relaxed);
    }

    /// Counts an event. `is_odd`: the descriptor reports more than data. Under the slot's lock.
    pub(super) fn happened(&self, is_odd: bool) {
        let odd = if is_odd { ODD } else { 0 };
        let seq = self.seq.load(Relaxed).wrapping_add(STEP) | odd;
        // ORDER: Release; pairs with the Acquire in `seq`.
        self.seq.store(seq, Release);
    }
}
