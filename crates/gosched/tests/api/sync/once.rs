//! Once, OnceLock and LazyLock, with many callers at the same time.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use gosched::sync::{Arc, LazyLock, Once, OnceLock};
use gosched::thread;

use super::{ms, run, until_waiting, wait_for};
use crate::common::{Planned, quiet_planned_panics};

/// All callers wait until one of them has run the closure, and see what it did.
#[test]
fn u10_everybody_waits_for_the_one_that_runs_it() {
    run(2, "once", || {
        for _ in 0..20 {
            let (once, done) = (Once::new(), AtomicUsize::new(0));
            thread::scope(|s| {
                for _ in 0..50 {
                    s.spawn(|| {
                        once.call_once(|| {
                            thread::yield_now();
                            done.fetch_add(1, SeqCst);
                        });
                        assert_eq!(done.load(SeqCst), 1);
                    });
                }
            });
        }
    });
}

/// A panic of the closure wakes the waiters as well, and the next caller that accepts poison runs
/// it.
#[test]
fn a_panic_wakes_those_who_wait() {
    quiet_planned_panics();
    run(2, "once under panic", || {
        let once = Arc::new(Once::new());
        let (other, begun) = (Arc::clone(&once), Arc::new(AtomicUsize::new(0)));
        let begins = Arc::clone(&begun);
        let panics = thread::spawn(move || {
            other.call_once(|| {
                begins.store(1, SeqCst);
                until_waiting(3, "sync.Once");
                panic_any(Planned)
            })
        });
        wait_for(&begun, 1);
        let spawn = |f: fn(&Once) -> bool| {
            let once = Arc::clone(&once);
            thread::spawn(move || f(&once))
        };
        let calls = spawn(|once| catch_unwind(AssertUnwindSafe(|| once.call_once(|| ()))).is_err());
        let waits = spawn(|once| catch_unwind(AssertUnwindSafe(|| once.wait())).is_err());
        let forces = spawn(|once| {
            once.wait_force();
            once.is_completed()
        });
        assert!(panics.join().is_err());
        assert!(calls.join().unwrap() && waits.join().unwrap());
        once.call_once_force(|state| assert!(state.is_poisoned()));
        assert!(forces.join().unwrap());
    });
}

#[test]
fn a_once_lock_is_made_once_and_waited_for() {
    run(2, "once lock", || {
        let cell = Arc::new(OnceLock::new());
        let waiters: Vec<_> = (0..20)
            .map(|n| {
                let cell = Arc::clone(&cell);
                let waits = move || *cell.wait();
                match n % 4 {
                    0 => Err(std::thread::spawn(waits)),
                    _ => Ok(thread::spawn(waits)),
                }
            })
            .collect();
        until_waiting(15, "sync.Once");
        let made = AtomicUsize::new(0);
        thread::scope(|s| {
            for n in 0..20 {
                let (cell, made) = (&cell, &made);
                s.spawn(move || {
                    cell.get_or_init(|| {
                        thread::sleep(ms(5));
                        made.fetch_add(1, SeqCst);
                        n
                    });
                });
            }
        });
        assert_eq!(made.load(SeqCst), 1);
        for waiter in waiters {
            let value = match waiter {
                Ok(goroutine) => goroutine.join().unwrap(),
                Err(thread) => thread.join().unwrap(),
            };
            assert_eq!(Some(&value), cell.get());
        }
    });
}

/// If the closure of a OnceLock panics, one of the waiters runs its own.
#[test]
fn a_once_lock_survives_a_panic() {
    quiet_planned_panics();
    run(2, "once lock under panic", || {
        let (cell, tried) = (OnceLock::new(), AtomicUsize::new(0));
        thread::scope(|s| {
            let all: Vec<_> = (0..10)
                .map(|_| {
                    s.spawn(|| {
                        *cell.get_or_init(|| {
                            thread::yield_now();
                            match tried.fetch_add(1, SeqCst) {
                                n if n < 3 => panic_any(Planned),
                                n => n,
                            }
                        })
                    })
                })
                .collect();
            let results: Vec<_> = all.into_iter().map(|one| one.join()).collect();
            assert_eq!(results.iter().filter(|result| result.is_err()).count(), 3);
            assert!(results.into_iter().flatten().all(|value| value == 3));
        });
    });
}

#[test]
fn a_lazy_lock_is_made_once() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    static LAZY: LazyLock<usize> = LazyLock::new(|| {
        thread::sleep(ms(5));
        MADE.fetch_add(1, SeqCst) + 1
    });
    run(2, "lazy lock", || {
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(|| *LAZY)).collect();
        let goroutines: Vec<_> = (0..20).map(|_| thread::spawn(|| *LAZY)).collect();
        assert!(goroutines.into_iter().all(|one| one.join().unwrap() == 1));
        assert!(threads.into_iter().all(|one| one.join().unwrap() == 1));
        assert_eq!(MADE.load(SeqCst), 1);
    });
}
