//! Parking and sleeping, for goroutines and plain threads.

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

/// The `Inner` that a park waits on.
fn inner_of(arg: *const c_void) -> &'static Inner {
    // SAFETY: PK, the parked goroutine holds a reference to its own `Inner`, which is the argument.
    unsafe { &*arg.cast::<Inner>() }
}

unsafe fn claim_parked(g: Gp) -> bool {
    inner_of(g.wait_arg.get()).withdraw_g(g)
}

/// The commit of a wait with a deadline: publishes the Waiting goroutine and its timer in one step, so that whoever wakes it can
/// take the timer out again. Without memory for a timer the wait is refused, and [`wait_timed`] says so.
pub(crate) fn arm(g: Gp, claim: Claim, publish: impl FnOnce() -> bool) -> bool {
    let sched = g.sched();
    let Some(p) = current_m().and_then(|m| m.p.load(Relaxed)) else {
        return publish(); // a dead runtime's: no timer fires there any more
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

/// A timer is the first of p's heap: whoever waits for timers must know. On p's M.
pub(crate) fn announce(sched: &Sched, p: Pp, when: u64) {
    if !sched.poller.kick(when) {
        sched.sysmon.timer_set(when);
        // Nobody watches the timers. This M will, if it goes idle; if it has other work, another one must.
        if !p.runq.is_empty() {
            sched.wake_p();
        }
    }
}

/// In the place of a deadline: there was no memory for a timer.
const NO_MEMORY: u64 = 0;

/// Unwinds a goroutine whose runtime shuts down; elsewhere, and while unwinding already, does nothing.
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

/// Blocks until the goroutine's token is there; see [`std::thread::park`].
///
/// Blocks the goroutine, or the plain thread it is called on.
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
    // SAFETY: the goroutine holds a reference to it.
    if unsafe { inner.as_ref() }.take_token() {
        return;
    }
    // SAFETY: PK, the goroutine's own `Inner`, alive while it waits.
    unsafe { park_g(&PARK, inner.as_ptr().cast()) };
    check_cancelled();
}

/// As [`park`], for at most `dur`; see [`std::thread::park_timeout`].
///
/// Blocks the goroutine, or the plain thread it is called on.
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
    // SAFETY: the goroutine holds a reference to it.
    if unsafe { inner.as_ref() }.take_token() {
        return;
    }
    if !wait_timed(&PARK_TIMEOUT, inner.as_ptr().cast(), deadline) {
        // SAFETY: the goroutine holds a reference to it.
        let has_token = || unsafe { inner.as_ref() }.take_token();
        yield_until(deadline, || has_token() || is_cancelled());
    }
    check_cancelled();
}

/// Blocks for at least `dur`; see [`std::thread::sleep`]. `Duration::ZERO` returns at once, `Duration::MAX` never.
///
/// Blocks the goroutine, or the plain thread it is called on.
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

/// Sleeps whatever happens: takes no token, does not unwind.
pub(crate) fn rest(dur: Duration) {
    let deadline = sys::deadline_after(dur);
    if current_g().is_none() {
        std::thread::sleep(dur);
    } else if !wait_timed(&SLEEP, std::ptr::null(), deadline) {
        yield_until(deadline, || false);
    }
}

/// What is left without memory for a timer: turns, until the time has come.
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

/// Waits as `ops` says, until the deadline at the latest; false: there is no memory for a timer.
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
    // SAFETY: PK, `arg` is what `ops` takes (the callers above, and `waitq`).
    unsafe { park_in(rt, ops, arg) };
    if g.has_timer() {
        // What the wait has brought is not seen yet: in a queue it would be abandoned with that
        // (D2).
        let _whole = no_preempt(PreemptOff::HalfDone);
        let _rt = enter();
        g.sched().disarm(g);
    }
    g.deadline() != NO_MEMORY
}
