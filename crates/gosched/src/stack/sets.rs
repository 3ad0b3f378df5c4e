//! Which free slots are warm, going and cold: three sets of slot numbers, in the order of
//! addresses.
//!
//! Each set is a bitmap with a summary, one bit per 64 slots. So the lowest member of a million is
//! found in about a hundred nanoseconds, and runs of neighbours are read off whole words. The arena
//! keeps three bits per stack: a million stacks cost 375 KiB.

use std::ops::Range;

use crate::sys::{Errno, PageVec};

const BITS: usize = u64::BITS as usize;

/// One of the sets.
#[derive(Clone, Copy)]
pub(super) enum Set {
    /// Free, with memory, waiting for the scavenger.
    Warm,
    /// Free, without memory.
    Cold,
    /// Free, and a scavenger is returning the memory, without the lock. In no other list.
    Going,
}

const SETS: usize = 3;

/// One word of each set, side by side: a slot that moves between sets touches one cache line.
type Words = [u64; SETS];

/// The three sets. A slot number must lie below the room made for it.
pub(super) struct Sets {
    groups: PageVec<Words>,
    sums: PageVec<Words>,
    counts: [usize; SETS],
    /// No summary word below this one has a member.
    lowest: [usize; SETS],
}

impl Sets {
    pub(super) const fn new() -> Sets {
        Sets {
            groups: PageVec::new(),
            sums: PageVec::new(),
            counts: [0; SETS],
            lowest: [0; SETS],
        }
    }

    /// Makes room for the slot numbers below `slots`.
    pub(super) fn make_room(&mut self, slots: usize) -> Result<(), Errno> {
        while self.groups.len() * BITS < slots {
            self.groups.push([0; SETS])?;
        }
        while self.sums.len() * BITS < self.groups.len() {
            self.sums.push([0; SETS])?;
        }
        Ok(())
    }

    pub(super) fn count(&self, set: Set) -> usize {
        self.counts[set as usize]
    }

    pub(super) fn contains(&self, set: Set, slot: usize) -> bool {
        self.word(set, slot / BITS) >> (slot % BITS) & 1 != 0
    }

    pub(super) fn insert(&mut self, set: Set, slot: usize) {
        debug_assert!(!self.contains(set, slot));
        let (group, k) = (slot / BITS, set as usize);
        let word = &mut self.groups.as_mut_slice()[group][k];
        if *word == 0 {
            self.sums.as_mut_slice()[group / BITS][k] |= 1 << (group % BITS);
            self.lowest[k] = self.lowest[k].min(group / BITS);
        }
        *word |= 1 << (slot % BITS);
        self.counts[k] += 1;
    }

    pub(super) fn remove(&mut self, set: Set, slot: usize) {
        debug_assert!(self.contains(set, slot));
        let (group, k) = (slot / BITS, set as usize);
        let word = &mut self.groups.as_mut_slice()[group][k];
        *word &= !(1 << (slot % BITS));
        if *word == 0 {
            self.sums.as_mut_slice()[group / BITS][k] &= !(1 << (group % BITS));
        }
        self.counts[k] -= 1;
    }

    /// Removes all members within the range, a word at a time.
    pub(super) fn remove_all(&mut self, set: Set, within: Range<usize>) {
        let (mut slot, k) = (within.start, set as usize);
        while slot < within.end {
            let (group, here) = (slot / BITS, (BITS - slot % BITS).min(within.end - slot));
            let mask = u64::MAX >> (BITS - here) << (slot % BITS);
            let word = &mut self.groups.as_mut_slice()[group][k];
            self.counts[k] -= (*word & mask).count_ones() as usize;
            *word &= !mask;
            if *word == 0 {
                self.sums.as_mut_slice()[group / BITS][k] &= !(1 << (group % BITS));
            }
            slot += here;
        }
    }

    /// The lowest member.
    pub(super) fn first(&mut self, set: Set) -> Option<usize> {
        let k = set as usize;
        if self.counts[k] == 0 {
            return None;
        }
        let sums = &self.sums.as_slice()[self.lowest[k]..];
        self.lowest[k] += sums.iter().position(|sum| sum[k] != 0)?;
        let sum = self.lowest[k];
        let group = sum * BITS + self.sums.as_slice()[sum][k].trailing_zeros() as usize;
        Some(group * BITS + self.word(set, group).trailing_zeros() as usize)
    }

    /// How many of the numbers from `within.start` on are members without a gap; at most the whole
    /// range.
    pub(super) fn run(&self, set: Set, within: Range<usize>) -> usize {
        let mut slot = within.start;
        while slot < within.end {
            let word = self.word(set, slot / BITS);
            let run = (word >> (slot % BITS)).trailing_ones() as usize;
            slot += run;
            // The shift brought zeros in from above: only a run up to the word's end may continue.
            if run == 0 || !slot.is_multiple_of(BITS) {
                break;
            }
        }
        slot.min(within.end) - within.start
    }

    /// How many of the numbers are members.
    pub(super) fn count_in(&self, set: Set, within: Range<usize>) -> usize {
        let (mut slot, mut members) = (within.start, 0);
        while slot < within.end {
            let word = self.word(set, slot / BITS) >> (slot % BITS);
            let here = (BITS - slot % BITS).min(within.end - slot);
            members += (word & (u64::MAX >> (BITS - here))).count_ones() as usize;
            slot += here;
        }
        members
    }

    fn word(&self, set: Set, group: usize) -> u64 {
        self.groups.as_slice()[group][set as usize]
    }
}
