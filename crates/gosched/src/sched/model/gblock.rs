//! The memory of Gs: blocks of 64 KiB, in which every G of the runtime can be found (allg).
//!
//! Ps cache dead Gs (GF); this is the level below. A block's first slot is its header, with a
//! bitmap of the free slots. So a free G needs no link in its own memory, and the pages of a wholly
//! free block can go back to the system. They come back as zeroes, which is state Idle.

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

#[repr(C)]
struct Header {
    next: *mut Header,
    next_partial: *mut Header,
    is_partial: bool,
    /// Its pages were returned to the system and are zero.
    is_bare: bool,
    nfree: usize,
    /// Bit set: the slot is free.
    free: [u64; WORDS],
}

const _: () = assert!(size_of::<Header>() <= SLOT);

struct Blocks {
    all: *mut Header,
    partial: *mut Header,
    /// Where the next trim continues.
    trim_at: *mut Header,
    /// Where the next visit continues: the block and the slot in it. Null: at the first block.
    visit_at: (*mut Header, usize),
    /// Blocks with memory whose Gs are all free.
    nfree_blocks: usize,
    nout: usize,
}

// SAFETY: the raw pointers lead into blocks, which only the holder of the lock walks.
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
                    all: std::ptr::null_mut(),
                    partial: std::ptr::null_mut(),
                    trim_at: std::ptr::null_mut(),
                    visit_at: (std::ptr::null_mut(), 1),
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
            if blocks.partial.is_null()
                && let Err(errno) = blocks.grow()
            {
                return if taken == 0 { Err(errno) } else { Ok(()) };
            }
            let g = blocks.take_one();
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
        let mut at = blocks.all;
        while let Some(header) = NonNull::new(at) {
            // SAFETY: the lock is held, and only Drop unmaps blocks.
            let h = unsafe { header.as_ref() };
            for slot in 1..PER_BLOCK {
                if h.free[slot / 64] & (1 << (slot % 64)) == 0 {
                    f(g_at(header, slot));
                }
            }
            at = h.next;
        }
    }

    /// Visits up to `n` Gs as `for_each` does, from where the last visit ended. False: the round is
    /// over, and the next visit begins at the start. Gs that come and go meanwhile do not shift the
    /// place. One hold of the lock looks at `VISIT_BLOCKS` blocks at most.
    pub(crate) fn visit(&self, n: usize, mut f: impl FnMut(Gp)) -> bool {
        let mut blocks = self.blocks.lock();
        let ((mut at, mut slot), mut seen) = (blocks.visit_at, 0);
        if at.is_null() {
            (at, slot) = (blocks.all, 1);
        }
        for _ in 0..VISIT_BLOCKS {
            let Some(header) = NonNull::new(at) else {
                break;
            };
            // SAFETY: the lock is held, and only Drop unmaps blocks.
            let h = unsafe { header.as_ref() };
            while slot < PER_BLOCK && seen < n && h.nfree < PER_BLOCK - 1 {
                if h.free[slot / 64] & (1 << (slot % 64)) == 0 {
                    f(g_at(header, slot));
                    seen += 1;
                }
                slot += 1;
            }
            if seen == n && slot < PER_BLOCK {
                break;
            }
            (at, slot) = (h.next, 1);
        }
        blocks.visit_at = (at, slot);
        !at.is_null()
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
        while let Some(header) = NonNull::new(at) {
            // SAFETY: D2, the runtime's owner frees it only when no G is in use.
            unsafe {
                at = header.as_ref().next;
                sys::unmap(header.as_ptr().cast(), BLOCK);
            }
        }
    }
}

fn g_at(header: NonNull<Header>, slot: usize) -> Gp {
    // SAFETY: GF, the slots of a block hold Gs (or zeroes, a valid G) while the block is mapped.
    unsafe { Ptr::new(header.cast::<u8>().add(slot * SLOT).cast::<G>()) }
}

impl Blocks {
    fn grow(&mut self) -> Result<(), Errno> {
        let header = sys::map_pages_aligned(BLOCK, BLOCK)?.cast::<Header>();
        let mut free = [0; WORDS];
        for slot in 1..PER_BLOCK {
            free[slot / 64] |= 1 << (slot % 64);
        }
        // SAFETY: new memory that no other thread knows.
        unsafe {
            header.write(Header {
                next: self.all,
                next_partial: self.partial,
                is_partial: true,
                is_bare: true,
                nfree: PER_BLOCK - 1,
                free,
            });
        }
        self.all = header.as_ptr();
        self.partial = header.as_ptr();
        Ok(())
    }

    fn take_one(&mut self) -> Gp {
        // SAFETY: the lock is held, and the caller has seen that `partial` is not null.
        let (header, h) = unsafe {
            let header = NonNull::new_unchecked(self.partial);
            (header, &mut *header.as_ptr())
        };
        if h.nfree == PER_BLOCK - 1 {
            self.nfree_blocks -= usize::from(!h.is_bare);
            h.is_bare = false;
        }
        let word = (0..WORDS).find(|w| h.free[*w] != 0).unwrap_or_else(|| {
            crate::base::fatal::throw("a partial block of Gs without a free one")
        });
        let bit = h.free[word].trailing_zeros() as usize;
        h.free[word] &= !(1 << bit);
        h.nfree -= 1;
        if h.nfree == 0 {
            self.partial = h.next_partial;
            h.is_partial = false;
        }
        self.nout += 1;
        g_at(header, word * 64 + bit)
    }

    fn give_one(&mut self, g: Gp) {
        let addr = g.as_ptr() as usize;
        let header = (addr & !(BLOCK - 1)) as *mut Header;
        let slot = (addr & (BLOCK - 1)) / SLOT;
        // SAFETY: the lock is held, and blocks are aligned to their size, so this is g's header.
        let h = unsafe { &mut *header };
        debug_assert_eq!(h.free[slot / 64] & (1 << (slot % 64)), 0);
        h.free[slot / 64] |= 1 << (slot % 64);
        h.nfree += 1;
        self.nout -= 1;
        if !h.is_partial {
            h.is_partial = true;
            h.next_partial = self.partial;
            self.partial = header;
        }
        if h.nfree == PER_BLOCK - 1 {
            self.nfree_blocks += 1;
        }
    }

    /// Looks at the next block; returns whether its memory was returned.
    fn trim_next(&mut self) -> bool {
        if self.trim_at.is_null() {
            self.trim_at = self.all;
        }
        // SAFETY: the lock is held, and the caller has seen that there are blocks.
        let h = unsafe { &mut *self.trim_at };
        let is_free = h.nfree == PER_BLOCK - 1 && !h.is_bare;
        if is_free {
            h.is_bare = true;
            self.nfree_blocks -= 1;
            let page = sys::page_size();
            let base: *mut u8 = self.trim_at.cast();
            // SAFETY: GF, every G of the block is free, and the header's page stays. The G that
            // lies across the end of that page would come back torn, so it is set to Idle, all
            // zero, here.
            unsafe {
                base.add(page / SLOT * SLOT).write_bytes(0, SLOT);
                sys::dont_need(base.add(page), BLOCK - page);
            }
        }
        self.trim_at = h.next;
        is_free
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
