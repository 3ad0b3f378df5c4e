//! Dropping a runtime in any state (D2).
//!
//! 1. New goroutines are refused; every M is told to end when it next schedules.
//! 2. Sleeping Ms end at once. Those that run user code get a moment to come by; after that they are left to
//!    themselves: their thread ends when their goroutine next wants to wait.
//! 3. Every goroutine that has not ended is given up: taken off what it waits on, whoever joins it gets an answer.
//!    One that never started has its closure dropped here, outside all locks. The stack of one that has started
//!    may be pointed into, so it stays, and with it the whole runtime's memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use super::gstatus::Status;
use super::park::{assert_user_context, enter};
use super::ptr::Gp;
use super::{Sched, registry};
use crate::os::{self, PageVec};
use crate::thread::inner::Inner;

/// How long a drop waits for Ms in user code to come by.
const GRACE_NS: u64 = 20_000_000;
const POLL_NS: u64 = 200_000;

/// The first threads could not be started: what was started ends.
pub(crate) fn abandon_start(sched: &Arc<Sched>) {
    stop_threads(sched);
    registry::remove(sched);
}

/// Ends a runtime. In user context, on any thread, also on one of its own goroutines.
pub(crate) fn drop_runtime(sched: Arc<Sched>) {
    assert_user_context();
    let own = u32::from(sched.own_m().is_some());
    let left = stop_threads(&sched).saturating_sub(own);
    sched.leaked_ms.store(left + own, Relaxed);
    let gave_up = give_up_goroutines(&sched);
    registry::remove(&sched);
    while sched.arena.scavenge(4096) {}
    if gave_up > 0 {
        sched.leaked_gs.store(gave_up, Relaxed);
        LEAKED.fetch_add(gave_up as u64, Relaxed);
        std::mem::forget(sched);
    } else if left + own == 0 {
        sched.retire_all();
    }
}

static LEAKED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Goroutines given up by drops of runtimes in this process.
pub(crate) fn leaked_goroutines() -> u64 {
    LEAKED.load(Relaxed)
}

/// Tells every thread to end and waits for those that can; returns how many are left.
fn stop_threads(sched: &Sched) -> u32 {
    let _rt = enter();
    let own = u32::from(sched.own_m().is_some());
    sched.closed.store(true, SeqCst);
    let core = sched.core.lock();
    sched.dead.store(true, SeqCst);
    drop(core);
    let deadline = os::monotonic_ns() + GRACE_NS;
    loop {
        wake_everybody(sched);
        let alive = sched.creator.alive.0.load(Acquire);
        if alive <= own || os::monotonic_ns() > deadline && only_user_code_is_left(sched) {
            return alive;
        }
        let until = os::monotonic_ns() + POLL_NS;
        sched.creator.alive.wait(alive, Some(until));
    }
}

fn wake_everybody(sched: &Sched) {
    sched.sysmon.wake();
    sched.creator.kick();
    sched.poller.wake();
    let mut core = sched.core.lock();
    while let Some(m) = sched.get_idle_m(&mut core) {
        m.park.wakeup();
    }
    let ms = std::iter::successors(core.allm, |m| m.alllink.get());
    for m in ms {
        m.preempt.store(true, Relaxed);
        if m.lockedg.load(Relaxed).is_some() {
            m.park.wakeup(); // asleep without its goroutine, or about to find a set note and end
        }
    }
}

/// Whether every thread still there is an M that runs user code: only then there is nothing to wait for.
fn only_user_code_is_left(sched: &Sched) -> bool {
    let core = sched.core.lock();
    let mut ms = std::iter::successors(core.allm, |m| m.alllink.get());
    let inside = ms.any(|m| m.in_rt.load(Acquire) > 0 && Some(m) != sched.own_m());
    !inside && core.creating == 0 && sched.creator.alive.0.load(Acquire) == core.mcount
}

/// Gives up every goroutine that has not ended; returns how many had a stack.
fn give_up_goroutines(sched: &Sched) -> u32 {
    let mut gs: PageVec<Gp> = PageVec::new();
    sched.blocks.for_each(|g| {
        if !matches!(g.status.get(), Status::Dead | Status::Idle) && gs.push(g).is_err() {
            super::fatal::throw("no memory to give up a runtime's goroutines");
        }
    });
    let mut started = 0;
    for g in gs.as_slice() {
        if g.started.load(Acquire) != 0 {
            started += 1;
            withdraw(*g);
        } else if let Some((vtable, data)) = g.take_task() {
            // A destructor that panics ends its own goroutine's affairs, not this drop.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: D3, the goroutine never ran and never will; the closure is taken once.
                unsafe { (vtable.drop)(data) };
            }));
        }
        // ORDER: AcqRel; a goroutine that is just ending and this drop agree on who answers.
        if let Some(inner) = NonNull::new(g.thread.swap(ptr::null_mut(), AcqRel)) {
            // SAFETY: the swap made the goroutine's reference ours.
            unsafe { Inner::abandon(inner) };
        }
    }
    started
}

/// Takes a waiting goroutine off what it waits on; true: its wake-up is the caller's.
fn withdraw(g: Gp) -> bool {
    if !g.status.begin_scan(Status::Waiting) {
        return false;
    }
    let (ops, arg) = (g.wait_ops.get(), g.wait_arg.get());
    // SAFETY: G6, the Scan bit holds the goroutine, and it holds what it waits on.
    let ours = ops.is_some_and(|ops| unsafe { (ops.withdraw)(g, arg) });
    g.status.end_scan(Status::Waiting);
    ours
}

/// Unwinds every goroutine that waits, as `exit` does, and waits until all have ended or the time is up.
pub(crate) fn unwind_goroutines(sched: &Sched, deadline_ns: u64) {
    sched.closed.store(true, SeqCst);
    let own = u64::from(sched.own_m().is_some());
    loop {
        cancel_all(sched);
        if sched.goroutines() <= own || os::monotonic_ns() >= deadline_ns {
            return;
        }
        crate::thread::park_timeout(std::time::Duration::from_millis(1));
    }
}

fn cancel_all(sched: &Sched) {
    let _rt = enter();
    let me = crate::context::current_g();
    let mut gs: PageVec<Gp> = PageVec::new();
    sched.blocks.for_each(|g| {
        let live = !matches!(g.status.get(), Status::Dead | Status::Idle);
        if live && g.cancelled.load(Relaxed) == 0 && Some(g) != me {
            let _ = gs.push(g);
        }
    });
    for g in gs.as_slice() {
        g.cancelled.store(1, Relaxed);
        if withdraw(*g) {
            super::park::ready(*g);
        }
    }
}

impl Sched {
    /// Every thread is gone: the Ps give their stacks and Gs back, so that all memory can be freed.
    fn retire_all(&self) {
        let mut core = self.core.lock();
        for slot in &self.allp {
            if let Some(p) = slot.load(Relaxed) {
                self.retire_p(&mut core, p);
            }
        }
    }
}
