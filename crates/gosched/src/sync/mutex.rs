//! [`Mutex`]: std's, for goroutines and threads, with Go's fairness.
//!
//! ```text
//!  word (mutex_word)     who may            what follows
//!  0                     anybody: lock      one swap: LOCKED
//!  LOCKED                the holder: unlock one swap: 0
//!  LOCKED                others: lock       spin a little; then queue, which sets WAITERS
//!  LOCKED + WAITERS      the holder: unlock free; the first waiter wakes and competes (WOKEN)
//!  … + WOKEN             the holder: unlock free; nobody is woken: somebody awake wants it
//!  … + STARVING          the holder: unlock handed over to the first waiter, LOCKED all the time
//!  … + POISON            anybody            as without; the bit stays until `clear_poison`
//! ```
//!
//! Orderings (U10): what a holder wrote is seen by the next one, through the word (the Release of the unlock's swap, the Acquire of
//! the lock's), or, when it is handed over, through the end of the wait (`sudog`: finish and outcome).
//! The data is touched between the two and nowhere else; POISON is set before the unlock.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use super::condvar::notify_one;
use super::mutex_word::{LOCKED, LockWord, Locker, OWN};
use super::owner::Owner;
use super::{LockResult, PoisonError, TryLockError, TryLockResult};
use crate::sched::model::g::WaitReason;
use crate::sched::waitq::WaitKind;
use crate::shim::Relaxed;
use crate::sync::mutex_slow;

static KIND: WaitKind = WaitKind::new(WaitReason::Mutex).passing_on(|waiter, by| {
    // SAFETY: by the caller's promise; the kind's waiters wait on a LockWord.
    unsafe {
        mutex_slow::pass_on(waiter, by, |word| {
            mutex_slow::unlock_slow(word, 0, |_, _| {})
        })
    };
});
/// Of a condvar's waiter that was notified: it passes on the notification as well.
static RELOCK: WaitKind = WaitKind::new(WaitReason::Mutex).passing_on(|waiter, by| {
    // SAFETY: as above; and `relock` gives the condvar's word beside the lock.
    unsafe {
        mutex_slow::pass_on(waiter, by, |word| {
            mutex_slow::unlock_slow(word, 0, |_, _| {})
        });
        notify_one(&*waiter.on.get().cases_at.cast::<AtomicU32>());
    }
});

/// A notification in the hands of a waiter that has yet to lock its mutex again.
struct Notified<'a>(&'a AtomicU32);

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        notify_one(self.0);
    }
}

/// Somebody panicked while it held the lock.
const POISON: usize = OWN;

/// The lock without what it guards.
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

    /// Waits for the lock; returns whether it is poisoned.
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

    /// As [`RawMutex::lock`], for a waiter that a condvar has notified. If it unwinds before it has the lock, or never goes on, the
    /// next waiter is notified.
    fn relock(&self, condvar: &AtomicU32) -> bool {
        let before = if self.word.lock_fast() {
            0
        } else {
            let notified = Notified(condvar);
            let beside = ptr::from_ref(condvar).cast();
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

    /// Gives the lock back; the caller has it.
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

/// Mutual exclusion around a value; see [`std::sync::Mutex`].
///
/// Waiting blocks the goroutine, or the plain thread it is called on; only [`lock`](Mutex::lock) waits. Who waits is served in
/// order as far as that is free: whoever is running may be faster than whoever has to be woken, but nobody waits longer than about
/// a millisecond for that reason. A goroutine that locks again what it has waits for itself, for ever; if nothing else can happen
/// the deadlock detector says so.
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

// SAFETY: U10, as std's: the value may be moved out of it.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: U10, one holder at a time reaches the value, which so passes from thread to thread.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T: ?Sized> UnwindSafe for Mutex<T> {}
impl<T: ?Sized> RefUnwindSafe for Mutex<T> {}

/// Possession of a [`Mutex`]; dropping it unlocks. See [`std::sync::MutexGuard`].
///
/// ```
/// let mutex = gosched::sync::Mutex::new(1);
/// {
///     let mut guard = mutex.lock().unwrap();
///     *guard += 1;
/// }
/// assert_eq!(*mutex.lock().unwrap(), 2);
/// ```
#[must_use = "the Mutex is unlocked when its guard is dropped, so at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    /// Whether the holder was unwinding when it got the lock: then it does not poison.
    was_panicking: bool,
    /// Who locks unlocks.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives shared access to the value, no more (as std's).
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// A free Mutex around `t`; see [`std::sync::Mutex::new`].
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
    /// Waits until it has the lock; see [`std::sync::Mutex::lock`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// A holder has panicked; the error holds the guard.
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

    /// Takes the lock if it is free; see [`std::sync::Mutex::try_lock`]. While it is handed from waiter to waiter it is not.
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// Somebody has it, or a holder has panicked; then the error holds the guard.
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

    /// Whether a holder has panicked; see [`std::sync::Mutex::is_poisoned`].
    ///
    /// ```
    /// assert!(!gosched::sync::Mutex::new(0).is_poisoned());
    /// ```
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.raw.is_poisoned()
    }

    /// Forgets that a holder has panicked; see [`std::sync::Mutex::clear_poison`].
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

    /// The value, of a Mutex that nobody else can reach; see [`std::sync::Mutex::into_inner`].
    ///
    /// # Errors
    /// A holder has panicked; the error holds the value.
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

    /// The value in place, of a Mutex that nobody else can reach; see [`std::sync::Mutex::get_mut`].
    ///
    /// # Errors
    /// A holder has panicked; the error holds the reference.
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

/// Err if poisoned.
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
            Err(TryLockError::WouldBlock) => d.field("data", &"<locked>"), // quoted, as std's
        };
        d.field("poisoned", &self.is_poisoned());
        d.finish_non_exhaustive()
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// The caller has the lock.
    #[inline]
    fn new(lock: &'a Mutex<T>, is_poisoned: bool) -> LockResult<MutexGuard<'a, T>> {
        let guard = MutexGuard {
            lock,
            was_panicking: std::thread::panicking(),
            not_send: PhantomData,
        };
        result_of(guard, is_poisoned)
    }

    /// What a Condvar does with it: `wait` gets a function that unlocks, and when it returns the lock is taken again. It returns the
    /// condvar's word if it was notified. If `wait`
    /// unwinds the lock stays free, and nobody is told of a panic: who waits leaves the value in order.
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
        // SAFETY: U10, the guard is the one possession of the lock.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: U10, as above.
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
