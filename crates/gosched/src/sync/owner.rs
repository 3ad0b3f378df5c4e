//! Who holds a lock: one word beside it, for dumps and for the search for cycles.
//!
//! The holder writes it after it has got the lock and clears it before it gives the lock away, so that a stale name is never
//! there: at worst nobody's. It orders nothing and nobody decides anything by it but what is printed.
//!
//! Ids are unique within a runtime only, so the word has both: the runtime's number above, the goroutine's id below.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::context::current_g;

/// Bits of the goroutine's id; at a billion goroutines a second they last three days, at ten million most of a year.
const ID_BITS: u32 = 48;

/// The word; 0: nobody, or a plain thread.
pub(crate) struct Owner(AtomicU64);

impl Owner {
    pub(super) const fn new() -> Owner {
        Owner(AtomicU64::new(0))
    }

    /// The calling goroutine has the lock now.
    #[inline]
    pub(super) fn set(&self) {
        if let Some(g) = current_g() {
            let runtime = u64::from(g.sched().id) << ID_BITS;
            self.0.store(runtime | g.id(), Relaxed);
        }
    }

    /// The lock is about to be given away.
    #[inline]
    pub(super) fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    pub(super) fn word(&self) -> *const AtomicU64 {
        &self.0
    }
}
