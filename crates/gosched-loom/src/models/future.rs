//! A future's wakers against the goroutine that polls it (U10, G4): no call of a waker is lost, and
//! each sleep ends once.
//!
//! The future is ready when all its parts are. The parts are Relaxed flags, so only the word makes
//! what was done before a waker's call visible to the poll.

use std::sync::Arc;

use loom::thread;

use super::explore;
use crate::future_word::WakeWord;
use crate::note::Note;
use crate::shim::{AtomicU32, Relaxed};

struct Story {
    word: WakeWord,
    parts: [AtomicU32; 2],
    note: Note,
    wakeups: AtomicU32,
}

/// The sleeper's name in the word; any value above 1.
const SLEEPER: usize = 8;

impl Story {
    fn new() -> Arc<Story> {
        Arc::new(Story {
            word: WakeWord::new(),
            parts: [AtomicU32::new(0), AtomicU32::new(0)],
            note: Note::new(),
            wakeups: AtomicU32::new(0),
        })
    }

    /// A part is done, and the waker is called.
    fn complete(&self, part: usize) {
        self.parts[part].store(1, Relaxed);
        if let Some(waiter) = self.word.wake() {
            assert_eq!(waiter, SLEEPER);
            self.wakeups.fetch_add(1, Relaxed);
            self.note.wakeup();
        }
    }

    /// The library's `block_on`; returns the number of sleeps.
    fn block_on(&self) -> u32 {
        let mut sleeps = 0;
        while !self.parts.iter().all(|part| part.load(Relaxed) == 1) {
            while !self.word.take() {
                self.note.clear();
                if self.word.commit(SLEEPER) {
                    self.note.sleep();
                    sleeps += 1;
                }
            }
        }
        sleeps
    }
}

#[test]
fn u10_a_poll_sees_what_was_done_before_its_waker_was_called() {
    explore(Some(3), || {
        let story = Story::new();
        let wakers = [0, 1].map(|part| {
            let story = Arc::clone(&story);
            thread::spawn(move || story.complete(part))
        });
        let sleeps = story.block_on();
        for waker in wakers {
            waker.join().unwrap();
        }
        assert_eq!(
            story.wakeups.load(Relaxed),
            sleeps,
            "a wake-up for each sleep"
        );
    });
}

#[test]
fn g4_a_sleeper_is_taken_back_or_woken_but_not_both() {
    explore(Some(3), || {
        let story = Story::new();
        assert!(story.word.commit(SLEEPER));
        let waker = {
            let story = Arc::clone(&story);
            thread::spawn(move || story.complete(0))
        };
        let is_withdrawn = story.word.withdraw(SLEEPER);
        waker.join().unwrap();
        assert_eq!(story.wakeups.load(Relaxed), u32::from(!is_withdrawn));
        assert!(story.word.take(), "the call is not forgotten either way");
    });
}
