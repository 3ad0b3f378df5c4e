//! Barrier, WaitGroup, Semaphore.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::sync::{Arc, Barrier, Mutex, Semaphore, WaitGroup};
use gosched::thread;

use super::{ms, run, runtime, until_waiting, wait_for};
use crate::common::{Planned, quiet_planned_panics};

/// No goroutine is a round ahead of another, and each round has one leader.
#[test]
fn a_barrier_has_one_leader_a_round() {
    const N: usize = 7;
    const ROUNDS: usize = 300;
    run(2, "barrier", || {
        let barrier = Arc::new(Barrier::new(N));
        let arrived: Arc<Vec<AtomicUsize>> = Arc::new((0..ROUNDS).map(|_| 0.into()).collect());
        let leaders: Arc<Vec<AtomicUsize>> = Arc::new((0..ROUNDS).map(|_| 0.into()).collect());
        let plays = |_| {
            let (barrier, arrived, leaders) = (
                Arc::clone(&barrier),
                Arc::clone(&arrived),
                Arc::clone(&leaders),
            );
            move || {
                for round in 0..ROUNDS {
                    arrived[round].fetch_add(1, SeqCst);
                    let result = barrier.wait();
                    assert_eq!(arrived[round].load(SeqCst), N, "round {round}");
                    leaders[round].fetch_add(usize::from(result.is_leader()), SeqCst);
                }
            }
        };
        let threads: Vec<_> = (0..2).map(|n| std::thread::spawn(plays(n))).collect();
        let goroutines: Vec<_> = (2..N).map(|n| thread::spawn(plays(n))).collect();
        goroutines.into_iter().for_each(|one| one.join().unwrap());
        threads.into_iter().for_each(|one| one.join().unwrap());
        assert!(leaders.iter().all(|count| count.load(SeqCst) == 1));
    });
}

#[test]
fn u10_a_wait_group_waits_for_all_and_again() {
    run(2, "wait group", || {
        let group = WaitGroup::default();
        group.wait();
        let done = Arc::new(AtomicUsize::new(0));
        for round in 1..=200 {
            for _ in 0..10 {
                let done = Arc::clone(&done);
                group.go(move || {
                    thread::yield_now();
                    done.fetch_add(1, SeqCst);
                });
            }
            let waiters: Vec<_> = (0..3)
                .map(|_| {
                    let group = group.clone();
                    thread::spawn(move || group.wait())
                })
                .collect();
            group.wait();
            assert_eq!(done.load(SeqCst), round * 10);
            waiters.into_iter().for_each(|one| one.join().unwrap());
        }
        assert_eq!(format!("{group:?}"), "WaitGroup { count: 0, .. }");
    });
}

/// What is counted is counted down however it ends, also if it never runs.
#[test]
fn a_wait_group_counts_every_end() {
    quiet_planned_panics();
    let group = WaitGroup::new();
    run(2, "wait group ends", || {
        group.go(|| panic_any(Planned));
        group.go(|| gosched::goexit());
        group.go(|| ());
        group.add(2);
        let other = group.clone();
        std::thread::spawn(move || {
            other.done();
            other.done();
        });
        group.wait();
        group.wait();
    });
    // Outside a goroutine nothing is started, nor counted.
    assert!(catch_unwind(AssertUnwindSafe(|| group.go(|| ()))).is_err());
    group.wait();
    // A runtime that is dropped drops what it has not begun.
    let short_lived = runtime(1);
    let inside = group.clone();
    short_lived.run(move || {
        for _ in 0..10 {
            inside.go(|| ());
        }
    });
    drop(short_lived);
    group.wait();
}

#[test]
fn below_zero_is_a_panic() {
    let group = WaitGroup::new();
    group.add(1);
    group.done();
    let panic = catch_unwind(AssertUnwindSafe(|| group.done())).unwrap_err();
    assert_eq!(
        *panic.downcast::<&str>().unwrap(),
        "sync: negative WaitGroup counter"
    );
    group.wait(); // and nothing is broken
    let panic = catch_unwind(AssertUnwindSafe(|| group.add(usize::MAX))).unwrap_err();
    assert_eq!(
        *panic.downcast::<&str>().unwrap(),
        "sync: WaitGroup counter overflow"
    );
    group.add(1);
    let last = catch_unwind(AssertUnwindSafe(|| group.add(usize::MAX / 2)));
    assert!(last.is_err());
    group.done();
    group.wait();
}

/// Waiters and the last done meet in every order.
#[test]
fn a_wait_group_under_stress() {
    run(2, "wait group stress", || {
        for round in 0..2000 {
            let group = WaitGroup::new();
            let n = 1 + round % 4;
            group.add(n);
            let waiters: Vec<_> = (0..3)
                .map(|_| {
                    let group = group.clone();
                    thread::spawn(move || group.wait())
                })
                .collect();
            for _ in 0..n {
                let group = group.clone();
                gosched::go(move || group.done());
            }
            waiters.into_iter().for_each(|one| one.join().unwrap());
        }
    });
}

#[test]
fn a_semaphore_lets_so_many_in() {
    run(2, "semaphore", || {
        let semaphore = Arc::new(Semaphore::new(3));
        let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let all: Vec<_> = (0..20)
            .map(|n| {
                let (semaphore, inside, most) = (
                    Arc::clone(&semaphore),
                    Arc::clone(&inside),
                    Arc::clone(&most),
                );
                let uses = move || {
                    for _ in 0..200 {
                        let _permit = semaphore.acquire();
                        most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                    }
                };
                match n % 7 {
                    0 => Err(std::thread::spawn(uses)),
                    _ => Ok(thread::spawn(uses)),
                }
            })
            .collect();
        for one in all {
            match one {
                Ok(goroutine) => goroutine.join().unwrap(),
                Err(thread) => thread.join().unwrap(),
            }
        }
        assert_eq!((most.load(SeqCst), semaphore.available_permits()), (3, 3));
        assert_eq!(
            format!("{semaphore:?}"),
            "Semaphore { available_permits: 3, .. }"
        );
    });
}

/// In order, and no other in between.
#[test]
fn a_semaphore_is_first_come_first_served() {
    run(2, "semaphore order", || {
        let semaphore = Arc::new(Semaphore::new(1));
        let order = Arc::new(Mutex::new(Vec::new()));
        let permit = semaphore.acquire();
        for number in 0..30 {
            let (semaphore, order) = (Arc::clone(&semaphore), Arc::clone(&order));
            gosched::go(move || {
                let _permit = semaphore.acquire();
                order.lock().unwrap().push(number);
            });
            until_waiting(number + 1, "sync.Semaphore.Acquire");
        }
        assert!(semaphore.try_acquire().is_none());
        drop(permit);
        // It belongs to the first in the queue from now on: no newcomer gets it before all waiters
        // have had it.
        while semaphore.try_acquire().is_none() {
            thread::yield_now();
        }
        assert_eq!(*order.lock().unwrap(), (0..30).collect::<Vec<_>>());
    });
}

#[test]
fn a_semaphore_whose_time_is_up() {
    run(2, "semaphore timeouts", || {
        let semaphore = Arc::new(Semaphore::new(1));
        let permit = semaphore.acquire_timeout(Duration::ZERO).unwrap();
        assert!(semaphore.acquire_timeout(Duration::ZERO).is_none());
        let began = Instant::now();
        assert!(semaphore.acquire_timeout(ms(20)).is_none());
        assert!(began.elapsed() >= ms(20));
        // A waiter that gave up is not handed a permit: the next one is.
        let (early, late) = (Arc::clone(&semaphore), Arc::clone(&semaphore));
        let early = thread::spawn(move || early.acquire_timeout(ms(50)).is_some());
        thread::sleep(ms(10)); // mostly it is the first then
        let late = thread::spawn(move || late.acquire_timeout(Duration::MAX).is_some());
        assert!(!early.join().unwrap());
        until_waiting(1, "sync.Semaphore.Acquire");
        drop(permit);
        assert!(late.join().unwrap());
        assert_eq!(semaphore.available_permits(), 1);
    });
}

/// Timeouts and releases cross, and no permit is lost or made.
#[test]
fn a_semaphore_under_stress_keeps_its_permits() {
    run(2, "semaphore stress", || {
        let semaphore = Arc::new(Semaphore::new(2));
        let got = Arc::new(AtomicUsize::new(0));
        for n in 0..10_u64 {
            let (semaphore, got) = (Arc::clone(&semaphore), Arc::clone(&got));
            gosched::go(move || {
                for turn in 0..300 {
                    let patience = Duration::from_micros(1 + (n * 13 + turn * 7) % 200);
                    if let Some(_permit) = semaphore.acquire_timeout(patience) {
                        thread::yield_now();
                    }
                }
                got.fetch_add(1, SeqCst);
            });
        }
        wait_for(&got, 10);
        assert_eq!(semaphore.available_permits(), 2);
    });
}

#[test]
fn too_many_permits_are_refused() {
    assert!(catch_unwind(|| Semaphore::new(usize::MAX)).is_err());
    assert_eq!(
        Semaphore::new(usize::MAX / 2).available_permits(),
        usize::MAX / 2
    );
}
