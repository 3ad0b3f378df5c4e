//! Starting goroutines and waiting for their results: `spawn`, `Builder`, `JoinHandle`.
//!
//! The result travels in a packet (`packet.rs`).

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::ending::{self, own_home};
use super::finish::finish_report;
use super::packet::{RawHandle, spawn_raw};
use super::{Result, Thread};
use crate::sched::Sched;
use crate::sched::model::current::current_m;
use crate::sched::model::g::Task;
use crate::sched::spawn::Spawn;
use crate::stack::class_for;

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

impl<T> JoinHandle<T> {
    /// Waits for the goroutine and returns its value.
    ///
    /// Blocks the calling goroutine or plain thread. See [`std::thread::JoinHandle::join`].
    ///
    /// # Errors
    /// The payload of the goroutine's panic. It is [`Exited`](super::Exited) if the goroutine called
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
        thread: None,
    };
    let task = Task::new(move || finish_report(catch_unwind(AssertUnwindSafe(f))));
    sched.spawn(how, task).map_err(|(error, _)| error)
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
    /// A join that returns [`Exited`](super::Exited) because the runtime was dropped is not enough:
    /// the goroutine may still run until it waits.
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
