//! [`RwLock`]: std's, for goroutines and threads, with Go's rule of who comes next.
//!
//! ```text
//!  who        free       readers in                writer in, or waiting for readers to leave
//!  read       comes in   comes in                  queues; in when that writer unlocks
//!  write      comes in   shuts the door, waits     queues like for a Mutex (mutex_word)
//!                        until they have left
//!  unlock     –          the last one wakes the    all queued readers come in; then the next writer may
//!                        waiting writer            shut the door
//! ```
//!
//! The word and its protocol are in `rwlock_word`. Orderings (U10): a writer's Release, by the swap that gives LOCKED away, pairs
//! with the Acquire of the next writer and of every reader that comes in; each reader's Release, when it leaves, with the
//! Acquire of the writer that looks whether all have left. Who is let in from a queue sees it through the end of its wait.
//!
//! The keys in the parking table: the word for writers, the next number for readers, the one after for the writer that waits for
//! readers to leave.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

use super::mutex::result_of;
use super::mutex_word::{LOCKED, LockWord, Locker};
use super::owner::Owner;
use super::rwlock_word::{POISON, READERS, READERS_WAIT};
use super::sema::{self, KeyWait, ParkResult, key_of};
use super::{LockResult, PoisonError, TryLockError, TryLockResult};
use crate::sched::model::g::WaitReason;
use crate::sched::park::enter;
use crate::sched::waitq::{WaitKind, WakeList};
use crate::shim::Relaxed;
use crate::sync::mutex_slow;
use crate::thread::check_cancelled;

static READ: WaitKind = WaitKind::new(WaitReason::RwLockRead).passing_on(|waiter, by| {
    if by.is_some() {
        // SAFETY: by the caller's promise; a reader that was let in leaves.
        unlock_read(unsafe { sema::word_of::<LockWord>(waiter) });
    }
});
static WRITE: WaitKind = WaitKind::new(WaitReason::RwLockWrite).passing_on(|waiter, by| {
    // SAFETY: by the caller's promise; the kind's waiters wait on a LockWord.
    unsafe { mutex_slow::pass_on(waiter, by, unlock_write_slow) };
});
/// Of a writer that has LOCKED: it gives it back, whether the readers have left or not.
static DRAIN: WaitKind = WaitKind::new(WaitReason::RwLockWrite).passing_on(|waiter, _| {
    // SAFETY: by the caller's promise.
    let word = unsafe { sema::word_of::<LockWord>(waiter) };
    {
        let _table = sema::lock(key_of(word));
        word.drain_left();
    }
    unlock_write_slow(word);
});

/// The keys of the readers, and of the writer that waits for them to leave.
fn readers_key(word: &LockWord) -> usize {
    key_of(word) + 1
}

fn drain_key(word: &LockWord) -> usize {
    key_of(word) + 2
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
    let rt = enter(); // until they are woken: who was popped relies on it
    {
        let mut table = sema::lock(key);
        if word.unread_last()
            // The lock may be gone from here on, if the writer is: only its key is used.
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

/// The lock without what it guards.
struct RawRwLock {
    word: LockWord,
    /// The writer.
    owner: Owner,
}

impl RawRwLock {
    /// Waits until it is in as a reader; returns whether the lock is poisoned.
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
                ..KeyWait::new(readers_key(&self.word), &READ)
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

    /// Waits until it is in as the writer; returns whether the lock is poisoned.
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

    /// The writer waits until no reader is in; false: it is to unwind, and has given the lock back.
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
            // Whoever ends the wait, the word says whether there are readers.
            KeyWait::new(drain_key(&self.word), &DRAIN).park(
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

    /// The writer becomes a reader; no other writer comes in between.
    fn downgrade(&self) {
        self.word.admit();
        self.unlock_write();
    }

    fn is_poisoned(&self) -> bool {
        self.word.0.load(Relaxed) & POISON != 0
    }
}

/// Many readers or one writer; see [`std::sync::RwLock`].
///
/// Waiting blocks the goroutine, or the plain thread it is called on; only [`read`](RwLock::read) and [`write`](RwLock::write)
/// wait. Writers do not starve: while one waits, new readers queue behind it, and when it unlocks all of them come in before the
/// next writer. So a goroutine that reads must not read once more while it has a guard: a writer between the two would wait for the
/// first, and the second for the writer.
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

// SAFETY: U10, as std's: the value may be moved out of it.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: U10, the value is reached by one writer or by many readers, from any thread.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

impl<T: ?Sized> UnwindSafe for RwLock<T> {}
impl<T: ?Sized> RefUnwindSafe for RwLock<T> {}

/// A reader's possession of a [`RwLock`]; dropping it unlocks. See [`std::sync::RwLockReadGuard`].
///
/// ```
/// let lock = gosched::sync::RwLock::new(String::from("text"));
/// let guard = lock.read().unwrap();
/// assert_eq!(guard.len(), 4);
/// ```
#[must_use = "the RwLock is unlocked when its guard is dropped, so at once"]
pub struct RwLockReadGuard<'rwlock, T: ?Sized + 'rwlock> {
    /// Not a reference to the lock: a guard may stand for one of a shorter-lived type, as std's.
    data: NonNull<T>,
    raw: &'rwlock RawRwLock,
}

// SAFETY: a shared guard gives shared access to the value, no more (as std's).
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}

/// The writer's possession of a [`RwLock`]; dropping it unlocks. See [`std::sync::RwLockWriteGuard`].
///
/// ```
/// let lock = gosched::sync::RwLock::new(String::new());
/// let mut guard = lock.write().unwrap();
/// guard.push_str("text");
/// ```
#[must_use = "the RwLock is unlocked when its guard is dropped, so at once"]
pub struct RwLockWriteGuard<'rwlock, T: ?Sized> {
    lock: &'rwlock RwLock<T>,
    /// Whether the writer was unwinding when it got the lock: then it does not poison.
    was_panicking: bool,
    /// Who locks unlocks.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives shared access to the value, no more (as std's).
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<T> RwLock<T> {
    /// A free RwLock around `t`; see [`std::sync::RwLock::new`].
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
    /// Waits until it is in as a reader; see [`std::sync::RwLock::read`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while a writer is in or waits.
    ///
    /// # Errors
    /// A writer has panicked; the error holds the guard.
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

    /// Comes in as a reader if no writer is in or waits; see [`std::sync::RwLock::try_read`].
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// There is a writer, or one has panicked; then the error holds the guard.
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

    /// Waits until it is in as the writer; see [`std::sync::RwLock::write`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while anybody is in.
    ///
    /// # Errors
    /// A writer has panicked; the error holds the guard.
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

    /// Comes in as the writer if nobody is in; see [`std::sync::RwLock::try_write`].
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// Somebody is in, or a writer has panicked; then the error holds the guard.
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

    /// The caller is in as a reader.
    #[inline]
    fn reader(&self, is_poisoned: bool) -> LockResult<RwLockReadGuard<'_, T>> {
        let guard = RwLockReadGuard {
            // SAFETY: an UnsafeCell's address is not null.
            data: unsafe { NonNull::new_unchecked(self.data.get()) },
            raw: &self.raw,
        };
        result_of(guard, is_poisoned)
    }

    /// The caller is in as the writer.
    #[inline]
    fn writer(&self, is_poisoned: bool) -> LockResult<RwLockWriteGuard<'_, T>> {
        let guard = RwLockWriteGuard {
            lock: self,
            was_panicking: std::thread::panicking(),
            not_send: PhantomData,
        };
        result_of(guard, is_poisoned)
    }

    /// Whether a writer has panicked; see [`std::sync::RwLock::is_poisoned`].
    ///
    /// ```
    /// assert!(!gosched::sync::RwLock::new(0).is_poisoned());
    /// ```
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.raw.is_poisoned()
    }

    /// Forgets that a writer has panicked; see [`std::sync::RwLock::clear_poison`].
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

    /// The value, of a RwLock that nobody else can reach; see [`std::sync::RwLock::into_inner`].
    ///
    /// # Errors
    /// A writer has panicked; the error holds the value.
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

    /// The value in place, of a RwLock that nobody else can reach; see [`std::sync::RwLock::get_mut`].
    ///
    /// # Errors
    /// A writer has panicked; the error holds the reference.
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
    /// The writer becomes a reader, and nobody writes in between; see [`std::sync::RwLockWriteGuard::downgrade`].
    ///
    /// Blocks nothing.
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
        // SAFETY: U10, while a reader is in nobody writes.
        unsafe { self.data.as_ref() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: U10, the writer is in alone.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: U10, the writer is in alone.
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
