//! Which channels receive a signal, in which order, and how many signals.

use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::tools::*;
use crate::common::{Rng, child, rss_kib, thread_count, within};
use gosched::signal::notify;

const USR1: i32 = libc::SIGUSR1;
const USR2: i32 = libc::SIGUSR2;

#[test]
fn everybody_who_asked_is_told() {
    child("arrival::everybody_who_asked_is_told", || {
        let one = notify(&[USR1]);
        let two = notify(&[USR2, USR1, USR2]);
        let other = notify(&[USR2]);
        kill(USR1);
        assert_eq!(next(&one), USR1);
        assert_eq!(next(&two), USR1);
        kill(USR2);
        assert_eq!(next(&two), USR2);
        assert_eq!(next(&other), USR2);
        assert!(one.is_empty() && two.is_empty() && other.is_empty());
        // A receiver that went does not keep the others from being told.
        drop(two);
        kill(USR1);
        assert_eq!(next(&one), USR1);
        assert!(other.is_empty());
    })
    .succeeded();
}

#[test]
fn clones_share_what_comes() {
    child("arrival::clones_share_what_comes", || {
        let one = notify(&[USR1]);
        let clone = one.clone();
        kill(USR1);
        assert_eq!(next(&clone), USR1);
        assert!(one.is_empty());
        drop(one);
        kill(USR1);
        assert_eq!(next(&clone), USR1);
    })
    .succeeded();
}

#[test]
fn goroutines_threads_and_no_runtime_at_all() {
    child("arrival::goroutines_threads_and_no_runtime_at_all", || {
        let before = notify(&[USR1]);
        kill(USR1);
        assert_eq!(next(&before), USR1);
        gosched::run(|| {
            let mine = notify(&[USR1]);
            let other = gosched::thread::spawn(|| {
                let mine = notify(&[USR1]);
                kill(USR1);
                next(&mine)
            });
            assert_eq!(other.join().unwrap(), USR1);
            assert_eq!(next(&mine), USR1);
            let thread = std::thread::spawn(move || next(&mine));
            kill(USR1);
            assert_eq!(thread.join().unwrap(), USR1);
        });
        // Those for the goroutines, told once, and one after the runtime.
        assert_eq!(next(&before), USR1);
        while before.try_recv().is_ok() {}
        kill(USR1);
        assert_eq!(next(&before), USR1);
    })
    .succeeded();
}

/// What was written before the signal was sent is visible to the receiver.
#[test]
fn u10_sent_before_received() {
    child("arrival::u10_sent_before_received", || {
        static WRITTEN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let signals = notify(&[USR1]);
        let writer = std::thread::spawn(|| {
            for turn in 1..=2000 {
                WRITTEN.store(turn, std::sync::atomic::Ordering::Relaxed);
                raise(USR1);
            }
        });
        within(LONG, "the last value", || {
            loop {
                next(&signals);
                if WRITTEN.load(std::sync::atomic::Ordering::Relaxed) == 2000 {
                    break;
                }
            }
        });
        writer.join().unwrap();
    })
    .succeeded();
}

#[test]
fn the_order_is_kept() {
    child("arrival::the_order_is_kept", || {
        let all = [
            libc::SIGHUP,
            libc::SIGINT,
            USR1,
            USR2,
            libc::SIGTERM,
            libc::SIGRTMAX(),
        ];
        let signals = notify(&all);
        let mut rng = Rng::new(1);
        for _ in 0..1500 {
            let mut order = all;
            for at in (1..order.len()).rev() {
                order.swap(at, rng.below(at as u64 + 1) as usize);
            }
            order.iter().for_each(|signal| raise(*signal));
            assert_eq!(order.map(|_| next(&signals)), order);
        }
        assert!(signals.is_empty());
    })
    .succeeded();
}

/// No channel is read while thousands of signals arrive: the senders are not delayed, memory does
/// not grow, and different signals are not lost.
#[test]
fn a_storm_is_one_value() {
    child("arrival::a_storm_is_one_value", || {
        let slow = notify(&[USR1, libc::SIGTERM]);
        let quick = notify(&[USR1]);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let taker = std::thread::spawn(move || {
            let mut taken = 0;
            while !ends.load(SeqCst) || !quick.is_empty() {
                taken += usize::from(quick.recv_timeout(Duration::from_millis(10)).is_ok());
            }
            taken
        });
        kill(USR1);
        assert_eq!(next(&slow), USR1);
        let rss = rss_kib();
        within(LONG, "the storm", || {
            let storm = |_| {
                std::thread::spawn(|| {
                    for _ in 0..5000 {
                        kill(USR1);
                    }
                })
            };
            let storms = [0, 1].map(storm);
            storms.into_iter().for_each(|t| t.join().unwrap());
            for _ in 0..1000 {
                raise(USR1);
                assert!(slow.len() <= 1);
            }
        });
        assert!(rss_kib() < rss + 4096, "{rss} -> {}", rss_kib());
        kill(libc::SIGTERM);
        // The one that waited, perhaps one that a thread was still to handle, and the other signal.
        let mut told = vec![next(&slow)];
        while told.last() != Some(&libc::SIGTERM) {
            told.push(next(&slow));
        }
        assert!(told[0] == USR1 && told.len() <= 4, "{told:?}");
        is_over.store(true, SeqCst);
        let taken = taker.join().unwrap();
        assert!((1..=11_002).contains(&taken), "{taken}");
        // A last one, which the dispatcher may have been about to deliver.
        while slow.recv_timeout(Duration::from_millis(50)).is_ok() {}
        kill(USR1);
        assert_eq!(next(&slow), USR1);
    })
    .succeeded();
}

/// After every value that is taken, the next signal is delivered: none is marked as delivered that
/// is not.
#[test]
fn nothing_is_lost_between_two_takes() {
    child("arrival::nothing_is_lost_between_two_takes", || {
        let signals = notify(&[USR1, USR2]);
        for turn in 0..5000 {
            raise(if turn % 2 == 0 { USR1 } else { USR2 });
            raise(USR1);
            // However the dispatcher merged these, the last one arrives in the end.
            while next(&signals) != USR1 {}
        }
    })
    .succeeded();
}

#[test]
fn asking_again_and_again_leaves_nothing() {
    child("arrival::asking_again_and_again_leaves_nothing", || {
        let before = essence(&action(USR1));
        let round = || {
            for _ in 0..300 {
                let [one, two] = [notify(&[USR1]), notify(&[USR1, USR2])];
                raise(USR1);
                assert_eq!([next(&one), next(&two)], [USR1, USR1]);
                if one.is_empty() {
                    drop(one);
                } else {
                    one.close();
                }
                drop(two);
                assert_eq!(essence(&action(USR1)), before);
            }
        };
        round();
        let (threads, rss) = (thread_count(), rss_kib());
        assert_eq!(threads, 2, "this one and the dispatcher");
        (0..5).for_each(|_| round());
        assert_eq!(thread_count(), threads);
        assert!(rss_kib() < rss + 2048, "{rss} -> {}", rss_kib());
    })
    .succeeded();
}

/// Many subscribe and unsubscribe at the same time: every subscriber receives the signal.
#[test]
fn asking_and_going_at_once() {
    child("arrival::asking_and_going_at_once", || {
        let before = essence(&action(USR1));
        let stays = notify(&[USR2]);
        within(LONG, "the askers", || {
            let ask = |_| {
                std::thread::spawn(|| {
                    for _ in 0..300 {
                        let signals = notify(&[USR1]);
                        raise(USR1);
                        assert_eq!(next(&signals), USR1);
                    }
                })
            };
            let askers = [0, 1, 2, 3].map(ask);
            askers.into_iter().for_each(|t| t.join().unwrap());
        });
        assert_eq!(essence(&action(USR1)), before);
        kill(USR2);
        assert_eq!(next(&stays), USR2);
    })
    .succeeded();
}

#[test]
fn what_cannot_be_received_says_why() {
    child("arrival::what_cannot_be_received_says_why", || {
        let refused = |signals: &'static [i32]| {
            let caught = catch_unwind(|| drop(notify(signals))).expect_err("a panic");
            caught
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| caught.downcast_ref::<&str>().map(|s| s.to_string()))
                .expect("a text")
        };
        assert!(refused(&[]).contains("name the signals"));
        for signals in [&[0], &[-1], &[65], &[1000], &[i32::MIN], &[i32::MAX]] {
            assert!(refused(signals).contains("from 1 to 64"));
        }
        assert!(refused(&[USR1, libc::SIGKILL]).contains("cannot be caught"));
        assert!(refused(&[libc::SIGSTOP]).contains("cannot be caught"));
        for signals in [
            &[libc::SIGSEGV],
            &[libc::SIGBUS],
            &[libc::SIGFPE],
            &[libc::SIGILL],
        ] {
            assert!(refused(signals).contains("faults"));
        }
        assert!(refused(&[32]).contains("libc"));
        assert!(refused(&[33]).contains("libc"));
        // Nothing was begun for the good ones beside the bad.
        assert_eq!(action(USR1).sa_sigaction, libc::SIG_DFL);
        assert_eq!(thread_count(), 1);
        // Everything else can be.
        let rest: Vec<_> = (1..65)
            .filter(|n| ![4, 7, 8, 9, 11, 19, 32, 33].contains(n))
            .collect();
        let signals = notify(&rest);
        for signal in rest {
            raise(signal);
            assert_eq!(next(&signals), signal);
        }
    })
    .succeeded();
}
