//! The memory of Gs: blocks of 64 KiB, in which every G of the runtime can be found (allg).
//!
//! Ps cache dead Gs (GF); this is the level below. A block's first slot is its header, with a
//! bitmap of the free slots. So a free G needs no link in its own memory, and the pages of a wholly
//! free block can go back to the system. They come back as zeroes, which is state Idle.

use std::cell::Cell;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::base::lock::{Lock, Rank};
use crate::sched::model::g::G;
use crate::sched::model::gstatus::Status;
use crate::sched::model::ptr::{Gp, Home, Ptr};
use crate::sys;
use crate::sys::Errno;

const BLOCK: usize = 64 * 1024;
const SLOT: usize = size_of::<G>();
const PER_BLOCK: usize = BLOCK / SLOT;
const WORDS: usize = PER_BLOCK.div_ceil(64);
/// Wholly free blocks that keep their memory in a trim.
const KEEP_FREE: usize = 16;
/// Blocks that a trim visits in one hold of the lock, and how many of them lose their memory, at
/// about 5 µs each.
const TRIM_STEP: usize = 64;
const TRIM_MAX: usize = 4;
/// Blocks that a visit looks at in one hold of the lock.
const VISIT_BLOCKS: usize = 64;

/// A block of Gs: mapped memory, aligned to its size, that begins with its header. Only the drop of
/// `GBlocks` unmaps it. Until then a copy of this pointer may be followed.
#[derive(Clone, Copy)]
struct Block(NonNull<Header>);

/// Used under the lock. Zeroed memory is a header.
#[repr(C)]
struct Header {
    next: Cell<Option<Block>>,
    next_partial: Cell<Option<Block>>,
    is_partial: Cell<bool>,
    /// Its pages were returned to the system and are zero.
    is_bare: Cell<bool>,
    nfree: Cell<usize>,
    /// Bit set: the slot is free.
    free: [Cell<u64>; WORDS],
}

const _: () = assert!(size_of::<Header>() <= SLOT);

impl Deref for Block {
    type Target = Header;
    #[inline]
    fn deref(&self) -> &Header {
        // SAFETY: the block is mapped (see `Block`), and its header was zeroes at first.
        unsafe { self.0.as_ref() }
    }
}

impl Block {
    /// The block in which `g` lies.
    #[inline]
    fn of(g: Gp) -> Block {
        let header = g.as_ptr().map_addr(|at| at & !(BLOCK - 1)).cast();
        // SAFETY: every G lies in a block (`g_at`), and blocks are aligned to their size.
        Block(unsafe { NonNull::new_unchecked(header) })
    }

    #[inline]
    fn g_at(self, slot: usize) -> Gp {
        debug_assert!((1..PER_BLOCK).contains(&slot));
        // SAFETY: GF, the slots of a block hold Gs, or zeroes, a valid G. The block is mapped.
        unsafe { Ptr::new(self.0.cast::<G>().add(slot)) }
    }

    #[inline]
    fn is_free(self, slot: usize) -> bool {
        self.free[slot / 64].get() & (1 << (slot % 64)) != 0
    }

    #[inline]
    fn set_free(self, slot: usize) {
        let word = &self.free[slot / 64];
        word.set(word.get() | 1 << (slot % 64));
    }

    /// Returns the memory of a wholly free block to the system; false: it is in use or bare.
    fn trim(self) -> bool {
        if self.nfree.get() < PER_BLOCK - 1 || self.is_bare.replace(true) {
            return false;
        }
        let (base, page) = (self.0.cast::<u8>().as_ptr(), sys::page_size());
        // SAFETY: GF, every G of the block is free, and the header's page stays. The G that lies
        // across the end of that page would come back torn, so it is set to Idle, all zero, here.
        unsafe {
            base.add(page / SLOT * SLOT).write_bytes(0, SLOT);
            sys::dont_need(base.add(page), BLOCK - page);
        }
        true
    }
}

struct Blocks {
    all: Option<Block>,
    partial: Option<Block>,
    /// Where the next trim continues.
    trim_at: Option<Block>,
    /// Where the next visit continues: the block and the slot in it. None: at the first block.
    visit_at: (Option<Block>, usize),
    /// Blocks with memory whose Gs are all free.
    nfree_blocks: usize,
    nout: usize,
}

// SAFETY: only the holder of the lock uses headers: it has every `Block`.
unsafe impl Send for Blocks {}

pub(crate) struct GBlocks {
    blocks: Lock<Blocks>,
}

impl GBlocks {
    pub(crate) const fn new() -> GBlocks {
        GBlocks {
            blocks: Lock::new(
                Rank::GBlocks,
                Blocks {
                    all: None,
                    partial: None,
                    trim_at: None,
                    visit_at: (None, 1),
                    nfree_blocks: 0,
                    nout: 0,
                },
            ),
        }
    }

    /// Passes up to `n` Dead Gs, at least one, to `give`.
    pub(crate) fn take(
        &self,
        home: *const Home,
        n: usize,
        mut give: impl FnMut(Gp),
    ) -> Result<(), Errno> {
        let mut blocks = self.blocks.lock();
        for taken in 0..n {
            let block = match blocks.partial {
                Some(block) => block,
                None => match blocks.grow() {
                    Ok(block) => block,
                    Err(errno) => return if taken == 0 { Err(errno) } else { Ok(()) },
                },
            };
            let g = blocks.take_one(block);
            if g.status.get() == Status::Idle {
                g.init(home);
            }
            give(g);
        }
        Ok(())
    }

    pub(crate) fn give(&self, gs: impl Iterator<Item = Gp>) {
        let mut blocks = self.blocks.lock();
        for g in gs {
            debug_assert_eq!(g.status.get(), Status::Dead);
            blocks.give_one(g);
        }
    }

    /// Calls `f` for every G that is not free in its block: live ones and those in P caches.
    pub(crate) fn for_each(&self, mut f: impl FnMut(Gp)) {
        let blocks = self.blocks.lock();
        for block in std::iter::successors(blocks.all, |block| block.next.get()) {
            for slot in (1..PER_BLOCK).filter(|slot| !block.is_free(*slot)) {
                f(block.g_at(slot));
            }
        }
    }

    /// Visits up to `n` Gs as `for_each` does, from where the last visit ended. False: the round is
    /// over, and the next visit begins at the start. Gs that come and go meanwhile do not shift the
    /// place. One hold of the lock looks at `VISIT_BLOCKS` blocks at most.
    pub(crate) fn visit(&self, n: usize, mut f: impl FnMut(Gp)) -> bool {
        let mut blocks = self.blocks.lock();
        let ((mut at, mut slot), mut seen) = (blocks.visit_at, 0);
        if at.is_none() {
            (at, slot) = (blocks.all, 1);
        }
        for _ in 0..VISIT_BLOCKS {
            let Some(block) = at else { break };
            while slot < PER_BLOCK && seen < n && block.nfree.get() < PER_BLOCK - 1 {
                if !block.is_free(slot) {
                    f(block.g_at(slot));
                    seen += 1;
                }
                slot += 1;
            }
            if seen == n && slot < PER_BLOCK {
                break;
            }
            (at, slot) = (block.next.get(), 1);
        }
        blocks.visit_at = (at, slot);
        at.is_some()
    }

    pub(crate) fn trim_due(&self) -> bool {
        self.blocks.lock().nfree_blocks > KEEP_FREE
    }

    /// Returns the memory of some wholly free blocks to the system. True: more are left.
    pub(crate) fn trim(&self) -> bool {
        let mut blocks = self.blocks.lock();
        let mut trimmed = 0;
        for _ in 0..TRIM_STEP {
            if blocks.nfree_blocks <= KEEP_FREE {
                return false;
            }
            trimmed += usize::from(blocks.trim_next());
            if trimmed == TRIM_MAX {
                break;
            }
        }
        true
    }

    /// Gs given out and not yet returned: an upper bound for the size of a dump.
    pub(crate) fn outstanding(&self) -> usize {
        self.blocks.lock().nout
    }
}

impl Drop for GBlocks {
    fn drop(&mut self) {
        let mut at = self.blocks.get_mut().all;
        while let Some(block) = at {
            at = block.next.get();
            // SAFETY: D2, the runtime's owner frees it only when no G is in use.
            unsafe { sys::unmap(block.0.as_ptr().cast(), BLOCK) };
        }
    }
}

impl Blocks {
    #[cold]
    fn grow(&mut self) -> Result<Block, Errno> {
        let block = Block(sys::map_pages_aligned(BLOCK, BLOCK)?.cast());
        block.next.set(self.all.replace(block));
        block.next_partial.set(self.partial.replace(block));
        block.is_partial.set(true);
        block.is_bare.set(true);
        block.nfree.set(PER_BLOCK - 1);
        (1..PER_BLOCK).for_each(|slot| block.set_free(slot));
        Ok(block)
    }

    /// Takes a free G of the first partial block.
    #[inline]
    fn take_one(&mut self, block: Block) -> Gp {
        let nfree = block.nfree.get();
        if nfree == PER_BLOCK - 1 && !block.is_bare.replace(false) {
            self.nfree_blocks -= 1;
        }
        let word = (0..WORDS)
            .find(|w| block.free[*w].get() != 0)
            .unwrap_or_else(|| {
                crate::base::fatal::throw("a partial block of Gs without a free one")
            });
        let free = block.free[word].get();
        block.free[word].set(free & (free - 1)); // without its lowest bit
        block.nfree.set(nfree - 1);
        if nfree == 1 {
            self.partial = block.next_partial.get();
            block.is_partial.set(false);
        }
        self.nout += 1;
        block.g_at(word * 64 + free.trailing_zeros() as usize)
    }

    fn give_one(&mut self, g: Gp) {
        let block = Block::of(g);
        let slot = (g.as_ptr().addr() & (BLOCK - 1)) / SLOT;
        debug_assert!(!block.is_free(slot));
        block.set_free(slot);
        let nfree = block.nfree.get() + 1;
        block.nfree.set(nfree);
        self.nout -= 1;
        if !block.is_partial.get() {
            block.is_partial.set(true);
            block.next_partial.set(self.partial.replace(block));
        }
        if nfree == PER_BLOCK - 1 {
            self.nfree_blocks += 1;
        }
    }

    /// Looks at the next block; returns whether its memory was returned.
    fn trim_next(&mut self) -> bool {
        let Some(block) = self.trim_at.or(self.all) else {
            return false;
        };
        self.trim_at = block.next.get();
        let is_trimmed = block.trim();
        self.nfree_blocks -= usize::from(is_trimmed);
        is_trimmed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::sched::model::ptr::Gp;

    fn take(blocks: &GBlocks, n: usize) -> Vec<Gp> {
        let mut gs = Vec::new();
        while gs.len() < n {
            blocks
                .take(std::ptr::null(), n - gs.len(), |g| gs.push(g))
                .unwrap();
        }
        gs
    }

    #[test]
    fn gf_a_trimmed_block_gives_whole_gs() {
        let blocks = GBlocks::new();
        let many = (KEEP_FREE + 8) * PER_BLOCK;
        for _ in 0..3 {
            let gs = take(&blocks, many);
            for g in &gs {
                assert_eq!(g.status.get(), Status::Dead);
                assert_eq!(g.timer_p.load(Relaxed), u32::MAX, "a torn G");
            }
            blocks.give(gs.into_iter());
            assert!(blocks.trim_due());
            while blocks.trim() {}
            assert!(!blocks.trim_due());
        }
    }

    /// All Gs that visits of up to `n` find in one round, and the number of visits.
    fn visit_all(blocks: &GBlocks, n: usize) -> (Vec<*const G>, usize) {
        let (mut seen, mut visits) = (Vec::new(), 0);
        loop {
            let before = seen.len();
            let more = blocks.visit(n, |g| seen.push(g.as_ptr().cast_const()));
            assert!(seen.len() - before <= n);
            visits += 1;
            if !more {
                return (seen, visits);
            }
        }
    }

    #[test]
    fn gf_a_visit_in_steps_sees_every_g_once() {
        let blocks = GBlocks::new();
        assert_eq!(visit_all(&blocks, 100), (Vec::new(), 1));
        let gs = take(&blocks, 3 * PER_BLOCK);
        blocks.give(gs.iter().copied().step_by(3));
        let mut all = Vec::new();
        blocks.for_each(|g| all.push(g.as_ptr().cast_const()));
        for n in [1, 100, 10 * PER_BLOCK] {
            let (seen, visits) = visit_all(&blocks, n);
            assert_eq!(seen, all);
            assert!(visits <= all.len().div_ceil(n) + 1, "{visits} of {n}");
        }
        assert_eq!(all.len(), blocks.outstanding());
    }

    /// U8: one hold of the lock looks at some blocks, whatever is in them. The next visit continues
    /// there.
    #[test]
    fn gf_a_visit_goes_on_where_the_last_one_ended() {
        let blocks = GBlocks::new();
        let gs = take(&blocks, 4 * VISIT_BLOCKS * (PER_BLOCK - 1));
        // One G is left in the oldest block, which a round visits last.
        blocks.give(gs[1..].iter().copied());
        let (seen, visits) = visit_all(&blocks, 100);
        assert_eq!(seen, [gs[0].as_ptr().cast_const()]);
        assert_eq!(visits, 4);
        // The place stays valid when Gs around it come and go.
        let _more = take(&blocks, 2 * PER_BLOCK);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert!(blocks.visit(5, |g| first.push(g)));
        blocks.give(first.iter().copied());
        assert!(blocks.visit(5, |g| second.push(g)));
        assert_eq!((first.len(), second.len()), (5, 5));
        assert!(second.iter().all(|g| !first.contains(g)));
    }
}
