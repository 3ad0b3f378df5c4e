//! All slots of one size: chunks, the hot LIFO, and what the scavenger takes from them.
//!
//! Slots are numbered through all chunks, in the order in which the chunks were mapped, and carved
//! in the order of their numbers. Takes prefer low numbers, so that the last chunk empties first
//! and can be unmapped when the demand is gone. All code here runs under the class's lock (D9: no
//! allocation, no user code, bare system calls), except the return of memory, which takes long. For
//! that the slots are taken off the lists under the lock (`let_go`), lose their memory without it
//! (`Run::drop_pages`), and join the cold ones under it again.
//!
//! `hot[..trimmed]` are the hot stacks whose lower pages were already returned. A stack that was
//! used again lies above that prefix because the list is a LIFO, so no mark per slot is needed.

use std::ops::Range;

use crate::stack::guards;
use crate::stack::guards::Guards;
use crate::stack::sets::{Set, Sets};
use crate::stack::{ArenaStats, GUARD, Guard, PAGE, Stack, at, class_size, stride};
use crate::sys;
use crate::sys::{Errno, PageVec};
use crate::tls;
use crate::tls::Room;

/// The error for counts that no address space could hold.
pub(super) const FULL: Errno = Errno(libc::ENOMEM);

/// Stacks whose memory is returned with one system call, without the lock.
pub(super) const RUN_MAX: usize = 32;
/// Kept stacks trimmed in one hold of the lock, at 0.6 µs each.
const TRIM_MAX: usize = 16;
/// Slots visited in one hold of the lock.
const VISIT_MAX: usize = 512;
/// What a kept stack keeps, besides its thread block: enough for most goroutines.
const KEPT: usize = PAGE + PAGE / 2;

/// Slots of the first chunk, at most; later chunks double the number of slots.
const FIRST_SLOTS: usize = 32;
const FIRST_BYTES: usize = 8 << 20;
/// Chunks double up to this size, which unmaps in half a millisecond …
const CHUNK_BYTES: usize = 1 << 30;
/// … or to this many slots of the largest classes, so that those do not cost a mapping each.
const CHUNK_SLOTS: usize = 64;
/// If mappings of this size are refused, smaller chunks would not help.
const FLOOR_BYTES: usize = 64 << 20;

/// Hot stacks kept: this many bytes of them, when trimmed, for classes up to 256 KiB; fewer stacks
/// for larger classes.
const HOT_BYTES: usize = 8 << 20;
const HOT_MIN: usize = 16;
/// The most recently used hot stacks are left untrimmed, up to this number and this much memory.
const YOUNG_MAX: usize = 32;
const YOUNG_BYTES: usize = 8 << 20;

/// One mapping.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    base: usize,
    /// The number of its first slot.
    first: usize,
    slots: usize,
    stride: usize,
    /// How many of the slots have their guards; they are the first ones.
    carved: usize,
    /// How many guards cost mappings.
    protected: usize,
}

impl Chunk {
    /// The stack in slot `index`.
    fn stack_at(&self, class: u8, index: usize, room: &Room) -> Stack {
        let base = self.base + (index - self.first) * self.stride;
        Stack::in_slot(class, index as u32, base, room)
    }

    /// The addresses of all slots.
    fn addresses(&self) -> Range<usize> {
        self.base..self.base + self.slots * self.stride
    }

    /// Returns the memory of `n` free neighbouring slots.
    fn drop_pages(&self, start: usize, n: usize) {
        let base = self.base + (start - self.first) * self.stride;
        // SAFETY: D4, the range spans free slots of this chunk that no thread can take meanwhile:
        // the caller holds the lock, or has put them among the going ones. So no code needs what is
        // on them.
        unsafe { sys::dont_need(at(base + GUARD), n * self.stride - GUARD) };
    }

    /// Returns the addresses to the system.
    pub(super) fn unmap(self) {
        guards::forget_mappings(self.protected);
        // SAFETY: D2, the whole of a mapping made in `map_chunk`. The chunk was retired because
        // none of its stacks is in use, and no list knows them any more.
        unsafe { sys::unmap(at(self.base), self.slots * self.stride) };
    }
}

/// Neighbouring free slots of one chunk that are in no list while their memory is returned.
pub(super) struct Run {
    chunk: Chunk,
    class: u8,
    start: usize,
    pub(super) n: usize,
}

impl Run {
    /// Returns the memory of the slots. The guards between them stay: the kernel keeps markers and
    /// protections when memory is returned. Without the class's lock.
    pub(super) fn drop_pages(&self, room: &Room) {
        for index in self.start..self.start + self.n {
            tls::salvage(self.chunk.stack_at(self.class, index, room).hi, room);
        }
        self.chunk.drop_pages(self.start, self.n);
    }
}

/// The result of one step of the scavenger, or what it leaves to its caller.
pub(super) enum Step {
    /// The memory of this many stacks was returned.
    Freed(usize),
    /// These slots were taken off the lists. The caller drops their pages without the lock, then
    /// calls `Class::cooled`.
    Going(Run),
    /// A chunk was given up. The caller unmaps it without the lock.
    Retired(Chunk),
    /// There is no work.
    Done,
}

/// One size class.
pub(super) struct Class {
    pub(super) class: u8,
    /// What lies above each stack.
    room: Room,
    /// Reservations: stacks promised to goroutines.
    pub(super) reserved: usize,
    /// Stacks promised to caches.
    pub(super) slack: usize,
    /// Slots in all chunks.
    mapped: usize,
    /// Slots with a guard: the numbers below this one.
    carved: usize,
    /// In the order of slot numbers.
    chunks: PageVec<Chunk>,
    /// The chunks' numbers in the order of addresses, to find a stack's slot.
    by_address: PageVec<u32>,
    /// The chunk that the next slot is carved from, or one past the last.
    carving: usize,
    /// How many slots the next demand carves.
    ramp: usize,
    hot: PageVec<Stack>,
    trimmed: usize,
    sets: Sets,
}

impl Class {
    pub(super) const fn new(class: u8, room: Room) -> Class {
        Class {
            class,
            room,
            reserved: 0,
            slack: 0,
            mapped: 0,
            carved: 0,
            chunks: PageVec::new(),
            by_address: PageVec::new(),
            carving: 0,
            ramp: 1,
            hot: PageVec::new(),
            trimmed: 0,
            sets: Sets::new(),
        }
    }

    fn stride(&self) -> usize {
        stride(self.class, &self.room)
    }

    fn hot_max(&self) -> usize {
        ((HOT_BYTES / self.kept()) >> self.class.saturating_sub(4)).max(HOT_MIN)
    }

    /// The bytes that a trimmed stack keeps, whole pages.
    fn kept(&self) -> usize {
        (self.room.total + KEPT).next_multiple_of(PAGE)
    }

    fn young_max(&self) -> usize {
        (YOUNG_BYTES / class_size(self.class)).min(YOUNG_MAX)
    }

    /// Sets the promises, after finding room for them; an error changes nothing.
    pub(super) fn grow(
        &mut self,
        reserved: usize,
        slack: usize,
        guards: &Guards,
    ) -> Result<(), Errno> {
        let need = reserved.checked_add(slack).ok_or(FULL)?;
        let before = self.chunks.len();
        if let Err(errno) = self.make_ready(need, guards) {
            self.drop_unused_chunks(before);
            return Err(errno);
        }
        self.reserved = reserved;
        self.slack = slack;
        Ok(())
    }

    /// Maps `need` slots, and guards them too where guards may run out.
    fn make_ready(&mut self, need: usize, guards: &Guards) -> Result<(), Errno> {
        if need > u32::MAX as usize {
            return Err(FULL);
        }
        while self.mapped < need {
            self.map_chunk(need - self.mapped)?;
        }
        // The first guard of a class shows which kind works, here where the caller can still get an
        // error.
        if need > 0 && self.carved == 0 {
            self.carve(1, guards)?;
        }
        while self.carved < need && guards.kind() == Guard::Mprotect {
            self.carve(need - self.carved, guards)?;
        }
        Ok(())
    }

    /// Unmaps the untouched chunks past the first `before`: addresses that cannot serve a
    /// reservation must remain for the rest of the program.
    fn drop_unused_chunks(&mut self, before: usize) {
        while self.chunks.len() > before
            && self.chunks.as_slice().last().is_some_and(|c| c.carved == 0)
            && let Some(chunk) = self.pop_chunk()
        {
            chunk.unmap();
        }
    }

    /// Maps one chunk: as many slots as there are already, or as are missing. If that is refused,
    /// it tries smaller ones, down to what is missing.
    fn map_chunk(&mut self, missing: usize) -> Result<(), Errno> {
        let stride = self.stride();
        let first = (FIRST_BYTES / stride).clamp(1, FIRST_SLOTS);
        let largest = (CHUNK_BYTES / stride).max(CHUNK_SLOTS);
        let floor = missing.min((FLOOR_BYTES / stride).max(1));
        let mut slots = self.mapped.max(first).max(missing).min(largest);
        slots = slots.min(u32::MAX as usize - self.mapped);
        self.sets.make_room(self.mapped + slots)?;
        self.hot.reserve(self.hot_max() - self.hot.len())?;
        self.chunks.reserve(1)?;
        self.by_address.reserve(1)?;
        let base = loop {
            match sys::map_reserve(slots * stride) {
                Ok(base) => break base.as_ptr().expose_provenance(),
                Err(errno) if slots <= floor => return Err(errno),
                Err(_) => slots = (slots / 2).max(floor),
            }
        };
        let chunk = Chunk {
            base,
            first: self.mapped,
            slots,
            stride,
            carved: 0,
            protected: 0,
        };
        let place = self.chunks_below(base);
        self.by_address.push(self.chunks.len() as u32)?;
        self.by_address.as_mut_slice()[place..].rotate_right(1);
        self.chunks.push(chunk)?;
        self.mapped += slots;
        Ok(())
    }

    /// How many chunks begin at or below an address.
    fn chunks_below(&self, address: usize) -> usize {
        let chunks = self.chunks.as_slice();
        let begins_below = |&number: &u32| chunks[number as usize].base <= address;
        self.by_address.as_slice().partition_point(begins_below)
    }

    /// Forgets the last chunk; its slots are in no list any more.
    fn pop_chunk(&mut self) -> Option<Chunk> {
        let place = self.chunks_below(self.chunks.as_slice().last()?.base) - 1;
        self.by_address.as_mut_slice()[place..].rotate_left(1);
        self.by_address.pop();
        let chunk = self.chunks.pop()?;
        self.mapped -= chunk.slots;
        self.carved -= chunk.carved;
        self.carving = self.carving.min(self.chunks.len());
        Some(chunk)
    }

    /// Guards at least one and at most `want` further slots, which become cold.
    #[cold]
    fn carve(&mut self, want: usize, guards: &Guards) -> Result<(), Errno> {
        let stride = self.stride();
        let chunk = self.chunks.get_mut(self.carving).ok_or(FULL)?;
        let n = want.min(chunk.slots - chunk.carved).min(guards::BATCH_MAX);
        let start = chunk.base + chunk.carved * stride;
        // SAFETY: D4, the slots lie in this chunk, past those ever handed out, so no code has used
        // them.
        let done = unsafe { guards.install(start, stride, n) }?;
        chunk.carved += done.slots;
        chunk.protected += done.protected;
        if chunk.carved == chunk.slots {
            self.carving += 1;
        }
        for _ in 0..done.slots {
            self.sets.insert(Set::Cold, self.carved);
            self.carved += 1;
        }
        Ok(())
    }

    /// Guards slots because none is free: 1, 2, 4, … 64 as the demand continues. So a small program
    /// pays little. It never guards more than are promised.
    fn carve_on_demand(&mut self, guards: &Guards) -> Result<(), Errno> {
        let promised = self.reserved + self.slack;
        let n = self.ramp.min(promised.saturating_sub(self.carved)).max(1);
        self.ramp = (self.ramp * 2).min(guards::BATCH_MAX);
        self.carve(n, guards)
    }

    /// Takes one stack; an error means that a promise is broken.
    #[inline]
    pub(super) fn take(&mut self, guards: &Guards) -> Result<Stack, Errno> {
        if let Some(stack) = self.take_free() {
            return Ok(stack);
        }
        self.carve_on_demand(guards)?;
        self.take_free().ok_or(FULL)
    }

    /// Takes stacks until `out` is full or none is free, and carves only for the first.
    pub(super) fn take_batch(
        &mut self,
        out: &mut [Stack],
        guards: &Guards,
    ) -> Result<usize, Errno> {
        let mut n = 0;
        for place in out {
            let stack = match self.take_free() {
                Some(stack) => stack,
                None if n == 0 => self.take(guards)?,
                None => break,
            };
            *place = stack;
            n += 1;
        }
        Ok(n)
    }

    /// The search order: the stack given last, a warm one, a cold one.
    #[inline]
    fn take_free(&mut self) -> Option<Stack> {
        match self.hot.pop() {
            Some(stack) => {
                self.trimmed = self.trimmed.min(self.hot.len());
                Some(stack)
            }
            None => self.take_listed(),
        }
    }

    fn take_listed(&mut self) -> Option<Stack> {
        let (set, index) = match self.sets.first(Set::Warm) {
            Some(index) => (Set::Warm, index),
            None => (Set::Cold, self.sets.first(Set::Cold)?),
        };
        self.sets.remove(set, index);
        Some(self.stack_at(self.chunk_of(index), index))
    }

    /// The stack in slot `index` of its chunk.
    fn stack_at(&self, chunk: &Chunk, index: usize) -> Stack {
        chunk.stack_at(self.class, index, &self.room)
    }

    fn chunk_of(&self, index: usize) -> &Chunk {
        let chunks = self.chunks.as_slice();
        &chunks[chunks.partition_point(|chunk| chunk.first <= index) - 1]
    }

    /// Takes a stack back, on top of the hot ones.
    #[inline]
    pub(super) fn give(&mut self, stack: Stack) {
        debug_assert_eq!(stack.class, self.class);
        debug_assert!(!self.is_free(&stack), "a stack given twice");
        if self.hot.len() == self.hot_max() {
            self.spill();
        }
        // Room was made with the first chunk; without it the stack would still not be lost.
        if self.hot.push(stack).is_err() {
            self.sets.insert(Set::Warm, self.index_of(&stack));
        }
    }

    /// The number of a stack's slot.
    fn index_of(&self, stack: &Stack) -> usize {
        let base = stack.lo - GUARD;
        let number = self.by_address.as_slice()[self.chunks_below(base) - 1];
        let chunk = &self.chunks.as_slice()[number as usize];
        let slot = (base - chunk.base) / self.stride();
        debug_assert!(slot < chunk.carved && chunk.base + slot * self.stride() == base);
        chunk.first + slot
    }

    fn is_free(&self, stack: &Stack) -> bool {
        let index = self.index_of(stack);
        let is_listed = |set| self.sets.contains(set, index);
        let is_in_set = [Set::Warm, Set::Going, Set::Cold]
            .into_iter()
            .any(is_listed);
        is_in_set || self.hot.as_slice().contains(stack)
    }

    /// Moves the older half of the hot stacks to the warm ones.
    #[cold]
    fn spill(&mut self) {
        let half = self.hot.len() / 2;
        for i in 0..half {
            let index = self.index_of(&self.hot.as_slice()[i]);
            self.sets.insert(Set::Warm, index);
        }
        self.hot.as_mut_slice().copy_within(half.., 0);
        self.cut_hot(self.hot.len() - half);
        self.trimmed = self.trimmed.saturating_sub(half);
    }

    fn cut_hot(&mut self, len: usize) {
        while self.hot.len() > len {
            self.hot.pop();
        }
    }

    /// Whether the scavenger should run. The lower pages of a few stacks alone are no reason.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.sets.count(Set::Warm) > 0
            || self.hot.len() - self.trimmed > 2 * self.young_max()
            || self.has_spare_chunk()
    }

    /// Whether enough would remain without the last chunk: twice what is promised, and room for all
    /// that may stay hot. So bursts with pauses do not map and guard the same stacks again and
    /// again.
    fn has_spare_chunk(&self) -> bool {
        let keep = (2 * (self.reserved + self.slack)).max(self.hot_max());
        let last = self.chunks.as_slice().last();
        last.is_some_and(|last| self.mapped - last.slots >= keep)
    }

    /// One step of the scavenger, for at most `budget` stacks. `standing` are the thread pointers
    /// that Ms of the runtime are on between two goroutines: a free stack with such a block keeps
    /// its memory.
    pub(super) fn scavenge(
        &mut self,
        budget: usize,
        standing: impl Iterator<Item = usize>,
    ) -> Step {
        if let Some(index) = self.sets.first(Set::Warm) {
            return self.let_go(index, budget, standing);
        }
        if self.hot.len() > self.trimmed + self.young_max() {
            return Step::Freed(self.trim(budget));
        }
        match self.retire(standing) {
            Some(chunk) => Step::Retired(chunk),
            None => Step::Done,
        }
    }

    /// Takes the warm neighbours from `start` on off the list, so that their memory can be
    /// returned.
    fn let_go(
        &mut self,
        start: usize,
        budget: usize,
        standing: impl Iterator<Item = usize>,
    ) -> Step {
        let chunk = *self.chunk_of(start);
        let end = (start + RUN_MAX.min(budget)).min(chunk.first + chunk.carved);
        let mut n = self.sets.run(Set::Warm, start..end);
        if self.room.is_own() {
            for tp in standing.filter(|tp| chunk.addresses().contains(tp)) {
                let index = chunk.first + (tp - chunk.base) / chunk.stride;
                if (start..start + n).contains(&index) {
                    n = index - start;
                }
            }
        }
        if n == 0 {
            return Step::Freed(1); // one look spent; the M on its thread-locals leaves them soon
        }
        for index in start..start + n {
            self.sets.remove(Set::Warm, index);
            self.sets.insert(Set::Going, index);
        }
        Step::Going(Run {
            chunk,
            class: self.class,
            start,
            n,
        })
    }

    /// The memory of the slots has been returned: they are cold.
    pub(super) fn cooled(&mut self, run: &Run) {
        debug_assert!(self.is_any_going());
        for index in run.start..run.start + run.n {
            self.sets.remove(Set::Going, index);
            self.sets.insert(Set::Cold, index);
        }
    }

    /// Whether a scavenger holds free stacks that are in no list.
    pub(super) fn is_any_going(&self) -> bool {
        self.sets.count(Set::Going) > 0
    }

    /// Visits the blocks of some slots from number `from` on; returns where to continue. Under the
    /// lock none of these loses its memory.
    pub(super) fn visit_blocks(&self, from: usize, f: &mut impl FnMut(usize)) -> Option<usize> {
        let end = (from + VISIT_MAX).min(self.carved);
        let is_bare =
            |index| self.sets.contains(Set::Cold, index) || self.sets.contains(Set::Going, index);
        for index in (from..end).filter(|index| !is_bare(*index)) {
            let stack = self.stack_at(self.chunk_of(index), index);
            if let Some(tp) = tls::block_above(stack.hi, &self.room) {
                f(tp);
            }
        }
        (end < self.carved).then_some(end)
    }

    /// Keeps what the stack's thread block owns elsewhere, before the stack's memory is returned.
    fn salvage(&self, stack: &Stack) {
        tls::salvage(stack.hi, &self.room);
    }

    /// Returns the lower pages of hot stacks, the longest unused first. Skips the youngest.
    fn trim(&mut self, budget: usize) -> usize {
        let old = self.hot.len() - self.young_max() - self.trimmed;
        let n = old.min(budget).min(TRIM_MAX);
        for stack in &self.hot.as_slice()[self.trimmed..self.trimmed + n] {
            let end = stack.end(&self.room) - self.kept();
            // SAFETY: D4, the range lies in a free stack, which the caller's lock keeps in the
            // list.
            unsafe { sys::dont_need(at(stack.lo), end - stack.lo) };
        }
        self.trimmed += n;
        n
    }

    /// Gives up the last chunk if it is not needed and none of its stacks is in use. Guards keep
    /// page tables alive, half a KiB for each 256 KiB stack; only unmapping frees those.
    fn retire(&mut self, mut standing: impl Iterator<Item = usize>) -> Option<Chunk> {
        if !self.has_spare_chunk() {
            return None;
        }
        let last = *self.chunks.as_slice().last()?;
        let addresses = last.addresses();
        if self.room.is_own() && standing.any(|tp| addresses.contains(&tp)) {
            return None;
        }
        let slots = last.first..last.first + last.carved;
        let is_in_it = |stack: &Stack| addresses.contains(&stack.lo);
        let hot = self.hot.as_slice().iter().filter(|stack| is_in_it(stack));
        if hot.count() + self.sets.count_in(Set::Cold, slots.clone()) < slots.len() {
            return None;
        }
        let going = self.hot.as_slice().iter().filter(|stack| is_in_it(stack));
        going.for_each(|stack| self.salvage(stack));
        let (mut kept, mut trimmed) = (0, 0);
        let hot = self.hot.as_mut_slice();
        for i in 0..hot.len() {
            if !is_in_it(&hot[i]) {
                hot[kept] = hot[i];
                kept += 1;
                trimmed += usize::from(i < self.trimmed);
            }
        }
        self.cut_hot(kept);
        self.trimmed = trimmed;
        self.sets.remove_all(Set::Cold, slots);
        self.pop_chunk()
    }

    /// Empties the class. Unmaps the chunks without a stack in use. Of the other chunks the
    /// addresses remain, and the memory of the stacks in use.
    pub(super) fn release(&mut self) {
        while let Some(stack) = self.hot.pop() {
            self.salvage(&stack);
            self.sets.insert(Set::Cold, self.index_of(&stack));
        }
        while let Some(index) = self.sets.first(Set::Warm) {
            self.salvage(&self.stack_at(self.chunk_of(index), index));
            self.sets.remove(Set::Warm, index);
            self.sets.insert(Set::Cold, index);
        }
        while let Some(chunk) = self.pop_chunk() {
            let end = chunk.first + chunk.carved;
            if self.sets.count_in(Set::Cold, chunk.first..end) == chunk.carved {
                chunk.unmap();
                continue;
            }
            let mut start = chunk.first;
            while start < end {
                let n = self.sets.run(Set::Cold, start..end);
                if n > 0 {
                    chunk.drop_pages(start, n);
                }
                start += n.max(1);
            }
        }
        *self = Class::new(self.class, self.room);
    }

    fn in_use(&self) -> usize {
        let listed = [Set::Warm, Set::Going, Set::Cold].map(|set| self.sets.count(set));
        self.carved - self.hot.len() - listed.iter().sum::<usize>()
    }

    pub(super) fn add_to(&self, stats: &mut ArenaStats) {
        stats.reserved += self.reserved;
        stats.in_use += self.in_use();
        stats.free_hot += self.hot.len();
        stats.free_hot += self.sets.count(Set::Warm) + self.sets.count(Set::Going);
        stats.free_cold += self.sets.count(Set::Cold);
        stats.mapped_bytes += self.mapped * self.stride();
    }

    /// Compares the counts with the lists, for tests.
    #[cfg(test)]
    pub(super) fn check(&self, guards: &Guards) {
        let need = self.reserved + self.slack;
        assert!(self.in_use() <= self.carved);
        assert!(self.mapped >= need && self.mapped >= self.carved);
        assert!(self.carved >= need || guards.kind() == Guard::Lightweight);
        assert!(self.trimmed <= self.hot.len() && self.hot.len() <= self.hot_max());
        let chunks = self.chunks.as_slice();
        assert_eq!(chunks.iter().map(|c| c.slots).sum::<usize>(), self.mapped);
        assert_eq!(chunks.iter().map(|c| c.carved).sum::<usize>(), self.carved);
        for (i, chunk) in chunks.iter().enumerate() {
            assert!(chunk.carved == chunk.slots || i >= self.carving);
            assert!(chunk.carved == 0 || i <= self.carving);
        }
        assert!(
            self.by_address
                .as_slice()
                .is_sorted_by_key(|&n| chunks[n as usize].base)
        );
        let mut places = vec![0; self.carved];
        for stack in self.hot.as_slice() {
            places[self.index_of(stack)] += 1;
        }
        for (slot, places) in places.iter_mut().enumerate() {
            for set in [Set::Warm, Set::Going, Set::Cold] {
                *places += usize::from(self.sets.contains(set, slot));
            }
            assert!(*places <= 1, "slot {slot} is free {places} times");
        }
        assert_eq!(places.iter().sum::<usize>(), self.carved - self.in_use());
    }
}
