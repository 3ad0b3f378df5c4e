//! No false deadlock: everything that may still wake a goroutine prevents the report (U6, D11).
//!
//! Where the world must be known to the last thread, the program is a child process. There a
//! deadlock, true or false, is fatal: a child that ends well has seen none.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use crate::common::{Rng, child, child_of, eventually, runtime};
use gosched::{Deadlock, Runtime, thread};

/// Long enough for the runtime to fall asleep and look for a deadlock several times.
const LOOKS: Duration = Duration::from_millis(250);

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

/// Calls `f` again and again for a while.
fn for_a_while(mut f: impl FnMut()) {
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        f();
    }
}

// Inside the runtime: timers and blocking calls.

#[test]
fn u6_a_timer_is_hope() {
    let name = "u6_a_timer_is_hope";
    let body = |variant: &str| {
        for procs in [1, 2] {
            runtime(procs).run(|| {
                let others: Vec<_> = (0..5).map(|_| thread::spawn(thread::park)).collect();
                match variant {
                    "sleep" => thread::sleep(LOOKS),
                    "park_timeout" => thread::park_timeout(LOOKS),
                    _ => thread::spawn(|| {
                        gosched::lock_os_thread();
                        thread::sleep(LOOKS);
                    })
                    .join()
                    .unwrap(),
                }
                others.iter().for_each(|h| h.thread().unpark());
                others.into_iter().for_each(|h| h.join().unwrap());
            });
        }
    };
    for variant in ["sleep", "park_timeout", "locked"] {
        child_of(name, variant, body).succeeded();
    }
}

/// Timers that follow each other closely: at every moment one is set, fires, or its goroutine is on
/// its way.
#[test]
fn u6_a_chain_of_short_timers_is_hope() {
    let out = child("u6_a_chain_of_short_timers_is_hope", || {
        for procs in [1, 2] {
            let mut rng = Rng::new(procs as u64);
            runtime(procs).run(|| {
                for_a_while(|| thread::sleep(Duration::from_micros(rng.below(20_000))));
            });
        }
    });
    out.succeeded();
}

#[test]
fn u6_a_blocking_call_is_hope() {
    let out = child("u6_a_blocking_call_is_hope", || {
        for procs in [1, 2] {
            runtime(procs).run(|| {
                let main = thread::current();
                gosched::go(move || {
                    std::thread::sleep(LOOKS);
                    main.unpark();
                });
                thread::park();
                std::thread::sleep(LOOKS);
            });
        }
    });
    out.succeeded();
}

// Foreign threads.

#[test]
fn u6_a_foreign_thread_is_hope() {
    let out = child("u6_a_foreign_thread_is_hope", || {
        gosched::run(|| {
            let main = thread::current();
            std::thread::spawn(move || {
                std::thread::sleep(LOOKS);
                main.unpark();
            });
            thread::park();
        });
    });
    out.succeeded();
}

/// The thread is seen, or not yet, while it is being born.
#[test]
fn u6_a_thread_just_starting_is_hope() {
    let out = child("u6_a_thread_just_starting_is_hope", || {
        gosched::run(|| {
            for_a_while(|| {
                let main = thread::current();
                std::thread::spawn(move || main.unpark());
                thread::park();
            });
        });
    });
    out.succeeded();
}

/// The last thing the thread does is to wake the goroutine, when most of it is gone.
#[test]
fn u6_a_thread_just_ending_is_hope() {
    struct Last(thread::Thread);
    impl Drop for Last {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(5));
            self.0.unpark();
        }
    }
    thread_local! {
        static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    let out = child("u6_a_thread_just_ending_is_hope", || {
        gosched::run(|| {
            for_a_while(|| {
                let last = Last(thread::current());
                std::thread::spawn(move || LAST.set(Some(last)));
                thread::park();
            });
        });
    });
    out.succeeded();
}

/// Each thread wakes the goroutine, starts its successor and ends at once: at every moment one is
/// alive, but which one changes while the runtime looks.
#[test]
fn u6_a_relay_of_threads_is_hope() {
    fn leg(main: thread::Thread, is_over: Arc<AtomicBool>) {
        main.unpark();
        if !is_over.load(SeqCst) {
            std::thread::spawn(move || leg(main, is_over));
        }
    }
    let out = child("u6_a_relay_of_threads_is_hope", || {
        let until = Instant::now() + Duration::from_secs(2);
        gosched::run(|| {
            while Instant::now() < until {
                let (main, is_over) = (thread::current(), Arc::<AtomicBool>::default());
                let goes_on = Arc::clone(&is_over);
                std::thread::spawn(move || leg(main, goes_on));
                for _ in 0..200 {
                    thread::park();
                }
                is_over.store(true, SeqCst);
            }
        });
    });
    out.succeeded();
}

/// The caller of `run` cannot wake goroutines while it waits, and can again as soon as it has its
/// answer.
#[test]
fn u6_a_caller_just_answered_is_hope() {
    let out = child("u6_a_caller_just_answered_is_hope", || {
        let (runtime, mut rng) = (runtime(2), Rng::new(1));
        let parked = runtime.spawn(thread::park);
        for_a_while(|| {
            runtime.run(|| ());
            if rng.one_in(16) {
                std::thread::sleep(Duration::from_millis(rng.below(30)));
            }
        });
        parked.thread().unpark();
        parked.join().unwrap();
    });
    out.succeeded();
}

// Other runtimes.

#[test]
fn u6_another_runtime_is_hope() {
    let name = "u6_another_runtime_is_hope";
    let body = |variant: &str| {
        let other = runtime(1);
        gosched::run(|| {
            let main = thread::current();
            let wait: fn() = match variant {
                "sleeps" => || thread::sleep(LOOKS),
                "blocks" => || std::thread::sleep(LOOKS),
                "yields" => || {
                    let until = Instant::now() + LOOKS;
                    while Instant::now() < until {
                        gosched::yield_now();
                    }
                },
                _ => || gosched::run(|| thread::sleep(LOOKS)),
            };
            other.go(move || {
                wait();
                main.unpark();
            });
            thread::park();
        });
    };
    for variant in ["sleeps", "blocks", "yields", "runs a third"] {
        child_of(name, variant, body).succeeded();
    }
}

/// Two runtimes wake each other in turn: most of the time one of them is asleep.
#[test]
fn u6_two_runtimes_that_wake_each_other_are_hope() {
    let out = child("u6_two_runtimes_that_wake_each_other_are_hope", || {
        let (a, b) = (runtime(1), runtime(2));
        a.run(|| {
            let main = thread::current();
            let echo = b.spawn(move || {
                loop {
                    thread::park();
                    main.unpark();
                }
            });
            let mut rng = Rng::new(2);
            for_a_while(|| {
                echo.thread().unpark();
                thread::park();
                if rng.one_in(64) {
                    thread::sleep(Duration::from_millis(rng.below(20)));
                }
            });
        });
    });
    out.succeeded();
}

// The modes.

/// A closed world does not count foreign threads, but everything else.
#[test]
fn u6_a_closed_world_has_its_own_hope() {
    let out = child("u6_a_closed_world_has_its_own_hope", || {
        let (runtime, count) = counting(Deadlock::Closed);
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)));
        let waits = runtime.spawn(|| {
            thread::sleep(LOOKS);
            std::thread::sleep(LOOKS);
            thread::park_timeout(LOOKS);
        });
        waits.join().unwrap();
        assert_eq!(count.load(SeqCst), 0);
        let parked = runtime.spawn(thread::park);
        assert!(eventually(|| count.load(SeqCst) == 1));
        parked.thread().unpark();
        parked.join().unwrap();
    });
    out.succeeded();
}

#[test]
fn u6_an_open_world_has_hope_where_a_closed_one_has_none() {
    let (open, reports) = counting(Deadlock::Auto);
    let parked = open.spawn(thread::park);
    std::thread::sleep(2 * LOOKS);
    assert_eq!(reports.load(SeqCst), 0);
    parked.thread().unpark();
    parked.join().unwrap();
}

#[test]
fn u6_off_means_never() {
    let out = child("u6_off_means_never", || {
        let (runtime, count) = counting(Deadlock::Off);
        let parked = runtime.spawn(thread::park);
        std::thread::sleep(2 * LOOKS);
        assert_eq!(count.load(SeqCst), 0);
        parked.thread().unpark();
        parked.join().unwrap();
    });
    out.succeeded();
}

/// One call for each time everything falls asleep, however long that lasts: also while memory is
/// returned and, after five seconds, threads are ended.
#[test]
fn u6_the_hook_is_called_once_per_quiescence() {
    let out = child("u6_the_hook_is_called_once_per_quiescence", || {
        let (runtime, count) = counting(Deadlock::Closed);
        for (round, quiet_ms) in [(1, 400), (2, 400), (3, 6_500)] {
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
            assert!(eventually(|| count.load(SeqCst) == round));
            std::thread::sleep(Duration::from_millis(quiet_ms));
            assert_eq!(count.load(SeqCst), round);
            parked.thread().unpark();
            parked.join().unwrap();
        }
    });
    out.succeeded();
}
