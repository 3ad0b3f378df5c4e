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
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::compiler_fence;

use super::g::WaitReason;
use super::gstatus::Status;
use super::lock::{Held, ranks};
use super::ptr::{Gp, Mp};
use super::schedule::Next;
use super::{Core, Sched};
use crate::context::{self, current_m};

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

/// Being inside the runtime, until dropped. No switch happens meanwhile, so its M stays the same.
pub(crate) struct Entered(Option<Mp>);

/// Enters the runtime; on a thread outside every runtime it does nothing.
#[inline]
pub(crate) fn enter() -> Entered {
    let m = current_m();
    if let Some(m) = m {
        enter_m(m);
    }
    Entered(m)
}

impl Entered {
    /// The M of this thread, if it is one.
    #[inline]
    pub(crate) fn m(&self) -> Option<Mp> {
        self.0
    }
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        if let Some(m) = self.0 {
            debug_assert_eq!(
                current_m(),
                Some(m),
                "D5: a switch while inside the runtime"
            );
            leave(m);
        }
    }
}

/// Enters the runtime on `m`, the M of this thread; pairs with [`leave`].
#[inline]
pub(crate) fn enter_m(m: Mp) {
    m.in_rt.store(m.in_rt.load(Relaxed) + 1, Relaxed);
    compiler_fence(SeqCst);
}

/// Leaves the runtime, and makes room if that was asked for. `m` is the M of this thread now.
#[inline]
pub(crate) fn leave(m: Mp) {
    let depth = m.in_rt.load(Relaxed) - 1;
    m.in_rt.store(depth, Relaxed);
    compiler_fence(SeqCst);
    if depth == 0 && m.preempt.load(Relaxed) {
        leave_slow();
    }
}

#[cold]
#[inline(never)]
fn leave_slow() {
    if let Some(m) = current_m()
        && let Some(g) = m.curg()
        && m.preempt_off.get().is_empty()
        // On a dead runtime it would never run again; it may go on until it has to wait (D2).
        && !m.sched().dead.load(Relaxed)
    {
        enter_m(m);
        super::locked::bind_if_panicking(m, g);
        m.p().counters.preempts.add(1);
        left_switch(mcall(m, preempted_m));
    }
}

/// Leaves the runtime after a switch, on `m`, the M of this thread now. A request to make room that came meanwhile has been
/// served by the switch.
#[inline]
pub(crate) fn left_switch(m: Mp) {
    debug_assert_eq!(
        current_m(),
        Some(m),
        "D5: another M than the one that resumed"
    );
    m.in_rt.store(m.in_rt.load(Relaxed) - 1, Relaxed);
    compiler_fence(SeqCst);
}

/// Keeps the goroutine from being asked to make room, until dropped. It must not wait meanwhile.
pub(crate) struct NoPreempt(Option<(Mp, &'static str)>);

/// Go's `preemptoff`, with the reason.
pub(crate) fn no_preempt(reason: &'static str) -> NoPreempt {
    NoPreempt(current_m().map(|m| (m, m.preempt_off.replace(reason))))
}

impl Drop for NoPreempt {
    fn drop(&mut self) {
        if let Some((m, outer)) = self.0 {
            debug_assert_eq!(current_m(), Some(m), "a switch while not to be preempted");
            m.preempt_off.set(outer);
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

/// Leaves the goroutine's stack for g0, which calls `f` with it; returns when the goroutine is next run, with its M then.
#[inline]
pub(crate) fn mcall(m: Mp, f: Mcall) -> Mp {
    let Some(g) = m.curg() else {
        super::fatal::throw("mcall on g0")
    };
    debug_assert!(
        context::current::on_curg(m),
        "mcall off the goroutine's stack"
    );
    debug_assert!(
        context::tls::is_home(m, g),
        "D6: on another FS than its own"
    );
    debug_assert_eq!(m.in_rt.load(Relaxed), 1, "a switch happens at depth 1");
    ranks::assert_none("switch");
    m.mcall.set(Some(f));
    context::suspend(m, g)
}

/// Parks the calling goroutine until [`ready`], or not at all if the commit refuses. From outside the runtime.
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
    enter_m(m);
    super::locked::bind_if_panicking(m, g);
    g.set_waiting(ops.reason, m.sched().coarse_ms());
    g.wait_arg.set(arg);
    g.wait_ops.set(Some(ops));
    left_switch(mcall(m, park_m));
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
    let rt = enter();
    let sched = g.sched();
    if sched.dead.load(Relaxed) {
        return; // D2: nobody runs there any more
    }
    g.status.transition(Status::Waiting, Status::Runnable);
    let p = rt
        .m()
        .filter(|m| std::ptr::eq(m.sched(), sched))
        .and_then(|m| m.p.load(Relaxed));
    match p {
        Some(p) => {
            p.counters.readies.add(1);
            sched.runq_put_next(p, g);
            sched.wake_p();
        }
        None => {
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
        self.wake_after_put(core);
    }

    /// The wake after a `global_put` in the same hold of the lock.
    pub(crate) fn wake_after_put(&self, core: Held<'_, Core>) {
        super::spin::submitted();
        if self.spin.is_nobody_spinning() && self.spin.claim_wake() {
            self.start_claimed(core);
        }
    }
}

/// Gives the others a turn: the running goroutine goes to the tail of the global queue (Go's `Gosched`).
#[inline]
pub(crate) fn yield_now(m: Mp, g: Gp) {
    enter_m(m);
    super::locked::bind_if_panicking(m, g);
    left_switch(mcall(m, gosched_m));
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
    g.status.transition(Status::Running, Status::Runnable);
    drop_g(m, g);
    sched.global_put(&mut sched.core.lock(), g);
    // The lock's release was the read-modify-write of wake/1.
    super::spin::submitted_by_rmw();
    sched.wake_p();
    Next::Schedule
}
