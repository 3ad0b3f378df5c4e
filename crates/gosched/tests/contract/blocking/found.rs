//! What was found by trying: each of these once hung, or let more run than may.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::*;
use crate::common::{child, eventually, within};

/// Goroutines that never call, until dropped.
struct Hogs(Arc<AtomicBool>);

impl Hogs {
    fn new(runtime: &Runtime, n: usize) -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..n {
            let stop = Arc::clone(&stop);
            runtime.go(move || {
                while !stop.load(SeqCst) {
                    std::hint::spin_loop();
                }
            });
        }
        Hogs(stop)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A goroutine inside `fork` has malloc's locks, all of them; so it must come before the hogs when
/// a P is to be had.
#[test]
fn d9_commands_are_started_among_hogs() {
    for _ in 0..3 {
        let runtime = runtime(2);
        let hogs = Hogs::new(&runtime, 4);
        let start = |by_fork: bool| {
            let mut echo = Command::new("echo");
            echo.arg("here");
            if by_fork {
                // SAFETY: the function does nothing.
                unsafe { echo.pre_exec(|| Ok(())) };
            }
            assert_eq!(echo.output().unwrap().stdout, b"here\n");
        };
        let starter = |i| runtime.spawn(move || (0..5).for_each(|k| start((i + k) % 2 == 0)));
        let starters: Vec<_> = (0..20).map(starter).collect();
        within(LONG, "commands", || {
            starters.into_iter().for_each(|s| s.join().unwrap());
        });
        drop(hogs);
    }
}

/// The holder of the lock waits for a P on its thread, all others wait for the lock, and no thread
/// is left. The holder's own thread is enough.
#[test]
fn d7_a_lock_is_passed_on_at_the_limit_of_threads() {
    let runtime = Runtime::builder().procs(2).max_threads(16).build().unwrap();
    let lock = Arc::new(Mutex::new(0));
    let worker = |_| {
        let lock = Arc::clone(&lock);
        runtime.spawn(move || {
            for _ in 0..5 {
                let mut count = lock.lock().unwrap();
                *count += 1;
                compute(ms(3));
            }
        })
    };
    let workers: Vec<_> = (0..40).map(worker).collect();
    within(LONG, "the lock", || {
        workers.into_iter().for_each(|w| w.join().unwrap());
        drop(runtime.dump());
    });
    assert_eq!(*lock.lock().unwrap(), 200);
}

/// A goroutine that lost its P before a marked call does not return to the call when the call is
/// over.
#[test]
fn u3_after_a_marked_call_it_has_a_p() {
    let runtime = runtime(1);
    let (past, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let spinner = |_| {
        let (past, is_over) = (Arc::clone(&past), Arc::clone(&is_over));
        runtime.spawn(move || {
            std::thread::sleep(ms(40)); // its P is taken meanwhile
            gosched::blocking(|| ());
            past.fetch_add(1, SeqCst);
            while !is_over.load(SeqCst) {
                std::hint::spin_loop();
            }
        })
    };
    let spinners: Vec<_> = (0..2).map(spinner).collect();
    assert!(eventually(|| past.load(SeqCst) == 2));
    let metrics = runtime.metrics();
    assert_eq!(metrics.in_calls, 0, "{metrics}");
    is_over.store(true, SeqCst);
    spinners.into_iter().for_each(|s| s.join().unwrap());
}

/// A child that may have a runtime of its own has all of it.
#[test]
fn d7_a_copys_own_runtime_preempts() {
    let output = child("found::d7_a_copys_own_runtime_preempts", || {
        for signal in [libc::SIGURG, libc::SIGUSR1] {
            let build = || {
                let builder = Runtime::builder().procs(1).preemption_signal(signal);
                builder.build().unwrap()
            };
            build().run(|| ());
            // SAFETY: no runtime is there; the copy makes its own and leaves.
            let copy = unsafe { libc::fork() };
            if copy == 0 {
                // SAFETY: a setting of this process; no memory is touched. The copy ends when its
                // parent does.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let runtime = build();
                let hogs = Hogs::new(&runtime, 1);
                let answer = runtime.spawn(|| 7).join().unwrap();
                drop(hogs);
                // SAFETY: ends the copy.
                unsafe { libc::_exit(answer) };
            }
            let mut status = 0;
            // SAFETY: our own child.
            unsafe { libc::waitpid(copy, &mut status, 0) };
            assert!(libc::WIFEXITED(status), "{signal}: {status:#x}");
            assert_eq!(libc::WEXITSTATUS(status), 7);
        }
    });
    output.succeeded();
}
