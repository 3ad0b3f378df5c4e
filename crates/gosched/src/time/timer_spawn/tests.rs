//! A goroutine that a timer starts: it starts once and never early, or never. Its closure runs or
//! is dropped, once.

use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::runtime::Runtime;
use crate::tests::{NEVER, runtime};
use crate::time::timer_spawn::*;
use crate::{debug, sys, thread};

const LONG: Duration = Duration::from_secs(3600);

fn after(delay: Duration, f: impl FnOnce() + Send + 'static) -> Dormant {
    start("time::after_func", sys::deadline_after(delay), f).unwrap()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < NEVER, "never happened: {what}");
        if current_m().is_some() {
            thread::sleep(Duration::from_millis(1));
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Counts how often it is dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn d9_it_runs_in_its_own_goroutine_and_not_early() {
    runtime(2).run(|| {
        let me = crate::sched::model::current::current_g().unwrap().id();
        let (began, ran) = (Instant::now(), Arc::new(Mutex::new(None)));
        let out = Arc::clone(&ran);
        let timer = after(Duration::from_millis(5), move || {
            let g = crate::sched::model::current::current_g().unwrap();
            assert!(g.id() != me && g.parent.load(Relaxed) == me);
            *out.lock().unwrap() = Some(Instant::now());
        });
        wait_until("the call", || ran.lock().unwrap().is_some());
        let ran = ran.lock().unwrap().unwrap();
        assert!(ran - began >= Duration::from_millis(5));
        assert!(!timer.cancel() && !timer.postpone(0), "it has run");
    });
}

/// Until the timer fires, the goroutine is not counted and not dumped, and `check` finds no fault.
/// A stack is reserved and none taken.
#[test]
fn g0_d3_until_then_it_does_not_live() {
    runtime(2).run(|| {
        let g = crate::sched::model::current::current_g().unwrap();
        let sched = g.sched();
        let timers: Vec<_> = (0..100).map(|_| after(LONG, || ())).collect();
        assert_eq!(crate::num_goroutines(), 1);
        assert_eq!(debug::metrics().timers, 100);
        assert_eq!(debug::dump().goroutines().len(), 1);
        debug::check().unwrap();
        assert!(sched.arena.stats().reserved >= 101);
        assert!(timers.iter().all(Dormant::cancel));
        assert!(!timers.iter().any(Dormant::cancel));
        assert_eq!(debug::metrics().timers, 0);
        debug::check().unwrap();
    });
}

#[test]
fn d9_a_cancelled_closure_is_dropped_by_who_cancels() {
    runtime(1).run(|| {
        let drops = Arc::new(AtomicUsize::new(0));
        // A small closure is stored in the G, a large one in a box.
        let (small, large) = (Dropped(Arc::clone(&drops)), Dropped(Arc::clone(&drops)));
        let ballast = [1u64; 20];
        let first = after(LONG, move || drop(small));
        let second = after(LONG, move || {
            assert_eq!(ballast.len(), 20);
            drop(large);
        });
        assert!(first.cancel());
        assert_eq!(drops.load(SeqCst), 1);
        assert!(second.cancel());
        assert_eq!(drops.load(SeqCst), 2);
    });
}

/// `check` finds no fault while a closure is being dropped: the G is back before.
#[test]
fn gf_d3_the_books_are_in_order_while_a_closure_is_dropped() {
    struct Looks(Arc<AtomicUsize>);
    impl Drop for Looks {
        fn drop(&mut self) {
            debug::check().unwrap();
            self.0.fetch_add(1, SeqCst);
        }
    }
    runtime(2).run(|| {
        let looked = Arc::new(AtomicUsize::new(0));
        for ballast in [0, 1] {
            let (looks, large) = (Looks(Arc::clone(&looked)), [0u64; 20]);
            let timer = match ballast {
                0 => after(LONG, move || drop(looks)),
                _ => after(LONG, move || {
                    std::hint::black_box(large);
                    drop(looks);
                }),
            };
            assert!(timer.cancel());
        }
        assert_eq!(looked.load(SeqCst), 2);
        debug::check().unwrap();
    });
}

/// A panic of the destructor reaches the caller of `cancel`, and the G is not lost.
#[test]
fn d9_a_panic_in_a_cancelled_closure_is_the_cancellers() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("planned"));
        }
    }
    runtime(1).run(|| {
        let bomb = Bomb;
        let timer = after(LONG, move || std::mem::forget(bomb));
        let caught = catch_unwind(AssertUnwindSafe(|| timer.cancel()));
        assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "planned");
        assert!(!timer.cancel());
        debug::check().unwrap();
    });
}

/// D2: closures that never ran are dropped with the runtime, once. A handle that is left finds no
/// runtime.
#[test]
fn d2_a_drop_of_the_runtime_drops_the_closures() {
    let (drops, ran) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let runtime = runtime(3);
    let (counted, flag) = (Arc::clone(&drops), Arc::clone(&ran));
    let timers: Vec<_> = runtime.run(move || {
        let never = sys::deadline_after(Duration::MAX);
        let make = |i: usize| {
            let (dropped, flag) = (Dropped(Arc::clone(&counted)), Arc::clone(&flag));
            let when = if i.is_multiple_of(2) {
                never
            } else {
                sys::deadline_after(LONG)
            };
            let f = move || {
                flag.store(true, SeqCst);
                drop(dropped);
            };
            start("time::after_func", when, f).unwrap()
        };
        (0..100).map(make).collect()
    });
    drop(runtime);
    assert_eq!(drops.load(SeqCst), 100);
    assert!(!timers.iter().any(|t| t.cancel() || t.postpone(0)));
    assert!(timers[0].start_another(0, || ()).is_err());
    assert!(!ran.load(SeqCst));
}

/// U6: a goroutine that waits for one that a timer will start is not deadlocked.
#[test]
fn u6_a_pending_timer_is_hope() {
    let builder = Runtime::builder().deadlock(crate::Deadlock::Closed);
    let runtime = builder.procs(2).build().unwrap();
    runtime.run(|| {
        let main = thread::current();
        after(Duration::from_millis(300), move || main.unpark());
        thread::park();
    });
}

/// A shutdown does not wait for timers that are far away, and drops them.
#[test]
fn d2_a_shutdown_does_not_wait_for_timers() {
    let drops = Arc::new(AtomicUsize::new(0));
    let runtime = runtime(2);
    let dropped = Dropped(Arc::clone(&drops));
    let timer = runtime.run(move || after(LONG, move || drop(dropped)));
    let began = Instant::now();
    runtime.shutdown(LONG);
    assert!(began.elapsed() < NEVER);
    assert_eq!(drops.load(SeqCst), 1);
    assert!(!timer.cancel());
}

/// Cancelling and dropping the runtime at the same time: one of them drops each closure.
#[test]
fn d2_cancel_against_drop() {
    for round in 0..50 {
        let drops = Arc::new(AtomicUsize::new(0));
        let runtime = runtime(2);
        let counted = Arc::clone(&drops);
        let timers: Vec<_> = runtime.run(move || {
            let make = |_| {
                let dropped = Dropped(Arc::clone(&counted));
                after(LONG, move || drop(dropped))
            };
            (0..200).map(make).collect()
        });
        let cancelled = std::thread::scope(|s| {
            let canceller = s.spawn(|| timers.iter().filter(|t| t.cancel()).count());
            if round % 2 == 0 {
                std::thread::yield_now();
            }
            drop(runtime);
            canceller.join().unwrap()
        });
        assert!(cancelled <= 200);
        assert_eq!(
            drops.load(SeqCst),
            200,
            "round {round}, {cancelled} cancelled"
        );
    }
}

/// Handles work from plain threads, also on a runtime that sleeps.
#[test]
fn d1_a_plain_thread_cancels_postpones_and_starts() {
    let runtime = runtime(2);
    let first = runtime.run(|| after(LONG, || ()));
    std::thread::sleep(Duration::from_millis(30)); // all threads sleep by now
    let (ran, began) = (Arc::new(AtomicU32::new(0)), Instant::now());
    let count = Arc::clone(&ran);
    let f = move || {
        count.fetch_add(1, SeqCst);
    };
    let soon = || sys::deadline_after(Duration::from_millis(20));
    let second = first.start_another(soon(), f.clone()).unwrap();
    wait_until("the second", || ran.load(SeqCst) == 1);
    assert!(began.elapsed() >= Duration::from_millis(20));
    assert!(!second.cancel());
    let third = first.start_another(sys::deadline_after(LONG), f).unwrap();
    assert!(third.postpone(soon()));
    wait_until("the third", || ran.load(SeqCst) == 2);
    assert!(first.cancel() && !first.cancel());
    runtime.check().unwrap();
}

#[test]
fn d1_outside_a_runtime_it_panics_and_says_so() {
    let caught = catch_unwind(|| start("time::after_func", 0, || ()).is_ok());
    let text = caught.unwrap_err();
    let text = text.downcast_ref::<String>().unwrap();
    assert!(text.contains("time::after_func") && text.contains("outside a goroutine"));
}

/// A handle that is older than its G's present life does not touch that life.
#[test]
fn g4_an_old_handle_does_not_cancel_a_new_goroutine() {
    runtime(1).run(|| {
        let began = Instant::now();
        loop {
            let old = after(LONG, || ());
            assert!(old.cancel());
            // The G that was returned last is taken first, unless another M took the P in between.
            let new = after(LONG, || ());
            let is_same = old.g == new.g;
            assert!(!old.cancel() && !old.postpone(0));
            assert!(new.cancel());
            if is_same {
                break;
            }
            assert!(began.elapsed() < NEVER);
        }
    });
}

/// A hundred thousand timers, some cancelled, some postponed, at random. Each one that was not
/// cancelled runs once, at its deadline or later.
#[test]
fn d10_a_hundred_thousand_none_lost_none_early() {
    const N: usize = 100_000;
    struct Record {
        runs: AtomicU32,
        early: AtomicU32,
        due_ns: std::sync::atomic::AtomicU64,
    }
    runtime(2).run(|| {
        let mut rng = StdRng::seed_from_u64(7);
        let records: Arc<Vec<Record>> = Arc::new(
            std::iter::repeat_with(|| Record {
                runs: AtomicU32::new(0),
                early: AtomicU32::new(0),
                due_ns: 0.into(),
            })
            .take(N)
            .collect(),
        );
        let begin = sys::monotonic_ns();
        let at = |rng: &mut StdRng| begin + rng.random_range(0..1_500_000_000);
        let timers: Vec<_> = (0..N)
            .map(|i| {
                let (when, shared) = (at(&mut rng), Arc::clone(&records));
                records[i].due_ns.store(when, SeqCst);
                let f = move || {
                    let early = sys::monotonic_ns() < shared[i].due_ns.load(SeqCst);
                    shared[i].early.fetch_add(u32::from(early), SeqCst);
                    shared[i].runs.fetch_add(1, SeqCst);
                };
                start("time::after_func", when, f).unwrap()
            })
            .collect();
        let mut expected = vec![1; N];
        for _ in 0..N {
            let i = rng.random_range(0..N);
            if rng.random_bool(0.5) {
                expected[i] -= u32::from(timers[i].cancel());
                continue;
            }
            // The new deadline is later or earlier. While it may be either, the earlier of the two
            // counts.
            let (old, new) = (records[i].due_ns.load(SeqCst), at(&mut rng));
            records[i].due_ns.store(old.min(new), SeqCst);
            if timers[i].postpone(new) && new > old {
                records[i].due_ns.store(new, SeqCst);
            }
        }
        let pending = || debug::metrics().timers;
        wait_until("every timer", || {
            pending() == 0 && crate::num_goroutines() == 1
        });
        for (i, record) in records.iter().enumerate() {
            assert_eq!(record.early.load(SeqCst), 0, "{i} was early");
            assert_eq!(record.runs.load(SeqCst), expected[i], "{i}");
        }
        debug::check().unwrap();
    });
}

/// Timers expire while other threads cancel them and the number of Ps changes: each has exactly one
/// end.
#[test]
fn d10_expiry_against_cancel() {
    let runtime = runtime(2);
    let (ran, drops) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut cancelled = 0;
    const ROUNDS: usize = 30;
    const EACH: usize = 300;
    for _ in 0..ROUNDS {
        let (ran, drops) = (Arc::clone(&ran), Arc::clone(&drops));
        let timers: Vec<_> = runtime.run(move || {
            let make = |i| {
                let (ran, dropped) = (Arc::clone(&ran), Dropped(Arc::clone(&drops)));
                after(Duration::from_micros(i), move || {
                    ran.fetch_add(1, SeqCst);
                    drop(dropped);
                })
            };
            (0..EACH as u64).map(make).collect()
        });
        cancelled += timers.iter().filter(|t| t.cancel()).count();
        runtime.run(|| crate::gomaxprocs(1 + crate::gomaxprocs(0) % 3));
    }
    wait_until("every end", || drops.load(SeqCst) == ROUNDS * EACH);
    assert_eq!(ran.load(SeqCst) + cancelled, ROUNDS * EACH);
    runtime.check().unwrap();
}
