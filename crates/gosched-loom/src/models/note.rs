//! An M's note (M1): cleared, published on the idle list, slept on, woken once, and used again.
//!
//! [`Idle`] is the idle list of one M: the scheduler lock around "can be found by a waker". What
//! the waker stores for the M, its `nextp`, is a plain field: loom reports a sleeper that continues
//! before it was written.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

use super::{Plain, explore};
use crate::note::Note;
use crate::shim::{self, Acquire, AtomicU32, Release};

/// Any deadline; the story decides when it passes.
const SOON: u64 = 1;

/// A request to a sleeper.
const QUIET: u32 = 0;
const ASKED: u32 = 1;
const ANSWERED: u32 = 2;

/// An M with its note, and its place on the idle list.
struct Idle {
    is_idle: Mutex<bool>,
    park: Note,
    nextp: Plain,
}

impl Idle {
    fn new() -> Arc<Idle> {
        Arc::new(Idle {
            is_idle: Mutex::new(false),
            park: Note::new(),
            nextp: Plain::new(0),
        })
    }

    /// The M puts itself on the list, as `put_idle_m` does.
    fn publish(&self) {
        let mut is_idle = self.is_idle.lock().unwrap();
        self.park.clear();
        self.nextp.set(0);
        *is_idle = true;
    }

    /// A waker takes the M off the list and gives it a P; returns false if it was not there.
    fn start(&self, p: u32) -> bool {
        if !std::mem::take(&mut *self.is_idle.lock().unwrap()) {
            return false;
        }
        self.nextp.set(p);
        self.park.wakeup();
        true
    }

    /// For a waker that knows that the M will come.
    fn start_when_idle(&self, p: u32) {
        while !self.start(p) {
            thread::yield_now();
        }
    }

    /// `stop_m`: sleeps until woken or until the deadline. Returns the P it was given, or None if
    /// it has taken itself off the list.
    fn stop_until_soon(&self) -> Option<u32> {
        self.publish();
        if !self.park.sleep_until(SOON) {
            let mut is_idle = self.is_idle.lock().unwrap();
            if std::mem::take(&mut *is_idle) {
                return None;
            }
            // A waker has already taken it off the list and is about to wake it.
            drop(is_idle);
            self.park.sleep();
        }
        Some(self.nextp.get())
    }
}

/// Slept on and woken twice. Explored: the wake-up before the sleep, during it, and the first
/// round's kernel wake in the second round: the store and the system call are two steps. Fails if
/// `sleep` trusts the kernel, if `wakeup` does not wake, or if its store does not publish.
#[test]
fn m1_a_note_is_used_twice() {
    explore(None, || {
        let m = Idle::new();
        let waker = thread::spawn({
            let m = m.clone();
            move || (1..=2).for_each(|p| m.start_when_idle(p))
        });
        for p in 1..=2 {
            m.publish();
            m.park.sleep();
            assert_eq!(m.nextp.get(), p);
        }
        waker.join().unwrap();
    });
}

/// The kernel may wake for no reason: the sleeper sleeps again.
#[test]
fn m1_a_note_sleeps_through_a_stray_wake() {
    explore(None, || {
        let m = Idle::new();
        m.publish();
        let waker = thread::spawn({
            let m = m.clone();
            move || assert!(m.start(1))
        });
        let stray = thread::spawn(shim::wake_for_no_reason);
        m.park.sleep();
        assert_eq!(m.nextp.get(), 1);
        waker.join().unwrap();
        stray.join().unwrap();
    });
}

/// The same with a deadline that does not pass: only the wake-up ends the sleep. Fails if
/// `sleep_until` trusts the kernel.
#[test]
fn m1_sleep_until_sleeps_through_a_stray_wake() {
    explore(None, || {
        let m = Idle::new();
        m.publish();
        let waker = thread::spawn({
            let m = m.clone();
            move || assert!(m.start(1))
        });
        let stray = thread::spawn(shim::wake_for_no_reason);
        assert!(m.park.sleep_until(SOON), "no deadline has passed");
        assert_eq!(m.nextp.get(), 1);
        waker.join().unwrap();
        stray.join().unwrap();
    });
}

/// The deadline races with the waker, and then the note is used again. Explored: either first, and
/// the waker that has taken the M off the list but not woken it yet when the deadline passes. The M
/// must then wait for it, or the late wake-up would end the next sleep. The waker gave a P exactly
/// if the M returns one.
#[test]
fn m1_a_deadline_against_a_waker() {
    explore(Some(4), || {
        let m = Idle::new();
        let waker = thread::spawn({
            let m = m.clone();
            move || m.start(1)
        });
        let clock = thread::spawn(shim::pass_deadlines);
        let first = m.stop_until_soon();
        let second = m.stop_until_soon();
        let has_given = waker.join().unwrap();
        clock.join().unwrap();
        assert_eq!(
            first.is_some() as u32 + second.is_some() as u32,
            has_given as u32
        );
        assert_eq!(first.or(second), has_given.then_some(1));
    });
}

/// `sleep_until` returns true if the wake-up came before the deadline was seen, and only for a
/// woken note.
#[test]
fn m1_sleep_until_tells_the_truth() {
    explore(None, || {
        let note = Arc::new(Note::new());
        let data = Arc::new(Plain::new(0));
        let waker = thread::spawn({
            let (note, data) = (note.clone(), data.clone());
            move || {
                data.set(1);
                note.wakeup();
            }
        });
        let clock = thread::spawn(shim::pass_deadlines);
        if note.sleep_until(SOON) {
            assert_eq!(data.get(), 1);
            assert!(note.is_set());
        }
        waker.join().unwrap();
        clock.join().unwrap();
        assert!(note.sleep_until(SOON), "woken beats any deadline");
    });
}

/// A thread asks the sleeper something and nudges until it has answered. Explored: the nudge that
/// comes when the sleeper has listened but does not sleep yet. The sleeper misses it, hence the
/// next one. The sleeper answers and continues to sleep; only a wake-up ends the sleep. Fails if it
/// continues after a nudge, or if it does not listen again.
#[test]
fn m1_a_sleeper_answers_and_sleeps_on() {
    explore(Some(3), || {
        let m = Idle::new();
        m.publish();
        let question = Arc::new(AtomicU32::new(QUIET));
        let waker = thread::spawn({
            let (m, question) = (m.clone(), question.clone());
            move || {
                question.store(ASKED, Release);
                while question.load(Acquire) != ANSWERED {
                    m.park.nudge();
                    thread::yield_now();
                }
                assert!(m.start(1));
            }
        });
        m.park.sleep_hearing(|| {
            if question.load(Acquire) == ASKED {
                question.store(ANSWERED, Release);
            }
        });
        assert_eq!(m.nextp.get(), 1);
        waker.join().unwrap();
    });
}
