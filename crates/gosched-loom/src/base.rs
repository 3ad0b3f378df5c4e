//! Stand-ins for the library's `base`: its lock, its note, its atomic references and its fatal
//! errors.

pub(crate) use crate::note;

#[path = "../../gosched/src/base/arc_cell.rs"]
#[allow(dead_code, reason = "no task waits here")]
pub(crate) mod arc_cell;

pub(crate) mod fatal {
    //! Fatal errors.

    pub(crate) fn throw(text: &str) -> ! {
        panic!("{text}")
    }
}

pub(crate) mod static_ref {
    //! An atomic `Option<&'static T>`, made of loom's atomic.

    use std::ptr;

    use crate::shim::{Acquire, AtomicPtr, SeqCst};

    pub(crate) struct StaticRef<T: 'static>(AtomicPtr<T>);

    impl<T: 'static> StaticRef<T> {
        pub(crate) fn none() -> StaticRef<T> {
            StaticRef(AtomicPtr::new(ptr::null_mut()))
        }

        pub(crate) fn load(&self) -> Option<&'static T> {
            // SAFETY: only `set_once` stores here, the address of a `&'static T`.
            unsafe { self.0.load(Acquire).as_ref() }
        }

        pub(crate) fn set_once(&self, value: &'static T) -> &'static T {
            let new = ptr::from_ref(value).cast_mut();
            _ = self
                .0
                .compare_exchange(ptr::null_mut(), new, SeqCst, SeqCst);
            self.load().unwrap_or(value)
        }
    }
}

pub(crate) mod lock {
    //! The runtime's lock, made of loom's mutex, with the library's ways to hold several.

    use std::cell::UnsafeCell;
    use std::ops::{Deref, DerefMut};

    use loom::sync::{Mutex, MutexGuard};

    #[derive(Clone, Copy)]
    pub(crate) enum Rank {
        Chan,
    }

    pub(crate) struct Lock<T> {
        mutex: Mutex<()>,
        /// The guard of the thread that holds it.
        guard: UnsafeCell<Option<MutexGuard<'static, ()>>>,
        value: UnsafeCell<T>,
    }

    // SAFETY: D9. The mutex admits one holder at a time, and only the holder reaches the value and
    // the guard.
    unsafe impl<T: Send> Sync for Lock<T> {}
    // SAFETY: D9. The lock owns its value, which is `Send`; the guard is only there while a thread
    // holds the lock.
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
            // SAFETY: `unlock_of_several` drops the guard, and a lock is not dropped while it is
            // held. So the guard does not outlive the mutex.
            let guard = unsafe {
                std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(guard)
            };
            // SAFETY: this thread has just locked the mutex, and only the holder touches the guard.
            unsafe { *self.guard.get() = Some(guard) };
        }

        #[allow(clippy::mut_from_ref, reason = "as the library's")]
        pub(crate) unsafe fn get_held(&self) -> &mut T {
            // SAFETY: the caller holds the lock and has no other reference to the value, as the
            // library's `get_held` requires.
            unsafe { &mut *self.value.get() }
        }

        pub(crate) unsafe fn unlock_of_several(&self, _is_first: bool) {
            // SAFETY: the caller holds the lock, and only the holder touches the guard.
            drop(unsafe { (*self.guard.get()).take() });
        }
    }

    impl<T> Deref for Held<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: a `Held` exists only while its thread holds the lock, so no other thread
            // reaches the value.
            unsafe { &*self.0.value.get() }
        }
    }

    impl<T> DerefMut for Held<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: a `Held` exists only while its thread holds the lock, and `&mut self` is the
            // only reference through it.
            unsafe { &mut *self.0.value.get() }
        }
    }

    impl<T> Drop for Held<'_, T> {
        fn drop(&mut self) {
            // SAFETY: this guard holds the lock, and releases it once.
            unsafe { self.0.unlock_of_several(true) };
        }
    }
}
