//! The count of changes in one direction of a descriptor, by which nobody waits for what has already happened.
//!
//! ```text
//!  seq   changes with every event of that direction; who finds nothing to read looks at it before it tries, and waits only
//!        if it has not changed since (under the slot's lock, which the event takes too): no event is missed
//!  ODD   the lowest bit of seq, for good: the descriptor has more to tell than that there is data
//!  dry   the seq before a read that emptied the descriptor: while they are equal a read need not be tried
//! ```

use crate::shim::{Acquire, AtomicU32, Relaxed, Release};

/// In `seq`: there is more to tell than that there is data.
const ODD: u32 = 1;
/// One event.
const STEP: u32 = 2;
/// A `dry` that equals no `seq` of a descriptor that could be dry.
const NOT_DRY: u32 = ODD;

/// What has changed, counted.
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

    /// For the next descriptor. Under the slot's lock.
    pub(super) fn reset(&self) {
        self.seq.store(0, Relaxed);
        self.dry.store(NOT_DRY, Relaxed);
    }

    /// To be read before an operation is tried.
    #[inline]
    pub(super) fn seq(&self) -> u32 {
        // ORDER: Acquire; pairs with the Release in `happened`: what is tried afterwards is not tried before.
        self.seq.load(Acquire)
    }

    /// Whether a read emptied the descriptor and nothing has happened since.
    #[inline]
    pub(super) fn is_dry(&self, seq: u32) -> bool {
        seq & ODD == 0 && self.dry.load(Relaxed) == seq
    }

    /// A read that began at `seq` has emptied the descriptor.
    #[inline]
    pub(super) fn set_dry(&self, seq: u32) {
        self.dry.store(seq, Relaxed);
    }

    /// An event, and whether there is more to tell than that there is data. Under the slot's lock.
    pub(super) fn happened(&self, is_odd: bool) {
        let odd = if is_odd { ODD } else { 0 };
        let seq = self.seq.load(Relaxed).wrapping_add(STEP) | odd;
        // ORDER: Release; pairs with the Acquire in `seq`.
        self.seq.store(seq, Release);
    }
}
