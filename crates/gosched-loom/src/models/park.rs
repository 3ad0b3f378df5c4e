//! Park's unlock function against the event (PK, RD, G4): the waiter is woken exactly once, and
//! sees what was written before the event.
//!
//! The goroutine runs on whichever thread resumed it: on its own after a refused commit, else on
//! the one that made it runnable. Its M's mark and its count of ends are plain fields, so loom
//! reports a goroutine that runs on two threads, and a waker that goes on before the parking M has
//! let go of it.

use std::sync::Arc;

use loom::thread;

use super::{Plain, explore};
use crate::gstatus::{Status, StatusWord};
use crate::note::Note;
use crate::sleeper::Sleeper;
use crate::wait_word::WaitWord;

/// What the event leaves for the waiter.
const RESULT: u32 = 42;

/// A running goroutine and the event that it is about to wait for.
struct Story {
    status: StatusWord,
    /// Whether an M has it (G2).
    has_m: Plain,
    is_cancelled: Plain,
    ends: Plain,
    slot: WaitWord,
    /// Stands for the G: its address is the sleeper's.
    g: Note,
    result: Plain,
}

impl Story {
    fn new() -> Arc<Story> {
        Arc::new(Story {
            status: StatusWord::new(Status::Running),
            has_m: Plain::new(1),
            is_cancelled: Plain::new(0),
            ends: Plain::new(0),
            slot: WaitWord::new(),
            g: Note::new(),
            result: Plain::new(0),
        })
    }

    /// The goroutine, as a sleeper.
    fn sleeper(&self) -> Sleeper {
        // SAFETY: the note stays until all threads of the story have ended.
        unsafe { Sleeper::thread(&self.g) }
    }

    /// The library's `park_m`, on g0: true when the goroutine has left, false when the commit was
    /// refused and it goes on at once.
    fn park_m(&self) -> bool {
        self.status.transition(Status::Running, Status::Waiting);
        self.has_m.set(0);
        if self.slot.commit(self.sleeper()).is_ok() {
            return true;
        }
        self.status.transition(Status::Waiting, Status::Runnable);
        false
    }

    /// The library's `execute`.
    fn execute(&self) {
        assert_eq!(self.has_m.get(), 0, "G2: the last M still has it");
        self.has_m.set(1);
        self.status.transition(Status::Runnable, Status::Running);
    }

    /// The goroutine waits once: for the event, or for a request to unwind.
    fn wait(&self) {
        if !self.slot.is_done() {
            if self.park_m() {
                return;
            }
            // A refused commit has seen the event, data included.
            assert_eq!(self.result.get(), RESULT);
            self.execute();
        }
        self.end();
    }

    /// The goroutine waits through requests to unwind, until the event has happened.
    fn wait_always(&self) {
        while !self.slot.is_done() {
            if self.park_m() {
                return;
            }
            self.execute();
        }
        self.end();
    }

    fn end(&self) {
        if self.is_cancelled.get() == 0 {
            assert!(self.slot.is_done(), "woken before the event");
            assert_eq!(self.result.get(), RESULT);
        }
        self.ends.add(1);
    }

    /// It happens; whoever sleeps is made ready and, here, run at once with `go_on`.
    fn complete(&self, go_on: fn(&Story)) {
        self.result.set(RESULT);
        if let Some(sleeper) = self.slot.complete() {
            assert_eq!(sleeper, self.sleeper());
            self.ready();
            go_on(self);
        }
    }

    fn ready(&self) {
        self.status.transition(Status::Waiting, Status::Runnable);
        self.execute();
    }

    /// The request to unwind, as when a runtime shuts down; true when the wake-up became ours.
    fn withdraw(&self) -> bool {
        if !self.status.begin_scan(Status::Waiting) {
            return false;
        }
        let is_ours = self.slot.withdraw(&self.sleeper());
        self.status.end_scan(Status::Waiting);
        is_ours
    }

    fn assert_ended_once(&self) {
        assert_eq!(self.ends.get(), 1, "PK: the waiter ended once");
        assert_eq!(self.status.get(), Status::Running);
        assert_eq!(self.has_m.get(), 1);
    }
}

/// The commit against the event. Explored: the event before the look, between the look and the
/// commit (refused: the goroutine goes Running → Waiting → Runnable → Running on its own M), and
/// after it. Fails if the commit or the completion is a load and a store, if the completion does
/// not publish, or if the goroutine becomes Waiting only after its commit.
#[test]
fn pk_a_commit_meets_the_event() {
    explore(None, || {
        let story = Story::new();
        let event = thread::spawn({
            let story = story.clone();
            move || story.complete(Story::end)
        });
        story.wait();
        event.join().unwrap();
        story.assert_ended_once();
    });
}

/// Event, park and a request to unwind, which may come between Waiting and the commit (it then
/// finds nothing to withdraw and leaves the goroutine to its event), or after it: then the event
/// wakes nobody. Fails if a withdrawal succeeds after the completion.
#[test]
fn pk_a_withdrawn_waiter_is_not_woken_again() {
    explore(None, || {
        let story = Story::new();
        let event = thread::spawn({
            let story = story.clone();
            move || story.complete(Story::end)
        });
        let canceller = thread::spawn({
            let story = story.clone();
            move || {
                if story.withdraw() {
                    story.ready();
                    story.is_cancelled.set(1);
                    story.end();
                }
            }
        });
        story.wait();
        event.join().unwrap();
        canceller.join().unwrap();
        story.assert_ended_once();
    });
}

/// A goroutine that must not leave before the event is withdrawn, looks, and commits to the same
/// slot again, on another M. Fails if a withdrawal leaves the slot in any state but EMPTY.
#[test]
fn pk_a_slot_takes_the_same_waiter_again() {
    explore(None, || {
        let story = Story::new();
        let event = thread::spawn({
            let story = story.clone();
            move || story.complete(Story::wait_always)
        });
        let canceller = thread::spawn({
            let story = story.clone();
            move || {
                if story.withdraw() {
                    story.ready();
                    story.wait_always();
                }
            }
        });
        story.wait_always();
        event.join().unwrap();
        canceller.join().unwrap();
        story.assert_ended_once();
    });
}

/// A plain thread in the place of the goroutine: it commits its note and sleeps on that.
#[test]
fn rd_a_thread_waits_for_the_event_on_its_note() {
    explore(None, || {
        let story = Story::new();
        let event = thread::spawn({
            let story = story.clone();
            move || {
                story.result.set(RESULT);
                if let Some(sleeper) = story.slot.complete() {
                    sleeper.wake(|_| unreachable!("a thread"));
                }
            }
        });
        story.slot.sleep_thread();
        assert!(story.slot.is_done());
        assert_eq!(story.result.get(), RESULT);
        event.join().unwrap();
        assert!(story.slot.complete().is_none(), "it happens once");
    });
}
