//! Threads that goroutines start: plain threads with thread-locals of their own, and no goroutines.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::c_void;
use std::panic::catch_unwind;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{child, within};
use crate::tools::{LONG, own, tid, until};
use gosched::thread;

thread_local! {
    static MARK: Cell<usize> = const { Cell::new(0) };
}

/// A thread that was asked to end is soon gone; joins that would block a P wait for this first.
fn join_without_blocking<T>(thread: std::thread::JoinHandle<T>) -> T {
    until(|| thread.is_finished());
    thread.join().unwrap()
}

#[test]
fn a_std_thread_started_inside_is_a_thread() {
    own(2).run(|| {
        for mark in 1..=50 {
            MARK.set(mark);
            let own = (std::thread::current().id(), tid());
            let started = std::thread::spawn(move || {
                assert_eq!(MARK.replace(99), 0);
                assert_ne!(std::thread::current().id(), own.0);
                assert_ne!(tid(), own.1);
                (0..3).for_each(|_| thread::yield_now());
                assert_eq!(MARK.get(), 99);
                tid()
            });
            thread::yield_now();
            assert_ne!(join_without_blocking(started), tid());
            assert_eq!(MARK.get(), mark);
        }
    });
}

#[test]
fn a_thread_started_inside_is_no_goroutine() {
    own(2).run(|| {
        let handle = gosched::Handle::current();
        let started = std::thread::spawn(move || {
            assert_eq!(thread::current().id().goroutine(), None);
            // What threads may do.
            thread::yield_now();
            thread::sleep(Duration::from_micros(10));
            thread::park_timeout(Duration::from_micros(10));
            assert_eq!(handle.spawn(|| 5).join().unwrap(), 5);
            assert_eq!(own(2).run(|| 6), 6);
            // What they may not.
            let refused: [fn(); 5] = [
                || gosched::go(|| ()),
                || drop(thread::spawn(|| ())),
                || drop(gosched::Handle::current()),
                || assert_eq!(gosched::num_goroutines(), 0),
                gosched::lock_os_thread,
            ];
            refused.map(|call| {
                let payload = catch_unwind(call).expect_err("not in a goroutine");
                payload
                    .downcast_ref::<String>()
                    .cloned()
                    .unwrap_or_default()
            })
        });
        for text in join_without_blocking(started) {
            assert!(text.contains("outside a goroutine"), "{text:?}");
        }
    });
}

/// Many at once, each joined by another goroutine than the one that started it.
#[test]
fn many_threads_at_once_joined_elsewhere() {
    own(4).run(|| {
        let started = Arc::new(Mutex::new(Vec::new()));
        let tids = Arc::new(Mutex::new(HashSet::new()));
        let starters: Vec<_> = (0..16)
            .map(|number| {
                let (started, tids) = (Arc::clone(&started), Arc::clone(&tids));
                thread::spawn(move || {
                    for _ in 0..8 {
                        let tids = Arc::clone(&tids);
                        let one = std::thread::Builder::new().stack_size(64 << 10);
                        let one = one.spawn(move || {
                            MARK.set(number);
                            tids.lock().unwrap().insert(std::thread::current().id());
                            std::thread::sleep(Duration::from_millis(1));
                            assert_eq!(MARK.get(), number);
                            number
                        });
                        started.lock().unwrap().push((number, one.unwrap()));
                        thread::yield_now();
                    }
                })
            })
            .collect();
        starters
            .into_iter()
            .for_each(|starter| starter.join().unwrap());
        let started = std::mem::take(&mut *started.lock().unwrap());
        let joiners: Vec<_> = started
            .into_iter()
            .map(|(number, one)| {
                thread::spawn(move || assert_eq!(join_without_blocking(one), number))
            })
            .collect();
        joiners
            .into_iter()
            .for_each(|joiner| joiner.join().unwrap());
        assert_eq!(tids.lock().unwrap().len(), 128, "128 different threads");
    });
}

/// A join that blocks is no different, as long as there are other Ps.
#[test]
fn a_blocking_join_works() {
    within(2 * LONG, "std's join in a goroutine", || {
        own(4).run(|| {
            let joins: Vec<_> = (0..20)
                .map(|i| {
                    thread::spawn(move || {
                        let sleeps = move || {
                            std::thread::sleep(Duration::from_micros(100));
                            i
                        };
                        std::thread::spawn(sleeps).join().unwrap()
                    })
                })
                .collect();
            let sum: u32 = joins.into_iter().map(|join| join.join().unwrap()).sum();
            assert_eq!(sum, 190);
            // Scoped ones borrow from a goroutine's stack.
            let count = AtomicUsize::new(0);
            std::thread::scope(|s| {
                (0..10).for_each(|_| drop(s.spawn(|| count.fetch_add(1, SeqCst))));
            });
            assert_eq!(count.into_inner(), 10);
        });
    });
}

extern "C" fn doubled(arg: *mut c_void) -> *mut c_void {
    assert_eq!(MARK.replace(1), 0);
    std::ptr::without_provenance_mut(arg.addr() * 2)
}

#[test]
fn pthread_create_works_inside() {
    own(2).run(|| {
        let all: Vec<_> = (1..=20)
            .map(|number: usize| {
                thread::spawn(move || {
                    for _ in 0..5 {
                        let mut id = 0;
                        let mut result = std::ptr::null_mut();
                        let arg = std::ptr::without_provenance_mut(number);
                        // SAFETY: the function takes any number; the thread is joined here.
                        unsafe {
                            let made =
                                libc::pthread_create(&mut id, std::ptr::null(), doubled, arg);
                            assert_eq!(made, 0);
                            assert_ne!(id, libc::pthread_self());
                            thread::yield_now();
                            assert_eq!(libc::pthread_join(id, &mut result), 0);
                        }
                        assert_eq!(result.addr(), number * 2);
                    }
                })
            })
            .collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
}

/// It is not joined; it outlives the goroutine, its runtime, and the stack it was started from.
#[test]
fn a_thread_outlives_the_goroutine_that_started_it() {
    let (to, from) = std::sync::mpsc::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    own(2).run(|| {
        let starts = move || {
            std::thread::spawn(move || {
                MARK.set(7);
                wait.recv().unwrap_err();
                to.send((MARK.get(), catch_unwind(|| gosched::go(|| ())).is_err()))
                    .unwrap();
            });
        };
        thread::spawn(starts).join().unwrap();
    });
    drop(go_on);
    assert_eq!(from.recv_timeout(LONG), Ok((7, true)));
}

/// What a thread inherits it inherits from the goroutine's thread: masks and names, not
/// thread-locals.
#[test]
fn a_panic_in_a_thread_started_inside_stays_there() {
    let output = child(
        "threads::a_panic_in_a_thread_started_inside_stays_there",
        || {
            own(2).run(|| {
                let started = std::thread::Builder::new().name("worker".into());
                let started = started.spawn(|| panic!("in a thread")).unwrap();
                until(|| started.is_finished());
                assert!(started.join().is_err());
                assert!(!std::thread::panicking());
            });
        },
    );
    output.succeeded();
    output.says(&["thread 'worker'", "in a thread"]);
}

/// The user and group ids of all threads change together: libc sends each a signal and waits until
/// it has obeyed.
#[test]
fn setuid_and_setgid_reach_all_threads() {
    let output = child("threads::setuid_and_setgid_reach_all_threads", || {
        within(2 * LONG, "setuid", || {
            own(4).run(|| {
                let stop = AtomicUsize::new(0);
                thread::scope(|s| {
                    for _ in 0..60 {
                        s.spawn(|| {
                            MARK.set(5);
                            while stop.load(SeqCst) < 4 {
                                thread::yield_now();
                                assert_eq!(MARK.get(), 5);
                            }
                        });
                    }
                    for _ in 0..4 {
                        s.spawn(|| {
                            set_ids_often(100);
                            stop.fetch_add(1, SeqCst);
                        });
                    }
                });
            });
            // Asleep and idle threads obey as well.
            let runtime = own(4);
            runtime.run(|| thread::spawn(|| ()).join().unwrap());
            set_ids_often(20);
            runtime.run(|| set_ids_often(20));
        });
    });
    output.succeeded();
}

fn set_ids_often(times: usize) {
    for turn in 0..times {
        // SAFETY: the ids that the process has already.
        unsafe {
            assert_eq!(libc::setuid(libc::getuid()), 0);
            assert_eq!(libc::setgid(libc::getgid()), 0);
            if turn % 4 == 0 {
                assert_eq!(libc::seteuid(libc::geteuid()), 0);
            }
        }
        thread::yield_now();
    }
}

/// The same while threads come and go and goroutines wait in the kernel.
#[test]
fn setuid_works_while_threads_come_and_go() {
    let output = child("threads::setuid_works_while_threads_come_and_go", || {
        within(2 * LONG, "setuid with threads", || {
            own(4).run(|| {
                thread::scope(|s| {
                    s.spawn(|| set_ids_often(100));
                    s.spawn(|| set_ids_often(100));
                    s.spawn(|| {
                        for _ in 0..50 {
                            let started = std::thread::spawn(tid);
                            thread::yield_now();
                            assert!(join_without_blocking(started) > 0);
                        }
                    });
                    s.spawn(|| {
                        for _ in 0..50 {
                            std::thread::sleep(Duration::from_micros(200));
                            thread::sleep(Duration::from_micros(100));
                        }
                    });
                    s.spawn(|| {
                        for _ in 0..20 {
                            // Ends its thread each time.
                            thread::spawn(gosched::lock_os_thread).join().unwrap();
                        }
                    });
                });
            });
        });
    });
    output.succeeded();
}
