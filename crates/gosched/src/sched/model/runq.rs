//! The local run queue of a P: a ring of 256 slots, and a priority slot `next` in front of it.
//!
//! Only the *owner*, the M that holds the P, adds to it; any M may take from it. A *thief* is any
//! other M. The *ring* is the slots `[head, tail)`, and both counters wrap (R1). *next* is the
//! goroutine that runs next on this P (Go's `runnext`); it is not in the ring (R5).
//!
//! Protocol.
//! - Only the owner writes `tail` and slots outside `[head, tail)` (R2). It writes the slot, then
//!   stores `tail` with Release. A thread that loads `tail` with Acquire may read the slot (R4).
//! - `head` moves forward by compare-and-swap only, by the owner and by thieves (R3). A consumer
//!   reads the slots first and then swaps. If the swap fails, it discards what it read and starts
//!   again. The swap is Release, and the owner loads `head` with Acquire before it reuses a slot.
//!   So it overwrites a slot only after the reads.
//! - `put` never retries because of thieves (S4). A failed swap means that another M made progress
//!   (S5).
//! - Any M takes `next` by compare-and-swap; only the owner replaces it (R5).
//!
//! The feared story: the owner moves the goroutine in `next` to the ring. For a moment the
//! goroutine is in neither place, so an observer that reads the ring first and `next` second may
//! see both empty. [`RunQueue::is_empty`] therefore reads `tail` again at the end, because the move
//! stores a new one.

use std::ptr::{self, NonNull};

use crate::shim::{Acquire, AtomicPtr, AtomicU32, RING, Relaxed, Release, SeqCst};

const CAP: u32 = RING as u32;

/// What one overflow moves: half of the ring, and the new goroutine (R6).
pub(crate) const OVERFLOW: usize = RING / 2 + 1;

/// Keeps the thieves' counter off the owner's cache line.
#[repr(align(128))]
struct Line<T>(T);

/// A bounded queue with one producer and many consumers, and its priority slot.
pub(crate) struct RunQueue<T> {
    head: Line<AtomicU32>,
    tail: Line<AtomicU32>,
    next: AtomicPtr<T>,
    ring: [AtomicPtr<T>; RING],
}

pub(crate) enum Steal<T> {
    Empty,
    /// The goroutine to run now, and the number of goroutines moved.
    Moved(NonNull<T>, u32),
}

impl<T> RunQueue<T> {
    pub(crate) fn new() -> Self {
        RunQueue {
            head: Line(AtomicU32::new(0)),
            tail: Line(AtomicU32::new(0)),
            next: AtomicPtr::new(ptr::null_mut()),
            ring: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
        }
    }

    /// An empty queue whose counters start at `at`: tests let them wrap (R1).
    #[cfg(test)]
    pub(crate) fn starting_at(at: u32) -> Self {
        RunQueue {
            head: Line(AtomicU32::new(at)),
            tail: Line(AtomicU32::new(at)),
            ..RunQueue::new()
        }
    }

    /// The owner's side.
    ///
    /// # Safety
    /// The caller is the queue's only producer: its M holds the P (P1, R2), or the world is
    /// stopped.
    #[inline]
    pub(crate) unsafe fn owner(&self) -> Owner<'_, T> {
        Owner { q: self }
    }

    /// The length of the ring, without `next`; a snapshot.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        loop {
            // ORDER: Acquire, head before tail; a difference over the capacity shows a torn pair.
            let head = self.head.0.load(Acquire);
            let tail = self.tail.0.load(Acquire);
            let len = tail.wrapping_sub(head);
            if len <= CAP {
                return len;
            }
        }
    }

    /// Whether the ring was empty, whatever `next` holds; a snapshot.
    #[inline]
    pub(crate) fn is_ring_empty(&self) -> bool {
        // ORDER: Acquire, head before tail, as in `len`.
        self.head.0.load(Acquire) == self.tail.0.load(Acquire)
    }

    /// Whether ring and `next` were empty at one moment. Never true while a goroutine moves from
    /// `next` to the ring.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        loop {
            // ORDER: Acquire for all. The caller's fence (wake/2) orders this against submitters.
            // `tail` is read again because of the feared story above.
            let head = self.head.0.load(Acquire);
            let tail = self.tail.0.load(Acquire);
            let next = self.next.load(Acquire);
            if tail == self.tail.0.load(Acquire) {
                return head == tail && next.is_null();
            }
        }
    }

    /// The priority slot, for checks and dumps.
    pub(crate) fn peek_next(&self) -> *mut T {
        self.next.load(Acquire)
    }

    #[inline]
    fn slot(&self, index: u32) -> &AtomicPtr<T> {
        &self.ring[index as usize % RING]
    }

    /// Takes the larger half of this queue for `thief`. All but one go into the thief's ring; the
    /// last of them is returned (I3, I4). If the ring is empty and `take_next` is set, takes `next`
    /// instead. `before_next` runs before that, so that the victim may run it (I8).
    pub(crate) fn steal_into(
        &self,
        thief: &Owner<'_, T>,
        take_next: bool,
        before_next: impl Fn(),
    ) -> Steal<T> {
        let base = thief.q.tail.0.load(Relaxed);
        let n = self.grab(thief.q, base, take_next, before_next);
        if n == 0 {
            return Steal::Empty;
        }
        let last = base.wrapping_add(n - 1);
        // R2/R4: never null, because `grab` has just copied a published slot to here.
        let Some(g) = NonNull::new(thief.q.slot(last).load(Relaxed)) else {
            return Steal::Empty;
        };
        if n > 1 {
            debug_assert!(
                last.wrapping_sub(thief.q.head.0.load(Acquire)) < CAP,
                "R1: a thief's ring must be empty enough"
            );
            // ORDER: Release; pairs with the Acquire loads of `tail`: publishes the stolen slots.
            thief.q.tail.0.store(last, Release);
        }
        Steal::Moved(g, n)
    }

    /// Copies the stolen pointers to `to[base..]` and moves the head past them.
    fn grab(&self, to: &RunQueue<T>, base: u32, take_next: bool, before_next: impl Fn()) -> u32 {
        loop {
            // ORDER: Acquire; `head` pairs with other consumers' Release swaps, `tail` with the
            // owner's Release store. So the slots between them are readable.
            let head = self.head.0.load(Acquire);
            let tail = self.tail.0.load(Acquire);
            let len = tail.wrapping_sub(head);
            let n = len - len / 2;
            if n == 0 {
                if !take_next || self.next.load(Acquire).is_null() {
                    return 0;
                }
                before_next();
                let next = self.next.load(Acquire);
                if next.is_null() || !self.take_next(next) {
                    continue;
                }
                to.slot(base).store(next, Relaxed);
                return 1;
            }
            if n > CAP / 2 {
                continue; // a torn pair: head and tail of different moments
            }
            for i in 0..n {
                let g = self.slot(head.wrapping_add(i)).load(Relaxed);
                to.slot(base.wrapping_add(i)).store(g, Relaxed);
            }
            // ORDER: Release, by SeqCst; pairs with the owner's Acquire load of `head`: the owner
            // reuses the slots after these reads.
            let moved = self
                .head
                .0
                .compare_exchange(head, head.wrapping_add(n), SeqCst, Relaxed);
            if moved.is_ok() {
                return n;
            }
        }
    }

    #[inline]
    fn take_next(&self, expected: *mut T) -> bool {
        // ORDER: AcqRel, by SeqCst; pairs with the owner's swap in `put_next`, which published the
        // G.
        self.next
            .compare_exchange(expected, ptr::null_mut(), SeqCst, Relaxed)
            .is_ok()
    }
}

pub(crate) struct Owner<'a, T> {
    q: &'a RunQueue<T>,
}

impl<T> Owner<'_, T> {
    /// Makes `g` the next to run and returns the goroutine that it displaces.
    #[inline]
    #[must_use = "the displaced goroutine must go to the ring"]
    pub(crate) fn put_next(&self, g: NonNull<T>) -> Option<NonNull<T>> {
        // ORDER: SeqCst; publishes g (pairs with `take_next`). It is also the read-modify-write of
        // the submitter's barrier (wake/1).
        NonNull::new(self.q.next.swap(g.as_ptr(), SeqCst))
    }

    /// Puts `g` at the tail; returns it if the ring is full.
    #[inline]
    pub(crate) fn put(&self, g: NonNull<T>) -> Result<(), NonNull<T>> {
        // ORDER: Acquire; pairs with the consumers' Release swaps: no consumer reads the slot any
        // more.
        let head = self.q.head.0.load(Acquire);
        let tail = self.q.tail.0.load(Relaxed);
        if tail.wrapping_sub(head) >= CAP {
            return Err(g);
        }
        self.q.slot(tail).store(g.as_ptr(), Relaxed);
        // ORDER: Release; pairs with the Acquire loads of tail: publishes the slot.
        self.q.tail.0.store(tail.wrapping_add(1), Release);
        Ok(())
    }

    /// Takes the older half of a full ring, for the global queue; returns the number. None: a thief
    /// has taken some meanwhile, so `put` has room.
    pub(crate) fn take_half(&self, out: &mut [*mut T; OVERFLOW]) -> Option<usize> {
        let head = self.q.head.0.load(Acquire);
        let tail = self.q.tail.0.load(Relaxed);
        if tail.wrapping_sub(head) != CAP {
            return None;
        }
        let n = CAP / 2;
        for i in 0..n {
            out[i as usize] = self.q.slot(head.wrapping_add(i)).load(Relaxed);
        }
        self.advance(head, n).then_some(n as usize)
    }

    /// Takes the next goroutine: `next`, or else the head of the ring. The flag is true for `next`,
    /// which inherits the time slice.
    #[inline]
    pub(crate) fn get(&self) -> Option<(NonNull<T>, bool)> {
        if let Some(next) = self.take_own_next() {
            return Some((next, true));
        }
        loop {
            let head = self.q.head.0.load(Acquire);
            let tail = self.q.tail.0.load(Relaxed);
            if head == tail {
                return None;
            }
            let g = self.q.slot(head).load(Relaxed);
            if self.advance(head, 1) {
                return NonNull::new(g).map(|g| (g, false));
            }
        }
    }

    #[inline]
    pub(crate) fn take_own_next(&self) -> Option<NonNull<T>> {
        let next = self.q.next.load(Relaxed);
        // One try is enough: only a thief can have taken it.
        if next.is_null() || !self.q.take_next(next) {
            return None;
        }
        NonNull::new(next)
    }

    /// The goroutine `n` places behind the head of the ring; null if there is none. A guess,
    /// because a thief may have taken it.
    #[inline]
    pub(crate) fn peek(&self, n: u32) -> *mut T {
        let head = self.q.head.0.load(Relaxed);
        let tail = self.q.tail.0.load(Relaxed);
        match tail.wrapping_sub(head) > n {
            true => self.q.slot(head.wrapping_add(n)).load(Relaxed),
            false => ptr::null_mut(),
        }
    }

    #[inline]
    fn advance(&self, head: u32, n: u32) -> bool {
        // ORDER: Release; pairs with `put`'s Acquire load of `head`, as in `grab`. Acquire is not
        // needed, because the owner wrote the slots itself.
        self.q
            .head
            .0
            .compare_exchange(head, head.wrapping_add(n), Release, Relaxed)
            .is_ok()
    }

    pub(crate) fn room(&self) -> u32 {
        CAP - self.q.len()
    }
}
