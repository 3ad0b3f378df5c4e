//! In and out of the runtime; park, ready, yield (PK, RD).
//!
//! A thread is *inside the runtime* while the depth in `m.claim` is above 0. There it runs no user
//! code, is not preempted, and keeps its P. Public operations hold an [`Entered`] while they touch
//! scheduler state. Entering finds out whether the P was taken meanwhile. If so, it waits for
//! another one, and the goroutine may then be on another M. Leaving looks at `m.asked`. So a
//! goroutine that calls into the runtime can be asked to yield there.
//!
//! Park, in order: the goroutine's registers are saved. Then, on g0, its status becomes Waiting, it
//! is detached from its M, and the commit runs (Go's unlock function). From that moment another
//! thread may resume it. So g0 does not touch it any more, unless the commit refused.

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::schedule::Next;
use crate::base::chaos;
use crate::base::lock::{Held, ranks};
use crate::sched::life::thread_locals::is_home;
use crate::sched::model::current::current_m;
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::{BLOCK, GIVE_UP_P, M, PreemptOff, YIELD};
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::model::switch;
use crate::sched::waiting::wait_ops::WaitOps;
use crate::sched::waiting::waitq::{WaitEnd, pass_on};
use crate::sched::worker::{G0, Inside, Worker};
use crate::sched::{Core, Sched};

/// What g0 does with a goroutine that has left its stack.
pub(crate) type Mcall = fn(&Sched, &mut G0, Gp) -> Next;

impl M {
    fn set_mcall(&self, f: Mcall) {
        self.mcall.set(f as *const ());
    }

    /// Takes the function that the goroutine which has just left gave to g0.
    #[inline]
    pub(crate) fn take_mcall(&self) -> Option<Mcall> {
        let f = self.mcall.replace(std::ptr::null());
        // SAFETY: only `set_mcall` stores here: null or an `Mcall`, which has the size of a
        // pointer.
        unsafe { std::mem::transmute::<*const (), Option<Mcall>>(f) }
    }
}

/// The thread is inside the runtime until this is dropped. No switch happens meanwhile, so its M
/// stays the same.
pub(crate) struct Entered(Option<Inside>);

/// Enters the runtime. On a thread outside every runtime it does nothing.
#[inline]
pub(crate) fn enter() -> Entered {
    match current_m() {
        Some(m) => {
            let m = enter_m(m);
            // SAFETY: D5, `enter_m` returns the M of this thread, inside the runtime. `leave` runs
            // when the `Entered` is dropped, and a switch takes the `Entered` by value.
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

    /// This thread as an M of `sched`'s that holds a P, if it is one. The P can be released through
    /// the result.
    ///
    /// # Safety
    /// No other `Entered` of this thread lends a `Worker` while the result lives.
    pub(crate) unsafe fn holder_of(&mut self, sched: &Sched) -> Option<&mut Inside> {
        self.worker_of(sched)?;
        self.0.as_mut()
    }

    /// The calling goroutine, if there is one.
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

/// Enters the runtime on `m`, the M of this thread; pairs with [`leave`]. Returns the M of this
/// thread afterwards: without a P the goroutine may have waited and moved.
#[inline]
#[must_use = "the goroutine may be on another M"]
pub(crate) fn enter_m(m: Mp) -> Mp {
    if m.claim.enter() {
        m
    } else {
        crate::sched::calls::syscall::enter_slow(m)
    }
}

/// Leaves the runtime, and yields if that was asked for. `m` is the M of this thread now.
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
    if m.asked.load(Relaxed) & GIVE_UP_P != 0 {
        m.unask(GIVE_UP_P); // it has left the call in which it slept
    }
    if m.asked.load(Relaxed) & BLOCK != 0 {
        let m = enter_m(m);
        m.unask(BLOCK);
        debug_assert!(g.calls.get() > 0, "back to a call that there is not");
        return crate::sched::calls::syscall::enter_syscall(m, g);
    }
    // No yield in two cases. On a dead runtime the goroutine would never run again; it may continue
    // until it has to wait (D2). A goroutine on its thread's FS cannot leave the thread (D6).
    if m.asked.load(Relaxed) & YIELD != 0
        && m.may_be_preempted()
        && !m.sched().dead.load(Relaxed)
        && is_home(m, g)
    {
        let m = enter_m(m);
        let is_time = !chaos::is_on() || chaos::one_in(8, "leave"); // drawn again at every exit
        if is_time && m.asked.load(Relaxed) & YIELD != 0 && m.p.load(Relaxed).is_some() {
            super::locked::bind_if_panicking(m, g);
            m.p().counters.preempts.add(1);
            return left_switch(mcall(m, preempted_m));
        }
        m.claim.leave();
    }
}

/// Leaves the runtime after a switch, on `m`, the M of this thread now. The switch itself has
/// served a request to yield.
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

/// Inside the runtime without a P, until this is dropped: its thread is in a call, or has lost its P
/// in one. It must use nothing that belongs to the P.
pub(crate) struct WithoutP(Mp);

impl Drop for WithoutP {
    fn drop(&mut self) {
        left_switch(self.0);
    }
}

/// Enters the runtime on `m`, the M of this thread, and waits for no P: a signal handler may not.
#[inline]
pub(crate) fn enter_at_once(m: Mp) -> Result<Entered, WithoutP> {
    if m.claim.enter() {
        // SAFETY: D5, `m` is the M of this thread, and has just entered with its P. `leave` or
        // `leave_here` runs when the `Entered` ends.
        Ok(Entered(Some(unsafe { Inside::new(m) })))
    } else {
        Err(WithoutP(m))
    }
}

/// Leaves the runtime without a yield, also if one was asked for: the caller may be a signal
/// handler on the goroutine's stack, and the thread's signal mask must not go to other goroutines.
#[inline]
pub(crate) fn leave_here(rt: Entered) {
    if let Some(m) = rt.m() {
        std::mem::forget(rt); // `left_switch` leaves in its place
        left_switch(m);
    }
}

/// Keeps the goroutine from being asked to yield, until dropped. It must not wait meanwhile.
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

/// Leaves the goroutine's stack for g0, which calls `f` with the goroutine. Returns when the
/// goroutine runs again, with its M at that time.
#[inline(always)]
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

/// Parks the calling goroutine until [`ready`], or not at all if the commit refuses. From outside
/// the runtime.
///
/// The goroutine does not return from here before its wait has ended. If its runtime is dropped, it
/// never returns, and its stack is never freed (D2). So what it waits on stays during the wait.
pub(crate) fn park<T: Sync>(ops: &'static WaitOps<T>, arg: &T) {
    park_in(enter(), ops, arg);
}

/// As [`park`], from inside the runtime; on return the goroutine is outside.
#[inline]
pub(crate) fn park_in<T: Sync>(rt: Entered, ops: &'static WaitOps<T>, arg: &T) {
    let Some(m) = rt.m() else {
        crate::base::fatal::throw("park off an M")
    };
    let Some(g) = m.curg() else {
        crate::base::fatal::throw("park on g0")
    };
    std::mem::forget(rt); // `left_switch` leaves in its place
    super::locked::bind_if_panicking(m, g);
    g.set_waiting(ops.reason, m.sched().coarse_ms());
    // SAFETY: `arg` is borrowed until this function returns, after the wait. If the goroutine never
    // continues, its stack is never freed (D2), and neither is what it has borrowed.
    unsafe { g.set_wait(ops, arg) };
    left_switch(mcall(m, park_m));
}

fn park_m(_: &Sched, g0: &mut G0, g: Gp) -> Next {
    // Without a P only if the runtime is dead and the thread about to end.
    if let Some(w) = g0.worker() {
        w.p().counters.parks.add(1);
    }
    // SAFETY: PK, the goroutine has called `park_in` and does not return before this commit.
    let Some(wait) = (unsafe { g.wait() }) else {
        crate::base::fatal::throw("park without a way to wait")
    };
    g.status.transition(Status::Running, Status::Waiting);
    drop_g(g0.m(), g);
    if wait.commit(g) {
        return Next::Schedule;
    }
    g.set_not_waiting(); // it continues here: a drop must not pass on what it was given
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

/// Makes a parked goroutine runnable, from any thread. The caller alone has claimed its wake-up. A
/// goroutine of the same runtime puts it into its P's `next`, any other thread onto the global
/// queue. Both wake a P.
pub(crate) fn ready(g: Gp) {
    ready_in(&enter(), g);
}

/// As [`ready`], from inside the runtime.
#[inline]
pub(crate) fn ready_in(rt: &Entered, g: Gp) {
    let sched = g.sched();
    if sched.is_dead() {
        return pass_on(g, WaitEnd::Woken); // D2: no goroutine runs there any more
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

/// As [`ready`], for a thread that must wait for no lock of the runtime: the code that it has
/// interrupted may hold it. False: the goroutine stays as it is, and its wake-up the caller's.
pub(crate) fn try_ready(g: Gp) -> bool {
    let sched = g.sched();
    let Some(mut core) = sched.core.try_lock() else {
        return false;
    };
    if sched.is_dead() {
        drop(core);
        pass_on(g, WaitEnd::Woken); // D2: no goroutine runs there any more
        return true;
    }
    if g.status.is_scanned() {
        return false; // maybe by the interrupted code
    }
    g.status.transition(Status::Waiting, Status::Runnable);
    sched.outside.readies.add_shared(1);
    sched.global_put(&mut core, g);
    sched.wake_after_put(core);
    true
}

impl Sched {
    /// Whether the drop of the runtime has begun (D2). A hint: `inject` and the drop itself look
    /// under the scheduler lock.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// Queues a runnable goroutine from outside and claims the wake-up of an M (WK). Both in one
    /// hold of the lock, so no thread outside is ever between the two steps.
    pub(crate) fn inject(&self, g: Gp) {
        let mut core = self.core.lock();
        if self.is_dead() {
            drop(core);
            return pass_on(g, WaitEnd::Woken); // the drop may have looked before it was Runnable
        }
        self.global_put(&mut core, g);
        self.wake_after_put(core);
    }

    /// The wake-up after a `global_put` in the same hold of the lock.
    pub(crate) fn wake_after_put(&self, core: Held<'_, Core>) {
        crate::sched::model::spin::submitted();
        if self.spin.has_no_spinner()
            && let Some(spinning) = self.spin.claim_wake()
        {
            self.start_claimed(core, spinning);
        } else {
            drop(core);
        }
    }
}

/// Yields: the running goroutine goes to the tail of the global queue (Go's `Gosched`).
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

/// Its slice is over. Or the world stops; then it goes to the tail of its P's queue.
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
