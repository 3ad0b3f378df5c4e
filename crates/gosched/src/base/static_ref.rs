//! An atomic `Option<&'static T>`.
//!
//! Signal handlers, the poller and the slots of sockets find objects that are never freed. A cell
//! of this type gives them the reference in one load, without a lock.

use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

/// The pointer is null or was made from a `&'static T`.
pub(crate) struct StaticRef<T: Sync + 'static>(AtomicPtr<T>);

impl<T: Sync + 'static> StaticRef<T> {
    pub(crate) const fn none() -> StaticRef<T> {
        StaticRef(AtomicPtr::new(ptr::null_mut()))
    }

    #[inline]
    pub(crate) fn load(&self) -> Option<&'static T> {
        // ORDER: Acquire; pairs with the Release in `store` and the SeqCst in `set_once`: the
        // object is complete.
        // SAFETY: `store` and `set_once` are the only writers. Each stores null or the address of a
        // `&'static T`, and `T: Sync` lets any thread use it.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    #[inline]
    pub(crate) fn store(&self, value: Option<&'static T>) {
        let value = value.map_or(ptr::null(), ptr::from_ref);
        // ORDER: Release; pairs with the Acquire in `load`.
        self.0.store(value.cast_mut(), Release);
    }

    /// Stores `value` unless there is one already. Returns the first value that was stored.
    pub(crate) fn set_once(&self, value: &'static T) -> &'static T {
        let new = ptr::from_ref(value).cast_mut();
        // ORDER: SeqCst, for callers with a barrier behind the store; pairs with the Acquire in
        // `load`.
        _ = self
            .0
            .compare_exchange(ptr::null_mut(), new, SeqCst, SeqCst);
        self.load().unwrap_or(value)
    }
}
