//! The mark: until when it stays, and that it changes nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::chan::{bounded, never};
use gosched::debug::{self, Goroutine};
use gosched::sync::{Mutex, RwLock};
use gosched::{Runtime, thread, time};

use super::{PATIENCE, find, leaks_when_count, leaks_when_waiting, named, names};
use crate::common::{child, within};

fn in_dump(name: &str) -> Goroutine {
    let dump = debug::dump();
    let mut all = dump.goroutines().iter();
    let found = all.find(|g| g.name() == Some(name));
    found.unwrap_or_else(|| panic!("{dump}")).clone()
}

/// Marked until the next check, which decides anew.
#[gosched::test]
fn the_mark_is_taken_back_at_the_next_check() {
    drop(named("lost", thread::park));
    let first = leaks_when_waiting(&["lost"]);
    assert_eq!(names(&first), ["lost"], "{first}");
    let seen = in_dump("lost");
    assert!(seen.is_leaked());
    assert_eq!((seen.state(), seen.wait_reason()), ("leaked", Some("park")));
    assert!(
        seen.to_string()
            .contains(" [park (leaked)] {name: lost}:\n")
    );
    debug::check().unwrap_or_else(|v| panic!("{v}"));
    assert!(debug::metrics().waiting >= 1);
    // A look at it does not change it; the check finds it again.
    assert!(in_dump("lost").is_leaked());
    let second = debug::leaks();
    assert_eq!(names(&second), ["lost"], "{second}");
    let why = "nobody has a handle to unpark it with";
    assert_eq!(find(&second, "lost").expect("just seen").why(), why);
    debug::check().unwrap_or_else(|v| panic!("{v}"));
}

/// Leaked goroutines unwind when their runtime is shut down, as all that wait do.
#[test]
fn leaked_goroutines_end_with_their_runtime() {
    struct Witness(Arc<AtomicBool>);
    impl Drop for Witness {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let has_unwound = Arc::new(AtomicBool::new(false));
    let runtime = Runtime::builder().build().expect("a runtime");
    let witness = Witness(Arc::clone(&has_unwound));
    runtime.go(move || {
        let _witness = witness;
        thread::park();
    });
    let started = Instant::now();
    while runtime.leaks().is_empty() {
        assert!(started.elapsed() < PATIENCE, "{}", runtime.dump());
        std::thread::yield_now();
    }
    within(PATIENCE, "a shutdown", || runtime.shutdown(PATIENCE));
    assert!(has_unwound.load(SeqCst));
}

/// Dropping a runtime with leaked goroutines answers their joins.
#[test]
fn a_join_from_outside_is_answered_when_the_runtime_goes() {
    let runtime = Runtime::builder().build().expect("a runtime");
    let joined = runtime.spawn(|| never::<i32>().recv());
    let started = Instant::now();
    while runtime.leaks().is_empty() {
        assert!(started.elapsed() < PATIENCE, "{}", runtime.dump());
        std::thread::yield_now();
    }
    drop(runtime);
    let answer = within(PATIENCE, "a join", || joined.join());
    assert!(answer.unwrap_err().is::<thread::Exited>());
}

/// A deadlock is reported as usual, and shows the goroutines that were marked as leaked.
#[test]
fn u6_leaked_goroutines_are_no_hope() {
    let out = child("marks::u6_leaked_goroutines_are_no_hope", || {
        gosched::run(|| {
            let lost = named("lost", thread::park);
            let joiner = named("joiner", move || lost.join().expect("no panic"));
            let leaks = leaks_when_waiting(&["lost", "joiner"]);
            assert_eq!(names(&leaks), ["joiner", "lost"], "{leaks}");
            let _ = joiner.join();
        });
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!", ""]);
    out.says(&[
        " [park (leaked)] {name: lost} pcs: 0x",
        " [park (leaked)] {name: lost}:\n",
        " [join (leaked)] {name: joiner}:\n",
        "waits for goroutine ",
    ]);
}

/// Checks while everything runs: no goroutine is reported that continues later.
#[gosched::test(procs = 2)]
fn nobody_who_goes_on_is_reported() {
    let stop = Arc::new(AtomicBool::new(false));
    let locks = Arc::new((Mutex::new(0), RwLock::new(0)));
    let busy: Vec<_> = (0..20)
        .map(|_| {
            let (stop, locks) = (Arc::clone(&stop), Arc::clone(&locks));
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    let (s, r) = bounded(0);
                    let sender = thread::spawn(move || s.send(1));
                    assert_eq!(r.recv(), Ok(1));
                    sender.join().expect("no panic").expect("received");
                    for _ in 0..10 {
                        let mut held = locks.0.lock().expect("no panic");
                        *held += 1;
                        thread::yield_now(); // so that the others wait
                        drop(held);
                        let seen = *locks.1.read().expect("no panic");
                        *locks.1.write().expect("no panic") = seen + 1;
                    }
                    let parked = thread::spawn(thread::park);
                    thread::yield_now();
                    parked.thread().unpark();
                    parked.join().expect("no panic");
                    thread::scope(|scope| {
                        scope.spawn(thread::yield_now);
                    });
                    time::Timer::new(Duration::from_micros(50))
                        .chan()
                        .recv()
                        .expect("a time");
                }
            })
        })
        .collect();
    for round in 0..100 {
        let leaks = debug::leaks();
        assert!(leaks.is_empty(), "{leaks}");
        if round % 10 == 0 {
            debug::check().unwrap_or_else(|v| panic!("{v}"));
        }
        thread::yield_now();
    }
    stop.store(true, SeqCst);
    busy.into_iter()
        .for_each(|handle| handle.join().expect("no panic"));
}

/// A long chain, of which the last is leaked or is not, is decided in one go.
#[gosched::test]
fn many_goroutines_are_judged_quickly() {
    const MANY: usize = 100_000;
    let last = named("last", thread::park);
    let waker = last.thread().clone();
    let mut tail = last;
    for _ in 0..MANY {
        let before = tail;
        tail = thread::spawn(move || before.join().expect("no panic"));
    }
    let started = Instant::now();
    while debug::metrics().waiting < MANY + 1 {
        assert!(started.elapsed() < 3 * PATIENCE, "{}", debug::metrics());
        thread::sleep(Duration::from_millis(10));
    }
    let started = Instant::now();
    let leaks = debug::leaks();
    assert!(leaks.is_empty(), "{leaks}");
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    let handle = tail;
    drop(waker);
    let started = Instant::now();
    // The counter above includes goroutines that are on their way to wait.
    let leaks = leaks_when_count(MANY + 1);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    let text = leaks.to_string();
    assert!(text.contains("(stack not taken: there are too many)"));
    debug::check().unwrap_or_else(|v| panic!("{v}"));
    drop(handle);
}

#[test]
#[should_panic(
    expected = "gosched::debug::leaks called outside a runtime: use Runtime::leaks or Handle::leaks"
)]
fn outside_a_runtime_it_says_what_to_do() {
    let _ = debug::leaks();
}
