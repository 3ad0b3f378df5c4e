//! What signals do before, meanwhile and afterwards; masks, children, forks.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::tools::*;
use crate::common::{child, child_of, eventually};
use gosched::signal::notify;

const USR1: i32 = libc::SIGUSR1;

#[test]
fn the_action_before_returns() {
    child("actions::the_action_before_returns", || {
        let one: extern "C" fn(i32) = one_argument;
        let three: extern "C" fn(_, _, _) = three_arguments;
        for (handler, flags) in [
            (libc::SIG_DFL, 0),
            (libc::SIG_IGN, 0),
            (one as usize, libc::SA_RESTART),
            (three as usize, libc::SA_SIGINFO | libc::SA_NODEFER),
        ] {
            set_action(USR1, handler, flags);
            let before = essence(&action(USR1));
            let [one, two] = [notify(&[USR1]), notify(&[USR1])];
            assert_ne!(action(USR1).sa_sigaction, handler);
            drop(one);
            assert_ne!(action(USR1).sa_sigaction, handler, "somebody wants it");
            drop(two);
            assert_eq!(essence(&action(USR1)), before);
            // Closing is as good as dropping.
            let closed = notify(&[USR1]);
            assert!(closed.close());
            assert_eq!(essence(&action(USR1)), before);
            assert!(closed.recv().is_err());
        }
    })
    .succeeded();
}

/// The program's own handler is still called while a channel receives, once for each signal.
#[test]
fn the_program_s_own_handler_is_called_too() {
    child("actions::the_program_s_own_handler_is_called_too", || {
        let one: extern "C" fn(i32) = one_argument;
        let three: extern "C" fn(_, _, _) = three_arguments;
        for (handler, flags) in [(one as usize, 0), (three as usize, libc::SA_SIGINFO)] {
            CALLS.store(0, SeqCst);
            set_action(USR1, handler, flags);
            raise(USR1);
            let signals = notify(&[USR1]);
            let others = notify(&[USR1]);
            for _ in 0..10 {
                raise(USR1);
                assert_eq!([next(&signals), next(&others)], [USR1; 2]);
            }
            drop((signals, others));
            raise(USR1);
            assert_eq!(CALLS.load(SeqCst), 12);
        }
    })
    .succeeded();
}

/// Default: ends the process. So it does again after the drop, and also for a process that had it
/// ignored while it was received.
#[test]
fn the_default_action_is_back_after_the_drop() {
    for variant in ["dropped", "closed", "held", "one of two"] {
        let out = child_of(
            "actions::the_default_action_is_back_after_the_drop",
            variant,
            |variant| {
                let signals = notify(&[libc::SIGTERM]);
                let second = (variant == "one of two").then(|| notify(&[libc::SIGTERM]));
                kill(libc::SIGTERM);
                assert_eq!(next(&signals), libc::SIGTERM);
                match variant {
                    "dropped" => drop(signals),
                    "closed" => assert!(signals.close()),
                    "held" => std::mem::forget(signals),
                    _ => drop(signals),
                }
                kill(libc::SIGTERM);
                std::thread::sleep(Duration::from_millis(100));
                drop(second);
            },
        );
        match variant {
            "dropped" | "closed" => {
                assert_eq!(out.status.signal(), Some(libc::SIGTERM), "{out:#?}");
            }
            _ => out.succeeded(),
        }
    }
}

/// A handler that was installed later stays, and may call ours.
#[test]
fn a_later_handler_stays() {
    child("actions::a_later_handler_stays", || {
        let one: extern "C" fn(i32) = one_argument;
        let signals = notify(&[USR1]);
        set_action(USR1, one as usize, 0);
        raise(USR1);
        assert_eq!(CALLS.load(SeqCst), 1);
        assert!(signals.recv_timeout(Duration::from_millis(50)).is_err());
        // Asking again does not put ours above it: the two would call each other for ever, if it
        // were one that calls ours.
        let again = notify(&[USR1]);
        drop((signals, again));
        raise(USR1);
        assert_eq!(CALLS.load(SeqCst), 2);
        assert_eq!(action(USR1).sa_sigaction, one as usize);
    })
    .succeeded();
}

static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// A handler in the manner of C's `signal`: it calls the one before it, with one argument.
extern "C" fn calls_the_one_before(signal: i32) {
    // SAFETY: the address of the handler before. C calls it like this if it was installed by
    // `signal`, and its other two arguments are then whatever the registers hold.
    let before = unsafe {
        std::mem::transmute::<usize, extern "C" fn(i32, usize, usize)>(BEFORE.load(SeqCst))
    };
    before(signal, 0, 1);
}

/// A later handler may call ours without its second and third argument.
#[test]
fn a_later_handler_calls_ours_with_one_argument() {
    for below in ["ignored", "handled"] {
        let name = "actions::a_later_handler_calls_ours_with_one_argument";
        let out = child_of(name, below, |below| {
            let one: extern "C" fn(i32) = one_argument;
            let chained: extern "C" fn(i32) = calls_the_one_before;
            let is_handled = below == "handled";
            let before = if is_handled {
                one as usize
            } else {
                libc::SIG_IGN
            };
            set_action(USR1, before, 0);
            let signals = notify(&[USR1]);
            BEFORE.store(action(USR1).sa_sigaction, SeqCst);
            set_action(USR1, chained as usize, 0);
            raise(USR1);
            assert_eq!(next(&signals), USR1);
            assert_eq!(CALLS.load(SeqCst), usize::from(is_handled));
        });
        out.succeeded();
    }
}

/// Held back by every thread of the program: one thread hears it nevertheless, and not a moment
/// longer than it is wanted.
#[test]
fn a_signal_that_is_held_back_everywhere() {
    child("actions::a_signal_that_is_held_back_everywhere", || {
        block(USR1);
        for _ in 0..100 {
            let signals = notify(&[USR1]);
            kill(USR1);
            assert_eq!(next(&signals), USR1);
        }
        // No channel receives it: the signal waits, and the default action, which ends the process,
        // does not happen.
        let other = notify(&[libc::SIGUSR2]);
        kill(USR1);
        kill(libc::SIGUSR2);
        assert_eq!(next(&other), libc::SIGUSR2);
        std::thread::sleep(Duration::from_millis(50));
        // It was kept for the next `notify`.
        assert_eq!(next(&notify(&[USR1])), USR1);
    })
    .succeeded();
}

/// What libc tells every thread of the process by a signal of its own reaches the dispatcher, too.
#[test]
fn libc_s_own_signals_are_not_held_back() {
    child("actions::libc_s_own_signals_are_not_held_back", || {
        let signals = notify(&[USR1]);
        kill(USR1);
        assert_eq!(next(&signals), USR1);
        // SAFETY: changes nothing, in every thread; a thread that did not answer would make it wait
        // for ever.
        unsafe { assert_eq!(libc::setgid(libc::getgid()), 0) };
        let other = std::thread::spawn(|| next(&notify(&[USR1])));
        assert!(eventually(|| {
            kill(USR1);
            // SAFETY: sets the user to what it is; touches no memory of this process.
            unsafe { libc::setuid(libc::getuid()) == 0 && other.is_finished() }
        }));
    })
    .succeeded();
}

/// The sets of signals of a process, from /proc; without libc's own two, which it ignores or not as
/// it likes.
fn sets(command: &mut Command) -> Vec<(String, u64)> {
    let out = command.output().expect("a process");
    let text = String::from_utf8(out.stdout).expect("text");
    text.lines()
        .filter_map(|line| line.split_once(":\t"))
        .filter(|(name, _)| ["SigBlk", "SigIgn", "SigCgt"].contains(name))
        .map(|(name, set)| {
            (
                name.to_owned(),
                u64::from_str_radix(set, 16).expect("a set") & !(3 << 31),
            )
        })
        .collect()
}

/// Programs that are executed do not inherit what we did, from wherever they are started.
#[test]
fn executed_programs_start_with_the_default() {
    child("actions::executed_programs_start_with_the_default", || {
        let status = || {
            let mut cat = Command::new("cat");
            cat.arg("/proc/self/status");
            cat
        };
        let forking = || {
            let mut cat = status();
            // SAFETY: does nothing, but makes std fork.
            unsafe { cat.pre_exec(|| Ok(())) };
            cat
        };
        let before = sets(&mut status());
        assert_eq!(before.len(), 3);
        let signals = notify(&[USR1, libc::SIGINT, libc::SIGCHLD]);
        assert_eq!(sets(&mut status()), before);
        assert_eq!(sets(&mut forking()), before);
        gosched::run(|| {
            assert_eq!(sets(&mut status()), before);
            assert_eq!(sets(&mut forking()), before);
        });
        drop(signals);
        assert_eq!(sets(&mut status()), before);
        assert_eq!(sets(&mut forking()), before);
    })
    .succeeded();
}

fn end_of_fork(body: impl FnOnce()) -> std::process::ExitStatus {
    // SAFETY: the child has this thread alone, and does what the test is about.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork"),
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: ends the child.
            unsafe { libc::_exit(if done.is_ok() { 0 } else { 101 }) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            std::process::ExitStatus::from_raw(status)
        }
    }
}

/// The child of a fork has no dispatcher: it has the actions of before, and may ask itself.
#[test]
fn the_child_of_a_fork_asks_for_itself() {
    child("actions::the_child_of_a_fork_asks_for_itself", || {
        let signals = notify(&[libc::SIGTERM, USR1]);
        let plain = end_of_fork(|| {
            raise(libc::SIGTERM);
        });
        assert_eq!(plain.signal(), Some(libc::SIGTERM));
        let asks = end_of_fork(|| {
            let own = notify(&[USR1]);
            raise(USR1);
            assert_eq!(next(&own), USR1);
            drop(own);
            drop(signals.clone());
            assert_eq!(action(USR1).sa_sigaction, libc::SIG_DFL);
            assert_eq!(action(libc::SIGTERM).sa_sigaction, libc::SIG_DFL);
        });
        assert_eq!(asks.code(), Some(0));
        let drops = end_of_fork(|| {
            drop(signals);
            raise(USR1);
        });
        assert_eq!(drops.signal(), Some(USR1));
        let parent = notify(&[USR1]);
        kill(USR1);
        assert_eq!(next(&parent), USR1);
    })
    .succeeded();
}

/// A parent that ignores SIGCHLD has no zombies; nor has one that receives it as well.
#[test]
fn children_are_reaped_as_before() {
    child("actions::children_are_reaped_as_before", || {
        set_action(libc::SIGCHLD, libc::SIG_IGN, 0);
        let signals = notify(&[libc::SIGCHLD]);
        // SAFETY: a child that ends at once.
        let pid = unsafe {
            match libc::fork() {
                0 => libc::_exit(0),
                pid => pid,
            }
        };
        assert!(pid > 0);
        assert_eq!(next(&signals), libc::SIGCHLD);
        // SAFETY: asks whether the child is there.
        assert!(eventually(|| unsafe { libc::kill(pid, 0) } != 0));
    })
    .succeeded();
}
