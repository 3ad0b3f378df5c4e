//! G2–G4, S1, S2, I1, GF as a program sees them: no goroutine is lost or runs twice, and each is in
//! one state.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::common::{checked, eventually, runtime};
use gosched::{debug, thread};

/// Spawns, yields, parks, wakes and steals, in all; every step of every goroutine happens once (S1,
/// S2).
#[test]
fn s1_s2_g3_every_step_of_every_goroutine_happens_once() {
    const GOROUTINES: usize = 300;
    const STEPS: usize = 20;
    for procs in [1, 2, 3, 64] {
        checked(&runtime(procs), || {
            let steps: Vec<AtomicUsize> = (0..GOROUTINES).map(|_| AtomicUsize::new(0)).collect();
            thread::scope(|s| {
                for (i, own) in steps.iter().enumerate() {
                    s.spawn(move || {
                        for step in 0..STEPS {
                            // S1: two Ms in one goroutine would collide here.
                            assert_eq!(own.swap(step + 1, SeqCst), step);
                            match (i + step) % 4 {
                                0 => gosched::yield_now(),
                                1 => thread::park_timeout(Duration::from_micros(20)),
                                2 => thread::spawn(|| ()).join().unwrap(),
                                _ => {}
                            }
                        }
                    });
                }
                for _ in 0..10 {
                    debug::check().unwrap();
                    gosched::yield_now();
                }
            });
            assert!(steps.iter().all(|steps| steps.load(SeqCst) == STEPS));
            // The scope ends when the last one has left it, which may have a few steps to go.
            assert!(eventually(|| {
                gosched::yield_now();
                gosched::num_goroutines() == 1
            }));
        });
    }
}

#[test]
fn s2_goroutines_are_counted_from_spawn_to_end() {
    checked(&runtime(2), || {
        let parked: Vec<_> = (0..100).map(|_| thread::spawn(thread::park)).collect();
        assert_eq!(gosched::num_goroutines(), 101);
        for one in &parked {
            one.thread().unpark();
        }
        parked.into_iter().for_each(|one| one.join().unwrap());
        // A join is answered a few steps before the end.
        assert!(eventually(|| {
            gosched::yield_now();
            let metrics = debug::metrics();
            (metrics.spawns, metrics.ends) == (101, 100)
        }));
    });
}

/// An unpark that comes before, during or after the timeout of a park wakes once.
#[test]
fn g4_a_timeout_and_an_unpark_wake_once() {
    checked(&runtime(2), || {
        for i in 0..1_000u64 {
            let sleeper = thread::spawn(move || {
                thread::park_timeout(Duration::from_micros(i % 50));
                thread::park_timeout(Duration::from_micros(50));
            });
            sleeper.thread().unpark();
            if i % 3 == 0 {
                gosched::yield_now();
            }
            sleeper.thread().unpark();
            sleeper.join().unwrap();
        }
        assert_eq!(debug::metrics().timers, 0, "no timer stays behind");
    });
}

#[test]
fn g2_g3_g4_states_add_up() {
    checked(&runtime(3), || {
        let parked: Vec<_> = (0..10).map(|_| thread::spawn(thread::park)).collect();
        let parked_in_dump = || {
            let dump = debug::dump();
            let reasons = dump.goroutines().iter().map(|g| g.wait_reason());
            reasons.filter(|reason| *reason == Some("park")).count()
        };
        while parked_in_dump() < 10 {
            gosched::yield_now();
        }
        for one in &parked {
            one.thread().unpark();
        }
        debug::check().unwrap();
        parked.into_iter().for_each(|one| one.join().unwrap());
    });
}

#[test]
fn gf_ids_are_never_given_twice() {
    checked(&runtime(4), || {
        let ids = Mutex::new(HashSet::new());
        let spawned = 1_000;
        thread::scope(|s| {
            for _ in 0..spawned {
                s.spawn(|| {
                    let id = thread::current().id().goroutine().unwrap();
                    assert!(ids.lock().unwrap().insert(id), "twice: {id}");
                });
            }
        });
        assert_eq!(ids.lock().unwrap().len(), spawned);
    });
}
