//! [`RwLock`]: std's reader-writer lock for goroutines and plain threads, with Go's fairness.
//!
//! std's lock blocks the thread. A wait here frees the thread for other goroutines.
//!
//! ```text
//!  operation   free      read-locked                  a writer holds it, or waits for readers
//!  read        acquires  acquires                     queues until that writer unlocks
//!  write       acquires  stops new readers, waits     queues as for a Mutex (mutex_word)
//!                        until the readers unlock
//!  unlock      –         the last reader wakes the    all queued readers acquire it; only then
//!                        waiting writer               can the next writer stop new readers
//! ```
//!
//! `rwlock_word` has the word and its protocol. Orderings (U10):
//! - The writer's Release, in the swap that gives up LOCKED, pairs with the Acquire of the next
//!   writer and of every later reader.
//! - Each reader's Release, in its unlock, pairs with the Acquire of the writer that checks whether
//!   readers are left.
//! - A waiter that acquires the lock in a queue is ordered by the end of its wait.
//!
//! Each lock has three keys in the parking table:
//! - the word's address, for writers;
//! - the address + 1, for readers;
//! - the address + 2, for the writer that waits for readers to unlock.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use super::mutex::result_of;
use super::mutex_word::{LOCKED, LockWord, Locker};
use super::rwlock_word::{POISON, READERS, READERS_WAIT};
use super::{LockResult, PoisonError, TryLockError, TryLockResult};
use crate::sched::model::g::WaitReason;
use crate::sched::park::enter;
use crate::sched::waiting::owner::Owner;
use crate::sched::waiting::sema::{self, Grant, KeyKind, KeyWait, ParkResult, key_of};
use crate::sched::waiting::waitq::WakeList;
use crate::shim::Relaxed;
use crate::sync::mutex_slow;
use crate::thread::check_cancelled;

static READ: KeyKind<LockWord> = KeyKind::granting::<ReadLock>(WaitReason::RwLockRead);
static WRITE: KeyKind<LockWord> = KeyKind::granting::<WriteLock>(WaitReason::RwLockWrite);
static DRAIN: KeyKind<LockWord> = KeyKind::granting::<DrainedLock>(WaitReason::RwLockWrite);

struct ReadLock;

impl Grant for ReadLock {
    type Word = LockWord;

    fn pass_on(word: &LockWord, token: Option<usize>, _: Option<&AtomicU32>) {
        if token.is_some() {
            unlock_read(word);
        }
    }
}

struct WriteLock;

impl Grant for WriteLock {
    type Word = LockWord;

    fn pass_on(word: &LockWord, token: Option<usize>, _: Option<&AtomicU32>) {
        mutex_slow::pass_on(word, token, unlock_write_slow);
    }
}

/// The wait of a writer that holds LOCKED. Passes on LOCKED, whether the readers have left or not.
struct DrainedLock;

impl Grant for DrainedLock {
    type Word = LockWord;

    fn pass_on(word: &LockWord, _: Option<usize>, _: Option<&AtomicU32>) {
        {
            let _table = sema::lock(key_of(word));
            word.drain_left();
        }
        unlock_write_slow(word);
    }
}

/// The number of the key of waiting readers.
const READERS_KEY: usize = 1;
/// The number of the key of the writer that waits for readers to unlock.
const DRAIN_KEY: usize = 2;

fn readers_key(word: &LockWord) -> usize {
    key_of(word) + READERS_KEY
}

fn drain_key(word: &LockWord) -> usize {
    key_of(word) + DRAIN_KEY
}

#[inline]
fn unlock_read(word: &LockWord) {
    if !word.unread() {
        unlock_read_slow(word);
    }
}

#[cold]
#[inline(never)]
fn unlock_read_slow(word: &LockWord) {
    let key = drain_key(word);
    let mut wake = WakeList::new();
    let rt = enter(); // until the wake-up: the popped writer relies on it (`waitq`)
    {
        let mut table = sema::lock(key);
        if word.unread_last()
            // The woken writer may free the lock, so only its key is used from here on.
            && let Some(writer) = table.pop(key)
        {
            writer.finish(0, &mut wake);
        }
    }
    wake.wake_in(&rt);
}

#[cold]
#[inline(never)]
fn unlock_write_slow(word: &LockWord) {
    mutex_slow::unlock_slow(word, READERS_WAIT, |table, wake| {
        table.pop_all(readers_key(word), || word.admit(), wake);
    });
}

/// The lock without the data it guards.
struct RawRwLock {
    word: LockWord,
    /// Names the writer's goroutine, for dumps.
    owner: Owner,
}

impl RawRwLock {
    /// Acquires a read lock, waiting if needed, and returns whether the lock is poisoned.
    #[inline]
    fn read(&self) -> bool {
        let before = match self.word.read() {
            Ok(before) => before,
            Err(_) => self.read_slow(),
        };
        before & POISON != 0
    }

    #[cold]
    #[inline(never)]
    fn read_slow(&self) -> usize {
        let mut turns = 0;
        loop {
            if let Ok(before) = self.word.read() {
                return before;
            }
            if mutex_slow::may_spin(turns) {
                mutex_slow::spin();
                turns += 1;
                continue;
            }
            check_cancelled();
            let wait = KeyWait {
                owner: Some(&self.owner),
                ..KeyWait::on(&self.word, READERS_KEY, &READ)
            };
            let parked = wait.park(
                |_| self.word.queue_reader(),
                || {},
                |left| self.word.readers_left(left.are_more),
            );
            match parked {
                ParkResult::Got(_) => return self.word.0.load(Relaxed),
                ParkResult::Refused => {}
                ParkResult::Cancelled | ParkResult::TimedOut => check_cancelled(),
            }
        }
    }

    #[inline]
    fn unlock_read(&self) {
        unlock_read(&self.word);
    }

    /// Acquires the write lock, waiting if needed, and returns whether the lock is poisoned.
    #[inline]
    fn write(&self) -> bool {
        if self.word.lock_fast() {
            self.owner.set();
            return false;
        }
        self.write_slow()
    }

    #[cold]
    #[inline(never)]
    fn write_slow(&self) -> bool {
        loop {
            let before = mutex_slow::lock_slow(&self.word, &self.owner, &WRITE);
            self.owner.set();
            if self.drain() {
                return before & POISON != 0;
            }
            check_cancelled();
        }
    }

    /// The writer waits until no reader is left. On false the goroutine must unwind, and the lock
    /// is released.
    fn drain(&self) -> bool {
        let mut turns = 0;
        while self.word.has_readers() {
            if mutex_slow::may_spin(turns) {
                mutex_slow::spin();
                turns += 1;
                continue;
            }
            if sema::must_unwind() {
                self.unlock_write();
                return false;
            }
            // However the wait ends, the loop checks the word for readers.
            KeyWait::on(&self.word, DRAIN_KEY, &DRAIN).park(
                |_| self.word.queue_drain(),
                || {},
                |_| self.word.drain_left(),
            );
        }
        true
    }

    #[inline]
    fn try_write(&self) -> Option<bool> {
        let before = match self.word.lock_fast() {
            true => 0,
            false => {
                let unless = LOCKED | READERS;
                self.word.acquire(unless, Locker::default()).ok()?
            }
        };
        self.owner.set();
        Some(before & POISON != 0)
    }

    #[inline]
    fn unlock_write(&self) {
        self.owner.clear();
        if !self.word.unlock_fast() {
            unlock_write_slow(&self.word);
        }
    }

    /// Turns the write lock into a read lock. No other writer acquires the lock in between.
    fn downgrade(&self) {
        self.word.admit();
        self.unlock_write();
    }

    fn is_poisoned(&self) -> bool {
        self.word.0.load(Relaxed) & POISON != 0
    }
}

/// A reader-writer lock: many readers or one writer, for goroutines and plain threads.
///
/// Waiting blocks the calling goroutine or plain thread. Only [`read`](RwLock::read) and
/// [`write`](RwLock::write) wait. Writers do not starve: while a writer waits, new readers queue
/// behind it. When it unlocks, all of them acquire the lock before the next writer.
///
/// So a goroutine with a read guard must not call [`read`](RwLock::read) again. A writer between
/// the two calls waits for the first guard, and the second call waits for the writer. See
/// [`std::sync::RwLock`].
///
/// ```
/// use gosched::sync::RwLock;
///
/// let lock = RwLock::new(5);
/// {
///     let one = lock.read().unwrap();
///     let another = lock.try_read().unwrap();
///     assert_eq!(*one + *another, 10);
/// }
/// *lock.write().unwrap() += 1;
/// assert_eq!(*lock.read().unwrap(), 6);
/// ```
pub struct RwLock<T: ?Sized> {
    raw: RawRwLock,
    data: UnsafeCell<T>,
}

// SAFETY: U10: the lock owns its value, which may be moved out on another thread (`T: Send`). All
// else in it is atomics.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: U10: the word admits one writer or many readers. A writer moves access to the value
// between threads (`T: Send`), readers share the value (`T: Sync`).
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

impl<T: ?Sized> UnwindSafe for RwLock<T> {}
impl<T: ?Sized> RefUnwindSafe for RwLock<T> {}

/// A read guard of a [`RwLock`] that unlocks it when dropped.
///
/// See [`std::sync::RwLockReadGuard`].
///
/// ```
/// let lock = gosched::sync::RwLock::new(String::from("text"));
/// let guard = lock.read().unwrap();
/// assert_eq!(guard.len(), 4);
/// ```
#[must_use = "if unused, the RwLock is unlocked immediately"]
pub struct RwLockReadGuard<'rwlock, T: ?Sized + 'rwlock> {
    /// A pointer, not `&RwLock<T>`: as in std, the guard is covariant in `T`.
    data: NonNull<T>,
    raw: &'rwlock RawRwLock,
}

// SAFETY: a shared guard gives only `&T`, and `T` is `Sync`.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}

/// The write guard of a [`RwLock`] that unlocks it when dropped.
///
/// See [`std::sync::RwLockWriteGuard`].
///
/// ```
/// let lock = gosched::sync::RwLock::new(String::new());
/// let mut guard = lock.write().unwrap();
/// guard.push_str("text");
/// ```
#[must_use = "if unused, the RwLock is unlocked immediately"]
pub struct RwLockWriteGuard<'rwlock, T: ?Sized> {
    lock: &'rwlock RwLock<T>,
    /// The writer was unwinding when it acquired the lock, so the guard does not poison.
    was_panicking: bool,
    /// Guards are `!Send`: the goroutine that locks must unlock.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives only `&T`, and `T` is `Sync`.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<T> RwLock<T> {
    /// Creates an unlocked lock around `t`.
    ///
    /// See [`std::sync::RwLock::new`].
    ///
    /// ```
    /// static TABLE: gosched::sync::RwLock<Vec<u32>> = gosched::sync::RwLock::new(Vec::new());
    /// TABLE.write().unwrap().push(1);
    /// ```
    #[inline]
    pub const fn new(t: T) -> RwLock<T> {
        RwLock {
            raw: RawRwLock {
                word: LockWord(AtomicUsize::new(0)),
                owner: Owner::new(),
            },
            data: UnsafeCell::new(t),
        }
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Acquires a read lock, waiting while a writer holds the lock or waits for it.
    ///
    /// Blocks the calling goroutine or plain thread. See [`std::sync::RwLock::read`].
    ///
    /// # Errors
    /// If a writer has panicked. The error contains the guard.
    ///
    /// ```
    /// let lock = gosched::sync::RwLock::new(1);
    /// assert_eq!(*lock.read().unwrap(), 1);
    /// ```
    #[inline]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        let is_poisoned = self.raw.read();
        self.reader(is_poisoned)
    }

    /// Attempts to acquire a read lock without waiting.
    ///
    /// Never blocks. See [`std::sync::RwLock::try_read`].
    ///
    /// # Errors
    /// If a writer holds the lock or waits for it, or if a writer has panicked. In the second case
    /// the error contains the guard.
    ///
    /// ```
    /// let lock = gosched::sync::RwLock::new(1);
    /// assert_eq!(*lock.try_read().unwrap(), 1);
    /// ```
    #[inline]
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        match self.raw.word.read() {
            Ok(before) => Ok(self.reader(before & POISON != 0)?),
            Err(_) => Err(TryLockError::WouldBlock),
        }
    }

    /// Acquires the write lock, waiting until no reader or writer holds the lock.
    ///
    /// Blocks the calling goroutine or plain thread. See [`std::sync::RwLock::write`].
    ///
    /// # Errors
    /// If a writer has panicked. The error contains the guard.
    ///
    /// ```
    /// let lock = gosched::sync::RwLock::new(1);
    /// *lock.write().unwrap() = 2;
    /// assert!(lock.try_read().is_ok());
    /// ```
    #[inline]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        let is_poisoned = self.raw.write();
        self.writer(is_poisoned)
    }

    /// Attempts to acquire the write lock without waiting.
    ///
    /// Never blocks. See [`std::sync::RwLock::try_write`].
    ///
    /// # Errors
    /// If the lock is held, or if a writer has panicked. In the second case the error contains the
    /// guard.
    ///
    /// ```
    /// let lock = gosched::sync::RwLock::new(1);
    /// let reader = lock.read().unwrap();
    /// assert!(lock.try_write().is_err());
    /// drop(reader);
    /// assert!(lock.try_write().is_ok());
    /// ```
    #[inline]
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        match self.raw.try_write() {
            Some(is_poisoned) => Ok(self.writer(is_poisoned)?),
            None => Err(TryLockError::WouldBlock),
        }
    }

    /// Wraps a read lock that the caller has just acquired.
    #[inline]
    fn reader(&self, is_poisoned: bool) -> LockResult<RwLockReadGuard<'_, T>> {
        let guard = RwLockReadGuard {
            // SAFETY: `UnsafeCell::get` returns the address of a field, which is not null.
            data: unsafe { NonNull::new_unchecked(self.data.get()) },
            raw: &self.raw,
        };
        result_of(guard, is_poisoned)
    }

    /// Wraps the write lock that the caller has just acquired.
    #[inline]
    fn writer(&self, is_poisoned: bool) -> LockResult<RwLockWriteGuard<'_, T>> {
        let guard = RwLockWriteGuard {
            lock: self,
            was_panicking: std::thread::panicking(),
            not_send: PhantomData,
        };
        result_of(guard, is_poisoned)
    }

    /// Returns whether the lock is poisoned: a writer has panicked.
    ///
    /// See [`std::sync::RwLock::is_poisoned`].
    ///
    /// ```
    /// assert!(!gosched::sync::RwLock::new(0).is_poisoned());
    /// ```
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.raw.is_poisoned()
    }

    /// Clears the poisoned state.
    ///
    /// See [`std::sync::RwLock::clear_poison`].
    ///
    /// ```
    /// let lock = gosched::sync::RwLock::new(0);
    /// lock.clear_poison();
    /// assert!(!lock.is_poisoned());
    /// ```
    #[inline]
    pub fn clear_poison(&self) {
        self.raw.word.0.fetch_and(!POISON, Relaxed);
    }

    /// Consumes the lock and returns its value.
    ///
    /// See [`std::sync::RwLock::into_inner`].
    ///
    /// # Errors
    /// If a writer has panicked. The error contains the value.
    ///
    /// ```
    /// assert_eq!(gosched::sync::RwLock::new(7).into_inner().unwrap(), 7);
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
    /// Needs no locking, because the lock is borrowed mutably. See [`std::sync::RwLock::get_mut`].
    ///
    /// # Errors
    /// If a writer has panicked. The error contains the reference.
    ///
    /// ```
    /// let mut lock = gosched::sync::RwLock::new(0);
    /// *lock.get_mut().unwrap() = 10;
    /// assert_eq!(*lock.read().unwrap(), 10);
    /// ```
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        let is_poisoned = self.is_poisoned();
        result_of(self.data.get_mut(), is_poisoned)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut d = f.debug_struct("RwLock");
        match self.try_read() {
            Ok(guard) => d.field("data", &&*guard),
            Err(TryLockError::Poisoned(error)) => d.field("data", &&**error.get_ref()),
            Err(TryLockError::WouldBlock) => d.field("data", &format_args!("<locked>")),
        };
        d.field("poisoned", &self.is_poisoned());
        d.finish_non_exhaustive()
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(Default::default())
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(t: T) -> Self {
        RwLock::new(t)
    }
}

impl<'rwlock, T: ?Sized> RwLockWriteGuard<'rwlock, T> {
    /// Turns the write guard into a read guard, with no other writer in between.
    ///
    /// Never blocks. See [`std::sync::RwLockWriteGuard::downgrade`].
    ///
    /// ```
    /// use gosched::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new(0);
    /// let mut writer = lock.write().unwrap();
    /// *writer = 1;
    /// let reader = RwLockWriteGuard::downgrade(writer);
    /// assert_eq!(*reader + *lock.read().unwrap(), 2);
    /// ```
    pub fn downgrade(s: Self) -> RwLockReadGuard<'rwlock, T> {
        let lock = s.lock;
        std::mem::forget(s);
        lock.raw.downgrade();
        lock.reader(false).unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: U10: a read guard exists only while its read lock is held, and writers wait for
        // that.
        unsafe { self.data.as_ref() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: U10: a write guard exists only while its writer holds the lock alone.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: U10: a write guard exists only while its writer holds the lock alone.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.raw.unlock_read();
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            self.lock.raw.word.0.fetch_or(POISON, Relaxed);
        }
        self.lock.raw.unlock_write();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
