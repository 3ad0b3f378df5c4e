//! [`ArcCell`]: a place for one `Arc`, which threads put in and take out without a lock.
//!
//! It keeps an `Arc` in one word.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::AcqRel;

/// Owns the `Arc` that is in it. The cell itself does not drop it: where the last reference may be
/// dropped is for its users to decide, and they take it out first.
pub(crate) struct ArcCell<T> {
    at: AtomicPtr<T>,
    owns: PhantomData<Arc<T>>,
}

impl<T> ArcCell<T> {
    pub(crate) const fn new() -> ArcCell<T> {
        ArcCell {
            at: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// Puts `value` in and returns what was there.
    pub(crate) fn replace(&self, value: Option<Arc<T>>) -> Option<Arc<T>> {
        let value = value.map_or(ptr::null(), Arc::into_raw).cast_mut();
        // ORDER: AcqRel; pairs with itself: the thread that takes a value out sees what preceded
        // the `replace` that put it in.
        let old = self.at.swap(value, AcqRel);
        // SAFETY: only this function stores here: null, or a pointer of `Arc::into_raw`. The swap
        // has taken it out, so its reference is this caller's.
        (!old.is_null()).then(|| unsafe { Arc::from_raw(old) })
    }

    /// Puts `value` into the cell, which is empty. Drops nothing, so it needs no user context (D9).
    pub(crate) fn put(&self, value: Option<Arc<T>>) {
        let old = self.replace(value);
        debug_assert!(old.is_none(), "the cell was not empty");
        std::mem::forget(old);
    }

    pub(crate) fn take(&self) -> Option<Arc<T>> {
        self.replace(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_gives_back_what_was_put_in_and_counts_no_reference_twice() {
        let (cell, value) = (ArcCell::new(), Arc::new(7));
        assert_eq!(cell.take(), None);
        cell.put(Some(Arc::clone(&value)));
        assert_eq!(Arc::strong_count(&value), 2);
        assert_eq!(cell.replace(Some(Arc::new(8))), Some(Arc::clone(&value)));
        assert_eq!(Arc::strong_count(&value), 1);
        assert_eq!(cell.take().as_deref(), Some(&8));
        assert_eq!(cell.take(), None);
    }

    #[test]
    fn threads_share_one_reference() {
        let (cell, value) = (ArcCell::new(), Arc::new(()));
        cell.put(Some(Arc::clone(&value)));
        let takes = || cell.take().is_some();
        let taken = std::thread::scope(|s| {
            let threads = [(); 4].map(|()| s.spawn(takes));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(taken.iter().filter(|taken| **taken).count(), 1);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
