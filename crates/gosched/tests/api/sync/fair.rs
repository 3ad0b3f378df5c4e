//! The order of service: no waiter starves.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use gosched::sync::{Arc, Mutex, RwLock, RwLockWriteGuard};
use gosched::{Runtime, thread};

use super::{LONG, ms, run, until_waiting, wait_for};
use crate::common::{compute, within};

/// A goroutine that releases the lock only to take it again does not starve another one.
#[test]
fn a_greedy_locker_starves_nobody() {
    for procs in [1, 2] {
        run(procs, "a greedy locker", || {
            let mutex = Arc::new(Mutex::new(0));
            let is_over = Arc::new(AtomicBool::new(false));
            let (over, greedy) = (Arc::clone(&is_over), Arc::clone(&mutex));
            let greedy = thread::spawn(move || {
                while !over.load(SeqCst) {
                    let mut guard = greedy.lock().unwrap();
                    compute(ms(1));
                    *guard += 1;
                }
            });
            for _ in 0..50 {
                compute(Duration::from_micros(300));
                *mutex.lock().unwrap() += 1;
            }
            is_over.store(true, SeqCst);
            greedy.join().unwrap();
        });
    }
}

/// The starving mode, step by step. On one P without preemption, a woken goroutine runs only when
/// the waker waits. So the main goroutine takes the lock before the goroutine that it has just
/// woken. That goroutine has waited for long, so the next unlock hands the lock to it: the main
/// goroutine finds the lock taken before the other one has run at all.
#[test]
fn who_has_waited_for_long_is_handed_the_lock() {
    let attempt = || {
        let mutex = Arc::new(Mutex::new(()));
        let has_run = Arc::new(AtomicBool::new(false));
        let guard = mutex.lock().unwrap();
        let (other, runs) = (Arc::clone(&mutex), Arc::clone(&has_run));
        let waits = thread::spawn(move || {
            let _guard = other.lock().unwrap();
            runs.store(true, SeqCst);
        });
        until_waiting(1, "sync.Mutex.Lock");
        compute(ms(3));
        drop(guard);
        let taken = mutex.try_lock(); // it has only been woken
        thread::yield_now(); // now it wakes and loses
        let has_lost = taken.is_ok() && !has_run.load(SeqCst);
        drop(taken);
        let is_handed_over = mutex.try_lock().is_err() && !has_run.load(SeqCst);
        waits.join().unwrap();
        assert!(mutex.try_lock().is_ok(), "and that was the end of it");
        has_lost && is_handed_over
    };
    let builder = Runtime::builder().procs(1).preemption(false);
    let runtime = builder.build().unwrap();
    within(LONG, "hand-over", || {
        // With disorder on demand it may take a few.
        assert!(runtime.run(|| (0..50).any(|_| attempt())));
    });
}

/// In starving mode the lock goes from hand to hand, in the order in which they came.
#[test]
fn a_starving_queue_is_served_in_order() {
    run(2, "hand-off", || {
        let mutex = Arc::new(Mutex::new(Vec::new()));
        let guard = mutex.lock().unwrap();
        for number in 0..30 {
            let mutex = Arc::clone(&mutex);
            gosched::go(move || mutex.lock().unwrap().push(number));
            until_waiting(number + 1, "sync.Mutex.Lock");
        }
        drop(guard);
        // The first waiter that wakes and loses switches to starving mode; from then on they are
        // served in order. It loses to a greedy goroutine: this one.
        let began = Instant::now();
        loop {
            let guard = mutex.lock().unwrap();
            if guard.len() == 30 {
                break;
            }
            compute(ms(3));
            assert!(began.elapsed() < LONG / 2, "{guard:?}");
        }
        let order = mutex.lock().unwrap();
        assert_eq!(*order, (0..30).collect::<Vec<_>>());
    });
}

/// A stream of readers, of whom there is always one in, does not keep a writer out.
#[test]
fn readers_do_not_starve_a_writer() {
    run(2, "writer among readers", || {
        let lock = Arc::new(RwLock::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let begun = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..8)
            .map(|_| {
                let (lock, is_over, begun) =
                    (Arc::clone(&lock), Arc::clone(&is_over), Arc::clone(&begun));
                thread::spawn(move || {
                    begun.fetch_add(1, SeqCst);
                    while !is_over.load(SeqCst) {
                        let _guard = lock.read().unwrap();
                        thread::sleep(ms(1)); // the others come meanwhile
                    }
                })
            })
            .collect();
        wait_for(&begun, 8);
        for _ in 0..20 {
            *lock.write().unwrap() += 1;
        }
        is_over.store(true, SeqCst);
        readers.into_iter().for_each(|one| one.join().unwrap());
        assert_eq!(*lock.read().unwrap(), 20);
    });
}

/// Writers that take turns without a pause do not keep the readers out: when one unlocks all
/// readers that wait come in.
#[test]
fn writers_do_not_starve_a_reader() {
    run(2, "readers among writers", || {
        let lock = Arc::new(RwLock::new(0_u64));
        let is_over = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let (lock, is_over) = (Arc::clone(&lock), Arc::clone(&is_over));
                thread::spawn(move || {
                    while !is_over.load(SeqCst) {
                        let mut guard = lock.write().unwrap();
                        compute(Duration::from_micros(100));
                        *guard += 1;
                    }
                })
            })
            .collect();
        for _ in 0..50 {
            assert!(*lock.read().unwrap() < u64::MAX);
        }
        is_over.store(true, SeqCst);
        writers.into_iter().for_each(|one| one.join().unwrap());
    });
}

/// New readers queue behind a writer that waits, and all of them are in before the next writer is.
#[test]
fn all_readers_that_queued_are_in_before_the_next_writer() {
    run(2, "order of a rwlock", || {
        let lock = Arc::new(RwLock::new(Vec::new()));
        let inside = Arc::new(AtomicUsize::new(0));
        let first = lock.read().unwrap();
        let writer = |name: &'static str| {
            let lock = Arc::clone(&lock);
            thread::spawn(move || lock.write().unwrap().push(name))
        };
        let one = writer("one");
        until_waiting(1, "sync.RwLock.Write");
        assert!(lock.try_read().is_err(), "a writer waits");
        let readers: Vec<_> = (0..10)
            .map(|_| {
                let (lock, inside) = (Arc::clone(&lock), Arc::clone(&inside));
                thread::spawn(move || {
                    let guard = lock.read().unwrap();
                    inside.fetch_add(1, SeqCst);
                    wait_for(&inside, 10); // they are in together
                    guard.clone()
                })
            })
            .collect();
        until_waiting(10, "sync.RwLock.Read");
        let two = writer("two");
        until_waiting(2, "sync.RwLock.Write");
        drop(first);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), ["one"]);
        }
        one.join().unwrap();
        two.join().unwrap();
        assert_eq!(*lock.read().unwrap(), ["one", "two"]);
    });
}

/// A writer that becomes a reader lets the other readers in, and no writer.
#[test]
fn a_downgrade_lets_readers_in() {
    run(2, "downgrade", || {
        let lock = Arc::new(RwLock::new(0));
        let mut guard = lock.write().unwrap();
        let other = Arc::clone(&lock);
        let writer = thread::spawn(move || *other.write().unwrap() += 1);
        until_waiting(1, "sync.RwLock.Write");
        let other = Arc::clone(&lock);
        let reader = thread::spawn(move || *other.read().unwrap());
        until_waiting(1, "sync.RwLock.Read");
        *guard = 5;
        let guard = RwLockWriteGuard::downgrade(guard);
        assert_eq!(reader.join().unwrap(), 5, "it came in beside this one");
        assert_eq!(*guard, 5);
        drop(guard);
        writer.join().unwrap();
        assert_eq!(*lock.read().unwrap(), 6);
    });
}
