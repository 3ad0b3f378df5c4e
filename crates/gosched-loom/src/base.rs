//! The library's lock and the word that a thread sleeps on.

pub(crate) use crate::note;

pub(crate) mod fatal {
    //! Fatal errors.

    pub(crate) fn throw(text: &str) -> ! {
        panic!("{text}")
    }
}

pub(crate) mod lock {
    //! The runtime's lock: loom's, with the library's ways to hold several.

    use std::cell::UnsafeCell;
    use std::ops::{Deref, DerefMut};

    use loom::sync::{Mutex, MutexGuard};

    #[derive(Clone, Copy)]
    pub(crate) enum Rank {
        Chan,
    }

    pub(crate) struct Lock<T> {
        mutex: Mutex<()>,
        /// The guard of whoever holds it.
        guard: UnsafeCell<Option<MutexGuard<'static, ()>>>,
        value: UnsafeCell<T>,
    }

    // SAFETY: D9, the mutex admits one holder at a time.
    unsafe impl<T: Send> Sync for Lock<T> {}
    // SAFETY: as above.
    unsafe impl<T: Send> Send for Lock<T> {}

    pub(crate) struct Held<'a, T>(&'a Lock<T>);

    impl<T> Lock<T> {
        pub(crate) fn new(_: Rank, value: T) -> Lock<T> {
            Lock {
                mutex: Mutex::new(()),
                guard: UnsafeCell::new(None),
                value: UnsafeCell::new(value),
            }
        }

        pub(crate) fn lock(&self) -> Held<'_, T> {
            self.lock_of_several(true);
            Held(self)
        }

        pub(crate) fn lock_of_several(&self, _is_first: bool) {
            let guard = self.mutex.lock().unwrap();
            // SAFETY: the guard is dropped by `unlock`, before the lock.
            let guard = unsafe {
                std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(guard)
            };
            // SAFETY: the holder's alone.
            unsafe { *self.guard.get() = Some(guard) };
        }

        #[allow(clippy::mut_from_ref, reason = "as the library's")]
        pub(crate) unsafe fn get_held(&self) -> &mut T {
            // SAFETY: by the caller's promise.
            unsafe { &mut *self.value.get() }
        }

        pub(crate) unsafe fn unlock_of_several(&self, _is_first: bool) {
            // SAFETY: the holder's alone.
            drop(unsafe { (*self.guard.get()).take() });
        }
    }

    impl<T> Deref for Held<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: this guard is the one possession of the lock.
            unsafe { &*self.0.value.get() }
        }
    }

    impl<T> DerefMut for Held<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: as above.
            unsafe { &mut *self.0.value.get() }
        }
    }

    impl<T> Drop for Held<'_, T> {
        fn drop(&mut self) {
            // SAFETY: held by this guard.
            unsafe { self.0.unlock_of_several(true) };
        }
    }
}
