//! Poisoning, as std's: a panic with a lock held poisons it.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};

use gosched::sync::{Arc, Condvar, Mutex, RwLock, TryLockError};
use gosched::thread;

use super::{ms, run};
use crate::common::{Planned, quiet_planned_panics};

fn panics() -> ! {
    quiet_planned_panics();
    panic_any(Planned)
}

#[test]
fn a_panic_poisons_a_mutex() {
    run(2, "poison", || {
        let mutex = Arc::new(Mutex::new(0));
        let other = Arc::clone(&mutex);
        let poisons = thread::spawn(move || {
            *other.lock().unwrap() = 1;
            let mut guard = other.lock().unwrap();
            *guard += 1;
            panics()
        });
        assert!(poisons.join().is_err());
        assert!(mutex.is_poisoned());
        assert!(format!("{mutex:?}").contains("data: 2, poisoned: true"));
        assert_eq!(*mutex.lock().unwrap_err().into_inner(), 2);
        // It stays so, however often it is locked, and is a lock nevertheless.
        let guard = mutex.lock().unwrap_err().into_inner();
        assert!(matches!(mutex.try_lock(), Err(TryLockError::WouldBlock)));
        drop(guard);
        match mutex.try_lock() {
            Err(TryLockError::Poisoned(error)) => assert_eq!(*error.into_inner(), 2),
            other => panic!("{other:?}"),
        }
        mutex.clear_poison();
        assert!(mutex.lock().is_ok() && !mutex.is_poisoned());
        let mut mutex = Arc::into_inner(mutex).unwrap();
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let _guard = mutex.lock().unwrap();
            panics()
        }));
        assert_eq!(**mutex.get_mut().unwrap_err().get_ref(), 2);
        assert_eq!(mutex.into_inner().unwrap_err().into_inner(), 2);
    });
}

#[test]
fn a_panic_poisons_a_rwlock_if_it_is_a_writers() {
    run(2, "poison", || {
        let lock = RwLock::new(0);
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.read().unwrap();
            panics()
        }));
        assert!(!lock.is_poisoned());
        let _ = catch_unwind(AssertUnwindSafe(|| {
            *lock.write().unwrap() = 1;
            let _guard = lock.write().unwrap();
            panics()
        }));
        assert!(lock.is_poisoned());
        assert_eq!(*lock.read().unwrap_err().into_inner(), 1);
        assert!(matches!(lock.try_write(), Err(TryLockError::Poisoned(_))));
        {
            let reader = lock.read().unwrap_err();
            assert!(matches!(lock.try_write(), Err(TryLockError::WouldBlock)));
            assert!(matches!(lock.try_read(), Err(TryLockError::Poisoned(_))));
            drop(reader);
        }
        assert_eq!(*lock.write().unwrap_err().into_inner(), 1);
        lock.clear_poison();
        assert!(lock.write().is_ok() && lock.read().is_ok());
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.write().unwrap();
            panics()
        }));
        assert_eq!(lock.into_inner().unwrap_err().into_inner(), 1);
    });
}

/// A goroutine that locks while it unwinds already does not poison: the panic did not happen under
/// that lock.
#[test]
fn a_lock_taken_while_unwinding_is_not_poisoned() {
    struct Locks<'a>(&'a Mutex<u32>, &'a RwLock<u32>);
    impl Drop for Locks<'_> {
        fn drop(&mut self) {
            *self.0.lock().unwrap() += 1;
            *self.1.write().unwrap() += 1;
        }
    }
    run(2, "poison", || {
        let (mutex, lock) = (Mutex::new(0), RwLock::new(0));
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let _locks = Locks(&mutex, &lock);
            panics()
        }));
        assert_eq!((*mutex.lock().unwrap(), *lock.read().unwrap()), (1, 1));
    });
}

/// A mutex that is poisoned meanwhile is poisoned for a waiter in a Condvar, in both kinds of wait.
#[test]
fn a_condvar_hands_the_poison_on() {
    run(2, "poison", || {
        let pair = Arc::new((Mutex::new(false), Condvar::new()));
        let other = Arc::clone(&pair);
        let guard = pair.0.lock().unwrap();
        gosched::go(move || {
            let _guard = other.0.lock().unwrap();
            other.1.notify_all();
            panics()
        });
        let guard = pair.1.wait(guard).unwrap_err().into_inner();
        let (guard, result) = pair.1.wait_timeout(guard, ms(1)).unwrap_err().into_inner();
        assert!(result.timed_out());
        let waited = pair.1.wait_timeout_while(guard, ms(1), |_| true);
        drop(waited.unwrap_err().into_inner());
    });
}
