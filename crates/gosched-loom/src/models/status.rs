//! The status word: which thread waits for which when several want a parked goroutine (G0, G1, G6).
//!
//! The goroutine's stack is a plain field. A scanner touches it while it holds the Scan bit, the
//! goroutine while it is Running. Loom reports two that touch it at once.

use std::sync::Arc;

use loom::thread;

use super::{Plain, explore};
use crate::gstatus::{Status, StatusWord};
use crate::note::Note;
use crate::sleeper::Sleeper;
use crate::wait_word::WaitWord;

/// A goroutine, parked on a slot.
struct Parked {
    status: StatusWord,
    slot: WaitWord,
    /// Stands for the G: its address is the sleeper's.
    g: Note,
    stack: Plain,
    wakes: Plain,
}

impl Parked {
    fn new() -> Arc<Parked> {
        let g = Arc::new(Parked {
            status: StatusWord::new(Status::Waiting),
            slot: WaitWord::new(),
            g: Note::new(),
            stack: Plain::new(0),
            wakes: Plain::new(0),
        });
        assert!(g.slot.commit(g.sleeper()).is_ok());
        g
    }

    /// The goroutine, as a sleeper.
    fn sleeper(&self) -> Sleeper {
        // SAFETY: the note stays until all threads of the story have ended.
        unsafe { Sleeper::thread(&self.g) }
    }

    /// The dump and the scavenger: holds the Scan bit and uses the stack.
    fn scan(&self) {
        if self.status.begin_scan(Status::Waiting) {
            self.stack.add(1);
            assert!(self.status.is_scanned());
            assert_eq!(self.status.get(), Status::Waiting, "the bit is no state");
            self.status.end_scan(Status::Waiting);
        }
    }

    /// The scavenger: returns the unused pages of the stack, in state CopyStack.
    fn shrink(&self) {
        if self.status.begin_shrink() {
            self.stack.add(1);
            self.status.transition(Status::CopyStack, Status::Waiting);
        }
    }

    /// The leak check: marks the goroutine, and then reads its stack as a dump does.
    fn mark(&self) {
        if self.status.mark_leaked() && self.status.begin_scan(Status::Leaked) {
            self.stack.add(1);
            self.status.end_scan(Status::Leaked);
        }
    }

    /// The owner of the wake-up makes the goroutine runnable; then it runs.
    fn wake(&self) {
        self.status.transition(Status::Waiting, Status::Runnable);
        self.wakes.add(1);
        self.status.transition(Status::Runnable, Status::Running);
        self.stack.add(1);
    }

    /// The event that the goroutine waits for.
    fn complete(&self) {
        if self.slot.complete() == Some(self.sleeper()) {
            self.wake();
        }
    }

    /// A request to unwind: withdraws the goroutine from its wait, with the Scan bit held.
    fn cancel(&self) {
        if self.status.begin_scan(Status::Waiting) {
            let is_ours = self.slot.withdraw(&self.sleeper());
            self.status.end_scan(Status::Waiting);
            if is_ours {
                self.wake();
            }
        }
    }
}

/// A scanner against a waker. Explored: the wake-up before, after and in the middle of the scan,
/// where it waits for the bit. Fails if a transition ignores the bit, or if clearing it does not
/// publish what its holder did.
#[test]
fn g6_a_waker_waits_for_the_scan_bit() {
    explore(None, || {
        let g = Parked::new();
        let scanner = thread::spawn({
            let g = g.clone();
            move || g.scan()
        });
        g.complete();
        scanner.join().unwrap();
        assert_eq!(g.status.get(), Status::Running);
        assert!(!g.status.is_scanned());
        assert_eq!(g.wakes.get(), 1);
    });
}

/// Two scanners and a waker: one bit, one holder. Fails if `begin_scan` succeeds on a scanned
/// goroutine.
#[test]
fn g6_the_scan_bit_has_one_holder() {
    explore(None, || {
        let g = Parked::new();
        let scanners = [0, 1].map(|_| {
            let g = g.clone();
            thread::spawn(move || g.scan())
        });
        g.complete();
        for scanner in scanners {
            scanner.join().unwrap();
        }
        assert_eq!(g.status.get(), Status::Running);
        assert!((1..=3).contains(&g.stack.get()));
    });
}

/// The event and a request to unwind both want to wake the goroutine, beside a scanner. The slot
/// decides which owns the wake-up, and the loser does not touch the status. Fails (with an illegal
/// edge, G0) if both take Waiting → Runnable.
#[test]
fn g1_an_event_and_a_cancel_wake_once() {
    explore(None, || {
        let g = Parked::new();
        let canceller = thread::spawn({
            let g = g.clone();
            move || g.cancel()
        });
        let scanner = thread::spawn({
            let g = g.clone();
            move || g.scan()
        });
        g.complete();
        canceller.join().unwrap();
        scanner.join().unwrap();
        assert_eq!(g.status.get(), Status::Running);
        assert_eq!(g.wakes.get(), 1);
    });
}

/// The scavenger, a scanner and a waker want the stack, one at a time. The waker waits for both and
/// never takes CopyStack for an illegal state. Fails if a shrink begins on a scanned goroutine, or
/// if a waker does not wait.
#[test]
fn g0_a_waker_waits_for_a_shrink() {
    explore(None, || {
        let g = Parked::new();
        let scavenger = thread::spawn({
            let g = g.clone();
            move || g.shrink()
        });
        let scanner = thread::spawn({
            let g = g.clone();
            move || g.scan()
        });
        g.complete();
        scavenger.join().unwrap();
        scanner.join().unwrap();
        assert_eq!(g.status.get(), Status::Running);
        assert!((1..=3).contains(&g.stack.get()));
    });
}

/// The leak check marks and reads a goroutine that is then woken, or asked to unwind. In any order
/// it continues, once. Fails if a waker takes Leaked for an illegal state, or if the mark is
/// removed under the Scan bit.
#[test]
fn g0_a_waker_restores_a_leaked_goroutine() {
    let wakers: [fn(&Parked); 2] = [Parked::complete, |g| {
        g.status.restore();
        g.cancel();
    }];
    for wake in wakers {
        explore(None, move || {
            let g = Parked::new();
            let checker = thread::spawn({
                let g = g.clone();
                move || g.mark()
            });
            wake(&g);
            checker.join().unwrap();
            // A goroutine that was marked after the request sees the request at its next check.
            wake(&g);
            assert_eq!(g.status.get(), Status::Running);
            assert_eq!(g.wakes.get(), 1);
        });
    }
}

/// A goroutine that was stopped on its thread is queued from there. It passes through Waiting, but
/// its stack is in use. A scanner and the scavenger must not take it for a waiting one. Fails if
/// the step in between goes without the Scan bit.
#[test]
fn g6_a_preempted_goroutine_is_never_seen_waiting() {
    explore(None, || {
        let g = Arc::new(StatusWord::new(Status::Preempted));
        let looks: [fn(&StatusWord) -> bool; 2] =
            [|g| g.begin_scan(Status::Waiting), StatusWord::begin_shrink];
        let others = looks.map(|look| {
            let g = g.clone();
            thread::spawn(move || assert!(!look(&g), "G6: its stack is in use"))
        });
        g.requeue_preempted();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(g.get(), Status::Runnable);
        assert!(!g.is_scanned());
    });
}

/// Two wakers that did not check which owns the wake-up: one of them finds the goroutine Runnable,
/// and that is fatal.
#[test]
#[should_panic(expected = "illegal goroutine status change 4 -> 1")]
fn g0_the_second_of_two_wakers_is_fatal() {
    explore(None, || {
        let g = Parked::new();
        let other = thread::spawn({
            let g = g.clone();
            move || g.status.transition(Status::Waiting, Status::Runnable)
        });
        g.status.transition(Status::Waiting, Status::Runnable);
        other.join().unwrap();
    });
}

/// An edge that does not exist is fatal, whatever the word is.
#[test]
#[should_panic(expected = "illegal goroutine status change 6 -> 2")]
fn g0_an_edge_that_does_not_exist_is_fatal() {
    explore(None, || {
        StatusWord::new(Status::Dead).transition(Status::Dead, Status::Running);
    });
}

/// Only its holder clears a Scan bit; clearing without one is fatal.
#[test]
#[should_panic(expected = "illegal goroutine status change 4100 -> 4")]
fn g6_clearing_a_bit_that_nobody_holds_is_fatal() {
    explore(None, || {
        StatusWord::new(Status::Waiting).end_scan(Status::Waiting);
    });
}
