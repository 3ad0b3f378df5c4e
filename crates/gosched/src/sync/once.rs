//! [`Once`]: std's, for goroutines and threads.
//!
//! ```text
//!  word        meaning                                        next
//!  INCOMPLETE  nobody has run it                              RUNNING
//!  RUNNING     somebody runs it; the others wait              COMPLETE; POISONED, if it panics
//!  POISONED    whoever ran it last panicked                   RUNNING, by one that does not mind
//!  COMPLETE    it has run                                     –
//!  + QUEUED    somebody may wait, in the parking table        without it, under the table's lock
//! ```
//!
//! Orderings (U10): what the closure did is seen by whoever finds COMPLETE: the Release of the change to it pairs with the Acquire of
//! every look. The change is the last touch of the word by whoever ran the closure.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::AtomicU32;

use super::sema::{self, KeyWait, ParkResult, key_of};
use crate::sched::model::g::WaitReason;
use crate::sched::waitq::WaitKind;
use crate::shim::{Acquire, Relaxed, Release};
use crate::thread::check_cancelled;

static KIND: WaitKind = WaitKind::new(WaitReason::Once);

const INCOMPLETE: u32 = 0;
const POISONED: u32 = 1;
const RUNNING: u32 = 2;
const COMPLETE: u32 = 3;
const STATE: u32 = 3;
const QUEUED: u32 = 4;

/// Something that is done once, by whoever comes first; see [`std::sync::Once`].
///
/// Whoever comes while it is being done waits: the goroutine, or the plain thread, is blocked. Doing it again from within waits
/// for ever.
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

/// What [`Once::call_once_force`] tells its closure; see [`std::sync::OnceState`].
///
/// ```
/// gosched::sync::Once::new().call_once_force(|state| assert!(!state.is_poisoned()));
/// ```
pub struct OnceState {
    is_poisoned: bool,
    /// Of one thread, as std's.
    not_sync: PhantomData<Cell<u32>>,
}

/// A [`Once`] that has not run: what one wrote before `Once::new` could be called in a constant; see [`std::sync::ONCE_INIT`].
#[deprecated(note = "the `Once::new()` function is now preferred")]
#[allow(
    clippy::declare_interior_mutable_const,
    reason = "a constant to begin with, as std's"
)]
pub const ONCE_INIT: Once = Once::new();

impl Once {
    /// One that has not run; see [`std::sync::Once::new`]. Blocks nothing. See the example of [`Once`].
    #[inline]
    #[must_use]
    #[allow(
        clippy::new_without_default,
        reason = "std's has none: it would be no constant"
    )]
    pub const fn new() -> Once {
        Once {
            word: AtomicU32::new(INCOMPLETE),
        }
    }

    /// Runs `f` if nothing has run yet, and returns when something has; see [`std::sync::Once::call_once`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while somebody else's closure runs. See the example of [`Once`].
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

    /// As [`Once::call_once`], also after a panic; see [`std::sync::Once::call_once_force`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while somebody else's closure runs.
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

    /// Whether some closure has run to its end; see [`std::sync::Once::is_completed`].
    ///
    /// Blocks nothing.
    ///
    /// ```
    /// let once = gosched::sync::Once::new();
    /// assert!(!once.is_completed());
    /// once.call_once(|| ());
    /// assert!(once.is_completed());
    /// ```
    #[inline]
    pub fn is_completed(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `Running::end`.
        self.word.load(Acquire) == COMPLETE
    }

    /// Waits until some closure has run; see [`std::sync::Once::wait`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Panics
    /// If a closure has panicked, or does.
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

    /// As [`Once::wait`], through panics; see [`std::sync::Once::wait_force`]. See the example of [`Once::wait`].
    pub fn wait_force(&self) {
        self.wait_completed(true);
    }

    #[track_caller]
    fn wait_completed(&self, through_panics: bool) {
        loop {
            // ORDER: Acquire; as in `is_completed`.
            let word = self.word.load(Acquire);
            match word & STATE {
                COMPLETE => return,
                POISONED if !through_panics => poisoned(),
                _ => self.wait_while(word),
            }
        }
    }

    /// The slow half: runs the closure, or waits for whoever does.
    #[cold]
    #[track_caller]
    fn call(&self, through_panics: bool, f: &mut dyn FnMut(&OnceState)) {
        loop {
            // ORDER: Acquire; as in `is_completed`.
            let word = self.word.load(Acquire);
            match word & STATE {
                COMPLETE => return,
                RUNNING => self.wait_while(word),
                POISONED if !through_panics => poisoned(),
                state => {
                    let next = RUNNING | word & QUEUED;
                    // ORDER: Acquire; pairs with the Release of one that panicked.
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

    /// Waits until the state is no longer that of `seen`.
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

    /// Whether it has run, for an owner that nobody else can reach.
    pub(super) fn state(&mut self) -> Exclusive {
        match *self.word.get_mut() & STATE {
            COMPLETE => Exclusive::Complete,
            POISONED => Exclusive::Poisoned,
            _ => Exclusive::Incomplete,
        }
    }

    /// Says that it has run, or panicked, for an owner that nobody else can reach.
    pub(super) fn set_complete(&mut self, is_complete: bool) {
        *self.word.get_mut() = if is_complete { COMPLETE } else { POISONED };
    }
}

/// The states that a [`Once`] has while nobody uses it.
pub(super) enum Exclusive {
    Incomplete,
    Poisoned,
    Complete,
}

/// The right to run the closure; ends it in whichever way it ends.
struct Running<'a> {
    once: &'a Once,
    becomes: u32,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let (word, becomes) = (&self.once.word, self.becomes);
        // ORDER: Release; pairs with the Acquire of every look.
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
    /// Whether a closure has panicked before; see [`std::sync::OnceState::is_poisoned`]. Blocks nothing. See the example of
    /// [`OnceState`].
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
