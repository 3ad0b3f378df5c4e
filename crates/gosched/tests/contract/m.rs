//! M1, M6, MG as a program sees them: threads are pooled, limited, clean.

use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{HOUR, LONG, child, eventually, tid};
use gosched::{Runtime, debug, thread};

/// Whether SIGUSR2 is blocked on this thread; blocks it if asked.
fn usr2_is_blocked(block: bool) -> bool {
    // SAFETY: reads, or adds to, the mask of the calling thread.
    unsafe {
        let (mut set, mut old): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        if block {
            libc::sigaddset(&mut set, libc::SIGUSR2);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut old);
        libc::sigismember(&old, libc::SIGUSR2) == 1
    }
}

#[test]
fn mg_the_caller_of_run_runs_no_goroutines() {
    let runtime = Runtime::builder().procs(2).build().unwrap();
    let here = tid();
    let seen = runtime.run(|| {
        let seen = Mutex::new(HashSet::new());
        thread::scope(|s| {
            for _ in 0..200 {
                s.spawn(|| {
                    seen.lock().unwrap().insert(tid());
                    gosched::yield_now();
                    seen.lock().unwrap().insert(tid());
                });
            }
        });
        seen.into_inner().unwrap()
    });
    assert!(!seen.contains(&here), "M0 is the runtime's own");
}

#[test]
fn mg_threads_are_pooled_and_few() {
    let output = child("mg_threads_are_pooled_and_few", || {
        let runtime = Runtime::builder().procs(2).build().unwrap();
        runtime.run(|| {
            for _ in 0..20 {
                thread::scope(|s| {
                    for _ in 0..100 {
                        s.spawn(gosched::yield_now);
                    }
                });
            }
            // 2 Ps, 2 spare, one that waits for timers, sysmon, creator, and the caller of `run`.
            assert!(
                crate::common::thread_count() <= 10,
                "{}",
                crate::common::thread_count()
            );
        });
    });
    output.succeeded();
}

#[test]
fn mg_thread_state_of_a_locked_goroutine_never_spreads() {
    let runtime = Runtime::builder().procs(2).build().unwrap();
    runtime.run(|| {
        let dirty = Arc::new(Mutex::new(HashSet::new()));
        // Each keeps its thread, so the others need new ones, made while every running thread is
        // dirty.
        let ready = Arc::new(AtomicUsize::new(0));
        let locked: Vec<_> = (0..8)
            .map(|_| {
                let (dirty, ready) = (Arc::clone(&dirty), Arc::clone(&ready));
                thread::spawn(move || {
                    gosched::lock_os_thread();
                    assert!(!usr2_is_blocked(true), "a new thread is clean");
                    assert!(usr2_is_blocked(false));
                    assert!(dirty.lock().unwrap().insert(tid()), "each its own");
                    ready.fetch_add(1, SeqCst);
                    thread::park();
                })
            })
            .collect();
        assert!(eventually(|| {
            gosched::yield_now();
            ready.load(SeqCst) == 8
        }));
        for _ in 0..200 {
            thread::spawn(|| assert!(!usr2_is_blocked(false)))
                .join()
                .unwrap();
        }
        for one in &locked {
            one.thread().unpark();
        }
        locked.into_iter().for_each(|one| one.join().unwrap());
        // Their threads ended with them.
        for _ in 0..200 {
            let clean = thread::spawn(|| !usr2_is_blocked(false)).join().unwrap();
            assert!(clean);
        }
    });
}

#[test]
fn mg_past_the_limit_of_threads_is_fatal() {
    let output = child("mg_past_the_limit_of_threads_is_fatal", || {
        let runtime = Runtime::builder().procs(2).max_threads(5).build().unwrap();
        runtime.run(|| {
            let locked: Vec<_> = (0..10)
                .map(|_| {
                    thread::spawn(|| {
                        gosched::lock_os_thread();
                        thread::sleep(HOUR);
                    })
                })
                .collect();
            locked.into_iter().for_each(|one| one.join().unwrap());
        });
    });
    output.died_with(&[
        "runtime: program exceeds 5-thread limit",
        "fatal error: thread exhaustion",
    ]);
}

#[test]
fn m1_m6_m7_threads_agree_under_load() {
    let runtime = Runtime::builder().procs(3).build().unwrap();
    runtime.run(|| {
        thread::scope(|s| {
            for i in 0..6 {
                s.spawn(move || {
                    if i % 2 == 0 {
                        gosched::lock_os_thread();
                    }
                    for _ in 0..50 {
                        gosched::yield_now();
                        thread::sleep(Duration::from_micros(10));
                    }
                });
            }
            for _ in 0..50 {
                debug::check().unwrap();
                let metrics = debug::metrics();
                // A claimed wake-up that finds no idle P counts for a moment.
                assert!(metrics.spinning_threads <= metrics.procs + 1);
                gosched::yield_now();
            }
        });
        debug::check().unwrap();
        assert_eq!(debug::metrics().rescues, 0);
    });
}

/// The only thread watches the timer of a sleeping goroutine, and still serves spawns from outside.
#[test]
fn mg_the_only_thread_watches_timers_and_serves_wakes() {
    let runtime = gosched::Runtime::builder()
        .procs(1)
        .max_threads(1)
        .build()
        .unwrap();
    runtime.go(|| gosched::thread::sleep(std::time::Duration::from_secs(3600)));
    crate::common::within(LONG, "the joins", || {
        for n in 0..2_000 {
            assert_eq!(runtime.spawn(move || n).join().unwrap(), n);
        }
    });
    assert_eq!(runtime.metrics().rescues, 0);
}

#[test]
fn mg_every_processor_needs_a_thread() {
    let few = gosched::Runtime::builder().procs(3).max_threads(2).build();
    let error = few.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(
        error.to_string().contains("every processor needs a thread"),
        "{error}"
    );
}
