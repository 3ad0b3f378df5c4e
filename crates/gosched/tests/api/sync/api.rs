//! D1: the same program, once with `std::sync` and once with `gosched::sync` in its `use` line,
//! does the same.

use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

/// The program; `$path` is where the locks come from.
macro_rules! program {
    ($name:ident, $($path:tt)+) => {
        mod $name {
            use super::*;
            use $($path)+::{
                Arc, Barrier, BarrierWaitResult, Condvar, LazyLock, LockResult, Mutex, MutexGuard, Once, OnceLock,
                OnceState, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
                WaitTimeoutResult, Weak, atomic,
            };

            static COUNT: Mutex<u32> = Mutex::new(1);
            static TABLE: RwLock<Vec<u32>> = RwLock::new(Vec::new());
            static READY: Condvar = Condvar::new();
            static MEET: Barrier = Barrier::new(1);
            static START: Once = Once::new();
            static CELL: OnceLock<String> = OnceLock::new();
            static LAZY: LazyLock<Vec<u8>> = LazyLock::new(|| vec![1, 2, 3]);

            #[test]
            fn d1_constants_and_statics() {
                *COUNT.lock().unwrap() += 1;
                TABLE.write().unwrap().push(1);
                READY.notify_all();
                assert!(MEET.wait().is_leader());
                START.call_once(|| ());
                assert!(START.is_completed());
                START.wait();
                START.wait_force();
                assert_eq!(CELL.get_or_init(|| "x".into()), "x");
                assert_eq!(LAZY.len(), 3);
                assert_eq!(const { OnceLock::<u8>::new() }.into_inner(), None);
                let made: (Condvar, Mutex<u8>, RwLock<u8>, OnceLock<u8>) = Default::default();
                assert_eq!(made.1.into_inner().unwrap() + made.2.into_inner().unwrap(), 0);
                assert_eq!(*LazyLock::<u32>::default(), 0);
            }

            #[test]
            fn d1_mutex() {
                let mut mutex: Mutex<i32> = 1.into();
                *mutex.get_mut().unwrap() += 1;
                let guard: LockResult<MutexGuard<'_, i32>> = mutex.lock();
                let guard = guard.unwrap();
                let failed: TryLockResult<MutexGuard<'_, i32>> = mutex.try_lock();
                assert!(matches!(failed, Err(TryLockError::WouldBlock)));
                drop(failed);
                assert_eq!(format!("{guard} {guard:?} {mutex:?}"), r#"2 2 Mutex { data: "<locked>", poisoned: false, .. }"#);
                drop(guard);
                assert_eq!(format!("{mutex:?}"), "Mutex { data: 2, poisoned: false, .. }");
                *mutex.try_lock().unwrap() += 1;
                assert_eq!(mutex.into_inner().unwrap(), 3);
            }

            #[test]
            fn d1_unsized_values() {
                let slice: &Mutex<[u8]> = &Mutex::new([1, 2, 3]);
                slice.lock().unwrap()[1] = 9;
                assert_eq!(&*slice.lock().unwrap(), &[1, 9, 3]);
                let any: Arc<Mutex<dyn Fn() -> u8 + Send>> = Arc::new(Mutex::new(|| 7));
                assert_eq!((any.lock().unwrap())(), 7);
                let text: Box<RwLock<dyn std::fmt::Display>> = Box::new(RwLock::new(5));
                assert_eq!(text.read().unwrap().to_string(), "5");
                let weak: Weak<Mutex<dyn Fn() -> u8 + Send>> = Arc::downgrade(&any);
                assert!(weak.upgrade().is_some());
            }

            #[test]
            fn d1_rwlock() {
                let mut lock = RwLock::from(1);
                *lock.get_mut().unwrap() = 2;
                {
                    let one: RwLockReadGuard<'_, i32> = lock.read().unwrap();
                    let two = lock.try_read().unwrap();
                    assert!(matches!(lock.try_write(), Err(TryLockError::WouldBlock)));
                    assert_eq!(format!("{one} {two:?} {lock:?}"), "2 2 RwLock { data: 2, poisoned: false, .. }");
                }
                let mut writer: RwLockWriteGuard<'_, i32> = lock.write().unwrap();
                *writer += 1;
                assert!(lock.try_read().is_err() && lock.try_write().is_err());
                assert_eq!(format!("{writer} {writer:?} {lock:?}"), "3 3 RwLock { data: <locked>, poisoned: false, .. }");
                let reader = RwLockWriteGuard::downgrade(writer);
                assert_eq!(*reader + *lock.read().unwrap(), 6);
                drop(reader);
                *lock.try_write().unwrap() += 1;
                assert_eq!(lock.into_inner().unwrap(), 4);
            }

            /// A reader's guard stands for one of a shorter life, as a reference does.
            #[test]
            fn d1_a_read_guard_is_covariant() {
                fn shorter<'a>(guard: RwLockReadGuard<'a, &'static str>, _: &'a str) -> RwLockReadGuard<'a, &'a str> {
                    guard
                }
                let lock = RwLock::new("text");
                assert_eq!(*shorter(lock.read().unwrap(), &String::from("a")), "text");
            }

            #[test]
            fn d1_condvar() {
                let (mutex, condvar) = (Mutex::new(0), Condvar::new());
                condvar.notify_one();
                let short = Duration::from_millis(2);
                let (guard, result): (_, WaitTimeoutResult) = condvar.wait_timeout(mutex.lock().unwrap(), short).unwrap();
                assert!(result.timed_out());
                assert_eq!(format!("{result:?}"), "WaitTimeoutResult(true)");
                let (guard, result) = condvar.wait_timeout_while(guard, short, |n| *n == 0).unwrap();
                assert!(result.timed_out());
                let (guard, result) = condvar.wait_timeout_while(guard, Duration::MAX, |n| *n > 0).unwrap();
                assert!(!result.timed_out());
                #[allow(deprecated)]
                let (guard, was_notified) = condvar.wait_timeout_ms(guard, 1).unwrap();
                assert!(!was_notified);
                let guard = condvar.wait_while(guard, |n| *n > 0).unwrap();
                assert_eq!((*guard, format!("{condvar:?}")), (0, "Condvar { .. }".into()));
            }

            #[test]
            fn d1_barrier_and_once() {
                let result: BarrierWaitResult = Barrier::new(0).wait();
                assert_eq!(format!("{result:?} {:?}", Barrier::new(2)), "BarrierWaitResult { is_leader: true } Barrier { .. }");
                let once = Once::new();
                assert!(catch_unwind(AssertUnwindSafe(|| once.call_once(|| panic!("planned")))).is_err());
                assert!(!once.is_completed());
                let again = catch_unwind(AssertUnwindSafe(|| once.call_once(|| ())));
                let text = *again.unwrap_err().downcast::<&str>().unwrap();
                assert_eq!(text, "Once instance has previously been poisoned");
                assert!(catch_unwind(AssertUnwindSafe(|| once.wait())).is_err());
                once.call_once_force(|state: &OnceState| {
                    assert_eq!(format!("{state:?}"), "OnceState { poisoned: true }");
                    assert!(state.is_poisoned());
                });
                assert_eq!(format!("{once:?}"), "Once { .. }");
                once.call_once(|| unreachable!());
                once.wait();
            }

            #[test]
            fn d1_once_lock() {
                let mut cell = OnceLock::new();
                assert_eq!((cell.get(), format!("{cell:?}")), (None, "OnceLock(<uninit>)".into()));
                assert_eq!(cell.get_mut(), None);
                let panics = AssertUnwindSafe(|| { cell.get_or_init(|| panic!("planned")); });
                assert!(catch_unwind(panics).is_err());
                assert_eq!((cell.set(1), cell.set(2)), (Ok(()), Err(2)));
                *cell.get_mut().unwrap() += 1;
                assert_eq!((cell.wait(), cell.get_or_init(|| 9), format!("{cell:?}")), (&2, &2, "OnceLock(2)".into()));
                assert_eq!((cell.clone() == cell, cell == OnceLock::new()), (true, false));
                assert_eq!((cell.take(), cell.take(), cell.set(3)), (Some(2), None, Ok(())));
                assert_eq!((cell.into_inner(), OnceLock::from("x").into_inner()), (Some(3), Some("x")));
            }

            /// What it holds may go before it does.
            #[test]
            fn d1_once_lock_may_outlive_what_it_borrows() {
                let (cell, text): (OnceLock<&String>, _);
                text = String::from("x");
                cell = OnceLock::new();
                cell.set(&text).unwrap();
            }

            #[test]
            fn d1_lazy_lock() {
                let mut lazy = LazyLock::new(|| 1);
                assert_eq!((LazyLock::get(&lazy), format!("{lazy:?}")), (None, "LazyLock(<uninit>)".into()));
                assert_eq!(LazyLock::get_mut(&mut lazy), None);
                *LazyLock::force_mut(&mut lazy) += 1;
                *lazy += 1;
                assert_eq!((LazyLock::force(&lazy), LazyLock::get(&lazy), format!("{lazy:?}")), (&3, Some(&3), "LazyLock(3)".into()));
                let text = "LazyLock instance has previously been poisoned";
                let mut broken = LazyLock::<u8>::new(|| panic!("planned"));
                assert!(catch_unwind(AssertUnwindSafe(|| *broken)).is_err());
                let again = catch_unwind(AssertUnwindSafe(|| *broken)).unwrap_err();
                assert_eq!(*again.downcast::<&str>().unwrap(), text);
                assert!(catch_unwind(AssertUnwindSafe(|| *LazyLock::force_mut(&mut broken))).is_err());
                let mut broken = LazyLock::<u8>::new(|| panic!("planned"));
                assert!(catch_unwind(AssertUnwindSafe(|| *LazyLock::force_mut(&mut broken))).is_err());
                let again = catch_unwind(AssertUnwindSafe(|| *broken)).unwrap_err();
                assert_eq!(*again.downcast::<&str>().unwrap(), text);
            }

            /// A closure that was not needed is dropped; one that was used is not dropped twice.
            #[test]
            fn d1_lazy_lock_drops_what_it_has() {
                let token = Rc::new(());
                let other = Rc::clone(&token);
                drop(LazyLock::new(move || Rc::clone(&other)));
                assert_eq!(Rc::strong_count(&token), 1);
                let other = Rc::clone(&token);
                let lazy = LazyLock::new(move || other);
                assert_eq!((Rc::strong_count(&lazy), Rc::strong_count(&token)), (2, 2));
                drop(lazy);
                assert_eq!(Rc::strong_count(&token), 1);
            }

            #[test]
            fn d1_traits() {
                fn sends<T: Send>() {}
                fn syncs<T: Sync>() {}
                fn survives<T: UnwindSafe + RefUnwindSafe>() {}
                type Cell = std::cell::Cell<u8>;
                sends::<Mutex<Cell>>();
                syncs::<Mutex<Cell>>();
                sends::<RwLock<Cell>>();
                syncs::<RwLock<u8>>();
                syncs::<MutexGuard<'_, u8>>();
                syncs::<RwLockReadGuard<'_, u8>>();
                syncs::<RwLockWriteGuard<'_, u8>>();
                sends::<OnceLock<Cell>>();
                syncs::<OnceLock<u8>>();
                sends::<LazyLock<u8, Box<dyn FnOnce() -> u8 + Send>>>();
                syncs::<LazyLock<u8, Box<dyn FnOnce() -> u8 + Send>>>();
                survives::<(Mutex<Cell>, RwLock<Cell>, Condvar, Barrier, Once, OnceLock<u8>, LazyLock<u8>)>();
                survives::<(MutexGuard<'_, u8>, RwLockReadGuard<'_, u8>, RwLockWriteGuard<'_, u8>)>();
                assert_eq!(PoisonError::new(1).into_inner(), atomic::AtomicU8::new(1).into_inner());
            }
        }
    };
}

program!(with_std, std::sync);
program!(with_gosched, gosched::sync);

/// Small, and nothing beside: a lock is what it says it is.
#[test]
fn d1_a_lock_is_small() {
    use gosched::sync::{Condvar, Mutex, Once, RwLock, Semaphore};
    assert!(size_of::<Mutex<()>>() <= 16 && size_of::<RwLock<()>>() <= 16);
    assert!(size_of::<Condvar>() <= 8 && size_of::<Once>() <= 4 && size_of::<Semaphore>() <= 8);
}
