//! Futexes of goroutines and of threads in the kernel, on words of one bucket.
//!
//! The counts, the order of the two kinds and the barriers are the library's
//! (`sched/waiting/futex_counts.rs`). The parking table is a locked queue here, and so is the
//! kernel: each compares the word and queues the waiter in one hold of its lock.

use std::collections::VecDeque;

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::explore;
use crate::futex_counts::{FutexCounts, Uncounted};
use crate::note::Note;
use crate::shim::{AtomicU32, Relaxed};

/// A coin of 0 sends the first wake-up to the kernel first, this one to the goroutines first.
const COIN: u32 = 1 << 30;

/// Sleepers of one word, in order.
type Queue = Mutex<VecDeque<Arc<Note>>>;

/// One word and its bucket.
struct Word {
    word: AtomicU32,
    counts: FutexCounts,
    uncounted: Uncounted,
    goroutines: Queue,
    kernel: Queue,
}

impl Word {
    fn new(value: u32, coin: u32) -> Arc<Word> {
        Arc::new(Word {
            word: AtomicU32::new(value),
            counts: FutexCounts {
                goroutines: AtomicU32::new(0),
                kernel: AtomicU32::new(0),
                coin: AtomicU32::new(coin),
            },
            uncounted: Uncounted(AtomicU32::new(0)),
            goroutines: Mutex::new(VecDeque::new()),
            kernel: Mutex::new(VecDeque::new()),
        })
    }

    /// The library's `futex::wait`.
    fn wait_as_goroutine(&self, expected: u32) {
        let note = Arc::new(Note::new());
        let mut queue = self.goroutines.lock().unwrap();
        self.counts.add_goroutine();
        if self.word.load(Relaxed) != expected {
            self.counts.remove_goroutines(1);
            return;
        }
        queue.push_back(note.clone());
        drop(queue);
        note.sleep();
    }

    /// A wait that the hook leaves to the kernel.
    fn wait_as_thread(&self, expected: u32) {
        self.counts.enter_kernel();
        self.sleep_in_kernel(expected);
        self.counts.leave_kernel();
    }

    /// `futex_waitv`, which no bucket counts.
    fn wait_uncounted(&self, expected: u32) {
        self.uncounted.expect();
        self.sleep_in_kernel(expected);
    }

    fn sleep_in_kernel(&self, expected: u32) {
        let note = Arc::new(Note::new());
        let mut queue = self.kernel.lock().unwrap();
        let sleeps = self.word.load(Relaxed) == expected;
        if sleeps {
            queue.push_back(note.clone());
        }
        drop(queue);
        if sleeps {
            note.sleep();
        }
    }

    /// The library's `futex::wake`.
    fn wake(&self, n: u32) -> u32 {
        let pop = |n| {
            let popped = pop_some(&self.goroutines, n, || self.counts.remove_goroutines(1));
            wake_all(popped)
        };
        let kernel = |n| wake_all(pop_some(&self.kernel, n, || {}));
        self.counts.wake(n, &self.uncounted, pop, kernel)
    }

    /// Takes a permit: waits while there is none.
    fn take(&self, wait: fn(&Word, u32)) {
        loop {
            let found = self.word.load(Relaxed);
            if found == 0 {
                wait(self, 0);
            } else if self
                .word
                .compare_exchange(found, found - 1, Relaxed, Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }
}

fn pop_some(queue: &Queue, n: u32, mut counted: impl FnMut()) -> Vec<Arc<Note>> {
    let mut queue = queue.lock().unwrap();
    let n = queue.len().min(n as usize);
    let popped = queue.drain(..n).inspect(|_| counted());
    popped.collect()
}

fn wake_all(popped: Vec<Arc<Note>>) -> u32 {
    popped.iter().for_each(|note| note.wakeup());
    popped.len() as u32
}

const KINDS: [fn(&Word, u32); 2] = [Word::wait_as_goroutine, Word::wait_as_thread];

/// One waiter, one waker that looks at the counts. Fails if either side loses its barrier, if the
/// thread is counted after the kernel has loaded the word, or if the waker loads a count or the flag
/// before its barrier.
#[test]
fn futex_a_wake_up_is_not_skipped() {
    for kind in [KINDS[0], KINDS[1], Word::wait_uncounted] {
        explore(None, move || {
            let word = Word::new(0, 0);
            let waiter = {
                let word = word.clone();
                thread::spawn(move || {
                    while word.word.load(Relaxed) == 0 {
                        kind(&word, 0);
                    }
                })
            };
            word.word.store(1, Relaxed);
            word.wake(1);
            waiter.join().unwrap();
        });
    }
}

/// One goroutine and one thread wait, and a wake-up for all comes.
#[test]
fn futex_a_wake_up_reaches_both_kinds() {
    for coin in [0, COIN] {
        explore(Some(2), move || {
            let word = Word::new(0, coin);
            let waiters = KINDS.map(|kind| {
                let word = word.clone();
                thread::spawn(move || kind(&word, 0))
            });
            word.word.store(1, Relaxed);
            word.wake(u32::MAX);
            waiters.into_iter().for_each(|w| w.join().unwrap());
        });
    }
}

/// Permits are put in one at a time, each with a wake-up for one. Whichever kind is first, the other
/// gets what the first leaves. Fails if the second kind is not asked for the rest.
#[test]
fn futex_each_permit_is_taken() {
    for coin in [0, COIN] {
        explore(Some(2), move || {
            let word = Word::new(0, coin);
            let waiters = KINDS.map(|kind| {
                let word = word.clone();
                thread::spawn(move || word.take(kind))
            });
            for _ in 0..2 {
                word.word.fetch_add(1, Relaxed);
                assert!(word.wake(1) <= 1);
            }
            waiters.into_iter().for_each(|w| w.join().unwrap());
            assert_eq!(word.word.load(Relaxed), 0);
        });
    }
}

/// The same with the two permits from two threads, and two waiters of one kind.
#[test]
fn futex_wakers_do_not_disturb_each_other() {
    for kind in KINDS {
        explore(Some(2), move || {
            let word = Word::new(0, 0);
            let waiters = [(); 2].map(|()| {
                let word = word.clone();
                thread::spawn(move || word.take(kind))
            });
            let put = |word: &Word| {
                word.word.fetch_add(1, Relaxed);
                word.wake(1);
            };
            let other = {
                let word = word.clone();
                thread::spawn(move || put(&word))
            };
            put(&word);
            other.join().unwrap();
            waiters.into_iter().for_each(|w| w.join().unwrap());
        });
    }
}

/// The kernel moves a thread to a word of another bucket, where a wake-up finds it. Fails if that
/// bucket does not expect it.
#[test]
fn futex_a_moved_thread_is_woken() {
    explore(None, || {
        let (from, to) = (Word::new(0, 0), Word::new(0, 0));
        let waiter = {
            let from = from.clone();
            thread::spawn(move || from.wait_as_thread(0))
        };
        from.word.store(1, Relaxed);
        to.counts.expect_moved();
        let moved = pop_some(&from.kernel, u32::MAX, || {});
        to.kernel.lock().unwrap().extend(moved);
        to.wake(1);
        waiter.join().unwrap();
    });
}
