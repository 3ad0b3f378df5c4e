//! Threads that are goroutines: what the hook of `pthread_create` needs of the scheduler.
//!
//! Such a thread is a goroutine of its caller's runtime with a word for its result, which
//! `pthread_join` returns. The word lies in a packet, as the result of a joinable goroutine does.
//! The record of a handle (`pthread_t`) and its states are the hook's.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use crate::base::real_thread;
use crate::sched::life::thread_locals;
use crate::sched::model::current::{current_g, current_m};
use crate::sched::model::g::{Task, WaitReason};
use crate::sched::spawn::Spawn;
use crate::sched::waiting::handle::{Inner, InnerRef, Whole};
use crate::sched::waiting::wait_slot::{Awaiter, SlotKind, WaitSlot};
use crate::stack::class_for;
use crate::sys;
use crate::thread::{current_inner, release_inner, report_abort};

static JOIN: SlotKind = SlotKind::new(WaitReason::Join);
static ENDING: SlotKind = SlotKind::new(WaitReason::Ending);

/// In `Inner::flags`: `join` was called.
const JOINED: u8 = 1;
/// In `Inner::flags`: the result is there.
const HAS_RESULT: u8 = 2;

thread_local! {
    /// The handle of this thread if it is a goroutine of [`Unstarted::start`], else 0.
    static OWN_HANDLE: Cell<usize> = const { Cell::new(0) };
}

/// The handle with which [`Unstarted::start`] started the caller; 0 for every other goroutine and
/// for threads. A signal handler may call it.
///
/// ```
/// assert_eq!(gosched::hook::own_handle(), 0);
/// ```
#[inline]
pub fn own_handle() -> usize {
    OWN_HANDLE.get()
}

/// The topmost byte of every handle. No address that a program can use begins with it, on x86-64 and
/// on AArch64. So a handle is told from libc's, which are addresses, and a function of libc that
/// takes it for one faults at once.
///
/// ```
/// assert!(gosched::hook::is_handle(gosched::hook::HANDLE_TAG | 1));
/// ```
pub const HANDLE_TAG: usize = 0x67 << 56;

/// Whether this word is a handle with [`HANDLE_TAG`].
///
/// ```
/// assert!(!gosched::hook::is_handle(0x7fff_0000_0000));
/// ```
#[inline]
pub const fn is_handle(word: usize) -> bool {
    word >> 56 == HANDLE_TAG >> 56
}

/// Whether the caller is a goroutine, also where it [cannot park](super::can_park).
///
/// ```
/// assert!(!gosched::hook::is_goroutine());
/// gosched::run(|| assert!(gosched::hook::is_goroutine()));
/// ```
pub fn is_goroutine() -> bool {
    current_g().is_some()
}

/// Calls `f`. Threads that it starts are threads of the system, also under the hook of
/// `pthread_create`. Calls nest.
///
/// ```
/// let thread = gosched::hook::real_threads(|| std::thread::spawn(|| 6 * 7));
/// assert_eq!(thread.join().unwrap(), 42);
/// ```
pub fn real_threads<R>(f: impl FnOnce() -> R) -> R {
    real_thread::real_threads(f)
}

/// Whether the caller is inside [`real_threads`].
///
/// ```
/// use gosched::hook;
/// assert!(!hook::wants_real_threads());
/// hook::real_threads(|| assert!(hook::wants_real_threads()));
/// ```
#[inline]
pub fn wants_real_threads() -> bool {
    real_thread::is_wanted()
}

/// Lets other goroutines run, as [`yield_now`](crate::yield_now), and does not unwind. On a plain
/// thread it does nothing.
///
/// ```
/// gosched::run(gosched::hook::yield_now);
/// ```
pub fn yield_now() {
    if let Some((m, g)) = current_m().and_then(|m| Some((m, m.curg()?))) {
        crate::sched::park::yield_now(m, g);
    }
}

/// Names the calling goroutine in dumps, if it has no name yet. On a plain thread it does nothing.
///
/// ```
/// gosched::run(|| {
///     gosched::thread::spawn(|| {
///         gosched::hook::name_goroutine("worker");
///         assert_eq!(gosched::thread::current().name(), Some("worker"));
///     })
///     .join()
///     .unwrap();
/// });
/// ```
pub fn name_goroutine(name: &str) {
    if is_goroutine() {
        // SAFETY: the calling goroutine's own `Inner`, which it references until it ends.
        unsafe { current_inner().as_ref() }.set_name(name);
    }
}

/// The result of a thread that is a goroutine. Begins with the `Inner` of its thread handle, as the
/// packets of joinable goroutines do: the leak analysis finds the goroutine by the slot.
#[repr(C)]
struct Packet {
    inner: Inner,
    slot: WaitSlot,
    result: AtomicUsize,
}

// SAFETY: `repr(C)`, and `Unstarted::new` makes the first field with `Inner::new::<Packet>`. The
// fields are atomics and a slot, which any thread may use, and borrow nothing.
unsafe impl Whole for Packet {
    fn give_up(&self) -> Option<std::sync::Arc<Awaiter>> {
        self.slot.complete();
        None
    }
}

/// A thread that is a goroutine, as its joiner has it.
#[derive(Clone)]
pub struct Thread(InnerRef);

impl Thread {
    fn packet(&self) -> &Packet {
        // SAFETY: only `Unstarted` makes this, from the `Inner` of a `Packet`, to which it holds a
        // reference.
        unsafe { self.0.as_ptr().cast::<Packet>().as_ref() }
    }

    /// Whether the goroutine has ended, its destructors included. Also true if its runtime was
    /// dropped.
    pub fn is_finished(&self) -> bool {
        self.packet().slot.is_done()
    }

    /// Waits until the goroutine has ended, at most for `length`. It may return earlier. Does not
    /// unwind. Only one caller at a time waits for a thread, here or in [`join`](Thread::join).
    ///
    /// ```
    /// use gosched::hook::Unstarted;
    /// use std::time::Duration;
    ///
    /// gosched::run(|| {
    ///     let thread = Unstarted::new();
    ///     let joiner = thread.joiner();
    ///     thread.start(1, 64 << 10, || 7, |_| ()).unwrap();
    ///     while !joiner.is_finished() {
    ///         joiner.wait(Duration::from_secs(1));
    ///     }
    /// });
    /// ```
    pub fn wait(&self, length: Duration) {
        let deadline = sys::deadline_after(length);
        self.packet().slot.wait_until(&JOIN, deadline);
    }

    /// Waits for the end of the goroutine, and returns its result. `None`: it has no result,
    /// because it unwound, or because its runtime was dropped; or this was called before. Does not
    /// unwind. Blocks the goroutine or the plain thread that calls.
    pub fn join(&self) -> Option<usize> {
        let packet = self.packet();
        // ORDER: Relaxed; the flag guards nothing. It keeps a second waiter out of the slot.
        if packet.inner.flags.fetch_or(JOINED, Relaxed) & JOINED != 0 {
            return None;
        }
        packet.slot.wait_always(&JOIN);
        // ORDER: Acquire; pairs with the Release in `finish`.
        let has_result = packet.inner.flags.load(Acquire) & HAS_RESULT != 0;
        has_result.then(|| packet.result.load(Relaxed))
    }
}

/// A thread that will be a goroutine. Its [`Thread`] may be shared before it starts, so that the
/// goroutine finds its own record complete.
///
/// ```
/// use gosched::hook::Unstarted;
///
/// let result = gosched::run(|| {
///     let thread = Unstarted::new();
///     let joiner = thread.joiner();
///     thread.start(1, 64 << 10, || 6 * 7, |_| ()).unwrap();
///     joiner.join()
/// });
/// assert_eq!(result, Some(42));
/// ```
pub struct Unstarted(InnerRef);

impl Unstarted {
    /// Allocates the packet.
    #[expect(
        clippy::new_without_default,
        reason = "a packet is never made by chance"
    )]
    pub fn new() -> Unstarted {
        Unstarted(InnerRef::new(Packet {
            inner: Inner::new::<Packet>(None),
            slot: WaitSlot::new(),
            result: AtomicUsize::new(0),
        }))
    }

    /// The joiner's side.
    pub fn joiner(&self) -> Thread {
        Thread(self.0.clone())
    }

    /// Starts a goroutine in the runtime of the caller, which is one of its goroutines. It runs
    /// `body` on a stack of at least `stack` bytes, with [`own_handle`] equal to `handle`. Its
    /// thread-locals are destroyed when it calls `ended`.
    ///
    /// If the runtime was dropped, this does not return: the caller is abandoned, as a goroutine
    /// that waits is. Does not unwind.
    ///
    /// # Errors
    /// If the caller is no goroutine, no stack of that size is possible, or no memory is left for
    /// one, or the runtime shuts down.
    #[track_caller]
    pub fn start<F>(self, handle: usize, stack: usize, body: F, ended: fn(usize)) -> io::Result<()>
    where
        F: FnOnce() -> usize + Send + 'static,
    {
        let Some(m) = current_m().filter(|m| m.curg().is_some()) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let class = class_for(stack).ok_or(io::ErrorKind::InvalidInput)?;
        // A running goroutine keeps its runtime alive, on whichever thread it runs.
        let sched = m.sched();
        // The new thread may have references to what lies on the caller's stack: scopes.
        // SAFETY: the calling goroutine's own `Inner`, which it references until it ends.
        unsafe { current_inner().as_ref() }.lend_stack();
        let how = Spawn {
            site: Location::caller(),
            class: (class != sched.stack_class).then_some(class),
            thread: Some(&self.0),
        };
        let task = Task::new(move || run(handle, body, ended));
        let Err((error, task)) = sched.spawn(how, task) else {
            return Ok(());
        };
        drop(task);
        // ORDER: Acquire; pairs with the store by the drop of the runtime.
        if sched.dead.load(Acquire) {
            WaitSlot::new().wait_always(&ENDING);
        }
        Err(error)
    }
}

/// The whole life of the goroutine, on its stack.
fn run(handle: usize, body: impl FnOnce() -> usize, ended: fn(usize)) {
    OWN_HANDLE.set(handle);
    let result = catch_unwind(AssertUnwindSafe(body));
    report_abort(&result);
    let Some(inner) = current_g().and_then(|g| g.inner()) else {
        crate::base::fatal::throw("a thread without its packet")
    };
    // SAFETY: `start` gave the G a reference to the `Inner` of a `Packet`, and the G keeps it until
    // `release_inner`.
    let packet = unsafe { inner.cast::<Packet>().as_ref() };
    match result {
        Ok(result) => {
            packet.result.store(result, Relaxed);
            // ORDER: Release; pairs with the Acquire in `join`.
            packet.inner.flags.fetch_or(HAS_RESULT, Release);
        }
        // The payload's destructor is user code, which may panic or wait.
        Err(payload) => std::mem::forget(payload),
    }
    thread_locals::end();
    ended(handle);
    thread_locals::end(); // what `ended` has touched
    packet.slot.complete();
    release_inner();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_a_result_answers_its_join() {
        crate::run(|| {
            let thread = Unstarted::new();
            let joiner = thread.joiner();
            thread
                .start(8, 1 << 16, || crate::goexit(), |_| ())
                .unwrap();
            assert_eq!(joiner.join(), None);
            assert!(joiner.is_finished());
        });
    }

    #[test]
    fn a_wait_ends_by_its_time_or_with_the_goroutine() {
        let wait = |joiner: &Thread, go: crate::chan::Sender<()>| {
            joiner.wait(Duration::from_millis(5));
            assert!(!joiner.is_finished());
            drop(go);
            while !joiner.is_finished() {
                joiner.wait(Duration::from_secs(3_600));
            }
            assert_eq!(joiner.join(), Some(3));
        };
        crate::run(|| {
            for on_a_thread in [false, true] {
                let (go, gone) = crate::chan::unbounded::<()>();
                let thread = Unstarted::new();
                let joiner = thread.joiner();
                let body = move || gone.recv().map_or(3, |()| 4);
                thread.start(8, 1 << 16, body, |_| ()).unwrap();
                match on_a_thread {
                    false => wait(&joiner, go),
                    true => std::thread::scope(|scope| {
                        scope.spawn(|| wait(&joiner, go));
                    }),
                }
            }
        });
    }

    #[test]
    fn a_second_join_finds_nothing() {
        crate::run(|| {
            let thread = Unstarted::new();
            let joiner = thread.joiner();
            thread.start(8, 1 << 16, own_handle, |_| ()).unwrap();
            assert_eq!(joiner.join(), Some(8));
            assert_eq!(joiner.join(), None);
        });
    }

    #[test]
    fn outside_a_goroutine_nothing_is_started() {
        assert!(Unstarted::new().start(8, 1 << 16, || 0, |_| ()).is_err());
        crate::run(|| {
            assert!(Unstarted::new().start(8, usize::MAX, || 0, |_| ()).is_err());
        });
    }

    #[test]
    fn the_drop_of_the_runtime_answers_the_join_of_a_plain_thread() {
        let runtime = crate::Runtime::builder().build().unwrap();
        let joiner = runtime.run(|| {
            let thread = Unstarted::new();
            let joiner = thread.joiner();
            let wait = || {
                crate::thread::park();
                1
            };
            thread.start(8, 1 << 16, wait, |_| ()).unwrap();
            joiner
        });
        assert!(!joiner.is_finished());
        drop(runtime);
        assert_eq!(joiner.join(), None);
    }
}
