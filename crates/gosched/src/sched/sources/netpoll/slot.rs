//! The record of an open descriptor, in memory that is never freed.
//!
//! The kernel reports an event with a number that it got when the descriptor was registered: the
//! index of the slot, and the slot's generation at that time. A closed descriptor may leave events
//! behind. A thread may fetch them later, or be handling them right now. By then the slot is free
//! or belongs to another descriptor. So slots are never freed, and an event of another generation
//! is dropped.
//!
//! The events of each direction are counted in `changes`.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

use crate::base::fatal;
use crate::base::lock::{Lock, Rank};
use crate::base::static_ref::StaticRef;
use crate::sched::park::enter;
use crate::sched::sources::netpoll::Side;
use crate::sched::sources::netpoll::changes::Changes;
use crate::sched::sources::netpoll::driver::Driver;
use crate::sched::waiting::waitq::{WaitQueue, WakeList};
use crate::sys::event;

const BLOCK: usize = 256;
const BLOCKS: usize = 1 << 14;

/// The waiters of both directions, under the slot's lock.
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
    /// Changes when the slot is freed, under the slot's lock.
    generation: AtomicU32,
    refs: AtomicU32,
    pub(super) is_nonblocking: AtomicBool,
    /// A read that returns less than its buffer holds has emptied the descriptor.
    pub(super) is_plain: AtomicBool,
    /// The number by which the descriptor was registered last; -1: never.
    pub(super) fd: AtomicI32,
    /// The driver whose epoll may have that number still, although the slot has no home; None:
    /// none has. Changes under the slot's lock.
    left: StaticRef<Driver>,
    /// A duplicate that is registered instead, because another slot has that number in the epoll;
    /// -1: none. It belongs to the slot. Changes under the slot's lock.
    duplicate: AtomicI32,
    /// The driver that gets the kernel's events for the descriptor; None: none yet. Changes under
    /// the slot's lock.
    home: StaticRef<Driver>,
    pub(super) queues: Lock<Queues>,
    pub(super) flows: [Flow; 2],
    /// The next slot in the list of free slots, under the list's lock.
    next_free: StaticRef<Slot>,
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
            left: StaticRef::none(),
            duplicate: AtomicI32::new(-1),
            home: StaticRef::none(),
            queues: Lock::new(Rank::Net, Queues([WaitQueue::new(), WaitQueue::new()])),
            flows: [Flow::new(), Flow::new()],
            next_free: StaticRef::none(),
        }
    }

    /// The number that the kernel gets for the descriptor. The caller holds the lock or a
    /// reference.
    pub(super) fn data(&self) -> u64 {
        u64::from(self.index) | u64::from(self.generation.load(Relaxed)) << 32
    }

    pub(super) fn home(&self) -> Option<&'static Driver> {
        self.home.load()
    }

    /// The caller holds the lock.
    pub(super) fn set_home(&self, home: Option<&'static Driver>) {
        self.home.store(home);
    }

    /// Whether the epoll of `driver` may have a registration of this slot by the number `fd`, which
    /// the slot could not remove. The caller holds the lock.
    pub(super) fn has_left(&self, driver: &Driver, fd: i32) -> bool {
        let has_left = self
            .left
            .load()
            .is_some_and(|left| std::ptr::eq(left, driver));
        has_left && self.fd.load(Relaxed) == fd
    }

    /// The duplicate that is registered instead of the descriptor. The caller holds the lock.
    pub(super) fn duplicate(&self) -> Option<i32> {
        Some(self.duplicate.load(Relaxed)).filter(|fd| *fd != -1)
    }

    /// The slot owns `duplicate` from now on. The caller holds the lock.
    pub(super) fn set_duplicate(&self, duplicate: OwnedFd) {
        self.duplicate.store(duplicate.into_raw_fd(), Relaxed);
    }

    /// Ends the registration, also that of the duplicate. Returns the duplicate, which the caller
    /// closes outside the runtime. The caller holds the lock.
    pub(super) fn leave_home(&self, fd: i32) -> Option<OwnedFd> {
        let duplicate = self.duplicate();
        if let Some(home) = self.home() {
            home.forget(duplicate.unwrap_or(fd));
            self.set_home(None);
            // The kernel finds no registration by another number of the same file.
            let is_removed = duplicate.is_some() || self.fd.load(Relaxed) == fd;
            self.left.store(Some(home).filter(|_| !is_removed));
        }
        self.duplicate.store(-1, Relaxed);
        // SAFETY: `set_duplicate` got the number from an `OwnedFd`, and under the lock this call
        // alone has taken it out (D10).
        duplicate.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(super) fn retain(&self) {
        if self.refs.fetch_add(1, Relaxed) > u32::MAX / 2 {
            std::process::abort(); // a program that forgets handles in a loop
        }
    }

    /// Gives a reference back. The last one frees the slot. Called outside the runtime.
    pub(super) fn release(&'static self) {
        // ORDER: AcqRel; pairs with itself in the other releases: every use of the slot by another
        // holder comes before its end.
        if self.refs.fetch_sub(1, AcqRel) == 1 {
            let rt = enter();
            let queues = self.queues.lock();
            // Without a duplicate the kernel has removed the descriptor when it was closed.
            let duplicate = self.duplicate().and_then(|fd| self.leave_home(fd));
            self.generation.fetch_add(1, Relaxed);
            self.set_home(None);
            self.left.store(None);
            self.fd.store(-1, Relaxed);
            self.flows.iter().for_each(Flow::reset);
            self.is_nonblocking.store(false, Relaxed);
            self.is_plain.store(false, Relaxed);
            drop(queues);
            drop(rt);
            drop(duplicate);
            let _rt = enter();
            let mut free = FREE.lock();
            self.next_free.store(free.replace(self));
        }
    }

    /// Wakes the first waiter of this direction.
    pub(super) fn wake_next(&self, side: Side) {
        let rt = enter();
        let mut wake = WakeList::new();
        let mut queues = self.queues.lock();
        if let Some(claim) = queues.of(side).pop() {
            claim.finish(&mut wake);
        }
        drop(queues);
        wake.wake_in(&rt);
    }

    /// Wakes all waiters of this direction. The caller holds the lock.
    pub(super) fn wake_all(queue: &mut WaitQueue, wake: &mut WakeList) {
        while let Some(claim) = queue.pop() {
            claim.finish(wake);
        }
    }
}

/// The list of free slots. It is changed under its lock.
static FREE: Lock<Option<&'static Slot>> = Lock::new(Rank::Net, None);

/// All slots, in blocks.
static SLOTS: [StaticRef<[Slot; BLOCK]>; BLOCKS] = [const { StaticRef::none() }; BLOCKS];

/// The number of blocks that were begun.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Returns a slot with one reference. Called outside the runtime, because it may allocate.
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
    let slot = (*free)?;
    *free = slot.next_free.load();
    Some(slot)
}

#[cold]
fn make_block() {
    let number = MADE.fetch_add(1, Relaxed) as usize;
    assert!(number < BLOCKS, "gosched: too many open sockets");
    let block = new_block(number * BLOCK);
    SLOTS[number].store(Some(block));
    let _rt = enter();
    let mut free = FREE.lock();
    for slot in block {
        slot.next_free.store(free.replace(slot));
    }
}

/// The slots from the index `first` on. They are written where they stay, because a block is larger
/// than a goroutine's stack may be.
fn new_block(first: usize) -> &'static [Slot; BLOCK] {
    let slots: Box<[Slot]> = (0..BLOCK).map(|n| Slot::new((first + n) as u32)).collect();
    match slots.try_into() {
        Ok(block) => Box::<[Slot; BLOCK]>::leak(block),
        Err(_) => fatal::throw("a block of slots of another length"),
    }
}

fn get(index: u32) -> Option<&'static Slot> {
    let block = SLOTS.get(index as usize / BLOCK)?.load()?;
    Some(&block[index as usize % BLOCK])
}

/// Every slot, also the free ones. A block that was begun and is not stored yet is skipped.
pub(super) fn all() -> impl Iterator<Item = &'static Slot> {
    let made = BLOCKS.min(MADE.load(Relaxed) as usize);
    (0..(made * BLOCK) as u32).filter_map(get)
}

/// Handles an event of the kernel: counts it and claims waiters for it, which the caller wakes with
/// the list. Called inside the runtime, or on a thread outside.
pub(super) fn dispatch(data: u64, what: u32, wake: &mut WakeList) {
    let Some(slot) = get(data as u32) else { return };
    let mut queues = slot.queues.lock();
    if slot.data() != data {
        return; // the event of a closed descriptor
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
        } else if let Some(claim) = queue.pop() {
            claim.finish(wake); // this waiter wakes the next one when it is done
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two goroutines make blocks, and the first is delayed before it stores its own.
    #[test]
    fn all_slots_are_found_behind_a_block_that_is_being_made() {
        let held_up = MADE.fetch_add(1, Relaxed) as usize;
        make_block();
        assert!(all().any(|slot| slot.index as usize / BLOCK > held_up));
    }
}
