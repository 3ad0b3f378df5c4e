//! The buffer of an unbounded channel: a chain of blocks that senders fill and receivers empty
//! without a lock.
//!
//! `tail` and `head` are positions, one per value, with the block that each is in. A position's
//! place in its block is its number modulo a lap. The last position of a lap is no place: while a
//! tail or head stands there, the thread that took the place before it is linking to the next
//! block. Both ends stand there at first, without a block: the first sender brings one (`begin`).
//! The thread that reads the last value of a block frees the block. No other thread follows
//! a pointer to it then, for only a thread that has won a place in a block follows a pointer to it.
//!
//! Blocks are not allocated or freed inside the runtime: a goroutine that waits for this P may hold
//! malloc's lock (D9). So a sender brings a spare block if it may need one, and emptied blocks are
//! freed outside. One of them is kept for the next sender that needs a block. So a channel whose
//! values come and go uses the same few blocks.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::{MaybeUninit, offset_of};
use std::ptr::{self, NonNull};

use crossbeam_utils::CachePadded;

use super::ring::No;
use crate::shim::{
    AcqRel, Acquire, AtomicPtr, AtomicUsize, BLOCK_LAP, Relaxed, Release, SeqCst, UnsafeCell,
    fence, fence_after_rmw, spin_or_yield,
};

/// Bytes of values in one block, at most. A block has room for three values even if they take more.
const BLOCK_BYTES: usize = 4096;
/// Positions are counted above the flag.
const ONE: usize = 2;
/// In `tail`: the channel is closed. In `head`: this block is not the last one.
const FLAG: usize = 1;

struct ListSlot<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    /// 1: written.
    state: AtomicUsize,
}

/// Some values, and the link to the block after them.
#[repr(C)]
pub(super) struct ListBlock<T> {
    next: AtomicPtr<ListBlock<T>>,
    reads: AtomicUsize,
    /// Where the slots begin: there are `PLACES` of them.
    slots: [ListSlot<T>; 0],
}

impl<T> ListBlock<T> {
    /// Positions of one block, its link included: a power of two, so that the place of a position
    /// is quickly found. (The loom models have 3.) A block of small values has room for many of
    /// them, a block of large ones is not much larger.
    const LAP: usize = {
        let mut lap = BLOCK_LAP;
        while lap > 4 && (lap - 1).saturating_mul(size_of::<T>()) > BLOCK_BYTES {
            lap /= 2;
        }
        lap
    };
    /// Values of one block.
    const PLACES: usize = ListBlock::<T>::LAP - 1;

    const LAYOUT: Layout = {
        let slots = ListBlock::<T>::PLACES * size_of::<ListSlot<T>>();
        let size = offset_of!(ListBlock<T>, slots) + slots;
        match Layout::from_size_align(size, align_of::<ListBlock<T>>()) {
            Ok(layout) => layout,
            Err(_) => panic!("a message is too large for a channel"),
        }
    };

    /// A slot of a block.
    ///
    /// # Safety
    /// The block is not freed while the slot is used. The place is below `PLACES`.
    #[inline]
    unsafe fn slot<'b>(block: *mut ListBlock<T>, place: usize) -> &'b ListSlot<T> {
        debug_assert!(place < ListBlock::<T>::PLACES);
        // SAFETY: `OwnedBlock::new` allocated so many slots there and wrote them. The block stays,
        // as the caller promises.
        unsafe {
            &*block
                .byte_add(offset_of!(ListBlock<T>, slots))
                .cast::<ListSlot<T>>()
                .add(place)
        }
    }
}

/// A block that no other thread has a pointer to.
pub(super) struct OwnedBlock<T>(NonNull<ListBlock<T>>);

impl<T> OwnedBlock<T> {
    fn new() -> OwnedBlock<T> {
        let layout = ListBlock::<T>::LAYOUT;
        // SAFETY: the size is not zero: a block has a link.
        let at = unsafe { alloc(layout) }.cast::<ListBlock<T>>();
        let Some(at) = NonNull::new(at) else {
            handle_alloc_error(layout);
        };
        let block = at.as_ptr();
        // SAFETY: the memory is the block's. Every field of it is written, except the values, which
        // may be uninitialised.
        unsafe {
            (&raw mut (*block).next).write(AtomicPtr::new(ptr::null_mut()));
            (&raw mut (*block).reads).write(AtomicUsize::new(0));
            let slots = (&raw mut (*block).slots).cast::<ListSlot<T>>();
            for place in 0..ListBlock::<T>::PLACES {
                slots.add(place).write(ListSlot {
                    value: UnsafeCell::new(MaybeUninit::uninit()),
                    state: AtomicUsize::new(0),
                });
            }
        }
        OwnedBlock(at)
    }

    /// A block whose values have been read becomes a new one.
    fn cleared(self) -> OwnedBlock<T> {
        self.next().store(ptr::null_mut(), Relaxed);
        // SAFETY: the block is this one's alone.
        unsafe { self.0.as_ref() }.reads.store(0, Relaxed);
        for place in 0..ListBlock::<T>::PLACES {
            // SAFETY: the block is this one's alone.
            let slot = unsafe { ListBlock::slot(self.0.as_ptr(), place) };
            slot.state.store(0, Relaxed);
        }
        self
    }

    fn next(&self) -> &AtomicPtr<ListBlock<T>> {
        // SAFETY: the block is this one's alone.
        &unsafe { self.0.as_ref() }.next
    }

    fn into_raw(self) -> *mut ListBlock<T> {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// # Safety
    /// [`OwnedBlock::into_raw`] returned it, and no thread follows another pointer to it. None:
    /// null.
    unsafe fn from_raw(at: *mut ListBlock<T>) -> Option<OwnedBlock<T>> {
        NonNull::new(at).map(OwnedBlock)
    }
}

impl<T> Drop for OwnedBlock<T> {
    fn drop(&mut self) {
        let block = self.0.as_ptr();
        // SAFETY: `new` allocated and wrote the block, with this layout, and no other thread has a
        // pointer to it. Its values have been read.
        unsafe {
            let slots = (&raw mut (*block).slots).cast::<ListSlot<T>>();
            ptr::slice_from_raw_parts_mut(slots, ListBlock::<T>::PLACES).drop_in_place();
            block.drop_in_place();
            dealloc(block.cast(), ListBlock::<T>::LAYOUT);
        }
    }
}

#[repr(C)]
struct ListEnd<T> {
    position: AtomicUsize,
    /// Null before the first send.
    block: AtomicPtr<ListBlock<T>>,
    /// Used at the tail.
    kept: KeptBlocks<T>,
}

/// An emptied block for the next sender that needs one; several if they were emptied inside the
/// runtime. In the second cache line of the senders' end: a receiver that keeps a block does not
/// take the tail's line from the senders.
#[repr(align(64))]
struct KeptBlocks<T>(AtomicPtr<ListBlock<T>>);

/// An unbounded queue.
pub(super) struct List<T> {
    head: CachePadded<ListEnd<T>>,
    tail: CachePadded<ListEnd<T>>,
}

// SAFETY: D1, U10: values go from the sender's thread to the receiver's. Each place belongs to one
// of them at a time.
unsafe impl<T: Send> Send for List<T> {}
// SAFETY: D1, U10: a place belongs to the one thread that has won its position, until its state
// hands it on.
unsafe impl<T: Send> Sync for List<T> {}

/// A block that a sender brings along.
pub(super) type SpareBlock<T> = Option<OwnedBlock<T>>;

/// Emptied blocks, to be freed outside the runtime.
pub(super) struct Emptied<T>(*mut ListBlock<T>);

impl<T> Emptied<T> {
    pub(super) fn new() -> Emptied<T> {
        Emptied(ptr::null_mut())
    }

    fn push(&mut self, block: *mut ListBlock<T>) {
        // SAFETY: all values of the block were read, so no thread follows a pointer to it any more
        // (see the module's text).
        unsafe { &*block }.next.store(self.0, Relaxed);
        self.0 = block;
    }
}

impl<T> Emptied<T> {
    #[inline]
    fn pop(&mut self) -> Option<OwnedBlock<T>> {
        // SAFETY: the list owns its blocks.
        let block = unsafe { OwnedBlock::from_raw(self.0)? };
        self.0 = block.next().load(Relaxed);
        Some(block)
    }
}

impl<T> Drop for Emptied<T> {
    #[inline]
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// Why a push did not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoPush {
    Closed,
    /// Bring a spare block.
    NeedsBlock,
}

impl<T> List<T> {
    const LAP: usize = ListBlock::<T>::LAP;
    const BLOCK: usize = ListBlock::<T>::PLACES;

    /// An empty list without a block.
    pub(super) fn new() -> List<T> {
        let end = || {
            CachePadded::new(ListEnd {
                position: AtomicUsize::new(List::<T>::BLOCK * ONE),
                block: AtomicPtr::new(ptr::null_mut()),
                kept: KeptBlocks(AtomicPtr::new(ptr::null_mut())),
            })
        };
        List {
            head: end(),
            tail: end(),
        }
    }

    #[inline]
    fn place_of(position: usize) -> usize {
        (position / ONE) % List::<T>::LAP
    }

    /// Keeps emptied blocks until a call from outside takes them. Inside or outside the runtime.
    pub(super) fn keep(&self, mut emptied: Emptied<T>) {
        while !emptied.0.is_null() {
            let block = emptied.0;
            // SAFETY: `emptied` owns its blocks.
            let link = &unsafe { &*block }.next;
            emptied.0 = link.load(Relaxed);
            let mut top = self.tail.kept.0.load(Relaxed);
            loop {
                link.store(top, Relaxed);
                // ORDER: Release; pairs with the Acquire in `take_kept`. No thread pops a single
                // block, so there is no ABA.
                match self
                    .tail
                    .kept
                    .0
                    .compare_exchange_weak(top, block, Release, Relaxed)
                {
                    Ok(_) => break,
                    Err(found) => top = found,
                }
            }
        }
    }

    /// Takes what was kept. Outside the runtime, for the caller may free it.
    fn take_kept(&self) -> Emptied<T> {
        // ORDER: Acquire; pairs with the Release in `keep`.
        Emptied(self.tail.kept.0.swap(ptr::null_mut(), Acquire))
    }

    /// Keeps one block and frees the others. Outside the runtime.
    #[inline]
    pub(super) fn recycle(&self, mut emptied: Emptied<T>) {
        if let Some(one) = emptied.pop() {
            drop(emptied);
            drop(self.take_kept());
            self.keep(Emptied(one.into_raw()));
        }
    }

    /// A block if the next push may need one. Outside the runtime.
    #[inline]
    pub(super) fn spare(&self) -> SpareBlock<T> {
        (Self::place_of(self.tail.position.load(Relaxed)) == Self::BLOCK - 1)
            .then(|| self.fetch_spare())
    }

    /// A block for a push that needs one. Outside the runtime.
    #[inline(never)]
    pub(super) fn fetch_spare(&self) -> OwnedBlock<T> {
        if self.tail.kept.0.load(Relaxed).is_null() {
            return OwnedBlock::new();
        }
        match self.take_kept().pop() {
            Some(block) => block.cleared(),
            None => OwnedBlock::new(),
        }
    }

    /// Puts the value at `from` in; on success it has been moved. Inside the runtime.
    ///
    /// # Safety
    /// `from` is readable as a `T` that the caller gives away on success.
    #[inline]
    pub(super) unsafe fn push(
        &self,
        from: *const T,
        spare: &mut SpareBlock<T>,
    ) -> Result<(), NoPush> {
        let mut turns = 0;
        loop {
            // ORDER: Acquire; pairs with the Release in `link`. The position is loaded before the
            // block, so the block is never older.
            let tail = self.tail.position.load(Acquire);
            let block = self.tail.block.load(Acquire);
            if tail & FLAG != 0 {
                return Err(NoPush::Closed);
            }
            let place = Self::place_of(tail);
            if place == Self::BLOCK {
                if block.is_null() {
                    *spare = match spare.take() {
                        Some(first) => self.begin(first),
                        None => return Err(NoPush::NeedsBlock),
                    };
                } else {
                    spin_or_yield(&mut turns);
                }
                continue;
            }
            if place == Self::BLOCK - 1 && spare.is_none() {
                return Err(NoPush::NeedsBlock);
            }
            // ORDER: SeqCst; a receiver that has queued itself sees the new tail, or this thread
            // sees the receiver in its queue (settle/1).
            let taken = self
                .tail
                .position
                .compare_exchange_weak(tail, tail + ONE, SeqCst, Relaxed);
            if taken.is_err() {
                crate::shim::spin_hint();
                continue;
            }
            if place == Self::BLOCK - 1
                && let Some(next) = spare.take()
            {
                self.link(block, next.into_raw(), tail);
            }
            // SAFETY: the place was won, and the caller gives away the value at `from`.
            unsafe { self.put(block, place, from) };
            return Ok(());
        }
    }

    /// The first send brings the first block, to which both ends move. Returns the block if another
    /// sender was faster. Inside the runtime.
    #[cold]
    #[inline(never)]
    fn begin(&self, first: OwnedBlock<T>) -> SpareBlock<T> {
        let first = first.into_raw();
        // ORDER: Relaxed; no thread uses the block before it has seen the tail in it.
        let begun = self
            .tail
            .block
            .compare_exchange(ptr::null_mut(), first, Relaxed, Relaxed);
        if begun.is_err() {
            // SAFETY: `into_raw` has just returned it, and it was not published.
            return unsafe { OwnedBlock::from_raw(first) };
        }
        // ORDER: Release; pairs with the Acquire loads in `push` and `after`: the block is there,
        // and whole. An addition: the channel may be closed at this moment, which sets the flag.
        // The tail comes first: a head beyond the tail would look like a value. Receivers wait
        // while only the head is behind.
        self.tail.position.fetch_add(ONE, Release);
        // ORDER: Release; both pair with the Acquire loads in `pop`. The block is stored first.
        self.head.block.store(first, Release);
        self.head.position.store((Self::BLOCK + 1) * ONE, Release);
        None
    }

    /// The common case of [`List::push`]: no other thread is at the end, and the block has room.
    /// False: it is another case.
    ///
    /// # Safety
    /// As for [`List::push`]; true is success.
    #[inline]
    pub(super) unsafe fn push_at_once(&self, from: *const T) -> bool {
        // ORDER: as in `push`, all three.
        let tail = self.tail.position.load(Acquire);
        let block = self.tail.block.load(Acquire);
        let place = Self::place_of(tail);
        let taken = tail & FLAG == 0
            && place < Self::BLOCK - 1
            && self
                .tail
                .position
                .compare_exchange(tail, tail + ONE, SeqCst, Relaxed)
                .is_ok();
        if taken {
            // SAFETY: the place was won, and the caller gives away the value at `from`.
            unsafe { self.put(block, place, from) };
        }
        taken
    }

    /// # Safety
    /// The caller won the place; `from` is readable as a `T` that is given away.
    #[inline]
    unsafe fn put(&self, block: *mut ListBlock<T>, place: usize, from: *const T) {
        // SAFETY: the place is this thread's alone until its state marks it as written. So its
        // block is not freed.
        unsafe {
            let slot = ListBlock::slot(block, place);
            (*slot.value.get())
                .as_mut_ptr()
                .copy_from_nonoverlapping(from, 1);
            // ORDER: Release; pairs with the Acquire in `take`: the value is seen (U10).
            slot.state.store(1, Release);
        }
        fence_after_rmw(); // settle/1: the tail moved before the caller looks for waiting receivers
    }

    /// The sender that took a block's last place brings the next one.
    fn link(&self, block: *mut ListBlock<T>, next: *mut ListBlock<T>, tail: usize) {
        // ORDER: Release; pair with the Acquire loads of both ends.
        self.tail.block.store(next, Release);
        // An addition: the channel may be closed at this moment, which sets the flag.
        self.tail.position.fetch_add(ONE, Release);
        debug_assert_eq!(Self::place_of(tail), Self::BLOCK - 1);
        // SAFETY: this thread's place in the block is not written yet, so the block is not freed.
        unsafe { &*block }.next.store(next, Release);
    }

    /// Takes the oldest value out, to `to`. Inside the runtime.
    ///
    /// # Safety
    /// `to` is writable as a `T`.
    #[inline]
    pub(super) unsafe fn pop(&self, to: *mut T, emptied: &mut Emptied<T>) -> Result<(), No> {
        let mut turns = 0;
        loop {
            // ORDER: Acquire; pairs with the Release in `unlink`.
            let head = self.head.position.load(Acquire);
            let block = self.head.block.load(Acquire);
            let place = Self::place_of(head);
            if place == Self::BLOCK {
                if block.is_null() {
                    fence(SeqCst); // an old tail proves nothing
                    self.after(head)?;
                }
                spin_or_yield(&mut turns);
                continue;
            }
            let new = match self.after(head) {
                Ok(new) => new,
                Err(_) => {
                    fence(SeqCst); // an old tail proves nothing
                    self.after(head)?
                }
            };
            // ORDER: SeqCst; wins the place, and the block with it.
            let taken = self
                .head
                .position
                .compare_exchange_weak(head, new, SeqCst, Relaxed);
            if taken.is_err() {
                crate::shim::spin_hint();
                continue;
            }
            if place == Self::BLOCK - 1 {
                self.unlink(block, new);
            }
            // SAFETY: this thread won the place. The block stays until the place has been read.
            unsafe { self.take(block, place, to, emptied) };
            return Ok(());
        }
    }

    /// The common case of [`List::pop`]: no other thread is at the front, and the block has more.
    /// False: it is another case.
    ///
    /// # Safety
    /// As for [`List::pop`]; `to` is initialised if true is returned.
    #[inline]
    pub(super) unsafe fn pop_at_once(&self, to: *mut T) -> bool {
        // ORDER: as in `pop`, all three.
        let head = self.head.position.load(Acquire);
        let block = self.head.block.load(Acquire);
        let place = Self::place_of(head);
        let taken = place < Self::BLOCK - 1
            && self.after(head).is_ok_and(|new| {
                self.head
                    .position
                    .compare_exchange(head, new, SeqCst, Relaxed)
                    .is_ok()
            });
        if taken {
            let mut emptied = Emptied::new();
            // SAFETY: this thread won the place. The block stays until the place has been read.
            unsafe { self.take(block, place, to, &mut emptied) };
            if !emptied.0.is_null() {
                self.keep(emptied);
            }
        }
        taken
    }

    /// The head after the value at `head` is taken, if there is a value. The tail is never older
    /// than the head that was read. The thread that moved the head there had seen a tail beyond it,
    /// or it had moved the tail there itself (`begin`).
    #[inline]
    fn after(&self, head: usize) -> Result<usize, No> {
        let new = head + ONE;
        if head & FLAG != 0 {
            return Ok(new);
        }
        // ORDER: Acquire; pairs with the SeqCst in `close`: what was done before it is seen (U10).
        let tail = self.tail.position.load(Acquire);
        if head / ONE == tail / ONE {
            return Err(match tail & FLAG != 0 {
                true => No::Closed,
                false => No::NotNow,
            });
        }
        let is_last = head / ONE / Self::LAP == tail / ONE / Self::LAP;
        Ok(if is_last { new } else { new | FLAG })
    }

    /// The receiver that took a block's last place moves the head to the next one.
    fn unlink(&self, block: *mut ListBlock<T>, new: usize) {
        let mut turns = 0;
        let next = loop {
            // SAFETY: this thread's place in the block has not been read yet, so the block is not
            // freed.
            // ORDER: Acquire; pairs with the Release in `link`.
            let next = unsafe { &*block }.next.load(Acquire);
            if !next.is_null() {
                break next;
            }
            spin_or_yield(&mut turns);
        };
        let mut position = (new & !FLAG) + ONE;
        // SAFETY: the head is not in the next block yet, so its values were not read, and it is not
        // freed.
        if !unsafe { &*next }.next.load(Relaxed).is_null() {
            position |= FLAG;
        }
        // ORDER: Release; both pair with the Acquire loads in `pop`. The block is stored first.
        self.head.block.store(next, Release);
        self.head.position.store(position, Release);
    }

    /// # Safety
    /// The caller won the place; `to` is writable as a `T`.
    #[inline]
    unsafe fn take(
        &self,
        block: *mut ListBlock<T>,
        place: usize,
        to: *mut T,
        emptied: &mut Emptied<T>,
    ) {
        // SAFETY: the block is freed only when all its places have been read, and this one was not.
        let (owned, slot) = unsafe { (&*block, ListBlock::slot(block, place)) };
        let mut turns = 0;
        // ORDER: Acquire; pairs with the Release in `put`.
        while slot.state.load(Acquire) == 0 {
            spin_or_yield(&mut turns);
        }
        // SAFETY: the value is written, and the place is this thread's.
        unsafe { to.copy_from_nonoverlapping((*slot.value.get()).as_ptr(), 1) };
        // ORDER: AcqRel; the thread that reads last sees that all others are done with the block.
        if owned.reads.fetch_add(1, AcqRel) + 1 == Self::BLOCK {
            emptied.push(block);
        }
    }

    /// Whether a receiver would find something now: a value, or the end.
    pub(super) fn is_ready_to_pop(&self) -> bool {
        let head = self.head.position.load(SeqCst);
        let tail = self.tail.position.load(SeqCst);
        tail & FLAG != 0 || head / ONE != tail / ONE
    }

    /// No sender takes a place after this. False: it was closed already.
    pub(super) fn close(&self) -> bool {
        // ORDER: SeqCst; every sender sees the bit, or has taken its place before.
        self.tail.position.fetch_or(FLAG, SeqCst) & FLAG == 0
    }

    pub(super) fn is_closed(&self) -> bool {
        self.tail.position.load(SeqCst) & FLAG != 0
    }

    /// Both positions. If they are unchanged nothing happened.
    pub(super) fn version(&self) -> (usize, usize) {
        (
            self.head.position.load(SeqCst),
            self.tail.position.load(SeqCst),
        )
    }

    /// Values in the list, at some moment.
    pub(super) fn len(&self) -> usize {
        loop {
            let (head, tail) = self.version();
            if self.tail.position.load(SeqCst) != tail {
                continue;
            }
            // Positions that are links hold no value: there is one per lap. A tail or head on one
            // stands for the next place.
            let values = |position: usize| {
                let n = position / ONE;
                n / Self::LAP * Self::BLOCK + (n % Self::LAP).min(Self::BLOCK)
            };
            return values(tail).saturating_sub(values(head));
        }
    }
}

impl<T> Drop for List<T> {
    fn drop(&mut self) {
        let mut value = MaybeUninit::<T>::uninit();
        let mut emptied = Emptied::new();
        // SAFETY: the room is a T's. No other thread has the list any more.
        while unsafe { self.pop(value.as_mut_ptr(), &mut emptied) }.is_ok() {
            // SAFETY: `pop` has just written it.
            unsafe { value.assume_init_drop() };
        }
        drop(self.take_kept());
        // SAFETY: the block of both ends is the only one left, if there was a send, and only the
        // list owns it.
        drop(unsafe { OwnedBlock::from_raw(self.head.block.load(Relaxed)) });
    }
}
