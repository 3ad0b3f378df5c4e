//! [`WakeList`]: waiters whose wait was ended under a lock, and who are woken when it has been dropped.

use std::ptr;

use super::Sched;
use super::park::{Entered, enter, pass_on, ready_in};
use super::waitq::{THREAD, Waiter};
use crate::base::note::Note;
use crate::sched::model::g::{G, GQueue};
use crate::sched::model::gstatus::Status;
use crate::sched::model::ptr::Ptr;

/// Who is to be woken once the locks are dropped; in the order in which they were claimed.
#[must_use = "the woken must be woken"]
pub(crate) struct WakeList {
    /// The first one, apart: mostly there is no other.
    first: usize,
    /// The others, linked through their waiters.
    head: *const Waiter,
    tail: *const Waiter,
}

impl WakeList {
    pub(crate) const fn new() -> WakeList {
        WakeList {
            first: 0,
            head: ptr::null(),
            tail: ptr::null(),
        }
    }

    /// Whether nobody is to be woken.
    pub(crate) fn is_empty(&self) -> bool {
        self.first == 0
    }

    #[inline]
    pub(super) fn push(&mut self, waiter: &Waiter, asleep: usize) {
        if self.first == 0 {
            self.first = asleep;
            return;
        }
        waiter.asleep.set(asleep);
        waiter.next.set(ptr::null());
        // SAFETY: G4, those in the list sleep until `wake` wakes them.
        match unsafe { self.tail.as_ref() } {
            Some(tail) => tail.next.set(waiter),
            None => self.head = waiter,
        }
        self.tail = waiter;
    }

    /// Wakes them. Without locks; inside or outside the runtime.
    #[inline]
    pub(crate) fn wake(self) {
        if self.first != 0 {
            self.wake_in(&enter());
        }
    }

    /// As [`WakeList::wake`], from inside.
    #[inline]
    pub(crate) fn wake_in(self, rt: &Entered) {
        let list = std::mem::ManuallyDrop::new(self);
        if list.first != 0 {
            wake_one(rt, list.first);
        }
        if !list.head.is_null() {
            list.wake_others(rt);
        }
    }

    /// As [`WakeList::wake_in`]; this runtime's goroutines are made Runnable and queued by the caller.
    pub(crate) fn wake_into(self, rt: &Entered, sched: &Sched, due: &mut GQueue) {
        let list = std::mem::ManuallyDrop::new(self);
        let mut wake = |who: usize| {
            // SAFETY: GF, G4: as in `wake_one`.
            match unsafe { Ptr::<G>::from_raw(who as *mut G) } {
                Some(g) if who & THREAD == 0 && ptr::eq(g.sched(), sched) => {
                    if sched.is_dead() {
                        return pass_on(g);
                    }
                    g.status.transition(Status::Waiting, Status::Runnable);
                    due.push_back(g);
                }
                _ => wake_one(rt, who),
            }
        };
        if list.first != 0 {
            wake(list.first);
        }
        let mut at = list.head;
        // SAFETY: G4, as in `wake_others`.
        while let Some(waiter) = unsafe { at.as_ref() } {
            at = waiter.next.get();
            wake(waiter.asleep.get());
        }
    }

    #[cold]
    fn wake_others(&self, rt: &Entered) {
        let mut at = self.head;
        // SAFETY: G4, as above; the next one is read before this one is woken.
        while let Some(waiter) = unsafe { at.as_ref() } {
            at = waiter.next.get();
            wake_one(rt, waiter.asleep.get());
        }
    }
}

/// Whoever was claimed must be woken, whichever way the claimer leaves.
impl Drop for WakeList {
    #[inline]
    fn drop(&mut self) {
        if self.first != 0 {
            std::mem::replace(self, WakeList::new()).wake_late();
        }
    }
}

impl WakeList {
    #[cold]
    #[inline(never)]
    fn wake_late(self) {
        self.wake();
    }
}

#[inline]
fn wake_one(rt: &Entered, who: usize) {
    if who & THREAD != 0 {
        // SAFETY: the sleeper's note lives until it is woken, which only the claimer does.
        unsafe { &*((who & !THREAD) as *const Note) }.wakeup();
    // SAFETY: GF, G4: a parked G; the claim made its wake-up ours.
    } else if let Some(g) = unsafe { Ptr::from_raw(who as *mut G) } {
        ready_in(rt, g);
    }
}
