//! An atomic pointer to an object that is set once and freed with its owner.
//!
//! A load costs one instruction. std's `OnceLock<Box<T>>` has the same interface and loads a state
//! word, too.

use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// The pointer is null or comes from `Box::into_raw`, and this value owns the object.
pub(crate) struct OnceBox<T: Send + Sync>(AtomicPtr<T>);

impl<T: Send + Sync> OnceBox<T> {
    pub(crate) const fn new() -> OnceBox<T> {
        OnceBox(AtomicPtr::new(ptr::null_mut()))
    }

    /// Holds `value` from the start, if there is one.
    pub(crate) fn from(value: Option<Box<T>>) -> OnceBox<T> {
        OnceBox(AtomicPtr::new(value.map_or(ptr::null_mut(), Box::into_raw)))
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // ORDER: Acquire; pairs with the AcqRel in `set_if_none`: the object is complete.
        // SAFETY: the pointer is null or owned by this value. It changes once, from null, and the
        // object is freed only by `drop`, which needs `&mut self`.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: the pointer is null or owned by this value, and `&mut self` keeps every other
        // borrow of the object away.
        unsafe { self.0.get_mut().as_mut() }
    }

    /// Stores `value` unless there is one already; then it frees `value`.
    pub(crate) fn set_if_none(&self, value: Box<T>) {
        let new = OnceBox(AtomicPtr::new(Box::into_raw(value)));
        let raw = new.0.load(Relaxed);
        // ORDER: AcqRel; pairs with the Acquire in `get`.
        let set = self
            .0
            .compare_exchange(ptr::null_mut(), raw, AcqRel, Relaxed);
        if set.is_ok() {
            std::mem::forget(new); // `self` owns the object now
        }
    }
}

impl<T: Send + Sync> Drop for OnceBox<T> {
    fn drop(&mut self) {
        if let Some(value) = self.get_mut() {
            // SAFETY: the object comes from a box, only this value owns it, and no borrow of it is
            // left.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}
