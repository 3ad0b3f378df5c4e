//! What std's documentation promises of threads.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::until;

/// A list of all cases, and two tests of each.
macro_rules! cases {
    ($(fn $name:ident() $body:block)*) => {
        pub const ALL: &[(&str, fn())] = &[$((stringify!($name), bodies::$name)),*];

        mod bodies {
            use super::*;
            $(pub fn $name() $body)*
        }

        mod on_goroutines {
            $(#[test] fn $name() { gosched::run(super::bodies::$name); })*
        }

        mod on_threads {
            $(#[test] fn $name() { super::bodies::$name(); })*
        }
    };
}

/// A text on its way through a panic.
fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().expect("a text").to_string(),
    }
}

/// Needs about 100 bytes of stack for each level.
fn depth(levels: usize) -> usize {
    let room = std::hint::black_box([levels as u8; 64]);
    match levels {
        0 => 0,
        _ => 1 + depth(levels - 1) + usize::from(std::hint::black_box(room)[0] == 1 && levels == 0),
    }
}

/// Notes in a list that it was dropped, with the name of the thread.
struct Noted(Arc<Mutex<Vec<String>>>);

impl Drop for Noted {
    fn drop(&mut self) {
        let name = thread::current().name().unwrap_or("none").to_owned();
        self.0.lock().unwrap().push(name);
    }
}

thread_local! {
    static NOTED: RefCell<Option<Noted>> = const { RefCell::new(None) };
    static NUMBER: Cell<u32> = const { Cell::new(7) };
}

cases! {
    fn a_thread_has_the_name_it_was_given() {
        let thread = thread::Builder::new().name("ada".into());
        let thread = thread.spawn(|| thread::current().name().map(String::from)).unwrap();
        assert_eq!(thread.thread().name(), Some("ada"));
        assert_eq!(thread.join().unwrap().as_deref(), Some("ada"));
    }

    fn a_name_may_be_longer_than_the_kernels() {
        let name = "a name of far more than fifteen bytes";
        let thread = thread::Builder::new().name(name.into());
        let thread = thread.spawn(|| thread::current().name().map(String::from)).unwrap();
        assert_eq!(thread.join().unwrap().as_deref(), Some(name));
    }

    fn a_name_with_a_zero_panics() {
        let made = catch_unwind(|| thread::Builder::new().name("a\0b".into()).spawn(|| ()));
        assert!(made.is_err());
    }

    fn a_thread_without_a_name_has_none() {
        let thread = thread::spawn(|| thread::current().name().is_none());
        assert!(thread.join().unwrap());
    }

    fn ids_differ_and_stay() {
        let here = thread::current().id();
        let ids: Vec<_> = (0..50).map(|_| thread::spawn(|| {
            let id = thread::current().id();
            for _ in 0..10 {
                thread::yield_now();
                assert_eq!(thread::current().id(), id);
            }
            id
        })).map(|thread| {
            let id = thread.thread().id();
            assert_eq!(thread.join().unwrap(), id);
            id
        }).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 50);
        assert!(!ids.contains(&here));
        assert_eq!(thread::current().id(), here);
    }

    fn join_returns_the_value() {
        let words = ["a".to_string(), "b".to_string()];
        let thread = thread::spawn(move || words.concat());
        assert_eq!(thread.join().unwrap(), "ab");
    }

    fn join_returns_a_panics_payload() {
        let thread = thread::spawn(|| -> u32 { panic!("number {}", 42) });
        assert_eq!(message(thread.join().unwrap_err()), "number 42");
        let thread = thread::spawn(|| std::panic::panic_any(5_u16));
        assert_eq!(*thread.join().unwrap_err().downcast::<u16>().unwrap(), 5);
    }

    fn a_panic_is_that_threads_alone() {
        let thread = thread::spawn(|| {
            struct Look;
            impl Drop for Look {
                fn drop(&mut self) {
                    assert!(thread::panicking());
                }
            }
            let _look = Look;
            panic!("on purpose");
        });
        assert!(!thread::panicking());
        assert!(thread.join().is_err());
        assert!(!thread::panicking());
    }

    fn a_dropped_handle_detaches() {
        let (sender, receiver) = channel();
        drop(thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            sender.send(1).unwrap();
        }));
        assert_eq!(receiver.recv(), Ok(1));
    }

    fn a_detached_thread_outlives_its_maker() {
        let (sender, receiver) = channel();
        let maker = thread::spawn(move || {
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                sender.send(2).unwrap();
            });
        });
        maker.join().unwrap();
        assert_eq!(receiver.recv(), Ok(2));
    }

    fn threads_start_threads() {
        fn tree(height: u32) -> u32 {
            if height == 0 {
                return 1;
            }
            let branches: Vec<_> = (0..3).map(|_| thread::spawn(move || tree(height - 1))).collect();
            branches.into_iter().map(|branch| branch.join().unwrap()).sum()
        }
        assert_eq!(tree(4), 81);
    }

    fn is_finished_becomes_true() {
        let (sender, receiver) = channel::<()>();
        let thread = thread::spawn(move || _ = receiver.recv());
        assert!(!thread.is_finished());
        drop(sender);
        until(|| thread.is_finished());
        thread.join().unwrap();
    }

    fn an_unpark_before_the_park_counts_once() {
        thread::current().unpark();
        thread::current().unpark();
        thread::park();
        // No token is left. The wait may end early, as std says, but not each time.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(10) {
            thread::park_timeout(Duration::from_millis(10));
        }
    }

    fn park_and_unpark_play_ping_pong() {
        let turn = Arc::new(AtomicUsize::new(0));
        let (main, its) = (thread::current(), turn.clone());
        let other = thread::spawn(move || {
            for round in 0..100 {
                while its.load(SeqCst) != 2 * round + 1 {
                    thread::park();
                }
                its.store(2 * round + 2, SeqCst);
                main.unpark();
            }
        });
        for round in 0..100 {
            turn.store(2 * round + 1, SeqCst);
            other.thread().unpark();
            while turn.load(SeqCst) != 2 * round + 2 {
                thread::park();
            }
        }
        other.join().unwrap();
    }

    fn park_timeout_ends_at_its_time() {
        let begun = Instant::now();
        let limit = Duration::from_millis(30);
        while begun.elapsed() < limit {
            thread::park_timeout(limit);
        }
        let begun = Instant::now();
        thread::park_timeout(Duration::ZERO);
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    fn sleep_lasts_at_least_as_long() {
        let thread = thread::spawn(|| {
            let begun = Instant::now();
            thread::sleep(Duration::from_millis(25));
            begun.elapsed()
        });
        assert!(thread.join().unwrap() >= Duration::from_millis(25));
    }

    fn a_scope_lends_and_waits() {
        let mut numbers = vec![1, 2, 3];
        let sum = AtomicUsize::new(0);
        thread::scope(|scope| {
            for n in &numbers {
                let sum = &sum;
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(3));
                    sum.fetch_add(*n, SeqCst);
                });
            }
        });
        numbers.push(sum.into_inner());
        assert_eq!(numbers, [1, 2, 3, 6]);
    }

    fn a_scoped_join_returns_the_value() {
        let text = String::from("hello");
        let len = thread::scope(|scope| scope.spawn(|| text.len()).join().unwrap());
        assert_eq!(len, 5);
    }

    fn scopes_nest() {
        let count = AtomicUsize::new(0);
        thread::scope(|outer| {
            for _ in 0..4 {
                outer.spawn(|| {
                    thread::scope(|inner| {
                        for _ in 0..4 {
                            inner.spawn(|| count.fetch_add(1, SeqCst));
                        }
                    });
                    outer.spawn(|| count.fetch_add(100, SeqCst));
                });
            }
        });
        assert_eq!(count.into_inner(), 416);
    }

    fn a_scope_panics_after_its_threads_did() {
        let ended = AtomicUsize::new(0);
        let left = catch_unwind(AssertUnwindSafe(|| {
            thread::scope(|scope| {
                scope.spawn(|| panic!("on purpose"));
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(10));
                    ended.fetch_add(1, SeqCst);
                });
            });
        }));
        assert_eq!(message(left.unwrap_err()), "a scoped thread panicked");
        assert_eq!(ended.into_inner(), 1);
    }

    fn a_scope_whose_body_panics_waits_too() {
        let ended = AtomicUsize::new(0);
        let left = catch_unwind(AssertUnwindSafe(|| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(10));
                    ended.fetch_add(1, SeqCst);
                });
                panic!("the body");
            });
        }));
        assert_eq!(message(left.unwrap_err()), "the body");
        assert_eq!(ended.into_inner(), 1);
    }

    fn a_large_stack_is_large() {
        let thread = thread::Builder::new().stack_size(64 << 20);
        // Over 20 MiB: more than any default.
        let thread = thread.spawn(|| depth(200_000)).unwrap();
        assert_eq!(thread.join().unwrap(), 200_000);
    }

    fn a_small_stack_is_enough_for_a_little() {
        let thread = thread::Builder::new().stack_size(1);
        assert_eq!(thread.spawn(|| 6 * 7).unwrap().join().unwrap(), 42);
    }

    fn destructors_run_before_join_returns() {
        let list = Arc::new(Mutex::new(Vec::new()));
        let noted = Noted(list.clone());
        let thread = thread::Builder::new().name("it".into());
        let thread = thread.spawn(|| NOTED.set(Some(noted))).unwrap();
        thread.join().unwrap();
        assert_eq!(*list.lock().unwrap(), ["it"]);
    }

    fn destructors_run_after_a_panic() {
        let list = Arc::new(Mutex::new(Vec::new()));
        let noted = Noted(list.clone());
        let thread = thread::spawn(|| {
            NOTED.set(Some(noted));
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(list.lock().unwrap().len(), 1);
    }

    fn a_destructor_may_wait_and_start_threads() {
        thread_local! {
            static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
        }
        struct Last(std::sync::mpsc::Sender<u32>);
        impl Drop for Last {
            fn drop(&mut self) {
                thread::sleep(Duration::from_millis(5));
                let number = thread::spawn(|| 11).join().unwrap();
                self.0.send(number).unwrap();
            }
        }
        let (sender, receiver) = channel();
        thread::spawn(|| LAST.set(Some(Last(sender)))).join().unwrap();
        assert_eq!(receiver.try_recv(), Ok(11));
    }

    fn thread_locals_are_each_threads_own() {
        NUMBER.set(7);
        let threads: Vec<_> = (0..20).map(|n| thread::spawn(move || {
            assert_eq!(NUMBER.get(), 7);
            NUMBER.set(n);
            for _ in 0..5 {
                thread::sleep(Duration::from_micros(200));
                assert_eq!(NUMBER.get(), n);
            }
        })).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(NUMBER.get(), 7);
    }

    fn locks_and_channels_work_between_threads() {
        let sum = Arc::new(Mutex::new(0));
        let all = Arc::new(Barrier::new(10));
        let (sender, receiver) = channel();
        let threads: Vec<_> = (0..10).map(|n| {
            let (sum, all, sender) = (sum.clone(), all.clone(), sender.clone());
            thread::spawn(move || {
                for _ in 0..100 {
                    *sum.lock().unwrap() += n;
                }
                all.wait();
                sender.send(*sum.lock().unwrap()).unwrap();
            })
        }).collect();
        drop(sender);
        assert!(receiver.iter().all(|n| n == 4_500));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    fn a_panic_poisons_the_lock() {
        let lock = Arc::new(Mutex::new(1));
        let its = lock.clone();
        let thread = thread::spawn(move || {
            let _guard = its.lock().unwrap();
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert!(lock.lock().is_err());
    }

    fn there_is_a_number_of_cpus() {
        let here = thread::available_parallelism().unwrap();
        let there = thread::spawn(|| thread::available_parallelism().unwrap());
        assert_eq!(there.join().unwrap(), here);
    }

    fn a_stack_that_cannot_be_is_an_error() {
        // More than the address space has.
        let refused = thread::Builder::new().stack_size(1 << 60).spawn(|| ());
        assert!(refused.is_err());
        // The next one is started.
        thread::spawn(|| ()).join().unwrap();
    }

    fn a_real_thread_can_be_wanted() {
        let tid = || std::fs::read_link("/proc/thread-self").unwrap();
        let (sender, receiver) = channel::<()>();
        let real = gosched_hook::real_threads(|| thread::spawn(move || {
            assert!(!gosched::hook::is_goroutine());
            _ = receiver.recv();
            tid()
        }));
        let other = thread::spawn(tid).join().unwrap();
        drop(sender);
        assert_ne!(real.join().unwrap(), other);
    }
}
