//! Goroutines with the API of [`std::thread`].
//!
//! Names, signatures and behaviour are std's; what they start is a goroutine. Everything here that does not start
//! one also works on plain threads.

pub(crate) mod ending;
pub(crate) mod inner;
mod join;
pub(crate) mod park;
mod scope;

use std::any::Any;
use std::fmt;
use std::num::NonZero;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use self::inner::{Inner, OwnInner};
use crate::sched::model::current::{current_g, current_m};

pub use self::join::{Builder, JoinHandle, spawn};
pub(crate) use self::join::{
    finish_report, report_abort, spawn_go, spawn_joinable, stack_size_error, with_current,
};
pub(crate) use self::park::{check_cancelled, rest};
pub use self::park::{park, park_timeout, sleep};
pub use self::scope::{Scope, ScopedJoinHandle, scope};
/// What std has and goroutines need no other of, so that one `use` line serves.
#[doc(no_inline)]
pub use std::thread::{AccessError, LocalKey, available_parallelism};

/// What [`JoinHandle::join`] returns: the goroutine's value, or the payload of its panic.
pub type Result<T> = std::thread::Result<T>;

/// The payload with which [`join`](JoinHandle::join) reports a goroutine that ended without a value: it called
/// [`goexit`](crate::goexit), or its runtime was dropped.
///
/// ```
/// # gosched::run(|| {
/// let handle = gosched::thread::spawn(|| { gosched::goexit() });
/// assert!(handle.join().unwrap_err().is::<gosched::thread::Exited>());
/// # });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exited;

impl fmt::Display for Exited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the goroutine ended without returning a value")
    }
}

impl std::error::Error for Exited {}

pub(crate) fn exited() -> Box<dyn Any + Send> {
    Box::new(Exited)
}

/// A handle to a goroutine or a plain thread; see [`std::thread::Thread`].
///
/// ```
/// # gosched::run(|| {
/// let worker = gosched::thread::Builder::new()
///     .name("worker".into())
///     .spawn(|| gosched::thread::current().name().map(String::from))
///     .unwrap();
/// assert_eq!(worker.thread().name(), Some("worker"));
/// assert_eq!(worker.join().unwrap().as_deref(), Some("worker"));
/// # });
/// ```
pub struct Thread {
    inner: NonNull<Inner>,
}

// SAFETY: D1, an `Inner` is atomics and an immutable name, shared by a count.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}

impl Thread {
    /// A handle that shares the state behind `inner`.
    ///
    /// # Safety
    /// Somebody's reference keeps `inner` alive during the call.
    pub(crate) unsafe fn share(inner: NonNull<Inner>) -> Thread {
        // SAFETY: by the caller's promise.
        unsafe { inner.as_ref() }.retain();
        Thread { inner }
    }

    pub(crate) fn as_ptr(&self) -> NonNull<Inner> {
        self.inner
    }

    pub(crate) fn inner(&self) -> &Inner {
        // SAFETY: the handle owns a reference.
        unsafe { self.inner.as_ref() }
    }

    /// Lets the goroutine's current or next [`park`] return.
    ///
    /// Blocks nothing. See [`std::thread::Thread::unpark`].
    ///
    /// ```
    /// # gosched::run(|| {
    /// let parked = gosched::thread::spawn(gosched::thread::park);
    /// parked.thread().unpark();
    /// parked.join().unwrap();
    /// # });
    /// ```
    pub fn unpark(&self) {
        self.inner().unpark();
    }

    /// The unique id; see [`std::thread::Thread::id`].
    ///
    /// Blocks nothing.
    ///
    /// ```
    /// let here = gosched::thread::current();
    /// assert_eq!(here.id(), gosched::thread::current().id());
    /// ```
    #[must_use]
    pub fn id(&self) -> ThreadId {
        self.inner().identity()
    }

    /// The name it was given; see [`std::thread::Thread::name`].
    ///
    /// Blocks nothing.
    ///
    /// ```
    /// # gosched::run(|| {
    /// assert_eq!(gosched::thread::current().name(), Some("main"));
    /// # });
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.inner().name()
    }
}

impl Clone for Thread {
    fn clone(&self) -> Thread {
        self.inner().retain();
        Thread { inner: self.inner }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the handle's own reference.
        unsafe { Inner::release(self.inner) };
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread")
            .field("id", &self.id())
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// A unique identifier of a goroutine or plain thread of this process.
///
/// ```
/// let id = gosched::thread::current().id();
/// let other = gosched::run(|| gosched::thread::current().id());
/// assert_ne!(id, other);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ThreadId {
    /// The number of the runtime; 0 for plain threads.
    runtime: u32,
    /// Within the runtime, or among plain threads. Not zero: an `Option<ThreadId>` is no larger.
    id: NonZero<u64>,
}

impl ThreadId {
    /// The goroutine's id within its runtime, as dumps print it; None for plain threads.
    ///
    /// Blocks nothing.
    ///
    /// ```
    /// let id = gosched::run(|| gosched::thread::current().id().goroutine());
    /// assert_eq!(id.map(|id| id.get()), Some(1));
    /// ```
    #[must_use]
    pub fn goroutine(&self) -> Option<NonZero<u64>> {
        (self.runtime != 0).then_some(self.id)
    }
}

thread_local! {
    static OWN: OwnInner = const { OwnInner::new() };
}

/// The handle of the calling goroutine, or plain thread; see [`std::thread::current`].
///
/// Blocks nothing.
///
/// ```
/// let here = gosched::thread::current();
/// println!("{:?}", here.id());
/// ```
#[must_use]
pub fn current() -> Thread {
    let inner = match current_g() {
        Some(_) => current_inner(),
        None => match OWN.try_with(OwnInner::get) {
            Ok(inner) => inner,
            // The thread is ending: a handle that nobody else shares, as good as any.
            Err(_) => {
                return Thread {
                    inner: Inner::for_thread(),
                };
            }
        },
    };
    // SAFETY: the goroutine or thread holds a reference while it runs.
    unsafe { Thread::share(inner) }
}

/// The id of the calling goroutine or plain thread; None on a plain thread whose thread-locals have ended. Makes no handle for
/// a goroutine.
pub(crate) fn current_id() -> Option<ThreadId> {
    if let Some(g) = current_g() {
        let runtime = g.sched().id;
        return NonZero::new(g.id()).map(|id| ThreadId { runtime, id });
    }
    // SAFETY: the thread-local holds a reference while it lasts.
    OWN.try_with(|own| unsafe { own.get().as_ref() }.identity())
        .ok()
}

/// The calling goroutine's `Inner`, made now if it has none.
fn current_inner() -> NonNull<Inner> {
    let Some(g) = current_g() else {
        crate::base::fatal::throw("no goroutine here")
    };
    if let Some(inner) = g.inner() {
        return inner;
    }
    let inner = Inner::bare(None);
    // SAFETY: just made.
    unsafe { inner.as_ref() }.set_goroutine(g.sched().id, g.id());
    // Only the goroutine itself stores here while it has none.
    let stored = g
        .thread
        .compare_exchange(ptr::null_mut(), inner.as_ptr(), AcqRel, Acquire);
    debug_assert!(stored.is_ok());
    inner
}

/// Gives the others a turn; see [`std::thread::yield_now`].
///
/// Blocks the goroutine until its turn comes again: it goes to the tail of the global run queue, as Go's `Gosched` does, and the
/// thread runs another one. On a plain thread it is std's.
///
/// ```
/// # gosched::run(|| {
/// gosched::thread::yield_now();
/// # });
/// ```
pub fn yield_now() {
    // One look through the door serves all of it: a yield is as cheap as that makes it.
    let Some((m, g)) = current_m().and_then(|m| Some((m, m.curg()?))) else {
        return std::thread::yield_now();
    };
    if g.must_unwind() {
        check_cancelled();
    }
    crate::sched::park::yield_now(m, g);
}

/// Whether the calling goroutine is unwinding; see [`std::thread::panicking`].
///
/// Blocks nothing.
///
/// ```
/// assert!(!gosched::thread::panicking());
/// ```
#[must_use]
pub fn panicking() -> bool {
    std::thread::panicking()
}

/// The calling goroutine gives up its own handle, as its last act.
pub(crate) fn release_inner() {
    let inner = {
        let rt = crate::sched::park::enter();
        rt.m().and_then(|m| m.curg()).and_then(|g| g.take_inner())
    };
    if let Some(inner) = inner {
        // SAFETY: the goroutine's reference is ours now. Its thread-locals have ended, and the allocator may have some: if
        // this was the last reference, the thread's serve.
        unsafe { Inner::release_with(inner, |free| crate::tls::on_thread(free)) };
    }
}
