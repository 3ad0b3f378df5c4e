//! Stand-in for the library's `current`: which goroutine the calling thread is.

use std::cell::Cell;
use std::sync::Arc;

use crate::sched::model::g::G;
use crate::sched::model::ptr::{Gp, Ptr};

loom::thread_local! {
    static CURRENT: Cell<Option<Gp>> = Cell::new(None);
}

/// The M of the calling thread; all Ms are alike.
pub(crate) struct M;

impl M {
    /// Loom runs a test many times and needs the same choices each time.
    pub(crate) fn random(&self) -> u32 {
        0
    }
}

pub(crate) fn current_m() -> Option<&'static M> {
    Some(&M)
}

pub(crate) fn current_g() -> Option<Gp> {
    CURRENT.with(Cell::get)
}

pub(crate) fn pointer(g: &Arc<G>) -> Gp {
    // SAFETY: the test keeps the `Arc` until all threads have ended, so the pointer stays valid and
    // is not null.
    unsafe { Ptr::from_raw(Arc::as_ptr(g).cast_mut()) }.unwrap()
}

/// Runs `f` as the goroutine `g`.
pub(crate) fn run_as<R>(g: &Arc<G>, f: impl FnOnce() -> R) -> R {
    CURRENT.with(|current| current.set(Some(pointer(g))));
    let result = f();
    CURRENT.with(|current| current.set(None));
    result
}
