//! [`WakeList`]: waiters whose wait was ended under a lock. They are woken after the lock is
//! dropped.
//!
//! A waiter that is woken under the lock would run into it at once.

use std::mem::ManuallyDrop;
use std::ptr;

use crate::sched::Sched;
use crate::sched::model::g::GQueue;
use crate::sched::model::gstatus::Status;
use crate::sched::model::ptr::Gp;
use crate::sched::park::{Entered, enter, ready_in};
use crate::sched::waiting::sleeper::Sleeper;
use crate::sched::waiting::waitq::{Link, NodePtr, WaitEnd, pass_on};

/// The sleepers to be woken, in the order in which they were claimed.
#[must_use = "the sleepers must be woken"]
pub(crate) struct WakeList {
    /// The first one, apart: mostly there is no other.
    first: Option<Sleeper>,
    /// The others, linked through the nodes that they were claimed by. They sleep until the list
    /// wakes them, so these nodes stay (G4).
    head: Link,
    tail: Link,
}

impl WakeList {
    pub(crate) const fn new() -> WakeList {
        WakeList {
            first: None,
            head: None,
            tail: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(super) fn push(&mut self, node: NodePtr, sleeper: Sleeper) {
        if self.first.is_none() {
            self.first = Some(sleeper);
            return;
        }
        node.waiter().asleep.set(Some(sleeper));
        node.next.set(None);
        match self.tail {
            Some(tail) => tail.next.set(Some(node)),
            None => self.head = Some(node),
        }
        self.tail = Some(node);
    }

    /// Takes the next one out, after the first.
    fn pop_other(&mut self) -> Option<Sleeper> {
        let node = self.head?;
        self.head = node.next.get();
        node.waiter().asleep.replace(None)
    }

    /// Wakes them. Without locks; inside or outside the runtime.
    #[inline]
    pub(crate) fn wake(self) {
        if self.first.is_some() {
            self.wake_in(&enter());
        }
    }

    /// As [`WakeList::wake`], from inside.
    #[inline]
    pub(crate) fn wake_in(self, rt: &Entered) {
        let mut list = ManuallyDrop::new(self);
        let Some(first) = list.first.take() else {
            return;
        };
        wake_one(rt, first);
        if list.head.is_some() {
            list.wake_others(rt);
        }
    }

    /// As [`WakeList::wake_in`], but goroutines of `sched` are made Runnable and put into `due`:
    /// the caller queues them.
    pub(crate) fn wake_into(self, rt: &Entered, sched: &Sched, due: &mut GQueue) {
        let mut list = ManuallyDrop::new(self);
        while let Some(sleeper) = list.first.take().or_else(|| list.pop_other()) {
            sleeper.wake(|g| {
                if !ptr::eq(g.sched(), sched) {
                    return ready_in(rt, g);
                }
                if sched.is_dead() {
                    return pass_on(g, WaitEnd::Woken);
                }
                g.status.transition(Status::Waiting, Status::Runnable);
                due.push_back(g);
            });
        }
    }

    /// Calls `ready` with each of them, instead of waking it. All are goroutines.
    pub(super) fn wake_with(self, mut ready: impl FnMut(Gp)) {
        let mut list = ManuallyDrop::new(self);
        while let Some(sleeper) = list.first.take().or_else(|| list.pop_other()) {
            sleeper.wake(&mut ready);
        }
    }

    #[cold]
    fn wake_others(&mut self, rt: &Entered) {
        while let Some(sleeper) = self.pop_other() {
            wake_one(rt, sleeper);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_late(self) {
        self.wake();
    }
}

/// Not in line: most lists are empty, and their owners are many.
#[inline(never)]
fn wake_one(rt: &Entered, sleeper: Sleeper) {
    sleeper.wake(|g| ready_in(rt, g));
}

/// A claimed waiter must be woken, whichever way the claimer leaves.
impl Drop for WakeList {
    #[inline]
    fn drop(&mut self) {
        if self.first.is_some() {
            std::mem::replace(self, WakeList::new()).wake_late();
        }
    }
}
