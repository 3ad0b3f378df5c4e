//! Panics, std's count of them and poisoning, when destructors wait while they unwind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use crate::common::within;
use crate::tools::{LONG, PROCS, own, plan_panic, tid};
use gosched::thread;

/// Panics of one test, all Ps together.
const PANICS: usize = 10_000;
const GOROUTINES: usize = 100;

/// Waits, in one of several ways, while it is dropped.
struct Waits<'a> {
    turn: usize,
    moves: &'a AtomicUsize,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let (before, was_panicking) = (tid(), thread::panicking());
        match self.turn % 4 {
            0 => {
                let own = thread::current();
                gosched::go(move || own.unpark());
                thread::park();
            }
            1 => thread::park_timeout(Duration::from_micros(20)),
            2 => thread::sleep(Duration::from_micros(20)),
            _ => thread::yield_now(),
        }
        self.moves.fetch_add(usize::from(tid() != before), SeqCst);
        assert_eq!(thread::panicking(), was_panicking);
    }
}

/// One panic that unwinds past a lock, a wait, and a lock that is taken and given back meanwhile.
fn one_panic(turn: usize, moves: &AtomicUsize) {
    let (held, inner) = (Mutex::new(0), Mutex::new(0));
    let rw = RwLock::new(0);
    /// Takes and gives back a lock while it unwinds: that poisons nothing.
    struct Locks<'a>(&'a Mutex<i32>);
    impl Drop for Locks<'_> {
        fn drop(&mut self) {
            let mut guard = self.0.lock().unwrap();
            thread::yield_now();
            *guard += 1;
            drop(guard);
            // A panic within, and caught within, is counted apart.
            let within = catch_unwind(|| plan_panic());
            assert!(within.is_err() && thread::panicking());
        }
    }
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _guard = held.lock().unwrap();
        let _write = rw.write().unwrap();
        let _waits_last = Waits { turn, moves };
        let _locks = Locks(&inner);
        let _waits_first = Waits {
            turn: turn + 1,
            moves,
        };
        plan_panic();
    }));
    assert!(caught.is_err());
    assert!(!thread::panicking() && !std::thread::panicking());
    assert!(
        held.is_poisoned() && rw.is_poisoned(),
        "held while it panicked"
    );
    assert!(!inner.is_poisoned(), "taken while it unwound");
    assert_eq!(*inner.lock().unwrap(), 1);
}

/// A goroutine that does not panic poisons nothing, even if others panic meanwhile.
fn no_panic(moves: &AtomicUsize) {
    let lock = Mutex::new(0);
    let guard = lock.lock().unwrap();
    let before = tid();
    thread::yield_now();
    moves.fetch_add(usize::from(tid() != before), SeqCst);
    drop(guard);
    assert!(!lock.is_poisoned());
    assert!(!thread::panicking());
}

#[test]
fn panics_that_wait_while_they_unwind_are_counted_right() {
    for procs in PROCS {
        let moves = AtomicUsize::new(0);
        within(2 * LONG, "panics that wait", || {
            own(procs).run(|| {
                thread::scope(|s| {
                    for number in 0..GOROUTINES {
                        let moves = &moves;
                        s.spawn(move || {
                            for turn in 0..PANICS / PROCS.len() / GOROUTINES {
                                one_panic(number + turn, moves);
                                no_panic(moves);
                            }
                        });
                    }
                });
            });
        });
        let moves = moves.into_inner();
        assert!(moves > 200, "only {moves} migrations");
    }
}

/// The panic leaves the goroutine instead; the next one on that stack begins without any.
#[test]
fn panics_that_end_goroutines_leave_no_trace() {
    let moves = AtomicUsize::new(0);
    own(2).run(|| {
        for round in 0..20 {
            thread::scope(|s| {
                let all: Vec<_> = (0..GOROUTINES)
                    .map(|number| {
                        let moves = &moves;
                        s.spawn(move || {
                            assert!(!thread::panicking());
                            let _waits = Waits {
                                turn: number,
                                moves,
                            };
                            if (number + round) % 2 == 0 {
                                plan_panic();
                            }
                            thread::yield_now();
                            assert!(!thread::panicking());
                        })
                    })
                    .collect();
                for (number, one) in all.into_iter().enumerate() {
                    assert_eq!(one.join().is_err(), (number + round) % 2 == 0);
                }
            });
        }
    });
    assert!(moves.load(SeqCst) > 0);
}

/// A hook may wait too.
#[test]
fn a_panic_hook_may_wait() {
    const NAME: &str = "panics::a_panic_hook_may_wait";
    let output = crate::common::child(NAME, || {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        std::panic::set_hook(Box::new(|_| {
            let id = std::thread::current().id();
            (0..5).for_each(|_| thread::yield_now());
            assert_eq!(std::thread::current().id(), id);
            CALLS.fetch_add(1, SeqCst);
        }));
        own(2).run(|| {
            let all: Vec<_> = (0..500)
                .map(|_| thread::spawn(|| panic!("heard")))
                .collect();
            for one in all {
                let payload = one.join().unwrap_err();
                assert_eq!(payload.downcast_ref(), Some(&"heard"));
            }
        });
        assert_eq!(CALLS.load(SeqCst), 500);
    });
    output.succeeded();
}
