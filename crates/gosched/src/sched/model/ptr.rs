//! Pointers to G, M and P: `Gp`, `Mp` and `Pp` are Go's `gp`, `mp` and `pp`.
//!
//! The three kinds of object are `Sync` and type-stable (GF). Their memory keeps its type while the
//! runtime lives. A runtime that cannot free everything safely leaks it instead (D2). So a pointer
//! may be followed at any time. What it reads may be stale; the status words and protocols deal
//! with that.

use std::fmt;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A pointer to a type-stable object: `Copy` and never null.
pub(crate) struct Ptr<T>(NonNull<T>);

/// The runtime of a G or an M. The model keeps only the address; `sched` knows the type.
pub(crate) enum Home {}

/// A goroutine.
pub(crate) type Gp = Ptr<crate::sched::model::g::G>;
/// A thread of the runtime.
pub(crate) type Mp = Ptr<crate::sched::model::m::M>;
/// A processor: the permit to run user code, with its local resources.
pub(crate) type Pp = Ptr<crate::sched::model::p::P>;

impl<T: Sync> Ptr<T> {
    /// # Safety
    /// `raw` points to an object that keeps its memory and type while any copy is in use (GF).
    #[inline]
    pub(crate) unsafe fn new(raw: NonNull<T>) -> Ptr<T> {
        Ptr(raw)
    }

    /// # Safety
    /// As for [`Ptr::new`], or null.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: *mut T) -> Option<Ptr<T>> {
        NonNull::new(raw).map(Ptr)
    }

    /// A pointer to a boxed object, which is never freed.
    pub(crate) fn leak(object: Box<T>) -> Ptr<T> {
        Ptr(NonNull::from(Box::leak(object)))
    }
}

impl<T> Ptr<T> {
    #[inline]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }

    #[inline]
    pub(crate) fn non_null(self) -> NonNull<T> {
        self.0
    }
}

impl<T> Deref for Ptr<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: GF, type-stable memory: the caller of `Ptr::new` guarantees it.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for Ptr<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Ptr<T> {}
impl<T> PartialEq for Ptr<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for Ptr<T> {}
impl<T> fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// SAFETY: a `Ptr` is a shared reference to a T, and a T may be shared between threads.
unsafe impl<T: Sync> Send for Ptr<T> {}
// SAFETY: a `&Ptr<T>` leads to a `&T` only, and a T may be shared between threads.
unsafe impl<T: Sync> Sync for Ptr<T> {}

/// An atomic `Option<Ptr<T>>`.
pub(crate) struct AtomicRef<T>(AtomicPtr<T>);

impl<T> AtomicRef<T> {
    pub(crate) const fn none() -> Self {
        AtomicRef(AtomicPtr::new(ptr::null_mut()))
    }

    #[inline]
    pub(crate) fn load(&self, order: Ordering) -> Option<Ptr<T>> {
        NonNull::new(self.0.load(order)).map(Ptr)
    }

    #[inline]
    pub(crate) fn store(&self, value: Option<Ptr<T>>, order: Ordering) {
        self.0.store(raw(value), order);
    }

    #[inline]
    pub(crate) fn swap(&self, value: Option<Ptr<T>>, order: Ordering) -> Option<Ptr<T>> {
        NonNull::new(self.0.swap(raw(value), order)).map(Ptr)
    }
}

#[inline]
fn raw<T>(value: Option<Ptr<T>>) -> *mut T {
    value.map_or(ptr::null_mut(), Ptr::as_ptr)
}
