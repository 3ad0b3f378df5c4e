//! Dropping a runtime in any state (D2).
//!
//! 1. New goroutines are refused; every M is told to end when it next schedules.
//! 2. Sleeping Ms end at once. Those that run user code get a moment to come by; after that they are left to
//!    themselves: their thread ends when their goroutine next wants to wait.
//! 3. Every goroutine that has not ended is given up: taken off what it waits on, whoever joins it gets an answer.
//!    One that never started has its closure dropped here, outside all locks. The stack of one that has started
//!    may be pointed into, so it stays, and with it the whole runtime's memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::Duration;

use super::gstatus::Status;
use super::park::{assert_user_context, enter, no_preempt};
use super::ptr::Gp;
use super::{Sched, registry};
use crate::os::{self, PageVec};
use crate::thread::inner::Inner;

/// How long a drop waits for Ms in user code to come by.
const GRACE_NS: u64 = 20_000_000;
const POLL_NS: u64 = 200_000;
const SCAVENGE_STEP: usize = 4096;

/// The first threads could not be started: what was started ends.
pub(crate) fn abandon_start(sched: &Arc<Sched>) {
    stop_threads(sched);
    let _rt = enter();
    registry::remove(sched);
}

/// Ends a runtime. In user context, on any thread, also on one of its own goroutines.
pub(crate) fn drop_runtime(sched: Arc<Sched>) {
    assert_user_context();
    // The dropper may belong to a runtime that is being dropped, too: it finishes this first.
    let no_preempt = no_preempt("dropping a runtime");
    let left = stop_threads(&sched);
    let gs = live_goroutines(&sched, |_| true);
    answer_joins(&gs);
    drop(no_preempt);
    let gave_up = drop_unstarted_closures(&gs);
    {
        let _rt = enter();
        registry::remove(&sched);
        disown_threads(&sched);
        while sched.arena.scavenge(SCAVENGE_STEP) {}
    }
    sched.leaked_ms.store(left, Relaxed);
    if gave_up > 0 {
        sched.leaked_gs.store(gave_up, Relaxed);
        LEAKED.fetch_add(u64::from(gave_up), Relaxed);
        std::mem::forget(sched);
    }
}

static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Goroutines given up by drops of runtimes in this process.
pub(crate) fn leaked_goroutines() -> u64 {
    LEAKED.load(Relaxed)
}

/// Threads that are left may still wake goroutines of other runtimes: they count as foreign from now on.
fn disown_threads(sched: &Sched) {
    let mut tids: PageVec<i32> = PageVec::new();
    let core = sched.core.lock();
    for m in std::iter::successors(core.allm, |m| m.alllink.get()) {
        let _ = tids.push(m.tid.load(Relaxed));
    }
    drop(core);
    for tid in tids.as_slice() {
        registry::disown(*tid);
    }
}

/// Tells every thread to end and waits, outside the runtime, for those that can; returns how many are left.
fn stop_threads(sched: &Sched) -> u32 {
    let own = u32::from(sched.own_m().is_some());
    {
        let _rt = enter();
        let core = sched.core.lock();
        sched.closed.store(true, SeqCst);
        sched.dead.store(true, SeqCst);
        drop(core);
    }
    let deadline = os::monotonic_ns() + GRACE_NS;
    loop {
        let is_late = os::monotonic_ns() > deadline;
        let alive = {
            let _rt = enter();
            wake_everybody(sched);
            let alive = sched.creator.alive.0.load(Acquire);
            if alive <= own || is_late && only_user_code_is_left(sched) {
                return alive;
            }
            alive
        };
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
    let own = sched.own_m();
    let ms = std::iter::successors(core.allm, |m| m.alllink.get());
    for m in ms.filter(|m| Some(*m) != own) {
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

/// Takes every goroutine off what it waits on and answers whoever joins it.
fn answer_joins(gs: &PageVec<Gp>) {
    for g in gs.as_slice() {
        let _rt = enter();
        withdraw(*g);
        abandon(*g);
    }
}

/// Drops the closures of those that never started, after every answer: a destructor may join another one. Returns how
/// many had started.
fn drop_unstarted_closures(gs: &PageVec<Gp>) -> u32 {
    let mut started = 0;
    for g in gs.as_slice() {
        if g.started.load(Acquire) != 0 {
            started += 1;
        } else {
            drop_unstarted(*g);
        }
    }
    started
}

/// The goroutines that have not ended.
fn live_goroutines(sched: &Sched, mut wanted: impl FnMut(Gp) -> bool) -> PageVec<Gp> {
    let _rt = enter();
    let mut gs: PageVec<Gp> = PageVec::new();
    sched.blocks.for_each(|g| {
        let is_live = !matches!(g.status.get(), Status::Dead | Status::Idle);
        if is_live && wanted(g) && gs.push(g).is_err() {
            super::fatal::throw("no memory for the list of a runtime's goroutines");
        }
    });
    gs
}

/// Answers whoever joins a goroutine of a dead runtime. If no thread runs it, none ever will, and a scope may end without
/// it; one that never started is over only when its closure is dropped. Inside the runtime.
pub(crate) fn abandon(g: Gp) {
    let is_over = g.started.load(Acquire) != 0 && g.status.get() != Status::Running;
    if let Some(inner) = g.share_inner() {
        // SAFETY: D2, on a dead runtime only what is Running runs; the reference is ours.
        unsafe {
            Inner::abandon(inner, is_over);
            Inner::release(inner);
        }
    }
}

fn drop_unstarted(g: Gp) {
    if let Some((vtable, data)) = g.take_task() {
        // A destructor that panics ends its own goroutine's affairs, not this drop.
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: D3, the goroutine never ran and never will; the closure is taken once.
            unsafe { (vtable.drop)(data) };
        }));
        std::mem::forget(dropped);
    }
    let inner = {
        let _rt = enter();
        g.take_inner()
    };
    if let Some(inner) = inner {
        // SAFETY: D2, it never ran; the G's reference is ours.
        unsafe {
            Inner::abandon(inner, true);
            Inner::release(inner);
        }
    }
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

/// Asked to unwind; told so where it waited.
const ASKED: u8 = 1;
const TOLD: u8 = 2;

/// Unwinds every goroutine that waits, as `exit` does, and waits until all have ended or the time is up.
pub(crate) fn unwind_goroutines(sched: &Sched, deadline_ns: u64) {
    {
        let _rt = enter();
        let _core = sched.core.lock();
        sched.closed.store(true, SeqCst);
    }
    let own = u64::from(sched.own_m().is_some());
    loop {
        cancel_all(sched);
        if sched.goroutines() <= own || os::monotonic_ns() >= deadline_ns {
            return;
        }
        crate::thread::rest(Duration::from_millis(1));
    }
}

fn cancel_all(sched: &Sched) {
    let me = crate::context::current_g();
    let gs = live_goroutines(sched, |g| {
        g.cancelled.load(Relaxed) != TOLD && Some(g) != me
    });
    let _rt = enter();
    for g in gs.as_slice() {
        g.cancelled.store(ASKED, Relaxed);
        if withdraw(*g) {
            g.cancelled.store(TOLD, Relaxed);
            super::park::ready(*g);
        }
    }
}

impl Sched {
    /// The Ps give their stacks and Gs back, so that all memory can be freed. Every thread is gone.
    pub(super) fn retire_all(&self) {
        let _rt = enter();
        let mut core = self.core.lock();
        for slot in &self.allp {
            if let Some(p) = slot.load(Relaxed) {
                self.retire_p(&mut core, p);
            }
        }
    }
}
