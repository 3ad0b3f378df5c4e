//! [`Runtime`], the scheduler as a value, and [`Handle`], by which other threads reach it.
//!
//! A runtime is a value so that several can exist, and so that tests can drop one.

use std::cell::UnsafeCell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::builder::Builder;
use crate::sched::Sched;
use crate::sched::life::thread_locals;
use crate::sched::life::{registry, teardown};
use crate::sched::model::current::current_g;
use crate::sched::model::g::{Task, WaitReason};
use crate::sched::park::enter;
use crate::sched::spawn::Spawn;
use crate::sched::waiting::handle::Inner;
use crate::sched::waiting::wait_slot::{SlotKind, WaitSlot};
use crate::sys;
use crate::thread::ending::spawned as spawned_in;
use crate::thread::{self, Exited, JoinHandle};

static RUN: SlotKind = SlotKind::new(WaitReason::Run);

/// A scheduler with its threads.
///
/// Goroutines run until it is dropped. Most programs do not create one: [`run`](crate::run) and
/// [`#[gosched::main]`](macro@crate::main) do.
///
/// # Dropping
/// A drop abandons the goroutines that wait: their destructors do not run and their stacks stay
/// allocated. A join of such a goroutine returns [`Exited`]. An abandoned goroutine keeps the locks
/// and channel handles it holds. A send that a `select!` has chosen, with its message still being
/// evaluated, gives its place or its receiver back. [`shutdown`](Runtime::shutdown) unwinds the
/// goroutines instead.
///
/// A drop blocks the calling thread until the runtime's threads have ended. It does not wait for
/// goroutines. A goroutine that still runs after 20 ms continues until it waits.
///
/// ```
/// let runtime = gosched::Runtime::builder().procs(2).build().unwrap();
/// let handle = runtime.spawn(|| 40);
/// assert_eq!(runtime.run(|| handle.join().unwrap() + 2), 42);
/// ```
pub struct Runtime {
    sched: Option<Arc<Sched>>,
}

impl Runtime {
    pub(crate) fn new(sched: Arc<Sched>) -> Runtime {
        Runtime { sched: Some(sched) }
    }

    pub(crate) fn sched(&self) -> &Arc<Sched> {
        match &self.sched {
            Some(sched) => sched,
            None => unreachable!("a runtime has its scheduler until it is dropped"),
        }
    }

    /// Returns a builder with the defaults.
    ///
    /// Never blocks.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// # drop(runtime);
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Runs `f` as a main goroutine and waits for it.
    ///
    /// It may be called repeatedly, and from several threads. Blocks the calling thread, which
    /// never runs goroutines itself. In a goroutine it blocks that goroutine. Other goroutines
    /// continue after it returns.
    ///
    /// # Panics
    /// With the payload of `f`'s panic, or if no goroutine can be started.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// let mut count = 0;
    /// runtime.run(|| count += 1);
    /// assert_eq!(count, 1);
    /// ```
    #[track_caller]
    pub fn run<F, T>(&self, f: F) -> T
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        run_on(self.sched(), f)
    }

    /// Starts a goroutine from any thread and returns a handle to join it.
    ///
    /// Never blocks: the goroutine runs when a P is free. See [`thread::spawn`].
    ///
    /// # Panics
    /// If no goroutine can be started.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// assert_eq!(runtime.spawn(|| 1 + 1).join().unwrap(), 2);
    /// ```
    #[track_caller]
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let spawned = thread::spawn_joinable(self.sched(), Location::caller(), None, None, f);
        spawned_in(Arc::as_ptr(self.sched()), spawned)
    }

    /// Starts a goroutine from any thread, without a handle to join it.
    ///
    /// Never blocks. See [`go`](crate::go).
    ///
    /// # Panics
    /// If no goroutine can be started.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// let (tx, rx) = std::sync::mpsc::channel();
    /// runtime.go(move || tx.send("hello").unwrap());
    /// assert_eq!(rx.recv().unwrap(), "hello");
    /// ```
    #[track_caller]
    pub fn go<F: FnOnce() + Send + 'static>(&self, f: F) {
        let spawned = thread::spawn_go(self.sched(), Location::caller(), f);
        spawned_in(Arc::as_ptr(self.sched()), spawned);
    }

    /// Returns a handle for other threads.
    ///
    /// The handle does not keep the runtime alive. Never blocks.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// let handle = runtime.handle();
    /// let thread = std::thread::spawn(move || handle.spawn(|| 7).join().unwrap());
    /// assert_eq!(thread.join().unwrap(), 7);
    /// ```
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            sched: Arc::downgrade(self.sched()),
        }
    }

    /// Shuts the runtime down and unwinds its goroutines.
    ///
    /// No new goroutines start. Goroutines that wait unwind, as by [`goexit`](crate::goexit).
    /// Goroutines that have not ended within `timeout` are abandoned, as by a drop. Blocks the
    /// caller until then.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// let handle = runtime.spawn(gosched::thread::park);
    /// runtime.shutdown(std::time::Duration::from_secs(5));
    /// assert!(handle.join().unwrap_err().is::<gosched::thread::Exited>());
    /// ```
    pub fn shutdown(mut self, timeout: Duration) {
        if let Some(sched) = self.sched.take() {
            teardown::unwind_goroutines(&sched, sys::deadline_after(timeout));
            teardown::drop_runtime(sched);
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(sched) = self.sched.take() {
            teardown::drop_runtime(sched);
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sched = self.sched();
        f.debug_struct("Runtime")
            .field("name", &sched.config.name)
            .field("procs", &sched.nprocs())
            .field("goroutines", &sched.goroutines())
            .finish_non_exhaustive()
    }
}

/// A handle that starts goroutines in a runtime from any thread.
///
/// It does not keep the runtime alive. After the drop of the runtime every operation fails.
///
/// ```
/// # gosched::run(|| {
/// let handle = gosched::Handle::current();
/// std::thread::spawn(move || handle.go(|| println!("from another thread")))
///     .join()
///     .unwrap();
/// # });
/// ```
#[derive(Clone)]
pub struct Handle {
    sched: Weak<Sched>,
}

impl Handle {
    /// Returns a handle to the runtime of the calling goroutine.
    ///
    /// Never blocks.
    ///
    /// # Panics
    /// Outside a goroutine.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let handle = gosched::Handle::current();
    /// # let _ = handle;
    /// # });
    /// ```
    #[track_caller]
    #[must_use]
    pub fn current() -> Handle {
        thread::with_current("Handle::current", |sched| {
            // SAFETY: D2: the M of a running goroutine holds an `Arc` of its `Sched`, so the
            // pointer comes from a live `Arc`.
            let arc = unsafe {
                Arc::increment_strong_count(sched);
                Arc::from_raw(sched)
            };
            Handle {
                sched: Arc::downgrade(&arc),
            }
        })
    }

    /// Starts a goroutine and returns a handle to join it.
    ///
    /// Never blocks. See [`Runtime::spawn`].
    ///
    /// # Panics
    /// If the runtime was dropped or no goroutine can be started; [`Handle::try_spawn`] returns
    /// that as an error. If the caller is a goroutine of that runtime, this does not return, as
    /// [`go`](crate::go).
    ///
    /// ```
    /// # gosched::run(|| {
    /// assert_eq!(gosched::Handle::current().spawn(|| 3).join().unwrap(), 3);
    /// # });
    /// ```
    #[track_caller]
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        spawned_in(self.sched.as_ptr(), self.try_spawn(f))
    }

    /// Starts a goroutine without a handle to join it.
    ///
    /// Never blocks. See [`Runtime::go`].
    ///
    /// # Panics
    /// As [`Handle::spawn`].
    ///
    /// ```
    /// # gosched::run(|| {
    /// gosched::Handle::current().go(|| ());
    /// # });
    /// ```
    #[track_caller]
    pub fn go<F: FnOnce() + Send + 'static>(&self, f: F) {
        let site = Location::caller();
        let sched = self.upgrade();
        let spawned = sched.and_then(|sched| thread::spawn_go(&sched, site, f));
        spawned_in(self.sched.as_ptr(), spawned);
    }

    /// Starts a goroutine, or returns an error.
    ///
    /// Never blocks.
    ///
    /// # Errors
    /// If the runtime was dropped or shuts down, or if no stack is available.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// let handle = runtime.handle();
    /// drop(runtime);
    /// assert!(handle.try_spawn(|| ()).is_err());
    /// ```
    #[track_caller]
    pub fn try_spawn<F, T>(&self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        thread::spawn_joinable(&*self.upgrade()?, Location::caller(), None, None, f)
    }

    pub(crate) fn upgrade(&self) -> io::Result<Arc<Sched>> {
        // A dropped runtime with abandoned goroutines stays in memory, but counts as dropped.
        self.sched
            .upgrade()
            .filter(|sched| !sched.dead.load(Acquire))
            .ok_or_else(|| io::Error::other("the gosched runtime has been dropped"))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// Runs `f` as the main goroutine of a new runtime with the defaults.
///
/// Blocks the calling thread or goroutine. When `f` returns, the runtime is dropped and its other
/// goroutines are abandoned, as in Go when main returns. See [`Runtime::run`].
///
/// # Panics
/// With the payload of `f`'s panic, or if the runtime cannot be started.
///
/// ```
/// let sum = gosched::run(|| {
///     let handles: Vec<_> = (0..10).map(|n| gosched::thread::spawn(move || n)).collect();
///     handles.into_iter().map(|h| h.join().unwrap()).sum::<u32>()
/// });
/// assert_eq!(sum, 45);
/// ```
#[track_caller]
pub fn run<F, T>(f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    match Runtime::builder().build() {
        Ok(runtime) => runtime.run(f),
        Err(error) => panic!("gosched: cannot start the runtime: {error}"),
    }
}

/// A main goroutine's result, on the stack of the caller that waits for it.
struct Main<T> {
    slot: WaitSlot,
    result: UnsafeCell<Option<std::thread::Result<T>>>,
}

struct SendPtr<T>(*const T);
// SAFETY: D2: it points to the stack of the caller, which waits, and only one main goroutine uses
// it.
unsafe impl<T> Send for SendPtr<T> {}

#[track_caller]
fn run_on<F, T>(sched: &Arc<Sched>, f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let main = Main {
        slot: WaitSlot::new(),
        result: UnsafeCell::new(None),
    };
    let out = SendPtr(&raw const main);
    let f = move || {
        let SendPtr(main) = { out };
        main_goroutine(main, f);
    };
    // SAFETY: D2: this function does not return before the goroutine has ended or can never run
    // again. So whatever `f` borrows outlives it.
    let task = unsafe { Task::borrowing(f) };
    let inner = Inner::bare(Some("main".into()));
    let how = Spawn {
        site: Location::caller(),
        class: Some(sched.config.main_class),
        thread: Some(&inner),
    };
    {
        let _rt = enter();
        let mut core = sched.core.lock();
        core.runners += 1;
        core.has_run = true;
        core.starting += 1;
    }
    let spawned = sched.spawn(how, task);
    drop(inner); // the goroutine has its own reference
    {
        let _rt = enter();
        let mut core = sched.core.lock();
        core.starting -= 1;
        core.runners -= u32::from(spawned.is_err());
    }
    if let Err((error, task)) = spawned {
        drop(task);
        panic!("gosched: cannot start the main goroutine: {error}");
    }
    if current_g().is_some() {
        main.slot.wait_always(&RUN);
    } else {
        registry::while_blocked(&main.slot, || main.slot.wait_always(&RUN));
    }
    match main.result.into_inner() {
        Some(Ok(value)) => value,
        Some(Err(payload)) => resume_unwind(payload),
        None => unreachable!("a main goroutine stores its result before it completes the slot"),
    }
}

/// The body of a main goroutine. If it calls `exit`, `run` does not return and the other goroutines
/// continue. When none is left, the deadlock check reports it.
fn main_goroutine<T>(main: *const Main<T>, f: impl FnOnce() -> T) {
    let result = catch_unwind(AssertUnwindSafe(f));
    if let Err(payload) = &result
        && payload.is::<Exited>()
        && let Some(g) = current_g()
        && !g.is_cancelled()
    {
        let _rt = enter();
        g.sched().core.lock().mains_exited += 1;
        drop(_rt);
        drop(result);
        thread_locals::end();
        thread::release_inner();
        return;
    }
    thread::report_abort(&result);
    thread_locals::end();
    thread::release_inner();
    {
        let _rt = enter();
        if let Some(g) = current_g() {
            g.sched().core.lock().runners -= 1;
        }
    }
    // SAFETY: D2: the caller waits on the slot until it is completed here, and nothing else writes
    // the result.
    unsafe {
        *(*main).result.get() = Some(result);
        (*main).slot.complete();
    }
}
