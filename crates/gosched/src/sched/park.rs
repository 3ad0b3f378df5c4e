//! In and out of the runtime; park, ready, yield (PK, RD).
//!
//! *Inside the runtime* means `m.in_rt > 0`: user code does not run, the thread is not taken by surprise.
//! Public operations hold an [`Entered`] while they touch scheduler state. Leaving looks at the preempt
//! flag, so a goroutine that calls into the runtime at all can be asked to make room.
//!
//! Park, in order: the goroutine's registers are saved, then (on g0) its status becomes Waiting, then it is
//! detached from its M, then the unlock function runs. From that moment another thread may resume it, so
//! nothing on g0 touches it any more unless the unlock function refused.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::compiler_fence;

use super::Sched;
use super::g::WaitReason;
use super::gstatus::Status;
use super::lock::ranks;
use super::ptr::{Gp, Mp};
use super::schedule::Next;
use crate::context::{self, current_g, current_m};

/// What g0 does with a goroutine that has left its stack.
pub(crate) type Mcall = fn(&Sched, Mp, Gp) -> Next;

/// One way of waiting: what the runtime does with a goroutine that waits so, and with the thing it waits on.
/// Both functions run while the goroutine is off its stack; they may not block or run user code.
pub(crate) struct WaitOps {
    pub(crate) reason: WaitReason,
    /// Go's unlock function: publishes the parked goroutine to whoever will wake it. False: what it waits
    /// for has happened, it goes on at once.
    pub(crate) commit: unsafe fn(Gp, *const c_void) -> bool,
    /// Takes the goroutine back from the thing it waits on; true: the wake-up is the caller's now. Called with
    /// the Scan bit held, when the goroutine is to unwind or its runtime is dropped (D2).
    pub(crate) withdraw: unsafe fn(Gp, *const c_void) -> bool,
}

/// Being inside the runtime, until dropped.
pub(crate) struct Entered {
    is_m: bool,
}

/// Enters the runtime; on a thread outside every runtime it does nothing.
#[inline]
pub(crate) fn enter() -> Entered {
    match current_m() {
        Some(m) => {
            m.in_rt.store(m.in_rt.load(Relaxed) + 1, Relaxed);
            compiler_fence(std::sync::atomic::Ordering::SeqCst);
            Entered { is_m: true }
        }
        None => Entered { is_m: false },
    }
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        // The goroutine may have moved since `enter`: the M is read anew.
        if self.is_m
            && let Some(m) = current_m()
        {
            leave(m);
        }
    }
}

#[inline]
pub(crate) fn leave(m: Mp) {
    let depth = m.in_rt.load(Relaxed) - 1;
    m.in_rt.store(depth, Relaxed);
    compiler_fence(std::sync::atomic::Ordering::SeqCst);
    if depth == 0 && m.preempt.load(Relaxed) {
        leave_slow();
    }
}

#[cold]
#[inline(never)]
fn leave_slow() {
    if let Some(m) = current_m()
        && m.curg().is_some()
    {
        m.in_rt.store(1, Relaxed);
        m.preempt.store(false, Relaxed);
        m.p().counters.preempts.add(1);
        mcall(m, preempted_m);
        if let Some(m) = current_m() {
            m.in_rt.store(0, Relaxed);
        }
    }
}

/// D9: user code is about to run; it must not find itself inside the runtime.
#[inline]
pub(crate) fn assert_user_context() {
    if cfg!(debug_assertions) {
        ranks::assert_none("user code");
        if let Some(m) = current_m()
            && (m.in_rt.load(Relaxed) != 0 || context::current::on_g0(m))
        {
            super::fatal::throw("user code inside the runtime");
        }
    }
}

/// Leaves the goroutine's stack for g0, which calls `f` with it; returns when the goroutine is next run.
#[inline]
pub(crate) fn mcall(m: Mp, f: Mcall) {
    let Some(g) = m.curg() else {
        super::fatal::throw("mcall on g0")
    };
    debug_assert!(
        context::current::on_curg(m),
        "mcall off the goroutine's stack"
    );
    debug_assert_eq!(m.in_rt.load(Relaxed), 1, "a switch happens at depth 1");
    ranks::assert_none("switch");
    m.mcall.set(Some(f));
    context::suspend(g, m.g0_sp.get());
}

/// Parks the calling goroutine until [`ready`], or not at all if the commit refuses. Inside the runtime.
///
/// # Safety
/// `arg` is what `ops` works on and outlives the wait.
pub(crate) unsafe fn park(ops: &'static WaitOps, arg: *const c_void) {
    let Some(m) = current_m() else {
        super::fatal::throw("park off an M")
    };
    let Some(g) = m.curg() else {
        super::fatal::throw("park on g0")
    };
    super::locked::bind_if_panicking(m, g);
    g.set_waiting(ops.reason, m.sched().coarse_ms());
    g.wait_arg.set(arg);
    g.wait_ops.set(Some(ops));
    mcall(m, park_m);
}

fn park_m(_: &Sched, m: Mp, g: Gp) -> Next {
    m.p().counters.parks.add(1);
    let Some(ops) = g.wait_ops.get() else {
        super::fatal::throw("park without a way to wait")
    };
    let arg = g.wait_arg.get();
    g.status.transition(Status::Running, Status::Waiting);
    drop_g(m, g);
    // SAFETY: PK, the caller of `park` promised that `arg` belongs to `ops`.
    if unsafe { (ops.commit)(g, arg) } {
        return Next::Schedule;
    }
    g.status.transition(Status::Waiting, Status::Runnable);
    Next::Run(g)
}

/// Detaches the goroutine from its M (G2).
#[inline]
pub(crate) fn drop_g(m: Mp, g: Gp) {
    m.curg.store(None, Relaxed);
    g.m.store(None, Relaxed);
}

/// Makes a parked goroutine runnable. The caller has claimed its wake-up, alone. From anywhere: a goroutine
/// of the same runtime puts it into its P's `next`, anybody else onto the global queue; both wake a P.
pub(crate) fn ready(g: Gp) {
    let _rt = enter();
    let sched = g.sched();
    if sched.dead.load(Relaxed) {
        return; // D2: nobody runs there any more
    }
    g.status.transition(Status::Waiting, Status::Runnable);
    match current_m() {
        Some(m) if std::ptr::eq(m.sched(), sched) && m.p.load(Relaxed).is_some() => {
            let p = m.p();
            p.counters.readies.add(1);
            sched.runq_put_next(p, g);
            sched.wake_p();
        }
        _ => {
            sched.outside.readies.add_shared(1);
            sched.inject(g);
        }
    }
}

impl Sched {
    /// Queues a runnable goroutine from outside and makes sure that somebody looks (WK): in one locked step, so
    /// that no thread outside the runtime is ever between the two.
    pub(crate) fn inject(&self, g: Gp) {
        let mut core = self.core.lock();
        self.global_put(&mut core, g);
        super::spin::submitted();
        if self.spin.claim_wake() {
            self.start_claimed(core);
        }
    }
}

/// Gives the others a turn: to the tail of the global queue (Go's `Gosched`).
pub(crate) fn yield_now() {
    if current_g().is_none() {
        std::thread::yield_now();
        return;
    }
    let _rt = enter();
    if let Some(m) = current_m()
        && let Some(g) = m.curg()
    {
        super::locked::bind_if_panicking(m, g);
        mcall(m, gosched_m);
    }
}

fn gosched_m(sched: &Sched, m: Mp, g: Gp) -> Next {
    m.p().counters.yields.add(1);
    yield_to_global(sched, m, g)
}

fn preempted_m(sched: &Sched, m: Mp, g: Gp) -> Next {
    yield_to_global(sched, m, g)
}

#[inline]
fn yield_to_global(sched: &Sched, m: Mp, g: Gp) -> Next {
    m.preempt.store(false, Relaxed);
    g.status.transition(Status::Running, Status::Runnable);
    drop_g(m, g);
    let mut core = sched.core.lock();
    sched.global_put(&mut core, g);
    let nobody_idle = core.pidle.is_none();
    if nobody_idle {
        // What `wake_p` would find, without a second round of the lock.
        sched.spin.set_needed();
    }
    drop(core);
    if !nobody_idle {
        super::spin::submitted_by_rmw();
        sched.wake_p();
    }
    Next::Schedule
}
