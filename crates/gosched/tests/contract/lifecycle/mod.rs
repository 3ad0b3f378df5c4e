//! Runtimes come and go: several at once, dropped in every state, shut down, and what they leave
//! behind (D2).

mod dropping;
mod open_sends;
mod passed_on;
mod quiet;

use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use crate::common::{
    Alive, LONG, child, compute, eventually, fd_count, parked, rss_kib, runtime, thread_count,
    until_parked, within,
};
use gosched::thread::{Exited, JoinHandle};
use gosched::{Handle, Runtime, thread};

fn alive() -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(0))
}

#[track_caller]
fn assert_exited<T: std::fmt::Debug>(joined: thread::Result<T>) {
    assert!(joined.unwrap_err().is::<Exited>());
}

// Several runtimes, several callers.

#[test]
fn d2_several_runtimes_live_side_by_side() {
    let runtimes: Vec<_> = (1..=4).map(runtime).collect();
    let sums = std::thread::scope(|s| {
        let runs = runtimes.iter().map(|runtime| {
            s.spawn(|| {
                runtime.run(|| {
                    let each: Vec<_> = (0..100).map(|n| thread::spawn(move || n)).collect();
                    each.into_iter().map(|h| h.join().unwrap()).sum::<u32>()
                })
            })
        });
        let runs: Vec<_> = runs.collect();
        runs.into_iter().map(|r| r.join().unwrap()).sum::<u32>()
    });
    assert_eq!(sums, 4 * 4950);
}

#[test]
fn d2_run_again_and_again_from_several_threads() {
    let runtime = runtime(2);
    let total = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                for n in 0..200 {
                    let got = runtime.run(|| thread::spawn(move || n).join().unwrap());
                    total.fetch_add(got, SeqCst);
                }
            });
        }
    });
    assert_eq!(total.load(SeqCst), 8 * 199 * 100);
}

#[test]
fn d2_run_inside_a_goroutine_of_the_same_runtime() {
    let runtime = runtime(1);
    let answer = runtime.run(|| runtime.run(|| runtime.run(|| 7) + 1) + 1);
    assert_eq!(answer, 9);
}

/// A runtime is larger than a small stack.
#[test]
fn d2_a_goroutine_with_a_small_stack_builds_a_runtime() {
    let output = child("d2_a_goroutine_with_a_small_stack_builds_a_runtime", || {
        let outer = runtime(1);
        let answer = outer.run(|| {
            let small = thread::Builder::new().stack_size(if cfg!(debug_assertions) {
                64 << 10
            } else {
                16 << 10
            });
            let built = small.spawn(|| runtime(1)).unwrap().join().unwrap();
            built.run(|| 7)
        });
        assert_eq!(answer, 7);
    });
    output.succeeded();
}

#[test]
fn d2_run_inside_a_goroutine_of_another_runtime() {
    let (a, b) = (runtime(1), runtime(1));
    let answer = a.run(|| b.run(|| a.run(|| b.run(|| 7) + 1) + 1));
    assert_eq!(answer, 9);
    assert_eq!(gosched::run(|| gosched::run(|| 1) + 1), 2);
}

#[test]
fn d2_a_panic_of_main_is_raised_by_run_and_spares_the_runtime() {
    let runtime = runtime(2);
    for _ in 0..20 {
        let run = std::panic::AssertUnwindSafe(|| {
            runtime.run(|| std::panic::resume_unwind(Box::new("oh")))
        });
        let payload = std::panic::catch_unwind(run).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"oh"));
    }
    assert_eq!(runtime.run(|| 5), 5);
}

#[test]
fn d2_goroutines_go_on_after_run_returned() {
    let runtime = runtime(1);
    let (send, receive) = mpsc::channel();
    runtime.run(|| {
        gosched::go(move || {
            thread::sleep(Duration::from_millis(20));
            send.send(3).unwrap();
        });
    });
    assert_eq!(receive.recv_timeout(LONG), Ok(3));
}

#[test]
fn d2_join_and_unpark_across_runtimes_and_threads() {
    let (a, b) = (runtime(2), runtime(2));
    let parked: Vec<JoinHandle<()>> = (0..50).map(|_| a.spawn(thread::park)).collect();
    let threads: Vec<_> = parked.iter().map(|h| h.thread().clone()).collect();
    let joiner = b.spawn(move || parked.into_iter().for_each(|h| h.join().unwrap()));
    for (at, thread) in threads.into_iter().enumerate() {
        match at % 3 {
            0 => thread.unpark(),
            1 => b.go(move || thread.unpark()),
            _ => a.go(move || thread.unpark()),
        }
    }
    joiner.join().unwrap();
}

// Shutdown.

#[test]
fn shutdown_unwinds_whatever_waits() {
    for procs in [1, 3] {
        let (ended, count) = (runtime(procs), alive());
        let mut handles = Vec::new();
        for n in 0..60 {
            let here = Alive::new(&count);
            handles.push(ended.spawn(move || {
                let _here = here;
                match n % 6 {
                    0 => thread::park(),
                    1 => thread::sleep(LONG),
                    2 => thread::park_timeout(LONG),
                    3 => {
                        let _ = thread::spawn(thread::park).join();
                    }
                    4 => thread::scope(|s| {
                        s.spawn(thread::park);
                    }),
                    _ => {
                        gosched::lock_os_thread();
                        loop {
                            gosched::yield_now();
                        }
                    }
                }
            }));
        }
        // With the 20 that they start, and the one that counts.
        assert!(eventually(|| ended.run(gosched::num_goroutines) == 81));
        within(LONG, "shutdown", || ended.shutdown(LONG));
        assert_eq!(count.load(SeqCst), 0);
        for (n, handle) in handles.into_iter().enumerate() {
            match handle.join() {
                Ok(()) => assert!(
                    matches!(n % 6, 3 | 4),
                    "{n}: whom they wait for may end first"
                ),
                Err(payload) => assert!(payload.is::<Exited>()),
            }
        }
    }
}

#[test]
fn shutdown_gives_up_after_its_timeout() {
    let (ended, count) = (runtime(2), alive());
    let release = Arc::new(AtomicBool::new(false));
    let (busy, here) = (Arc::clone(&release), Alive::new(&count));
    let stuck = ended.spawn(move || {
        let _here = here;
        while !busy.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let here = Alive::new(&count);
    ended.go(move || {
        let _here = here;
        thread::park();
    });
    until_parked(&ended.handle(), 1);
    // Long enough for one goroutine to unwind, also on a busy machine.
    let (began, patience) = (Instant::now(), Duration::from_secs(2));
    within(LONG, "shutdown", || ended.shutdown(patience));
    let took = began.elapsed();
    assert!(took >= patience, "{took:?}");
    assert_eq!(count.load(SeqCst), 1, "the one that waits has unwound");
    assert_exited(stuck.join());
    release.store(true, SeqCst);
    assert!(eventually(|| count.load(SeqCst) == 0));
}

#[test]
fn shutdown_of_an_idle_runtime_returns_at_once() {
    let began = Instant::now();
    runtime(2).shutdown(Duration::MAX);
    assert!(began.elapsed() < Duration::from_secs(20));
}

/// A goroutine that refuses to unwind is not asked for ever. A goroutine that waits in a destructor
/// may finish it.
#[test]
fn shutdown_lets_destructors_wait() {
    struct Waits(Arc<AtomicUsize>);
    impl Drop for Waits {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(5));
            gosched::yield_now();
            self.0.fetch_add(1, SeqCst);
        }
    }
    let (ended, count) = (runtime(2), Arc::new(AtomicUsize::new(0)));
    for _ in 0..20 {
        let waits = Waits(Arc::clone(&count));
        ended.go(move || {
            let _waits = waits;
            thread::park();
        });
    }
    std::thread::sleep(Duration::from_millis(5));
    within(LONG, "shutdown", || ended.shutdown(LONG));
    assert_eq!(count.load(SeqCst), 20);
}

/// The caller's own token is not the runtime's to take.
#[test]
fn shutdown_keeps_the_callers_token() {
    let ended = runtime(1);
    ended.go(thread::park);
    std::thread::sleep(Duration::from_millis(5));
    thread::current().unpark();
    ended.shutdown(LONG);
    within(LONG, "park with a token", thread::park);
}

/// A goroutine that shuts another runtime down is itself unwound: the other runtime ends all the
/// same.
#[test]
fn shutdown_that_is_interrupted_ends_the_runtime() {
    let out = child("shutdown_that_is_interrupted_ends_the_runtime", || {
        let (outer, inner) = (runtime(1), runtime(1));
        let threads = thread_count();
        inner.go(|| std::thread::sleep(Duration::from_millis(500)));
        outer.go(move || inner.shutdown(LONG));
        std::thread::sleep(Duration::from_millis(50));
        outer.shutdown(Duration::from_secs(5));
        assert!(
            eventually(|| thread_count() == 1),
            "{} of {threads} threads are left",
            thread_count()
        );
    });
    out.succeeded();
}

// What is left behind.

#[test]
fn u8_memory_and_threads_return_after_a_million_goroutines() {
    let out = child(
        "u8_memory_and_threads_return_after_a_million_goroutines",
        || {
            let runtime = runtime(2);
            let count = Arc::new(AtomicUsize::new(0));
            let batch = |size: usize, parked: bool| {
                let count = Arc::clone(&count);
                runtime.run(move || {
                    let body = move |count: Arc<AtomicUsize>| {
                        if parked {
                            thread::park();
                        }
                        count.fetch_add(1, SeqCst);
                    };
                    let each: Vec<_> = (0..size)
                        .map(|_| {
                            let count = Arc::clone(&count);
                            thread::spawn(move || body(count))
                        })
                        .collect();
                    if parked {
                        gosched::yield_now();
                        each.iter().for_each(|h| h.thread().unpark());
                    }
                    each.into_iter().for_each(|h| h.join().unwrap());
                });
            };
            batch(1000, false);
            let (threads, rss) = (thread_count(), rss_kib());
            for round in 0..20 {
                batch(50_000, round % 5 == 4);
            }
            assert_eq!(count.load(SeqCst), 1_001_000);
            let near = rss + 16 * 1024;
            let is_near = || {
                // What malloc keeps of freed packets, in small pieces, is its own affair.
                // SAFETY: asks malloc to give free memory back.
                unsafe { libc::malloc_trim(0) };
                rss_kib() < near
            };
            assert!(
                eventually(is_near),
                "{rss} KiB before, {} KiB after",
                rss_kib()
            );
            assert!(
                eventually(|| thread_count() <= threads + 4),
                "{threads} threads before, {} after",
                thread_count()
            );
        },
    );
    out.succeeded();
}

#[test]
fn d2_two_hundred_runtimes_leave_nothing_behind() {
    let out = child("d2_two_hundred_runtimes_leave_nothing_behind", || {
        let cycle = |n: usize| {
            let runtime = Runtime::builder()
                .procs(1 + n % 3)
                .mprotect_guards(n.is_multiple_of(4))
                .build()
                .unwrap();
            let sum = runtime.run(|| {
                let each: Vec<_> = (0..100).map(|n| thread::spawn(move || n)).collect();
                each.into_iter().map(|h| h.join().unwrap()).sum::<u32>()
            });
            assert_eq!(sum, 4950);
            runtime.run(|| {
                let locked = || thread::spawn(gosched::lock_os_thread);
                let each: Vec<_> = (0..3).map(|_| locked()).collect();
                each.into_iter().for_each(|h| h.join().unwrap());
            });
        };
        (0..20).for_each(cycle);
        assert!(eventually(|| thread_count() == 1), "{}", thread_count());
        let (fds, rss) = (fd_count(), rss_kib());
        (0..200).for_each(cycle);
        assert!(eventually(|| thread_count() == 1), "{}", thread_count());
        assert_eq!(fd_count(), fds);
        let now = rss_kib();
        assert!(now < rss + 8 * 1024, "{rss} KiB before, {now} KiB after");
    });
    out.succeeded();
}
