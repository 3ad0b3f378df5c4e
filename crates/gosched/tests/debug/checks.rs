//! `debug::check` finds nothing wrong in a runtime under load.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::common::{LONG, Rng, runtime, within};
use gosched::{debug, thread};

/// Everything at once, on more Ps than there are CPUs, and the check finds nothing wrong.
fn churn(procs: usize, seed: u64) {
    let runtime = runtime(procs);
    let stop = Arc::new(AtomicBool::new(false));
    runtime.run(|| {
        let busy: Vec<_> = (0..20)
            .map(|n| {
                let (stop, rng) = (Arc::clone(&stop), Rng::new(seed ^ n));
                thread::spawn(move || keep_busy(&stop, rng))
            })
            .collect();
        for _ in 0..100 {
            debug::check().unwrap_or_else(|v| panic!("seed {seed}: {v}"));
            thread::yield_now();
        }
        stop.store(true, SeqCst);
        busy.into_iter()
            .for_each(|handle| handle.join().expect("no panic"));
        debug::check().unwrap_or_else(|v| panic!("seed {seed}: {v}"));
        assert_eq!(debug::metrics().rescues, 0, "seed {seed}");
    });
}

fn keep_busy(stop: &AtomicBool, mut rng: Rng) {
    while !stop.load(SeqCst) {
        match rng.below(6) {
            0 => thread::yield_now(),
            1 => thread::sleep(Duration::from_micros(rng.below(500))),
            2 => thread::park_timeout(Duration::from_micros(rng.below(500))),
            3 => {
                gosched::lock_os_thread();
                thread::yield_now();
                gosched::unlock_os_thread();
            }
            4 => {
                let burst: Vec<_> = (0..rng.below(300)).map(|_| thread::spawn(|| ())).collect();
                burst.into_iter().for_each(|h| h.join().expect("no panic"));
            }
            _ => {
                let parked = thread::spawn(thread::park);
                thread::yield_now();
                parked.thread().unpark();
                parked.join().expect("no panic");
            }
        }
    }
}

#[test]
fn check_finds_nothing_wrong_under_load() {
    for (procs, seed) in [(1, 11), (2, 22), (3, 33), (64, 44)] {
        let what = format!("churn on {procs} Ps");
        within(LONG, &what, || churn(procs, seed));
    }
}

#[test]
fn check_finds_nothing_wrong_while_threads_outside_spawn_and_wake() {
    let runtime = runtime(2);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let parked = runtime.spawn(thread::park);
                    parked.thread().unpark();
                    parked.join().expect("no panic");
                }
            });
        }
        runtime.run(|| {
            for _ in 0..200 {
                debug::check().unwrap_or_else(|v| panic!("{v}"));
                thread::yield_now();
            }
        });
        stop.store(true, SeqCst);
    });
}

#[gosched::test(procs = 2)]
fn checks_dumps_and_resizes_take_turns() {
    let leaders: Vec<_> = (0..6)
        .map(|n| {
            thread::spawn(move || {
                for round in 0..20 {
                    match n % 3 {
                        0 => debug::check().unwrap_or_else(|v| panic!("{v}")),
                        1 => drop(debug::dump()),
                        _ => drop(gosched::gomaxprocs(1 + (n + round) % 5)),
                    }
                }
            })
        })
        .collect();
    leaders
        .into_iter()
        .for_each(|h| h.join().expect("no panic"));
    debug::check().unwrap_or_else(|v| panic!("{v}"));
}
