//! Threads whose runtime ends before them, and threads that cannot be started.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::common::{HOUR, LONG, child, limit_address_space, until, within};

#[test]
fn the_end_of_main_abandons_threads_that_wait() {
    within(LONG, "run", || {
        gosched::run(|| {
            for _ in 0..100 {
                thread::spawn(|| thread::sleep(HOUR));
            }
        });
    });
}

#[test]
fn a_join_from_outside_fails_when_the_runtime_is_dropped() {
    let runtime = gosched::Runtime::builder().build().unwrap();
    let thread = runtime.run(|| thread::spawn(|| thread::sleep(HOUR)));
    assert!(!thread.is_finished());
    let joiner = thread::spawn(move || thread.join());
    drop(runtime);
    // std panics: the thread has left no result.
    let panic = within(LONG, "the join", || joiner.join()).unwrap_err();
    let text = panic.downcast::<String>().unwrap();
    assert!(text.starts_with("failed to join thread"), "{text}");
}

#[test]
fn a_thread_that_ended_is_joined_after_its_runtime() {
    let runtime = gosched::Runtime::builder().build().unwrap();
    let thread = runtime.run(|| {
        let thread = thread::spawn(|| 5);
        until(|| thread.is_finished());
        thread
    });
    drop(runtime);
    // Its result is std's own; the goroutine ends a little later than it is finished for std.
    match thread::spawn(move || thread.join()).join() {
        Ok(value) => assert_eq!(value.unwrap(), 5),
        Err(panic) => {
            let text = panic.downcast::<String>().unwrap();
            assert!(text.starts_with("failed to join thread"), "{text}");
        }
    }
}

#[test]
fn a_shutdown_unwinds_waits_of_the_library_and_waits_for_the_rest() {
    static IS_UNWOUND: AtomicBool = AtomicBool::new(false);
    struct Unwound;
    impl Drop for Unwound {
        fn drop(&mut self) {
            IS_UNWOUND.store(true, SeqCst);
        }
    }
    let runtime = gosched::Runtime::builder().build().unwrap();
    let (sender, receiver) = channel();
    runtime.run(move || {
        thread::spawn(move || {
            let _unwound = Unwound;
            sender.send(()).unwrap();
            gosched::thread::park();
        });
        thread::spawn(|| thread::sleep(Duration::from_millis(20)));
        receiver.recv().unwrap();
    });
    runtime.shutdown(LONG);
    assert!(IS_UNWOUND.load(SeqCst));
}

#[test]
fn goexit_ends_a_thread_with_an_error() {
    gosched::run(|| {
        let thread = thread::spawn(|| -> u32 { gosched::goexit() });
        assert!(thread.join().unwrap_err().is::<gosched::thread::Exited>());
    });
}

#[test]
fn without_memory_spawn_returns_an_error() {
    let ended = child("without_memory_spawn_returns_an_error", || {
        gosched::run(|| {
            let (sender, receiver) = channel::<()>();
            let receiver = std::sync::Arc::new(std::sync::Mutex::new(receiver));
            limit_address_space(256 << 20);
            let mut threads = Vec::new();
            let refused = loop {
                let its = receiver.clone();
                let wait = move || {
                    while its.try_lock().is_ok_and(|it| {
                        it.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected)
                    }) {
                        thread::sleep(Duration::from_millis(1));
                    }
                };
                match thread::Builder::new().stack_size(32 << 20).spawn(wait) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => break error,
                }
                assert!(threads.len() < 100, "32 MiB each");
            };
            assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
            assert!(!threads.is_empty());
            drop(sender);
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        });
    });
    ended.succeeded();
}

#[test]
fn an_overflow_of_the_stack_is_reported() {
    fn deeper(n: usize) -> usize {
        let room = std::hint::black_box([n; 100]);
        match room[0] {
            usize::MAX => 0,
            _ => deeper(n + 1) + room[n % 100],
        }
    }
    let ended = child("an_overflow_of_the_stack_is_reported", || {
        gosched::run(|| thread::spawn(|| deeper(0)).join().unwrap());
    });
    assert!(!ended.status.success());
    ended.says(&["overflow"]);
}

#[test]
fn the_switch_makes_threads_real() {
    let ended = crate::common::child_with(
        "the_switch_makes_threads_real",
        "",
        |command| {
            command.env("GOSCHED_HOOK", "-pthread_create");
        },
        |_| {
            gosched::run(|| {
                let thread = thread::spawn(gosched::hook::is_goroutine);
                assert!(!thread.join().unwrap());
            });
        },
    );
    ended.succeeded();
    gosched::run(|| assert!(thread::spawn(gosched::hook::is_goroutine).join().unwrap()));
}

/// The names of this process's threads of the system.
fn names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let comm = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks
        .filter_map(comm)
        .map(|name| name.trim_end().to_owned())
        .collect()
}

#[test]
fn the_librarys_own_threads_are_threads() {
    let ended = child("the_librarys_own_threads_are_threads", || {
        gosched::run(|| {
            let signals = gosched::signal::notify(&[libc::SIGUSR1]);
            until(|| names().contains(&"gosched-signal".into()));
            // SAFETY: the signal is handled.
            unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) };
            assert_eq!(signals.recv(), Ok(libc::SIGUSR1));
            // A runtime that a goroutine builds has threads of its own, and ends on that goroutine.
            let inner = gosched::Runtime::builder().procs(1).build().unwrap();
            assert_eq!(inner.run(|| thread::spawn(|| 5).join().unwrap()), 5);
            drop(inner);
        });
    });
    ended.succeeded();
}

#[test]
fn a_thread_that_starts_threads_while_main_ends_does_not_panic() {
    let ended = child(
        "a_thread_that_starts_threads_while_main_ends_does_not_panic",
        || {
            for _ in 0..20 {
                gosched::run(|| {
                    let started = std::sync::Arc::new(AtomicUsize::new(0));
                    for _ in 0..4 {
                        let started = started.clone();
                        thread::spawn(move || {
                            loop {
                                drop(thread::spawn(|| ()));
                                started.fetch_add(1, SeqCst);
                            }
                        });
                    }
                    until(|| started.load(SeqCst) > 100);
                });
            }
        },
    );
    ended.succeeded();
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
}
