//! The packet in which a goroutine's result travels to its join.
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

use std::cell::UnsafeCell;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::task::{Context, Poll};

use super::finish::{catch_last_panic, report_abort};
use super::scope::ScopeData;
use super::{Exited, Result, Thread, exited};
use crate::sched::Sched;
use crate::sched::life::thread_locals;
use crate::sched::model::current::{assert_user_context, current_g};
use crate::sched::model::g::{Task, WaitReason};
use crate::sched::spawn::Spawn;
use crate::sched::waiting::handle::{Fate, Inner, InnerRef, Whole};
use crate::sched::waiting::sleeper::SleeperMark;
use crate::sched::waiting::wait_slot::{Awaiter, SlotKind, WaitSlot, Waking, enter_to_wake};

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

// Everything but the result may be shared between threads and borrows nothing. When the packet is
// dropped the result is gone: the joiner took it, or the second of FINISHED and DETACHED dropped it.
// SAFETY: `repr(C)`, and `new` makes the first field with `Inner::new::<Packet<T>>`. The flags give
// the result to one thread at a time, and the result is `Send` (`spawn_raw`).
unsafe impl<T> Whole for Packet<T> {
    fn give_up(&self) -> Option<Arc<Awaiter>> {
        // ORDER: AcqRel; pairs with `finish`: a result that is already there stays.
        let given_up = |flags| (flags & FINISHED == 0).then_some(flags | GIVEN_UP);
        let _ = self.inner.flags.fetch_update(AcqRel, Acquire, given_up);
        let awaiter = self.slot.complete_awaited(&self.waking);
        self.waking.take().or(awaiter)
    }

    fn tell_scope(&self, fate: Fate) {
        match (fate, &self.scope) {
            (Fate::NeverRan(_), Some(_)) => self.leave_scope(),
            (Fate::Lost, Some(scope)) if !self.has_left() => scope.lose(),
            _ => {}
        }
    }

    fn scope(&self) -> *const WaitSlot {
        match &self.scope {
            Some(scope) if !self.has_left() => scope.slot(),
            _ => ptr::null(),
        }
    }
}

impl<T> Packet<T> {
    fn new(name: Option<Box<str>>, scope: Option<Arc<ScopeData>>) -> Packet<T> {
        Packet {
            inner: Inner::new::<Packet<T>>(name),
            slot: WaitSlot::new(),
            waking: Waking::new(),
            result: UnsafeCell::new(None),
            scope,
        }
    }

    /// Stores the result and wakes the waiter. In user context.
    ///
    /// # Safety
    /// The caller is the goroutine, and calls this once.
    unsafe fn finish(&self, result: Result<T>) {
        // SAFETY: before FINISHED only the goroutine accesses the result.
        unsafe { *self.result.get() = Some(result) };
        // ORDER: AcqRel; pairs with the handle's DETACHED: the later side sees the result and drops
        // it.
        let detached = self.inner.flags.fetch_or(FINISHED, AcqRel) & DETACHED != 0;
        if detached {
            let dropped = catch_last_panic(|| self.drop_result());
            if let (false, Some(scope)) = (dropped, &self.scope) {
                scope.note_panic();
            }
        }
        thread_locals::end();
        let awaiter = {
            let _rt = enter_to_wake();
            let awaiter = self.slot.complete_awaited(&self.waking);
            self.leave_scope();
            awaiter
        };
        if let Some(awaiter) = awaiter {
            catch_last_panic(|| awaiter.wake());
            catch_last_panic(|| drop((self.waking.take(), awaiter)));
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
        unsafe { self.thread.inner().as_ptr().cast::<Packet<T>>().as_ref() }
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
            && g.inner() == Some(self.thread.inner().as_ptr())
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
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T>> {
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

/// Starts a goroutine with a packet for its result.
///
/// # Safety
/// What `F` and `T` borrow outlives the goroutine. A scope guarantees that by waiting for it.
#[inline]
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
    let packet = InnerRef::new(Packet::<T>::new(name, scope.clone()));
    let handle = RawHandle {
        thread: Thread::new(packet),
        awaiter: None,
        marker: PhantomData,
    };
    if let Some(scope) = &scope {
        scope.enter();
    }
    let how = Spawn {
        site,
        class,
        thread: Some(handle.thread.inner()),
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
            Err(error)
        }
    }
}

/// The last step of a joinable goroutine. Its G keeps the reference until the end. So if a
/// destructor waits and the runtime is dropped meanwhile, the drop finds the packet.
fn deliver<T>(result: Result<T>) {
    report_abort(&result);
    catch_last_panic(|| {
        if let Some(inner) = current_g().and_then(|g| g.inner()) {
            // SAFETY: `spawn_raw::<_, T>` made it as a `Packet<T>`, and the G holds a reference.
            let packet = unsafe { inner.cast::<Packet<T>>().as_ref() };
            // SAFETY: this is the goroutine's last step.
            unsafe { packet.finish(result) };
        }
    });
    super::release_inner();
}
