//! What is known of an open descriptor, in memory that is never given back.
//!
//! The kernel tells of a descriptor by a number that was given to it once: the index of its slot, and the slot's generation at that
//! time. A descriptor that is closed may leave events behind that are fetched later, or on another thread right now; its slot is
//! then another's, or free. So slots are never freed, and an event of another generation is thrown away.
//!
//! What has happened to it is counted in `changes`.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

use crate::base::lock::{Lock, Rank};
use crate::sched::park::enter;
use crate::sched::sources::netpoll::Side;
use crate::sched::sources::netpoll::changes::Changes;
use crate::sched::sources::netpoll::driver::Driver;
use crate::sched::waiting::waitq::{WaitQueue, WakeList};
use crate::sys::event;

const BLOCK: usize = 256;
const BLOCKS: usize = 1 << 14;

/// Who waits, under the slot's lock.
pub(super) struct Queues([WaitQueue; 2]);

impl Queues {
    pub(super) fn of(&mut self, side: Side) -> &mut WaitQueue {
        &mut self.0[side as usize]
    }
}

/// One direction of a descriptor.
pub(super) struct Flow {
    pub(super) changes: Changes,
    /// Monotonic ns; `u64::MAX`: none.
    pub(super) deadline: AtomicU64,
    /// ns; 0: none.
    pub(super) timeout: AtomicU64,
}

impl Flow {
    fn new() -> Flow {
        Flow {
            changes: Changes::new(),
            deadline: AtomicU64::new(u64::MAX),
            timeout: AtomicU64::new(0),
        }
    }

    fn reset(&self) {
        self.changes.reset();
        self.deadline.store(u64::MAX, Relaxed);
        self.timeout.store(0, Relaxed);
    }
}

/// An open descriptor, or a free slot.
pub(super) struct Slot {
    index: u32,
    /// Changes when the slot is freed, under its lock.
    generation: AtomicU32,
    refs: AtomicU32,
    pub(super) is_nonblocking: AtomicBool,
    /// A read that ends short of its buffer has emptied the descriptor.
    pub(super) is_plain: AtomicBool,
    /// Its number, for dumps.
    pub(super) fd: AtomicI32,
    /// Who is told of it by the kernel; null: nobody yet. Changes under the lock.
    home: AtomicPtr<Driver>,
    pub(super) queues: Lock<Queues>,
    pub(super) flows: [Flow; 2],
    /// In the list of the free, under its lock.
    next_free: AtomicPtr<Slot>,
}

impl Slot {
    fn new(index: u32) -> Slot {
        Slot {
            index,
            generation: AtomicU32::new(0),
            refs: AtomicU32::new(0),
            is_nonblocking: AtomicBool::new(false),
            is_plain: AtomicBool::new(false),
            fd: AtomicI32::new(-1),
            home: AtomicPtr::new(ptr::null_mut()),
            queues: Lock::new(Rank::Net, Queues([WaitQueue::new(), WaitQueue::new()])),
            flows: [Flow::new(), Flow::new()],
            next_free: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// What the kernel is given for it. Under the lock, or by a holder.
    pub(super) fn data(&self) -> u64 {
        u64::from(self.index) | u64::from(self.generation.load(Relaxed)) << 32
    }

    pub(super) fn home(&self) -> Option<&'static Driver> {
        // ORDER: Acquire; pairs with the Release in `set_home`. Drivers are never freed.
        // SAFETY: GF, a driver that was stored here stays.
        unsafe { self.home.load(Acquire).as_ref() }
    }

    /// Under the lock.
    pub(super) fn set_home(&self, home: Option<&'static Driver>) {
        let home = home.map_or(ptr::null(), ptr::from_ref);
        // ORDER: Release; pairs with the Acquire in `home`.
        self.home.store(home.cast_mut(), Release);
    }

    pub(super) fn retain(&self) {
        if self.refs.fetch_add(1, Relaxed) > u32::MAX / 2 {
            std::process::abort(); // a program that forgets handles in a loop
        }
    }

    /// Gives a reference back; the last one frees the slot. Outside the runtime.
    pub(super) fn release(&'static self) {
        // ORDER: AcqRel; what the others did with the slot comes before its end.
        if self.refs.fetch_sub(1, AcqRel) == 1 {
            let _rt = enter();
            let queues = self.queues.lock();
            self.generation.fetch_add(1, Relaxed);
            self.set_home(None);
            self.flows.iter().for_each(Flow::reset);
            self.is_nonblocking.store(false, Relaxed);
            self.is_plain.store(false, Relaxed);
            drop(queues);
            let mut free = FREE.lock();
            self.next_free.store(free.0, Relaxed);
            free.0 = ptr::from_ref(self).cast_mut();
        }
    }

    /// Wakes the first who waits in this direction.
    pub(super) fn wake_next(&self, side: Side) {
        let rt = enter();
        let mut wake = WakeList::new();
        let mut queues = self.queues.lock();
        if let Some((_, claim)) = queues.of(side).pop() {
            claim.finish(&mut wake);
        }
        drop(queues);
        wake.wake_in(&rt);
    }

    /// Wakes whoever waits in this direction. Under the lock.
    pub(super) fn wake_all(queue: &mut WaitQueue, wake: &mut WakeList) {
        while let Some((_, claim)) = queue.pop() {
            claim.finish(wake);
        }
    }
}

/// The free slots. Taken out under the lock.
struct Free(*mut Slot);

// SAFETY: GF, slots are never freed; the list is followed under its lock only.
unsafe impl Send for Free {}

static FREE: Lock<Free> = Lock::new(Rank::Net, Free(ptr::null_mut()));

/// Every slot there is, in blocks.
static SLOTS: [AtomicPtr<[Slot; BLOCK]>; BLOCKS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

/// Blocks that were made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A slot with one reference. Outside the runtime: it may allocate.
pub(super) fn take() -> &'static Slot {
    loop {
        if let Some(slot) = take_free() {
            slot.refs.store(1, Relaxed);
            return slot;
        }
        make_block();
    }
}

fn take_free() -> Option<&'static Slot> {
    let _rt = enter();
    let mut free = FREE.lock();
    // SAFETY: GF, slots are never freed.
    let slot = unsafe { free.0.as_ref() }?;
    free.0 = slot.next_free.load(Relaxed);
    Some(slot)
}

#[cold]
fn make_block() {
    let number = MADE.fetch_add(1, Relaxed) as usize;
    assert!(number < BLOCKS, "gosched: too many open sockets");
    let block = new_block(number * BLOCK);
    // ORDER: Release; pairs with the Acquire in `get`.
    SLOTS[number].store(ptr::from_ref(block).cast_mut(), Release);
    let _rt = enter();
    let mut free = FREE.lock();
    for slot in block {
        slot.next_free.store(free.0, Relaxed);
        free.0 = ptr::from_ref(slot).cast_mut();
    }
}

/// Slots from the index `first` on, made where they stay: a block is larger than a goroutine's stack may be.
fn new_block(first: usize) -> &'static [Slot; BLOCK] {
    let mut block = Box::<[Slot; BLOCK]>::new_uninit();
    let slots = block.as_mut_ptr().cast::<Slot>();
    for n in 0..BLOCK {
        // SAFETY: `n` is below `BLOCK`, so the slot is inside the allocation, which nobody else has.
        unsafe { slots.add(n).write(Slot::new((first + n) as u32)) };
    }
    // SAFETY: the loop has written every slot.
    Box::leak(unsafe { block.assume_init() })
}

fn get(index: u32) -> Option<&'static Slot> {
    // ORDER: Acquire; pairs with the Release in `make_block`.
    let block = SLOTS.get(index as usize / BLOCK)?.load(Acquire);
    // SAFETY: GF, blocks are never freed.
    unsafe { block.as_ref() }.map(|block| &block[index as usize % BLOCK])
}

/// Every slot, free ones among them. A block whose number is taken and that is not stored yet is passed over.
pub(super) fn all() -> impl Iterator<Item = &'static Slot> {
    let made = BLOCKS.min(MADE.load(Relaxed) as usize);
    (0..(made * BLOCK) as u32).filter_map(get)
}

/// The kernel tells of a change: whoever waits for it is claimed, to be woken with the list. Inside the runtime, or on a thread
/// outside.
pub(super) fn dispatch(data: u64, what: u32, wake: &mut WakeList) {
    let Some(slot) = get(data as u32) else { return };
    let mut queues = slot.queues.lock();
    if slot.data() != data {
        return; // of a descriptor that is gone
    }
    let (is_end, is_odd) = (what & event::END != 0, what & event::ODD != 0);
    for (side, bits) in [(Side::Read, event::READ), (Side::Write, event::WRITE)] {
        if what & (bits | event::END) == 0 {
            continue;
        }
        slot.flows[side as usize].changes.happened(is_odd);
        let queue = queues.of(side);
        if is_end {
            Slot::wake_all(queue, wake);
        } else if let Some((_, claim)) = queue.pop() {
            claim.finish(wake); // who is done wakes the next one
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two goroutines that make blocks, the first is held up before it stores its own.
    #[test]
    fn all_slots_are_found_behind_a_block_that_is_being_made() {
        let held_up = MADE.fetch_add(1, Relaxed) as usize;
        make_block();
        assert!(all().any(|slot| slot.index as usize / BLOCK > held_up));
    }
}
