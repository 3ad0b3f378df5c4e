//! A runtime is dropped while its goroutines are in calls (D2). The drop does not wait for the
//! calls. When they return, the runtime is gone.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, mpsc};

use gosched::blocking;
use gosched::thread::Exited;

use super::*;
use crate::common::{Alive, HOUR, child_of, eventually, thread_count, within};

/// What a goroutine does when its call is over and its runtime gone.
const NEXT: [&str; 5] = ["ends", "computes", "calls again", "yields", "parks"];

/// Waits in a call until the test drops its sender, then does `next`.
fn call_and_go_on(is_marked: bool, release: &mpsc::Receiver<()>, next: &str) {
    let wait = || release.recv().unwrap_err();
    if is_marked {
        blocking(wait);
    } else {
        wait();
    }
    match next {
        "computes" => compute(ms(5)),
        "calls again" => {
            blocking(|| std::thread::sleep(ms(1)));
            std::thread::sleep(ms(1));
        }
        "yields" => gosched::yield_now(),
        "parks" => thread::park(),
        _ => {}
    }
}

/// In a process of its own: the threads left behind are counted.
#[test]
fn d2_a_drop_does_not_wait_for_calls() {
    let name = "leaving::d2_a_drop_does_not_wait_for_calls";
    for variant in ["marked", "unmarked", "both, on one P"] {
        child_of(name, variant, |variant| {
            for next in NEXT {
                drop_during_calls(variant, next);
            }
        })
        .succeeded();
    }
}

fn drop_during_calls(variant: &str, next: &'static str) {
    const CALLS: usize = 8;
    let threads = thread_count();
    let runtime = runtime(if variant.ends_with("one P") { 1 } else { 2 });
    let (called, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut let_go = Vec::new();
    let mut joins = Vec::new();
    for at in 0..CALLS {
        let (send, release) = mpsc::channel();
        let_go.push(send);
        let is_marked = variant == "marked" || variant != "unmarked" && at % 2 == 0;
        let (called, ended) = (Arc::clone(&called), Arc::clone(&ended));
        joins.push(runtime.spawn(move || {
            called.fetch_add(1, SeqCst);
            call_and_go_on(is_marked, &release, next);
            ended.fetch_add(1, SeqCst);
        }));
    }
    assert!(eventually(|| called.load(SeqCst) == CALLS), "L2");
    within(LONG, "the drop", || drop(runtime));
    within(LONG, "the joins", || {
        for join in joins {
            assert!(join.join().unwrap_err().is::<Exited>(), "D2");
        }
    });
    assert_eq!(ended.load(SeqCst), 0);
    // The calls return; their threads find nothing to do any more, and end.
    drop(let_go);
    assert!(
        eventually(|| thread_count() == threads),
        "D2: {} threads are left ({variant}, {next})",
        thread_count() - threads
    );
    // A goroutine that did not have to wait has ended.
    match next {
        "ends" | "computes" | "calls again" => assert_eq!(ended.load(SeqCst), CALLS, "{next}"),
        "parks" => assert_eq!(ended.load(SeqCst), 0, "{next}"),
        _ => {}
    }
}

/// A shutdown waits for calls as for anything else, up to its timeout.
#[test]
fn d2_a_shutdown_waits_for_calls() {
    for is_marked in [true, false] {
        let runtime = runtime(1);
        let (tell, told) = mpsc::channel();
        let call = runtime.spawn(move || {
            let nap = || {
                tell.send(()).unwrap();
                std::thread::sleep(ms(300));
            };
            if is_marked {
                blocking(nap)
            } else {
                nap()
            }
            7
        });
        told.recv().unwrap();
        within(LONG, "the shutdown", || runtime.shutdown(HOUR));
        assert_eq!(call.join().unwrap(), 7);
    }
}

#[test]
fn d2_a_shutdown_gives_calls_up_in_time() {
    for is_marked in [true, false] {
        let runtime = runtime(2);
        let alive = Arc::new(AtomicUsize::new(0));
        let (tell, told) = mpsc::channel();
        let (let_go, release) = mpsc::channel();
        let here = Alive::new(&alive);
        let call = runtime.spawn(move || {
            let _here = here;
            tell.send(()).unwrap();
            call_and_go_on(is_marked, &release, "ends");
        });
        let waits = runtime.spawn(thread::park);
        told.recv().unwrap();
        within(LONG, "the shutdown", || runtime.shutdown(ms(200)));
        assert!(call.join().unwrap_err().is::<Exited>());
        assert!(waits.join().unwrap_err().is::<Exited>());
        assert_eq!(alive.load(SeqCst), 1, "it is still in its call");
        drop(let_go);
        assert!(
            eventually(|| alive.load(SeqCst) == 0),
            "and comes to its end"
        );
    }
}

/// The last thing a goroutine does in a call is to drop its own runtime.
#[test]
fn d2_a_runtime_is_dropped_inside_a_call_of_its_own() {
    for is_marked in [true, false] {
        let runtime = runtime(2);
        let handle = runtime.handle();
        let (send, receive) = mpsc::channel();
        handle.go(move || {
            let ends = || {
                drop(runtime);
                std::thread::sleep(ms(2));
            };
            if is_marked {
                blocking(ends)
            } else {
                ends()
            }
            send.send(blocking(|| 5)).unwrap();
        });
        assert_eq!(receive.recv_timeout(LONG), Ok(5));
        assert!(handle.try_spawn(|| ()).is_err());
    }
}

/// Runtimes start and are dropped while their goroutines enter and leave calls. Goroutines that
/// never wait in the runtime continue their loops, on threads that the drop leaves to them.
#[test]
fn d2_drops_at_any_moment_of_a_call() {
    let name = "leaving::d2_drops_at_any_moment_of_a_call";
    let out = crate::common::child(name, || {
        let (threads, is_over) = (thread_count(), Arc::new(AtomicBool::new(false)));
        for round in 0..60u64 {
            let runtime = runtime(1 + round as usize % 3);
            for at in 0..6 {
                let is_over = Arc::clone(&is_over);
                runtime.go(move || {
                    while !is_over.load(SeqCst) {
                        let nap = || std::thread::sleep(Duration::from_micros(100 << at));
                        if at % 3 == 2 {
                            nap()
                        } else {
                            blocking(nap)
                        }
                        if at % 3 == 1 {
                            blocking(gosched::yield_now);
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_micros(round * 50));
            within(LONG, "a drop", || match round % 4 {
                3 => runtime.shutdown(ms(2)),
                _ => drop(runtime),
            });
        }
        assert_eq!(gosched::run(|| blocking(|| 1)), 1);
        is_over.store(true, SeqCst);
        assert!(
            eventually(|| thread_count() == threads),
            "{}",
            thread_count()
        );
    });
    out.succeeded();
}

/// Preempted goroutines that continue when their runtime is dropped may hold a lock that others
/// need. So their threads keep their priority.
#[test]
fn d2_a_drop_leaves_priorities_as_they_are() {
    // SAFETY: the call touches no memory; 0 is the calling thread.
    let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let (is_over, runtime) = (Arc::new(AtomicBool::new(false)), runtime(1));
    let (tell, told) = mpsc::channel();
    let begun = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let (is_over, tell, begun) = (Arc::clone(&is_over), tell.clone(), Arc::clone(&begun));
        runtime.go(move || {
            begun.fetch_add(1, SeqCst);
            while !is_over.load(SeqCst) {
                std::hint::spin_loop();
            }
            tell.send(nice()).unwrap();
        });
    }
    assert!(eventually(
        || begun.load(SeqCst) == 4 && runtime.metrics().parked_threads >= 3
    ));
    within(LONG, "the drop", || drop(runtime));
    is_over.store(true, SeqCst);
    for _ in 0..4 {
        assert_eq!(told.recv_timeout(LONG), Ok(nice()), "D2");
    }
}

/// A preempted goroutine waits on its thread for a P. When its runtime is dropped it continues
/// without a P, as running goroutines do: others may want the lock that it holds.
#[test]
fn d2_a_drop_lets_go_of_who_was_made_to_wait() {
    let name = "leaving::d2_a_drop_lets_go_of_who_was_made_to_wait";
    let out = crate::common::child(name, || {
        let (threads, is_over) = (thread_count(), Arc::new(AtomicBool::new(false)));
        for round in 0..5 {
            let (shared, runtime) = (Arc::new(Mutex::new(0)), runtime(1));
            let lock = Arc::clone(&shared);
            let (tell, told) = mpsc::channel();
            runtime.go(move || {
                let mut held = lock.lock().unwrap();
                tell.send(()).unwrap();
                compute(ms(300));
                *held += 1;
            });
            told.recv().unwrap();
            for _ in 0..3 {
                let is_over = Arc::clone(&is_over);
                runtime.go(move || {
                    while !is_over.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                });
            }
            // One of the four runs and the others are preempted, most likely also the holder of the
            // lock.
            std::thread::sleep(ms(80 + 7 * round));
            within(LONG, "the drop", || drop(runtime));
            let lock = Arc::clone(&shared);
            let (send, receive) = mpsc::channel();
            std::thread::spawn(move || send.send(lock.lock().is_ok()));
            assert_eq!(receive.recv_timeout(LONG), Ok(true), "D2");
        }
        is_over.store(true, SeqCst);
        assert!(
            eventually(|| thread_count() == threads),
            "D2: {}",
            thread_count()
        );
    });
    out.succeeded();
}
