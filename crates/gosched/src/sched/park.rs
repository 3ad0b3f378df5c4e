//! In and out of the runtime; park, ready, yield (PK, RD).
//!
//! *Inside the runtime* means that the depth in `m.claim` is not 0: user code does not run, the thread is not taken by
//! surprise, and its P is its own. Public operations hold an [`Entered`] while they touch scheduler state. Entering finds out whether
//! the P has been taken meanwhile, and waits for another one if so: the goroutine may then be on another M. Leaving looks at
//! what was asked for, so a goroutine that calls into the runtime at all can be asked to make room.
//!
//! Park, in order: the goroutine's registers are saved, then (on g0) its status becomes Waiting, then it is
//! detached from its M, then the unlock function runs. From that moment another thread may resume it, so
//! nothing on g0 touches it any more unless the unlock function refused.

use std::ffi::c_void;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::schedule::Next;
use super::thread_locals::is_home;
use super::waitq::{PassOn, pass_on_given};
use crate::base::chaos;
use crate::base::lock::{Held, ranks};
use crate::sched::model::current::current_m;
use crate::sched::model::g::{G, WaitReason};
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::{BLOCK, LET_GO, M, PreemptOff, YIELD};
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::model::switch;
use crate::sched::worker::{G0, Inside, Worker};
use crate::sched::{Core, Sched};

/// What g0 does with a goroutine that has left its stack.
pub(crate) type Mcall = fn(&Sched, &mut G0, Gp) -> Next;

impl M {
    fn set_mcall(&self, f: Mcall) {
        self.mcall.set(f as *const ());
    }

    /// What the goroutine that has just left wants of g0.
    #[inline]
    pub(crate) fn take_mcall(&self) -> Option<Mcall> {
        let f = self.mcall.replace(std::ptr::null());
        // SAFETY: `set_mcall` alone stores here: null or an `Mcall`, of which a pointer has the size.
        unsafe { std::mem::transmute::<*const (), Option<Mcall>>(f) }
    }
}

/// What the argument of a wait points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitArg {
    /// Nothing to look at.
    Nothing,
    /// The goroutine's own `Inner`: a park.
    Inner,
    /// A `WaitSlot`.
    Slot,
    /// A `Waiter`.
    Waiter,
}

/// One way of waiting: what the runtime does with a goroutine that waits so, and with the thing it waits on.
/// Both functions run while the goroutine is off its stack; they may not block or run user code.
pub(crate) struct WaitOps {
    pub(crate) reason: WaitReason,
    /// What the argument is, for those who look at a goroutine that waits: dumps and the leak check.
    pub(crate) arg: WaitArg,
    /// Whether only somebody else ends the wait: it has no deadline, and nobody is about to end it.
    pub(crate) is_open: bool,
    /// Go's unlock function: publishes the parked goroutine to whoever will wake it. False: what it waits
    /// for has happened, it goes on at once.
    pub(crate) commit: unsafe fn(Gp, *const c_void) -> bool,
    /// Takes the goroutine back from the thing it waits on; true: the wake-up is the caller's now. Called with
    /// the Scan bit held, when the goroutine is to unwind or its runtime is dropped (D2).
    pub(crate) withdraw: unsafe fn(Gp, *const c_void) -> bool,
    /// For a wait in queues: passes on what the goroutine was given, when its runtime is dropped before it goes on.
    pub(crate) pass_on: Option<PassOn>,
}

impl G {
    /// How it waits, while Waiting.
    #[inline]
    pub(crate) fn wait_ops(&self) -> Option<&'static WaitOps> {
        // SAFETY: `set_wait_ops` alone stores here: null or a static `WaitOps`.
        unsafe { self.wait_way.get().cast::<WaitOps>().as_ref() }
    }

    #[inline]
    pub(crate) fn set_wait_ops(&self, ops: Option<&'static WaitOps>) {
        let way = ops.map_or(std::ptr::null(), std::ptr::from_ref);
        self.wait_way.set(way.cast());
    }
}

/// Being inside the runtime, until dropped. No switch happens meanwhile, so its M stays the same.
pub(crate) struct Entered(Option<Inside>);

/// Enters the runtime; on a thread outside every runtime it does nothing.
#[inline]
pub(crate) fn enter() -> Entered {
    match current_m() {
        Some(m) => {
            let m = enter_m(m);
            // SAFETY: D5, `enter_m` returns the M of this thread, inside the runtime. `leave` runs when
            // the `Entered` is dropped, and a switch takes the `Entered` by value.
            Entered(Some(unsafe { Inside::new(m) }))
        }
        None => {
            if crate::sched::life::forked::is_child() {
                crate::sched::life::forked::refuse();
            }
            Entered(None)
        }
    }
}

impl Entered {
    /// The M of this thread, if it is one.
    #[inline]
    pub(crate) fn m(&self) -> Option<Mp> {
        Some(self.0.as_ref()?.m())
    }

    /// The hold of its P, if the M is `sched`'s and has one.
    #[inline]
    pub(crate) fn worker_of(&self, sched: &Sched) -> Option<Worker<'_>> {
        let inside = self.0.as_ref()?;
        if !std::ptr::eq(inside.m().sched(), sched) {
            return None;
        }
        inside.worker()
    }

    /// The goroutine that is inside, if it is one.
    #[inline]
    pub(crate) fn g(&self) -> Option<Gp> {
        self.m()?.curg()
    }
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        if let Some(m) = self.m() {
            debug_assert_eq!(
                current_m(),
                Some(m),
                "D5: a switch while inside the runtime"
            );
            leave(m);
        }
    }
}

/// Enters the runtime on `m`, the M of this thread; pairs with [`leave`]. Returns the M of this thread then: without a P it may
/// have had to wait for one.
#[inline]
#[must_use = "the goroutine may be on another M"]
pub(crate) fn enter_m(m: Mp) -> Mp {
    if m.claim.enter() {
        m
    } else {
        crate::sched::calls::syscall::enter_slow(m)
    }
}

/// Leaves the runtime, and makes room if that was asked for. `m` is the M of this thread now.
#[inline]
pub(crate) fn leave(m: Mp) {
    if m.claim.leave() == 0 && m.asked.load(Relaxed) != 0 {
        leave_slow();
    }
}

#[cold]
#[inline(never)]
fn leave_slow() {
    let Some((m, g)) = current_m().and_then(|m| Some((m, m.curg()?))) else {
        return;
    };
    if m.asked.load(Relaxed) & LET_GO != 0 {
        m.unask(LET_GO); // it has left the call it slept in
    }
    if m.asked.load(Relaxed) & BLOCK != 0 {
        let m = enter_m(m);
        m.unask(BLOCK);
        debug_assert!(g.calls.get() > 0, "back to a call that there is not");
        return crate::sched::calls::syscall::enter_syscall(m, g);
    }
    // On a dead runtime it would never run again; it may go on until it has to wait (D2). Nor may it leave a thread whose FS it
    // is on (D6).
    if m.asked.load(Relaxed) & YIELD != 0
        && m.may_be_preempted()
        && !m.sched().dead.load(Relaxed)
        && is_home(m, g)
    {
        let m = enter_m(m);
        let is_time = !chaos::is_on() || chaos::one_in(8, "leave"); // at every exit anew
        if is_time && m.asked.load(Relaxed) & YIELD != 0 && m.p.load(Relaxed).is_some() {
            super::locked::bind_if_panicking(m, g);
            m.p().counters.preempts.add(1);
            return left_switch(mcall(m, preempted_m));
        }
        m.claim.leave();
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
    if m.claim.leave() == 0 && m.asked.load(Relaxed) & BLOCK != 0 {
        leave_slow();
    }
}

/// Keeps the goroutine from being asked to make room, until dropped. It must not wait meanwhile.
pub(crate) struct NoPreempt(Option<(Mp, u8)>);

/// Go's `preemptoff`, with the reason.
pub(crate) fn no_preempt(reason: PreemptOff) -> NoPreempt {
    let m = current_m();
    NoPreempt(m.map(|m| (m, m.preempt_off.swap(reason as u8, Relaxed))))
}

impl Drop for NoPreempt {
    fn drop(&mut self) {
        if let Some((m, outer)) = self.0 {
            debug_assert_eq!(current_m(), Some(m), "a switch while not to be preempted");
            m.preempt_off.store(outer, Relaxed);
        }
    }
}

/// Leaves the goroutine's stack for g0, which calls `f` with it; returns when the goroutine is next run, with its M then.
#[inline]
pub(crate) fn mcall(m: Mp, f: Mcall) -> Mp {
    let Some(g) = m.curg() else {
        crate::base::fatal::throw("mcall on g0")
    };
    debug_assert!(
        crate::sched::model::current::on_curg(m),
        "mcall on g0 or in a signal handler"
    );
    debug_assert!(is_home(m, g), "D6: on another FS than its own");
    debug_assert_eq!(m.claim.depth(), 1, "a switch happens at depth 1");
    ranks::assert_none("switch");
    m.set_mcall(f);
    switch::suspend(m, g)
}

/// Parks the calling goroutine until [`ready`], or not at all if the commit refuses. From outside the runtime.
///
/// # Safety
/// `arg` is what `ops` works on and outlives the wait.
pub(crate) unsafe fn park(ops: &'static WaitOps, arg: *const c_void) {
    // SAFETY: by the caller's promise.
    unsafe { park_in(enter(), ops, arg) };
}

/// As [`park`], from inside: it leaves the runtime when it goes on.
///
/// # Safety
/// As for [`park`].
#[inline]
pub(crate) unsafe fn park_in(rt: Entered, ops: &'static WaitOps, arg: *const c_void) {
    let Some(m) = rt.m() else {
        crate::base::fatal::throw("park off an M")
    };
    let Some(g) = m.curg() else {
        crate::base::fatal::throw("park on g0")
    };
    std::mem::forget(rt); // the switch takes it along
    super::locked::bind_if_panicking(m, g);
    g.set_waiting(ops.reason, m.sched().coarse_ms());
    g.wait_arg.set(arg);
    g.set_wait_ops(Some(ops));
    left_switch(mcall(m, park_m));
}

fn park_m(_: &Sched, g0: &mut G0, g: Gp) -> Next {
    // Without a P only where the runtime is dead and the thread about to end.
    if let Some(w) = g0.worker() {
        w.p().counters.parks.add(1);
    }
    let Some(ops) = g.wait_ops() else {
        crate::base::fatal::throw("park without a way to wait")
    };
    let arg = g.wait_arg.get();
    g.status.transition(Status::Running, Status::Waiting);
    drop_g(g0.m(), g);
    // SAFETY: PK, the caller of `park` promised that `arg` belongs to `ops`.
    if unsafe { (ops.commit)(g, arg) } {
        return Next::Schedule;
    }
    g.set_not_waiting(); // it goes on here: nobody is to take back what it was given
    g.status.transition(Status::Waiting, Status::Runnable);
    Next::Run(g)
}

/// Detaches the goroutine from its M (G2).
#[inline]
pub(crate) fn drop_g(m: Mp, g: Gp) {
    m.curg.store(None, Relaxed);
    // ORDER: Release; pairs with the Acquire in `G::boundm`.
    g.m.store(None, Release);
}

/// Makes a parked goroutine runnable. The caller has claimed its wake-up, alone. From anywhere: a goroutine
/// of the same runtime puts it into its P's `next`, anybody else onto the global queue; both wake a P.
pub(crate) fn ready(g: Gp) {
    ready_in(&enter(), g);
}

/// As [`ready`], from inside.
#[inline]
pub(crate) fn ready_in(rt: &Entered, g: Gp) {
    let sched = g.sched();
    if sched.is_dead() {
        return pass_on(g); // D2: nobody runs there any more
    }
    g.status.transition(Status::Waiting, Status::Runnable);
    match rt.worker_of(sched) {
        Some(w) => {
            w.p().counters.readies.add(1);
            sched.runq_put_next(w, g);
            sched.wake_p();
            sched.press_if_busy();
        }
        None => {
            sched.outside.readies.add_shared(1);
            sched.inject(g);
        }
    }
}

/// The goroutine's wait has ended and its runtime is being dropped: it never goes on. What it was given goes to the next waiter.
/// By whoever ended the wait, or by the drop; the first of the two does it. Inside the runtime, without locks.
#[cold]
#[inline(never)]
pub(crate) fn pass_on(g: Gp) {
    if let Some(ops) = g.wait_ops() {
        // SAFETY: D2, the goroutine is Waiting, or Runnable since its last wait, on a stack that is never freed; nobody runs it.
        unsafe { pass_on_given(ops, g.wait_arg.get()) };
    }
}

impl Sched {
    /// Whether the drop of the runtime has begun (D2). A look; `inject` and the drop itself look under the scheduler lock.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// Queues a runnable goroutine from outside and makes sure that somebody looks (WK): in one locked step, so
    /// that no thread outside the runtime is ever between the two.
    pub(crate) fn inject(&self, g: Gp) {
        let mut core = self.core.lock();
        if self.is_dead() {
            drop(core);
            return pass_on(g); // the drop may have looked before it was Runnable
        }
        self.global_put(&mut core, g);
        self.wake_after_put(core);
    }

    /// The wake after a `global_put` in the same hold of the lock.
    pub(crate) fn wake_after_put(&self, core: Held<'_, Core>) {
        crate::sched::model::spin::submitted();
        if self.spin.is_nobody_spinning()
            && let Some(spinning) = self.spin.claim_wake()
        {
            self.start_claimed(core, spinning);
        } else {
            drop(core);
        }
    }
}

/// Gives the others a turn: the running goroutine goes to the tail of the global queue (Go's `Gosched`).
#[inline]
pub(crate) fn yield_now(m: Mp, g: Gp) {
    let m = enter_m(m);
    super::locked::bind_if_panicking(m, g);
    left_switch(mcall(m, gosched_m));
}

fn gosched_m(sched: &Sched, g0: &mut G0, g: Gp) -> Next {
    if let Some(w) = g0.worker() {
        w.p().counters.yields.add(1);
    }
    yield_to_global(sched, g0, g, Sched::global_put_left)
}

/// It has used up its slice, or the world stops: then it waits for its turn where it is.
fn preempted_m(sched: &Sched, g0: &mut G0, g: Gp) -> Next {
    if sched.is_stopping() {
        g.set_not_waiting();
        g.status.transition(Status::Running, Status::Runnable);
        drop_g(g0.m(), g);
        sched.runq_put(g0.held(), g);
        crate::sched::model::spin::submitted();
        return Next::Schedule;
    }
    yield_to_global(sched, g0, g, Sched::global_put_spent)
}

#[inline]
fn yield_to_global(
    sched: &Sched,
    g0: &mut G0,
    g: Gp,
    put: fn(&Sched, &mut Held<'_, Core>, Gp),
) -> Next {
    g.set_not_waiting();
    g.status.transition(Status::Running, Status::Runnable);
    drop_g(g0.m(), g);
    put(sched, &mut sched.core.lock(), g);
    // The lock's release was the read-modify-write of wake/1.
    crate::sched::model::spin::submitted_by_rmw();
    sched.wake_p();
    Next::Schedule
}
