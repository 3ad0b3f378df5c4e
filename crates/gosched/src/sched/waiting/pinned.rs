//! [`Pinned`]: a pointer to an object on the stack of a goroutine or thread that waits.
//!
//! It differs from the scheduler's `Ptr`: the object ends with its wait, and one thread uses it at
//! a time. So a `Pinned` is neither `Send` nor `Sync`. The owner of a queue says, for all nodes in
//! it, which lock or which claim gives a thread the right to follow the pointer.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

/// A pointer to an object that stays where it is while the pointer is in use: `Copy`, never null.
pub(crate) struct Pinned<T>(NonNull<T>);

impl<T> Pinned<T> {
    /// # Safety
    /// While any copy is in use, the object neither moves nor ends, and no other thread uses what
    /// is not `Sync` in it.
    #[inline]
    pub(crate) unsafe fn new(at: NonNull<T>) -> Pinned<T> {
        Pinned(at)
    }

    /// # Safety
    /// As for [`Pinned::new`], or null.
    #[inline]
    pub(crate) unsafe fn from_raw(at: *mut T) -> Option<Pinned<T>> {
        NonNull::new(at).map(Pinned)
    }

    #[inline]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Deref for Pinned<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the caller of `new` or `from_raw` guarantees that the object is there.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for Pinned<T> {
    #[inline]
    fn clone(&self) -> Pinned<T> {
        *self
    }
}

impl<T> Copy for Pinned<T> {}

impl<T> PartialEq for Pinned<T> {
    #[inline]
    fn eq(&self, other: &Pinned<T>) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Pinned<T> {}

impl<T> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
