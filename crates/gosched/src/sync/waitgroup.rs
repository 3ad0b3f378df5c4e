//! [`WaitGroup`]: Go's `sync.WaitGroup`.
//!
//! It waits for many goroutines without a handle for each.
//! `waitgroup_word` has its word.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::waitgroup_word::{Done, GroupWord};
use crate::sched::model::g::WaitReason;
use crate::sched::park::enter;
use crate::sched::waiting::sema::{self, KeyWait, ParkResult, key_of};
use crate::sched::waiting::waitq::{WaitKind, WakeList};
use crate::thread::check_cancelled;

static KIND: WaitKind = WaitKind::new(WaitReason::WaitGroup);

/// A counter that goroutines and plain threads can wait on until it is zero.
///
/// It usually counts running goroutines, as Go's `sync.WaitGroup` does. Clones share one counter.
/// The group can be reused once its counter has reached zero.
///
/// ```
/// use gosched::sync::WaitGroup;
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
///
/// static SUM: AtomicU32 = AtomicU32::new(0);
/// gosched::run(|| {
///     let group = WaitGroup::new();
///     for n in 1..=10 {
///         group.go(move || {
///             SUM.fetch_add(n, Relaxed);
///         });
///     }
///     group.wait();
///     assert_eq!(SUM.load(Relaxed), 55);
/// });
/// ```
#[derive(Clone)]
pub struct WaitGroup {
    word: Arc<GroupWord>,
}

/// One unit of the counter, subtracted when this is dropped.
struct Member(WaitGroup);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.done();
    }
}

impl WaitGroup {
    /// Creates a group with a counter of zero.
    ///
    /// Never blocks.
    ///
    /// ```
    /// gosched::sync::WaitGroup::new().wait();
    /// ```
    #[must_use]
    pub fn new() -> WaitGroup {
        WaitGroup {
            word: Arc::new(GroupWord(AtomicUsize::new(0))),
        }
    }

    /// Adds `n` to the counter.
    ///
    /// Add before you start what you wait for: a [`wait`](WaitGroup::wait) that finds zero returns
    /// at once. Never blocks.
    ///
    /// # Panics
    /// If the counter overflows.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let group = gosched::sync::WaitGroup::new();
    /// group.add(2);
    /// for _ in 0..2 {
    ///     let group = group.clone();
    ///     gosched::go(move || group.done());
    /// }
    /// group.wait();
    /// # });
    /// ```
    #[track_caller]
    pub fn add(&self, n: usize) {
        assert!(self.word.add(n), "sync: WaitGroup counter overflow");
    }

    /// Subtracts one from the counter.
    ///
    /// At zero it wakes all waiters. Never blocks. See the example of [`WaitGroup::add`].
    ///
    /// # Panics
    /// If the counter is zero.
    #[track_caller]
    pub fn done(&self) {
        let done = match self.word.done() {
            Done::Last => self.done_last(),
            done => done,
        };
        assert!(done != Done::Negative, "sync: negative WaitGroup counter");
    }

    #[cold]
    fn done_last(&self) -> Done {
        let key = key_of(&*self.word);
        let mut wake = WakeList::new();
        let rt = enter(); // until the wake-up: the popped waiters rely on it (`waitq`)
        let done = {
            let mut table = sema::lock(key);
            let done = self.word.done_last();
            if done == Done::Last {
                table.pop_all(key, || {}, &mut wake);
            }
            done
        };
        wake.wake_in(&rt);
        done
    }

    /// Waits until the counter is zero.
    ///
    /// Blocks the calling goroutine or plain thread. See the example of [`WaitGroup`].
    pub fn wait(&self) {
        while self.word.count() > 0 {
            check_cancelled();
            let parked = KeyWait::new(key_of(&*self.word), &KIND).park(
                |_| self.word.queue_up(),
                || {},
                |left| self.word.queue_left(left.are_more),
            );
            match parked {
                ParkResult::Got(_) => return,
                ParkResult::Refused => {}
                ParkResult::Cancelled | ParkResult::TimedOut => check_cancelled(),
            }
        }
    }

    /// Starts a goroutine and counts it until it ends.
    ///
    /// The goroutine ends by returning, by a panic or by [`goexit`](crate::goexit). Never blocks.
    ///
    /// # Panics
    /// As [`go`](crate::go): outside a goroutine, or if no stack is available. The goroutine is
    /// then not counted.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let group = gosched::sync::WaitGroup::new();
    /// group.go(|| gosched::goexit());
    /// group.wait();
    /// # });
    /// ```
    #[track_caller]
    pub fn go<F: FnOnce() + Send + 'static>(&self, f: F) {
        self.add(1);
        let member = Member(self.clone());
        crate::go(move || {
            let _member = member;
            f();
        });
    }
}

impl Default for WaitGroup {
    fn default() -> WaitGroup {
        WaitGroup::new()
    }
}

impl fmt::Debug for WaitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitGroup")
            .field("count", &self.word.count())
            .finish_non_exhaustive()
    }
}
