//! Parking and sleeping, for goroutines and plain threads.
//!
//! It implements [`park`], [`park_timeout`] and [`sleep`], and the deadline of every other wait.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::inner::Inner;
use super::{current_inner, exited};
use crate::sched::Sched;
use crate::sched::model::current::{current_g, current_m};
use crate::sched::model::g::WaitReason;
use crate::sched::model::m::PreemptOff;
use crate::sched::model::ptr::{Gp, Pp};
use crate::sched::park::{Entered, WaitArg, WaitOps, enter, no_preempt, park as park_g, park_in};
use crate::sched::sources::timers::{Armed, Claim};
use crate::sys;

static PARK: WaitOps = WaitOps {
    reason: WaitReason::Park,
    arg: WaitArg::Inner,
    is_open: true,
    commit: |g, inner| inner_of(inner).commit_g(g),
    withdraw: |g, inner| inner_of(inner).withdraw_g(g),
    pass_on: None,
};

static PARK_TIMEOUT: WaitOps = WaitOps {
    reason: WaitReason::Park,
    arg: WaitArg::Inner,
    is_open: false,
    commit: |g, inner| {
        let inner = inner_of(inner);
        arm(g, claim_parked, || inner.commit_g(g))
    },
    withdraw: |g, inner| inner_of(inner).withdraw_g(g),
    pass_on: None,
};

static SLEEP: WaitOps = WaitOps {
    reason: WaitReason::Sleep,
    arg: WaitArg::Nothing,
    is_open: false,
    commit: |g, _| arm(g, |_| true, || true),
    withdraw: |g, _| g.sched().disarm(g),
    pass_on: None,
};

/// The `Inner` that a parked goroutine waits on.
fn inner_of(arg: *const c_void) -> &'static Inner {
    // SAFETY: PK: the argument is the parked goroutine's own `Inner`, and the goroutine holds a
    // reference to it.
    unsafe { &*arg.cast::<Inner>() }
}

unsafe fn claim_parked(g: Gp) -> bool {
    inner_of(g.wait_arg.get()).withdraw_g(g)
}

/// The commit of a wait with a deadline. It publishes the Waiting goroutine and its timer in one
/// step, so that a waker can remove the timer. Without memory for a timer it refuses the wait, and
/// [`wait_timed`] returns false.
pub(crate) fn arm(g: Gp, claim: Claim, publish: impl FnOnce() -> bool) -> bool {
    let sched = g.sched();
    let Some(p) = current_m().and_then(|m| m.p.load(Relaxed)) else {
        return publish(); // the runtime is dead, so no timer fires
    };
    let when = g.deadline();
    match sched.arm(p, g, claim, publish) {
        Armed::Set { is_first } => {
            if is_first {
                announce(sched, p, when);
            }
            true
        }
        Armed::Refused => false,
        Armed::NoMemory => {
            g.set_deadline(NO_MEMORY);
            false
        }
    }
}

/// `when` has become the earliest timer in p's heap: updates the thread that waits for timers. Runs
/// on p's M.
pub(crate) fn announce(sched: &Sched, p: Pp, when: u64) {
    if !sched.poller.kick(when) {
        sched.sysmon.timer_set(when);
        // No thread watches the timers. This M does if it goes idle. If it has other work, another
        // M must.
        if !p.runq.is_empty() {
            sched.wake_p();
        }
    }
}

/// A deadline with this value means that there was no memory for a timer.
const NO_MEMORY: u64 = 0;

/// Unwinds the calling goroutine if its runtime shuts down. Does nothing on plain threads, and
/// while the goroutine unwinds already.
#[inline]
pub(crate) fn check_cancelled() {
    if cfg!(panic = "unwind")
        && let Some(g) = current_g()
        && g.must_unwind()
        && !std::thread::panicking()
    {
        std::panic::resume_unwind(exited());
    }
}

/// Blocks until the token of the calling goroutine or thread is available, and takes it.
///
/// Blocks the calling goroutine or plain thread. See [`std::thread::park`].
///
/// ```
/// # gosched::run(|| {
/// let main = gosched::thread::current();
/// gosched::go(move || main.unpark());
/// gosched::thread::park();
/// # });
/// ```
pub fn park() {
    check_cancelled();
    if current_g().is_none() {
        super::current().inner().park_thread(u64::MAX);
        return;
    }
    let inner = current_inner();
    // SAFETY: the goroutine holds a reference to its own `Inner`.
    if unsafe { inner.as_ref() }.take_token() {
        return;
    }
    // SAFETY: PK: the argument of `PARK` is the goroutine's own `Inner`, alive while it waits.
    unsafe { park_g(&PARK, inner.as_ptr().cast()) };
    check_cancelled();
}

/// As [`park`], for at most `dur`.
///
/// Blocks the calling goroutine or plain thread. See [`std::thread::park_timeout`].
///
/// ```
/// # gosched::run(|| {
/// gosched::thread::park_timeout(std::time::Duration::from_millis(1));
/// # });
/// ```
pub fn park_timeout(dur: Duration) {
    let deadline = sys::deadline_after(dur);
    if deadline == u64::MAX {
        return park();
    }
    check_cancelled();
    if current_g().is_none() {
        super::current().inner().park_thread(deadline);
        return;
    }
    let inner = current_inner();
    // SAFETY: the goroutine holds a reference to its own `Inner`.
    if unsafe { inner.as_ref() }.take_token() {
        return;
    }
    if !wait_timed(&PARK_TIMEOUT, inner.as_ptr().cast(), deadline) {
        // SAFETY: the goroutine holds a reference to its own `Inner`.
        let has_token = || unsafe { inner.as_ref() }.take_token();
        yield_until(deadline, || has_token() || is_cancelled());
    }
    check_cancelled();
}

/// Sleeps for at least `dur`.
///
/// `Duration::ZERO` returns at once, `Duration::MAX` never returns. Blocks the calling goroutine or
/// plain thread. See [`std::thread::sleep`].
///
/// ```
/// # gosched::run(|| {
/// gosched::thread::sleep(std::time::Duration::from_millis(1));
/// # });
/// ```
pub fn sleep(dur: Duration) {
    check_cancelled();
    if dur.is_zero() {
        return;
    }
    if current_g().is_none() {
        return std::thread::sleep(dur);
    }
    let deadline = sys::deadline_after(dur);
    if !wait_timed(&SLEEP, std::ptr::null(), deadline) {
        yield_until(deadline, is_cancelled);
    }
    check_cancelled();
}

/// Sleeps unconditionally: takes no token and does not unwind.
pub(crate) fn rest(dur: Duration) {
    let deadline = sys::deadline_after(dur);
    if current_g().is_none() {
        std::thread::sleep(dur);
    } else if !wait_timed(&SLEEP, std::ptr::null(), deadline) {
        yield_until(deadline, || false);
    }
}

/// The fallback without memory for a timer: yields until the deadline.
#[cold]
pub(crate) fn yield_until(deadline: u64, is_done: impl Fn() -> bool) {
    while sys::monotonic_ns() < deadline && !is_done() {
        if let Some((m, g)) = current_m().and_then(|m| Some((m, m.curg()?))) {
            crate::sched::park::yield_now(m, g);
        }
    }
}

fn is_cancelled() -> bool {
    current_g().is_some_and(|g| g.is_cancelled())
}

/// Waits with `ops`, at most until the deadline. False: there is no memory for a timer.
pub(crate) fn wait_timed(ops: &'static WaitOps, arg: *const c_void, deadline: u64) -> bool {
    wait_timed_in(enter(), ops, arg, deadline)
}

/// As [`wait_timed`], from inside the runtime.
pub(crate) fn wait_timed_in(
    rt: Entered,
    ops: &'static WaitOps,
    arg: *const c_void,
    deadline: u64,
) -> bool {
    let Some(g) = rt.g() else { return true };
    g.set_deadline(deadline.max(NO_MEMORY + 1));
    // SAFETY: PK: `arg` is of the kind that `ops.arg` names; the callers in this file and in
    // `waitq` pass it so.
    unsafe { park_in(rt, ops, arg) };
    if g.has_timer() {
        // The goroutine has not seen the result of its wait yet. If it yielded here, a drop of its
        // runtime would abandon it in a run queue, together with that result (D2).
        let _whole = no_preempt(PreemptOff::HalfDone);
        let _rt = enter();
        g.sched().disarm(g);
    }
    g.deadline() != NO_MEMORY
}
