//! `gosched::blocking` (SY, M4): results and panics pass through, everything works inside, other
//! goroutines run meanwhile, and the number of threads is small.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use gosched::blocking;
use gosched::debug::{check, dump, metrics};
use gosched::thread::Exited;

use super::*;
use crate::common::Planned;

#[test]
fn sy_the_value_comes_back() {
    run(1, "values", || {
        assert_eq!(blocking(|| 7), 7);
        let text = String::from("moved in");
        assert_eq!(blocking(move || text + " and out"), "moved in and out");
        blocking(|| ());
    });
}

/// It is called where it stands: neither what it takes nor what it returns is sent anywhere.
#[test]
fn sy_it_needs_neither_send_nor_static() {
    run(1, "borrows", || {
        let count = Rc::new(Cell::new(1));
        let mut line = vec![1];
        let same = blocking(|| {
            line.push(2);
            count.set(count.get() + 1);
            Rc::clone(&count)
        });
        assert_eq!((same.get(), &line[..]), (2, &[1, 2][..]));
    });
}

#[test]
fn sy_it_nests() {
    run(1, "nested calls", || {
        fn depth(n: u32) -> u32 {
            match n {
                0 => 0,
                n => blocking(|| depth(n - 1)) + 1,
            }
        }
        assert_eq!(depth(100), 100);
        let (send, receive) = mpsc::channel();
        let other = thread::spawn(move || send.send(5));
        // Still in the outer call.
        blocking(|| {
            blocking(|| ());
            assert_eq!(receive.recv(), Ok(5));
        });
        other.join().unwrap().unwrap();
    });
}

#[test]
fn sy_a_panic_passes_through() {
    crate::common::quiet_planned_panics();
    run(1, "a panic", || {
        for depth in 0..3 {
            let caught = catch_unwind(|| {
                blocking(|| match depth {
                    0 => resume_unwind(Box::new(3)),
                    1 => blocking(|| resume_unwind(Box::new(3))),
                    _ => {
                        gosched::yield_now();
                        resume_unwind(Box::new(3))
                    }
                })
            });
            let caught: Box<dyn std::any::Any + Send> = caught.unwrap_err();
            assert_eq!(*caught.downcast::<i32>().unwrap(), 3);
            // The goroutine continues as usual: it waits and calls again.
            thread::spawn(|| ()).join().unwrap();
            assert_eq!(blocking(|| 4), 4);
        }
        let ended = thread::spawn(|| blocking(|| std::panic::panic_any(Planned)));
        assert!(ended.join().unwrap_err().is::<Planned>());
    });
}

#[test]
fn sy_on_a_plain_thread_it_only_calls() {
    let here = std::thread::current().id();
    assert_eq!(blocking(|| std::thread::current().id()), here);
    assert_eq!(blocking(|| blocking(|| 1) + 1), 2);
    let caught = catch_unwind(|| blocking(|| resume_unwind(Box::new(3))));
    let caught: Box<dyn std::any::Any + Send> = caught.unwrap_err();
    assert!(caught.is::<i32>());
    // Also on one that a goroutine has started.
    run(1, "a thread of a goroutine's", || {
        let plain = std::thread::spawn(|| blocking(|| 6));
        assert_eq!(blocking(|| plain.join().unwrap()), 6);
    });
}

/// Everything that a goroutine may do works inside too. After each operation the call continues
/// without a P: with one P, the event that it then waits for could not happen otherwise.
#[test]
fn m4_inside_a_call_the_runtime_can_be_used() {
    for procs in [1, 2] {
        run(procs, "the runtime inside a call", || {
            let me = thread::current();
            let uses: [&dyn Fn(); 10] = [
                &gosched::yield_now,
                &|| thread::spawn(|| ()).join().unwrap(),
                &|| thread::sleep(ms(1)),
                &|| thread::park_timeout(ms(1)),
                &|| {
                    let me = me.clone();
                    gosched::go(move || me.unpark());
                    thread::park();
                },
                &|| {
                    thread::scope(|s| {
                        s.spawn(gosched::yield_now);
                        s.spawn(|| thread::sleep(ms(1)));
                    });
                },
                &|| assert_eq!(gosched::gomaxprocs(3), procs),
                &|| assert_eq!(gosched::gomaxprocs(procs), 3),
                &|| assert!(check().is_ok() && !dump().goroutines().is_empty()),
                &|| assert_eq!(thread::spawn(|| blocking(|| 9)).join().unwrap(), 9),
            ];
            blocking(|| {
                for used in uses {
                    used();
                    let (send, receive) = mpsc::channel();
                    gosched::go(move || send.send(1).unwrap());
                    assert_eq!(receive.recv(), Ok(1));
                }
            });
        });
    }
}

#[test]
fn sy_a_goroutine_may_end_inside_a_call() {
    run(1, "exit", || {
        for _ in 0..10 {
            let left = thread::spawn(|| blocking(|| blocking(|| gosched::goexit())));
            let left = left.join().map(|()| "it returned");
            assert!(left.unwrap_err().is::<Exited>());
            // The next goroutine that uses its G is not in a call.
            assert_eq!(thread::spawn(|| blocking(|| 1)).join().unwrap(), 1);
        }
    });
}

/// A runtime inside a call of another one: started, used, waited for and dropped there.
#[test]
fn sy_another_runtime_inside_a_call() {
    run(1, "another runtime", || {
        let inner = runtime(2);
        let total = blocking(|| {
            let each: Vec<_> = (0..20)
                .map(|n| inner.spawn(move || blocking(|| n)))
                .collect();
            let total = each.into_iter().map(|one| one.join().unwrap()).sum::<u32>();
            drop(inner);
            total
        });
        assert_eq!(total, 190);
        assert_eq!(blocking(|| gosched::run(|| blocking(|| 3))), 3);
    });
}

/// With one P, each goroutine waits in a call for the next one. A goroutine that is in no call
/// releases the last.
#[test]
fn sm_a_long_call_leaves_the_p_to_others() {
    for procs in [1, 2] {
        run(procs, "a chain of calls", || {
            let (mut send, receive) = mpsc::channel();
            let first = thread::spawn(move || blocking(|| receive.recv().unwrap()));
            let mut chain = vec![first];
            for _ in 0..20 {
                let (next, receive) = mpsc::channel();
                let send = std::mem::replace(&mut send, next);
                chain.push(thread::spawn(move || {
                    let n: u32 = blocking(|| receive.recv().unwrap());
                    send.send(n + 1).unwrap();
                    n
                }));
            }
            thread::sleep(ms(5));
            send.send(0).unwrap();
            let all: Vec<_> = chain.into_iter().map(|one| one.join().unwrap()).collect();
            assert_eq!(all, (0..=20).rev().collect::<Vec<_>>());
        });
    }
}

/// Waits until no thread is being started any more, and returns how many there are.
fn settled_threads() -> usize {
    let (mut before, mut since) = (0, Instant::now());
    while since.elapsed() < ms(100) {
        thread::sleep(ms(5));
        let now = metrics();
        if now.threads != before || now.idle_threads < 2 {
            (before, since) = (now.threads, Instant::now());
        }
    }
    before
}

/// A hundred thousand calls of a microsecond, one after the other, start no thread. The runtime
/// keeps a few in reserve and may start one more at any time, once. So one of three rounds must
/// start none.
#[test]
fn sy_short_calls_need_no_threads() {
    run(2, "short calls", || {
        let first = settled_threads();
        let has_started_none = || {
            let before = settled_threads();
            for _ in 0..100_000 {
                blocking(|| compute(Duration::from_micros(1)));
            }
            metrics().threads <= before
        };
        assert!((0..3).any(|_| has_started_none()), "SY");
        assert!(metrics().threads <= first + 2, "SY");
    });
}

#[test]
fn sy_long_calls_run_at_the_same_time_and_share_their_threads() {
    const CALLS: usize = 200;
    run(2, "200 calls", || {
        // Each waits for all the others to be there.
        let barrier = Arc::new(Barrier::new(CALLS));
        let wait = |_| {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || blocking(|| barrier.wait().is_leader()))
        };
        let calls: Vec<_> = (0..CALLS).map(wait).collect();
        let leaders = calls.into_iter().map(|one| u32::from(one.join().unwrap()));
        assert_eq!(leaders.sum::<u32>(), 1);
        let first = metrics().threads;
        assert!(first >= CALLS, "one thread each: {first}");
        let nap = |_| thread::spawn(|| blocking(|| std::thread::sleep(ms(50))));
        let calls: Vec<_> = (0..CALLS).map(nap).collect();
        calls.into_iter().for_each(|one| one.join().unwrap());
        let second = metrics().threads;
        assert!(second <= first + 8, "reused: {first}, then {second}");
    });
}

/// U9: the call and the code after it run on the thread that the goroutine is locked to, whichever
/// goroutine has had its P meanwhile.
#[test]
fn u9_a_wired_goroutine_stays_on_its_thread() {
    // SAFETY: the call has no arguments and only asks.
    let tid = || unsafe { libc::gettid() };
    for procs in [1, 2] {
        run(procs, "a wired goroutine", move || {
            let is_over = AtomicBool::new(false);
            thread::scope(|s| {
                for _ in 0..3 {
                    s.spawn(|| {
                        while !is_over.load(SeqCst) {
                            compute(Duration::from_micros(100));
                            gosched::yield_now();
                        }
                    });
                }
                let wired = || {
                    gosched::lock_os_thread();
                    let home = tid();
                    for round in 0..30 {
                        let call = || {
                            assert_eq!(tid(), home);
                            std::thread::sleep(Duration::from_micros(300));
                            assert_eq!(tid(), home);
                            if round % 3 == 0 {
                                gosched::yield_now();
                                assert_eq!(tid(), home);
                            }
                        };
                        if round % 5 == 4 {
                            call()
                        } else {
                            blocking(call)
                        }
                        assert_eq!(tid(), home);
                    }
                    gosched::unlock_os_thread();
                };
                let wired: Vec<_> = (0..2).map(|_| s.spawn(wired)).collect();
                wired.into_iter().for_each(|one| one.join().unwrap());
                is_over.store(true, SeqCst);
            });
        });
    }
}

/// The world stops during calls, and no call returns into a stopped world.
#[test]
fn u7_the_world_stops_during_calls() {
    run(2, "resizes", || {
        let (is_over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|s| {
            for nap in [0, 30, 300, 3000] {
                let (is_over, done) = (&is_over, &done);
                s.spawn(move || {
                    while !is_over.load(SeqCst) {
                        blocking(|| std::thread::sleep(Duration::from_micros(nap)));
                        done.fetch_add(1, SeqCst);
                    }
                });
            }
            for round in 0..100 {
                let now = 1 + round % 4;
                gosched::gomaxprocs(now);
                assert_eq!(gosched::gomaxprocs(0), now);
                check().unwrap();
                thread::sleep(Duration::from_micros(200));
            }
            let before = done.load(SeqCst);
            wait_for(&done, before + 20);
            is_over.store(true, SeqCst);
        });
    });
}

/// A std mutex is held across a call and wanted by other calls: every goroutine gets it in the end.
#[test]
fn sy_a_lock_held_across_calls() {
    run(2, "a lock", || {
        let shared = Mutex::new(0);
        thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..100 {
                        let mut held = blocking(|| shared.lock().unwrap());
                        *held += 1;
                        blocking(std::thread::yield_now);
                    }
                });
            }
        });
        assert_eq!(*shared.lock().unwrap(), 800);
    });
}

/// A panic unwinds through calls whose destructors use the runtime.
#[test]
fn sy_destructors_wait_inside_a_call() {
    struct Waits;
    impl Drop for Waits {
        fn drop(&mut self) {
            thread::sleep(Duration::from_micros(50));
            blocking(|| std::thread::sleep(Duration::from_micros(50)));
            gosched::yield_now();
        }
    }
    run(2, "destructors", || {
        let one = || {
            for _ in 0..20 {
                let caught = catch_unwind(AssertUnwindSafe(|| {
                    blocking(|| {
                        let _waits = Waits;
                        resume_unwind(Box::new(1));
                    })
                }));
                let caught: Box<dyn std::any::Any + Send> = caught.unwrap_err();
                assert!(caught.is::<i32>() && !std::thread::panicking());
            }
        };
        let all: Vec<_> = (0..8).map(|_| thread::spawn(one)).collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
}
