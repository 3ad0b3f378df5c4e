//! Where the value that a select receives is stored.
//!
//! A `select!` has room for the value in its own frame: as much as the largest message of its
//! receives takes. A [`Select`](super::Select) knows its cases only at run time. It has a
//! [`ValueSlot`], which allocates for messages above 48 bytes or with an alignment above 8.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;

/// The type of a `select!`'s room, before the room is made.
pub struct RoomOf<R>(PhantomData<fn() -> R>);

impl<R> Clone for RoomOf<R> {
    #[inline]
    fn clone(&self) -> RoomOf<R> {
        *self
    }
}

impl<R> Copy for RoomOf<R> {}

/// Room for a `T` or for an `R`.
#[repr(C)]
pub union Either<T, R> {
    _one: ManuallyDrop<MaybeUninit<T>>,
    _other: ManuallyDrop<MaybeUninit<R>>,
}

/// The room of a `select!` without receives.
#[inline]
pub const fn no_room() -> RoomOf<()> {
    RoomOf(PhantomData)
}

impl<R> RoomOf<R> {
    /// Room for one more type.
    #[inline]
    pub(super) const fn or<T>(self) -> RoomOf<Either<T, R>> {
        RoomOf(PhantomData)
    }

    /// The room itself.
    #[inline]
    pub const fn make(self) -> MaybeUninit<R> {
        MaybeUninit::uninit()
    }

    /// Fails to compile if a `T` does not fit.
    pub(super) const fn assert_fits<T>() {
        assert!(size_of::<T>() <= size_of::<R>() && align_of::<T>() <= align_of::<R>());
    }
}

const WORDS: usize = 6;

/// Room for one value of several possible types. It does not know which one it holds.
pub(super) struct ValueSlot {
    few: UnsafeCell<[MaybeUninit<u64>; WORDS]>,
    /// Room for a larger value; null: there is none.
    many: *mut u8,
    layout: Layout,
}

impl ValueSlot {
    /// For any of several types.
    pub(super) fn new(layouts: impl Iterator<Item = Layout>) -> ValueSlot {
        let mut layout = Layout::new::<()>();
        for other in layouts {
            let size = layout.size().max(other.size());
            let align = layout.align().max(other.align());
            // Two valid layouts have a valid union, except for a rounding up beyond all memory.
            layout = Layout::from_size_align(size, align).unwrap_or(other);
        }
        let fits = layout.size() <= WORDS * 8 && layout.align() <= align_of::<u64>();
        let (many, layout) = match fits {
            true => (ptr::null_mut(), layout),
            false => allocate(layout),
        };
        ValueSlot {
            few: UnsafeCell::new([MaybeUninit::uninit(); WORDS]),
            many,
            layout,
        }
    }

    /// The room. The pointer is good until the slot moves.
    pub(super) fn room(&self) -> *mut u8 {
        if self.many.is_null() {
            self.few.get().cast()
        } else {
            self.many
        }
    }
}

#[cold]
fn allocate(layout: Layout) -> (*mut u8, Layout) {
    // A type of size zero may have a large alignment.
    let sized = Layout::from_size_align(layout.size().max(1), layout.align());
    let layout = sized.unwrap_or(layout);
    // SAFETY: the size is not zero.
    let many = unsafe { alloc(layout) };
    if many.is_null() {
        handle_alloc_error(layout);
    }
    (many, layout)
}

impl Drop for ValueSlot {
    fn drop(&mut self) {
        if !self.many.is_null() {
            // SAFETY: allocated by `new` with this layout.
            unsafe { dealloc(self.many, self.layout) };
        }
    }
}
