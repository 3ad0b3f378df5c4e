//! [`Condvar`]: std's, for goroutines and threads; first come, first notified.
//!
//! Who waits is queued in the parking table before it lets the mutex go. So a notify that comes after that wakes it whether it sleeps
//! by then or not, and one that came later never takes it from one that came earlier. The word says whether anybody is
//! queued, so that a notify for nobody is one load:
//!
//! ```text
//!  word   meaning                      changed
//!  0      nobody waits                 under the table's lock
//!  1      somebody may wait            under the table's lock; before the waiter lets the mutex go
//! ```
//!
//! A waiter that was notified and unwinds, or never goes on, before it has the mutex again passes the notification on.
//!
//! A notify whose caller changed what is waited for under the mutex reads the word after that. If it changed it after the
//! waiter looked, it had the mutex after the waiter, and sees the 1.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::mutex::MutexGuard;
use super::sema::{self, KeyWait, NEVER, ParkResult, key_of};
use super::{LockResult, PoisonError};
use crate::sched::model::g::WaitReason;
use crate::sched::park::enter;
use crate::sched::waitq::{WaitKind, WakeList};
use crate::shim::Relaxed;
use crate::sys;
use crate::thread::check_cancelled;

static KIND: WaitKind = WaitKind::new(WaitReason::Condvar).passing_on(|waiter, by| {
    if by.is_some() {
        // SAFETY: by the caller's promise; the kind's waiters wait on a condvar's word.
        notify_one(unsafe { sema::word_of::<AtomicU32>(waiter) });
    }
});

/// Wakes whoever has waited longest.
pub(super) fn notify_one(word: &AtomicU32) {
    let key = key_of(word);
    let mut wake = WakeList::new();
    let rt = enter(); // until they are woken: who was popped relies on it
    {
        let mut table = sema::lock(key);
        let popped = table.pop(key);
        set_waited_on(word, table.has(key));
        if let Some(popped) = popped {
            popped.finish(0, &mut wake);
        }
    }
    wake.wake_in(&rt);
}

/// Under the table's lock.
fn set_waited_on(word: &AtomicU32, is_waited_on: bool) {
    // ORDER: Relaxed; the mutex orders it before a notify that must see it (see above).
    word.store(u32::from(is_waited_on), Relaxed);
}

/// Whether a timed wait ended because its time was up; see [`std::sync::WaitTimeoutResult`].
///
/// ```
/// use gosched::sync::{Condvar, Mutex};
/// use std::time::Duration;
///
/// let (mutex, condvar) = (Mutex::new(()), Condvar::new());
/// let guard = mutex.lock().unwrap();
/// let (_guard, result) = condvar.wait_timeout(guard, Duration::from_millis(1)).unwrap();
/// assert!(result.timed_out());
/// ```
#[derive(Debug, PartialEq, Eq, Copy, Clone)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was up. Blocks nothing. See the example of [`WaitTimeoutResult`].
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// A queue in front of a condition; see [`std::sync::Condvar`].
///
/// Waiting blocks the goroutine, or the plain thread it is called on; nothing else here blocks. A notify wakes whoever has waited
/// longest.
///
/// ```
/// use gosched::sync::{Arc, Condvar, Mutex};
///
/// gosched::run(|| {
///     let pair = Arc::new((Mutex::new(false), Condvar::new()));
///     let other = Arc::clone(&pair);
///     gosched::go(move || {
///         *other.0.lock().unwrap() = true;
///         other.1.notify_one();
///     });
///     let (mutex, condvar) = &*pair;
///     let is_ready = condvar.wait_while(mutex.lock().unwrap(), |is_ready| !*is_ready);
///     assert!(*is_ready.unwrap());
/// });
/// ```
pub struct Condvar {
    word: AtomicU32,
}

impl UnwindSafe for Condvar {}
impl RefUnwindSafe for Condvar {}

impl Condvar {
    /// A Condvar on which nobody waits; see [`std::sync::Condvar::new`].
    ///
    /// ```
    /// static READY: gosched::sync::Condvar = gosched::sync::Condvar::new();
    /// READY.notify_all();
    /// ```
    #[must_use]
    #[inline]
    pub const fn new() -> Condvar {
        Condvar {
            word: AtomicU32::new(0),
        }
    }

    /// Unlocks, waits for a notify, and locks again; see [`std::sync::Condvar::wait`]. It may return without a notify, too.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// The mutex is poisoned; the error holds the guard.
    ///
    /// ```
    /// # use gosched::sync::{Condvar, Mutex};
    /// # gosched::run(|| {
    /// let (mutex, condvar) = (Mutex::new(0), Condvar::new());
    /// gosched::thread::scope(|s| {
    ///     let mut count = mutex.lock().unwrap();
    ///     s.spawn(|| {
    ///         *mutex.lock().unwrap() += 1;
    ///         condvar.notify_one();
    ///     });
    ///     while *count == 0 {
    ///         count = condvar.wait(count).unwrap();
    ///     }
    /// });
    /// # });
    /// ```
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_until(guard, NEVER).0
    }

    /// Waits while `condition` is true; see [`std::sync::Condvar::wait_while`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on. See the example of [`Condvar`].
    ///
    /// # Errors
    /// The mutex is poisoned; the error holds the guard.
    pub fn wait_while<'a, T, F>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: F,
    ) -> LockResult<MutexGuard<'a, T>>
    where
        F: FnMut(&mut T) -> bool,
    {
        while condition(&mut *guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// As [`Condvar::wait_timeout`], in milliseconds; false: the time was up. See [`std::sync::Condvar::wait_timeout_ms`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on. See the example of [`WaitTimeoutResult`].
    ///
    /// # Errors
    /// The mutex is poisoned; the error holds the guard.
    #[deprecated(note = "replaced by `gosched::sync::Condvar::wait_timeout`")]
    pub fn wait_timeout_ms<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        ms: u32,
    ) -> LockResult<(MutexGuard<'a, T>, bool)> {
        let waited = self.wait_timeout(guard, Duration::from_millis(u64::from(ms)));
        let with_bool = |(guard, result): (_, WaitTimeoutResult)| (guard, !result.timed_out());
        match waited {
            Ok(pair) => Ok(with_bool(pair)),
            Err(error) => Err(PoisonError::new(with_bool(error.into_inner()))),
        }
    }

    /// Unlocks, waits for a notify or until `dur` has passed, and locks again; see [`std::sync::Condvar::wait_timeout`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on. See the example of [`WaitTimeoutResult`].
    ///
    /// # Errors
    /// The mutex is poisoned; the error holds the guard.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        dur: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let (locked, timed_out) = self.wait_until(guard, sys::deadline_after(dur));
        with(locked, WaitTimeoutResult(timed_out))
    }

    /// Waits while `condition` is true, at most for `dur`; see [`std::sync::Condvar::wait_timeout_while`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// The mutex is poisoned; the error holds the guard.
    ///
    /// ```
    /// use gosched::sync::{Condvar, Mutex};
    /// use std::time::Duration;
    ///
    /// let (mutex, condvar) = (Mutex::new(1), Condvar::new());
    /// let guard = mutex.lock().unwrap();
    /// let waited = condvar.wait_timeout_while(guard, Duration::from_millis(1), |n| *n > 0);
    /// assert!(waited.unwrap().1.timed_out());
    /// ```
    pub fn wait_timeout_while<'a, T, F>(
        &self,
        mut guard: MutexGuard<'a, T>,
        dur: Duration,
        mut condition: F,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)>
    where
        F: FnMut(&mut T) -> bool,
    {
        let deadline_ns = sys::deadline_after(dur);
        loop {
            if !condition(&mut *guard) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            if deadline_ns != NEVER && sys::monotonic_ns() >= deadline_ns {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            match self.wait_until(guard, deadline_ns) {
                (Ok(locked), _) => guard = locked,
                (error, timed_out) => return with(error, WaitTimeoutResult(timed_out)),
            }
        }
    }

    /// One wait; the bool says whether the time was up.
    fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline_ns: u64,
    ) -> (LockResult<MutexGuard<'a, T>>, bool) {
        guard.unlocked(|unlock| {
            if sema::must_unwind() {
                unlock();
                check_cancelled();
                return (false, None);
            }
            let wait = KeyWait {
                deadline_ns,
                ..KeyWait::new(key_of(&self.word), &KIND)
            };
            let parked = wait.park(
                |_| {
                    set_waited_on(&self.word, true);
                    true
                },
                unlock,
                |left| set_waited_on(&self.word, left.are_more),
            );
            if parked == ParkResult::Cancelled {
                // Where nothing can unwind this is a return without a notify: its caller looks, and waits again.
                check_cancelled();
            }
            let is_notified = matches!(parked, ParkResult::Got(_));
            (
                parked == ParkResult::TimedOut,
                is_notified.then_some(&self.word),
            )
        })
    }

    /// Wakes whoever has waited longest; see [`std::sync::Condvar::notify_one`]. Blocks nothing.
    ///
    /// ```
    /// gosched::sync::Condvar::new().notify_one();
    /// ```
    pub fn notify_one(&self) {
        if self.word.load(Relaxed) != 0 {
            notify_one(&self.word);
        }
    }

    /// Wakes everybody who waits by now; see [`std::sync::Condvar::notify_all`]. Blocks nothing.
    ///
    /// ```
    /// gosched::sync::Condvar::new().notify_all();
    /// ```
    pub fn notify_all(&self) {
        if self.word.load(Relaxed) != 0 {
            sema::wake_all(key_of(&self.word), || set_waited_on(&self.word, false));
        }
    }
}

/// A result with something beside the guard.
fn with<G>(locked: LockResult<G>, result: WaitTimeoutResult) -> LockResult<(G, WaitTimeoutResult)> {
    match locked {
        Ok(guard) => Ok((guard, result)),
        Err(error) => Err(PoisonError::new((error.into_inner(), result))),
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}

impl Default for Condvar {
    fn default() -> Condvar {
        Condvar::new()
    }
}
