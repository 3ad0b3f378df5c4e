//! The runtime's own lock: a futex word with a rank, never held while user code runs.
//!
//! A std Mutex is no substitute: a goroutine that was preempted may hold it (D9), it poisons, and
//! it knows no order. Locks are taken in the order of their ranks, upwards only. Debug builds check
//! the order at every acquisition and remember what each thread holds. So parking with a lock held
//! (G5) is caught where it happens.
//!
//! ```text
//!  word  meaning
//!  0     free
//!  1     held, no thread sleeps
//!  2     held, a thread may sleep: the release wakes one
//! ```

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::shim::{self, Futex};

macro_rules! lock_ranks {
    ($($rank:ident $count:literal $guards:literal;)*) => {
        /// The order in which locks nest. A thread takes them upwards only: in the order of the
        /// table in this file.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub(crate) enum Rank {
            $(#[doc = concat!($count, ": ", $guards)] $rank,)*
        }
    };
}

lock_ranks! {
    // rank    locks              what such a lock guards
    Registry   "one per process"  "the list of runtimes and threads, the pool of Ms";
    Claims     "one per runtime"  "taking Ps away and sending signals; strays, samples of Ms";
    Context    "one per context"  "its children";
    Chan       "one per channel"  "its waiters; a select locks its channels by address";
    Sema       "one per bucket"   "the parking table: the waiters on each address";
    Net        "one per socket"   "its waiters";
    Timers     "one per P"        "its timer heap";
    Sched      "one per runtime"  "`Core`: queue, idle lists, counts (Go's `sched.lock`)";
    GBlocks    "one per runtime"  "the blocks that Gs come from";
    Stacks     "one per class"    "the lists of the stack arena for one size of stacks";
    Dtvs       "one per process"  "the spare tables of thread blocks";
    Probe      "one per M"        "the stack that its thread has unwound for a dump";
}

const SPINS: u32 = 40;

/// A ranked lock around `T`.
pub(crate) struct Lock<T> {
    word: Futex,
    rank: Rank,
    value: UnsafeCell<T>,
}

// SAFETY: D9, the word admits one holder at a time, and only the holder reaches the value. So `T:
// Send` is enough, as for a Mutex.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the lock owns the value; a lock that moves to another thread is not held.
unsafe impl<T: Send> Send for Lock<T> {}

/// Proof that this thread holds a [`Lock`]; dropping it unlocks.
#[must_use = "dropping the guard unlocks"]
pub(crate) struct Held<'a, T>(HeldToo<'a, T>);

/// As [`Held`], for one more lock of the same rank.
#[must_use = "dropping the guard unlocks"]
pub(crate) struct HeldToo<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    pub(crate) const fn new(rank: Rank, value: T) -> Self {
        Lock {
            word: Futex::new(0),
            rank,
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock: a short spin, then the kernel.
    #[inline]
    pub(crate) fn lock(&self) -> Held<'_, T> {
        ranks::taking(self.rank);
        // ORDER: Acquire; pairs with the Release of the last holder's unlock.
        if self
            .word
            .0
            .compare_exchange(0, 1, Acquire, Relaxed)
            .is_err()
        {
            self.lock_slow();
        }
        Held(HeldToo { lock: self })
    }

    /// Takes the lock if it becomes free within a short spin. It is not part of the order of
    /// [`Rank`]s, because it waits for no thread: the caller has put the ranks aside
    /// ([`RanksAside`]).
    pub(crate) fn try_lock(&self) -> Option<Held<'_, T>> {
        for _ in 0..SPINS {
            // ORDER: Acquire; pairs with the Release of the last holder's unlock.
            if self.word.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                return Some(Held(HeldToo { lock: self }));
            }
            shim::spin_hint();
        }
        None
    }

    /// Takes one more lock of the rank of `_first`, which the caller releases last. All callers
    /// take locks of this rank in one order.
    pub(crate) fn lock_beside(&self, _first: &Held<'_, T>) -> HeldToo<'_, T> {
        self.lock_of_several(false);
        HeldToo { lock: self }
    }

    /// Takes the lock as one of several of its rank. The caller takes them in the order of their
    /// addresses; [`Lock::unlock_of_several`] releases each.
    pub(crate) fn lock_of_several(&self, is_first: bool) {
        if is_first {
            return std::mem::forget(self.lock());
        }
        ranks::assert_last(self.rank);
        // ORDER: Acquire; pairs with the Release of the last holder's unlock.
        if self
            .word
            .0
            .compare_exchange(0, 1, Acquire, Relaxed)
            .is_err()
        {
            self.lock_slow();
        }
    }

    /// The value, for a caller that holds the lock without a guard.
    ///
    /// # Safety
    /// The calling thread holds the lock by [`Lock::lock_of_several`], and has no other reference
    /// to the value.
    #[allow(clippy::mut_from_ref, reason = "as the guard's")]
    pub(crate) unsafe fn get_held(&self) -> &mut T {
        // SAFETY: D9, the caller holds the lock, so no other thread reaches the value.
        unsafe { &mut *self.value.get() }
    }

    /// Releases one of several; the first that was taken is released last.
    ///
    /// # Safety
    /// The calling thread holds the lock by [`Lock::lock_of_several`].
    pub(crate) unsafe fn unlock_of_several(&self, is_first: bool) {
        if is_first {
            ranks::released(self.rank);
        }
        self.unlock();
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self) {
        for _ in 0..SPINS {
            if self.word.0.load(Relaxed) == 0
                && self.word.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
            {
                return;
            }
            shim::spin_hint();
        }
        // A thread that takes the lock with 2 may cause one needless wake at the release; no wake
        // is lost.
        while self.word.0.swap(2, Acquire) != 0 {
            self.word.wait(2, None);
        }
    }

    /// The value; `&mut self` proves that no other thread can reach it.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        ranks::released(self.0.lock.rank);
    }
}

impl<T> Deref for HeldToo<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: D9, the guard exists only while this thread holds the lock (`lock`,
        // `lock_beside`).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for HeldToo<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: D9, the guard exists only while this thread holds the lock (`lock`,
        // `lock_beside`); `&mut self` makes this the only reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for HeldToo<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

impl<T> Lock<T> {
    #[inline]
    fn unlock(&self) {
        // ORDER: Release; pairs with the Acquire of the next holder. A swap, so it is a full
        // barrier for threads that enqueue under the lock and then read `nmspinning` (wake/1).
        let word: *const Futex = &self.word;
        if self.word.0.swap(0, Release) == 2 {
            Futex::wake_one(word); // only the address: the lock itself may be freed by now
        }
    }
}

/// The ranks that the interrupted code of this thread holds do not count, until this is dropped.
///
/// For code that may run in a signal handler and only tries locks.
pub(crate) struct RanksAside {
    #[cfg(debug_assertions)]
    held: u32,
}

impl RanksAside {
    #[inline]
    pub(crate) fn new() -> RanksAside {
        RanksAside {
            #[cfg(debug_assertions)]
            held: ranks::replace(0),
        }
    }
}

impl Drop for RanksAside {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        ranks::replace(self.held);
    }
}

/// The debug check of the order. In release builds it compiles to nothing.
pub(crate) mod ranks {
    use super::Rank;

    #[cfg(debug_assertions)]
    mod held {

        use std::cell::Cell;

        use crate::base::this_m;

        thread_local! {
            /// The ranks that a thread outside every runtime holds. An M keeps its own in
            /// `M::held`: while it schedules, the thread-locals it sees are a goroutine's (D6).
            static OUTSIDE: Cell<u32> = const { Cell::new(0) };
        }

        pub(super) fn get() -> u32 {
            match this_m::locks() {
                Some(locks) => locks.held,
                None => OUTSIDE.try_with(Cell::get).unwrap_or(0),
            }
        }

        /// D9: a goroutine takes an internal lock only inside the runtime, where its thread is not
        /// preempted. The crate's own unit tests reach into the runtime from goroutines and are
        /// exempt.
        pub(super) fn assert_inside(rank: super::Rank) {
            if !cfg!(test) && this_m::locks().is_some_and(|locks| !locks.is_inside) {
                crate::base::fatal::throw_fmt(format_args!(
                    "lock {rank:?} taken outside the runtime"
                ));
            }
        }

        pub(super) fn set(bits: u32) {
            if !this_m::set_held(bits) {
                OUTSIDE.try_with(|held| held.set(bits)).unwrap_or(());
            }
        }
    }

    #[inline]
    pub(super) fn taking(rank: Rank) {
        #[cfg(debug_assertions)]
        {
            let bits = held::get();
            if crate::base::fatal::is_reporting() {
                return;
            }
            held::assert_inside(rank);
            if bits >> rank as u8 != 0 {
                crate::base::fatal::throw_fmt(format_args!(
                    "lock order: taking {rank:?} while holding {bits:#b}"
                ));
            }
            held::set(bits | 1 << rank as u8);
        }
        #[cfg(not(debug_assertions))]
        let _ = rank;
    }

    #[inline]
    pub(super) fn released(rank: Rank) {
        #[cfg(debug_assertions)]
        held::set(held::get() & !(1 << rank as u8));
        #[cfg(not(debug_assertions))]
        let _ = rank;
    }

    /// Replaces the ranks that this thread holds; returns those before.
    #[cfg(debug_assertions)]
    pub(super) fn replace(bits: u32) -> u32 {
        let old = held::get();
        held::set(bits);
        old
    }

    /// Asserts that one more of the same rank may be taken: no higher rank is held.
    #[inline]
    pub(super) fn assert_last(rank: Rank) {
        #[cfg(debug_assertions)]
        if held::get() >> rank as u8 != 1 {
            crate::base::fatal::throw_fmt(format_args!("lock order: one more {rank:?}"));
        }
        #[cfg(not(debug_assertions))]
        let _ = rank;
    }

    /// Asserts G5: a thread that parks, schedules or calls user code holds no internal lock.
    #[inline]
    pub(crate) fn assert_none(doing: &str) {
        #[cfg(debug_assertions)]
        {
            let bits = held::get();
            if bits != 0 {
                crate::base::fatal::throw_fmt(format_args!(
                    "{doing} with internal locks held: {bits:#b}"
                ));
            }
        }
        #[cfg(not(debug_assertions))]
        let _ = doing;
    }
}
