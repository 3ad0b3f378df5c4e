//! A goroutine begins with the initial values of all thread-locals, wherever and after whomever it
//! runs.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crate::common::deep;
use crate::tools::{own, shared, swarm, tid};
use gosched::thread;

/// Something that wants a cache line of its own.
#[repr(align(64))]
struct Line([Cell<u8>; 64]);

/// More than a page of initial values.
const MANY: usize = 600;

static LAZY_MADE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static ZERO: Cell<u64> = const { Cell::new(0) };
    static VALUE: Cell<u64> = const { Cell::new(0x5EED_0F60) };
    static TEXT: Cell<&'static str> = const { Cell::new("as it was") };
    static TABLE: [Cell<u64>; MANY] = const { [const { Cell::new(7) }; MANY] };
    static LINE: Line = const { Line([const { Cell::new(3) }; 64]) };
    static LAZY: Cell<usize> = Cell::new(LAZY_MADE.fetch_add(1, SeqCst) + 1);
    static HEAP: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Panics unless everything has its initial value.
#[track_caller]
fn assert_initial() {
    assert_eq!(ZERO.get(), 0);
    assert_eq!(VALUE.get(), 0x5EED_0F60);
    assert_eq!(TEXT.get(), "as it was");
    TABLE.with(|table| assert!(table.iter().all(|cell| cell.get() == 7)));
    LINE.with(|line| assert!(line.0.iter().all(|cell| cell.get() == 3)));
    assert!(HEAP.with_borrow(Vec::is_empty));
}

fn change(mark: u64) {
    ZERO.set(mark);
    VALUE.set(mark);
    TEXT.set("changed");
    TABLE.with(|table| table.iter().for_each(|cell| cell.set(mark)));
    LINE.with(|line| line.0.iter().for_each(|cell| cell.set(mark as u8)));
    HEAP.with_borrow_mut(|heap| heap.push(mark));
}

fn is_changed(mark: u64) -> bool {
    let is_mark = |cell: &Cell<u64>| cell.get() == mark;
    ZERO.with(is_mark)
        && VALUE.with(is_mark)
        && TEXT.get() == "changed"
        && TABLE.with(|table| table.iter().all(is_mark))
        && LINE.with(|line| line.0.iter().all(|cell| cell.get() == mark as u8))
        && HEAP.with_borrow(|heap| *heap == [mark])
}

#[test]
fn every_goroutine_has_its_own_copy_from_the_initial_one() {
    swarm(|trip| {
        assert_initial();
        let mark = trip.number as u64;
        change(mark);
        for _ in trip.turns() {
            trip.step();
            trip.expect(is_changed(mark));
        }
    });
}

/// Goroutines one after the other run on the stack that the last one left.
#[test]
fn a_goroutine_finds_nothing_of_the_one_before() {
    for procs in [1, 2] {
        own(procs).run(|| {
            for mark in 0..3_000 {
                let body = move || {
                    assert_initial();
                    // What was touched differs, and with it what has to be put back.
                    match mark % 4 {
                        0 => change(mark + 1),
                        1 => TABLE.with(|table| table[MANY - 1].set(1)),
                        2 => VALUE.set(1),
                        _ => {}
                    }
                    thread::yield_now();
                };
                thread::spawn(body).join().unwrap();
            }
        });
    }
}

/// Other sizes of stacks are recycled on other ways.
#[test]
fn stacks_of_every_size_begin_afresh() {
    own(2).run(|| {
        for mark in 0..200 {
            for size in [64 << 10, 256 << 10, 2 << 20, 32 << 20] {
                let builder = thread::Builder::new().stack_size(size);
                let body = move || {
                    assert_initial();
                    change(mark);
                    thread::yield_now();
                    assert!(is_changed(mark));
                };
                builder.spawn(body).unwrap().join().unwrap();
            }
        }
    });
}

/// The block of thread-locals is not taken off what was asked for.
#[test]
fn a_stack_is_as_large_as_was_asked_for() {
    own(2).run(|| {
        for kib in [16, 64, 256] {
            // What a debug build adds to each frame stays below half of it.
            let builder = thread::Builder::new().stack_size(kib * 2048);
            let body = move || {
                change(1);
                deep(kib - 8)
            };
            assert_eq!(builder.spawn(body).unwrap().join().unwrap(), kib - 8);
        }
    });
}

#[test]
fn a_lazy_value_is_made_at_the_first_use_in_each_goroutine() {
    let before = LAZY_MADE.load(SeqCst);
    let seen = Mutex::new(HashSet::new());
    own(4).run(|| {
        thread::scope(|s| {
            for _ in 0..500 {
                s.spawn(|| {
                    let own = LAZY.get();
                    assert!(seen.lock().unwrap().insert(own));
                    for _ in 0..20 {
                        thread::yield_now();
                        assert_eq!(LAZY.get(), own);
                    }
                });
            }
        });
    });
    assert_eq!(LAZY_MADE.load(SeqCst) - before, 500);
}

#[test]
fn alignment_is_kept_in_every_goroutine() {
    own(2).run(|| {
        let bodies = (0..300).map(|_| {
            thread::spawn(|| {
                for _ in 0..10 {
                    let at = LINE.with(|line| std::ptr::from_ref(line).addr());
                    assert_eq!(at % 64, 0);
                    let at = TABLE.with(|table| std::ptr::from_ref(table).addr());
                    assert_eq!(at % align_of::<u64>(), 0);
                    thread::yield_now();
                }
            })
        });
        bodies
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|body| body.join().unwrap());
    });
}

/// The thread that calls `run` keeps its own, the main goroutine has its own, again and again.
#[test]
fn the_main_goroutine_has_its_own_copy_too() {
    change(5);
    let runtime = own(2);
    for mark in 10..60 {
        runtime.run(|| {
            assert_initial();
            change(mark);
            thread::yield_now();
            assert!(is_changed(mark));
        });
        assert!(is_changed(5));
    }
    gosched::run(assert_initial);
    assert!(is_changed(5));
    change_back();
}

/// The test's thread may be used again.
fn change_back() {
    HEAP.take();
    assert!(HEAP.with_borrow(Vec::is_empty));
}

/// Both kinds of runtime in one process do not disturb each other.
#[test]
fn own_and_shared_thread_locals_live_side_by_side() {
    let (own, shared) = (own(2), shared(2));
    std::thread::scope(|s| {
        s.spawn(|| {
            own.run(|| {
                thread::scope(|s| {
                    for mark in 1..=200 {
                        s.spawn(move || {
                            assert_initial();
                            change(mark);
                            (0..50).for_each(|_| thread::yield_now());
                            assert!(is_changed(mark));
                        });
                    }
                });
            });
        });
        s.spawn(|| {
            shared.run(|| {
                thread::scope(|s| {
                    for _ in 0..200 {
                        s.spawn(|| {
                            for _ in 0..50 {
                                // Sees its thread's: the same value on the same thread.
                                let (at, id) = (tid(), std::thread::current().id());
                                assert_eq!((tid(), std::thread::current().id()), (at, id));
                                thread::yield_now();
                            }
                        });
                    }
                });
            });
        });
    });
    // Goroutines of the one start goroutines of the other.
    let (to_shared, to_own) = (shared.handle(), own.handle());
    own.run(|| {
        change(1);
        to_shared.spawn(|| VALUE.set(2)).join().unwrap();
        assert!(is_changed(1));
    });
    shared.run(|| to_own.spawn(assert_initial).join().unwrap());
}
