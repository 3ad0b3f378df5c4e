//! Plain fields that loom watches: two accesses that nothing orders are reported, and so is one that nothing orders
//! before the end of the field's memory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use loom::cell;

/// A field that is copied or moved in and out.
pub(crate) struct Cell<T>(cell::UnsafeCell<T>);

impl<T> Cell<T> {
    #[track_caller]
    pub(crate) fn new(value: T) -> Cell<T> {
        Cell(cell::UnsafeCell::new(value))
    }

    #[track_caller]
    pub(crate) fn get(&self) -> T
    where
        T: Copy,
    {
        // SAFETY: loom checks on every run that no other access is concurrent with this one.
        self.0.with(|field| unsafe { *field })
    }

    #[track_caller]
    pub(crate) fn set(&self, value: T) {
        self.replace(value);
    }

    #[track_caller]
    pub(crate) fn replace(&self, value: T) -> T {
        // SAFETY: as in `get`.
        self.0.with_mut(|field| unsafe { field.replace(value) })
    }
}

impl<T> Drop for Cell<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.with_mut(|_| ());
        }
    }
}

/// A field that is reached through a pointer. Whoever asks for the pointer must be alone with the field at that moment.
///
/// As large as what is in it, for the library may leave it unwritten: what loom watches is kept apart, by address.
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

/// The visits of each field.
struct Visits(Mutex<HashMap<usize, cell::UnsafeCell<()>>>);

// SAFETY: under the lock, which loom does not see, so that it orders nothing.
unsafe impl Send for Visits {}
// SAFETY: as above.
unsafe impl Sync for Visits {}

impl Visits {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, cell::UnsafeCell<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

loom::lazy_static! {
    static ref VISITS: Visits = Visits(Mutex::new(HashMap::new()));
}

/// Makes the list, before the story's threads: who makes it is ordered before those who use it.
pub(crate) fn begin() {
    VISITS.lock().clear();
}

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[track_caller]
    pub(crate) fn get(&self) -> *mut T {
        if !std::thread::panicking() {
            let mut visits = VISITS.lock();
            let visit = visits
                .entry(self.0.get().addr())
                .or_insert_with(|| cell::UnsafeCell::new(()));
            visit.with_mut(|_| ());
        }
        self.0.get()
    }
}

impl<T> Drop for UnsafeCell<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let visit = VISITS.lock().remove(&self.0.get().addr());
            if let Some(visit) = visit {
                visit.with_mut(|_| ());
            }
        }
    }
}
