//! Threads that are goroutines beside real threads, in `blocking`, in the child of a fork, and below
//! an executor.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Barrier, Condvar, LazyLock, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use crate::common::{LONG, child, ms, process_cpu_time, within};

/// Runs the body on a goroutine.
fn run(body: impl FnOnce() + Send) {
    within(LONG, "the body", || gosched::run(body));
}

fn join<T>(all: Vec<thread::JoinHandle<T>>) {
    for thread in all {
        assert!(thread.join().is_ok());
    }
}

#[test]
fn a_shutdown_does_not_spin_while_a_join_waits() {
    let done = child("a_shutdown_does_not_spin_while_a_join_waits", || {
        let runtime = gosched::Runtime::builder().build().unwrap();
        let (sender, receiver) = mpsc::channel();
        runtime.run(move || {
            thread::spawn(move || {
                let inner = thread::spawn(|| {
                    loop {
                        thread::park();
                    }
                });
                sender.send(()).unwrap();
                _ = inner.join();
            });
            receiver.recv().unwrap();
            thread::sleep(ms(50));
        });
        let before = process_cpu_time();
        runtime.shutdown(Duration::from_secs(3));
        let used = process_cpu_time() - before;
        assert!(used < Duration::from_secs(1), "{used:?}");
    });
    done.succeeded();
}

#[test]
fn a_shutdown_does_not_cut_a_sleep_short() {
    static SLEPT: OnceLock<Duration> = OnceLock::new();
    let runtime = gosched::Runtime::builder().build().unwrap();
    let (sender, receiver) = mpsc::channel();
    runtime.run(move || {
        thread::spawn(move || {
            sender.send(()).unwrap();
            let began = Instant::now();
            thread::sleep(ms(300));
            SLEPT.set(began.elapsed()).unwrap();
        });
        receiver.recv().unwrap();
    });
    within(LONG, "the shutdown", || runtime.shutdown(LONG));
    assert!(*SLEPT.get().unwrap() >= ms(300), "{SLEPT:?}");
}

#[test]
fn inside_blocking_joins_wait_and_threads_are_real() {
    run(|| {
        let (sender, receiver) = mpsc::channel::<()>();
        let thread = thread::spawn(move || receiver.recv().map_or(5, |()| 6));
        let other = thread::spawn(move || {
            thread::sleep(ms(1));
            drop(sender);
        });
        assert_eq!(gosched::blocking(|| thread.join().unwrap()), 5);
        other.join().unwrap();
        let started = AtomicUsize::new(0);
        gosched::blocking(|| {
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        assert!(!gosched::hook::is_goroutine());
                        started.fetch_add(1, SeqCst);
                    });
                }
            });
        });
        assert_eq!(started.load(SeqCst), 8);
    });
}

#[test]
fn a_goroutine_that_is_locked_to_its_thread_waits_and_starts_threads() {
    run(|| {
        gosched::lock_os_thread();
        let id = thread::current().id();
        let turns = Arc::new((Mutex::new(0), Condvar::new()));
        let start = |_| {
            let turns = turns.clone();
            thread::spawn(move || {
                for _ in 0..50 {
                    *turns.0.lock().unwrap() += 1;
                    turns.1.notify_all();
                    thread::yield_now();
                }
            })
        };
        let all: Vec<_> = (0..20).map(start).collect();
        let mut n = turns.0.lock().unwrap();
        while *n < 1000 {
            n = turns.1.wait(n).unwrap();
        }
        drop(n);
        join(all);
        assert_eq!(thread::current().id(), id);
        gosched::unlock_os_thread();
    });
}

#[test]
fn a_thread_may_end_locked_to_a_thread_of_the_system() {
    run(|| {
        let start = |n| {
            thread::spawn(move || {
                gosched::lock_os_thread();
                if n % 2 == 0 {
                    thread::sleep(ms(1));
                }
                n
            })
        };
        let all: Vec<_> = (0..20).map(start).collect();
        for (n, thread) in all.into_iter().enumerate() {
            assert_eq!(thread.join().unwrap(), n);
        }
    });
}

#[test]
fn a_thread_may_end_the_process_while_others_wait() {
    let out = child("a_thread_may_end_the_process_while_others_wait", || {
        gosched::run(|| {
            let lock = Arc::new(Mutex::new(()));
            let guard = lock.lock().unwrap();
            for _ in 0..20 {
                let lock = lock.clone();
                thread::spawn(move || drop(lock.lock()));
            }
            let ender = thread::spawn(|| std::process::exit(7));
            _ = ender.join();
            drop(guard);
        });
    });
    assert_eq!(out.code(), 7);
}

#[test]
fn a_goroutine_of_another_runtime_joins() {
    let other = gosched::Runtime::builder().build().unwrap();
    run(|| {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || receiver.recv().unwrap());
        let joined = other.handle().spawn(move || thread.join().unwrap());
        sender.send(5).unwrap();
        assert_eq!(joined.join().unwrap(), 5);
    });
}

#[test]
fn real_threads_and_goroutines_share_every_lock() {
    const PARTIES: usize = 16;
    const TURNS: usize = 100;
    struct Shared {
        turns: Mutex<usize>,
        changed: Condvar,
        barrier: Barrier,
        made: OnceLock<u32>,
    }
    impl Shared {
        fn play(&self) {
            for turn in 1..=TURNS {
                self.barrier.wait();
                self.made.get_or_init(|| {
                    thread::sleep(ms(1));
                    7
                });
                let mut turns = self.turns.lock().unwrap();
                *turns += 1;
                self.changed.notify_all();
                while *turns < turn * PARTIES {
                    turns = self.changed.wait(turns).unwrap();
                }
            }
        }
    }
    run(|| {
        let shared = Arc::new(Shared {
            turns: Mutex::new(0),
            changed: Condvar::new(),
            barrier: Barrier::new(PARTIES),
            made: OnceLock::new(),
        });
        let start = |n: usize| {
            let shared = shared.clone();
            let start = || thread::spawn(move || shared.play());
            match n % 2 {
                0 => gosched_hook::real_threads(start),
                _ => start(),
            }
        };
        join((0..PARTIES).map(start).collect());
        assert_eq!(*shared.turns.lock().unwrap(), PARTIES * TURNS);
    });
}

/// The dump shows std's frames and the program's, and none of the hooks.
#[test]
fn a_lazy_lock_that_waits_for_itself_is_a_deadlock() {
    static LAZY: LazyLock<u32> = LazyLock::new(|| *LAZY + 1);
    let out = child("a_lazy_lock_that_waits_for_itself_is_a_deadlock", || {
        gosched::run(|| {
            _ = thread::spawn(|| *LAZY).join();
        });
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!", ""]);
    out.says(&["waits for goroutine 2", "LAZY"]);
    for hidden in ["syscall", "pthread_join", "gosched_hook::", "gosched::"] {
        let has = out.stderr.lines().any(|line| line.starts_with(hidden));
        assert!(!has, "{hidden}: {out:#?}");
    }
}

#[test]
fn a_deadlock_is_reported_after_the_last_real_thread() {
    let out = child("a_deadlock_is_reported_after_the_last_real_thread", || {
        gosched::run(|| {
            let sleep = || thread::sleep(ms(1500));
            drop(gosched_hook::real_threads(|| thread::spawn(sleep)));
            let lock = Arc::new(Mutex::new(()));
            let guard = lock.lock().unwrap();
            let its = lock.clone();
            _ = thread::spawn(move || drop(its.lock().unwrap())).join();
            drop(guard);
        });
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!", ""]);
}

#[test]
fn an_init_that_panics_is_tried_again() {
    run(|| {
        let state = Arc::new((OnceLock::new(), AtomicUsize::new(0)));
        let start = |_| {
            let state = state.clone();
            thread::spawn(move || {
                *state.0.get_or_init(|| {
                    thread::sleep(ms(1));
                    if state.1.fetch_add(1, SeqCst) < 10 {
                        std::panic::resume_unwind(Box::new("planned"));
                    }
                    9
                })
            })
        };
        let all: Vec<_> = (0..20).map(start).collect();
        let results = all.into_iter().map(thread::JoinHandle::join);
        assert_eq!(results.filter(|r| matches!(r, Ok(9))).count(), 10);
    });
}

#[test]
fn checks_hold_while_threads_come_and_go() {
    run(|| {
        for _ in 0..20 {
            let start = |n| {
                thread::spawn(move || {
                    if n % 3 == 0 {
                        thread::park_timeout(ms(2));
                    }
                })
            };
            let all: Vec<_> = (0..50).map(start).collect();
            gosched::debug::check().unwrap();
            join(all);
        }
    });
}

/// The child has one thread and no runtime: its threads are real, and its locks are the kernel's.
#[test]
fn the_child_of_a_fork_has_real_threads() {
    fn be_the_child() {
        assert_eq!(thread::current().name(), Some("forker"));
        let count = Arc::new(Mutex::new(0));
        let its = count.clone();
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            *its.lock().unwrap() += 1;
            receiver.recv().unwrap()
        });
        thread::sleep(ms(20));
        sender.send(4).unwrap();
        assert_eq!(thread.join().unwrap(), 4);
        assert_eq!(*count.lock().unwrap(), 1);
        thread::park_timeout(ms(5));
    }
    let fork = || {
        // SAFETY: the child uses what this crate promises to its child, and ends by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let ended = std::panic::catch_unwind(be_the_child);
            // SAFETY: the process ends.
            unsafe { libc::_exit(if ended.is_ok() { 0 } else { 3 }) };
        }
        let mut status = 0;
        // SAFETY: the child of this test; libc writes the status.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        status
    };
    let done = child("the_child_of_a_fork_has_real_threads", || {
        gosched::run(|| {
            let forker = thread::Builder::new().name("forker".into()).spawn(fork);
            assert_eq!(forker.unwrap().join().unwrap(), 0);
        });
    });
    done.succeeded();
}

/// 100 threads that are goroutines use one tokio runtime.
fn use_tokio(make: impl FnOnce(&mut Builder) -> Runtime) {
    let tokio = make(Builder::new_multi_thread().worker_threads(2).enable_all());
    let tokio = Arc::new(tokio);
    let start = |n: usize| {
        let tokio = tokio.clone();
        thread::spawn(move || {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let task = tokio.spawn(async move {
                let got: usize = receiver.await.unwrap();
                tokio::time::sleep(ms(1)).await;
                tokio::task::spawn_blocking(move || got + 1).await.unwrap()
            });
            sender.send(n).unwrap();
            assert_eq!(tokio.block_on(task).unwrap(), n + 1);
        })
    };
    join((0..100).map(start).collect());
}

#[test]
fn tokio_on_real_threads_is_called_from_goroutines() {
    run(|| use_tokio(|builder| gosched_hook::real_threads(|| builder.build().unwrap())));
}

#[test]
fn tokio_runs_on_goroutines() {
    run(|| use_tokio(|builder| builder.build().unwrap()));
}
