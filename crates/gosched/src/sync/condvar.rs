//! [`Condvar`]: std's condition variable for goroutines and plain threads, in FIFO order.
//!
//! std's condvar blocks the thread. A wait here frees the thread for other goroutines.
//!
//! A waiter queues in the parking table before it unlocks the mutex. So every later notify wakes
//! it, whether it sleeps already or not. A later waiter never takes the notification of an earlier
//! one. The word records whether waiters are queued, so a notify without waiters is one load:
//!
//! ```text
//!  word   meaning                   changed
//!  0      no waiters                under the table's lock
//!  1      waiters may be queued     under the table's lock, before the waiter unlocks the mutex
//! ```
//!
//! A notified waiter may unwind, or its goroutine may be abandoned, before it has locked the mutex
//! again. It then passes the notification on.
//!
//! The Relaxed load of a notify is enough. Its caller changes the condition under the mutex and
//! then loads the word. If the change came after the waiter's check, the caller locked the mutex
//! after the waiter unlocked it. So the load sees the waiter's 1.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::mutex::MutexGuard;
use super::{LockResult, PoisonError};
use crate::sched::model::g::WaitReason;
use crate::sched::park::enter;
use crate::sched::waiting::sema::{self, Grant, KeyKind, KeyWait, NEVER, ParkResult, key_of};
use crate::sched::waiting::waitq::WakeList;
use crate::shim::Relaxed;
use crate::sys;
use crate::thread::check_cancelled;

static KIND: KeyKind<AtomicU32> = KeyKind::granting::<Notification>(WaitReason::Condvar);

struct Notification;

impl Grant for Notification {
    type Word = AtomicU32;

    fn pass_on(word: &AtomicU32, token: Option<usize>, _: Option<&AtomicU32>) {
        if token.is_some() {
            notify_one(word);
        }
    }
}

/// Wakes the waiter that has waited longest.
pub(super) fn notify_one(word: &AtomicU32) {
    let key = key_of(word);
    let mut wake = WakeList::new();
    let rt = enter(); // until the wake-up: the popped waiter relies on it (`waitq`)
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

/// Records whether waiters are queued. Under the table's lock.
fn set_waited_on(word: &AtomicU32, is_waited_on: bool) {
    // ORDER: Relaxed; the mutex orders it before a notify that must see it (see the module's head).
    word.store(u32::from(is_waited_on), Relaxed);
}

/// The result of a timed wait: whether it timed out.
///
/// See [`std::sync::WaitTimeoutResult`].
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
    /// Returns whether the wait timed out.
    ///
    /// Never blocks. See the example of [`WaitTimeoutResult`].
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// A condition variable, for goroutines and plain threads.
///
/// The `wait` methods block the calling goroutine or plain thread. A notify wakes the waiter that
/// has waited longest, and never blocks. See [`std::sync::Condvar`].
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
    /// Creates a condition variable without waiters.
    ///
    /// See [`std::sync::Condvar::new`].
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

    /// Unlocks the mutex, waits for a notification, and locks the mutex again.
    ///
    /// It may also return without a notification. Blocks the calling goroutine or plain thread. See
    /// [`std::sync::Condvar::wait`].
    ///
    /// # Errors
    /// If the mutex is poisoned. The error contains the guard.
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

    /// Waits for notifications while `condition` returns true.
    ///
    /// Blocks the calling goroutine or plain thread. See the example of [`Condvar`], and
    /// [`std::sync::Condvar::wait_while`].
    ///
    /// # Errors
    /// If the mutex is poisoned. The error contains the guard.
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

    /// Waits for a notification for at most `ms` milliseconds.
    ///
    /// Returns false if the wait timed out. Blocks the calling goroutine or plain thread. See the
    /// example of [`WaitTimeoutResult`], and [`std::sync::Condvar::wait_timeout_ms`].
    ///
    /// # Errors
    /// If the mutex is poisoned. The error contains the guard.
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

    /// Waits for a notification for at most `dur`.
    ///
    /// As [`wait`](Condvar::wait), it unlocks the mutex meanwhile and may return early. Blocks the
    /// calling goroutine or plain thread. See the example of [`WaitTimeoutResult`], and
    /// [`std::sync::Condvar::wait_timeout`].
    ///
    /// # Errors
    /// If the mutex is poisoned. The error contains the guard.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        dur: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let (locked, timed_out) = self.wait_until(guard, sys::deadline_after(dur));
        with(locked, WaitTimeoutResult(timed_out))
    }

    /// Waits for notifications while `condition` returns true, for at most `dur`.
    ///
    /// Blocks the calling goroutine or plain thread. See
    /// [`std::sync::Condvar::wait_timeout_while`].
    ///
    /// # Errors
    /// If the mutex is poisoned. The error contains the guard.
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

    /// Waits once; the bool is true if the wait timed out.
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
                ..KeyWait::on(&self.word, 0, &KIND)
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
                // If the goroutine cannot unwind, this is a return without a notification. The
                // caller checks its condition and waits again.
                check_cancelled();
            }
            let is_notified = matches!(parked, ParkResult::Got(_));
            (
                parked == ParkResult::TimedOut,
                is_notified.then_some(&self.word),
            )
        })
    }

    /// Wakes the waiter that has waited longest.
    ///
    /// Never blocks. See [`std::sync::Condvar::notify_one`].
    ///
    /// ```
    /// gosched::sync::Condvar::new().notify_one();
    /// ```
    pub fn notify_one(&self) {
        if self.word.load(Relaxed) != 0 {
            notify_one(&self.word);
        }
    }

    /// Wakes all current waiters.
    ///
    /// Never blocks. See [`std::sync::Condvar::notify_all`].
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

/// Adds the result of a timed wait to the guard.
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
