//! `Word<T>`: a field with one owner at a time, in an object that every thread can reach.
//!
//! Most fields of G, M and P belong to one thread at a time: the goroutine's M, the holder of the
//! P, or the holder of a lock. State machines and locks decide which thread that is. Their Release
//! and Acquire steps hand the field's value on.
//!
//! A `Word` has the interface and the machine code of a `Cell`. One thing differs. A thread that
//! reads a `Word` out of turn gets an old value; with a `Cell` that would be undefined behaviour.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::{size_of, transmute_copy};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32};

/// A type that fits a machine word and has no padding.
///
/// # Safety
/// The type has no padding bytes, and any thread may have a copy of a value: it is `Send`, or a raw
/// pointer, whose user must know anyway that it may follow the pointer.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($({$($generic:tt)*})? $type:ty,)*) => {$(
        // SAFETY: a scalar, a pointer, or an optional pointer: one word without padding.
        unsafe impl $(<$($generic)*>)? Plain for $type {}
    )*};
}

plain! {
    bool, u8, u16, u32, u64, usize,
    {T} *const T, {T} Option<super::ptr::Ptr<T>>, {T: Sync} Option<&'static T>,
}

#[repr(transparent)]
pub(crate) struct Word<T: Plain>(UnsafeCell<T>);

// SAFETY: every access is one atomic load or store (`get`, `set`), and any thread may have a copy
// of a `Plain` value.
unsafe impl<T: Plain> Sync for Word<T> {}
// SAFETY: any thread may have a `Plain` value.
unsafe impl<T: Plain> Send for Word<T> {}

impl<T: Plain> Word<T> {
    /// Whether an atomic of this size can stand for a T.
    const IS_WORD: bool =
        matches!(size_of::<T>(), 1 | 2 | 4 | 8) && align_of::<T>() == size_of::<T>();

    pub(crate) const fn new(value: T) -> Word<T> {
        const { assert!(Self::IS_WORD) };
        Word(UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> T {
        const { assert!(Self::IS_WORD) };
        let at = self.0.get();
        // ORDER: Relaxed; the step that hands the field's ownership on orders the accesses.
        // SAFETY: the place is this field's, aligned for its size and only used atomically. `set`
        // and `new` stored the bits of a T. A word of 8 bytes travels as a pointer: a pointer keeps
        // its provenance that way, and an integer needs none.
        unsafe {
            match size_of::<T>() {
                1 => transmute_copy(&AtomicU8::from_ptr(at.cast()).load(Relaxed)),
                2 => transmute_copy(&AtomicU16::from_ptr(at.cast()).load(Relaxed)),
                4 => transmute_copy(&AtomicU32::from_ptr(at.cast()).load(Relaxed)),
                _ => transmute_copy(&AtomicPtr::<()>::from_ptr(at.cast()).load(Relaxed)),
            }
        }
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: T) {
        const { assert!(Self::IS_WORD) };
        let at = self.0.get();
        // ORDER: Relaxed; the step that hands the field's ownership on orders the accesses.
        // SAFETY: the place is this field's, aligned for its size and only used atomically, and T
        // has the size that each arm stores.
        unsafe {
            match size_of::<T>() {
                1 => AtomicU8::from_ptr(at.cast()).store(transmute_copy(&value), Relaxed),
                2 => AtomicU16::from_ptr(at.cast()).store(transmute_copy(&value), Relaxed),
                4 => AtomicU32::from_ptr(at.cast()).store(transmute_copy(&value), Relaxed),
                _ => AtomicPtr::<()>::from_ptr(at.cast()).store(transmute_copy(&value), Relaxed),
            }
        }
    }

    /// The place itself, for the switch, which stores in assembly.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.get()
    }

    /// Sets the word and returns the old value. Two steps, for the owner.
    #[inline(always)]
    pub(crate) fn replace(&self, value: T) -> T {
        let old = self.get();
        self.set(value);
        old
    }
}

impl<T: Plain + Default> Word<T> {
    /// Sets the default and returns the old value. Two steps, for the owner.
    #[inline(always)]
    pub(crate) fn take(&self) -> T {
        self.replace(T::default())
    }
}

impl<T: Plain + Default> Default for Word<T> {
    fn default() -> Self {
        Word::new(T::default())
    }
}

impl<T: Plain + fmt::Debug> fmt::Debug for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn a_word_keeps_values_of_every_size() {
        let (a, b, c, d) = (
            Word::new(true),
            Word::new(1u16),
            Word::new(2u32),
            Word::new(3u64),
        );
        assert!(a.replace(false) && !a.get());
        b.set(u16::MAX);
        c.set(u32::MAX);
        d.set(u64::MAX);
        assert_eq!((b.get(), c.get(), d.take()), (u16::MAX, u32::MAX, u64::MAX));
        assert_eq!(d.get(), 0);
    }

    #[test]
    fn a_word_keeps_pointers() {
        static VALUE: u32 = 7;
        let at = Word::new(ptr::null());
        at.set(&raw const VALUE);
        // SAFETY: a pointer to a static that no thread writes.
        assert_eq!(unsafe { *at.get() }, 7);
        let at = Word::new(None::<&'static u32>);
        at.set(Some(&VALUE));
        assert_eq!(at.take(), Some(&7));
        assert_eq!(at.get(), None);
    }
}
