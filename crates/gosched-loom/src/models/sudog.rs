//! The word of one wait (G4): one claim ends it, what is handed over is seen (U10), and no thread
//! touches the waiter afterwards.
//!
//! The waiter is a plain thread that waits on two things at once, as a select does. Its word, its
//! note and what it is given lie in memory of its own. It frees that memory as soon as it may: loom
//! reports a touch that comes too late. A thing is a minimal channel queue: a lock around the
//! waiter's address. At most three preemptions; two with a clock besides.

use std::ptr;
use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

use super::{Plain, explore};
use crate::note::Note;
use crate::shim::{self, Cell, Part};
use crate::sleeper::Sleeper;
use crate::wait_word::{ClaimResult, WaitWord};

/// Any deadline; the model decides when it passes.
const SOON: u64 = 1;

/// The case of the waiter itself, whose time is over. The cases of the things are 0 and 1.
const TIMED_OUT: usize = 7;

/// The memory of a wait.
struct Wait {
    word: WaitWord,
    note: Note,
    given: Cell<usize>,
    /// The sleeper that sleeps late.
    late: Cell<Option<Sleeper>>,
}

impl Wait {
    fn new() -> Box<Wait> {
        Box::new(Wait {
            word: WaitWord::new(),
            note: Note::new(),
            given: Cell::new(0),
            late: Cell::new(None),
        })
    }

    /// Its thread, asleep on its note.
    fn sleeper(&self) -> Sleeper {
        // SAFETY: G4, the wait is freed after it has ended; loom reports a touch that comes later.
        unsafe { Sleeper::thread(&self.note) }
    }

    /// The library's `wait_thread`.
    fn sleep(&self, is_timed: bool) {
        if self.word.commit(self.sleeper()).is_err() {
            return;
        }
        if !is_timed {
            return self.note.sleep();
        }
        if self.note.sleep_until(SOON) {
            return;
        }
        if self.word.claim(TIMED_OUT) == ClaimResult::Lost {
            self.note.sleep(); // somebody has us and will touch the note
        } else {
            self.word.finish_asleep(TIMED_OUT);
        }
    }

    /// How it ended. A refused waiter comes here before the claim is finished, and sleeps late.
    fn outcome(&self) -> usize {
        let case = loop {
            if let Some(case) = self.word.outcome() {
                break case;
            }
            self.late.set(Some(self.sleeper()));
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

// SAFETY: G4, the address is followed only under the lock, or by the thread that has claimed the
// wait.
unsafe impl Send for Thing {}
// SAFETY: G4, the lock admits one thread at a time to the address.
unsafe impl Sync for Thing {}

/// How a claimer leaves.
#[derive(Clone, Copy, PartialEq)]
enum Leaves {
    AtOnce,
    /// It looks at the word once more.
    Late,
}

impl Thing {
    /// Ends the wait of the waiter here, unless it is over. Returns whether it did.
    fn happen(&self, case: usize, leaves: Leaves) -> bool {
        let mut place = self.0.lock().unwrap();
        // SAFETY: G4, a waiter takes itself out under the lock before its memory ends.
        let Some(wait) = (unsafe { place.as_ref() }) else {
            return false;
        };
        *place = ptr::null();
        let found = wait.word.claim(case);
        if found == ClaimResult::Lost {
            return false;
        }
        wait.given.set(case + 100);
        let asleep = match found {
            ClaimResult::Asleep(sleeper) => {
                wait.word.finish_asleep(case);
                Some(sleeper)
            }
            _ if wait.word.finish_awake(case) => wait.late.replace(None),
            _ => None,
        };
        if leaves == Leaves::Late {
            assert!(wait.word.is_claimed());
        }
        drop(place);
        if let Some(sleeper) = asleep {
            sleeper.wake(|_| unreachable!("a thread"));
        }
        true
    }
}

/// A wait on two things that happen at any moment after the waiter has queued itself. If it is
/// timed, its time passes at some moment too.
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

/// Explored: both claims before the commit, which is then refused, around it, and when the waiter
/// sleeps. The refused waiter finds the claim finished, or sleeps late. Fails if a claim is a load
/// and a store, if a commit overwrites a claim, if the waiter takes a claim for the end, or if a
/// finish does not return the late sleeper.
#[test]
fn g4_one_of_two_claims_ends_a_wait() {
    two_things_happen(false, Leaves::AtOnce);
}

/// The same with a third claim: by the waiter itself, whose deadline passes. Fails if a waiter that
/// finds itself claimed does not wait for its wake-up: its note is gone when the wake-up comes.
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

/// `finish` publishes what was handed over. Without that the waiter may not even see that it was
/// ended.
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
        let note = Arc::new(Note::new());
        // SAFETY: the note stays until all threads of the story have ended.
        let sleeper = |note: &Note| unsafe { Sleeper::thread(note) };
        let claimer = thread::spawn({
            let (word, left, note) = (word.clone(), left.clone(), note.clone());
            move || {
                let found = word.claim(3);
                let is_asleep = found != ClaimResult::Awake;
                match found {
                    ClaimResult::Asleep(who) => {
                        assert_eq!(who, sleeper(&note));
                        assert_eq!(left.get(), 1, "PK: it has left its stack");
                        word.finish_asleep(3);
                    }
                    _ => assert!(!word.finish_awake(3), "nobody sleeps late here"),
                }
                is_asleep
            }
        });
        left.set(1);
        let is_asleep = word.commit(sleeper(&note)).is_ok();
        assert_eq!(claimer.join().unwrap(), is_asleep);
        assert_eq!(word.outcome(), Some(3));
    });
}
