//! Goroutines with the API of [`std::thread`].
//!
//! Code written for threads runs on goroutines if its `use` lines change. Names, signatures and
//! behaviour are those of std. Everything here that does not start a goroutine also works on plain
//! threads.

pub(crate) mod ending;
mod finish;
mod join;
mod packet;
pub(crate) mod park;
mod scope;

use std::cell::OnceCell;
use std::fmt;
use std::num::NonZero;
use std::ptr::NonNull;

use crate::sched::model::current::{current_g, current_m};
use crate::sched::waiting::handle::{Inner, InnerRef};

pub(crate) use self::finish::{finish_report, report_abort};
pub use self::join::{Builder, JoinHandle, spawn};
pub(crate) use self::join::{spawn_go, spawn_joinable, stack_size_error, with_current};
pub use self::park::{park, park_timeout, sleep};
pub use self::scope::{Scope, ScopedJoinHandle, scope};
pub use crate::sched::waiting::timed::Exited;
pub(crate) use crate::sched::waiting::timed::{check_cancelled, exited};
/// Items that need no goroutine-aware version, re-exported from std.
#[doc(no_inline)]
pub use std::thread::{AccessError, LocalKey, available_parallelism};

/// The result of [`JoinHandle::join`]: the goroutine's value, or the payload of its panic.
pub type Result<T> = std::thread::Result<T>;

/// A handle to a goroutine or a plain thread.
///
/// See [`std::thread::Thread`].
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
#[derive(Clone)]
pub struct Thread {
    inner: InnerRef,
}

impl Thread {
    /// A handle with this reference.
    pub(crate) fn new(inner: InnerRef) -> Thread {
        Thread { inner }
    }

    pub(crate) fn inner(&self) -> &InnerRef {
        &self.inner
    }

    /// Makes the token of the goroutine or thread available, so that its [`park`] returns.
    ///
    /// That is its current `park`, or else its next one. Never blocks. See
    /// [`std::thread::Thread::unpark`].
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

    /// Returns the unique id.
    ///
    /// Never blocks. See [`std::thread::Thread::id`].
    ///
    /// ```
    /// let here = gosched::thread::current();
    /// assert_eq!(here.id(), gosched::thread::current().id());
    /// ```
    #[must_use]
    pub fn id(&self) -> ThreadId {
        ThreadId::of(self.inner())
    }

    /// Returns the name, if it was given one.
    ///
    /// Never blocks. See [`std::thread::Thread::name`].
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

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread")
            .field("id", &self.id())
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// A unique identifier of a goroutine or plain thread in this process.
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
    /// Unique within the runtime, or among plain threads. Not zero, so that an `Option<ThreadId>`
    /// is no larger.
    id: NonZero<u64>,
}

impl ThreadId {
    fn of(inner: &Inner) -> ThreadId {
        let (runtime, id) = inner.identity();
        ThreadId { runtime, id }
    }

    /// Returns the goroutine's id within its runtime, as dumps print it, or `None` for plain
    /// threads.
    ///
    /// Never blocks.
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
    /// A plain thread's reference to its own handle, kept while the thread lives.
    static OWN: OnceCell<InnerRef> = const { OnceCell::new() };
}

/// Returns the handle of the calling goroutine or plain thread.
///
/// Never blocks. See [`std::thread::current`].
///
/// ```
/// let here = gosched::thread::current();
/// println!("{:?}", here.id());
/// ```
#[must_use]
pub fn current() -> Thread {
    if current_g().is_some() {
        // SAFETY: the goroutine holds a reference to its own `Inner` while it runs.
        let own = unsafe { InnerRef::borrowed(current_inner()) };
        return Thread::new(InnerRef::clone(&own));
    }
    let own = OWN.try_with(|own| own_inner(own).clone());
    // The thread is ending and its thread-local is gone: a handle with a new `Inner`.
    Thread::new(own.unwrap_or_else(|_| Inner::for_thread()))
}

/// Returns the id of the calling goroutine or plain thread. Allocates no handle for a goroutine.
/// None on a plain thread with its thread-locals already destroyed.
pub(crate) fn current_id() -> Option<ThreadId> {
    if let Some(g) = current_g() {
        let runtime = g.sched().id;
        return NonZero::new(g.id()).map(|id| ThreadId { runtime, id });
    }
    OWN.try_with(|own| ThreadId::of(own_inner(own))).ok()
}

/// The thread's own `Inner`, which is allocated on first use. The program's allocator may ask for
/// the current thread itself: the first `Inner` that is stored stays.
fn own_inner(own: &OnceCell<InnerRef>) -> &InnerRef {
    if let Some(inner) = own.get() {
        return inner;
    }
    let new = Inner::for_thread();
    own.get_or_init(|| new)
}

/// Returns the calling goroutine's `Inner`, and allocates it on first use.
pub(crate) fn current_inner() -> NonNull<Inner> {
    let Some(g) = current_g() else {
        crate::base::fatal::throw("current_inner called outside a goroutine")
    };
    if let Some(inner) = g.inner() {
        return inner;
    }
    let new = Inner::bare(None);
    // The program's allocator may have asked for the current goroutine meanwhile.
    if let Some(inner) = g.inner() {
        return inner;
    }
    new.set_goroutine(g.sched().id, g.id());
    let at = new.as_ptr();
    // Only the goroutine itself stores here while the pointer is null.
    g.put_inner(Some(new));
    at
}

/// Yields to other goroutines.
///
/// The goroutine goes to the tail of the global run queue, as with Go's `Gosched`, and its thread
/// runs another goroutine. On a plain thread this is [`std::thread::yield_now`].
///
/// ```
/// # gosched::run(|| {
/// gosched::thread::yield_now();
/// # });
/// ```
pub fn yield_now() {
    // One call of `current_m` serves both branches: this keeps a yield cheap.
    let Some((m, g)) = current_m().and_then(|m| Some((m, m.curg()?))) else {
        return std::thread::yield_now();
    };
    if g.must_unwind() {
        check_cancelled();
    }
    crate::sched::park::yield_now(m, g);
}

/// Returns whether the calling goroutine is unwinding.
///
/// Never blocks. See [`std::thread::panicking`].
///
/// ```
/// assert!(!gosched::thread::panicking());
/// ```
#[must_use]
pub fn panicking() -> bool {
    std::thread::panicking()
}

/// Drops the calling goroutine's own reference to its handle, as its last step.
pub(crate) fn release_inner() {
    let inner = {
        let rt = crate::sched::park::enter();
        rt.m().and_then(|m| m.curg()).and_then(|g| g.take_inner())
    };
    if let Some(last) = inner.and_then(InnerRef::into_last) {
        // The goroutine's thread-locals are destroyed, and the allocator may use some. So the last
        // reference is freed with the thread-locals of the thread.
        crate::sched::life::thread_locals::on_thread(|| drop(last));
    }
}
