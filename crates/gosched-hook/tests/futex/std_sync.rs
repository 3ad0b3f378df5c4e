//! std's locks and channels, between goroutines, between threads, and between both.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier, Condvar, LazyLock, Mutex, Once, OnceLock, RwLock};
use std::thread;
use std::time::Instant;

use crate::Kind;
use crate::common::{LONG, ms, within};

const ROUNDS: usize = 2_000;

/// Runs `body` with each pair of kinds, on a runtime.
fn pairs(what: &str, body: impl Fn(Kind, Kind) + Send + Sync + 'static) {
    let what = what.to_owned();
    within(LONG, &what.clone(), || {
        gosched::run(move || {
            for (one, other) in Kind::PAIRS {
                body(one, other);
            }
        });
    });
}

#[test]
fn a_mutex_excludes() {
    pairs("mutex", |one, other| {
        let count = Arc::new(Mutex::new(0usize));
        let parties: Vec<_> = [one, other, one, other]
            .map(|kind| {
                let count = Arc::clone(&count);
                kind.start(move || {
                    for _ in 0..ROUNDS {
                        let mut count = count.lock().unwrap();
                        let seen = *count;
                        if seen.is_multiple_of(64) {
                            thread::yield_now(); // others come and have to wait
                        }
                        *count = seen + 1;
                    }
                })
            })
            .into_iter()
            .collect();
        parties.into_iter().for_each(|party| party.join());
        assert_eq!(*count.lock().unwrap(), 4 * ROUNDS);
    });
}

#[test]
fn a_rwlock_admits_readers_or_one_writer() {
    pairs("rwlock", |one, other| {
        let lock = Arc::new(RwLock::new((0usize, 0usize)));
        let parties: Vec<_> = (0..6)
            .map(|n| {
                let lock = Arc::clone(&lock);
                let kind = if n % 2 == 0 { one } else { other };
                kind.start(move || {
                    for round in 0..ROUNDS / 4 {
                        if round % 3 == 0 {
                            let mut pair = lock.write().unwrap();
                            pair.0 += 1;
                            if round % 32 == 0 {
                                thread::yield_now();
                            }
                            pair.1 += 1;
                        } else {
                            let pair = lock.read().unwrap();
                            if round % 32 == 1 {
                                thread::yield_now();
                            }
                            assert_eq!(pair.0, pair.1);
                        }
                    }
                })
            })
            .collect();
        parties.into_iter().for_each(|party| party.join());
        assert_eq!(lock.read().unwrap().0, 6 * (ROUNDS / 4).div_ceil(3));
    });
}

#[test]
fn a_condvar_passes_a_turn() {
    pairs("condvar", |one, other| {
        let turn = Arc::new((Mutex::new(0usize), Condvar::new()));
        let play = |kind: Kind, mine: usize| {
            let turn = Arc::clone(&turn);
            kind.start(move || {
                for _ in 0..ROUNDS {
                    let next = turn
                        .1
                        .wait_while(turn.0.lock().unwrap(), |at| *at % 2 != mine);
                    *next.unwrap() += 1;
                    turn.1.notify_one();
                }
            })
        };
        let parties = [play(one, 0), play(other, 1)];
        parties.into_iter().for_each(|party| party.join());
        assert_eq!(*turn.0.lock().unwrap(), 2 * ROUNDS);
    });
}

#[test]
fn a_condvar_times_out() {
    pairs("condvar with timeout", |one, _| {
        one.start(|| {
            let (lock, never) = (Mutex::new(()), Condvar::new());
            let began = Instant::now();
            let guard = lock.lock().unwrap();
            let (guard, result) = never.wait_timeout_while(guard, ms(30), |()| true).unwrap();
            assert!(result.timed_out() && began.elapsed() >= ms(30));
            let (guard, _) = never.wait_timeout(guard, ms(0)).unwrap();
            drop(guard);
            assert!(lock.try_lock().is_ok());
        })
        .join();
    });
}

#[test]
fn a_notified_condvar_does_not_time_out() {
    pairs("notify", |one, other| {
        let flag = Arc::new((Mutex::new(false), Condvar::new()));
        let waiter = {
            let flag = Arc::clone(&flag);
            one.start(move || {
                let guard = flag.0.lock().unwrap();
                let waited = flag.1.wait_timeout_while(guard, LONG, |set| !*set);
                !waited.unwrap().1.timed_out()
            })
        };
        other
            .start(move || {
                *flag.0.lock().unwrap() = true;
                flag.1.notify_all();
            })
            .join();
        assert!(waiter.join());
    });
}

#[test]
fn a_barrier_has_one_leader() {
    pairs("barrier", |one, other| {
        let barrier = Arc::new(Barrier::new(6));
        let leaders = Arc::new(AtomicUsize::new(0));
        let parties: Vec<_> = (0..6)
            .map(|n| {
                let (barrier, leaders) = (Arc::clone(&barrier), Arc::clone(&leaders));
                let kind = if n % 2 == 0 { one } else { other };
                kind.start(move || {
                    for round in 0..50 {
                        let led = barrier.wait().is_leader();
                        leaders.fetch_add(usize::from(led), SeqCst);
                        barrier.wait();
                        assert_eq!(leaders.load(SeqCst), round + 1);
                        barrier.wait();
                    }
                })
            })
            .collect();
        parties.into_iter().for_each(|party| party.join());
    });
}

#[test]
fn once_runs_once_and_the_others_wait() {
    pairs("once", |one, other| {
        let runs = Arc::new(AtomicUsize::new(0));
        let cells = Arc::new((
            Once::new(),
            OnceLock::new(),
            LazyLock::<usize, Box<dyn FnOnce() -> usize + Send>>::new(Box::new({
                let runs = Arc::clone(&runs);
                move || {
                    thread::sleep(ms(5));
                    runs.fetch_add(1, SeqCst)
                }
            })),
        ));
        let parties: Vec<_> = (0..8)
            .map(|n| {
                let (cells, runs) = (Arc::clone(&cells), Arc::clone(&runs));
                let kind = if n % 2 == 0 { one } else { other };
                kind.start(move || {
                    let slowly = || {
                        thread::sleep(ms(5));
                        runs.fetch_add(1, SeqCst);
                    };
                    cells.0.call_once(slowly);
                    cells.1.get_or_init(slowly);
                    *cells.2
                })
            })
            .collect();
        let all: Vec<_> = parties.into_iter().map(|party| party.join()).collect();
        assert!(all.iter().all(|n| *n == all[0]));
        assert_eq!(runs.load(SeqCst), 3);
    });
}

#[test]
fn channels_deliver_in_order() {
    pairs("mpsc", |one, other| {
        for bound in [None, Some(0), Some(1), Some(8)] {
            let (there, back) = mpsc::channel::<usize>();
            let (send, receive): (Box<dyn Fn(usize) + Send>, _) = match bound {
                None => {
                    let (s, r) = mpsc::channel();
                    (Box::new(move |n| s.send(n).unwrap()), r)
                }
                Some(bound) => {
                    let (s, r) = mpsc::sync_channel(bound);
                    (Box::new(move |n| s.send(n).unwrap()), r)
                }
            };
            let sender = one.start(move || {
                for n in 0..ROUNDS {
                    send(n);
                    if n % 16 == 0 {
                        assert_eq!(back.recv(), Ok(n)); // a round trip
                    }
                }
            });
            let receiver = other.start(move || {
                for n in 0..ROUNDS {
                    assert_eq!(receive.recv(), Ok(n));
                    if n % 16 == 0 {
                        there.send(n).unwrap();
                    }
                }
                assert!(receive.recv().is_err());
            });
            sender.join();
            receiver.join();
        }
    });
}

#[test]
fn a_channel_times_out_and_disconnects() {
    pairs("recv_timeout", |one, other| {
        let (sender, receiver) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let receiver = one.start(move || {
            let began = Instant::now();
            let first = receiver.recv_timeout(ms(20));
            assert_eq!(first, Err(RecvTimeoutError::Timeout));
            assert!(began.elapsed() >= ms(20));
            tell.send(()).unwrap();
            receiver.recv_timeout(LONG)
        });
        let holder = other.start(move || {
            told.recv().unwrap();
            drop(sender);
        });
        assert_eq!(receiver.join(), Err(RecvTimeoutError::Disconnected));
        holder.join();
    });
}

/// std's handle of a goroutine is that of the "thread" that its thread-locals make it.
#[test]
fn park_and_unpark() {
    pairs("park", |one, other| {
        let (tell, told) = mpsc::channel();
        let count = Arc::new(AtomicUsize::new(0));
        let sleeper = {
            let count = Arc::clone(&count);
            one.start(move || {
                tell.send(thread::current()).unwrap();
                for n in 1..=ROUNDS {
                    while count.load(SeqCst) < n {
                        thread::park();
                    }
                }
                thread::park_timeout(ms(10)); // a left token, or the time
            })
        };
        let sleeper_thread = told.recv().unwrap();
        other
            .start(move || {
                for _ in 0..ROUNDS {
                    count.fetch_add(1, SeqCst);
                    sleeper_thread.unpark();
                }
            })
            .join();
        sleeper.join();
    });
}

#[test]
fn park_timeout_ends_by_itself() {
    pairs("park_timeout", |one, _| {
        one.start(|| {
            let began = Instant::now();
            while began.elapsed() < ms(20) {
                thread::park_timeout(ms(20) - began.elapsed().min(ms(20)));
            }
        })
        .join();
    });
}

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// A wait may end on another thread. errno and thread-locals are the goroutine's all the same.
#[test]
fn thread_locals_stay_across_a_wait() {
    gosched::run(|| {
        let (lock, waiters) = (Arc::new(Mutex::new(0)), 50);
        let guard = lock.lock().unwrap();
        let all: Vec<_> = (0..waiters)
            .map(|n| {
                let lock = Arc::clone(&lock);
                gosched::thread::spawn(move || {
                    NUMBER.set(n);
                    for _ in 0..20 {
                        *lock.lock().unwrap() += 1;
                        assert_eq!(NUMBER.get(), n);
                    }
                })
            })
            .collect();
        gosched::thread::sleep(ms(5));
        drop(guard);
        all.into_iter().for_each(|g| g.join().unwrap());
        assert_eq!(*lock.lock().unwrap(), 20 * waiters);
    });
}

/// Wake-ups for one at a time, while both kinds wait for the same lock: each kind gets its turns.
#[test]
fn neither_kind_starves() {
    const TURNS: usize = 200;
    within(LONG, "both kinds", || {
        gosched::run(|| {
            let turns = Arc::new((Mutex::new(()), Condvar::new()));
            let got = Arc::new([const { AtomicUsize::new(0) }; 2]);
            let is_over = |got: &[AtomicUsize; 2]| got.iter().all(|n| n.load(SeqCst) >= TURNS);
            let waiters: Vec<_> = (0..8)
                .map(|n| {
                    let (turns, got) = (Arc::clone(&turns), Arc::clone(&got));
                    Kind::of(n).start(move || {
                        while !is_over(&got) {
                            // One wake-up is for one waiter; std's condvar makes no spurious ones.
                            drop(turns.1.wait(turns.0.lock().unwrap()).unwrap());
                            got[n % 2].fetch_add(1, SeqCst);
                        }
                    })
                })
                .collect();
            while !is_over(&got) {
                turns.1.notify_one();
                gosched::yield_now();
            }
            while waiters.iter().any(|w| match w {
                crate::Party::Goroutine(g) => !g.is_finished(),
                crate::Party::Thread(t) => !t.is_finished(),
            }) {
                turns.1.notify_all();
                gosched::yield_now();
            }
            waiters.into_iter().for_each(|w| w.join());
        });
    });
}

/// A goroutine in `blocking` has given its P up: its waits are the thread's.
#[test]
fn inside_blocking_the_thread_waits() {
    gosched::run(|| {
        let (send, receive) = mpsc::channel();
        let waiter = gosched::thread::spawn(move || gosched::blocking(|| receive.recv().unwrap()));
        gosched::thread::sleep(ms(10));
        gosched::blocking(|| send.send(7).unwrap());
        assert_eq!(waiter.join().unwrap(), 7);
    });
}

/// The waiter cannot unwind. The runtime ends all the same, and another runtime's waiter of the
/// lock gets its turn.
#[test]
fn a_runtime_ends_while_its_goroutines_wait() {
    let lock: &'static Mutex<usize> = Box::leak(Box::new(Mutex::new(0)));
    let guard = lock.lock().unwrap();
    let dying = gosched::Runtime::builder().build().unwrap();
    dying.run(move || {
        for _ in 0..20 {
            gosched::go(move || *lock.lock().unwrap() += 1_000);
        }
        gosched::thread::sleep(ms(20));
    });
    let living = gosched::Runtime::builder().build().unwrap();
    living.run(move || {
        gosched::go(move || *lock.lock().unwrap() += 1);
        gosched::thread::sleep(ms(20));
    });
    drop(dying);
    drop(guard);
    within(LONG, "the other runtime's waiter", || {
        living.run(move || {
            while lock.lock().unwrap().is_multiple_of(1_000) {
                gosched::thread::sleep(ms(1));
            }
        });
    });
    assert_eq!(*lock.lock().unwrap(), 1);
}
