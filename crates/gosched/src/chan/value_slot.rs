//! Where the value that a select receives is stored.
//!
//! A [`ValueSlot`] has room for the largest of the types that the cases receive. A [`SmallSlot`],
//! in the frame of a `select!`, has room for a small value that is there at once.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;

const WORDS: usize = 6;

/// Room for one small value. It does not know whether it holds one.
pub struct SmallSlot(UnsafeCell<[MaybeUninit<u64>; WORDS]>);

impl SmallSlot {
    /// Empty.
    #[inline]
    pub const fn empty() -> SmallSlot {
        SmallSlot(UnsafeCell::new([MaybeUninit::uninit(); WORDS]))
    }

    /// Whether a `T` fits.
    pub(super) const fn fits<T>() -> bool {
        size_of::<T>() <= WORDS * 8 && align_of::<T>() <= align_of::<u64>()
    }

    #[inline]
    pub(super) fn get(&self) -> *mut u8 {
        self.0.get().cast()
    }
}

/// Room for one value of several possible types. It does not know which one it holds.
pub(super) struct ValueSlot {
    few: SmallSlot,
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
        ValueSlot::of(layout)
    }

    /// For one type.
    #[inline]
    pub(super) fn of(layout: Layout) -> ValueSlot {
        let fits = layout.size() <= WORDS * 8 && layout.align() <= align_of::<u64>();
        let (many, layout) = match fits {
            true => (ptr::null_mut(), layout),
            false => allocate(layout),
        };
        ValueSlot {
            few: SmallSlot::empty(),
            many,
            layout,
        }
    }

    /// The room. The pointer is good until the slot moves.
    pub(super) fn room(&self) -> *mut u8 {
        if self.many.is_null() {
            self.few.get()
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
