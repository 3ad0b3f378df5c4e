//! The slot for one waiter, for goroutines and plain threads alike: how `join`, `scope` and `run` wait, and how a task of some
//! executor awaits a goroutine.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::task::Waker;

use super::park::{Entered, WaitArg, WaitOps, enter, park, ready};
use crate::base::note::Note;
use crate::sched::model::current::{assert_user_context, current_g};
use crate::sched::model::g::{G, WaitReason};
use crate::sched::model::ptr::{Gp, Ptr};
use crate::sched::model::slot::SlotWord;

/// Marks a waiter that is a thread's note; a G's address has the bit clear.
const THREAD: usize = 2;
/// Marks a waiter that is an [`Awaiter`]. Asked for after THREAD: a note's own address may have the bit.
const TASK: usize = 4;

/// A task of some executor, by its waker, which is user code (D9).
pub(crate) struct Awaiter {
    waker: Waker,
    /// Link of [`Awaiters`].
    next: AtomicPtr<Awaiter>,
}

impl Awaiter {
    /// Calls the waker. In user context, as is the drop of the last reference.
    pub(crate) fn wake(&self) {
        assert_user_context();
        self.waker.wake_by_ref();
    }
}

/// Tasks that are woken when this is dropped, in user context.
pub(crate) struct Awaiters(*mut Awaiter);

// SAFETY: D9, it owns a reference to each of its awaiters, which are Send and Sync.
unsafe impl Send for Awaiters {}

impl Awaiters {
    pub(crate) const fn new() -> Awaiters {
        Awaiters(ptr::null_mut())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_null()
    }

    /// Adds one; it is in no other list.
    pub(crate) fn push(&mut self, awaiter: Arc<Awaiter>) {
        awaiter.next.store(self.0, Relaxed);
        self.0 = Arc::into_raw(awaiter).cast_mut();
    }

    fn pop(&mut self) -> Option<Arc<Awaiter>> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: D9, the list's own reference.
        let awaiter = unsafe { Arc::from_raw(self.0) };
        self.0 = awaiter.next.load(Relaxed);
        Some(awaiter)
    }
}

impl Drop for Awaiters {
    fn drop(&mut self) {
        while let Some(awaiter) = self.pop() {
            // A waker that panics is one task's affair; the others are woken all the same.
            let woken = catch_unwind(AssertUnwindSafe(|| {
                awaiter.wake();
                drop(awaiter);
            }));
            std::mem::forget(woken);
        }
    }
}

/// Where the task that a goroutine wakes is kept until it is woken. The goroutine may be abandoned before: then whoever drops its
/// runtime finds the task here. A task that is woken twice does not mind.
pub(crate) struct Waking(AtomicPtr<Awaiter>);

impl Waking {
    pub(crate) const fn new() -> Waking {
        Waking(AtomicPtr::new(ptr::null_mut()))
    }

    fn keep(&self, awaiter: &Arc<Awaiter>) {
        let awaiter = Arc::into_raw(Arc::clone(awaiter));
        // ORDER: Release; pairs with the Acquire of `take`.
        self.0.store(awaiter.cast_mut(), Release);
    }

    pub(crate) fn take(&self) -> Option<Arc<Awaiter>> {
        // ORDER: Acquire; pairs with the Release of `keep`.
        let awaiter = self.0.swap(ptr::null_mut(), Acquire);
        // SAFETY: D2, the reference that `keep` made; the swap made it ours.
        (!awaiter.is_null()).then(|| unsafe { Arc::from_raw(awaiter) })
    }
}

/// For one who takes a waiter, whom nobody else will wake then: a goroutine that has lost its P leaves its thread when it enters
/// the runtime, and may be abandoned there when the runtime is dropped. So it enters before. A plain thread cannot be lost.
#[inline]
pub(crate) fn enter_to_wake() -> Option<Entered> {
    current_g().map(|_| enter())
}

/// An event that happens once and has at most one waiter.
pub(crate) struct WaitSlot {
    word: SlotWord,
}

impl WaitSlot {
    pub(crate) fn new() -> WaitSlot {
        WaitSlot {
            word: SlotWord::new(),
        }
    }

    /// Whether it has happened.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.word.is_done()
    }

    /// Waits until it has happened, or until the goroutine is asked to unwind: false then, and the caller
    /// unwinds. Blocks the goroutine, or the thread if this is none.
    pub(crate) fn wait(&self, kind: &'static SlotKind) -> bool {
        match current_g() {
            Some(g) => {
                if self.is_done() || g.is_cancelled() {
                    return self.is_done();
                }
                self.park(kind);
            }
            None => {
                let note = Note::new();
                if self.word.commit(&raw const note as usize | THREAD) {
                    note.sleep();
                }
            }
        }
        self.is_done()
    }

    /// Waits through every request to unwind: what it guards must not be left before.
    pub(crate) fn wait_always(&self, kind: &'static SlotKind) {
        while !self.is_done() {
            match current_g() {
                Some(_) => self.park(kind),
                None => {
                    self.wait(kind);
                }
            }
        }
    }

    fn park(&self, kind: &'static SlotKind) {
        // SAFETY: PK, `kind`'s functions take a WaitSlot, and `self` is borrowed for the whole wait.
        unsafe { park(&kind.0, (&raw const *self).cast()) };
    }

    /// Has `waker` called when it happens, and no other that was given before; `awaiter` is where that one is. True: it has
    /// happened, and no waker is called. In user context.
    pub(crate) fn poll(&self, awaiter: &mut *const Awaiter, waker: &Waker) -> bool {
        if self.is_done() {
            *awaiter = ptr::null(); // gone with the event
            return true;
        }
        let mut task = self.take_back(awaiter);
        match task.as_mut().and_then(Arc::get_mut) {
            Some(task) => task.waker.clone_from(waker),
            None => {
                task = Some(Arc::new(Awaiter {
                    waker: waker.clone(),
                    next: AtomicPtr::new(ptr::null_mut()),
                }));
            }
        }
        let Some(task) = task.map(Arc::into_raw) else {
            unreachable!("there is one")
        };
        if self.word.commit(task as usize | TASK) {
            *awaiter = task;
            return false;
        }
        // SAFETY: just let go, and refused: nobody else has seen it.
        drop(unsafe { Arc::from_raw(task) });
        true
    }

    /// Takes back what [`WaitSlot::poll`] left, if it is still there.
    pub(crate) fn take_back(&self, awaiter: &mut *const Awaiter) -> Option<Arc<Awaiter>> {
        let task = std::mem::replace(awaiter, ptr::null());
        let is_ours = !task.is_null() && self.word.withdraw(task as usize | TASK);
        // SAFETY: `poll` put a reference there; who takes it out of the word owns it.
        is_ours.then(|| unsafe { Arc::from_raw(task) })
    }

    /// It happens: whoever waits is woken. The slot may be freed by then. For slots that no task awaits.
    pub(crate) fn complete(&self) {
        let _rt = enter_to_wake();
        if let Some(awaiter) = self.take_waiter() {
            std::mem::forget(awaiter);
            crate::base::fatal::throw("a task where none can be");
        }
    }

    /// It happens: the goroutine or thread that waits is woken; a task that awaits it is the caller's to wake, in user context. By
    /// one who has [entered](enter_to_wake).
    #[must_use = "who awaits must be woken"]
    pub(crate) fn complete_awaited(&self, waking: &Waking) -> Option<Arc<Awaiter>> {
        let awaiter = self.take_waiter();
        if let Some(awaiter) = &awaiter {
            waking.keep(awaiter);
        }
        awaiter
    }

    fn take_waiter(&self) -> Option<Arc<Awaiter>> {
        let waiter = self.word.complete()?;
        if waiter & THREAD != 0 {
            // SAFETY: the sleeper's note lives until it is woken, which only this call does.
            unsafe { &*((waiter & !THREAD) as *const Note) }.wakeup();
        } else if waiter & TASK != 0 {
            // SAFETY: `poll` put a reference there; the swap made it ours.
            return Some(unsafe { Arc::from_raw((waiter & !TASK) as *const Awaiter) });
        } else {
            // SAFETY: GF, G4: the waiter is a parked G; the swap made its wake-up ours.
            unsafe {
                if let Some(g) = Ptr::from_raw(waiter as *mut G) {
                    ready(g);
                }
            }
        }
        None
    }
}

/// A reason to wait on a slot.
pub(crate) struct SlotKind(WaitOps);

impl SlotKind {
    pub(crate) const fn new(reason: WaitReason) -> SlotKind {
        SlotKind(WaitOps {
            reason,
            arg: WaitArg::Slot,
            is_open: true,
            commit,
            withdraw,
            pass_on: None,
        })
    }
}

unsafe fn commit(g: Gp, slot: *const c_void) -> bool {
    // SAFETY: PK, the slot outlives the wait; until the commit succeeds nobody else can end it.
    let slot = unsafe { &*slot.cast::<WaitSlot>() };
    slot.word.commit(g.as_ptr() as usize)
}

unsafe fn withdraw(g: Gp, slot: *const c_void) -> bool {
    // SAFETY: G6, the waiter is held by the Scan bit, and it keeps the slot alive while it waits.
    let slot = unsafe { &*slot.cast::<WaitSlot>() };
    slot.word.withdraw(g.as_ptr() as usize)
}
