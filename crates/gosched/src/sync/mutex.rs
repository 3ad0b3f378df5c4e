//! [`Mutex`]: std's mutex for goroutines and plain threads, with Go's fairness.
//!
//! std's mutex blocks the thread. A wait here frees the thread for other goroutines.
//!
//! ```text
//!  word (mutex_word)     operation   effect
//!  0                     lock        one swap: LOCKED
//!  LOCKED                unlock      one swap: 0
//!  LOCKED                lock        spin briefly, then queue, which sets WAITERS
//!  LOCKED + WAITERS      unlock      free; the first waiter wakes and competes (WOKEN)
//!  … + WOKEN             unlock      free; no wake-up: an awake locker already competes
//!  … + STARVING          unlock      handed to the first waiter; LOCKED stays set
//!  … + POISON            any         as without; the bit stays until `clear_poison`
//! ```
//!
//! Orderings (U10): the next holder sees what the previous holder wrote. Normally the word orders
//! them: the unlock's swap is Release, the lock's swap is Acquire. A lock that is handed over is
//! ordered by the end of the wait (`sudog`: finish and outcome). Only the holder accesses the data.
//! POISON is set before the unlock.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicU32, AtomicUsize};

use super::condvar::notify_one;
use super::mutex_word::{LOCKED, LockWord, Locker, OWN};
use super::{LockResult, PoisonError, TryLockError, TryLockResult};
use crate::sched::model::g::WaitReason;
use crate::sched::waiting::owner::Owner;
use crate::sched::waiting::sema::{Grant, KeyKind};
use crate::shim::Relaxed;
use crate::sync::mutex_slow;

static KIND: KeyKind<LockWord> = KeyKind::granting::<MutexLock>(WaitReason::Mutex);
static RELOCK: KeyKind<LockWord> = KeyKind::granting::<MutexRelock>(WaitReason::Mutex);

struct MutexLock;

impl Grant for MutexLock {
    type Word = LockWord;

    fn pass_on(word: &LockWord, token: Option<usize>, _: Option<&AtomicU32>) {
        mutex_slow::pass_on(word, token, |word| {
            mutex_slow::unlock_slow(word, 0, |_, _| {})
        });
    }
}

/// The wait of a notified condvar waiter that locks its mutex again. Passes on the notification
/// too.
struct MutexRelock;

impl Grant for MutexRelock {
    type Word = LockWord;

    fn pass_on(word: &LockWord, token: Option<usize>, condvar: Option<&AtomicU32>) {
        MutexLock::pass_on(word, token, None);
        if let Some(condvar) = condvar {
            notify_one(condvar);
        }
    }
}

/// A notification owned by a waiter that has not locked its mutex again. Dropping it notifies the
/// next waiter.
struct Notified<'a>(&'a AtomicU32);

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        notify_one(self.0);
    }
}

/// A holder panicked.
const POISON: usize = OWN;

/// The lock without the data it guards.
pub(super) struct RawMutex {
    word: LockWord,
    owner: Owner,
}

impl RawMutex {
    pub(super) const fn new() -> RawMutex {
        RawMutex {
            word: LockWord(AtomicUsize::new(0)),
            owner: Owner::new(),
        }
    }

    /// Acquires the lock, waiting if needed, and returns whether it is poisoned.
    #[inline]
    pub(super) fn lock(&self) -> bool {
        let before = if self.word.lock_fast() {
            0
        } else {
            mutex_slow::lock_slow(&self.word, &self.owner, &KIND)
        };
        self.owner.set();
        before & POISON != 0
    }

    /// As [`RawMutex::lock`], for a waiter that a condvar has notified. If the waiter unwinds
    /// first, or its goroutine is abandoned, the next waiter is notified.
    fn relock(&self, condvar: &AtomicU32) -> bool {
        let before = if self.word.lock_fast() {
            0
        } else {
            let notified = Notified(condvar);
            let beside = Some(condvar);
            let before = mutex_slow::lock_beside(&self.word, &self.owner, &RELOCK, beside);
            std::mem::forget(notified);
            before
        };
        self.owner.set();
        before & POISON != 0
    }

    #[inline]
    fn try_lock(&self) -> Option<bool> {
        let before = match self.word.lock_fast() {
            true => 0,
            false => self.word.acquire(LOCKED, Locker::default()).ok()?,
        };
        self.owner.set();
        Some(before & POISON != 0)
    }

    /// Releases the lock, which the caller holds.
    #[inline]
    pub(super) fn unlock(&self) {
        self.owner.clear();
        if !self.word.unlock_fast() {
            mutex_slow::unlock_slow(&self.word, 0, |_, _| {});
        }
    }

    fn is_poisoned(&self) -> bool {
        self.word.0.load(Relaxed) & POISON != 0
    }

    fn clear_poison(&self) {
        self.word.0.fetch_and(!POISON, Relaxed);
    }

    #[cold]
    fn poison(&self) {
        self.word.0.fetch_or(POISON, Relaxed);
    }
}

/// A mutual exclusion lock around a value, for goroutines and plain threads.
///
/// Waiting blocks the calling goroutine or plain thread; only [`lock`](Mutex::lock) waits. Waiters
/// queue in order. A running goroutine may still take a free lock before a woken waiter does. After
/// about a millisecond the lock is handed to the waiter directly.
///
/// A goroutine that locks a mutex it already holds deadlocks. The deadlock detector reports it if
/// nothing else can run. See [`std::sync::Mutex`].
///
/// ```
/// use gosched::sync::{Arc, Mutex};
/// use gosched::thread;
///
/// let total = gosched::run(|| {
///     let total = Arc::new(Mutex::new(0));
///     let adders: Vec<_> = (1..=10)
///         .map(|n| {
///             let total = Arc::clone(&total);
///             thread::spawn(move || *total.lock().unwrap() += n)
///         })
///         .collect();
///     for adder in adders {
///         adder.join().unwrap();
///     }
///     *total.lock().unwrap()
/// });
/// assert_eq!(total, 55);
/// ```
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
    data: UnsafeCell<T>,
}

// SAFETY: U10: the mutex owns its value, which may be moved out on another thread (`T: Send`). All
// else in it is atomics.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: U10: one holder at a time reaches the value, so sharing the mutex only moves access to
// the value between threads (`T: Send`).
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T: ?Sized> UnwindSafe for Mutex<T> {}
impl<T: ?Sized> RefUnwindSafe for Mutex<T> {}

/// A guard of a [`Mutex`] that unlocks it when dropped.
///
/// See [`std::sync::MutexGuard`].
///
/// ```
/// let mutex = gosched::sync::Mutex::new(1);
/// {
///     let mut guard = mutex.lock().unwrap();
///     *guard += 1;
/// }
/// assert_eq!(*mutex.lock().unwrap(), 2);
/// ```
#[must_use = "if unused, the Mutex is unlocked immediately"]
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    /// The holder was unwinding when it acquired the lock, so the guard does not poison.
    was_panicking: bool,
    /// Guards are `!Send`: the goroutine that locks must unlock.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives only `&T`, and `T` is `Sync`.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex around `t`.
    ///
    /// See [`std::sync::Mutex::new`].
    ///
    /// ```
    /// static COUNT: gosched::sync::Mutex<u32> = gosched::sync::Mutex::new(0);
    /// *COUNT.lock().unwrap() += 1;
    /// ```
    #[inline]
    pub const fn new(t: T) -> Mutex<T> {
        Mutex {
            raw: RawMutex::new(),
            data: UnsafeCell::new(t),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Acquires the mutex, waiting until it is free.
    ///
    /// Blocks the calling goroutine or plain thread. See [`std::sync::Mutex::lock`].
    ///
    /// # Errors
    /// If a holder has panicked. The error contains the guard.
    ///
    /// ```
    /// let mutex = gosched::sync::Mutex::new(0);
    /// *mutex.lock().unwrap() = 10;
    /// assert_eq!(*mutex.lock().unwrap(), 10);
    /// ```
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let is_poisoned = self.raw.lock();
        MutexGuard::new(self, is_poisoned)
    }

    /// Attempts to acquire the mutex without waiting.
    ///
    /// A mutex that is being handed from waiter to waiter counts as locked. Never blocks. See
    /// [`std::sync::Mutex::try_lock`].
    ///
    /// # Errors
    /// If the mutex is locked, or if a holder has panicked. In the second case the error contains
    /// the guard.
    ///
    /// ```
    /// let mutex = gosched::sync::Mutex::new(0);
    /// let guard = mutex.lock().unwrap();
    /// assert!(mutex.try_lock().is_err());
    /// drop(guard);
    /// assert!(mutex.try_lock().is_ok());
    /// ```
    #[inline]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self.raw.try_lock() {
            Some(is_poisoned) => Ok(MutexGuard::new(self, is_poisoned)?),
            None => Err(TryLockError::WouldBlock),
        }
    }

    /// Returns whether the mutex is poisoned: a holder has panicked.
    ///
    /// See [`std::sync::Mutex::is_poisoned`].
    ///
    /// ```
    /// assert!(!gosched::sync::Mutex::new(0).is_poisoned());
    /// ```
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.raw.is_poisoned()
    }

    /// Clears the poisoned state.
    ///
    /// See [`std::sync::Mutex::clear_poison`].
    ///
    /// ```
    /// use gosched::sync::{Arc, Mutex};
    ///
    /// let mutex = Arc::new(Mutex::new(0));
    /// let other = Arc::clone(&mutex);
    /// let _ = std::thread::spawn(move || {
    ///     let _guard = other.lock().unwrap();
    ///     panic!("now it is poisoned");
    /// })
    /// .join();
    /// assert!(mutex.is_poisoned());
    /// *mutex.lock().unwrap_err().into_inner() = 1;
    /// mutex.clear_poison();
    /// assert_eq!(*mutex.lock().unwrap(), 1);
    /// ```
    #[inline]
    pub fn clear_poison(&self) {
        self.raw.clear_poison();
    }

    /// Consumes the mutex and returns its value.
    ///
    /// See [`std::sync::Mutex::into_inner`].
    ///
    /// # Errors
    /// If a holder has panicked. The error contains the value.
    ///
    /// ```
    /// assert_eq!(gosched::sync::Mutex::new(7).into_inner().unwrap(), 7);
    /// ```
    pub fn into_inner(self) -> LockResult<T>
    where
        T: Sized,
    {
        let is_poisoned = self.is_poisoned();
        result_of(self.data.into_inner(), is_poisoned)
    }

    /// Returns a mutable reference to the value.
    ///
    /// Needs no locking, because the mutex is borrowed mutably. See [`std::sync::Mutex::get_mut`].
    ///
    /// # Errors
    /// If a holder has panicked. The error contains the reference.
    ///
    /// ```
    /// let mut mutex = gosched::sync::Mutex::new(0);
    /// *mutex.get_mut().unwrap() = 10;
    /// assert_eq!(*mutex.lock().unwrap(), 10);
    /// ```
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        let is_poisoned = self.is_poisoned();
        result_of(self.data.get_mut(), is_poisoned)
    }
}

/// Returns `value`, as an error if the lock is poisoned.
#[inline]
pub(super) fn result_of<T>(value: T, is_poisoned: bool) -> LockResult<T> {
    if is_poisoned {
        Err(PoisonError::new(value))
    } else {
        Ok(value)
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(t: T) -> Self {
        Mutex::new(t)
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(Default::default())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut d = f.debug_struct("Mutex");
        match self.try_lock() {
            Ok(guard) => d.field("data", &&*guard),
            Err(TryLockError::Poisoned(error)) => d.field("data", &&**error.get_ref()),
            // With quotes, as std prints it.
            Err(TryLockError::WouldBlock) => d.field("data", &"<locked>"),
        };
        d.field("poisoned", &self.is_poisoned());
        d.finish_non_exhaustive()
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Wraps a lock that the caller has just acquired.
    #[inline]
    fn new(lock: &'a Mutex<T>, is_poisoned: bool) -> LockResult<MutexGuard<'a, T>> {
        let guard = MutexGuard {
            lock,
            was_panicking: std::thread::panicking(),
            not_send: PhantomData,
        };
        result_of(guard, is_poisoned)
    }

    /// Waits on a condvar with the lock released: `wait` gets a function that unlocks. Locks again
    /// when `wait` returns. `wait` returns the condvar's word if the waiter was notified.
    ///
    /// If `wait` unwinds, the lock stays free and is not poisoned: a waiter leaves the value
    /// consistent.
    pub(super) fn unlocked<'c, R>(
        self,
        wait: impl FnOnce(&dyn Fn()) -> (R, Option<&'c AtomicU32>),
    ) -> (LockResult<MutexGuard<'a, T>>, R) {
        let (lock, was_panicking) = (self.lock, self.was_panicking);
        std::mem::forget(self);
        let (result, notified) = wait(&|| lock.raw.unlock());
        let is_poisoned = match notified {
            Some(condvar) => lock.raw.relock(condvar),
            None => lock.raw.lock(),
        };
        let guard = MutexGuard {
            lock,
            was_panicking,
            not_send: PhantomData,
        };
        (result_of(guard, is_poisoned), result)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: U10: a guard exists only while its goroutine holds the lock, so nothing else
        // reaches the value.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: U10: only the lock's holder has a guard, and this one is borrowed mutably.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            self.lock.raw.poison();
        }
        self.lock.raw.unlock();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
