//! Blocking calls (SY, M4, M5): how a goroutine leaves its P behind, and how it comes back from any
//! call without one.
//!
//! A blocked thread must not keep a P from other goroutines, and a short call must cost next to
//! nothing.
//!
//! A *marked* call is `gosched::blocking(f)`. Its P stays in place, in state Syscall, and its
//! goroutine stays too. If the call is short, the M takes the P back with one swap and no other
//! thread notices. If it is long, another thread wins that swap: sysmon, an M that needs a P, or
//! the leader of a stopping world (P3).
//!
//! ```text
//!  enter_syscall                               come_back (marked, or P taken in an unmarked call)
//!  1 unbind P and M, claim word MARKED         1 marked: old P, Syscall → Running, done
//!  2 P: Running → Syscall                      2 an idle P: the old one if it is idle, or any
//!  3 G: Running → Syscall, barrier (stop/1)    3 none: queue the goroutine; its M sleeps
//!  4 the world stops: give up the P              (`exitsyscall0`), or both wait here if the
//!                                                goroutine cannot leave its thread (`bound`)
//! ```
//!
//! Code inside a marked call may use the runtime. It comes back for that, and enters the call again
//! when it leaves the runtime (`BLOCK` in `M::asked`).
//!
//! ORDER: `m.p` and `p.m` are stored with Release; pairs with the Acquire loads of `p.m` in
//! `retake`.

use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::sched::Sched;
use crate::sched::life::thread_locals::is_home;
use crate::sched::model::current::current_m;
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::BLOCK;
use crate::sched::model::p::PStatus;
use crate::sched::model::ptr::{Gp, Mp, Pp};
use crate::sched::model::watch::claim::Found;
use crate::sched::park::{drop_g, enter_m, leave, mcall};
use crate::sched::schedule::Next;
use crate::sched::worker::{G0, IdleP, acquire_p};

/// Runs `f`, which may block its thread, and hands the processor to other goroutines meanwhile.
///
/// The runtime works without it: a goroutine that blocks its thread loses its processor after about
/// a millisecond. A marked call has these advantages:
///
/// - If others wait, it loses its processor within some ten microseconds to half a millisecond.
/// - It is never taken for computation.
/// - A short call keeps its processor and costs a few nanoseconds.
///
/// `f` may use everything it could use outside, also channels and locks of the runtime. It then has
/// a processor for as long as that takes. Calls nest. A panic passes through. While `f` computes it
/// does not count as one of GOMAXPROCS, so it should mostly wait.
///
/// If calls hold nearly all threads of [`max_threads`](crate::Builder::max_threads), the goroutine
/// first waits until another call has returned. If none returns for 10 seconds, the process ends
/// with `thread exhaustion`.
///
/// It blocks the thread as `f` does, never other goroutines. On a plain thread it only calls `f`.
///
/// ```
/// gosched::run(|| {
///     let text = gosched::blocking(|| std::fs::read_to_string("Cargo.toml"));
///     assert!(text.unwrap().contains("[package]"));
/// });
/// ```
#[inline]
pub fn blocking<T>(f: impl FnOnce() -> T) -> T {
    let _call = Call::begin();
    f()
}

/// A marked call, until dropped.
struct Call;

impl Call {
    #[inline]
    fn begin() -> Option<Call> {
        let m = current_m()?;
        let g = m.curg()?;
        if g.calls.get() == 0 {
            let m = match m.sched().room.is_full() {
                true => {
                    crate::sched::calls::room::wait_for_room(m, g);
                    current_m()?
                }
                false => m,
            };
            // Enter first: a goroutine that waits for a P here is not in the call yet.
            let m = enter_m(m);
            g.calls.set(1);
            enter_syscall(m, g);
        } else {
            let Some(calls) = g.calls.get().checked_add(1) else {
                crate::base::fatal::throw("calls of `blocking` nest too deep")
            };
            g.calls.set(calls);
        }
        Some(Call)
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        // Code inside the call may have waited, so the M may be another one.
        if !crate::sched::life::forked::is_child()
            && let Some((m, g)) = current_m().and_then(|m| Some((m, m.curg()?)))
        {
            let calls = g.calls.get() - 1;
            g.calls.set(calls); // before it comes back, so that it does not enter the call again
            if calls == 0 {
                leave(enter_m(m));
                if g.sched().room.is_awaited() {
                    crate::sched::calls::room::pass_on_room(g);
                }
            }
        }
    }
}

/// Leaves the P and the runtime. Inside, at depth 1.
#[inline]
pub(crate) fn enter_syscall(m: Mp, g: Gp) {
    let Some(p) = m.p.load(Relaxed) else {
        m.claim.leave(); // the runtime is dead, or this stretch must not wait for a P
        return;
    };
    let sched = m.sched();
    p.syscalltick
        .store(p.syscalltick.load(Relaxed).wrapping_add(1), Relaxed);
    p.counters.syscalls.add(1);
    m.oldp.store(Some(p), Relaxed);
    m.p.store(None, Release);
    p.m.store(None, Release);
    m.claim.mark();
    p.set_status(PStatus::Syscall);
    // FENCE: stop/1 — the P can be taken before the load of `gcwaiting`; the swap is the barrier.
    // Meets stop/2 in `Sched::stop_with`.
    g.status.transition(Status::Running, Status::Syscall);
    crate::shim::fence_after_rmw();
    if sched.is_stopping() || sched.sysmon.is_dozing() {
        enter_syscall_slow(sched, p);
    }
    m.claim.leave();
}

#[cold]
#[inline(never)]
fn enter_syscall_slow(sched: &Sched, p: Pp) {
    if sched.is_stopping()
        && let Some(p) = IdleP::retake(p)
    {
        sched.room.call_is_out();
        sched.hand_off_p(p);
    } else if sched.has_work() {
        sched.sysmon.wake(); // a goroutine may need the P soon
    }
}

/// The claim word is not FREE at entry. Returns the M that the goroutine is on afterwards.
#[cold]
#[inline(never)]
pub(crate) fn enter_slow(m: Mp) -> Mp {
    match m.claim.look() {
        Found::Kept => m,
        Found::Marked | Found::Taken => come_back(m),
        Found::Forked => {
            m.claim.leave();
            crate::sched::life::forked::refuse()
        }
    }
}

/// Inside the runtime without a P, or with one to take back.
#[inline]
fn come_back(m: Mp) -> Mp {
    let Some(g) = m.curg() else {
        crate::base::fatal::throw("an M without a goroutine in a call")
    };
    let old = m.oldp.load(Relaxed);
    m.oldp.store(None, Relaxed);
    if let Some(p) = old
        && p.status.retake(PStatus::Running)
    {
        m.p.store(Some(p), Release);
        p.m.store(Some(m), Release);
        run_again(m, g);
        return m;
    }
    come_back_slow(m, g, old)
}

/// The goroutine has a P and is Running again. CONTEXT: signal.
#[inline]
pub(crate) fn run_again(m: Mp, g: Gp) {
    g.status.transition(Status::Syscall, Status::Running);
    finish_return(m, g);
}

/// Ends the return from a call. An enclosing marked call begins again at the next exit (`BLOCK`).
#[inline]
fn finish_return(m: Mp, g: Gp) {
    if g.calls.get() > 0 {
        m.ask(BLOCK);
    }
    m.claim.resume();
}

#[cold]
#[inline(never)]
fn come_back_slow(m: Mp, g: Gp, old: Option<Pp>) -> Mp {
    let sched = m.sched();
    if old.is_some() {
        sched.call_is_back();
    }
    if m.claim.depth() > 1 || !m.may_be_preempted() {
        return m; // this stretch needs no P and must not wait for one
    }
    // On a dead runtime no goroutine will run here any more. This one may continue until it has to
    // wait (D2).
    if sched.dead.load(Relaxed) || sched.take_idle_p(m, old) {
        run_again(m, g);
        sched.stray_is_back(m);
        return m;
    }
    if !is_home(m, g) {
        // The goroutine runs on the thread's own thread-locals: it cannot continue on another
        // thread.
        wait_here(sched, m, g);
        return m;
    }
    crate::sched::locked::bind_if_panicking(m, g);
    mcall(m, exitsyscall0)
}

/// Waits for a P on this thread, for a goroutine that cannot leave it. Inside. CONTEXT: signal.
pub(crate) fn wait_here(sched: &Sched, m: Mp, g: Gp) {
    let mut core = sched.core.lock();
    if sched.dead.load(Relaxed) {
        drop(core);
        run_again(m, g); // a dead runtime wakes no thread
        return sched.stray_is_back(m);
    }
    g.set_not_waiting();
    g.status.transition(Status::Syscall, Status::Runnable);
    sched.bind_here(&mut core, m, g);
    // The goroutine may have come back with the lock that all others wait for.
    sched.global_put_urgent(&mut core, g);
    sched.wake_after_put(core);
    sched.wait_bound(m, g);
    finish_return(m, g);
    sched.stray_is_back(m);
}

/// The goroutine has left a thread without a P: queues it; the thread sleeps.
fn exitsyscall0(sched: &Sched, g0: &mut G0, g: Gp) -> Next {
    let m = g0.m();
    m.tp.to_own();
    m.claim.resume();
    sched.stray_is_back(m);
    g.set_not_waiting();
    g.status.transition(Status::Syscall, Status::Runnable);
    drop_g(m, g);
    let mut core = sched.core.lock();
    sched.global_put(&mut core, g);
    sched.wake_after_put(core);
    if m.lockedg.load(Relaxed).is_some() || sched.stop_m(g0) {
        return Next::Schedule;
    }
    Next::End
}

impl Sched {
    /// Binds a P to an M that comes back: a pending P, or an idle one, `old` if it is idle.
    pub(crate) fn take_idle_p(&self, m: Mp, old: Option<Pp>) -> bool {
        let mut core = self.core.lock();
        if self.is_stopping() {
            return false;
        }
        if let Some((p, spinning)) = self.take_pending(&mut core) {
            drop(core);
            p.begin_slice();
            acquire_p(m, p);
            if let Some(spinning) = spinning {
                // The P was to search for work and now has some, like a spinning M that finds work.
                self.reset_spinning(spinning);
            }
            return true;
        }
        let Some(p) = self.get_idle_p_like(&mut core, old) else {
            return false;
        };
        drop(core);
        p.begin_slice(); // sysmon's sample of this P is of another goroutine
        acquire_p(m, p);
        true
    }
}
