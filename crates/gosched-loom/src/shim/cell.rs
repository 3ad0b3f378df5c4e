//! Plain fields that loom watches. It reports two accesses that nothing orders, and an access that
//! nothing orders before the end of the field's memory.

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
        // SAFETY: loom checks on every run that no other access is concurrent with this one.
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

/// A field that is reached through a pointer. No other thread may use the field at the moment when
/// `get` is called.
///
/// It is as large as its contents, because the library may leave it unwritten. What loom watches is
/// kept apart, by address.
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

/// One loom cell for each field, by address.
struct Visits(Mutex<HashMap<usize, cell::UnsafeCell<()>>>);

// SAFETY: the map is reached only under its mutex. Loom does not see that mutex, so it orders
// nothing in a model.
unsafe impl Send for Visits {}
// SAFETY: the map is reached only under its mutex.
unsafe impl Sync for Visits {}

impl Visits {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, cell::UnsafeCell<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

loom::lazy_static! {
    static ref VISITS: Visits = Visits(Mutex::new(HashMap::new()));
}

/// Clears the list before the story's threads start, so that this is ordered before all their
/// accesses.
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
