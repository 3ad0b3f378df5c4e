//! Waits that end at a deadline, or when the goroutine is asked to unwind.
//!
//! Every wait of a goroutine with a timeout goes through here. Its commit sets a timer in the step
//! that publishes the goroutine to its wakers.

use std::any::Any;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::sched::Sched;
use crate::sched::model::current::{current_g, current_m};
use crate::sched::model::g::WaitReason;
use crate::sched::model::m::PreemptOff;
use crate::sched::model::ptr::{Gp, Pp};
use crate::sched::park::{Entered, enter, no_preempt, park_in, yield_now};
use crate::sched::sources::timers::{Armed, Claim};
use crate::sched::waiting::wait_ops::{WaitOps, WaitView};
use crate::sys;

pub(crate) static SLEEP: WaitOps<()> = WaitOps {
    reason: WaitReason::Sleep,
    is_open: false,
    commit: |g, ()| arm_with(g, |_| true, || true),
    withdraw: |g, ()| g.sched().disarm(g),
    time_out: |_, ()| true,
    view: |()| WaitView::Nothing,
    pass_on: None,
};

/// The payload of [`join`](crate::thread::JoinHandle::join) if a goroutine ended without a value.
///
/// The goroutine called [`goexit`](crate::goexit), or its runtime was dropped.
///
/// ```
/// # gosched::run(|| {
/// let handle = gosched::thread::spawn(|| { gosched::goexit() });
/// assert!(handle.join().unwrap_err().is::<gosched::thread::Exited>());
/// # });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exited;

impl fmt::Display for Exited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the goroutine ended without returning a value")
    }
}

impl std::error::Error for Exited {}

pub(crate) fn exited() -> Box<dyn Any + Send> {
    Box::new(Exited)
}

/// The commit of a wait with a deadline. It publishes the Waiting goroutine and its timer in one
/// step, so that a waker can remove the timer. Without memory for a timer it refuses the wait, and
/// [`wait_timed`] returns false.
pub(crate) fn arm(g: Gp, publish: impl FnOnce() -> bool) -> bool {
    arm_with(g, time_out, publish)
}

/// The deadline of the goroutine has passed. True: its wake-up is the caller's.
///
/// # Safety
/// As `timers` promises for every [`Claim`]: the goroutine has not returned from the wait in which
/// its timer was set, and does not meanwhile.
unsafe fn time_out(g: Gp) -> bool {
    // SAFETY: the goroutine stays in its wait, as the caller promises.
    unsafe { g.wait() }.is_some_and(|wait| wait.time_out(g))
}

fn arm_with(g: Gp, claim: Claim, publish: impl FnOnce() -> bool) -> bool {
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

/// Sleeps unconditionally: takes no token and does not unwind. A request to unwind does not cut it
/// short.
pub(crate) fn rest(dur: Duration) {
    if current_g().is_none() {
        return std::thread::sleep(dur);
    }
    let deadline = sys::deadline_after(dur);
    while sys::monotonic_ns() < deadline {
        if !wait_timed(&SLEEP, &(), deadline) {
            yield_until(deadline, || false);
        }
    }
}

/// The fallback without memory for a timer: yields until the deadline.
#[cold]
pub(crate) fn yield_until(deadline: u64, is_done: impl Fn() -> bool) {
    while sys::monotonic_ns() < deadline && !is_done() {
        if let Some((m, g)) = current_m().and_then(|m| Some((m, m.curg()?))) {
            yield_now(m, g);
        }
    }
}

/// Waits with `ops`, at most until the deadline. False: there is no memory for a timer.
pub(crate) fn wait_timed<T: Sync>(ops: &'static WaitOps<T>, arg: &T, deadline: u64) -> bool {
    wait_timed_in(enter(), ops, arg, deadline)
}

/// As [`wait_timed`], from inside the runtime.
pub(crate) fn wait_timed_in<T: Sync>(
    rt: Entered,
    ops: &'static WaitOps<T>,
    arg: &T,
    deadline: u64,
) -> bool {
    let Some(g) = rt.g() else { return true };
    g.set_deadline(deadline.max(NO_MEMORY + 1));
    park_in(rt, ops, arg);
    if g.has_timer() {
        // The goroutine has not seen the result of its wait yet. If it yielded here, a drop of its
        // runtime would abandon it in a run queue, together with that result (D2).
        let _whole = no_preempt(PreemptOff::HalfDone);
        let _rt = enter();
        g.sched().disarm(g);
    }
    g.deadline() != NO_MEMORY
}
