//! [`Once`]: std's one-time initialisation for goroutines and plain threads.
//!
//! std's Once blocks the thread. A wait here frees the thread for other goroutines.
//!
//! ```text
//!  word        meaning                               next
//!  INCOMPLETE  no closure has run                    RUNNING
//!  RUNNING     a closure runs; other callers wait    COMPLETE, or POISONED if it panics
//!  POISONED    the last closure panicked             RUNNING, by a call that ignores poison
//!  COMPLETE    a closure has returned                –
//!  + QUEUED    waiters may be in the parking table   cleared under the table's lock
//! ```
//!
//! Orderings (U10): a caller that finds COMPLETE sees what the closure did. The Release of the
//! change to COMPLETE pairs with the Acquire of every load. That change is the running caller's
//! last access to the word.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::AtomicU32;

use crate::sched::model::g::WaitReason;
use crate::sched::waiting::sema::{self, KeyWait, ParkResult, key_of};
use crate::sched::waiting::waitq::WaitKind;
use crate::shim::{Acquire, Relaxed, Release};
use crate::thread::check_cancelled;

static KIND: WaitKind = WaitKind::new(WaitReason::Once);

const INCOMPLETE: u32 = 0;
const POISONED: u32 = 1;
const RUNNING: u32 = 2;
const COMPLETE: u32 = 3;
const STATE: u32 = 3;
const QUEUED: u32 = 4;

/// A one-time initialisation: the first call runs its closure, later calls do nothing.
///
/// A call during the closure waits, and blocks the calling goroutine or plain thread. A closure
/// that calls its own `Once` deadlocks. See [`std::sync::Once`].
///
/// ```
/// use gosched::sync::Once;
///
/// static START: Once = Once::new();
/// let mut times = 0;
/// for _ in 0..3 {
///     START.call_once(|| times += 1);
/// }
/// assert_eq!(times, 1);
/// ```
pub struct Once {
    word: AtomicU32,
}

impl UnwindSafe for Once {}
impl RefUnwindSafe for Once {}

/// The state that [`Once::call_once_force`] passes to its closure.
///
/// See [`std::sync::OnceState`].
///
/// ```
/// gosched::sync::Once::new().call_once_force(|state| assert!(!state.is_poisoned()));
/// ```
pub struct OnceState {
    is_poisoned: bool,
    /// `!Sync`, as in std.
    not_sync: PhantomData<Cell<u32>>,
}

/// A [`Once`] that has not run.
///
/// It dates from when `Once::new` was not usable in constants. See [`std::sync::ONCE_INIT`].
#[deprecated(note = "the `Once::new()` function is now preferred")]
#[allow(
    clippy::declare_interior_mutable_const,
    reason = "an initial value, as in std"
)]
pub const ONCE_INIT: Once = Once::new();

impl Once {
    /// Creates a `Once` that has not run.
    ///
    /// Never blocks. See the example of [`Once`], and [`std::sync::Once::new`].
    #[inline]
    #[must_use]
    #[allow(
        clippy::new_without_default,
        reason = "std's Once has no Default either: it would not be const"
    )]
    pub const fn new() -> Once {
        Once {
            word: AtomicU32::new(INCOMPLETE),
        }
    }

    /// Runs `f` if no closure has run yet, and returns when one has.
    ///
    /// Blocks the calling goroutine or plain thread while the closure of another call runs. See the
    /// example of [`Once`], and [`std::sync::Once::call_once`].
    ///
    /// # Panics
    /// If the closure of an earlier call has panicked.
    #[inline]
    #[track_caller]
    pub fn call_once<F>(&self, f: F)
    where
        F: FnOnce(),
    {
        if !self.is_completed() {
            let mut f = Some(f);
            self.call(false, &mut |_| {
                if let Some(f) = f.take() {
                    f();
                }
            });
        }
    }

    /// As [`Once::call_once`], but also runs `f` after a panic.
    ///
    /// Blocks the calling goroutine or plain thread while the closure of another call runs. See
    /// [`std::sync::Once::call_once_force`].
    ///
    /// ```
    /// use gosched::sync::Once;
    ///
    /// let once = Once::new();
    /// let panics = std::panic::AssertUnwindSafe(|| once.call_once(|| panic!("not yet")));
    /// assert!(std::panic::catch_unwind(panics).is_err());
    /// once.call_once_force(|state| assert!(state.is_poisoned()));
    /// assert!(once.is_completed());
    /// ```
    #[inline]
    pub fn call_once_force<F>(&self, f: F)
    where
        F: FnOnce(&OnceState),
    {
        if !self.is_completed() {
            let mut f = Some(f);
            self.call(true, &mut |state| {
                if let Some(f) = f.take() {
                    f(state);
                }
            });
        }
    }

    /// Returns whether a closure has run to its end.
    ///
    /// Never blocks. See [`std::sync::Once::is_completed`].
    ///
    /// ```
    /// let once = gosched::sync::Once::new();
    /// assert!(!once.is_completed());
    /// once.call_once(|| ());
    /// assert!(once.is_completed());
    /// ```
    #[inline]
    pub fn is_completed(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `Running::drop`.
        self.word.load(Acquire) == COMPLETE
    }

    /// Waits until a closure has run.
    ///
    /// Blocks the calling goroutine or plain thread. See [`std::sync::Once::wait`].
    ///
    /// # Panics
    /// If a closure has panicked, or panics meanwhile.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let once = gosched::sync::Once::new();
    /// gosched::thread::scope(|s| {
    ///     s.spawn(|| once.call_once(|| ()));
    ///     once.wait();
    /// });
    /// # });
    /// ```
    #[track_caller]
    pub fn wait(&self) {
        self.wait_completed(false);
    }

    /// As [`Once::wait`], but ignores panics.
    ///
    /// See the example of [`Once::wait`], and [`std::sync::Once::wait_force`].
    pub fn wait_force(&self) {
        self.wait_completed(true);
    }

    #[track_caller]
    fn wait_completed(&self, through_panics: bool) {
        loop {
            // ORDER: Acquire; pairs with the Release in `Running::drop`.
            let word = self.word.load(Acquire);
            match word & STATE {
                COMPLETE => return,
                POISONED if !through_panics => poisoned(),
                _ => self.wait_while(word),
            }
        }
    }

    /// The slow path: runs the closure, or waits for the call that runs one.
    #[cold]
    #[track_caller]
    fn call(&self, through_panics: bool, f: &mut dyn FnMut(&OnceState)) {
        loop {
            // ORDER: Acquire; pairs with the Release in `Running::drop`.
            let word = self.word.load(Acquire);
            match word & STATE {
                COMPLETE => return,
                RUNNING => self.wait_while(word),
                POISONED if !through_panics => poisoned(),
                state => {
                    let next = RUNNING | word & QUEUED;
                    // ORDER: Acquire; pairs with the Release of a `Running` whose closure panicked.
                    let began = self.word.compare_exchange(word, next, Acquire, Acquire);
                    if began.is_ok() {
                        let mut running = Running {
                            once: self,
                            becomes: POISONED,
                        };
                        f(&OnceState {
                            is_poisoned: state == POISONED,
                            not_sync: PhantomData,
                        });
                        running.becomes = COMPLETE;
                        return;
                    }
                }
            }
        }
    }

    /// Waits until a running closure ends. Returns at once if the state is no longer that of
    /// `seen`.
    fn wait_while(&self, seen: u32) {
        check_cancelled();
        let parked = KeyWait::new(key_of(&self.word), &KIND).park(
            |_| {
                let queued = seen & STATE | QUEUED;
                let found = self
                    .word
                    .compare_exchange(seen & STATE, queued, Relaxed, Relaxed);
                found.is_ok() || found == Err(queued)
            },
            || {},
            |left| {
                if !left.are_more {
                    self.word.fetch_and(!QUEUED, Relaxed);
                }
            },
        );
        if parked == ParkResult::Cancelled {
            check_cancelled();
        }
    }

    /// The state of a `Once` that is borrowed mutably, so no closure runs.
    pub(super) fn state(&mut self) -> Exclusive {
        match *self.word.get_mut() & STATE {
            COMPLETE => Exclusive::Complete,
            POISONED => Exclusive::Poisoned,
            _ => Exclusive::Incomplete,
        }
    }

    /// Sets the state to COMPLETE or POISONED.
    pub(super) fn set_complete(&mut self, is_complete: bool) {
        *self.word.get_mut() = if is_complete { COMPLETE } else { POISONED };
    }
}

/// The states of a [`Once`] while no closure runs.
pub(super) enum Exclusive {
    Incomplete,
    Poisoned,
    Complete,
}

/// The right to run the closure. Dropping it stores the new state and wakes the waiters.
struct Running<'a> {
    once: &'a Once,
    becomes: u32,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let (word, becomes) = (&self.once.word, self.becomes);
        // ORDER: Release; pairs with the Acquire of every load of the word.
        let ended = word.compare_exchange(RUNNING, becomes, Release, Relaxed);
        if ended.is_err() {
            sema::wake_all(key_of(word), || word.store(becomes, Release));
        }
    }
}

#[cold]
#[track_caller]
fn poisoned() -> ! {
    panic!("Once instance has previously been poisoned")
}

impl OnceState {
    /// Returns whether an earlier closure has panicked.
    ///
    /// Never blocks. See the example of [`OnceState`], and [`std::sync::OnceState::is_poisoned`].
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").finish_non_exhaustive()
    }
}

impl fmt::Debug for OnceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceState")
            .field("poisoned", &self.is_poisoned())
            .finish()
    }
}
