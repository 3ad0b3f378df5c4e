//! The slot for one waiter, for goroutines and plain threads alike: how `join`, `scope` and `run` wait.

use std::ffi::c_void;

use super::g::{G, WaitReason};
use super::note::Note;
use super::park::{WaitArg, WaitOps, park, ready};
use super::ptr::{Gp, Ptr};
use super::slot::SlotWord;
use crate::context::current_g;

/// Marks a waiter that is a thread's note; a G's address has the bit clear.
const THREAD: usize = 2;

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

    /// It happens: whoever waits is woken. The slot may be freed by then.
    pub(crate) fn complete(&self) {
        let Some(waiter) = self.word.complete() else {
            return;
        };
        if waiter & THREAD != 0 {
            // SAFETY: the sleeper's note lives until it is woken, which only this call does.
            unsafe { &*((waiter & !THREAD) as *const Note) }.wakeup();
        } else {
            // SAFETY: GF, G4: the waiter is a parked G; the swap made its wake-up ours.
            unsafe {
                if let Some(g) = Ptr::from_raw(waiter as *mut G) {
                    ready(g);
                }
            }
        }
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
