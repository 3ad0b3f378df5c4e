//! The holder of a lock: one word beside the lock names the goroutine that holds it.
//!
//! Dumps print it, and the leak analysis follows it to find cycles of locks. Nothing else reads it,
//! and it orders nothing.
//!
//! The holder stores its name after it has acquired the lock and clears it before it releases the
//! lock. So the word never names a goroutine that no longer holds the lock. At worst it is empty.
//!
//! Goroutine ids are unique within a runtime only. So the word has the runtime's number in its high
//! bits and the goroutine's id in its low bits.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::sched::model::current::current_g;
use crate::sched::runtimes_made;

/// Bits of the goroutine's id. They last three days at a billion goroutines a second, and most of a
/// year at ten million.
const ID_BITS: u32 = 48;

/// How many runtimes the remaining bits can distinguish.
const RUNTIMES_MAX: u32 = 1 << (u64::BITS - ID_BITS);

/// The word; 0: no holder, or a plain thread.
pub(crate) struct Owner(AtomicU64);

impl Owner {
    pub(crate) const fn new() -> Owner {
        Owner(AtomicU64::new(0))
    }

    /// Names the calling goroutine, which has just acquired the lock.
    #[inline]
    pub(crate) fn set(&self) {
        if let Some(g) = current_g() {
            let runtime = u64::from(g.sched().id) << ID_BITS;
            self.0.store(runtime | g.id(), Relaxed);
        }
    }

    /// Clears the name, before the holder releases the lock.
    #[inline]
    pub(crate) fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    pub(crate) fn word(&self) -> *const AtomicU64 {
        &self.0
    }
}

/// Returns the runtime and the goroutine that an owner's word names. None if the word is 0, or if
/// there were too many runtimes to distinguish.
///
/// # Safety
/// The word is null, or its lock is alive: a goroutine waits for it.
pub(crate) unsafe fn named_in(word: *const AtomicU64) -> Option<(u32, u64)> {
    // SAFETY: the caller guarantees that the word is null or alive.
    let word = unsafe { word.as_ref() }?.load(Relaxed);
    let is_told = word != 0 && runtimes_made() < RUNTIMES_MAX;
    is_told.then_some(((word >> ID_BITS) as u32, word & ((1 << ID_BITS) - 1)))
}
