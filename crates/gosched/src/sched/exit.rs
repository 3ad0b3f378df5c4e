//! A goroutine's first and last steps.
//!
//! It begins in `goroutine_entry`, on its own stack, inside the runtime. It leaves the runtime,
//! runs its closure (which catches panics and delivers the result), and enters again. It ends in
//! `goexit0`, on g0, which gives the stack and the G to the P's caches.

use std::sync::atomic::Ordering::Relaxed;

use super::Sched;
use super::park::{drop_g, enter_m, left_switch, mcall};
use super::schedule::Next;
use super::spawn::CREDITS;
use crate::arch::Entry;
use crate::sched::life::thread_locals::settle;
use crate::sched::model::current::{assert_user_context, current_m};
use crate::sched::model::gstatus::Status;
use crate::sched::model::p::{GFREE_KEEP, GFREE_MAX};
use crate::sched::model::ptr::Gp;
use crate::sched::worker::{G0, Worker};

/// Where every goroutine begins.
pub(crate) struct Begin;

impl Entry for Begin {
    /// The first function on every goroutine's stack; called by the trampoline, never returns.
    extern "C" fn goroutine_entry() {
        let Some((m, g)) = current_m().and_then(|m| Some((m, m.curg()?))) else {
            crate::base::fatal::throw("a goroutine's entry off an M")
        };
        // SAFETY: D3, the trampoline calls this once per goroutine, before its closure runs.
        let Some(task) = (unsafe { g.take_task() }) else {
            crate::base::fatal::throw("a goroutine without a closure")
        };
        left_switch(m); // a first run does not yield
        settle(m, g);
        assert_user_context();
        task.run();
        if let Some(m) = current_m() {
            let m = enter_m(m);
            mcall(m, goexit0);
        }
        crate::base::fatal::throw("a dead goroutine was run")
    }
}

fn goexit0(sched: &Sched, g0: &mut G0, g: Gp) -> Next {
    let was_locked = g.locked_ext.get() != 0;
    g.status.transition(Status::Running, Status::Dead);
    drop_g(g0.m(), g);
    super::locked::forget(g0.m(), g);
    let Some(w) = g0.worker() else {
        // Its runtime was dropped while it was in a call, and abandoned what it had. The thread
        // ends.
        sched.outside.ends.add_shared(1);
        return Next::Schedule;
    };
    w.p().counters.ends.add(1);
    sched.give_stack(w, g);
    sched.free_g(w, g);
    if was_locked {
        Next::EndThread
    } else {
        Next::Schedule
    }
}

impl Sched {
    /// The stack goes to the P's cache, as the most recently used one, and its reservation to the
    /// P.
    #[inline]
    fn give_stack(&self, w: Worker<'_>, g: Gp) {
        let Some(stack) = g.stack() else { return };
        g.set_stack(None);
        if stack.class != self.stack_class {
            self.arena.give(stack);
            self.arena.unreserve(stack.class, 1);
            return;
        }
        let spill = |stacks: &[_]| self.arena.give_batch(stacks);
        w.local().stacks.give(stack, spill);
        self.give_credit(w);
    }

    /// Gives a reservation of the default class to the P.
    #[inline]
    pub(crate) fn give_credit(&self, w: Worker<'_>) {
        let credits = &w.local().credits;
        credits.set(credits.get() + 1);
        if credits.get() > 2 * CREDITS {
            credits.set(credits.get() - CREDITS);
            self.arena.unreserve(self.stack_class, CREDITS);
        }
    }

    /// The G goes to the P's cache. At 64 about half of them go to the runtime's (GF).
    #[inline]
    pub(crate) fn free_g(&self, w: Worker<'_>, g: Gp) {
        g.cancelled.store(0, Relaxed);
        g.started.store(0, Relaxed);
        g.calls.set(0);
        debug_assert_eq!((g.locked_ext.get(), g.locked_int.get()), (0, 0));
        let gfree = &w.local().gfree;
        gfree.push(g);
        if gfree.len() >= GFREE_MAX {
            self.blocks.give(std::iter::from_fn(|| {
                (gfree.len() >= GFREE_KEEP).then(|| gfree.pop()).flatten()
            }));
        }
    }
}
