//! Starting goroutines and getting their results: `spawn`, `Builder`, `JoinHandle`.
//!
//! The result travels in a *packet*, one allocation shared by the goroutine, the join handle and the thread
//! handles. Its flags say who is done with it:
//! ```text
//!  the goroutine sets FINISHED after it wrote the result; if DETACHED was set, it drops the result itself
//!  the handle sets DETACHED when it is dropped;            if FINISHED was set, it drops the result itself
//!  LEFT: the scope has been left for the goroutine, once
//!  TAKEN: a poll of the handle has returned the result
//! ```
//! The goroutine's reference lies in its G. When its runtime is dropped before it has FINISHED, GIVEN_UP answers the join;
//! a goroutine that still runs then finishes into a packet that nobody reads.
//!
//! Who wants the result waits in the packet's slot: whoever joins, or a task of some executor that polled the handle, by its waker.
//! Wakers are user code, so the goroutine calls one as the last thing it does on its stack, after the result is to be had. Its
//! thread-locals have ended by then: what the waker makes of them anew ends after it. Should the goroutine not get that far because
//! its runtime is dropped, whoever drops it calls the waker.

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
use super::inner::{Fate, Inner, InnerVtable};
use super::scope::ScopeData;
use super::{Exited, Result, Thread, exited};
use crate::sched::Sched;
use crate::sched::model::current::{current_g, current_m};
use crate::sched::model::g::{Task, WaitReason};
use crate::sched::park::assert_user_context;
use crate::sched::spawn::Spawn;
use crate::sched::wait::{Awaiter, SlotKind, WaitSlot, Waking, enter_to_wake};
use crate::stack::class_for;
use crate::tls;

static JOIN: SlotKind = SlotKind::new(WaitReason::Join);

const FINISHED: u8 = 1;
const DETACHED: u8 = 2;
const LEFT: u8 = 4;
const GIVEN_UP: u8 = 8;
const TAKEN: u8 = 16;

/// A goroutine's result on its way to whoever joins. Begins with the thread's `Inner`.
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
            // SAFETY: made by `new` from a box of this type; the last reference is gone. The result is
            // gone too: its taker, or whoever detached last, has dropped it.
            drop(unsafe { Box::from_raw(inner.cast::<Packet<T>>().as_ptr()) });
        },
        give_up: |inner| {
            // SAFETY: the caller has a reference to this packet.
            let packet = unsafe { inner.cast::<Packet<T>>().as_ref() };
            // ORDER: AcqRel; a goroutine that has finished keeps its answer.
            let given_up = |flags| (flags & FINISHED == 0).then_some(flags | GIVEN_UP);
            let _ = packet.inner.flags.fetch_update(AcqRel, Acquire, given_up);
            let awaiter = packet.slot.complete_awaited(&packet.waking);
            packet.waking.take().or(awaiter)
        },
        tell_scope: |inner, fate| {
            // SAFETY: as above.
            let packet = unsafe { inner.cast::<Packet<T>>().as_ref() };
            match (fate, &packet.scope) {
                (Fate::NeverRan, Some(_)) => packet.leave_scope(),
                (Fate::Lost, Some(scope)) if !packet.has_left() => scope.lose(),
                _ => {}
            }
        },
        scope: |inner| {
            // SAFETY: as above.
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

    /// Delivers the result; the caller owns the goroutine's reference and keeps it. In user context.
    unsafe fn finish(this: NonNull<Packet<T>>, result: Result<T>) {
        // SAFETY: by the caller's reference.
        let packet = unsafe { this.as_ref() };
        // SAFETY: before FINISHED only the owner of the goroutine's reference touches the result.
        unsafe { *packet.result.get() = Some(result) };
        // ORDER: AcqRel; pairs with the other side's: the later one sees the result and may drop it.
        let detached = packet.inner.flags.fetch_or(FINISHED, AcqRel) & DETACHED != 0;
        if detached {
            let dropped = at_the_edge(|| packet.drop_result());
            if let (false, Some(scope)) = (dropped, &packet.scope) {
                scope.note_panic();
            }
        }
        tls::end();
        let awaiter = {
            let _rt = enter_to_wake();
            let awaiter = packet.slot.complete_awaited(&packet.waking);
            packet.leave_scope();
            awaiter
        };
        if let Some(awaiter) = awaiter {
            at_the_edge(|| awaiter.wake());
            at_the_edge(|| drop((packet.waking.take(), awaiter)));
            tls::end();
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

    /// Drops a result that nobody will take; a panic in it is the scope's to report.
    fn drop_result(&self) {
        // SAFETY: both flags are set and the caller set the second: the result is its own.
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

/// The right to wait for a goroutine's result; dropping it lets the goroutine go on alone.
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
/// It is a future, too, whose output is what [`join`](JoinHandle::join) returns; any executor can await it. Dropped while it is
/// awaited it lets the goroutine go on alone, as ever.
///
/// ```
/// # gosched::run(|| {
/// let handle = gosched::thread::spawn(|| 6 * 7);
/// let doubled = gosched::future::block_on(async { handle.await.unwrap() * 2 });
/// assert_eq!(doubled, 84);
/// # });
/// ```
pub struct JoinHandle<T>(pub(super) RawHandle<T>);

/// What `JoinHandle` and `ScopedJoinHandle` share.
pub(super) struct RawHandle<T> {
    /// Its reference; the `Inner` it points to is the packet's first field.
    thread: Thread,
    /// What the last poll left in the slot; it may be gone.
    awaiter: *const Awaiter,
    marker: PhantomData<T>,
}

// SAFETY: D1, as std's: the packet is shared by a count, the result moves to one taker. Every result is Send: `spawn_raw`, which
// alone makes handles, asks for it.
unsafe impl<T> Send for RawHandle<T> {}
// SAFETY: D1, `&RawHandle` gives no access to the result.
unsafe impl<T> Sync for RawHandle<T> {}

impl<T> RawHandle<T> {
    fn packet(&self) -> &Packet<T> {
        // SAFETY: `spawn_raw` made the packet that begins with this `Inner`; `thread` holds a reference to it.
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

    /// The answer, once it is there.
    #[track_caller]
    fn take(&mut self) -> Result<T> {
        // ORDER: Acquire; pairs with the goroutine's AcqRel in `finish`.
        let flags = self.packet().inner.flags.load(Acquire);
        if flags & TAKEN != 0 {
            panic!("gosched: a JoinHandle gives its result once, and it was awaited before");
        }
        if flags & GIVEN_UP != 0 {
            return Err(exited());
        }
        // SAFETY: the result is written, and the handle, which alone may take it, is ours.
        let result = unsafe { (*self.packet().result.get()).take() };
        result.unwrap_or_else(|| Err(exited()))
    }

    #[track_caller]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T>> {
        let mut awaiter = std::mem::replace(&mut self.awaiter, ptr::null());
        let is_done = self.packet().slot.poll(&mut awaiter, context.waker());
        self.awaiter = awaiter;
        if !is_done {
            return Poll::Pending;
        }
        let result = self.take();
        // ORDER: Relaxed; for this handle alone.
        self.packet().inner.flags.fetch_or(TAKEN, Relaxed);
        Poll::Ready(result)
    }

    /// No waker that a poll has left is called any more, unless the goroutine has just ended.
    fn stop_awaiting(&mut self) {
        let mut awaiter = std::mem::replace(&mut self.awaiter, ptr::null());
        drop(self.packet().slot.take_back(&mut awaiter));
    }
}

impl<T> Drop for RawHandle<T> {
    fn drop(&mut self) {
        self.stop_awaiting();
        // ORDER: AcqRel; see `finish`.
        if self.packet().inner.flags.fetch_or(DETACHED, AcqRel) & FINISHED != 0 {
            self.packet().drop_result();
        }
    }
}

impl<T> JoinHandle<T> {
    /// Waits for the goroutine and returns its value, or the payload of its panic.
    ///
    /// Blocks the goroutine, or the plain thread it is called on. See [`std::thread::JoinHandle::join`].
    ///
    /// # Errors
    /// The payload with which the goroutine panicked; [`Exited`] if it ended by [`goexit`](crate::goexit) or its
    /// runtime was dropped.
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

    /// The goroutine's thread handle; see [`std::thread::JoinHandle::thread`].
    ///
    /// Blocks nothing.
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

    /// Whether the goroutine has ended; see [`std::thread::JoinHandle::is_finished`].
    ///
    /// Blocks nothing.
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

/// As [`JoinHandle::join`], for the task that awaits it; a poll blocks nothing. See the example of [`JoinHandle`].
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

/// The value is not in the handle.
impl<T> Unpin for JoinHandle<T> {}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}

/// Starts a goroutine; see [`std::thread::spawn`].
///
/// Blocks nothing. When the caller's runtime is being dropped it does not return: the caller is abandoned, as a goroutine that
/// waits is. When the runtime shuts down the caller unwinds. [`Builder::spawn`] returns an error instead.
///
/// # Panics
/// Outside a goroutine (use [`Runtime::spawn`](crate::Runtime::spawn) or a [`Handle`](crate::Handle)), or if
/// no stack can be had; [`Builder::spawn`] returns that as an error.
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
        // The goroutine keeps its runtime alive while it runs, wherever it runs.
        Some(m) => f(m.sched()),
        None => panic!(
            "gosched::{what} called outside a goroutine: start one with gosched::run or #[gosched::main], or use a Runtime or Handle"
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
    // SAFETY: 'static closures borrow nothing that could go.
    unsafe { spawn_raw(sched, site, name, class, None, f) }.map(JoinHandle)
}

/// # Safety
/// What `F` and `T` borrow outlives the goroutine (a scope waits for it).
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
    // SAFETY: just made; the first reference passes to the G, this one to the handle.
    let thread = unsafe { Thread::share(packet.cast()) };
    let handle = RawHandle {
        thread,
        awaiter: ptr::null(),
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
    let task = Task::new(move || deliver::<T>(catch_unwind(AssertUnwindSafe(f))));
    // SAFETY: borrows by the caller's promise.
    match unsafe { sched.spawn(how, task) } {
        Ok(()) => Ok(handle),
        Err((error, task)) => {
            if let Some(scope) = &scope {
                scope.leave();
            }
            drop(task);
            // SAFETY: no goroutine took its reference.
            unsafe { Inner::release(packet.cast()) };
            Err(error)
        }
    }
}

/// The last thing a joinable goroutine does. Its G keeps the reference until the end: should a destructor wait and the
/// runtime be dropped meanwhile, whoever gives the goroutine up finds the packet there.
fn deliver<T>(result: Result<T>) {
    report_abort(&result);
    at_the_edge(|| {
        if let Some(inner) = current_g().and_then(|g| g.inner()) {
            // SAFETY: `spawn_raw::<_, T>` made it as a Packet<T>; the G holds a reference.
            unsafe { Packet::finish(inner.cast::<Packet<T>>(), result) };
        }
    });
    super::release_inner();
}

/// Runs the last destructors of a goroutine: a panic in one is reported by the hook and goes no further; false then.
fn at_the_edge(f: impl FnOnce()) -> bool {
    let result = catch_unwind(AssertUnwindSafe(f));
    let ok = result.is_ok();
    if !ok {
        report_panic();
        std::mem::forget(result); // dropping the payload might panic again
    }
    ok
}

/// With `panic_abort` any panic ends the process, as in Go; but for a goroutine that a dropped runtime has left to itself.
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

/// Starts a goroutine that nobody joins.
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
    // SAFETY: 'static closures borrow nothing that could go.
    unsafe { sched.spawn(how, task) }.map_err(|(error, _)| error)
}

/// The last thing a goroutine that nobody joins does: says which one panicked.
pub(crate) fn finish_report(result: std::result::Result<(), Box<dyn Any + Send>>) {
    report_abort(&result);
    if let Err(payload) = &result
        && !payload.is::<Exited>()
    {
        report_panic();
    }
    at_the_edge(|| drop(result));
    tls::end();
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
        // A closed stderr is no reason to fail.
        let _ = writeln!(io::stderr(), "goroutine {}{name}{site}", g.id());
    }
}

/// Configures a new goroutine; see [`std::thread::Builder`].
///
/// None of its methods blocks.
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
    /// No name, the runtime's stack size.
    ///
    /// ```
    /// let builder = gosched::thread::Builder::new();
    /// # let _ = builder;
    /// ```
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Names the goroutine, for panics and dumps. A name with a NUL byte makes `spawn` panic, as std's does.
    ///
    /// ```
    /// let builder = gosched::thread::Builder::new().name("worker".into());
    /// # let _ = builder;
    /// ```
    pub fn name(mut self, name: String) -> Builder {
        self.name = Some(name);
        self
    }

    /// The most stack the goroutine may use: rounded up to a power of two from 16 KiB to 1 GiB.
    ///
    /// Only touched pages cost memory.
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

    /// Starts the goroutine; see [`std::thread::Builder::spawn`].
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// If the stack size is over 1 GiB, no address space is left for a stack, or the runtime is shutting down.
    ///
    /// # Panics
    /// Outside a goroutine; for a name with a NUL byte.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let error = gosched::thread::Builder::new().stack_size(usize::MAX).spawn(|| ()).unwrap_err();
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

    /// Starts a goroutine that may borrow; see [`std::thread::Builder::spawn_unchecked`].
    ///
    /// Blocks nothing.
    ///
    /// # Safety
    /// The goroutine must have ended before anything that it borrows goes; nothing checks that. A join that answers
    /// [`Exited`] because the runtime was dropped does not mean that it has: it may go on until it waits.
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
            // SAFETY: the calling goroutine's own. It may lend what lies on its stack, for as long as it likes.
            unsafe { super::current_inner().as_ref() }.lend_stack();
            // SAFETY: by the caller's promise.
            unsafe { spawn_raw(sched, site, name, class, None, f) }.map(JoinHandle)
        })
    }

    /// Starts a goroutine in a scope; see [`std::thread::Builder::spawn_scoped`].
    ///
    /// Blocks nothing; the end of the scope does.
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
