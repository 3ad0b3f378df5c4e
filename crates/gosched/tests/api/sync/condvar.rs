//! Condvar: first come, first notified; nothing lost.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::sync::{Arc, Condvar, Mutex};
use gosched::thread;

use super::{ms, run, until_waiting, wait_for};

/// The longest waiters wake first, one for each notify, goroutines and threads alike.
#[test]
fn notify_one_is_first_come_first_served() {
    const N: usize = 40;
    run(2, "condvar order", || {
        let pair = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let queued = Arc::new(AtomicUsize::new(0));
        for number in 0..N {
            let (shared, counted) = (Arc::clone(&pair), Arc::clone(&queued));
            let waits = move || {
                let guard = shared.0.lock().unwrap();
                counted.fetch_add(1, SeqCst);
                shared.1.wait(guard).unwrap().push(number);
            };
            match number % 3 {
                0 => drop(std::thread::spawn(waits)),
                _ => gosched::go(waits),
            }
            wait_for(&queued, number + 1);
            drop(pair.0.lock()); // who has counted has the mutex until it waits
        }
        for number in 0..N {
            assert_eq!(
                pair.0.lock().unwrap().len(),
                number,
                "nobody wakes for nothing"
            );
            pair.1.notify_one();
            while pair.0.lock().unwrap().len() == number {
                thread::sleep(ms(1));
            }
        }
        assert_eq!(*pair.0.lock().unwrap(), (0..N).collect::<Vec<_>>());
    });
}

/// A notify under the mutex, right after the waiter let it go, meets one that does not sleep yet;
/// it must not be lost.
#[test]
fn a_notify_finds_one_that_is_not_asleep_yet() {
    run(2, "condvar ping-pong", || {
        let pair = Arc::new((Mutex::new(0_u32), Condvar::new()));
        let turns = 20_000;
        let play = |mine: u32, pair: Arc<(Mutex<u32>, Condvar)>| {
            move || {
                let mut turn = pair.0.lock().unwrap();
                while *turn < turns {
                    if *turn % 2 == mine {
                        *turn += 1;
                        pair.1.notify_one();
                    } else {
                        turn = pair.1.wait(turn).unwrap();
                    }
                }
                pair.1.notify_one();
            }
        };
        let one = thread::spawn(play(0, Arc::clone(&pair)));
        let other = std::thread::spawn(play(1, Arc::clone(&pair)));
        one.join().unwrap();
        other.join().unwrap();
        assert_eq!(*pair.0.lock().unwrap(), turns);
    });
}

#[test]
fn notify_all_wakes_all_that_wait_by_then() {
    run(2, "notify_all", || {
        let pair = Arc::new((Mutex::new(0), Condvar::new()));
        let woken = Arc::new(AtomicUsize::new(0));
        for round in 1..=3 {
            for _ in 0..50 {
                let (pair, woken) = (Arc::clone(&pair), Arc::clone(&woken));
                gosched::go(move || {
                    let guard = pair.0.lock().unwrap();
                    let _guard = pair.1.wait_while(guard, |now| *now < round).unwrap();
                    woken.fetch_add(1, SeqCst);
                });
            }
            until_waiting(50, "sync.Condvar.Wait");
            assert_eq!(woken.load(SeqCst), (round - 1) * 50);
            *pair.0.lock().unwrap() = round;
            pair.1.notify_all();
            wait_for(&woken, round * 50);
        }
    });
}

/// A wait whose time is up is out of the queue: the next notify wakes another waiter.
#[test]
fn a_timeout_takes_no_notify_with_it() {
    run(2, "timeouts", || {
        let pair = Arc::new((Mutex::new(()), Condvar::new()));
        let began = Instant::now();
        let guard = pair.0.lock().unwrap();
        let (guard, result) = pair.1.wait_timeout(guard, ms(20)).unwrap();
        assert!(result.timed_out() && began.elapsed() >= ms(20));
        drop(guard);
        let other = Arc::clone(&pair);
        let waits = thread::spawn(move || drop(other.1.wait(other.0.lock().unwrap())));
        until_waiting(1, "sync.Condvar.Wait");
        pair.1.notify_one();
        waits.join().unwrap();
        // Very long is fine, and so is none at all.
        let other = Arc::clone(&pair);
        let waits = thread::spawn(move || {
            let guard = other.0.lock().unwrap();
            other.1.wait_timeout(guard, Duration::MAX).unwrap().1
        });
        until_waiting(1, "sync.Condvar.Wait");
        pair.1.notify_one();
        assert!(!waits.join().unwrap().timed_out());
        let none = pair.1.wait_timeout(pair.0.lock().unwrap(), Duration::ZERO);
        assert!(none.unwrap().1.timed_out());
        // Nor does it hide another waiter.
        let other = Arc::clone(&pair);
        let waits = thread::spawn(move || drop(other.1.wait(other.0.lock().unwrap())));
        until_waiting(1, "sync.Condvar.Wait");
        let late = pair.1.wait_timeout(pair.0.lock().unwrap(), ms(1));
        assert!(late.unwrap().1.timed_out());
        pair.1.notify_one();
        waits.join().unwrap();
    });
}

/// As many tokens as notifies, with timeouts and notifies crossing: none is lost and none counted
/// twice.
#[test]
fn timeouts_and_notifies_may_cross() {
    run(2, "crossing", || {
        let pair = Arc::new((Mutex::new(0_u32), Condvar::new()));
        let takers: Vec<_> = (0..8_u64)
            .map(|n| {
                let pair = Arc::clone(&pair);
                thread::spawn(move || {
                    let mut taken = 0;
                    while taken < 200 {
                        let guard = pair.0.lock().unwrap();
                        let wait = Duration::from_micros(1 + 37 * n);
                        let waited = pair
                            .1
                            .wait_timeout_while(guard, wait, |tokens| *tokens == 0);
                        let mut tokens = waited.unwrap().0;
                        if *tokens > 0 {
                            *tokens -= 1;
                            taken += 1;
                        }
                    }
                })
            })
            .collect();
        for given in 0..8 * 200 {
            *pair.0.lock().unwrap() += 1;
            pair.1.notify_one();
            if given % 7 == 0 {
                thread::yield_now();
            }
        }
        for taker in takers {
            taker.join().unwrap();
        }
        assert_eq!(*pair.0.lock().unwrap(), 0);
    });
}
