//! std inside goroutines, where it keeps something per thread: handles and ids, park tokens,
//! channels, locks, hash keys, printing.
//!
//! Calls of std that wait block a P. So no test here has more goroutines waiting at once than Ps
//! less one.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Barrier, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::seq::SliceRandom;

use crate::common::{child_of, within};
use crate::tools::{LONG, PROCS, own, swarm, tid, until};
use gosched::thread;

#[test]
fn thread_ids_are_unique_among_goroutines_and_threads() {
    let ids = Mutex::new(HashSet::new());
    let note = || assert!(ids.lock().unwrap().insert(std::thread::current().id()));
    note();
    let runtimes = [own(2), own(3)];
    for _ in 0..3 {
        for runtime in &runtimes {
            runtime.run(|| {
                note();
                thread::scope(|s| {
                    (0..500).for_each(|_| drop(s.spawn(note)));
                });
            });
        }
        std::thread::scope(|s| {
            (0..20).for_each(|_| drop(s.spawn(note)));
        });
    }
    assert_eq!(ids.lock().unwrap().len(), 1 + 3 * (2 * 501 + 20));
}

/// std's handle: one per goroutine, the same from the first to the last use.
#[test]
fn stds_handle_is_the_goroutines() {
    own(2).run(|| {
        let all: Vec<_> = (0..200)
            .map(|_| {
                thread::spawn(|| {
                    let own = std::thread::current();
                    assert_eq!(own.name(), None, "no thread's name");
                    for _ in 0..20 {
                        thread::yield_now();
                        assert_eq!(std::thread::current().id(), own.id());
                    }
                    own
                })
            })
            .collect();
        let ids: HashSet<_> = all
            .into_iter()
            .map(|one| one.join().unwrap().id())
            .collect();
        assert_eq!(ids.len(), 200);
    });
}

/// A token waits for its goroutine, wherever that is; the thread's next goroutine must not find it.
#[test]
fn stds_park_token_belongs_to_the_goroutine() {
    swarm(|trip| {
        let own = std::thread::current();
        for _ in trip.turns() {
            own.unpark();
            trip.step();
            let began = Instant::now();
            std::thread::park_timeout(LONG);
            trip.expect(began.elapsed() < LONG / 2);
        }
    });
    // A goroutine without one waits.
    own(2).run(|| {
        for _ in 0..20 {
            thread::spawn(|| {
                let began = Instant::now();
                std::thread::park_timeout(Duration::from_millis(2));
                assert!(began.elapsed() >= Duration::from_millis(1));
                std::thread::current().unpark(); // left over
            })
            .join()
            .unwrap();
        }
    });
}

/// Two goroutines and a plain thread wake each other by std's means.
#[test]
fn stds_park_and_unpark_work_in_every_direction() {
    const ROUNDS: usize = 300;
    fn play(turn: &AtomicUsize, own: usize, next: &OnceLock<std::thread::Thread>) {
        for round in 0..ROUNDS {
            while turn.load(SeqCst) != round * 3 + own {
                std::thread::park();
            }
            thread::yield_now();
            turn.fetch_add(1, SeqCst);
            while next.get().is_none() {
                thread::yield_now();
            }
            next.get().unwrap().unpark();
        }
    }
    within(2 * LONG, "std::thread::park", || {
        let turn = AtomicUsize::new(0);
        let players: [OnceLock<std::thread::Thread>; 3] = Default::default();
        let player = |own: usize| {
            players[own].set(std::thread::current()).unwrap();
            play(&turn, own, &players[(own + 1) % 3]);
        };
        let runtime = own(4);
        std::thread::scope(|s| {
            s.spawn(|| player(2));
            runtime.run(|| {
                thread::scope(|s| {
                    s.spawn(|| player(0));
                    s.spawn(|| player(1));
                });
            });
        });
        assert_eq!(turn.into_inner(), 3 * ROUNDS);
    });
}

/// Its waiting side keeps a context per thread.
#[test]
fn mpsc_between_goroutines_and_threads() {
    within(2 * LONG, "std::sync::mpsc", || {
        let runtime = own(4);
        let (to, from) = mpsc::sync_channel::<usize>(2);
        let (back, answers) = mpsc::channel::<usize>();
        std::thread::scope(|s| {
            // Two goroutines that wait in std, of four Ps.
            s.spawn(|| {
                runtime.run(move || {
                    let relay = thread::spawn(move || {
                        for value in from {
                            back.send(value * 2).unwrap();
                            thread::yield_now();
                        }
                    });
                    let (nobody, nothing) = mpsc::channel::<()>();
                    let waiter = thread::spawn(move || {
                        for _ in 0..20 {
                            let got = nothing.recv_timeout(Duration::from_millis(1));
                            assert_eq!(got, Err(RecvTimeoutError::Timeout));
                            thread::yield_now();
                        }
                    });
                    waiter.join().unwrap();
                    drop(nobody);
                    relay.join().unwrap();
                });
            });
            for value in 0..2_000 {
                to.send(value).unwrap();
            }
            drop(to);
            let got: Vec<_> = answers.iter().collect();
            assert_eq!(got, (0..2_000).map(|value| value * 2).collect::<Vec<_>>());
        });
    });
}

/// Many at once, without blocking.
#[test]
fn mpsc_among_many_goroutines() {
    own(4).run(|| {
        let (to, from) = mpsc::channel();
        for number in 0..500usize {
            let to = to.clone();
            gosched::go(move || {
                for i in 0..10 {
                    to.send(number * 10 + i).unwrap();
                    thread::yield_now();
                }
            });
        }
        drop(to);
        let mut got = HashSet::new();
        loop {
            match from.try_recv() {
                Ok(value) => assert!(got.insert(value)),
                Err(TryRecvError::Empty) => thread::yield_now(),
                Err(TryRecvError::Disconnected) => break,
            }
        }
        assert_eq!(got.len(), 5_000);
    });
}

/// Fewer wait than there are Ps.
#[test]
fn stds_locks_work_between_goroutines() {
    within(2 * LONG, "std's locks", || {
        own(4).run(|| {
            let (lock, changed, meet) = (Mutex::new(0usize), Condvar::new(), Barrier::new(3));
            thread::scope(|s| {
                for own in 0..3 {
                    let (lock, changed, meet) = (&lock, &changed, &meet);
                    s.spawn(move || {
                        for round in 0..100 {
                            let guard = lock.lock().unwrap();
                            let is_others = |turn: &mut usize| *turn != round * 3 + own;
                            let mut turn = changed.wait_while(guard, is_others).unwrap();
                            *turn += 1;
                            // Held over a switch.
                            thread::yield_now();
                            drop(turn);
                            changed.notify_all();
                            meet.wait();
                        }
                    });
                }
            });
            assert_eq!(lock.into_inner().unwrap(), 300);
        });
    });
}

/// A lock held over switches excludes the others, and only them.
#[test]
fn a_std_mutex_held_over_switches_excludes() {
    let (lock, inside) = (Mutex::new(()), AtomicUsize::new(0));
    swarm(|trip| {
        for _ in trip.turns() {
            let Ok(guard) = lock.try_lock() else {
                trip.step();
                continue;
            };
            trip.expect(inside.fetch_add(1, SeqCst) == 0);
            trip.step();
            trip.expect(inside.fetch_sub(1, SeqCst) == 1);
            drop(guard);
            trip.step();
        }
    });
}

/// Each goroutine has random keys of its own, each map its own variation of them.
#[test]
fn hash_keys_are_random_and_the_goroutines_own() {
    let hashes = Mutex::new(HashSet::new());
    swarm(|trip| {
        let mut map = HashMap::new();
        for turn in trip.turns() {
            if turn < 10 {
                let hash = RandomState::new().hash_one(42);
                trip.expect(hashes.lock().unwrap().insert(hash));
            }
            map.insert(turn, trip.number);
            trip.step();
            trip.expect(map.get(&turn) == Some(&trip.number));
            let other: HashSet<_> = map.keys().copied().collect();
            trip.expect(other.len() == turn + 1 || turn > 200);
            if turn > 200 {
                map.clear();
            }
        }
    });
}

#[test]
fn rand_works_across_switches() {
    swarm(|trip| {
        let mut rng = rand::rng();
        let mut cards: Vec<u32> = (0..52).collect();
        for _ in trip.turns() {
            cards.shuffle(&mut rng);
            trip.step();
            let sum: u32 = cards.iter().sum();
            trip.expect(sum == 51 * 52 / 2);
            trip.expect(rng.random_range(3..9) < 9);
            // Past the point where it seeds itself anew, now and then.
            let mut bytes = [0u8; 1024];
            rng.fill(&mut bytes[..]);
            trip.expect(bytes.iter().any(|byte| *byte != 0));
        }
    });
}

/// Lines come out whole, each once: what a goroutine prints is not mixed with what others print.
#[test]
fn println_from_ten_thousand_goroutines_tears_no_line() {
    const NAME: &str = "std_inside::println_from_ten_thousand_goroutines_tears_no_line";
    const LINES: usize = 10_000;
    for procs in PROCS {
        let output = child_of(NAME, &procs.to_string(), |procs| {
            own(procs.parse().unwrap()).run(|| {
                thread::scope(|s| {
                    for number in 0..LINES {
                        s.spawn(move || {
                            thread::yield_now();
                            println!(
                                "goroutine {number} says {} and {}",
                                number * 7,
                                -(number as i64)
                            );
                            eprintln!("goroutine {number} warns");
                        });
                    }
                });
            });
        });
        output.succeeded();
        let mut seen = HashSet::new();
        for line in output
            .stdout
            .lines()
            .filter(|line| line.contains(" says ") || line.starts_with("gor"))
        {
            let number: Option<usize> = line.split(' ').nth(1).and_then(|word| word.parse().ok());
            let number = number.unwrap_or_else(|| panic!("a torn line: {line:?}"));
            let whole = format!(
                "goroutine {number} says {} and {}",
                number * 7,
                -(number as i64)
            );
            assert_eq!(line, whole);
            assert!(seen.insert(number), "printed twice: {line:?}");
        }
        assert_eq!(seen.len(), LINES);
        let warned: HashSet<_> = output
            .stderr
            .lines()
            .filter(|line| line.ends_with(" warns"))
            .collect();
        assert_eq!(warned.len(), LINES);
    }
}

/// What a goroutine borrows and what it keeps in thread-locals do not mix up.
#[test]
fn scoped_goroutines_have_their_own_too() {
    thread_local!(static SUM: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    let numbers: Vec<u64> = (0..10_000).collect();
    let total = own(4).run(|| {
        SUM.set(1 << 40);
        let total = thread::scope(|s| {
            let parts: Vec<_> = numbers
                .chunks(100)
                .map(|chunk| {
                    s.spawn(move || {
                        for number in chunk {
                            SUM.set(SUM.get() + number);
                            if number % 10 == 0 {
                                thread::yield_now();
                            }
                        }
                        SUM.get()
                    })
                })
                .collect();
            parts
                .into_iter()
                .map(|part| part.join().unwrap())
                .sum::<u64>()
        });
        assert_eq!(SUM.get(), 1 << 40);
        total
    });
    assert_eq!(total, 9_999 * 10_000 / 2);
}

/// `std::thread::sleep` and `std::thread::yield_now` act on the thread and harm no other goroutine.
#[test]
fn std_calls_about_the_thread_do_no_harm() {
    let went_on = Arc::new(AtomicBool::new(false));
    own(2).run(|| {
        let there = Arc::clone(&went_on);
        gosched::go(move || {
            std::thread::sleep(Duration::from_millis(5));
            there.store(true, SeqCst);
        });
        let ids: HashSet<_> = (0..100)
            .map(|_| {
                std::thread::yield_now();
                (tid() > 0, std::thread::current().id())
            })
            .collect();
        assert_eq!(ids.len(), 1);
        assert!(std::thread::available_parallelism().is_ok());
        until(|| went_on.load(SeqCst));
    });
}
