//! Scoped goroutines: goroutines that borrow from the frames of their caller.
//!
//! A scope counts its goroutines and its own body. Its caller returns only when the count is zero,
//! also if it panics or must unwind, because the goroutines borrow from its frames.
//!
//! If a runtime is dropped while one of the goroutines waits, the count never reaches zero. That is
//! a fatal error: the goroutine may have passed its borrow on to others.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::ending;
use super::join::with_current;
use super::packet::{RawHandle, spawn_raw};
use super::{Result, Thread};
use crate::sched::model::current::current_g;
use crate::sched::model::g::WaitReason;
use crate::sched::waiting::wait_slot::{SlotKind, WaitSlot};

static SCOPE: SlotKind = SlotKind::new(WaitReason::Scope);

pub(super) struct ScopeData {
    /// Running goroutines, plus one for the scope's own body.
    running: AtomicUsize,
    has_panicked: AtomicBool,
    empty: WaitSlot,
}

impl ScopeData {
    pub(super) fn enter(&self) {
        let before = self.running.fetch_add(1, Relaxed);
        assert!(before < usize::MAX / 2, "too many goroutines in one scope");
    }

    pub(super) fn leave(&self) {
        // ORDER: AcqRel; pairs with the Acquire in `scope`: the caller that finds the scope empty
        // sees what the goroutines did.
        if self.running.fetch_sub(1, AcqRel) == 1 {
            self.empty.complete();
        }
    }

    /// One of the goroutines will never run again, so the scope cannot end. Wakes its caller.
    pub(super) fn lose(&self) {
        self.empty.complete();
    }

    /// The slot in which the scope's caller waits.
    pub(super) fn slot(&self) -> *const WaitSlot {
        &self.empty
    }

    pub(super) fn note_panic(&self) {
        self.has_panicked.store(true, Relaxed);
    }
}

/// A scope in which goroutines can be started.
///
/// See [`std::thread::Scope`].
///
/// ```
/// # gosched::run(|| {
/// let numbers = [1, 2, 3];
/// gosched::thread::scope(|s| {
///     for n in &numbers {
///         s.spawn(move || assert!(*n > 0));
///     }
/// });
/// # });
/// ```
pub struct Scope<'scope, 'env: 'scope> {
    data: Arc<ScopeData>,
    /// Both lifetimes are invariant, as in std: the scope can be neither shortened nor extended.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A handle to a scoped goroutine, which can be joined.
///
/// See [`std::thread::ScopedJoinHandle`].
///
/// ```
/// # gosched::run(|| {
/// let text = String::from("hello");
/// let len = gosched::thread::scope(|s| s.spawn(|| text.len()).join().unwrap());
/// assert_eq!(len, 5);
/// # });
/// ```
pub struct ScopedJoinHandle<'scope, T> {
    raw: RawHandle<T>,
    scope: PhantomData<&'scope mut &'scope ()>,
}

// SAFETY: D1: `RawHandle` is `Send`, because `spawn_raw` makes it for results that are `Send`. The
// phantom lifetimes hold no data.
unsafe impl<T> Send for ScopedJoinHandle<'_, T> {}
// SAFETY: D1: `RawHandle` is `Sync`, and the phantom lifetimes hold no data.
unsafe impl<T> Sync for ScopedJoinHandle<'_, T> {}

/// Runs `f` with a scope, in which goroutines may borrow from the caller.
///
/// Blocks the calling goroutine or plain thread until every goroutine of the scope has ended. See
/// [`std::thread::scope`].
///
/// # Panics
/// If a goroutine of the scope panicked and was not joined.
///
/// ```
/// # gosched::run(|| {
/// let mut a = vec![1, 2, 3];
/// let mut sum = 0;
/// gosched::thread::scope(|s| {
///     s.spawn(|| sum += a.iter().sum::<i32>());
/// });
/// a.push(sum);
/// assert_eq!(a, [1, 2, 3, 6]);
/// # });
/// ```
#[track_caller]
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let scope = Scope {
        data: Arc::new(ScopeData {
            running: AtomicUsize::new(1),
            has_panicked: AtomicBool::new(false),
            empty: WaitSlot::new(),
        }),
        scope: PhantomData,
        env: PhantomData,
    };
    // SAFETY: the goroutine's own `Inner`, to which it holds a reference until it ends.
    let own = current_g().map(|_| unsafe { super::current_inner().as_ref() });
    let was_in_scope = own.is_some_and(|own| own.set_in_scope(true));
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    scope.data.leave();
    scope.data.empty.wait_always(&SCOPE);
    if let Some(own) = own {
        own.set_in_scope(was_in_scope);
    }
    // ORDER: Acquire; pairs with the AcqRel in `leave`.
    if scope.data.running.load(Acquire) != 0 {
        if current_g().is_some_and(|g| g.sched().dead.load(Acquire)) {
            // This goroutine's runtime was dropped too. It waits here and is abandoned.
            WaitSlot::new().wait_always(&SCOPE);
        }
        // The call can neither return nor unwind: the goroutine's borrows would be freed under it.
        crate::base::fatal::throw(
            "a scope cannot end: the runtime of one of its goroutines was dropped while the \
             goroutine waited; drop the runtime after the scope, or use Runtime::shutdown",
        );
    }
    match result {
        Err(payload) => resume_unwind(payload),
        Ok(_) if scope.data.has_panicked.load(Relaxed) => {
            panic!("a scoped thread panicked")
        }
        Ok(value) => value,
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a goroutine in the scope.
    ///
    /// Never blocks; the end of the scope does. If the caller's runtime ends, this does not return,
    /// as [`spawn`](super::spawn). See [`std::thread::Scope::spawn`].
    ///
    /// # Panics
    /// Outside a goroutine, or if no stack is available.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let x = 1;
    /// let y = gosched::thread::scope(|s| s.spawn(|| x + 1).join().unwrap());
    /// assert_eq!(y, 2);
    /// # });
    /// ```
    #[track_caller]
    pub fn spawn<F, T>(&'scope self, f: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let spawned = self.spawn_with(Location::caller(), None, None, f);
        ending::spawned(ending::own_home(), spawned)
    }

    #[track_caller]
    pub(super) fn spawn_with<F, T>(
        &'scope self,
        site: &'static Location<'static>,
        name: Option<Box<str>>,
        class: Option<u8>,
        f: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let data = Arc::clone(&self.data);
        let raw = with_current("thread::Scope::spawn", |sched| {
            // SAFETY: `scope` waits for the goroutine before 'scope ends, or throws if the
            // goroutine is lost.
            unsafe { spawn_raw(sched, site, name, class, Some(data), f) }
        })?;
        Ok(ScopedJoinHandle {
            raw,
            scope: PhantomData,
        })
    }
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the goroutine and returns its value.
    ///
    /// See [`JoinHandle::join`](super::JoinHandle::join).
    ///
    /// # Errors
    /// The payload of the goroutine's panic.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let joined = gosched::thread::scope(|s| s.spawn(|| panic!("oh no")).join());
    /// assert!(joined.is_err());
    /// # });
    /// ```
    #[track_caller]
    pub fn join(self) -> Result<T> {
        self.raw.join()
    }

    /// Returns the goroutine's thread handle.
    ///
    /// Never blocks.
    ///
    /// ```
    /// # gosched::run(|| {
    /// gosched::thread::scope(|s| s.spawn(gosched::thread::park).thread().unpark());
    /// # });
    /// ```
    #[must_use]
    pub fn thread(&self) -> &Thread {
        self.raw.thread()
    }

    /// Returns whether the goroutine has ended.
    ///
    /// Never blocks.
    ///
    /// ```
    /// # gosched::run(|| {
    /// gosched::thread::scope(|s| {
    ///     let handle = s.spawn(|| ());
    ///     while !handle.is_finished() {
    ///         gosched::yield_now();
    ///     }
    /// });
    /// # });
    /// ```
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.raw.is_finished()
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("running", &self.data.running.load(Relaxed))
            .field("has_panicked", &self.data.has_panicked.load(Relaxed))
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ScopedJoinHandle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedJoinHandle").finish_non_exhaustive()
    }
}
