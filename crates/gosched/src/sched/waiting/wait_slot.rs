//! [`WaitSlot`]: an event that happens once and has at most one waiter.
//!
//! `join`, `scope` and `run` wait on one, as goroutines and as plain threads; a task of an executor
//! awaits a goroutine on one. The protocol is that of a [`WaitWord`] with one case.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use crate::base::arc_cell::ArcCell;
use crate::base::note::Note;
use crate::sched::model::current::{assert_user_context, current_g};
use crate::sched::model::g::WaitReason;
use crate::sched::park::{Entered, enter, park, ready};
pub(crate) use crate::sched::waiting::sleeper::Awaiter;
use crate::sched::waiting::sleeper::{Sleeper, SleeperMark};
use crate::sched::waiting::timed::{arm, wait_timed, yield_until};
use crate::sched::waiting::wait_ops::{WaitOps, WaitView};
use crate::sched::waiting::wait_word::WaitWord;

impl Awaiter {
    /// Calls the waker. In user context; the last reference is dropped there as well.
    pub(crate) fn wake(&self) {
        assert_user_context();
        self.waker.wake_by_ref();
    }
}

/// Tasks that are woken when this is dropped, in user context.
pub(crate) struct Awaiters(Option<Arc<Awaiter>>);

impl Awaiters {
    pub(crate) const fn new() -> Awaiters {
        Awaiters(None)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds a task that is in no other list.
    pub(crate) fn push(&mut self, awaiter: Arc<Awaiter>) {
        awaiter.next.put(self.0.take());
        std::mem::forget(self.0.replace(awaiter)); // None: nothing is dropped here (D9)
    }

    fn pop(&mut self) -> Option<Arc<Awaiter>> {
        let awaiter = self.0.take()?;
        std::mem::forget(std::mem::replace(&mut self.0, awaiter.next.take()));
        Some(awaiter)
    }
}

impl Drop for Awaiters {
    fn drop(&mut self) {
        while let Some(awaiter) = self.pop() {
            // A waker that panics concerns its task only: the other tasks are woken.
            let woken = catch_unwind(AssertUnwindSafe(|| {
                awaiter.wake();
                drop(awaiter);
            }));
            std::mem::forget(woken);
        }
    }
}

/// Where the task that a goroutine wakes is kept until it is woken. The goroutine may be abandoned
/// before that: then the drop of its runtime finds the task here. A second wake-up does no harm.
pub(crate) struct Waking(ArcCell<Awaiter>);

impl Waking {
    pub(crate) const fn new() -> Waking {
        Waking(ArcCell::new())
    }

    fn keep(&self, awaiter: &Arc<Awaiter>) {
        self.0.put(Some(Arc::clone(awaiter))); // an event happens once
    }

    pub(crate) fn take(&self) -> Option<Arc<Awaiter>> {
        self.0.take()
    }
}

/// Enters the runtime, on a goroutine, before it takes a sleeper out of a word. No other thread
/// wakes that sleeper. A goroutine that has lost its P leaves its thread when it enters, and may be
/// abandoned there by a drop of its runtime. So it enters before it takes. A plain thread is never
/// abandoned.
#[inline]
pub(crate) fn enter_to_wake() -> Option<Entered> {
    current_g().map(|_| enter())
}

/// An event that happens once and has at most one waiter.
pub(crate) struct WaitSlot {
    word: WaitWord,
}

impl WaitSlot {
    pub(crate) fn new() -> WaitSlot {
        WaitSlot {
            word: WaitWord::new(),
        }
    }

    /// Whether it has happened.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.word.is_done()
    }

    /// Waits until it has happened, or until the goroutine is asked to unwind. The latter returns
    /// false, and the caller unwinds. Blocks the goroutine, or the plain thread it is called on.
    pub(crate) fn wait(&self, kind: &'static SlotKind) -> bool {
        match current_g() {
            Some(g) => {
                if self.is_done() || g.is_cancelled() {
                    return self.is_done();
                }
                self.park(kind);
            }
            None => self.word.sleep_thread(),
        }
        self.is_done()
    }

    /// Waits through every request to unwind: what the event guards must not be left before.
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

    /// Waits until it has happened, or until the deadline (monotonic ns). It may return earlier if
    /// the goroutine is asked to unwind. Blocks the goroutine, or the plain thread it is called on.
    pub(crate) fn wait_until(&self, kind: &'static SlotKind, deadline_ns: u64) {
        if current_g().is_none() {
            self.sleep_thread_until(deadline_ns);
        } else if !wait_timed(&kind.timed, self, deadline_ns) {
            yield_until(deadline_ns, || self.is_done());
        }
    }

    fn sleep_thread_until(&self, deadline_ns: u64) {
        let note = Note::new();
        // SAFETY: the note stays in this frame until the word has refused it, until it was taken
        // back, or until its wake-up.
        let sleeper = || unsafe { Sleeper::thread(&note) };
        if self.word.commit(sleeper()).is_ok()
            && !note.sleep_until(deadline_ns)
            && !self.word.withdraw(&sleeper())
        {
            note.sleep(); // the event has the sleeper and will touch the note
        }
    }

    fn park(&self, kind: &'static SlotKind) {
        park(&kind.untimed, self);
    }

    /// Has `waker` called when it happens, in place of the waker of the last poll, whose task is
    /// `left`. True: it has happened, and no waker is called. In user context.
    pub(crate) fn poll(&self, left: &mut Option<SleeperMark>, waker: &Waker) -> bool {
        if self.is_done() {
            *left = None; // the event took it
            return true;
        }
        let mut task = self.take_back(left);
        match task.as_mut().and_then(Arc::get_mut) {
            Some(task) => task.waker.clone_from(waker),
            None => {
                task = Some(Arc::new(Awaiter {
                    waker: waker.clone(),
                    next: ArcCell::new(),
                }));
            }
        }
        let Some(task) = task else {
            unreachable!("there is one")
        };
        let sleeper = Sleeper::task(task);
        let mark = sleeper.mark();
        match self.word.commit(sleeper) {
            Ok(()) => {
                *left = Some(mark);
                false
            }
            Err(refused) => {
                drop(refused.into_task());
                true
            }
        }
    }

    /// Takes back the task that [`WaitSlot::poll`] left, if the event has not taken it.
    pub(crate) fn take_back(&self, left: &mut Option<SleeperMark>) -> Option<Arc<Awaiter>> {
        self.word.take_back(left.take()?)?.into_task().ok()
    }

    /// It happens: the waiter is woken. The slot may be freed by then. For slots that no task
    /// awaits.
    pub(crate) fn complete(&self) {
        let _rt = enter_to_wake();
        if let Some(sleeper) = self.word.complete() {
            sleeper.wake(ready);
        }
    }

    /// It happens: a goroutine or thread that waits is woken. A task that awaits it is returned,
    /// and the caller wakes it in user context. The caller has [entered](enter_to_wake).
    #[must_use = "a task that awaits must be woken"]
    pub(crate) fn complete_awaited(&self, waking: &Waking) -> Option<Arc<Awaiter>> {
        match self.word.complete()?.into_task() {
            Ok(task) => {
                waking.keep(&task);
                Some(task)
            }
            Err(sleeper) => {
                sleeper.wake(ready);
                None
            }
        }
    }
}

/// A reason to wait on a slot.
pub(crate) struct SlotKind {
    untimed: WaitOps<WaitSlot>,
    timed: WaitOps<WaitSlot>,
}

impl SlotKind {
    pub(crate) const fn new(reason: WaitReason) -> SlotKind {
        SlotKind {
            untimed: WaitOps {
                reason,
                is_open: true,
                commit: |g, slot| slot.word.commit(Sleeper::goroutine(g)).is_ok(),
                withdraw: |g, slot| slot.word.withdraw(&Sleeper::goroutine(g)),
                time_out: |_, _| false,
                view: |slot| WaitView::Slot(slot),
                pass_on: None,
            },
            timed: WaitOps {
                reason,
                is_open: false,
                commit: |g, slot| arm(g, || slot.word.commit(Sleeper::goroutine(g)).is_ok()),
                withdraw: |g, slot| slot.word.withdraw(&Sleeper::goroutine(g)),
                time_out: |g, slot| slot.word.withdraw(&Sleeper::goroutine(g)),
                view: |slot| WaitView::Slot(slot),
                pass_on: None,
            },
        }
    }
}
