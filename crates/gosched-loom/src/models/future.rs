//! A future's wakers against the thread that polls it (U10, G4): no call of a waker is lost, and
//! each sleep is ended once.
//!
//! The future is ready when all its parts are, which are Relaxed flags. That a poll sees what was
//! done before a waker was called is due to the word alone.

use std::sync::Arc;

use loom::thread;

use super::explore;
use crate::note::Note;
use crate::shim::{AtomicU32, Relaxed};
use crate::sleeper::Sleeper;
use crate::wait_word::WaitWord;

struct Story {
    word: WaitWord,
    parts: [AtomicU32; 2],
    note: Note,
    wakeups: AtomicU32,
}

impl Story {
    fn new() -> Arc<Story> {
        Arc::new(Story {
            word: WaitWord::new(),
            parts: [AtomicU32::new(0), AtomicU32::new(0)],
            note: Note::new(),
            wakeups: AtomicU32::new(0),
        })
    }

    /// The polling thread, asleep on the note.
    fn sleeper(&self) -> Sleeper {
        // SAFETY: the note stays until all threads of the story have ended.
        unsafe { Sleeper::thread(&self.note) }
    }

    /// A part is done, and the waker is called.
    fn complete(&self, part: usize) {
        self.parts[part].store(1, Relaxed);
        if let Some(sleeper) = self.word.complete() {
            assert_eq!(sleeper, self.sleeper());
            self.wakeups.fetch_add(1, Relaxed);
            sleeper.wake(|_| unreachable!("a thread"));
        }
    }

    /// The library's `block_on`; returns the number of sleeps.
    fn block_on(&self) -> u32 {
        let mut sleeps = 0;
        while !self.parts.iter().all(|part| part.load(Relaxed) == 1) {
            while !self.word.take() {
                self.note.clear();
                if self.word.commit(self.sleeper()).is_ok() {
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
        assert!(story.word.commit(story.sleeper()).is_ok());
        let waker = {
            let story = Arc::clone(&story);
            thread::spawn(move || story.complete(0))
        };
        let is_withdrawn = story.word.withdraw(&story.sleeper());
        waker.join().unwrap();
        assert_eq!(story.wakeups.load(Relaxed), u32::from(!is_withdrawn));
        assert!(story.word.take(), "the call is not forgotten either way");
    });
}
