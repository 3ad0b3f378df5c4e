//! The readers' side of a RwLock's word (`mutex_word` has the writers').
//!
//! Go's rule: a writer first gets LOCKED, like a Mutex, and from that moment no reader comes in; then it waits until those who were
//! in have left. When it unlocks, all readers that have queued meanwhile are in before the next writer can have it alone.
//! So neither side keeps the other out for ever.
//!
//! ```text
//!  LOCKED  readers  who is in                       who may change it
//!  0       0        nobody                          a reader: + READER. A writer: LOCKED
//!  0       n        n readers                       the same, and each of the n: − READER
//!  1       n        n readers; a writer waits for   each of the n: − READER; the last one wakes the writer
//!                   them to leave (DRAIN: asleep)
//!  1       0        the writer                      the writer: release
//!
//!  bit           set by             cleared by                          says
//!  READERS_WAIT  queue_reader †     the writer's release †,             a reader is queued
//!                                   readers_left †
//!  DRAIN         queue_drain †      unread_last †, drain_left †         the writer is asleep until readers leave
//!
//!  † under the parking table's lock for this word
//! ```
//!
//! The release of a writer admits the queued readers first (+ READER for each, before it is told), LOCKED still set, and gives
//! LOCKED away with the last touch of the word. A reader that leaves touches the word once, under the table's lock if
//! it is the last one that a sleeping writer waits for.

use super::mutex_word::{ABOVE, LOCKED, LockWord, OWN};
use crate::shim::{Acquire, Relaxed, Release};

/// A writer panicked.
pub(crate) const POISON: usize = OWN;
pub(crate) const READERS_WAIT: usize = OWN << 1;
pub(crate) const DRAIN: usize = OWN << 2;
/// One reader.
pub(crate) const READER: usize = ABOVE;
/// All of them.
pub(crate) const READERS: usize = !(READER - 1);

impl LockWord {
    /// Comes in as a reader if no writer is in or about to be; returns what was there before. Err: what is in the way.
    #[inline]
    pub(crate) fn read(&self) -> Result<usize, usize> {
        let mut word = self.0.load(Relaxed);
        loop {
            if word & LOCKED != 0 {
                return Err(word);
            }
            debug_assert!(word & READERS != READERS, "too many readers");
            // ORDER: Acquire; pairs with the Release of a writer's `unlock_fast`, `unlock` and `release` (U10).
            match self
                .0
                .compare_exchange_weak(word, word + READER, Acquire, Relaxed)
            {
                Ok(_) => return Ok(word),
                Err(found) => word = found,
            }
        }
    }

    /// Under the table's lock: whether it is time for a reader to wait. The word then knows of it.
    pub(crate) fn queue_reader(&self) -> bool {
        self.set_while(LOCKED, READERS_WAIT)
    }

    /// Under the table's lock: a reader has left the queue by itself.
    pub(crate) fn readers_left(&self, are_more: bool) {
        if !are_more {
            self.0.fetch_and(!READERS_WAIT, Relaxed);
        }
    }

    /// The writer lets a reader in, itself included. Under the table's lock if the reader was queued.
    pub(crate) fn admit(&self) {
        // ORDER: Relaxed; a queued reader sees what the writer did by the end of its wait.
        self.0.fetch_add(READER, Relaxed);
    }

    /// A reader leaves; false: a writer waits for it alone, so that is to be done under the table's lock, with `unread_last`.
    #[inline]
    pub(crate) fn unread(&self) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            debug_assert!(word & READERS != 0, "a reader leaves that was not in");
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

    /// Under the table's lock, a reader leaves; true: the writer is to be woken.
    pub(crate) fn unread_last(&self) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            let wakes = word & DRAIN != 0 && word & READERS == READER;
            let mut next = word - READER;
            if wakes {
                next &= !DRAIN;
            }
            // ORDER: as in `unread`.
            match self.0.compare_exchange_weak(word, next, Release, Relaxed) {
                Ok(_) => return wakes,
                Err(found) => word = found,
            }
        }
    }

    /// The writer that has LOCKED: whether readers are still in.
    pub(crate) fn has_readers(&self) -> bool {
        // ORDER: Acquire; pairs with the Release of every reader's `unread` and `unread_last`, one after the other.
        self.0.load(Acquire) & READERS != 0
    }

    /// Under the table's lock, the writer: whether it is time to sleep until the readers have left.
    pub(crate) fn queue_drain(&self) -> bool {
        self.set_while(READERS, DRAIN)
    }

    /// Under the table's lock: the writer sleeps no more.
    pub(crate) fn drain_left(&self) {
        self.0.fetch_and(!DRAIN, Relaxed);
    }

    /// Sets `bit` if any of `mask` is set.
    fn set_while(&self, mask: usize, bit: usize) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            if word & mask == 0 {
                return false;
            }
            // ORDER: Relaxed; the swap of whoever leaves fails on an older word, and the table's lock orders the queue.
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
