//! [`Semaphore`]: a limited number of permits, first come, first served.
//!
//! It limits how many goroutines do something at the same time. `semaphore_word` has its word.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::time::Duration;

use super::sema::{self, Grant, KeyKind, KeyWait, NEVER, ParkResult, key_of};
use super::semaphore_word::{PERMITS_MAX, SemaphoreWord};
use crate::sched::model::g::WaitReason;
use crate::sched::park::enter;
use crate::sched::waiting::timed::check_cancelled;
use crate::sched::waiting::waitq::WakeList;
use crate::sys;

static KIND: KeyKind<SemaphoreWord> = KeyKind::granting::<Permit>(WaitReason::Semaphore);

struct Permit;

impl Grant for Permit {
    type Word = SemaphoreWord;

    fn pass_on(word: &SemaphoreWord, token: Option<usize>, _: Option<&AtomicU32>) {
        if token.is_some() {
            release(word);
        }
    }
}

/// Returns a permit.
#[inline]
fn release(word: &SemaphoreWord) {
    if !word.release() {
        release_slow(word);
    }
}

#[cold]
#[inline(never)]
fn release_slow(word: &SemaphoreWord) {
    let key = key_of(word);
    let mut wake = WakeList::new();
    let rt = enter(); // until the wake-up: the popped waiter relies on it (`waitq`)
    {
        let mut table = sema::lock(key);
        let popped = table.pop(key);
        word.release_to(popped.is_some(), table.has(key));
        // The owner of the last permit may free the semaphore, so `word` is not used from here on.
        if let Some(popped) = popped {
            popped.finish(0, &mut wake);
        }
    }
    wake.wake_in(&rt);
}

/// A counting semaphore: a number of permits, granted in the order of the calls.
///
/// A call that finds waiters queues behind them. A permit that becomes free goes to the first
/// waiter.
///
/// Only [`acquire`](Semaphore::acquire) and [`acquire_timeout`](Semaphore::acquire_timeout) block.
///
/// ```
/// use gosched::sync::Semaphore;
///
/// static AT_A_TIME: Semaphore = Semaphore::new(2);
/// let one = AT_A_TIME.acquire();
/// let another = AT_A_TIME.acquire();
/// assert!(AT_A_TIME.try_acquire().is_none());
/// drop(one);
/// assert_eq!(AT_A_TIME.available_permits(), 1);
/// # drop(another);
/// ```
pub struct Semaphore {
    word: SemaphoreWord,
}

/// A permit of a [`Semaphore`] that is returned when dropped.
///
/// It may be dropped on any goroutine or thread. See the example of [`Semaphore`].
#[must_use = "if unused, the permit is returned immediately"]
pub struct SemaphoreGuard<'a> {
    semaphore: &'a Semaphore,
}

impl Semaphore {
    /// Creates a semaphore with `n` free permits.
    ///
    /// # Panics
    /// If `n` is more than `usize::MAX / 2`.
    ///
    /// ```
    /// let semaphore = gosched::sync::Semaphore::new(3);
    /// assert_eq!(semaphore.available_permits(), 3);
    /// ```
    #[must_use]
    pub const fn new(n: usize) -> Semaphore {
        assert!(n <= PERMITS_MAX, "sync: too many permits for a Semaphore");
        Semaphore {
            word: SemaphoreWord(AtomicUsize::new(SemaphoreWord::of(n))),
        }
    }

    /// Acquires a permit, waiting until one is free.
    ///
    /// Blocks the calling goroutine or plain thread. See the example of [`Semaphore`].
    #[inline]
    pub fn acquire(&self) -> SemaphoreGuard<'_> {
        if !self.word.acquire() {
            self.acquire_slow(NEVER);
        }
        SemaphoreGuard { semaphore: self }
    }

    /// Attempts to acquire a permit without waiting.
    ///
    /// Never blocks. See the example of [`Semaphore`].
    #[inline]
    pub fn try_acquire(&self) -> Option<SemaphoreGuard<'_>> {
        let has_one = self.word.acquire();
        has_one.then(|| SemaphoreGuard { semaphore: self })
    }

    /// Acquires a permit, waiting for `dur` at most.
    ///
    /// Blocks the calling goroutine or plain thread.
    ///
    /// ```
    /// use gosched::sync::Semaphore;
    /// use std::time::Duration;
    ///
    /// let semaphore = Semaphore::new(1);
    /// let permit = semaphore.acquire();
    /// assert!(semaphore.acquire_timeout(Duration::from_millis(1)).is_none());
    /// drop(permit);
    /// assert!(semaphore.acquire_timeout(Duration::from_millis(1)).is_some());
    /// ```
    pub fn acquire_timeout(&self, dur: Duration) -> Option<SemaphoreGuard<'_>> {
        let has_one =
            self.word.acquire() || !dur.is_zero() && self.acquire_slow(sys::deadline_after(dur));
        has_one.then(|| SemaphoreGuard { semaphore: self })
    }

    #[cold]
    #[inline(never)]
    fn acquire_slow(&self, deadline_ns: u64) -> bool {
        loop {
            check_cancelled();
            let wait = KeyWait {
                deadline_ns,
                ..KeyWait::on(&self.word, 0, &KIND)
            };
            let parked = wait.park(
                |_| self.word.queue_up(),
                || {},
                |left| self.word.queue_left(left.are_more),
            );
            match parked {
                ParkResult::Got(_) => return true,
                ParkResult::TimedOut => return false,
                ParkResult::Refused if self.word.acquire() => return true,
                ParkResult::Refused | ParkResult::Cancelled => {}
            }
        }
    }

    /// Returns the number of free permits, which is 0 while a goroutine or thread waits.
    ///
    /// See the example of [`Semaphore`].
    pub fn available_permits(&self) -> usize {
        self.word.free()
    }

    /// Returns a permit, or adds a new one.
    #[inline]
    pub(crate) fn release(&self) {
        release(&self.word);
    }
}

impl Drop for SemaphoreGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.semaphore.release();
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("available_permits", &self.available_permits())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SemaphoreGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphoreGuard").finish_non_exhaustive()
    }
}
