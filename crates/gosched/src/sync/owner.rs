//! Who holds a lock: one word beside it, for dumps and for the search for cycles.
//!
//! The holder writes it after it has got the lock and clears it before it gives the lock away, so that a stale name is never
//! there: at worst nobody's. It orders nothing and nobody decides anything by it but what is printed, and who is leaked.
//!
//! Ids are unique within a runtime only, so the word has both: the runtime's number above, the goroutine's id below.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::sched::model::current::current_g;
use crate::sched::runtimes_made;

/// Bits of the goroutine's id; at a billion goroutines a second they last three days, at ten million most of a year.
const ID_BITS: u32 = 48;

/// Runtimes that the rest of the word can tell apart.
const RUNTIMES_MAX: u32 = 1 << (u64::BITS - ID_BITS);

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

/// Whom an owner's word names: (runtime, goroutine). None where nobody is, or where there were too many runtimes to tell.
///
/// # Safety
/// The word is null, or there: somebody waits for its lock.
pub(crate) unsafe fn named_in(word: *const AtomicU64) -> Option<(u32, u64)> {
    // SAFETY: by the caller's promise.
    let word = unsafe { word.as_ref() }?.load(Relaxed);
    let is_told = word != 0 && runtimes_made() < RUNTIMES_MAX;
    is_told.then_some(((word >> ID_BITS) as u32, word & ((1 << ID_BITS) - 1)))
}
