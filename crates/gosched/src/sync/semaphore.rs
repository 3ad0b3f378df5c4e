//! [`Semaphore`]: so many at a time, first come, first served. Its word is in `semaphore_word`.

use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use super::sema::{self, KeyWait, NEVER, ParkResult, key_of};
use super::semaphore_word::{PERMITS_MAX, SemaphoreWord};
use crate::sched::model::g::WaitReason;
use crate::sched::park::enter;
use crate::sched::waitq::{WaitKind, WakeList};
use crate::sys;
use crate::thread::check_cancelled;

static KIND: WaitKind = WaitKind::new(WaitReason::Semaphore).passing_on(|waiter, by| {
    if by.is_some() {
        // SAFETY: by the caller's promise; the kind's waiters wait on a SemaphoreWord.
        release(unsafe { sema::word_of::<SemaphoreWord>(waiter) });
    }
});

/// Gives a permit back.
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
    let rt = enter(); // until they are woken: who was popped relies on it
    {
        let mut table = sema::lock(key);
        let popped = table.pop(key);
        word.release_to(popped.is_some(), table.has(key));
        // The semaphore may be gone from here on.
        if let Some(popped) = popped {
            popped.finish(0, &mut wake);
        }
    }
    wake.wake_in(&rt);
}

/// A number of permits, for which one waits in order.
///
/// Who comes while others wait waits behind them, even if it could be served at once.
///
/// [`acquire`](Semaphore::acquire) and [`acquire_timeout`](Semaphore::acquire_timeout) block; nothing else here does.
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

/// A permit of a [`Semaphore`]; dropping it gives it back, from whichever goroutine or thread. See the example of [`Semaphore`].
#[must_use = "the permit goes back when its guard is dropped, so at once"]
pub struct SemaphoreGuard<'a> {
    semaphore: &'a Semaphore,
}

impl Semaphore {
    /// A semaphore with `n` permits, all free.
    ///
    /// # Panics
    /// For more than half of what a `usize` can count.
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

    /// Waits for a permit.
    ///
    /// Blocks the goroutine, or the plain thread it is called on. See the example of [`Semaphore`].
    #[inline]
    pub fn acquire(&self) -> SemaphoreGuard<'_> {
        if !self.word.acquire() {
            self.acquire_slow(NEVER);
        }
        SemaphoreGuard { semaphore: self }
    }

    /// Takes a permit if one is free. Blocks nothing. See the example of [`Semaphore`].
    #[inline]
    pub fn try_acquire(&self) -> Option<SemaphoreGuard<'_>> {
        let has_one = self.word.acquire();
        has_one.then(|| SemaphoreGuard { semaphore: self })
    }

    /// Waits for a permit, at most for `dur`.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
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
                ..KeyWait::new(key_of(&self.word), &KIND)
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

    /// The permits that are free now; none while anybody waits. See the example of [`Semaphore`].
    pub fn available_permits(&self) -> usize {
        self.word.free()
    }

    /// Gives a permit back, or one more out.
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
