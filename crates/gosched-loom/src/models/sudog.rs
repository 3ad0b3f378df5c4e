//! The word of one wait (G4): one claim ends it, the handed-over value is visible (U10), and no
//! thread touches the waiter afterwards.
//!
//! The waiter is a plain thread that waits on two things at once, as a select does. Its word, its
//! note and its value are in memory of its own, which it frees as soon as it may. Loom reports a
//! touch that comes too late. A thing is what is left of a channel's queue: a lock around the
//! waiter's address. The bound is three preemptions; two with a clock in addition.

use std::ptr;
use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

use super::{Plain, explore};
use crate::note::Note;
use crate::shim::{self, Cell, Part};
use crate::sudog::{Found, WaitWord};

/// Any deadline; the story decides when it passes.
const SOON: u64 = 1;

/// The case of the waiter itself, for a timeout. The cases of the things are 0 and 1.
const TIMED_OUT: usize = 7;

/// The memory of a wait.
struct Wait {
    word: WaitWord,
    note: Note,
    given: Cell<usize>,
    /// The sleeper that sleeps late.
    late: Cell<usize>,
}

impl Wait {
    fn new() -> Box<Wait> {
        Box::new(Wait {
            word: WaitWord::new(),
            note: Note::new(),
            given: Cell::new(0),
            late: Cell::new(0),
        })
    }

    /// The address of its note, tagged as a thread's.
    fn address(&self) -> usize {
        &raw const self.note as usize | 2
    }

    /// The library's `wait_thread`.
    fn sleep(&self, is_timed: bool) {
        if !self.word.commit(self.address()) {
            return;
        }
        if !is_timed {
            return self.note.sleep();
        }
        if self.note.sleep_until(SOON) {
            return;
        }
        if self.word.claim(TIMED_OUT) == Found::Over {
            self.note.sleep(); // a claimer has us and will touch the note
        } else {
            self.word.finish_asleep(TIMED_OUT);
        }
    }

    /// How the wait ended. A refused waiter comes here while the claimer is not done yet, and
    /// sleeps late.
    fn outcome(&self) -> usize {
        let case = loop {
            if let Some(case) = self.word.outcome() {
                break case;
            }
            self.late.set(self.address());
            if self.word.commit_late() {
                self.note.sleep();
            }
        };
        if case != TIMED_OUT {
            assert_eq!(self.given.get(), case + 100, "U10: what was handed over");
        }
        case
    }
}

/// Something to wait on.
struct Thing(Mutex<*const Wait>);

// SAFETY: G4. The address is followed only under the lock, or by the thread that has claimed the
// wait.
unsafe impl Send for Thing {}
// SAFETY: G4. The address is followed only under the lock, or by the thread that has claimed the
// wait.
unsafe impl Sync for Thing {}

/// How a claimer leaves.
#[derive(Clone, Copy, PartialEq)]
enum Leaves {
    AtOnce,
    /// It loads the word once more.
    Late,
}

impl Thing {
    /// Ends the wait of the waiter here, unless it is over; returns whether it did.
    fn happen(&self, case: usize, leaves: Leaves) -> bool {
        let mut place = self.0.lock().unwrap();
        // SAFETY: G4. A waiter removes itself under the lock, which is held here, before its memory
        // ends.
        let Some(wait) = (unsafe { place.as_ref() }) else {
            return false;
        };
        *place = ptr::null();
        let found = wait.word.claim(case);
        if found == Found::Over {
            return false;
        }
        wait.given.set(case + 100);
        let asleep = match found {
            Found::Asleep(note) => {
                wait.word.finish_asleep(case);
                Some(note)
            }
            _ => wait.word.finish_awake(case).then(|| wait.late.get()),
        };
        if leaves == Leaves::Late {
            assert!(wait.word.is_claimed());
        }
        drop(place);
        if let Some(note) = asleep {
            // SAFETY: G4. The sleeper's note lives until it is woken, and this thread alone has
            // claimed the wait.
            unsafe { &*((note & !2) as *const Note) }.wakeup();
        }
        true
    }
}

/// A wait on two things that happen at any moment after the waiter has queued itself; its deadline
/// may pass too.
fn two_things_happen(is_timed: bool, leaves: Leaves) {
    let preemptions = if is_timed { 2 } else { 3 };
    explore(Some(preemptions), move || {
        let wait = Wait::new();
        let things = Arc::new([0, 1].map(|_| Thing(Mutex::new(&raw const *wait))));
        let claimers = [0, 1].map(|case| {
            let things = things.clone();
            thread::spawn(move || things[case].happen(case, leaves))
        });
        let clock = is_timed.then(|| thread::spawn(shim::pass_deadlines));
        wait.sleep(is_timed);
        let case = wait.outcome();
        for (at, thing) in things.iter().enumerate() {
            if at != case {
                *thing.0.lock().unwrap() = ptr::null();
            }
        }
        drop(wait);
        let won = claimers.map(|claimer| claimer.join().unwrap());
        assert_eq!(won, [case == 0, case == 1], "G4: one claim wins");
        if let Some(clock) = clock {
            clock.join().unwrap();
        }
    });
}

/// Explored: both claims before the commit, which is then refused, around it, and while the waiter
/// sleeps. The refused waiter finds the claimer done, or sleeps late. Fails
///
/// - if a claim is a load and a store,
/// - if a commit overwrites a claim,
/// - if the waiter takes a claim for the end, or
/// - if `finish` does not return the sleeper.
#[test]
fn g4_one_of_two_claims_ends_a_wait() {
    two_things_happen(false, Leaves::AtOnce);
}

/// The same with a third claimer: the waiter itself, whose deadline passes. Fails if a waiter that
/// finds itself claimed does not wait for its wake-up: its note would then be gone.
#[test]
fn g4_a_timeout_is_one_claim_among_others() {
    two_things_happen(true, Leaves::AtOnce);
}

/// A waiter that was awake when it was claimed may be gone once the word is done.
#[test]
#[should_panic(expected = "Causality violation")]
fn g4_finish_is_the_last_touch_of_an_awake_waiter() {
    two_things_happen(false, Leaves::Late);
}

/// `finish` publishes what was handed over. Without that the waiter may not even see the end of its
/// wait.
#[test]
#[should_panic]
fn u10_without_release_the_waiter_does_not_see_what_it_got() {
    shim::without(Part::Release, || two_things_happen(false, Leaves::AtOnce));
}

/// The waiter's load of the word sees it.
#[test]
#[should_panic]
fn u10_without_acquire_the_waiter_does_not_see_what_it_got() {
    shim::without(Part::Acquire, || two_things_happen(false, Leaves::AtOnce));
}

/// The commit publishes the waiter's note to the thread that claims it asleep. The waiter made the
/// note after it had queued itself, as a goroutine leaves its stack after that.
#[test]
fn pk_a_commit_publishes_what_the_claimer_wakes() {
    explore(None, || {
        let word = Arc::new(WaitWord::new());
        let left = Arc::new(Plain::new(0));
        let claimer = thread::spawn({
            let (word, left) = (word.clone(), left.clone());
            move || {
                let found = word.claim(3);
                if let Found::Asleep(who) = found {
                    assert_eq!(who, 8);
                    assert_eq!(left.get(), 1, "PK: it has left its stack");
                }
                match found {
                    Found::Asleep(_) => word.finish_asleep(3),
                    _ => assert!(!word.finish_awake(3), "no waiter sleeps late here"),
                }
                found
            }
        });
        left.set(1);
        let is_asleep = word.commit(8);
        let found = claimer.join().unwrap();
        assert_eq!(found == Found::Asleep(8), is_asleep);
        assert_eq!(word.outcome(), Some(3));
    });
}
