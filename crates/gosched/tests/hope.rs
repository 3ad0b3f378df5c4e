//! No false deadlock: whatever may still wake a goroutine counts as hope (U6, D11).
//!
//! Where the world must be known to the last thread, the program is a child process.

mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use common::child;
use gosched::{Deadlock, Runtime, thread};

/// A runtime that counts its deadlocks instead of dying of them.
fn counting(mode: Deadlock) -> (Runtime, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let runtime = Runtime::builder()
        .procs(2)
        .deadlock(mode)
        .on_deadlock(move |_| {
            counter.fetch_add(1, SeqCst);
        })
        .build()
        .unwrap();
    (runtime, count)
}

/// Each thread wakes the goroutine, starts its successor and ends at once: at every moment one is alive, but
/// which one changes while the runtime looks.
#[test]
fn u6_a_relay_of_threads_is_hope() {
    fn leg(main: thread::Thread, left: usize) {
        main.unpark();
        if left > 0 {
            std::thread::spawn(move || leg(main, left - 1));
        }
    }
    let out = child("u6_a_relay_of_threads_is_hope", || {
        let until = Instant::now() + Duration::from_secs(5);
        gosched::run(|| {
            while Instant::now() < until {
                let main = thread::current();
                std::thread::spawn(move || leg(main, 2000));
                for _ in 0..200 {
                    thread::park();
                }
            }
        });
    });
    out.succeeded();
}

/// One call for each time everything falls asleep, however long that lasts.
#[test]
fn u6_the_hook_is_called_once_per_quiescence() {
    let out = child("u6_the_hook_is_called_once_per_quiescence", || {
        let (runtime, count) = counting(Deadlock::Closed);
        for round in 1..=3 {
            let parked = runtime.spawn(|| {
                // Garbage to be returned later, threads to be ended later.
                let many: Vec<_> = (0..20_000).map(|_| thread::spawn(thread::park)).collect();
                gosched::yield_now();
                many.iter().for_each(|h| h.thread().unpark());
                many.into_iter().for_each(|h| h.join().unwrap());
                gosched::gomaxprocs(40);
                let many: Vec<_> = (0..2000)
                    .map(|_| thread::spawn(gosched::yield_now))
                    .collect();
                many.into_iter().for_each(|h| h.join().unwrap());
                gosched::gomaxprocs(2);
                thread::park();
            });
            std::thread::sleep(Duration::from_secs(7));
            assert_eq!(count.load(SeqCst), round);
            parked.thread().unpark();
            parked.join().unwrap();
        }
    });
    out.succeeded();
}
