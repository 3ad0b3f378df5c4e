//! Blocking calls (SY, M4, M5): how a goroutine leaves its P behind for one, and how it comes back from any call without one.
//!
//! A *marked* call is `gosched::blocking(f)`. Its P stays where it is, in state Syscall, and so does its goroutine; if the call
//! is short the M takes the P back with one swap and nobody has noticed. If it is long somebody else wins that swap: sysmon, an M
//! that needs a P, the leader of a stopping world (P3).
//!
//! ```text
//!  enter_syscall                                     come_back (marked, or the P was taken in an unmarked call)
//!  1 P and M are unbound, the claim word is MARKED   1 marked: old P, Syscall → Running: as if nothing had been
//!  2 P: Running → Syscall                            2 an idle P: the old one, if it is among them, or any
//!  3 G: Running → Syscall, a full barrier (stop/1)   3 none: the goroutine is queued; its M sleeps (`exitsyscall0`), or
//!  4 does the world stop? then step aside              both wait here if it cannot leave its thread (`bound`)
//! ```
//!
//! Code inside a marked call may use the runtime: it comes back for that, and goes away again when it leaves (`BLOCK` in
//! `M::asked`).
//!
//! ORDER: `m.p` and `p.m` are stored with Release; pairs with the Acquire loads of `p.m` in `retake`.

use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::sched::Sched;
use crate::sched::model::claim::Found;
use crate::sched::model::current::current_m;
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::BLOCK;
use crate::sched::model::p::{PStatus, acquire_p};
use crate::sched::model::ptr::{Gp, Mp, Pp};
use crate::sched::park::{drop_g, enter_m, leave, mcall};
use crate::sched::schedule::Next;
use crate::sched::thread_locals::is_home;

/// Runs `f`, which may block its thread, and lets other goroutines have the processor meanwhile.
///
/// Everything works without it: a goroutine that blocks its thread loses its processor after about a millisecond. A call marked
/// so loses it within some ten microseconds to half a millisecond when others wait, and is never taken for computation; a short
/// one keeps it and costs a few nanoseconds. `f` may use everything it could use outside, channels and locks of the runtime too
/// (it then has a processor for as long as that takes), and calls nest. A panic passes through. While `f` computes it does not
/// count as one of GOMAXPROCS, so it should be about waiting.
///
/// Where calls hold nearly all threads of [`max_threads`](crate::Builder::max_threads) the goroutine first waits until another
/// call has returned. If none returns for 10 seconds the process ends with `thread exhaustion`.
///
/// Blocks the thread as `f` does, never other goroutines. On a plain thread it only calls `f`.
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
                    crate::sched::monitor::room::wait_for_room(m, g);
                    current_m()?
                }
                false => m,
            };
            // Inside first: one that has to wait for a P here is not in the call yet.
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
        // Its M may be another one: code inside the call may have waited.
        if !crate::sched::forked::is_child()
            && let Some((m, g)) = current_m().and_then(|m| Some((m, m.curg()?)))
        {
            let calls = g.calls.get() - 1;
            g.calls.set(calls); // before it comes back: it is not to go away again
            if calls == 0 {
                leave(enter_m(m));
                if g.sched().room.is_awaited() {
                    crate::sched::monitor::room::pass_on_room(g);
                }
            }
        }
    }
}

/// Leaves the P behind and the runtime with it. Inside, at depth 1.
#[inline]
pub(crate) fn enter_syscall(m: Mp, g: Gp) {
    let Some(p) = m.p.load(Relaxed) else {
        m.claim.leave(); // a dead runtime's, or in a stretch that may not wait for one
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
    // FENCE: stop/1 — the P is there to be taken before the look at `gcwaiting`; the swap is the barrier. Meets stop/2
    // in `Sched::stop_with`.
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
    if sched.is_stopping() && p.status.retake(PStatus::Idle) {
        sched.room.call_is_out();
        sched.hand_off_p(p);
    } else if sched.has_work() {
        sched.sysmon.wake(); // the P may be wanted soon
    }
}

/// Entering has found something in the claim word. Returns the M that the goroutine is on then.
#[cold]
#[inline(never)]
pub(crate) fn enter_slow(m: Mp) -> Mp {
    match m.claim.look() {
        Found::Kept => m,
        Found::Marked | Found::Taken => come_back(m),
        Found::Forked => {
            m.claim.leave();
            crate::sched::forked::refuse()
        }
    }
}

/// Inside the runtime without a P, or with one to be taken back.
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

/// It has a P: Running again. CONTEXT: signal.
#[inline]
pub(crate) fn run_again(m: Mp, g: Gp) {
    g.status.transition(Status::Syscall, Status::Running);
    come_to_rest(m, g);
}

/// Nothing is left of the call but that it may have to go on.
#[inline]
fn come_to_rest(m: Mp, g: Gp) {
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
        return m; // what is done here needs no P, and must not wait for one
    }
    // On a dead runtime nobody will run here any more; it may go on until it has to wait (D2).
    if sched.dead.load(Relaxed) || sched.take_idle_p(m, old) {
        run_again(m, g);
        sched.stray_is_back(m);
        return m;
    }
    if !is_home(m, g) {
        // Code that belongs to the thread: it cannot be continued on another one.
        wait_here(sched, m, g);
        return m;
    }
    crate::sched::locked::bind_if_panicking(m, g);
    mcall(m, exitsyscall0)
}

/// Without a P, and unable to leave the thread: waits for one as it is. Inside. CONTEXT: signal.
pub(crate) fn wait_here(sched: &Sched, m: Mp, g: Gp) {
    let mut core = sched.core.lock();
    if sched.dead.load(Relaxed) {
        drop(core);
        run_again(m, g); // from now on nobody is woken
        return sched.stray_is_back(m);
    }
    g.set_not_waiting();
    g.status.transition(Status::Syscall, Status::Runnable);
    sched.bind_here(&mut core, m, g);
    // It may have come back with the lock that everybody waits for.
    sched.global_put_urgent(&mut core, g);
    sched.wake_after_put(core);
    sched.wait_bound(m, g);
    come_to_rest(m, g);
    sched.stray_is_back(m);
}

/// The goroutine has left a thread without a P: it is queued, the thread sleeps.
fn exitsyscall0(sched: &Sched, m: Mp, g: Gp) -> Next {
    m.tp.to_own();
    m.claim.resume();
    sched.stray_is_back(m);
    g.set_not_waiting();
    g.status.transition(Status::Syscall, Status::Runnable);
    drop_g(m, g);
    let mut core = sched.core.lock();
    sched.global_put(&mut core, g);
    sched.wake_after_put(core);
    if m.lockedg.load(Relaxed).is_some() || sched.stop_m(m) {
        return Next::Schedule;
    }
    Next::End
}

impl Sched {
    /// Binds a P to an M that comes back: one that waits for a thread, or an idle one, `old` if it is among them.
    pub(crate) fn take_idle_p(&self, m: Mp, old: Option<Pp>) -> bool {
        let mut core = self.core.lock();
        if self.is_stopping() {
            return false;
        }
        if let Some((p, spinning)) = self.take_pending(&mut core) {
            drop(core);
            acquire_p(m, p);
            p.begin_slice();
            if spinning {
                // It was to look for work and has some: as one that spins and finds it.
                self.spin.end();
                if self.has_work() {
                    self.wake_p();
                }
            }
            return true;
        }
        let Some(p) = self.get_idle_p_like(&mut core, old) else {
            return false;
        };
        drop(core);
        acquire_p(m, p);
        p.begin_slice(); // what sysmon knows of this P was another goroutine's
        true
    }
}
