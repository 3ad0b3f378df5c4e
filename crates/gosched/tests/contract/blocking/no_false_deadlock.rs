//! Calls and the runtime as a whole: a call is hope (U6), an idle runtime is idle even during one
//! (SM), threads have a limit (MG).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use gosched::testing::thread_patience;
use gosched::{Deadlock, blocking};

use super::*;
use crate::common::{child, child_of, eventually, within};

const DEADLOCK: &str = "fatal error: all goroutines are asleep - deadlock!";

fn closed(procs: usize) -> Runtime {
    let builder = Runtime::builder().procs(procs);
    builder.deadlock(Deadlock::Closed).build().unwrap()
}

/// Only the goroutine in the call can wake the main goroutine, and it does.
#[test]
fn u6_who_is_in_a_call_may_wake_others() {
    for variant in ["marked", "unmarked", "marked, two Ps", "unmarked, two Ps"] {
        let out = child_of(
            "no_false_deadlock::u6_who_is_in_a_call_may_wake_others",
            variant,
            |variant| {
                let nap = || std::thread::sleep(ms(2000));
                closed(if variant.ends_with("Ps") { 2 } else { 1 }).run(|| {
                    let call = match variant.starts_with("marked") {
                        true => thread::spawn(move || blocking(nap)),
                        false => thread::spawn(nap),
                    };
                    call.join().unwrap();
                });
            },
        );
        out.succeeded();
        assert_eq!(out.stderr, "", "{variant}");
    }
}

/// As soon as the call is over the runtime is as dead as any.
#[test]
fn u6_after_the_call_there_is_no_hope() {
    for variant in ["marked", "unmarked", "inside"] {
        let out = child_of(
            "no_false_deadlock::u6_after_the_call_there_is_no_hope",
            variant,
            |variant| {
                let nap = || std::thread::sleep(ms(1000));
                closed(2).run(|| {
                    let stuck = thread::spawn(thread::park);
                    match variant {
                        "marked" => blocking(nap),
                        "unmarked" => nap(),
                        // Inside a call it waits like any goroutine, and no goroutine wakes it.
                        _ => blocking(|| {
                            nap();
                            thread::park();
                        }),
                    }
                    eprintln!("the call is over");
                    stuck.join().unwrap();
                });
            },
        );
        match variant {
            "inside" => out.died_with(&[DEADLOCK]),
            _ => out.died_with(&["the call is over", DEADLOCK]),
        }
        assert!(out.took >= ms(1000), "{out:#?}");
    }
}

/// How often a thread of this process has gone to sleep so far.
fn sleeps_of(name: &str) -> usize {
    let mut sleeps = None;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() == name {
            let status = read("status");
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            sleeps = sleeps.or(line.and_then(|line| line.trim().parse().ok()));
        }
    }
    sleeps.expect("the thread and its count")
}

/// There is only a long call: sysmon has no work. It wakes up only to look for a deadlock once in a
/// while.
#[test]
fn sm_the_monitor_sleeps_during_a_long_call() {
    for variant in ["Off", "Auto", "Closed"] {
        let out = child_of(
            "no_false_deadlock::sm_the_monitor_sleeps_during_a_long_call",
            variant,
            |variant| {
                let mode = match variant {
                    "Off" => Deadlock::Off,
                    "Auto" => Deadlock::Auto,
                    _ => Deadlock::Closed,
                };
                let runtime = Runtime::builder().procs(2).deadlock(mode).build().unwrap();
                let (let_go, release) = std::sync::mpsc::channel::<()>();
                let call = runtime.spawn(move || _ = blocking(|| release.recv()));
                assert!(eventually(|| runtime.metrics().idle_procs == 2), "SM: a P");
                std::thread::sleep(ms(1000));
                let (began, before) = (Instant::now(), sleeps_of("gosched-sysmon"));
                std::thread::sleep(ms(2000));
                let wakes = sleeps_of("gosched-sysmon") - before;
                let took = began.elapsed();
                let most = 5 * (1 + took.as_secs() as usize / 2);
                assert!(wakes < most, "SM: {wakes} wake-ups in {took:?}");
                drop(let_go);
                call.join().unwrap();
            },
        );
        assert!(out.status.success(), "{variant}: {out:#?}");
    }
}

/// Marked calls hold as many threads as they may have, and none of them returns: after a while that
/// is fatal.
#[test]
fn mg_marked_calls_beyond_the_limit_of_threads() {
    let out = child(
        "no_false_deadlock::mg_marked_calls_beyond_the_limit_of_threads",
        || {
            thread_patience(ms(500));
            let runtime = Runtime::builder().procs(2).max_threads(8).build().unwrap();
            runtime.run(|| {
                let call = || blocking(|| std::thread::sleep(Duration::from_secs(60)));
                let many: Vec<_> = (0..20).map(|_| thread::spawn(call)).collect();
                many.into_iter().for_each(|one| one.join().unwrap());
            });
        },
    );
    assert_eq!(out.code(), 2, "{out:#?}");
    out.says(&[
        WARNING,
        "runtime: program exceeds 8-thread limit",
        "fatal error: thread exhaustion",
    ]);
}

/// What is said when callers wait for others to return.
const WARNING: &str = "gosched: calls in gosched::blocking hold as many threads as they may have";

/// Callers beyond the limit wait for others to return.
#[test]
fn mg_marked_calls_beyond_the_limit_wait_their_turn() {
    for threads in ["1", "2", "3", "8"] {
        let name = "no_false_deadlock::mg_marked_calls_beyond_the_limit_wait_their_turn";
        let out = child_of(name, threads, |threads| {
            let threads: usize = threads.parse().unwrap();
            let runtime = Runtime::builder()
                .procs(threads.min(2))
                .max_threads(threads);
            let runtime = runtime.build().unwrap();
            within(Duration::from_secs(100), "the calls", || {
                runtime.run(|| {
                    let call = || blocking(|| std::thread::sleep(ms(10)));
                    let many: Vec<_> = (0..60).map(|_| thread::spawn(call)).collect();
                    many.into_iter().for_each(|one| one.join().unwrap());
                });
            });
            assert!(runtime.metrics().threads <= threads);
        });
        out.succeeded();
        assert!(out.stderr.matches(WARNING).count() <= 1, "{out:#?}");
    }
}

/// Goroutines that make no calls run while callers wait.
#[test]
fn mg_marked_calls_leave_threads_for_others() {
    let out = child(
        "no_false_deadlock::mg_marked_calls_leave_threads_for_others",
        || {
            thread_patience(ms(60_000));
            let runtime = Runtime::builder().procs(2).max_threads(8).build().unwrap();
            within(Duration::from_secs(100), "the calls", || {
                runtime.run(|| {
                    let is_over = Arc::new(AtomicBool::new(false));
                    let call = |_| {
                        let is_over = Arc::clone(&is_over);
                        thread::spawn(move || {
                            blocking(|| {
                                while !is_over.load(SeqCst) {
                                    std::thread::sleep(ms(1));
                                }
                            });
                        })
                    };
                    let many: Vec<_> = (0..40).map(call).collect();
                    // None of them returns meanwhile: were all threads in calls this would never
                    // end.
                    for _ in 0..100 {
                        thread::sleep(ms(2));
                        thread::spawn(|| ()).join().unwrap();
                    }
                    is_over.store(true, SeqCst);
                    many.into_iter().for_each(|one| one.join().unwrap());
                });
            });
        },
    );
    out.succeeded();
    assert_eq!(out.stderr.matches(WARNING).count(), 1, "{out:#?}");
}

/// Calls return, so callers wait their turn, with one warning. (How long they wait does not count,
/// see the unit tests of `room.rs`.)
#[test]
fn mg_callers_beyond_the_limit_wait_their_turn() {
    let out = child(
        "no_false_deadlock::mg_callers_beyond_the_limit_wait_their_turn",
        || {
            thread_patience(ms(30_000));
            let runtime = Runtime::builder().procs(2).max_threads(8).build().unwrap();
            within(Duration::from_secs(100), "the calls", || {
                runtime.run(|| {
                    let call = || blocking(|| std::thread::sleep(ms(400)));
                    let many: Vec<_> = (0..40).map(|_| thread::spawn(call)).collect();
                    many.into_iter().for_each(|one| one.join().unwrap());
                });
            });
        },
    );
    out.succeeded();
    assert_eq!(out.stderr.matches(WARNING).count(), 1, "{out:#?}");
}

/// Within the limit all is well, however often.
#[test]
fn mg_marked_calls_within_the_limit_of_threads() {
    let out = child(
        "no_false_deadlock::mg_marked_calls_within_the_limit_of_threads",
        || {
            let runtime = Runtime::builder().procs(2).max_threads(12).build().unwrap();
            for _ in 0..20 {
                runtime.run(|| {
                    let call = || blocking(|| std::thread::sleep(ms(5)));
                    let some: Vec<_> = (0..8).map(|_| thread::spawn(call)).collect();
                    some.into_iter().for_each(|one| one.join().unwrap());
                });
            }
            assert!(runtime.metrics().threads <= 12);
        },
    );
    out.succeeded();
}

/// Unmarked calls at the limit of threads are not fatal: goroutines that block keep their Ps, and
/// the others wait for them.
#[test]
fn mg_unmarked_calls_beyond_the_limit_of_threads() {
    let out = child(
        "no_false_deadlock::mg_unmarked_calls_beyond_the_limit_of_threads",
        || {
            let runtime = Runtime::builder().procs(2).max_threads(8).build().unwrap();
            runtime.run(|| {
                let call = || std::thread::sleep(ms(150));
                let many: Vec<_> = (0..40).map(|_| thread::spawn(call)).collect();
                many.into_iter().for_each(|one| one.join().unwrap());
            });
            assert!(runtime.metrics().threads <= 8);
        },
    );
    out.succeeded();
    assert_eq!(out.stderr, "");
}

/// A stop of the world also takes Ps from blocked goroutines. That needs no more threads than the
/// limit allows.
#[test]
fn mg_the_world_stops_at_the_limit_of_threads() {
    let out = child(
        "no_false_deadlock::mg_the_world_stops_at_the_limit_of_threads",
        || {
            let runtime = Runtime::builder().procs(2).max_threads(8).build().unwrap();
            runtime.run(|| {
                let call = || std::thread::sleep(ms(60));
                let many: Vec<_> = (0..40).map(|_| thread::spawn(call)).collect();
                for round in 0..20 {
                    gosched::gomaxprocs(1 + round % 2);
                    thread::sleep(ms(1));
                }
                many.into_iter().for_each(|one| one.join().unwrap());
            });
            assert!(runtime.metrics().threads <= 8);
        },
    );
    out.succeeded();
}
