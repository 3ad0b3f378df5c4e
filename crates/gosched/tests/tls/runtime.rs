//! What the runtime does to goroutines from outside leaves their thread-locals alone.

use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::common::{child, within};
use crate::tools::{LONG, own, shared, until};
use gosched::{Runtime, debug, thread};

thread_local! {
    static MARK: Cell<usize> = const { Cell::new(1) };
    static WORDS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A goroutine that keeps looking at what is its own, until told to stop.
fn watch(mark: usize, is_over: &AtomicBool) {
    assert_eq!(MARK.replace(mark), 1);
    let id = std::thread::current().id();
    WORDS.with_borrow_mut(|words| words.push(mark.to_string()));
    let place = MARK.with(|cell| std::ptr::from_ref(cell).addr());
    while !is_over.load(SeqCst) {
        match mark % 3 {
            0 => thread::yield_now(),
            1 => thread::sleep(Duration::from_micros(50)),
            _ => thread::park_timeout(Duration::from_micros(50)),
        }
        assert_eq!(MARK.get(), mark);
        assert_eq!(std::thread::current().id(), id);
        assert!(WORDS.with_borrow(|words| *words == [mark.to_string()]));
        assert_eq!(MARK.with(|cell| std::ptr::from_ref(cell).addr()), place);
    }
}

/// Lets goroutines watch themselves while `disturb` runs as the main goroutine.
fn disturbed(runtime: &Runtime, disturb: impl FnOnce() + Send) {
    let is_over = AtomicBool::new(false);
    runtime.run(|| {
        thread::scope(|s| {
            for mark in 2..50 {
                let is_over = &is_over;
                s.spawn(move || watch(mark, is_over));
            }
            MARK.set(0);
            disturb();
            assert_eq!(MARK.get(), 0);
            is_over.store(true, SeqCst);
        });
    });
}

/// A dump makes each goroutine look at its own stack, on the thread of the caller.
#[test]
fn dumps_disturb_nobody() {
    let runtime = own(2);
    let (handle, is_over) = (runtime.handle(), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            MARK.set(77);
            while !is_over.load(SeqCst) {
                let text = handle.dump().unwrap().to_string();
                // The main goroutine may not be there yet, or no longer.
                assert!(text.is_empty() || text.contains("goroutine"), "{text}");
                assert_eq!(MARK.get(), 77);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        disturbed(&runtime, || {
            for _ in 0..20 {
                let text = debug::dump().to_string();
                assert!(text.contains("goroutine 1"), "{text}");
                debug::check().unwrap();
                thread::yield_now();
            }
        });
        is_over.store(true, SeqCst);
    });
}

#[test]
fn changing_gomaxprocs_disturbs_nobody() {
    disturbed(&own(2), || {
        for procs in [1, 4, 2, 8, 3, 1, 2].repeat(10) {
            gosched::gomaxprocs(procs);
            thread::yield_now();
        }
    });
}

/// A goroutine may run another runtime, and that one's main goroutine another.
#[test]
fn runtimes_within_runtimes_disturb_nobody() {
    disturbed(&own(2), || {
        for round in 10..20 {
            let inner = own(2);
            inner.run(|| {
                assert_eq!(MARK.replace(round), 1);
                let innermost = if round % 2 == 0 { own(1) } else { shared(1) };
                let seen =
                    innermost.run(|| thread::spawn(|| thread::current().id()).join().unwrap());
                assert_ne!(seen, thread::current().id());
                assert_eq!(MARK.get(), round);
            });
            assert_eq!(inner.spawn(|| MARK.get()).join().unwrap(), 1);
        }
    });
}

#[test]
fn guards_by_page_protection_change_nothing() {
    let builder = Runtime::builder().procs(2).mprotect_guards(true);
    let runtime = builder.build().unwrap();
    for _ in 0..5 {
        disturbed(&runtime, || (0..200).for_each(|_| thread::yield_now()));
    }
}

/// Locked goroutines, whose threads come and go.
#[test]
fn wired_goroutines_disturb_nobody() {
    within(2 * LONG, "wired goroutines", || {
        disturbed(&own(2), || {
            for _ in 0..20 {
                let wired: Vec<_> = (0..4)
                    .map(|mark| {
                        thread::spawn(move || {
                            gosched::lock_os_thread();
                            MARK.set(mark);
                            (0..10).for_each(|_| thread::yield_now());
                            assert_eq!(MARK.get(), mark);
                            if mark % 2 == 0 {
                                gosched::unlock_os_thread();
                            }
                        })
                    })
                    .collect();
                wired.into_iter().for_each(|one| one.join().unwrap());
            }
        });
    });
}

/// The process ends under goroutines that are at everything: nothing is torn down that they still
/// use.
#[test]
fn the_process_ends_while_goroutines_run() {
    let output = child("runtime::the_process_ends_while_goroutines_run", || {
        let runtime = own(4);
        for mark in 2..100 {
            runtime.go(move || {
                loop {
                    MARK.set(mark);
                    let words: Vec<_> = (0..10).map(|i| i.to_string()).collect();
                    thread::yield_now();
                    assert_eq!((MARK.get(), words.len()), (mark, 10));
                }
            });
        }
        runtime.run(|| {
            let started = std::time::Instant::now();
            until(|| started.elapsed() > Duration::from_millis(50));
        });
        std::mem::forget(runtime);
    });
    output.succeeded();
}
