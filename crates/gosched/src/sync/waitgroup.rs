//! [`WaitGroup`]: Go's. Its word is in `waitgroup_word`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::sema::{self, KeyWait, ParkResult, key_of};
use super::waitgroup_word::{Done, GroupWord};
use crate::sched::model::g::WaitReason;
use crate::sched::park::enter;
use crate::sched::waitq::{WaitKind, WakeList};
use crate::thread::check_cancelled;

static KIND: WaitKind = WaitKind::new(WaitReason::WaitGroup);

/// Waits for any number of goroutines, or of anything else that can be counted; Go's `sync.WaitGroup`.
///
/// Clones share one counter. It may be used again when it has come to zero.
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

/// One that is to come, and comes when this is dropped.
struct Member(WaitGroup);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.done();
    }
}

impl WaitGroup {
    /// A group of nobody.
    ///
    /// Blocks nothing.
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

    /// `n` more are to come. Blocks nothing. Whoever waits should find it counted, so count before you start what you wait for.
    ///
    /// # Panics
    /// If there are too many to be counted.
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

    /// One has come. The last one wakes all who wait; blocks nothing. See the example of [`WaitGroup::add`].
    ///
    /// # Panics
    /// If none was to come.
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
        let rt = enter(); // until they are woken: who was popped relies on it
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

    /// Waits until all have come.
    ///
    /// Blocks the goroutine, or the plain thread it is called on. See the example of [`WaitGroup`].
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

    /// Starts a goroutine and counts it, from now until it has ended: by returning, by a panic or by [`exit`](crate::exit).
    ///
    /// Blocks nothing.
    ///
    /// # Panics
    /// As [`go`](crate::go): outside a goroutine, or if no stack can be had. Then it is not counted.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let group = gosched::sync::WaitGroup::new();
    /// group.go(|| gosched::exit());
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
