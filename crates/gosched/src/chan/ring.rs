//! The buffer of a bounded channel: a ring of slots that senders and receivers go round without a
//! lock.
//!
//! Vyukov's bounded queue. `tail` and `head` are positions: a lap, and an index below the capacity.
//! Each slot has a stamp, which determines the thread that may use it:
//!
//! ```text
//!  stamp at position p   meaning                                  next
//!  p                     free for the sender at p                 p + 1, or p | RESERVED
//!  p | RESERVED          a select's sender has yet to write it    p + 1, or (p + 1) | VOID
//!  p + 1                 holds the value of p                     p + LAP
//!  (p + 1) | VOID        the sender gave up: it is skipped        p + LAP
//!  p + LAP               free, a lap later                        –
//! ```
//!
//! A sender takes position p by moving `tail` on, then writes. A receiver takes p by moving `head`
//! on, then reads. Both happen inside the runtime, so a thread that meets a slot between the two
//! steps retries at once. A select's sender runs user code between them, for the message is
//! evaluated when its case has been chosen. So its slot is marked, and receivers treat the slot as
//! empty. When the sender publishes its value it looks for waiting receivers once more.
//!
//! A place that was given up is freed as soon as it is the oldest: by the thread that gave it up,
//! or by the thread that took out the value before it.
//!
//! Closing sets a bit in `tail`: no sender takes a position after that.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use crossbeam_utils::CachePadded;

use crate::shim::{
    Acquire, AtomicUsize, Relaxed, Release, SeqCst, UnsafeCell, fence, fence_after_rmw,
    spin_or_yield,
};

/// In `tail`: the channel is closed.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// In stamps.
const RESERVED: usize = 1 << (usize::BITS - 1);
const VOID: usize = 1 << (usize::BITS - 2);

struct RingSlot<T> {
    stamp: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// A ring of at least one slot. The slots lie where its owner has memory for them.
pub(super) struct Ring<T> {
    head: CachePadded<RingHead<T>>,
    tail: CachePadded<RingTail>,
}

/// The receivers' end. What all threads read lies beside it, in a cache line of its own: a move of
/// the head does not take that line from them.
#[repr(C)]
struct RingHead<T> {
    position: AtomicUsize,
    shared: RingShared<T>,
}

/// The senders' end.
struct RingTail {
    position: AtomicUsize,
}

/// What both sides read and mostly neither writes.
#[repr(align(64))]
struct RingShared<T> {
    slots: NonNull<RingSlot<T>>,
    cap: usize,
    /// One lap; more than the capacity, a power of two.
    lap: usize,
    /// Places that were given up and are still there. Mostly none.
    voids: AtomicUsize,
}

impl<T> RingShared<T> {
    #[inline]
    fn slot(&self, position: usize) -> &RingSlot<T> {
        self.slot_at(position & (self.lap - 1))
    }

    #[inline]
    fn slot_at(&self, index: usize) -> &RingSlot<T> {
        debug_assert!(index < self.cap);
        // SAFETY: a position's index is below the capacity: `after` makes no other.
        // `NewRing::place` wrote so many slots, which stay as long as the ring.
        unsafe { self.slots.add(index).as_ref() }
    }

    /// The position after `position`.
    #[inline]
    fn after(&self, position: usize) -> usize {
        if (position & (self.lap - 1)) + 1 < self.cap {
            position + 1
        } else {
            // The first index of the next lap; laps wrap below the flag bits.
            self.lap_later(position & !(self.lap - 1))
        }
    }

    #[inline]
    fn lap_later(&self, position: usize) -> usize {
        position.wrapping_add(self.lap) & (VOID - 1)
    }
}

// SAFETY: D1, U10: values go from the sender's thread to the receiver's. By its stamp each slot
// belongs to one of them at a time.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: D1, U10: a slot is used by the one thread that its stamp admits.
unsafe impl<T: Send> Sync for Ring<T> {}

/// Why a value could not go in or come out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum No {
    /// No room, or nothing there.
    NotNow,
    /// Closed; for receivers, drained as well.
    Closed,
}

/// A place that a select's sender has yet to fill. An index into the slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReservedPlace(pub(super) usize);

/// A ring that has no slots yet. Dropping it does nothing.
pub(super) struct NewRing<T> {
    cap: usize,
    lap: usize,
    slots: Layout,
    values: PhantomData<T>,
}

impl<T> NewRing<T> {
    /// None: so many slots do not fit into any memory.
    pub(super) fn new(cap: usize) -> Option<NewRing<T>> {
        debug_assert!(cap > 0);
        let lap = cap.checked_add(1)?.checked_next_power_of_two()?;
        if lap >= VOID >> 16 {
            return None;
        }
        Some(NewRing {
            cap,
            lap,
            slots: Layout::array::<RingSlot<T>>(cap).ok()?,
            values: PhantomData,
        })
    }

    /// The memory that the slots need.
    pub(super) fn slots_layout(&self) -> Layout {
        self.slots
    }

    /// The ring with its slots.
    ///
    /// # Safety
    /// At `at` is memory of [`NewRing::slots_layout`] that the ring alone uses, and that stays as
    /// long as the ring.
    pub(super) unsafe fn place(self, at: NonNull<u8>) -> Ring<T> {
        let slots = at.cast::<RingSlot<T>>();
        debug_assert!(slots.is_aligned());
        for index in 0..self.cap {
            let slot = RingSlot {
                stamp: AtomicUsize::new(index),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            };
            // SAFETY: the memory is the ring's, and large enough, as the caller promises.
            unsafe { slots.add(index).write(slot) };
        }
        let shared = RingShared {
            slots,
            cap: self.cap,
            lap: self.lap,
            voids: AtomicUsize::new(0),
        };
        let position = AtomicUsize::new(0);
        Ring {
            head: CachePadded::new(RingHead { position, shared }),
            tail: CachePadded::new(RingTail {
                position: AtomicUsize::new(0),
            }),
        }
    }
}

impl<T> Ring<T> {
    /// The memory that the slots have: as [`NewRing::slots_layout`].
    pub(super) fn slots_layout(&self) -> Layout {
        match Layout::array::<RingSlot<T>>(self.capacity()) {
            Ok(layout) => layout,
            Err(_) => unreachable!("`NewRing::new` made it before"),
        }
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.head.shared.cap
    }

    /// Takes the next position for a sender.
    #[inline]
    fn take_tail(&self) -> Result<usize, No> {
        let mut turns = 0;
        let mut tail = self.tail.position.load(Relaxed);
        loop {
            if tail & CLOSED != 0 {
                return Err(No::Closed);
            }
            // ORDER: Acquire; pairs with the Release in `read`: the last value is out of the slot.
            let stamp = self.head.shared.slot(tail).stamp.load(Acquire);
            if stamp == tail {
                // ORDER: SeqCst; a receiver that has queued itself sees the new tail, or this
                // thread sees the receiver in its queue (settle/1).
                match self.tail.position.compare_exchange_weak(
                    tail,
                    self.head.shared.after(tail),
                    SeqCst,
                    Relaxed,
                ) {
                    Ok(_) => return Ok(tail),
                    Err(found) => tail = found,
                }
                crate::shim::spin_hint();
                continue;
            }
            fence(SeqCst);
            let head = self.head.position.load(Relaxed);
            if self.head.shared.lap_later(head) == tail {
                return Err(No::NotNow);
            }
            // A receiver is about to free the slot, or the tail that was read is old.
            spin_or_yield(&mut turns);
            tail = self.tail.position.load(Relaxed);
        }
    }

    /// Puts the value at `from` in; on success it has been moved. Inside the runtime.
    ///
    /// # Safety
    /// `from` is readable as a `T` that the caller gives away on success.
    #[inline]
    pub(super) unsafe fn push(&self, from: *const T) -> Result<(), No> {
        let tail = self.take_tail()?;
        // SAFETY: the position was just taken; the caller gives the value away.
        unsafe { self.write(tail, from) };
        Ok(())
    }

    /// Fills the position that a sender has just taken.
    ///
    /// # Safety
    /// The caller took the position and has not filled it. `from` is readable as a `T` that is
    /// given away.
    #[inline]
    unsafe fn write(&self, tail: usize, from: *const T) {
        let slot = self.head.shared.slot(tail);
        // SAFETY: the position is the caller's alone until the stamp marks it as full.
        unsafe {
            (*slot.value.get())
                .as_mut_ptr()
                .copy_from_nonoverlapping(from, 1)
        };
        // ORDER: Release; pairs with the Acquire in `pop`: the value is seen (U10).
        slot.stamp.store(tail + 1, Release);
        fence_after_rmw(); // settle/1: `tail` moved before the caller looks for waiting receivers
    }

    /// Empties the position that a receiver has just taken.
    ///
    /// # Safety
    /// The caller took the position, which holds a value. `to` is writable as a `T`.
    #[inline]
    unsafe fn read(&self, head: usize, to: *mut T) {
        let slot = self.head.shared.slot(head);
        // SAFETY: the position is the caller's alone until the stamp marks it as free, and it holds
        // a value.
        unsafe { to.copy_from_nonoverlapping((*slot.value.get()).as_ptr(), 1) };
        // ORDER: Release; pairs with the Acquire in `take_tail`: the value is out.
        slot.stamp.store(self.head.shared.lap_later(head), Release);
        fence_after_rmw(); // settle/2
        if self.head.shared.voids.load(Relaxed) != 0 {
            self.skip_voids();
        }
    }

    /// As [`Ring::push`], if that needs no second look. False: it was not done, for whatever
    /// reason.
    ///
    /// # Safety
    /// As for [`Ring::push`]; true is success.
    #[inline]
    pub(super) unsafe fn push_at_once(&self, from: *const T) -> bool {
        let tail = self.tail.position.load(Relaxed);
        if tail & CLOSED != 0 {
            return false;
        }
        let slot = self.head.shared.slot(tail);
        // ORDER: as in `take_tail`.
        if slot.stamp.load(Acquire) != tail
            || self
                .tail
                .position
                .compare_exchange(tail, self.head.shared.after(tail), SeqCst, Relaxed)
                .is_err()
        {
            return false;
        }
        // SAFETY: the position was just taken; the caller gives the value away.
        unsafe { self.write(tail, from) };
        true
    }

    /// As [`Ring::pop`], if that needs no second look. False: it was not done, for whatever reason.
    ///
    /// # Safety
    /// As for [`Ring::pop`]; `to` is initialised if true is returned.
    #[inline]
    pub(super) unsafe fn pop_at_once(&self, to: *mut T) -> bool {
        let head = self.head.position.load(Relaxed);
        let slot = self.head.shared.slot(head);
        // ORDER: as in `pop`.
        if slot.stamp.load(Acquire) != head + 1
            || self
                .head
                .position
                .compare_exchange(head, self.head.shared.after(head), SeqCst, Relaxed)
                .is_err()
        {
            return false;
        }
        // SAFETY: the position was just taken, and by its stamp it holds a value.
        unsafe { self.read(head, to) };
        true
    }

    /// Takes a position that is filled later.
    pub(super) fn reserve(&self) -> Result<ReservedPlace, No> {
        let tail = self.take_tail()?;
        // ORDER: Release; a receiver that sees the mark waits in its queue, and `fill` looks there.
        self.head
            .shared
            .slot(tail)
            .stamp
            .store(tail | RESERVED, Release);
        Ok(ReservedPlace(tail & (self.head.shared.lap - 1)))
    }

    /// Fills a reserved place. Inside the runtime; the caller then looks for waiting receivers.
    ///
    /// # Safety
    /// `from` is readable as a `T` that is given away. The caller reserved the place, and fills or
    /// voids it once.
    pub(super) unsafe fn fill(&self, place: ReservedPlace, from: *const T) {
        let slot = self.head.shared.slot_at(place.0);
        // SAFETY: the reservation made the slot the caller's.
        unsafe {
            (*slot.value.get())
                .as_mut_ptr()
                .copy_from_nonoverlapping(from, 1)
        };
        let position = slot.stamp.load(Relaxed) & !RESERVED;
        // ORDER: SeqCst; as the Release in `write`, and before the look for receivers that saw the
        // mark (settle/1).
        slot.stamp.swap(position + 1, SeqCst);
        fence_after_rmw();
    }

    /// Gives a reserved place up: receivers skip it. Inside the runtime; the caller then looks for
    /// waiting receivers and senders.
    pub(super) fn void(&self, place: ReservedPlace) {
        let slot = self.head.shared.slot_at(place.0);
        let position = slot.stamp.load(Relaxed) & !RESERVED;
        // ORDER: SeqCst; a thread that makes the place the oldest sees the count, or this thread
        // sees the new head.
        self.head.shared.voids.fetch_add(1, SeqCst);
        // ORDER: as in `fill`.
        slot.stamp.swap((position + 1) | VOID, SeqCst);
        fence_after_rmw();
        self.skip_voids();
    }

    /// Frees places at the head that were given up.
    #[cold]
    fn skip_voids(&self) {
        loop {
            let head = self.head.position.load(SeqCst);
            let slot = self.head.shared.slot(head);
            if slot.stamp.load(Acquire) != (head + 1) | VOID {
                return;
            }
            // ORDER: as in `pop`.
            if self
                .head
                .position
                .compare_exchange(head, self.head.shared.after(head), SeqCst, Relaxed)
                .is_ok()
            {
                slot.stamp.store(self.head.shared.lap_later(head), Release);
                self.head.shared.voids.fetch_sub(1, Relaxed);
                fence_after_rmw(); // settle/2: this move of `head`, too
            }
        }
    }

    /// Takes the oldest value out, to `to`. Inside the runtime.
    ///
    /// # Safety
    /// `to` is writable as a `T`.
    #[inline]
    pub(super) unsafe fn pop(&self, to: *mut T) -> Result<(), No> {
        let mut turns = 0;
        let mut head = self.head.position.load(Relaxed);
        loop {
            let slot = self.head.shared.slot(head);
            // ORDER: Acquire; pairs with the Release in `write` and the swap in `fill`.
            let stamp = slot.stamp.load(Acquire);
            if stamp == head + 1 {
                // ORDER: SeqCst; a sender that has queued itself sees the new head, or this thread
                // sees the sender in its queue (settle/2).
                match self.head.position.compare_exchange_weak(
                    head,
                    self.head.shared.after(head),
                    SeqCst,
                    Relaxed,
                ) {
                    Err(found) => {
                        head = found;
                        crate::shim::spin_hint();
                        continue;
                    }
                    Ok(_) => {
                        // SAFETY: the position was just taken, and by its stamp it holds a value.
                        unsafe { self.read(head, to) };
                        return Ok(());
                    }
                }
            }
            if stamp == head | RESERVED {
                return Err(No::NotNow); // `fill` will look for waiting receivers
            }
            fence(SeqCst);
            // ORDER: Acquire; pairs with the SeqCst in `close`: what was done before it is seen
            // (U10).
            let tail = self.tail.position.load(Acquire);
            if tail & !CLOSED == head {
                return Err(if tail & CLOSED != 0 {
                    No::Closed
                } else {
                    No::NotNow
                });
            }
            // A sender is about to publish its value, or the head that was read is old.
            spin_or_yield(&mut turns);
            head = self.head.position.load(Relaxed);
        }
    }

    /// Whether a receiver would find something now: a value, or the end.
    pub(super) fn is_ready_to_pop(&self) -> bool {
        let head = self.head.position.load(SeqCst);
        let tail = self.tail.position.load(SeqCst);
        if tail & !CLOSED == head {
            return tail & CLOSED != 0;
        }
        self.head.shared.slot(head).stamp.load(Acquire) != head | RESERVED
    }

    /// Whether a sender would find room now, or the end.
    pub(super) fn is_ready_to_push(&self) -> bool {
        let tail = self.tail.position.load(SeqCst);
        let head = self.head.position.load(SeqCst);
        tail & CLOSED != 0 || self.head.shared.lap_later(head) != tail
    }

    /// No sender takes a position after this. False: it was closed already.
    pub(super) fn close(&self) -> bool {
        // ORDER: SeqCst; every sender sees the bit, or has taken its position before.
        self.tail.position.fetch_or(CLOSED, SeqCst) & CLOSED == 0
    }

    pub(super) fn is_closed(&self) -> bool {
        self.tail.position.load(SeqCst) & CLOSED != 0
    }

    /// Both positions, in a form whose sums over channels differ when the positions do. If they are
    /// unchanged nothing happened.
    pub(super) fn version(&self) -> (usize, usize) {
        let (head, tail) = self.positions();
        (head, tail.rotate_left(1))
    }

    fn positions(&self) -> (usize, usize) {
        (
            self.head.position.load(SeqCst),
            self.tail.position.load(SeqCst),
        )
    }

    /// Whether a reserved place was neither filled nor given up. The caller has the only reference.
    pub(super) fn has_reserved(&self) -> bool {
        let (mut at, tail) = self.positions();
        while at != tail & !CLOSED {
            if self.head.shared.slot(at).stamp.load(Relaxed) == at | RESERVED {
                return true;
            }
            at = self.head.shared.after(at);
        }
        false
    }

    /// Values in the ring, at some moment.
    pub(super) fn len(&self) -> usize {
        loop {
            let (head, tail) = self.positions();
            if self.tail.position.load(SeqCst) != tail {
                continue;
            }
            let tail = tail & !CLOSED;
            let index = |position| position & (self.head.shared.lap - 1);
            let (head_at, tail_at) = (index(head), index(tail));
            let taken = if head == tail {
                0
            } else if tail_at > head_at {
                tail_at - head_at
            } else {
                self.capacity() - head_at + tail_at
            };
            return taken.saturating_sub(self.head.shared.voids.load(Relaxed));
        }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the room is a T's. No other thread has the ring any more.
        while unsafe { self.pop(value.as_mut_ptr()) }.is_ok() {
            // SAFETY: `pop` has just written it.
            unsafe { value.assume_init_drop() };
        }
        let slots = ptr::slice_from_raw_parts_mut(self.head.shared.slots.as_ptr(), self.capacity());
        // SAFETY: `NewRing::place` wrote them, and no value is left in them.
        unsafe { slots.drop_in_place() };
    }
}
