//! Errors are clear and lose nothing: the text of each refusal says what to do, everything that was
//! started continues, and what was not started is handed back or dropped.
//!
//! The switches that refuse mappings and threads are the whole process's, as limits are: those
//! tests run as children.

use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::common::{
    Alive, LONG, child, child_of, eventually, limit_address_space, panic_text, runtime,
    thread_count, until_parked, within,
};
use gosched::testing::{fail_map_after, fail_signal_stack_after, fail_thread_after};
use gosched::{Handle, Runtime, debug, thread};

/// More mappings than a runtime makes at its start, or for a goroutine.
const MAPPINGS_MAX: i64 = 200;

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
}

/// Everything a goroutine may do works, and the runtime is in order.
fn assert_works() {
    let handles: Vec<_> = (0..100u64)
        .map(|n| {
            thread::spawn(move || {
                gosched::yield_now();
                thread::sleep(Duration::from_micros(10));
                n
            })
        })
        .collect();
    let sum: u64 = handles.into_iter().map(|h| h.join().unwrap()).sum();
    assert_eq!(sum, 4950);
    debug::check().unwrap();
}

// Settings that cannot be.

#[test]
fn settings_that_cannot_be_are_errors_of_build() {
    let builder = Runtime::builder;
    let cases = [
        (builder().procs(0), ["procs is 0", "from 1 to"]),
        (builder().procs(100_000), ["procs is 100000", "from 1 to"]),
        (builder().stack_size(0), ["stack size of 0", "1 GiB"]),
        (
            builder().stack_size(usize::MAX),
            ["stack size of 18446744073709551615", "1 GiB"],
        ),
        (
            builder().max_threads(0),
            ["max_threads is 0", "give a number from 1"],
        ),
        (
            builder().max_threads(usize::MAX),
            ["max_threads is", "give"],
        ),
    ];
    for (builder, parts) in cases {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_says(&error.to_string(), &parts);
    }
}

#[test]
fn an_absurd_stack_of_a_goroutine_is_an_error_of_spawn() {
    gosched::run(|| {
        for size in [(1 << 30) + 1, usize::MAX] {
            let spawned = thread::Builder::new().stack_size(size).spawn(|| ());
            let error = spawned.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_says(&error.to_string(), &["stack size", "1 GiB"]);
        }
        assert_says(
            &panic_text(|| gosched::gomaxprocs(100_000)),
            &["gomaxprocs(100000)", "at most"],
        );
        assert_works();
    });
}

// In the wrong place.

#[test]
fn calls_outside_a_runtime_say_what_to_do() {
    let cases: [(&str, fn()); 10] = [
        ("go", || gosched::go(|| ())),
        ("thread::spawn", || drop(thread::spawn(|| ()))),
        ("thread::Builder::spawn", || {
            drop(thread::Builder::new().spawn(|| ()));
        }),
        ("thread::Scope::spawn", || {
            thread::scope(|s| {
                s.spawn(|| ());
            });
        }),
        ("gomaxprocs", || assert_ne!(gosched::gomaxprocs(0), 0)),
        ("num_goroutines", || {
            assert_ne!(gosched::num_goroutines(), 0);
        }),
        ("lock_os_thread", gosched::lock_os_thread),
        ("unlock_os_thread", gosched::unlock_os_thread),
        ("goexit", || gosched::goexit()),
        ("Handle::current", || drop(Handle::current())),
    ];
    for (name, call) in cases {
        let text = panic_text(call);
        let start = format!("gosched::{name} called outside a goroutine: ");
        assert!(text.starts_with(&start), "{text:?}");
        assert_says(&text, &["gosched::run"]);
    }
}

/// The same on a thread that a goroutine has started: it is no goroutine.
#[test]
fn a_thread_started_by_a_goroutine_is_outside() {
    gosched::run(|| {
        let outside = std::thread::spawn(|| panic_text(|| gosched::go(|| ())));
        assert_says(&outside.join().unwrap(), &["outside a goroutine"]);
    });
}

#[test]
fn a_goroutine_cannot_join_itself() {
    gosched::run(|| {
        let (give, own) = mpsc::channel();
        let own = Mutex::new(own);
        let (say, text) = mpsc::channel();
        let handle = thread::spawn(move || {
            let own: thread::JoinHandle<()> = loop {
                match own.lock().unwrap().try_recv() {
                    Ok(handle) => break handle,
                    Err(_) => gosched::yield_now(),
                }
            };
            say.send(panic_text(|| own.join())).unwrap();
        });
        give.send(handle).unwrap();
        let text = loop {
            match text.try_recv() {
                Ok(text) => break text,
                Err(_) => gosched::yield_now(),
            }
        };
        assert_says(&text, &["cannot join itself"]);
        assert_works();
    });
}

// Too late.

#[test]
fn a_dropped_runtime_refuses_and_drops_the_closure() {
    // One that is freed, and one that is kept for what a goroutine has left behind.
    for leaves in [false, true] {
        let dropped = runtime(1);
        let (handle, count) = (dropped.handle(), Arc::new(AtomicUsize::new(0)));
        if leaves {
            dropped.go(thread::park);
            until_parked(&dropped.handle(), 1);
        }
        drop(dropped);
        let gone = "the gosched runtime has been dropped";
        let here = Alive::new(&count);
        let error = handle.try_spawn(move || drop(here)).unwrap_err();
        assert_says(&error.to_string(), &[gone]);
        let here = Alive::new(&count);
        assert_says(&panic_text(|| handle.spawn(move || drop(here))), &[gone]);
        let here = Alive::new(&count);
        assert_says(&panic_text(|| handle.go(move || drop(here))), &[gone]);
        assert_eq!(count.load(SeqCst), 0);
        assert_says(&handle.dump().unwrap_err().to_string(), &[gone]);
        assert_says(&handle.metrics().unwrap_err().to_string(), &[gone]);
    }
}

/// While a runtime shuts down its goroutines' destructors still run, and start nothing.
#[test]
fn a_runtime_that_shuts_down_refuses_and_drops_the_closure() {
    struct Spawns(Arc<AtomicUsize>, mpsc::Sender<String>);
    impl Drop for Spawns {
        fn drop(&mut self) {
            let here = Alive::new(&self.0);
            let spawned = thread::Builder::new().spawn(move || drop(here));
            let _ = self.1.send(spawned.unwrap_err().to_string());
        }
    }
    let (runtime, count) = (runtime(2), Arc::new(AtomicUsize::new(0)));
    let (say, text) = mpsc::channel();
    let spawns = Spawns(Arc::clone(&count), say);
    let handle = runtime.spawn(move || {
        let _spawns = spawns;
        thread::park();
    });
    within(LONG, "shutdown", || runtime.shutdown(LONG));
    assert_says(&text.recv().unwrap(), &["shutting down"]);
    assert!(handle.join().unwrap_err().is::<thread::Exited>());
    assert_eq!(count.load(SeqCst), 0);
}

// Out of address space.

#[test]
fn d4_out_of_address_space_is_an_error_of_spawn() {
    let out = child("d4_out_of_address_space_is_an_error_of_spawn", || {
        let (runtime, count) = (runtime(2), Arc::new(AtomicUsize::new(0)));
        runtime.run(|| {
            // More stacks than are needed below: each P keeps some for itself.
            let parked: Vec<_> = (0..300).map(|_| thread::spawn(thread::park)).collect();
            parked.iter().for_each(|h| h.thread().unpark());
            parked.into_iter().for_each(|h| h.join().unwrap());
            assert_works();
            let before = limit_address_space(600 << 20);
            let mut parked = Vec::new();
            let error = loop {
                let here = Alive::new(&count);
                let spawned = thread::Builder::new().stack_size(8 << 20).spawn(move || {
                    thread::park();
                    drop(here);
                });
                match spawned {
                    Ok(handle) => parked.push(handle),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            assert_says(
                &error.to_string(),
                &["address space", "Builder::stack_size", "RLIMIT_AS"],
            );
            // The refused closure is dropped, the other goroutines continue.
            assert!(!parked.is_empty());
            assert_eq!(count.load(SeqCst), parked.len());
            assert_works();
            // SAFETY: the limit as it was.
            unsafe { libc::setrlimit(libc::RLIMIT_AS, &before) };
            parked.extend((0..200).map(|_| thread::spawn(thread::park)));
            parked.iter().for_each(|h| h.thread().unpark());
            parked.into_iter().for_each(|h| h.join().unwrap());
            assert_eq!(count.load(SeqCst), 0);
        });
    });
    out.succeeded();
}

#[test]
fn d4_out_of_address_space_is_an_error_of_build() {
    let out = child("d4_out_of_address_space_is_an_error_of_build", || {
        let before = limit_address_space(64 << 20);
        let built = Runtime::builder().procs(64).stack_size(1 << 30).build();
        assert_eq!(built.unwrap_err().kind(), ErrorKind::OutOfMemory);
        // SAFETY: the limit as it was.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &before) };
        assert!(eventually(|| thread_count() == 1));
        gosched::run(assert_works);
    });
    out.succeeded();
}

// Mappings refused.

#[test]
fn build_without_mappings_is_an_error() {
    let out = child("build_without_mappings_is_an_error", || {
        let built = (0..MAPPINGS_MAX).find_map(|n| {
            fail_map_after(n);
            let built = Runtime::builder().procs(3).build();
            fail_map_after(-1);
            match built {
                Ok(runtime) => Some((n, runtime)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{n}: {error}");
                    assert!(eventually(|| thread_count() == 1), "{n}");
                    None
                }
            }
        });
        let (n, runtime) = built.expect("a runtime needs fewer mappings");
        assert!(n > 0, "a runtime needs mappings");
        runtime.run(assert_works);
    });
    out.succeeded();
}

/// Spawns `many` goroutines of which each may be refused; those that are not must run.
fn spawn_refused(refused_after: i64, size: Option<usize>, many: usize) -> Option<io::Error> {
    let count = Arc::new(AtomicUsize::new(0));
    let (mut handles, mut last) = (Vec::with_capacity(many), None);
    fail_map_after(refused_after);
    for n in 0..many {
        let (here, mut builder) = (Alive::new(&count), thread::Builder::new());
        if let Some(size) = size {
            builder = builder.stack_size(size);
        }
        match builder.spawn(move || (n, drop(here)).0) {
            Ok(handle) => handles.push((n, handle)),
            Err(error) => last = Some(error),
        }
    }
    fail_map_after(-1);
    for (n, handle) in handles {
        assert_eq!(handle.join().unwrap(), n);
    }
    assert_eq!(count.load(SeqCst), 0);
    last
}

#[test]
fn spawn_without_mappings_is_an_error() {
    let name = "spawn_without_mappings_is_an_error";
    let body = |variant: &str| {
        let (size, many) = match variant {
            "one" => (None, 1),
            "large" => (Some(64 << 20), 1),
            _ => (None, 5_000),
        };
        for n in 0..MAPPINGS_MAX {
            // A fresh runtime each time: a used one has what it needs.
            let last = runtime(2).run(|| {
                let last = spawn_refused(n, size, many);
                assert_works();
                last
            });
            let Some(error) = last else {
                // Small ones may find room in what the runtime has mapped for itself.
                assert!(n > 0 || variant == "one", "nothing was refused");
                return;
            };
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{n}: {error}");
            assert_says(&error.to_string(), &["Builder::stack_size", "RLIMIT_AS"]);
        }
        panic!("goroutines need fewer mappings");
    };
    for variant in ["one", "large", "many"] {
        child_of(name, variant, body).succeeded();
    }
}

#[test]
fn gomaxprocs_without_mappings_panics_and_changes_nothing() {
    let name = "gomaxprocs_without_mappings_panics_and_changes_nothing";
    let out = child(name, || {
        runtime(2).run(|| {
            fail_map_after(0);
            let text = panic_text(|| gosched::gomaxprocs(1000));
            fail_map_after(-1);
            assert_says(&text, &["gosched::gomaxprocs(1000)", "memory"]);
            assert_eq!(gosched::gomaxprocs(0), 2);
            assert_works();
            assert_eq!(gosched::gomaxprocs(1000), 2);
            assert_works();
        });
    });
    out.succeeded();
}

#[test]
fn after_func_without_mappings_panics_and_names_itself() {
    let name = "after_func_without_mappings_panics_and_names_itself";
    let out = child(name, || {
        runtime(2).run(|| {
            let (hour, mut timers) = (Duration::from_secs(3600), Vec::new());
            fail_map_after(0);
            let text = panic_text(|| {
                loop {
                    timers.push(gosched::time::after_func(hour, || ()));
                }
            });
            fail_map_after(-1);
            assert!(text.starts_with("gosched::time::after_func: "), "{text}");
            assert!(timers.iter().all(gosched::time::Timer::stop));
            assert_works();
        });
    });
    out.succeeded();
}

// Threads refused.

#[test]
fn build_without_threads_is_an_error() {
    let out = child("build_without_threads_is_an_error", || {
        for n in 0..10 {
            fail_thread_after(n);
            let built = Runtime::builder().procs(2).build();
            fail_thread_after(-1);
            match built {
                Ok(runtime) => {
                    // One that makes them, one that looks after things, one that runs goroutines.
                    assert_eq!(n, 3);
                    runtime.run(assert_works);
                    return;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{n}: {error}");
                    assert!(eventually(|| thread_count() == 1), "{n}");
                }
            }
        }
        panic!("a runtime needs fewer threads to begin");
    });
    out.succeeded();
}

/// Goroutines continue on the existing threads.
#[test]
fn mg_goroutines_finish_without_further_threads() {
    let out = child("mg_goroutines_finish_without_further_threads", || {
        for round in 0..20 {
            let runtime = runtime(2);
            fail_thread_after(round % 3);
            runtime.run(|| {
                gosched::gomaxprocs(8);
                assert_works();
                let blocks = (0..10).map(|_| {
                    thread::spawn(|| {
                        std::thread::sleep(Duration::from_millis(1));
                        gosched::yield_now();
                    })
                });
                let blocks: Vec<_> = blocks.collect();
                blocks.into_iter().for_each(|h| h.join().unwrap());
                gosched::gomaxprocs(1);
                assert_works();
            });
            fail_thread_after(-1);
        }
    });
    out.succeeded();
}

/// The M that runs the caller has a stack for its signals: without one a handler would run on the
/// goroutine's.
fn assert_has_a_signal_stack() {
    // SAFETY: only asks, into a struct of this frame.
    let stack = unsafe {
        let mut stack = std::mem::zeroed::<libc::stack_t>();
        assert_eq!(libc::sigaltstack(std::ptr::null(), &mut stack), 0);
        stack
    };
    assert_eq!(stack.ss_flags & libc::SS_DISABLE, 0, "no signal stack");
}

#[test]
fn mg_build_without_a_signal_stack_is_an_error() {
    let out = child("mg_build_without_a_signal_stack_is_an_error", || {
        fail_signal_stack_after(0);
        let error = Runtime::builder().procs(2).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert_says(&error.to_string(), &["cannot start the runtime's threads"]);
        assert!(eventually(|| thread_count() == 1));
        fail_signal_stack_after(-1);
        runtime(2).run(assert_works);
    });
    out.succeeded();
}

/// A thread that is refused its signal stack runs no goroutine. The others continue, and threads
/// are made once signal stacks are available.
#[test]
fn mg_no_goroutine_runs_without_a_signal_stack() {
    let out = child("mg_no_goroutine_runs_without_a_signal_stack", || {
        for round in 0..10 {
            let runtime = runtime(2);
            runtime.run(|| ()); // one thread has its own
            fail_signal_stack_after(round % 3);
            runtime.run(|| {
                gosched::gomaxprocs(8);
                let blocks = (0..10).map(|_| {
                    thread::spawn(|| {
                        assert_has_a_signal_stack();
                        std::thread::sleep(Duration::from_millis(1));
                        gosched::yield_now();
                        assert_has_a_signal_stack();
                    })
                });
                let blocks: Vec<_> = blocks.collect();
                blocks.into_iter().for_each(|h| h.join().unwrap());
                assert_works();
                fail_signal_stack_after(-1);
                let holds: Vec<_> = (0..4)
                    .map(|_| thread::spawn(gosched::lock_os_thread))
                    .collect();
                holds.into_iter().for_each(|h| h.join().unwrap());
                assert_works();
            });
        }
    });
    out.succeeded();
}

/// A goroutine that ends its thread leaves fewer; the last one's place is filled as soon as the
/// system lets it.
#[test]
fn mg_locked_goroutines_finish_once_threads_can_be_had() {
    let name = "mg_locked_goroutines_finish_once_threads_can_be_had";
    let out = child(name, || {
        let runtime = runtime(2);
        fail_thread_after(0);
        let (all, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(2)));
        let (allows, locked) = (Arc::clone(&done), Arc::clone(&all));
        let allow = std::thread::spawn(move || {
            while locked.load(SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The runtime tries again once a second at least.
            std::thread::sleep(Duration::from_secs(2));
            fail_thread_after(-1);
            allows.wait();
        });
        runtime.run(|| {
            let locked = (0..20).map(|n| {
                let all = Arc::clone(&all);
                thread::spawn(move || {
                    gosched::lock_os_thread();
                    all.fetch_add(1, SeqCst);
                    while all.load(SeqCst) < 20 {
                        thread::sleep(Duration::from_millis(1));
                    }
                    if n % 2 == 0 {
                        gosched::unlock_os_thread();
                    }
                })
            });
            let locked: Vec<_> = locked.collect();
            locked.into_iter().for_each(|h| h.join().unwrap());
            assert_works();
        });
        done.wait();
        allow.join().unwrap();
    });
    out.succeeded();
    out.says(&["gosched: the system refuses another thread", "trying again"]);
}
