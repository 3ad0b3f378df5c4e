//! Starting goroutines and waiting for their results: `spawn`, `Builder`, `JoinHandle`.
//!
//! The goroutine and its handle end in any order, so the result must outlive both. A *packet* holds
//! it: one allocation, shared by the goroutine, the join handle and the thread handles. Its flags
//! decide which side drops the result:
//! ```text
//!  FINISHED   set by the goroutine after it wrote the result; it drops it if DETACHED was set
//!  DETACHED   set by the dropped handle; it drops the result if FINISHED was set
//!  LEFT       the goroutine has left its scope (once)
//!  GIVEN_UP   the runtime was dropped before FINISHED: answers the join
//!  TAKEN      a poll of the handle has returned the result
//! ```
//! The goroutine's reference is in its G. A goroutine that still runs after GIVEN_UP finishes into
//! a packet that is never read.
//!
//! A goroutine or thread that joins waits in the packet's slot. So does a task of an executor that
//! has polled the handle, by its waker. Wakers are user code. So the goroutine calls the waker as
//! the last step on its stack, when the result is available. Its thread-locals are destroyed by
//! then. Thread-locals that the waker creates again are destroyed after it. If the runtime is
//! dropped before that step, the drop calls the waker.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::task::{Context, Poll};

use super::ending::{self, own_home};
use super::scope::ScopeData;
use super::{Exited, Result, Thread, exited};
use crate::sched::Sched;
use crate::sched::life::thread_locals;
use crate::sched::model::current::assert_user_context;
use crate::sched::model::current::{current_g, current_m};
use crate::sched::model::g::{Task, WaitReason};
use crate::sched::spawn::Spawn;
use crate::sched::waiting::handle::{Fate, Inner, InnerVtable};
use crate::sched::waiting::sleeper::SleeperMark;
use crate::sched::waiting::wait_slot::{SlotKind, WaitSlot, Waking, enter_to_wake};
use crate::stack::class_for;

static JOIN: SlotKind = SlotKind::new(WaitReason::Join);

const FINISHED: u8 = 1;
const DETACHED: u8 = 2;
const LEFT: u8 = 4;
const GIVEN_UP: u8 = 8;
const TAKEN: u8 = 16;

/// A goroutine's result, shared with its join handle. Begins with the thread's `Inner`.
#[repr(C)]
pub(super) struct Packet<T> {
    inner: Inner,
    slot: WaitSlot,
    waking: Waking,
    result: UnsafeCell<Option<Result<T>>>,
    scope: Option<Arc<ScopeData>>,
}

impl<T> Packet<T> {
    const VTABLE: InnerVtable = InnerVtable {
        free: |inner| {
            // SAFETY: `new` made it from a box of this type, and the last reference is gone. The
            // result is gone too: the joiner took it, or the second of FINISHED and DETACHED
            // dropped it.
            drop(unsafe { Box::from_raw(inner.cast::<Packet<T>>().as_ptr()) });
        },
        give_up: |inner| {
            // SAFETY: the caller has a reference, and only a `Packet<T>` has this vtable.
            let packet = unsafe { inner.cast::<Packet<T>>().as_ref() };
            // ORDER: AcqRel; pairs with `finish`: a result that is already there stays.
            let given_up = |flags| (flags & FINISHED == 0).then_some(flags | GIVEN_UP);
            let _ = packet.inner.flags.fetch_update(AcqRel, Acquire, given_up);
            let awaiter = packet.slot.complete_awaited(&packet.waking);
            packet.waking.take().or(awaiter)
        },
        tell_scope: |inner, fate| {
            // SAFETY: the caller has a reference, and only a `Packet<T>` has this vtable.
            let packet = unsafe { inner.cast::<Packet<T>>().as_ref() };
            match (fate, &packet.scope) {
                (Fate::NeverRan, Some(_)) => packet.leave_scope(),
                (Fate::Lost, Some(scope)) if !packet.has_left() => scope.lose(),
                _ => {}
            }
        },
        scope: |inner| {
            // SAFETY: the caller has a reference, and only a `Packet<T>` has this vtable.
            let packet = unsafe { inner.cast::<Packet<T>>().as_ref() };
            match &packet.scope {
                Some(scope) if !packet.has_left() => scope.slot(),
                _ => ptr::null(),
            }
        },
    };

    fn new(name: Option<Box<str>>, scope: Option<Arc<ScopeData>>) -> NonNull<Packet<T>> {
        let packet = Packet {
            inner: Inner::new(name, &Self::VTABLE),
            slot: WaitSlot::new(),
            waking: Waking::new(),
            result: UnsafeCell::new(None),
            scope,
        };
        NonNull::from(Box::leak(Box::new(packet)))
    }

    /// Stores the result and wakes the waiter. The caller owns the goroutine's reference and keeps
    /// it. In user context.
    unsafe fn finish(this: NonNull<Packet<T>>, result: Result<T>) {
        // SAFETY: the caller's reference keeps the packet alive.
        let packet = unsafe { this.as_ref() };
        // SAFETY: before FINISHED only the owner of the goroutine's reference accesses the result.
        unsafe { *packet.result.get() = Some(result) };
        // ORDER: AcqRel; pairs with the handle's DETACHED: the later side sees the result and drops
        // it.
        let detached = packet.inner.flags.fetch_or(FINISHED, AcqRel) & DETACHED != 0;
        if detached {
            let dropped = at_the_edge(|| packet.drop_result());
            if let (false, Some(scope)) = (dropped, &packet.scope) {
                scope.note_panic();
            }
        }
        thread_locals::end();
        let awaiter = {
            let _rt = enter_to_wake();
            let awaiter = packet.slot.complete_awaited(&packet.waking);
            packet.leave_scope();
            awaiter
        };
        if let Some(awaiter) = awaiter {
            at_the_edge(|| awaiter.wake());
            at_the_edge(|| drop((packet.waking.take(), awaiter)));
            thread_locals::end();
        }
    }

    fn has_left(&self) -> bool {
        self.inner.flags.load(Acquire) & LEFT != 0
    }

    fn leave_scope(&self) {
        if let Some(scope) = &self.scope
            && self.inner.flags.fetch_or(LEFT, AcqRel) & LEFT == 0
        {
            scope.leave();
        }
    }

    /// Drops a result that is never taken. If it is a panic, the scope reports it.
    fn drop_result(&self) {
        // SAFETY: both flags are set and the caller set the second one, so only the caller accesses
        // the result.
        let result = unsafe { (*self.result.get()).take() };
        if let (Some(Err(payload)), Some(scope)) = (&result, &self.scope)
            && !payload.is::<Exited>()
        {
            scope.note_panic();
        }
        assert_user_context();
        drop(result);
    }
}

/// A handle to a goroutine, which can be joined; dropping it detaches the goroutine.
///
/// See [`std::thread::JoinHandle`].
///
/// ```
/// # gosched::run(|| {
/// let handle = gosched::thread::spawn(|| 6 * 7);
/// assert_eq!(handle.join().unwrap(), 42);
/// # });
/// ```
///
/// It is also a future that any executor can await. Its output is what [`join`](JoinHandle::join)
/// returns. Dropping it while it is awaited detaches the goroutine as well.
///
/// ```
/// # gosched::run(|| {
/// let handle = gosched::thread::spawn(|| 6 * 7);
/// let doubled = gosched::future::block_on(async { handle.await.unwrap() * 2 });
/// assert_eq!(doubled, 84);
/// # });
/// ```
pub struct JoinHandle<T>(pub(super) RawHandle<T>);

/// The common part of `JoinHandle` and `ScopedJoinHandle`.
pub(super) struct RawHandle<T> {
    /// The handle's reference. It points to the packet's first field.
    thread: Thread,
    /// The awaiter that the last poll left in the slot. It may be freed already.
    awaiter: Option<SleeperMark>,
    marker: PhantomData<T>,
}

// SAFETY: D1: the packet is reference-counted, and the result moves to one taker. Every result is
// `Send`: only `spawn_raw` makes handles, and it requires that.
unsafe impl<T> Send for RawHandle<T> {}
// SAFETY: D1: `&RawHandle` gives no access to the result.
unsafe impl<T> Sync for RawHandle<T> {}

impl<T> RawHandle<T> {
    fn packet(&self) -> &Packet<T> {
        // SAFETY: `spawn_raw` made the packet that begins with this `Inner`, and `thread` holds a
        // reference to it.
        unsafe { self.thread.as_ptr().cast::<Packet<T>>().as_ref() }
    }

    pub(super) fn thread(&self) -> &Thread {
        &self.thread
    }

    pub(super) fn is_finished(&self) -> bool {
        self.packet().slot.is_done()
    }

    #[track_caller]
    pub(super) fn join(mut self) -> Result<T> {
        super::check_cancelled();
        self.stop_awaiting();
        if let Some(g) = current_g()
            && g.inner() == Some(self.thread.as_ptr())
        {
            panic!("gosched: a goroutine cannot join itself: it would wait for ever");
        }
        if !self.packet().slot.wait(&JOIN) {
            super::check_cancelled();
            self.packet().slot.wait_always(&JOIN);
        }
        self.take()
    }

    /// Takes the result, once the slot is complete.
    #[track_caller]
    fn take(&mut self) -> Result<T> {
        // ORDER: Acquire; pairs with the goroutine's AcqRel in `finish`.
        let flags = self.packet().inner.flags.load(Acquire);
        if flags & TAKEN != 0 {
            panic!(
                "gosched: a JoinHandle gives its result once, and an earlier poll has returned it"
            );
        }
        if flags & GIVEN_UP != 0 {
            return Err(exited());
        }
        // SAFETY: the slot is complete, so the result is written. Only the handle takes it, and it
        // is borrowed mutably.
        let result = unsafe { (*self.packet().result.get()).take() };
        result.unwrap_or_else(|| Err(exited()))
    }

    #[track_caller]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T>> {
        let mut awaiter = self.awaiter.take();
        let is_done = self.packet().slot.poll(&mut awaiter, context.waker());
        self.awaiter = awaiter;
        if !is_done {
            return Poll::Pending;
        }
        let result = self.take();
        // ORDER: Relaxed; only this handle reads the flag.
        self.packet().inner.flags.fetch_or(TAKEN, Relaxed);
        Poll::Ready(result)
    }

    /// Removes the waker that a poll left. It is not called any more, unless the goroutine has just
    /// ended.
    fn stop_awaiting(&mut self) {
        let mut awaiter = self.awaiter.take();
        drop(self.packet().slot.take_back(&mut awaiter));
    }
}

impl<T> Drop for RawHandle<T> {
    fn drop(&mut self) {
        self.stop_awaiting();
        // ORDER: AcqRel; pairs with FINISHED in `finish`: the later side sees the result and drops
        // it.
        if self.packet().inner.flags.fetch_or(DETACHED, AcqRel) & FINISHED != 0 {
            self.packet().drop_result();
        }
    }
}

impl<T> JoinHandle<T> {
    /// Waits for the goroutine and returns its value.
    ///
    /// Blocks the calling goroutine or plain thread. See [`std::thread::JoinHandle::join`].
    ///
    /// # Errors
    /// The payload of the goroutine's panic. It is [`Exited`] if the goroutine called
    /// [`goexit`](crate::goexit), or if its runtime was dropped.
    ///
    /// # Panics
    /// If a goroutine joins itself.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let handle = gosched::thread::spawn(|| -> u32 { panic!("oh no") });
    /// let payload = handle.join().unwrap_err();
    /// assert_eq!(payload.downcast_ref(), Some(&"oh no"));
    /// # });
    /// ```
    #[track_caller]
    pub fn join(self) -> Result<T> {
        self.0.join()
    }

    /// Returns the goroutine's thread handle.
    ///
    /// Never blocks. See [`std::thread::JoinHandle::thread`].
    ///
    /// ```
    /// # gosched::run(|| {
    /// let handle = gosched::thread::spawn(gosched::thread::park);
    /// handle.thread().unpark();
    /// # handle.join().unwrap();
    /// # });
    /// ```
    #[must_use]
    pub fn thread(&self) -> &Thread {
        self.0.thread()
    }

    /// Returns whether the goroutine has ended.
    ///
    /// Never blocks. See [`std::thread::JoinHandle::is_finished`].
    ///
    /// ```
    /// # gosched::run(|| {
    /// let handle = gosched::thread::spawn(|| ());
    /// while !handle.is_finished() {
    ///     gosched::yield_now();
    /// }
    /// # });
    /// ```
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

/// Awaits the goroutine, as [`JoinHandle::join`] does.
///
/// A poll never blocks. See the example of [`JoinHandle`].
///
/// # Panics
/// If it is polled again after it has returned its result.
impl<T> Future for JoinHandle<T> {
    type Output = Result<T>;

    #[track_caller]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        self.get_mut().0.poll(context)
    }
}

/// The handle does not contain the result, so moving it is harmless.
impl<T> Unpin for JoinHandle<T> {}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}

/// Starts a goroutine and returns a handle to join it.
///
/// Never blocks. It does not return if the caller's runtime ends:
/// - While the runtime is being dropped, the caller is abandoned, as a goroutine that waits is.
/// - While the runtime shuts down, the caller unwinds.
///
/// [`Builder::spawn`] returns an error instead. See [`std::thread::spawn`].
///
/// # Panics
/// Outside a goroutine, where [`Runtime::spawn`](crate::Runtime::spawn) or a
/// [`Handle`](crate::Handle) works. Also if no stack is available; [`Builder::spawn`] returns that
/// as an error.
///
/// ```
/// # gosched::run(|| {
/// let handle = gosched::thread::spawn(|| "hello");
/// assert_eq!(handle.join().unwrap(), "hello");
/// # });
/// ```
#[track_caller]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let site = Location::caller();
    let spawned = with_current("thread::spawn", |sched| {
        spawn_joinable(sched, site, None, None, f)
    });
    ending::spawned(own_home(), spawned)
}

/// Calls `f` with the runtime of the calling goroutine.
#[track_caller]
pub(crate) fn with_current<R>(what: &str, f: impl FnOnce(&Sched) -> R) -> R {
    match current_m().filter(|m| m.curg().is_some()) {
        // A running goroutine keeps its runtime alive, on whichever thread it runs.
        Some(m) => f(m.sched()),
        None => panic!(
            "gosched::{what} called outside a goroutine: start one with gosched::run or \
             #[gosched::main], or use a Runtime or Handle"
        ),
    }
}

/// Starts a joinable goroutine of `sched`.
pub(crate) fn spawn_joinable<F, T>(
    sched: &Sched,
    site: &'static Location<'static>,
    name: Option<Box<str>>,
    class: Option<u8>,
    f: F,
) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    // SAFETY: a 'static closure borrows nothing that can be freed.
    unsafe { spawn_raw(sched, site, name, class, None, f) }.map(JoinHandle)
}

/// Starts a goroutine with a packet for its result.
///
/// # Safety
/// What `F` and `T` borrow outlives the goroutine. A scope guarantees that by waiting for it.
pub(super) unsafe fn spawn_raw<F, T>(
    sched: &Sched,
    site: &'static Location<'static>,
    name: Option<Box<str>>,
    class: Option<u8>,
    scope: Option<Arc<ScopeData>>,
    f: F,
) -> io::Result<RawHandle<T>>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let packet = Packet::<T>::new(name, scope.clone());
    // SAFETY: just allocated. The first reference passes to the G, this one to the handle.
    let thread = unsafe { Thread::share(packet.cast()) };
    let handle = RawHandle {
        thread,
        awaiter: None,
        marker: PhantomData,
    };
    if let Some(scope) = &scope {
        scope.enter();
    }
    let how = Spawn {
        site,
        class,
        thread: packet.as_ptr().cast(),
    };
    let f = move || deliver::<T>(catch_unwind(AssertUnwindSafe(f)));
    // SAFETY: the caller guarantees that the closure's borrows outlive the goroutine.
    let task = unsafe { Task::borrowing(f) };
    match sched.spawn(how, task) {
        Ok(()) => Ok(handle),
        Err((error, task)) => {
            if let Some(scope) = &scope {
                scope.leave();
            }
            drop(task);
            // SAFETY: no goroutine was started, so its reference is still here.
            unsafe { Inner::release(packet.cast()) };
            Err(error)
        }
    }
}

/// The last step of a joinable goroutine. Its G keeps the reference until the end. So if a
/// destructor waits and the runtime is dropped meanwhile, the drop finds the packet.
fn deliver<T>(result: Result<T>) {
    report_abort(&result);
    at_the_edge(|| {
        if let Some(inner) = current_g().and_then(|g| g.inner()) {
            // SAFETY: `spawn_raw::<_, T>` made it as a `Packet<T>`, and the G holds a reference.
            unsafe { Packet::finish(inner.cast::<Packet<T>>(), result) };
        }
    });
    super::release_inner();
}

/// Runs the last destructors of a goroutine. The hook reports a panic in them, and it ends here.
/// Returns false then.
fn at_the_edge(f: impl FnOnce()) -> bool {
    let result = catch_unwind(AssertUnwindSafe(f));
    let ok = result.is_ok();
    if !ok {
        report_panic();
        std::mem::forget(result); // dropping the payload might panic again
    }
    ok
}

/// With `panic_abort` any panic ends the process, as in Go. Exception: goroutines that outlive the
/// drop of their runtime.
pub(crate) fn report_abort<T>(result: &Result<T>) {
    if let Err(payload) = result
        && !payload.is::<Exited>()
        && let Some(m) = current_m()
        && m.sched().config.panic_abort
        && !m.sched().is_dead()
    {
        report_panic();
        crate::sys::exit_process(2);
    }
}

/// Starts a goroutine without a handle.
#[inline]
pub(crate) fn spawn_go<F: FnOnce() + Send + 'static>(
    sched: &Sched,
    site: &'static Location<'static>,
    f: F,
) -> io::Result<()> {
    let how = Spawn {
        site,
        class: None,
        thread: ptr::null_mut(),
    };
    let task = Task::new(move || finish_report(catch_unwind(AssertUnwindSafe(f))));
    sched.spawn(how, task).map_err(|(error, _)| error)
}

/// The last step of a goroutine without a handle: reports its panic.
pub(crate) fn finish_report(result: std::result::Result<(), Box<dyn Any + Send>>) {
    report_abort(&result);
    if let Err(payload) = &result
        && !payload.is::<Exited>()
    {
        report_panic();
    }
    at_the_edge(|| drop(result));
    thread_locals::end();
    super::release_inner();
}

fn report_panic() {
    if let Some(g) = current_g().filter(|g| !g.sched().is_dead()) {
        let name = g
            .name()
            .map(|name| format!(" [{name}]"))
            .unwrap_or_default();
        let site = g.site.get().map(|site| format!(", spawned at {site}"));
        let site = site.unwrap_or_default();
        // A closed stderr is not an error.
        let _ = writeln!(io::stderr(), "goroutine {}{name}{site}", g.id());
    }
}

/// A builder that configures a new goroutine.
///
/// None of its methods blocks. See [`std::thread::Builder`].
///
/// ```
/// # gosched::run(|| {
/// let handle = gosched::thread::Builder::new()
///     .name("deep".into())
///     .stack_size(1 << 20)
///     .spawn(|| gosched::thread::current().name().map(str::len))
///     .unwrap();
/// assert_eq!(handle.join().unwrap(), Some(4));
/// # });
/// ```
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until `spawn`"]
pub struct Builder {
    name: Option<String>,
    stack_size: Option<usize>,
}

impl Builder {
    /// Creates a builder without a name and with the runtime's stack size.
    ///
    /// ```
    /// let builder = gosched::thread::Builder::new();
    /// # let _ = builder;
    /// ```
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Names the goroutine, for panics and dumps.
    ///
    /// A name with a NUL byte makes `spawn` panic, as in std.
    ///
    /// ```
    /// let builder = gosched::thread::Builder::new().name("worker".into());
    /// # let _ = builder;
    /// ```
    pub fn name(mut self, name: String) -> Builder {
        self.name = Some(name);
        self
    }

    /// Sets the maximum stack size of the goroutine.
    ///
    /// The size is rounded up to a power of two from 16 KiB to 1 GiB. Only touched pages cost
    /// memory.
    ///
    /// ```
    /// let builder = gosched::thread::Builder::new().stack_size(64 * 1024);
    /// # let _ = builder;
    /// ```
    pub fn stack_size(mut self, size: usize) -> Builder {
        self.stack_size = Some(size);
        self
    }

    #[track_caller]
    fn parts(self) -> io::Result<(Option<Box<str>>, Option<u8>)> {
        let has_nul = self.name.as_ref().is_some_and(|name| name.contains('\0'));
        assert!(!has_nul, "thread name may not contain interior null bytes");
        let class = match self.stack_size {
            Some(size) => Some(class_for(size.max(1)).ok_or_else(|| stack_size_error(size))?),
            None => None,
        };
        Ok((self.name.map(String::into_boxed_str), class))
    }

    /// Starts the goroutine and returns a handle to join it.
    ///
    /// Never blocks. See [`std::thread::Builder::spawn`].
    ///
    /// # Errors
    /// If the stack size is over 1 GiB, if no address space is left for a stack, or if the runtime
    /// is shutting down.
    ///
    /// # Panics
    /// Outside a goroutine, or if the name has a NUL byte.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let error =
    ///     gosched::thread::Builder::new().stack_size(usize::MAX).spawn(|| ()).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    /// # });
    /// ```
    #[track_caller]
    pub fn spawn<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (name, class) = self.parts()?;
        let site = Location::caller();
        with_current("thread::Builder::spawn", |sched| {
            spawn_joinable(sched, site, name, class, f)
        })
    }

    /// Starts a goroutine that may borrow anything.
    ///
    /// Never blocks. See [`std::thread::Builder::spawn_unchecked`].
    ///
    /// # Safety
    /// The goroutine must have ended before anything that it borrows is freed. Nothing checks that.
    /// A join that returns [`Exited`] because the runtime was dropped is not enough: the goroutine
    /// may still run until it waits.
    ///
    /// # Errors
    /// As for [`Builder::spawn`].
    ///
    /// # Panics
    /// As [`Builder::spawn`].
    ///
    /// ```
    /// # gosched::run(|| {
    /// let text = String::from("hello");
    /// // SAFETY: it is joined before `text` goes.
    /// let handle = unsafe { gosched::thread::Builder::new().spawn_unchecked(|| text.len()) };
    /// assert_eq!(handle.unwrap().join().unwrap(), 5);
    /// # });
    /// ```
    #[track_caller]
    pub unsafe fn spawn_unchecked<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let (name, class) = self.parts()?;
        let site = Location::caller();
        with_current("thread::Builder::spawn_unchecked", |sched| {
            // SAFETY: the calling goroutine's own `Inner`, which it references until it ends. The
            // mark records that its stack is shared permanently.
            unsafe { super::current_inner().as_ref() }.lend_stack();
            // SAFETY: the caller guarantees that the closure's borrows outlive the goroutine.
            unsafe { spawn_raw(sched, site, name, class, None, f) }.map(JoinHandle)
        })
    }

    /// Starts a goroutine in a scope.
    ///
    /// Never blocks; the end of the scope does. See [`std::thread::Builder::spawn_scoped`].
    ///
    /// # Errors
    /// As for [`Builder::spawn`].
    ///
    /// # Panics
    /// As [`Builder::spawn`].
    ///
    /// ```
    /// # gosched::run(|| {
    /// let mut words = vec!["a", "b"];
    /// gosched::thread::scope(|s| {
    ///     let builder = gosched::thread::Builder::new().name("pusher".into());
    ///     builder.spawn_scoped(s, || words.push("c")).unwrap();
    /// });
    /// assert_eq!(words.len(), 3);
    /// # });
    /// ```
    #[track_caller]
    pub fn spawn_scoped<'scope, 'env, F, T>(
        self,
        scope: &'scope super::Scope<'scope, 'env>,
        f: F,
    ) -> io::Result<super::ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let (name, class) = self.parts()?;
        scope.spawn_with(Location::caller(), name, class, f)
    }
}

pub(crate) fn stack_size_error(size: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("a stack size of {size} bytes is not possible: give between 1 byte and 1 GiB"),
    )
}
