//! The end of a goroutine's thread-locals: each value is dropped once, on the goroutine's own
//! stack, before any join returns, in the way and order of a thread's.

use std::cell::RefCell;
use std::panic::catch_unwind;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread::LocalKey;
use std::time::Duration;

use crate::common::{self, Alive, Planned, eventually};
use crate::tools::{LONG, PROCS, own, plan_panic, tid};
use gosched::thread;

/// Calls closures when its thread-local is destroyed.
#[derive(Default)]
struct Last(RefCell<Vec<Box<dyn FnOnce()>>>);

impl Drop for Last {
    fn drop(&mut self) {
        for call in std::mem::take(self.0.get_mut()) {
            call();
        }
    }
}

thread_local! {
    static FIRST: Last = Last::default();
    static SECOND: Last = Last::default();
    static THIRD: Last = const { Last(RefCell::new(Vec::new())) };
    static FOURTH: Last = Last::default();
    /// What this goroutine has alive.
    static HELD: RefCell<Vec<Alive>> = const { RefCell::new(Vec::new()) };
}

/// When the key's value is destroyed, `call` is called.
fn at_end(key: &'static LocalKey<Last>, call: impl FnOnce() + 'static) {
    key.with(|last| last.0.borrow_mut().push(Box::new(call)));
}

fn hold(count: &Arc<AtomicUsize>) {
    HELD.with_borrow_mut(|held| held.push(Alive::new(count)));
}

fn count() -> Arc<AtomicUsize> {
    Arc::default()
}

#[test]
fn each_value_is_made_once_and_dropped_once() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, SeqCst);
        }
    }
    thread_local! {
        static COUNTED: Counted = {
            MADE.fetch_add(1, SeqCst);
            Counted
        };
    }
    let mut expected = 0;
    for procs in PROCS {
        own(procs).run(|| {
            let body = || {
                for _ in 0..10 {
                    COUNTED.with(|_| ());
                    thread::yield_now();
                }
            };
            let all: Vec<_> = (0..2_000).map(|_| thread::spawn(body)).collect();
            all.into_iter().for_each(|one| one.join().unwrap());
        });
        expected += 2_000;
        assert_eq!(MADE.load(SeqCst), expected);
        assert_eq!(DROPPED.load(SeqCst), expected);
    }
}

#[test]
fn a_value_is_gone_when_join_returns() {
    own(2).run(|| {
        for i in 0..2_000 {
            let alive = count();
            let here = Arc::clone(&alive);
            let handle = thread::spawn(move || {
                hold(&here);
                if i % 8 == 0 {
                    // Even if its destructor takes its time.
                    at_end(&FIRST, move || {
                        let _last = Alive::new(&here);
                        thread::sleep(Duration::from_micros(200));
                    });
                }
            });
            handle.join().unwrap();
            assert_eq!(alive.load(SeqCst), 0, "goroutine {i}");
        }
    });
}

/// Joins of every kind; and when nobody joins, it is gone soon after.
#[test]
fn a_value_is_gone_however_the_goroutine_is_waited_for() {
    let alive = count();
    let held = || hold(&alive);
    let none = || assert_eq!(alive.load(SeqCst), 0);
    let runtime = own(2);
    runtime.run(held);
    none();
    runtime.run(|| {
        let outer = thread::scope(|s| {
            s.spawn(held).join().unwrap();
            none();
            hold(&alive);
            s.spawn(held);
            alive.load(SeqCst)
        });
        assert!(outer >= 1);
    });
    assert!(eventually(|| alive.load(SeqCst) == 0));
    let builder = gosched::Runtime::builder().procs(2);
    builder.build().unwrap().run(held);
    none();
    gosched::run(held);
    none();
    // From a plain thread.
    let here = Arc::clone(&alive);
    runtime.spawn(move || hold(&here)).join().unwrap();
    none();
    // Nobody waits.
    let here = Arc::clone(&alive);
    runtime.go(move || hold(&here));
    let here = Arc::clone(&alive);
    runtime.run(|| gosched::go(move || hold(&here)));
    assert!(eventually(|| {
        runtime.metrics().goroutines == 0 && alive.load(SeqCst) == 0
    }));
}

#[test]
fn destructors_run_in_the_goroutine_on_its_own_stack() {
    #[derive(PartialEq, Debug)]
    struct Where {
        goroutine: thread::ThreadId,
        std: std::thread::ThreadId,
    }
    fn here() -> (Where, usize) {
        let place = 0u8;
        let at = std::ptr::from_ref(std::hint::black_box(&place)).addr();
        let goroutine = thread::current().id();
        let std = std::thread::current().id();
        (Where { goroutine, std }, at)
    }
    own(2).run(|| {
        for _ in 0..300 {
            let seen = Arc::new(Mutex::new(None));
            let there = Arc::clone(&seen);
            let size = 256 << 10;
            let body = move || {
                // The first use of std's handle comes first, so it goes last.
                let (own, at) = here();
                at_end(&FIRST, move || *there.lock().unwrap() = Some(here()));
                (own, at)
            };
            let builder = thread::Builder::new().stack_size(size);
            let (own, at) = builder.spawn(body).unwrap().join().unwrap();
            let (last, last_at) = seen.lock().unwrap().take().unwrap();
            assert_eq!(own, last);
            assert!(at.abs_diff(last_at) < size, "{at:#x} and {last_at:#x}");
        }
    });
}

/// What a thread does at its end, in lines; `say` is told.
fn eventful_life(say: Arc<Mutex<Vec<String>>>) {
    let tell = move |text: &str| say.lock().unwrap().push(text.to_owned());
    let told = |text: &'static str| {
        let tell = tell.clone();
        move || tell(text)
    };
    struct Dropped<F: Fn()>(F);
    impl<F: Fn()> Drop for Dropped<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let _captured = Dropped(told("the closure's value"));
    at_end(&THIRD, told("third"));
    let (tell_first, tell_second) = (tell.clone(), tell.clone());
    let late = told("fourth, made by a destructor");
    at_end(&FIRST, move || {
        tell_first(&format!(
            "first; itself: {}",
            FIRST.try_with(|_| ()).is_ok()
        ));
        at_end(&FOURTH, late);
    });
    let later = told("second's second call");
    at_end(&SECOND, move || {
        let others = [FIRST.try_with(|_| ()), THIRD.try_with(|_| ())];
        tell_second(&format!("second; first and third: {others:?}"));
        let name = std::thread::current().id() == std::thread::current().id();
        tell_second(&format!("std's handle: {name}"));
    });
    at_end(&SECOND, later);
    tell("the body");
}

#[test]
fn destructors_run_in_the_order_of_a_thread() {
    let log = || Arc::new(Mutex::new(Vec::new()));
    let (of_thread, of_goroutine) = (log(), log());
    let there = Arc::clone(&of_thread);
    std::thread::spawn(|| eventful_life(there)).join().unwrap();
    own(2).run(|| {
        let there = Arc::clone(&of_goroutine);
        thread::spawn(|| eventful_life(there)).join().unwrap();
    });
    let of_thread = of_thread.lock().unwrap();
    assert_eq!(of_thread.len(), 8, "{of_thread:#?}");
    assert_eq!(*of_goroutine.lock().unwrap(), *of_thread);
}

/// Each makes the next, each is dropped.
#[test]
fn destructors_may_make_further_values() {
    own(2).run(|| {
        for _ in 0..500 {
            let alive = count();
            let here = Arc::clone(&alive);
            let body = move || {
                let one = Alive::new(&here);
                at_end(&FIRST, move || {
                    let two = Alive::new(&here);
                    drop(one);
                    at_end(&SECOND, move || {
                        let three = Alive::new(&here);
                        drop(two);
                        at_end(&THIRD, move || {
                            drop(three);
                            hold(&here);
                        });
                    });
                });
            };
            thread::spawn(body).join().unwrap();
            assert_eq!(alive.load(SeqCst), 0);
        }
    });
}

/// They run in a goroutine like any other code: waiting, moving and starting others.
#[test]
fn destructors_may_wait() {
    let (moves, ended) = (AtomicUsize::new(0), count());
    for procs in PROCS {
        own(procs).run(|| {
            for round in 0.. {
                let all: Vec<_> = (0..64).map(|_| waits_at_its_end(&ended)).collect();
                for one in all {
                    moves.fetch_add(one.join().unwrap().load(SeqCst), SeqCst);
                }
                if moves.load(SeqCst) > 200 {
                    break;
                }
                assert!(round < 1_000, "destructors do not migrate");
            }
        });
    }
    assert_eq!(ended.load(SeqCst), 0);
}

/// A goroutine whose destructor yields, parks, sleeps and joins; returns how often that one changed
/// its thread.
fn waits_at_its_end(alive: &Arc<AtomicUsize>) -> thread::JoinHandle<Arc<AtomicUsize>> {
    let one = Alive::new(alive);
    thread::spawn(move || {
        let moves = count();
        let there = Arc::clone(&moves);
        at_end(&FIRST, move || {
            let _one = one;
            for turn in 0..20 {
                let before = tid();
                match turn % 5 {
                    0 => {
                        let own = thread::current();
                        gosched::go(move || own.unpark());
                        thread::park();
                    }
                    1 => thread::sleep(Duration::from_micros(50)),
                    2 => assert_eq!(thread::spawn(|| 7).join().unwrap(), 7),
                    _ => thread::yield_now(),
                }
                there.fetch_add(usize::from(tid() != before), SeqCst);
            }
        });
        moves
    })
}

#[test]
fn a_goroutine_that_panics_drops_its_values() {
    own(2).run(|| {
        let alive = count();
        for _ in 0..1_000 {
            let here = Arc::clone(&alive);
            let handle = thread::spawn(move || {
                hold(&here);
                at_end(&FIRST, || assert!(!std::thread::panicking()));
                plan_panic();
            });
            assert!(handle.join().unwrap_err().is::<Planned>());
            assert_eq!(alive.load(SeqCst), 0);
        }
    });
}

#[test]
fn a_goroutine_that_exits_drops_its_values() {
    own(2).run(|| {
        let alive = count();
        for _ in 0..1_000 {
            let here = Arc::clone(&alive);
            let handle = thread::spawn(move || {
                hold(&here);
                gosched::goexit();
            });
            assert!(handle.join().unwrap_err().is::<thread::Exited>());
            assert_eq!(alive.load(SeqCst), 0);
        }
    });
}

#[test]
fn shutdown_drops_the_values_of_all() {
    let alive = count();
    let runtime = own(2);
    let handles: Vec<_> = (0..500)
        .map(|i| {
            let here = Arc::clone(&alive);
            runtime.spawn(move || {
                hold(&here);
                if i % 2 == 0 {
                    thread::park();
                }
                thread::sleep(LONG);
            })
        })
        .collect();
    assert!(eventually(|| alive.load(SeqCst) == 500));
    runtime.shutdown(LONG);
    assert_eq!(alive.load(SeqCst), 0);
    for handle in handles {
        assert!(handle.join().unwrap_err().is::<thread::Exited>());
    }
}

/// Those that a dropped runtime gives up never end: their values stay, as their stacks do.
#[test]
fn the_values_of_the_given_up_stay() {
    let alive = count();
    let runtime = own(2);
    for _ in 0..50 {
        let here = Arc::clone(&alive);
        runtime.go(move || {
            hold(&here);
            thread::park();
        });
    }
    assert!(eventually(|| alive.load(SeqCst) == 50));
    drop(runtime);
    assert_eq!(alive.load(SeqCst), 50);
    // And later goroutines do not find them.
    own(2).run(|| {
        let all = (0..100).map(|_| thread::spawn(|| HELD.with_borrow(Vec::len)));
        let all: Vec<_> = all.collect();
        all.into_iter()
            .for_each(|one| assert_eq!(one.join().unwrap(), 0));
    });
}

/// A wired goroutine ends its thread as well; both have their ends, once each.
#[test]
fn a_wired_goroutine_drops_its_values_and_ends_its_thread() {
    own(2).run(|| {
        let alive = count();
        for _ in 0..50 {
            let here = Arc::clone(&alive);
            let handle = thread::spawn(move || {
                hold(&here);
                gosched::lock_os_thread();
                let at = tid();
                at_end(&FIRST, move || {
                    thread::yield_now();
                    assert_eq!(tid(), at, "still wired");
                });
                thread::yield_now();
            });
            handle.join().unwrap();
            assert_eq!(alive.load(SeqCst), 0);
        }
    });
}

#[test]
fn a_panic_caught_inside_a_destructor_is_no_matter() {
    own(2).run(|| {
        for _ in 0..300 {
            let caught = Arc::new(AtomicBool::new(false));
            let there = Arc::clone(&caught);
            let body = move || {
                at_end(&FIRST, move || {
                    let result = catch_unwind(|| plan_panic());
                    there.store(result.is_err(), SeqCst);
                });
            };
            thread::spawn(body).join().unwrap();
            assert!(caught.load(SeqCst));
        }
    });
}

/// std ends the process, and says why; so does the end of a goroutine.
#[test]
fn a_panic_out_of_a_destructor_ends_the_process_as_in_std() {
    const NAME: &str = "destructors::a_panic_out_of_a_destructor_ends_the_process_as_in_std";
    let life = || at_end(&FIRST, || panic!("no good end"));
    let end_of = |variant| {
        common::child_of(NAME, variant, |variant| match variant {
            "thread" => std::thread::spawn(life).join().unwrap(),
            "joined" => own(2).run(|| thread::spawn(life).join().unwrap()),
            "main" => own(2).run(life),
            _ => own(2).run(|| {
                gosched::go(life);
                thread::sleep(LONG);
            }),
        })
    };
    let of_thread = end_of("thread");
    assert!(
        of_thread.status.code().is_none(),
        "std aborts: {of_thread:#?}"
    );
    for variant in ["joined", "main", "alone"] {
        let output = end_of(variant);
        assert_eq!(output.status, of_thread.status, "{output:#?}");
        output.says(&["no good end", "thread local panicked on drop"]);
    }
    of_thread.says(&["no good end", "thread local panicked on drop"]);
}
