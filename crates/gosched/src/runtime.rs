//! The runtime as a value, and the handle by which other threads reach it.

use std::cell::UnsafeCell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::builder::Builder;
use crate::sched::model::current::current_g;
use crate::sched::model::g::{Task, WaitReason};
use crate::sched::park::enter;
use crate::sched::spawn::Spawn;
use crate::sched::wait::{SlotKind, WaitSlot};
use crate::sched::{Sched, registry, teardown};
use crate::sys;
use crate::thread::ending::spawned as spawned_in;
use crate::thread::inner::Inner;
use crate::thread::{self, Exited, JoinHandle};
use crate::tls;

static RUN: SlotKind = SlotKind::new(WaitReason::Run);

/// A scheduler with its threads. Goroutines run until it is dropped.
///
/// Most programs need none: [`run`](crate::run) and [`#[gosched::main]`](macro@crate::main) make one.
///
/// # Dropping
/// Goroutines that wait are abandoned: their destructors do not run and their stacks stay allocated. Whoever joins one gets
/// [`Exited`]. What they hold stays held: a lock, a channel's handle, a place in a buffer that a `select!` has chosen and whose
/// message was being evaluated; on a channel without capacity the receiver that was chosen waits for that message, whatever its timeout.
/// [`shutdown`](Runtime::shutdown) unwinds them first.
///
/// A drop blocks the thread it is called on until the runtime's threads have ended. It does not wait for goroutines: those that still
/// run after 20 ms go on until they want to wait.
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

    /// A builder with the defaults.
    ///
    /// Blocks nothing.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// # drop(runtime);
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Runs `f` as a main goroutine and waits for it. May be called again and again, and from several threads.
    ///
    /// Blocks the calling thread, which never runs goroutines itself; called in a goroutine it blocks that. Other goroutines go
    /// on afterwards.
    ///
    /// # Panics
    /// With the payload of `f`'s panic, if it panics; if no goroutine can be started.
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

    /// Starts a goroutine from any thread; see [`thread::spawn`].
    ///
    /// Blocks nothing: the goroutine runs when a processor is free.
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

    /// Starts a goroutine that nobody joins, from any thread; see [`go`](crate::go).
    ///
    /// Blocks nothing.
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

    /// A handle for other threads; it does not keep the runtime.
    ///
    /// Blocks nothing.
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

    /// Ends the runtime: no new goroutines, those that wait unwind as by [`goexit`](crate::goexit), and what has not ended within
    /// `timeout` is abandoned as by a drop.
    ///
    /// Blocks the caller until then.
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

/// A way to start goroutines in a runtime from anywhere. Does not keep the runtime: after its drop everything here is an
/// error.
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
    /// The runtime that the calling goroutine belongs to.
    ///
    /// Blocks nothing.
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
            // SAFETY: D2, a running goroutine's M holds an Arc of its Sched, so the counts are there to share.
            let arc = unsafe {
                Arc::increment_strong_count(sched);
                Arc::from_raw(sched)
            };
            Handle {
                sched: Arc::downgrade(&arc),
            }
        })
    }

    /// Starts a goroutine; see [`Runtime::spawn`].
    ///
    /// Blocks nothing.
    ///
    /// # Panics
    /// If the runtime is gone or no goroutine can be started; [`Handle::try_spawn`] returns that as an error. A caller that is a
    /// goroutine of the runtime itself does not return then, as from [`go`](crate::go).
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

    /// Starts a goroutine that nobody joins; see [`Runtime::go`].
    ///
    /// Blocks nothing.
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

    /// Starts a goroutine.
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// If the runtime is gone or shutting down, or no stack can be had.
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

    /// The runtime, if it is still there.
    pub(crate) fn upgrade(&self) -> io::Result<Arc<Sched>> {
        // One that goroutines were left behind in is kept in memory, but is as dead.
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

/// Runs `f` as the main goroutine of a runtime made for it, with the defaults; see [`Runtime::run`].
///
/// Blocks the calling thread, or the goroutine it is called in. When `f` returns, the runtime is dropped and the goroutines it left
/// behind are abandoned, as Go's are when main returns.
///
/// # Panics
/// With the payload of `f`'s panic; if the runtime cannot be started.
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

/// A main goroutine's result, on the stack of whoever waits for it.
struct Main<T> {
    slot: WaitSlot,
    result: UnsafeCell<Option<std::thread::Result<T>>>,
}

struct SendPtr<T>(*const T);
// SAFETY: D2, points to the waiting caller's stack; used by one main goroutine.
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
    let task = Task::new(move || {
        let SendPtr(main) = { out };
        main_goroutine(main, f);
    });
    let inner = Inner::bare(Some("main".into()));
    let how = Spawn {
        site: Location::caller(),
        class: Some(sched.config.main_class),
        thread: inner.as_ptr(),
    };
    {
        let _rt = enter();
        let mut core = sched.core.lock();
        core.runners += 1;
        core.has_run = true;
        core.starting += 1;
    }
    // SAFETY: D2, this function does not return before the goroutine has ended or will never run again, so
    // whatever `f` borrows outlives it.
    let spawned = unsafe { sched.spawn(how, task) };
    {
        let _rt = enter();
        let mut core = sched.core.lock();
        core.starting -= 1;
        core.runners -= u32::from(spawned.is_err());
    }
    if let Err((error, task)) = spawned {
        drop(task);
        // SAFETY: no goroutine took the reference.
        unsafe { Inner::release(inner) };
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
        None => unreachable!("a main goroutine answers before it completes the slot"),
    }
}

/// What a main goroutine does. If it calls `exit`, nobody is answered: the others go on, and when none is left the deadlock
/// check says so.
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
        tls::end();
        thread::release_inner();
        return;
    }
    thread::report_abort(&result);
    tls::end();
    thread::release_inner();
    {
        let _rt = enter();
        if let Some(g) = current_g() {
            g.sched().core.lock().runners -= 1;
        }
    }
    // SAFETY: D2, the caller waits on the slot until we complete it, and nobody else writes.
    unsafe {
        *(*main).result.get() = Some(result);
        (*main).slot.complete();
    }
}
