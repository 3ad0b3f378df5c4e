//! Preempted at the end of things: while unwinding, in the destructors of thread-locals, and when
//! the runtime itself goes.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::common::{Planned, quiet_planned_panics};

const SLOW: Duration = Duration::from_millis(40);

/// Spins when dropped, and counts it.
struct SlowDrop(&'static AtomicUsize, bool);

impl Drop for SlowDrop {
    fn drop(&mut self) {
        assert_eq!(std::thread::panicking(), self.1);
        burn(SLOW);
        assert_eq!(std::thread::panicking(), self.1);
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn u5_preempted_while_it_unwinds() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    let _turn = beside();
    quiet_planned_panics();
    within(LONG, "those who unwind", || {
        checked(&runtime(2), || {
            let hogs = Hogs::new(2);
            let unwinds = |_| {
                thread::spawn(|| {
                    let _slow = SlowDrop(&DROPPED, true);
                    std::panic::panic_any(Planned);
                })
            };
            let handles: Vec<thread::JoinHandle<()>> = (0..6).map(unwinds).collect();
            for handle in handles {
                assert!(handle.join().unwrap_err().is::<Planned>());
            }
            assert_eq!(DROPPED.load(SeqCst), 6);
            hogs.end();
        });
    });
}

#[test]
fn u5_preempted_inside_catch_unwind() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    let _turn = beside();
    quiet_planned_panics();
    within(LONG, "those who catch", || {
        checked(&runtime(2), || {
            let hogs = Hogs::new(2);
            let catches = |_| {
                thread::spawn(|| {
                    for _ in 0..2 {
                        let caught = catch_unwind(|| {
                            burn(SLOW);
                            let _slow = SlowDrop(&DROPPED, true);
                            std::panic::panic_any(Planned);
                        });
                        assert!(caught.unwrap_err().is::<Planned>());
                        assert!(!std::thread::panicking());
                        burn(SLOW / 4);
                    }
                })
            };
            let handles: Vec<_> = (0..4).map(catches).collect();
            handles.into_iter().for_each(|h| h.join().unwrap());
            assert_eq!(DROPPED.load(SeqCst), 8);
            hogs.end();
        });
    });
}

#[test]
fn u5_preempted_in_the_destructor_of_a_thread_local() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: SlowDrop = const { SlowDrop(&DROPPED, false) };
        static SEEN: Cell<usize> = const { Cell::new(0) };
    }
    let _turn = beside();
    within(LONG, "the destructors", || {
        checked(&runtime(2), || {
            let hogs = Hogs::new(2);
            let leaves = |at| {
                thread::spawn(move || {
                    OWN.with(|_| SEEN.set(at));
                    SEEN.get()
                })
            };
            let handles: Vec<_> = (0..6).map(leaves).collect();
            let sum: usize = handles.into_iter().map(|h| h.join().unwrap()).sum();
            assert_eq!(sum, 15);
            while DROPPED.load(SeqCst) < 6 {
                thread::sleep(Duration::from_millis(1));
            }
            hogs.end();
        });
    });
}

/// A runtime with hogs: `n` of them have begun and run until `stop`; some run, some wait in the
/// handler.
fn with_hogs(n: usize, stop: &Arc<AtomicBool>) -> (Runtime, Vec<thread::JoinHandle<u32>>) {
    let (runtime, begun) = (runtime(2), Arc::new(AtomicUsize::new(0)));
    let hog = |_| {
        let (stop, begun) = (Arc::clone(stop), Arc::clone(&begun));
        runtime.spawn(move || {
            begun.fetch_add(1, SeqCst);
            spin_until(&stop);
            1
        })
    };
    let handles = (0..n).map(hog).collect();
    assert!(eventually(|| begun.load(SeqCst) == n), "not all have begun");
    (runtime, handles)
}

/// Each join is answered: by the hog itself if it was running and could still end, else by what a
/// dropped runtime leaves behind.
fn are_answered(handles: Vec<thread::JoinHandle<u32>>) -> usize {
    let joins = handles.into_iter().map(|handle| {
        let answer = handle.join();
        assert!(
            answer.as_ref().is_ok_and(|one| *one == 1)
                || answer.is_err_and(|error| error.is::<thread::Exited>())
        );
    });
    joins.count()
}

#[test]
fn d2_a_runtime_dropped_while_goroutines_spin_answers_and_goes() {
    let _turn = beside();
    child(
        "ends::d2_a_runtime_dropped_while_goroutines_spin_answers_and_goes",
        || {
            let stop = Arc::new(AtomicBool::new(false));
            let (runtime, handles) = with_hogs(6, &stop);
            // The hogs go on until the end, so this would hang if it waited for them.
            within(LONG, "drop", || drop(runtime));
            // The hogs are not stopped: the joins are answered nevertheless.
            assert_eq!(within(LONG, "the joins", || are_answered(handles)), 6);
            // The process continues, with other runtimes too.
            assert_eq!(runtime_sum(), 45);
            stop.store(true, SeqCst);
        },
    )
    .succeeded();
}

fn runtime_sum() -> u64 {
    within(LONG, "another runtime", || {
        checked(&runtime(2), || {
            let hogs = Hogs::new(3);
            let handles: Vec<_> = (0..10).map(|i| thread::spawn(move || i)).collect();
            let sum = handles.into_iter().map(|h| h.join().unwrap()).sum();
            hogs.end();
            sum
        })
    })
}

#[test]
fn d2_many_runtimes_in_a_row_are_dropped_with_their_hogs() {
    let _turn = beside();
    child(
        "ends::d2_many_runtimes_in_a_row_are_dropped_with_their_hogs",
        || {
            within(LONG, "the runtimes", || {
                for round in 0..15 {
                    let stop = Arc::new(AtomicBool::new(false));
                    let (runtime, handles) = with_hogs(1 + round % 5, &stop);
                    match round % 3 {
                        0 => drop(runtime),
                        1 => runtime.shutdown(Duration::from_millis(10)),
                        _ => {
                            // Inside another runtime, whose own hogs run meanwhile.
                            checked(&self::runtime(1), || {
                                let hogs = Hogs::new(2);
                                drop(runtime);
                                hogs.end();
                            });
                        }
                    }
                    assert_eq!(are_answered(handles), 1 + round % 5);
                    stop.store(true, SeqCst);
                }
            });
            assert_eq!(runtime_sum(), 45);
        },
    )
    .succeeded();
}

/// The runtime ends by itself when its hogs do: goroutines that wait in the handler end as well,
/// and so do all threads.
#[test]
fn d2_a_runtime_whose_hogs_have_ended_leaves_nothing_behind() {
    let _turn = beside();
    child(
        "ends::d2_a_runtime_whose_hogs_have_ended_leaves_nothing_behind",
        || {
            let before = thread_count();
            for _ in 0..3 {
                let runtime = Runtime::builder()
                    .procs(2)
                    .deadlock(Deadlock::Off)
                    .build()
                    .unwrap();
                checked(&runtime, || {
                    let hogs = Hogs::new(10);
                    while hogs.begun() < 10 {
                        thread::sleep(Duration::from_millis(10));
                    }
                    hogs.end();
                });
                drop(runtime);
            }
            assert!(
                eventually(|| thread_count() <= before),
                "{} threads",
                thread_count()
            );
        },
    )
    .succeeded();
}

/// A dropped runtime's goroutine that ran at that moment ends in peace: what it was given is
/// dropped, once.
#[test]
fn d2_a_hog_of_a_dropped_runtime_ends_in_peace() {
    let _turn = beside();
    child("ends::d2_a_hog_of_a_dropped_runtime_ends_in_peace", || {
        for _ in 0..5 {
            let (stop, count) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicUsize::new(0)),
            );
            let begun = Arc::new(AtomicBool::new(false));
            let (is_over, has_begun) = (Arc::clone(&stop), Arc::clone(&begun));
            let alive = common::Alive::new(&count);
            let runtime = runtime(1);
            runtime.go(move || {
                let _alive = alive;
                has_begun.store(true, SeqCst);
                let caught = catch_unwind(AssertUnwindSafe(|| spin_until(&is_over)));
                assert!(caught.is_ok());
            });
            assert!(eventually(|| begun.load(SeqCst)));
            drop(runtime);
            stop.store(true, SeqCst);
            assert!(eventually(|| count.load(SeqCst) == 0), "it never ended");
        }
    })
    .succeeded();
}
