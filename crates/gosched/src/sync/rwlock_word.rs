//! The readers' half of a RwLock's word; `mutex_word` has the writers' half.
//!
//! It counts the readers and makes readers and writers take turns. It is apart from the RwLock so
//! that loom can check it alone.
//!
//! The rule is Go's. A writer first acquires LOCKED, as for a Mutex. From then on no new reader
//! acquires the lock. Then the writer waits until the current readers unlock. When the writer
//! unlocks, all readers queued meanwhile acquire the lock before the next writer can have it alone.
//! So neither side starves the other.
//!
//! ```text
//!  LOCKED  readers  holders                         transitions
//!  0       0        none                            reader: + READER; writer: LOCKED
//!  0       n        n readers                       the same; each of the n: − READER
//!  1       n        n readers; a writer waits for   each of the n: − READER; the last
//!                   them (DRAIN: asleep)            one wakes the writer
//!  1       0        the writer                      the writer: release
//!
//!  bit           set by            cleared by                          meaning
//!  READERS_WAIT  queue_reader †    the writer's release †,             a reader is queued
//!                                  readers_left †
//!  DRAIN         queue_drain †     unread_last †, drain_left †         the writer sleeps until the
//!                                                                      readers unlock
//!
//!  † under the parking table's lock for this word
//! ```
//!
//! A releasing writer first admits the queued readers while LOCKED is still set. It adds READER for
//! each one before that reader's wait ends. The swap that clears LOCKED is its last access to the
//! word. A reader that unlocks accesses the word once. It does so under the table's lock if a
//! sleeping writer waits for this reader only.

use super::mutex_word::{ABOVE, LOCKED, LockWord, OWN};
use crate::shim::{Acquire, Relaxed, Release};

/// A writer panicked.
pub(crate) const POISON: usize = OWN;
pub(crate) const READERS_WAIT: usize = OWN << 1;
pub(crate) const DRAIN: usize = OWN << 2;
/// One reader.
pub(crate) const READER: usize = ABOVE;
/// The bits that count readers.
pub(crate) const READERS: usize = !(READER - 1);

impl LockWord {
    /// Acquires a read lock if LOCKED is clear, and returns the word before. On failure returns the
    /// word found.
    #[inline]
    pub(crate) fn read(&self) -> Result<usize, usize> {
        let mut word = self.0.load(Relaxed);
        loop {
            if word & LOCKED != 0 {
                return Err(word);
            }
            debug_assert!(word & READERS != READERS, "too many readers");
            // ORDER: Acquire; pairs with the Release of a writer's `unlock_fast`, `unlock`,
            // `release` (U10).
            match self
                .0
                .compare_exchange_weak(word, word + READER, Acquire, Relaxed)
            {
                Ok(_) => return Ok(word),
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: returns whether a reader must wait. If so, READERS_WAIT is set.
    pub(crate) fn queue_reader(&self) -> bool {
        self.set_while(LOCKED, READERS_WAIT)
    }

    /// Under the table's lock: a reader has left the queue without a wake-up.
    pub(crate) fn readers_left(&self, are_more: bool) {
        if !are_more {
            self.0.fetch_and(!READERS_WAIT, Relaxed);
        }
    }

    /// The writer admits a reader: a queued one, under the table's lock, or itself (`downgrade`).
    pub(crate) fn admit(&self) {
        // ORDER: Relaxed; a queued reader is ordered after the writer by the end of its wait.
        self.0.fetch_add(READER, Relaxed);
    }

    /// Releases a read lock. False if a sleeping writer waits for this reader only: the caller must
    /// use `unread_last`, under the table's lock.
    #[inline]
    pub(crate) fn unread(&self) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            debug_assert!(
                word & READERS != 0,
                "unlock of a read lock that is not held"
            );
            if word & DRAIN != 0 && word & READERS == READER {
                return false;
            }
            // ORDER: Release; pairs with the Acquire of `has_readers` and of a later writer's lock.
            match self
                .0
                .compare_exchange_weak(word, word - READER, Release, Relaxed)
            {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: releases a read lock. Returns whether the writer must be woken.
    pub(crate) fn unread_last(&self) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            let wakes = word & DRAIN != 0 && word & READERS == READER;
            let mut next = word - READER;
            if wakes {
                next &= !DRAIN;
            }
            // ORDER: Release; pairs with the Acquire of `has_readers` and of a later writer's lock.
            match self.0.compare_exchange_weak(word, next, Release, Relaxed) {
                Ok(_) => return wakes,
                Err(found) => word = found,
            }
        }
    }

    /// By the writer that holds LOCKED: whether readers still hold the lock.
    pub(crate) fn has_readers(&self) -> bool {
        // ORDER: Acquire; pairs with the Release of every reader's `unread` and `unread_last`:
        // their swaps form one release sequence.
        self.0.load(Acquire) & READERS != 0
    }

    /// Under the table's lock, by the writer: returns whether it must wait for readers. If so,
    /// DRAIN is set.
    pub(crate) fn queue_drain(&self) -> bool {
        self.set_while(READERS, DRAIN)
    }

    /// Under the table's lock: the writer no longer sleeps.
    pub(crate) fn drain_left(&self) {
        self.0.fetch_and(!DRAIN, Relaxed);
    }

    /// Sets `bit` if any bit of `mask` is set; returns whether it did.
    fn set_while(&self, mask: usize, bit: usize) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            if word & mask == 0 {
                return false;
            }
            // ORDER: Relaxed; an unlock's swap fails on an older word, and the table's lock orders
            // the queue.
            match self
                .0
                .compare_exchange_weak(word, word | bit, Relaxed, Relaxed)
            {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }
}
