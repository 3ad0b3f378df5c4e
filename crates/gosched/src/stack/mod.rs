//! Where goroutines' stacks come from: one arena per runtime, size classes, no stack ever moved.
//!
//! Words. A *slot* is one guarded stack; a *class* is all slots of one size; a *chunk* is one
//! mapping full of slots. A slot is *carved* when its guard is in place. A *reservation* is the
//! promise that one more slot can be taken; *slack* is the same promise for stacks in caches
//! outside the arena.
//!
//! ```text
//!  chunk   slot 0                slot 1                slot 2 …
//!          ├───────┬────────┬─────┬┼───────┬────────┬─────┬┤
//!          │ guard │ usable │ tls ▒│ guard │ usable │ tls ▒│      ▒ cache lines of colour
//!          └───────┴────────┴─────┴┴───────┴────────┴─────┴┘
//!            16 KiB lo      hi
//! ```
//!
//! Above `hi` lies the goroutine's thread block, if goroutines have their own thread-locals (see
//! `tls`).
//!
//! The stride is guard + size + an odd number of pages for the thread block and the colour. That is
//! an odd number of pages for every class, so the tops of consecutive slots visit all 16 page
//! offsets within 64 KiB before one repeats. Caches and TLBs that index by low address bits see a
//! thousand stacks as a thousand places (D4). The colour is 0 to 31 lines. It is less where thread
//! block and first frames would fit into one page without it ([`colours`]). The usable part is
//! never smaller than the class's size.
//!
//! A slot's life:
//!
//! ```text
//!  mapped ─carve─► cold ─take─► out ─give─► hot ─(hot is full)─► warm ─scavenge─► cold
//!                    ▲           ▲           │                     │
//!                    │           └───take────┴─────────take────────┘
//!                    └ its pages are the kernel's; hot and warm ones still hold theirs
//! ```
//!
//! *Hot* is a short LIFO: the last stack given is the next taken. *Warm* stacks have overflowed it.
//! They are kept as bits in the order of addresses, so that the scavenger returns neighbours with
//! one system call. No link or mark ever lies in a stack's own memory: a cold stack stays
//! untouched.
//!
//! Protocol. `mapped >= reserved + slack` holds whenever no lock is held. A caller that takes a
//! stack holds a reservation, or fills a cache that slack covers. So a take always finds a slot and
//! cannot fail. Address space was found in `reserve`, where the spawner can still get an error
//! (D3). Where guards cost mappings and can run out (the mprotect fallback), `reserve` carves too.

mod class;
mod guards;
mod sets;

#[cfg(test)]
mod tests;

use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::arch::RED_ZONE;
use crate::base::fatal;
use crate::base::lock::{Held, Lock, Rank};
use crate::base::this_m;
use crate::stack::class::{Class, Step};
use crate::stack::guards::Guards;
use crate::sys;
use crate::sys::Errno;
use crate::tls::{Room, Surplus};

/// The number of size classes: 16 KiB << k, up to 1 GiB.
pub(crate) const CLASSES: usize = 17;

const PAGE: usize = sys::page_size();
const SIZE_MIN: usize = 16 << 10;
/// Bytes below a stack that no code may touch. C code has no probes and may skip up to three pages.
const GUARD: usize = 16 << 10;
const LINE: usize = 64;
const COLOURS: usize = 32;
/// What the colour leaves of a stack's top page to frames, where the thread block leaves as much:
/// enough for a goroutine that waits in any call but a select, `accept` being the largest (1,256
/// bytes).
const FRAMES: usize = 1280;

/// The class of the smallest stack with at least `size` bytes; `None` for 0 and above 1 GiB.
pub(crate) const fn class_for(size: usize) -> Option<u8> {
    if size == 0 || size > class_size(CLASSES as u8 - 1) {
        return None;
    }
    let slots = size.div_ceil(SIZE_MIN);
    Some(slots.next_power_of_two().trailing_zeros() as u8)
}

/// The bytes a stack of this class offers at least.
pub(crate) const fn class_size(class: u8) -> usize {
    SIZE_MIN << class
}

/// The distance between two slots of a class.
const fn stride(class: u8, room: &Room) -> usize {
    let slack = if room.align > LINE { room.align } else { 0 };
    let top = (room.total + slack + (colours(room) - 1) * LINE).div_ceil(PAGE) | 1;
    GUARD + class_size(class) + top * PAGE
}

/// The number of colours, a power of two: as many as leave [`FRAMES`] in the page where the thread
/// block begins. All of them where the block leaves less in any case. An alignment above [`LINE`]
/// may shift the block further down than this counts: then the frames may need a second page.
const fn colours(room: &Room) -> usize {
    let free = PAGE - room.total % PAGE;
    if !matches!(room.surplus, Surplus::Reserved) || free < FRAMES {
        return COLOURS;
    }
    let fitting = 1 + (free - FRAMES) / LINE;
    1 << if fitting < COLOURS { fitting } else { COLOURS }.ilog2()
}

/// Advice to the user about a stack that was refused.
pub(crate) fn advice() -> String {
    match guards::exhausted_limit() {
        Some(limit) => format!(
            "this process may have {limit} memory mappings, and each stack needs two: \
             raise vm.max_map_count"
        ),
        None => "lower Builder::stack_size or raise RLIMIT_AS".to_owned(),
    }
}

/// One stack, borrowed by a goroutine or kept by a cache: `[lo, hi)` is usable, the guard lies
/// below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stack {
    /// The lowest usable address, a page boundary.
    pub(crate) lo: usize,
    /// The coloured top: one past the highest usable byte, 16-byte aligned. The thread block begins
    /// here.
    pub(crate) hi: usize,
    /// The size class.
    pub(crate) class: u8,
}

impl Stack {
    /// The stack in the slot at `base`. Page offsets repeat every 16 slots. The colour steps
    /// through all its lines at each of them. So 512 slots in a row have their tops in 512
    /// different places if there are 32 colours.
    fn in_slot(class: u8, index: u32, base: usize, room: &Room) -> Stack {
        let (index, colours) = (index as usize, colours(room));
        let colour = (13 * (index % colours) + 11 * (index / 16 % colours)) % colours;
        let top = base + stride(class, room) - colour * LINE;
        let tp = (top - (room.total - room.above)) & !(room.align - 1);
        Stack {
            lo: base + GUARD,
            hi: tp - room.above,
            class,
        }
    }

    /// The stack whose parts were kept apart.
    pub(crate) const fn from_parts(lo: usize, hi: usize, class: u8) -> Stack {
        Stack { lo, hi, class }
    }

    /// Whether the stack pointer `sp` lies in this stack; `hi` is that of an empty stack.
    #[inline]
    pub(crate) const fn contains(&self, sp: usize) -> bool {
        self.lo <= sp && sp <= self.hi
    }

    /// The page boundary at or above all bytes in use: the end of the slot.
    fn end(&self, room: &Room) -> usize {
        (self.hi + room.total).next_multiple_of(PAGE)
    }
}

/// How stacks are guarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    /// Markers in the page table, without mappings of their own.
    Lightweight,
    /// Protected pages, two mappings per stack.
    Mprotect,
}

/// What the arena holds, summed over its classes, in stacks unless named otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaStats {
    /// Promised to goroutines.
    pub(crate) reserved: usize,
    /// Out of the arena: with goroutines and in caches.
    pub(crate) in_use: usize,
    /// Free, with memory behind them.
    pub(crate) free_hot: usize,
    /// Free and guarded, without memory.
    pub(crate) free_cold: usize,
    /// Address space.
    pub(crate) mapped_bytes: usize,
    /// How the stacks are guarded.
    pub(crate) guard: Guard,
}

/// All stacks of one runtime.
pub(crate) struct Arena {
    classes: [Lock<Class>; CLASSES],
    guards: Guards,
    /// What lies above each stack.
    room: Room,
    /// Bit k: class k has work for the scavenger. Written under that class's lock, read without it.
    due: AtomicU32,
}

impl Arena {
    /// An arena without any stack; `force_mprotect` makes it behave as on an old kernel. Each stack
    /// has `room` above it.
    pub(crate) fn new(force_mprotect: bool, room: Room) -> Arena {
        Arena {
            classes: std::array::from_fn(|k| Lock::new(Rank::Stacks, Class::new(k as u8, room))),
            guards: Guards::new(force_mprotect),
            room,
            due: AtomicU32::new(0),
        }
    }

    fn class(&self, class: u8) -> Held<'_, Class> {
        self.classes[class as usize].lock()
    }

    /// Promises `n` more stacks of a class: later takes cannot fail. Costs only address space, and
    /// guards where those can run out. After an error nothing is promised.
    pub(crate) fn reserve(&self, class: u8, n: usize) -> Result<(), Errno> {
        let mut class = self.class(class);
        let reserved = class.reserved.checked_add(n).ok_or(class::FULL)?;
        let slack = class.slack;
        class.grow(reserved, slack, &self.guards)
    }

    /// Takes back `n` promises.
    pub(crate) fn unreserve(&self, class: u8, n: usize) {
        let mut class = self.class(class);
        debug_assert!(n <= class.reserved, "more promises returned than made");
        class.reserved = class.reserved.saturating_sub(n);
        self.note_due(&class);
    }

    /// Sets how many stacks of a class may lie in caches outside the arena, besides the reserved
    /// ones.
    pub(crate) fn set_slack(&self, class: u8, n: usize) -> Result<(), Errno> {
        let mut class = self.class(class);
        let reserved = class.reserved;
        class.grow(reserved, n, &self.guards)
    }

    /// What `set_slack` has set.
    #[cfg(test)]
    pub(crate) fn slack(&self, class: u8) -> usize {
        self.class(class).slack
    }

    /// Takes the stack given last, else one that still has memory, else a cold one. Never fails for
    /// the holder of a reservation.
    pub(crate) fn take(&self, class: u8) -> Stack {
        self.take_promised(class, |class| class.take(&self.guards))
    }

    /// Takes a promised stack. A scavenger may hold it at the moment, and returns it within
    /// milliseconds.
    #[inline]
    fn take_promised<T>(
        &self,
        number: u8,
        mut take: impl FnMut(&mut Class) -> Result<T, Errno>,
    ) -> T {
        loop {
            let mut class = self.class(number);
            match take(&mut class) {
                Ok(taken) => return taken,
                Err(_) if class.is_any_going() => {}
                Err(errno) => no_stack(number, errno),
            }
            drop(class);
            sys::sched_yield();
        }
    }

    /// Fills `out` from the front for a cache and returns how many it wrote: the free stacks there
    /// are, at least one. When it returns, the caller's caches hold no more than the slack, apart
    /// from the one stack that a reservation covers.
    pub(crate) fn take_batch(&self, class: u8, out: &mut [Stack]) -> usize {
        if out.is_empty() {
            return 0;
        }
        self.take_promised(class, |class| class.take_batch(out, &self.guards))
    }

    /// Takes a stack back. It keeps its memory for the next user.
    pub(crate) fn give(&self, stack: Stack) {
        self.give_batch(&[stack]);
    }

    /// Takes stacks back; the last one is reused first.
    pub(crate) fn give_batch(&self, stacks: &[Stack]) {
        for run in stacks.chunk_by(|a, b| a.class == b.class) {
            let mut class = self.class(run[0].class);
            run.iter().for_each(|&stack| class.give(stack));
            self.note_due(&class);
        }
    }

    /// Whether `scavenge` would find work. A hint, read without a lock.
    pub(crate) fn scavenge_due(&self) -> bool {
        // ORDER: Relaxed; the mask decides only when work is done. The work itself is found under
        // the lock.
        self.due.load(Relaxed) != 0
    }

    /// Background work: returns the memory of at most about `budget` free stacks. Stacks above the
    /// high-water mark come first, then the lower pages of stacks that are kept, then whole chunks
    /// that are not needed. Returns whether more remains. `standing` are the thread pointers that
    /// Ms of the runtime are on (`thread_locals::standing`). No lock is held while memory is
    /// returned, except for the lower pages of some stacks that are kept.
    pub(crate) fn scavenge<I: Iterator<Item = usize>>(
        &self,
        budget: usize,
        standing: impl Fn() -> I,
    ) -> bool {
        // ORDER: Relaxed; see `scavenge_due`.
        let due = self.due.load(Relaxed);
        let mut left = budget;
        for k in (0..CLASSES as u8).filter(|k| due & (1 << k) != 0) {
            while left > 0 {
                let mut class = self.class(k);
                match class.scavenge(left, standing()) {
                    Step::Freed(n) => left = left.saturating_sub(n),
                    Step::Going(run) => {
                        drop(class);
                        left = left.saturating_sub(run.n);
                        run.drop_pages(&self.room);
                        self.class(k).cooled(&run);
                    }
                    Step::Retired(chunk) => {
                        drop(class);
                        left = left.saturating_sub(class::RUN_MAX);
                        chunk.unmap();
                    }
                    Step::Done => {
                        // ORDER: Relaxed; the class's lock, held here, orders it against
                        // `note_due`.
                        self.due.fetch_and(!(1 << k), Relaxed);
                        break;
                    }
                }
            }
        }
        self.scavenge_due()
    }

    fn note_due(&self, class: &Class) {
        let bit = 1 << class.class;
        // ORDER: Relaxed; the class's lock, held here, orders it against the clearing in
        // `scavenge`.
        if class.is_due() && self.due.load(Relaxed) & bit == 0 {
            self.due.fetch_or(bit, Relaxed);
        }
    }

    /// Returns the memory of a suspended goroutine's stack that lies wholly below `sp`. Keeps the
    /// red zone and a page for its next calls.
    ///
    /// A goroutine that has switched to a stack of its own (`stacker`, a coroutine) is suspended
    /// with an `sp` outside its slot. The end of its frames in the slot is then unknown, so the
    /// slot keeps all its memory.
    ///
    /// # Safety
    /// The stack is out of the arena, nothing runs on it until this returns (G0, CopyStack), and
    /// `sp` is the stack pointer it was suspended with.
    pub(crate) unsafe fn shrink_below(stack: Stack, sp: usize) {
        if !stack.contains(sp) {
            return;
        }
        let end = sp.saturating_sub(RED_ZONE + PAGE) & !(PAGE - 1);
        if end > stack.lo {
            // SAFETY: D4, the range lies in a slot of ours, below every byte that its suspended
            // user can reach.
            unsafe { sys::dont_need(at(stack.lo), end - stack.lo) };
        }
    }

    /// Calls `f` with the thread pointer of every thread block that has memory. It may miss a block
    /// that is made meanwhile.
    pub(crate) fn for_each_block(&self, mut f: impl FnMut(usize)) {
        let _inside = this_m::enter();
        for class in &self.classes {
            let mut from = 0;
            while let Some(next) = class.lock().visit_blocks(from, &mut f) {
                from = next;
            }
        }
    }

    /// Counts the stacks.
    pub(crate) fn stats(&self) -> ArenaStats {
        let mut stats = ArenaStats {
            reserved: 0,
            in_use: 0,
            free_hot: 0,
            free_cold: 0,
            mapped_bytes: 0,
            guard: self.guards.kind(),
        };
        for class in &self.classes {
            class.lock().add_to(&mut stats);
        }
        stats
    }

    /// Unmaps every chunk without a stack in use. In the other chunks the free stacks lose their
    /// memory and the mapping is leaked: pointers into the stacks in use may remain (D2). The arena
    /// is empty afterwards, and leaked stacks must not be given back.
    pub(crate) fn release(&mut self) {
        let _inside = this_m::enter();
        for class in &mut self.classes {
            class.get_mut().release();
        }
        *self.due.get_mut() = 0;
    }

    /// The addresses `[from, to)`: a touch there means that this stack has overflowed.
    pub(crate) fn guard_range(stack: &Stack) -> (usize, usize) {
        (stack.lo - GUARD, stack.lo)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.release();
    }
}

/// Ends the process because a promise could not be kept: the accounting is wrong, or guards became
/// impossible since `reserve`. A stack without a guard would turn an overflow into silent
/// corruption.
#[cold]
#[inline(never)]
fn no_stack(class: u8, errno: Errno) -> ! {
    fatal::throw_fmt(format_args!(
        "no stack of {} bytes for a goroutine that has reserved one (error {})",
        class_size(class),
        errno.0
    ))
}

/// The pointer to an address of a chunk.
fn at(address: usize) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address)
}
