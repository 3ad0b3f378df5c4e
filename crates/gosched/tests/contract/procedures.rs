//! N, SC, FR, PK, RD, WK, L1, L4, F5 as a program sees them: every runnable goroutine runs, and no
//! wake-up is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use crate::common::{eventually, runtime};
use gosched::{Runtime, debug, go, thread};

#[test]
fn n_l1_a_spawned_goroutine_runs_while_the_spawner_keeps_its_p() {
    runtime(2).run(|| {
        for _ in 0..50 {
            let ran = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&ran);
            go(move || flag.store(true, SeqCst));
            assert!(eventually(|| ran.load(SeqCst)));
        }
        assert_eq!(debug::metrics().rescues, 0);
    });
}

#[test]
fn pk_rd_a_token_that_comes_first_is_not_lost() {
    runtime(2).run(|| {
        let me = thread::current();
        me.unpark();
        me.unpark();
        thread::park(); // at once: the token was there
        let waker = me.clone();
        go(move || waker.unpark());
        thread::park(); // two tokens are one: this waits for the goroutine
        let parked = thread::spawn(thread::park);
        parked.thread().unpark(); // before, during or after
        parked.join().unwrap();
    });
}

/// Two goroutines and a thread outside hand a token around.
#[test]
fn rd_wk_wakes_between_goroutines_and_threads_are_not_lost() {
    let runtime = runtime(2);
    let turns = Arc::new(AtomicUsize::new(0));
    let play = |turns: Arc<AtomicUsize>, own: usize, next: Box<dyn Fn() + Send>| {
        move || {
            loop {
                let turn = turns.load(SeqCst);
                if turn >= 3_000 {
                    return next();
                }
                if turn % 3 == own {
                    turns.store(turn + 1, SeqCst);
                    next();
                } else {
                    thread::park();
                }
            }
        }
    };
    let (tx, rx) = std::sync::mpsc::channel();
    let outside = thread::current();
    let wake_outside = Box::new(move || outside.unpark());
    let second = runtime.spawn(play(Arc::clone(&turns), 1, wake_outside));
    let partner = second.thread().clone();
    let first = runtime.spawn(play(
        Arc::clone(&turns),
        0,
        Box::new(move || partner.unpark()),
    ));
    tx.send(first.thread().clone()).unwrap();
    let partner = rx.recv().unwrap();
    play(Arc::clone(&turns), 2, Box::new(move || partner.unpark()))();
    first.join().unwrap();
    second.join().unwrap();
    assert_eq!(runtime.metrics().rescues, 0);
}

/// A thread outside wakes a runtime of which every thread sleeps.
#[test]
fn rd_wk_an_idle_runtime_is_woken_from_outside() {
    let runtime = runtime(3);
    for i in 0..50 {
        assert!(eventually(|| runtime.metrics().idle_procs == 3));
        assert_eq!(runtime.spawn(move || i).join().unwrap(), i);
    }
    assert_eq!(runtime.metrics().rescues, 0);
}

/// Goroutines that keep yielding keep the global queue full. A goroutine in a ring is served
/// nevertheless, and the other way round.
#[test]
fn l4_u4_neither_queue_starves_the_other() {
    runtime(1).run(|| {
        let (is_over, in_ring) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !is_over.load(SeqCst) {
                        gosched::yield_now();
                    }
                });
            }
            for _ in 0..200 {
                thread::scope(|s| {
                    s.spawn(|| in_ring.fetch_add(1, SeqCst));
                });
            }
            is_over.store(true, SeqCst);
        });
        assert_eq!(in_ring.load(SeqCst), 200);
    });
}

/// Timers fire while every P is busy with goroutines that never wait.
#[test]
fn f5_timers_fire_while_every_p_is_busy() {
    runtime(2).run(|| {
        let is_over = AtomicBool::new(false);
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    while !is_over.load(SeqCst) {
                        gosched::yield_now();
                    }
                });
            }
            for _ in 0..20 {
                thread::sleep(Duration::from_millis(1));
            }
            is_over.store(true, SeqCst);
        });
    });
}

#[test]
fn fr_timers_fire_in_an_idle_runtime() {
    runtime(2).run(|| {
        for i in 0..20u64 {
            let began = Instant::now();
            let time = Duration::from_micros(200 + i * 100);
            thread::sleep(time);
            assert!(began.elapsed() >= time);
        }
        let earlier = thread::spawn(|| thread::sleep(Duration::from_millis(2)));
        thread::sleep(Duration::from_millis(20));
        assert!(
            eventually(|| earlier.is_finished()),
            "the earlier timer is not overslept"
        );
        assert_eq!(debug::metrics().rescues, 0);
    });
}

#[test]
fn sc_a_locked_goroutine_is_run_by_its_thread_whoever_finds_it() {
    runtime(3).run(|| {
        thread::scope(|s| {
            for _ in 0..6 {
                s.spawn(|| {
                    gosched::lock_os_thread();
                    let here = std::thread::current().id();
                    for _ in 0..100 {
                        gosched::yield_now();
                        assert_eq!(std::thread::current().id(), here);
                    }
                });
            }
            for _ in 0..100 {
                s.spawn(gosched::yield_now);
            }
        });
        debug::check().unwrap();
        assert_eq!(debug::metrics().rescues, 0);
    });
}

/// The leader that restarts the world wakes an M for the goroutines that were queued meanwhile.
/// Until then, they are no lost wake-up.
#[test]
fn wk_stops_in_the_middle_of_spawns() {
    for _ in 0..60 {
        let runtime = Runtime::builder().procs(2).build().unwrap();
        let parked: Vec<_> = (0..200).map(|_| runtime.spawn(thread::park)).collect();
        while runtime.metrics().waiting != 200 {
            drop(runtime.dump());
        }
        parked.iter().for_each(|one| one.thread().unpark());
        for one in parked {
            one.join().unwrap();
        }
        assert_eq!(runtime.metrics().rescues, 0, "WK: a wake-up was lost");
    }
}
