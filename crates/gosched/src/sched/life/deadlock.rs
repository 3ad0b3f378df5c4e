//! Finds deadlocks: no goroutine runs, and nothing can wake one (U6, D11).
//!
//! A runtime is *quiet* when every M sleeps, no P is pending, no queue holds a goroutine and no
//! timer is set. Before sysmon sleeps over an idle runtime, it looks. A deadlock: every runtime of
//! the process is quiet, and no foreign thread is alive.
//!
//! A foreign thread may hold the other end of anything. While there is one, sysmon looks again
//! after 1 s, 2 s, … 60 s, because the thread may have ended. These are the only wake-ups of a
//! quiet runtime. A goroutine in a blocking call is hope, and no reason to look again: it wakes
//! sysmon when it comes back. `Deadlock::Closed` ignores foreign threads. A receiver of signals may
//! be woken from outside the process, so it is hope in every mode. `sched/README.md` has the proof
//! sketch ("Is there any hope left?").

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::base::fatal;
use crate::base::real_thread;
use crate::sched::Sched;
use crate::sched::life::config::Deadlock;
use crate::sched::life::registry;
use crate::sched::sources::netpoll;
use crate::sched::waiting::futex_late;
use crate::sys;

const LOOK_AGAIN_MAX_S: u64 = 60;

/// How soon to look again while Ms are on their way to sleep.
const SETTLE_NS: u64 = 10_000_000;

/// When sysmon looks again, and what it has reported.
pub(crate) struct Watch {
    wait_s: u64,
    /// The number of time slices when a deadlock was last reported to the program's hook.
    reported_at: Option<u64>,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch {
            wait_s: 1,
            reported_at: None,
        }
    }

    /// The runtime was busy: the next quiet time is a new one.
    pub(crate) fn reset(&mut self) {
        self.wait_s = 1;
    }

    /// Whether any goroutine has run since the last report.
    fn is_news(&mut self, sched: &Sched) -> bool {
        let slices = sched
            .procs()
            .map(|p| u64::from(p.schedtick.load(SeqCst)))
            .sum();
        self.reported_at.replace(slices) != Some(slices)
    }

    /// Looks at a runtime whose Ps are all idle. Reports a deadlock, or returns when to look again,
    /// if at all.
    pub(crate) fn look(&mut self, sched: &Sched) -> Option<u64> {
        let mode = sched.config.deadlock;
        let has_goroutines = sched.goroutines() > 0;
        if mode == Deadlock::Off || sched.has_timers() {
            return None; // a timer that fires wakes sysmon, too
        }
        let (exited, answered) = {
            let core = sched.core.lock();
            (core.mains_exited, core.has_run && core.runners == 0)
        };
        if !has_goroutines && exited == 0 {
            return None; // no goroutine waits
        }
        if mode == Deadlock::Closed && answered {
            return None; // every `run` has its answer: its caller drops the runtime, or runs more
        }
        if sched.waits_for_calls() {
            return None; // an M that comes back wakes sysmon
        }
        if sched.quiet_since().is_none() {
            return Some(sys::monotonic_ns() + SETTLE_NS);
        }
        if has_hope(mode) {
            let wait_s = self.wait_s;
            self.wait_s = (wait_s * 2).min(LOOK_AGAIN_MAX_S);
            return Some(sys::monotonic_ns() + wait_s * 1_000_000_000);
        }
        if sched.config.has_hook {
            if self.is_news(sched) {
                sched.creator.hook_wanted.store(true, SeqCst);
                sched.creator.kick();
            }
            return None;
        }
        fatal::begin();
        sys::eprint_raw(format_args!("fatal error: {}\n", text(has_goroutines)));
        fatal::end()
    }
}

/// The message of a deadlock.
pub(crate) fn text(has_goroutines: bool) -> &'static str {
    if has_goroutines {
        "all goroutines are asleep - deadlock!"
    } else {
        "no goroutines (main called goexit) - deadlock!"
    }
}

/// The number of `signal::notify` channels. While there is one, a deadlock is never certain (D11).
pub(crate) static SIGNAL_RECEIVERS: AtomicUsize = AtomicUsize::new(0);

/// Whether anything in the process may still wake a goroutine.
fn has_hope(mode: Deadlock) -> bool {
    let registry = registry::lock();
    let quiet = || -> Option<u64> {
        let mut activity = 0u64;
        for runtime in registry.runtimes() {
            activity = activity.wrapping_add(runtime.quiet_since()?);
        }
        Some(activity)
    };
    let Some(before) = quiet() else { return true };
    if SIGNAL_RECEIVERS.load(SeqCst) != 0
        || netpoll::driver::outside_has_waiters()
        || futex_late::is_owing()
    {
        return true;
    }
    let has_foreign = mode == Deadlock::Auto && has_foreign(&registry);
    // A thread that moved during the look moved the counts.
    has_foreign || quiet() != Some(before)
}

/// Whether a thread is alive that is not a runtime's: the runtime does not know what it may do.
pub(crate) fn has_foreign_thread() -> bool {
    has_foreign(&registry::lock())
}

fn has_foreign(registry: &registry::Registry) -> bool {
    let mut has_foreign = false;
    let listed = sys::for_each_task(&mut |tid| {
        has_foreign |= registry.is_foreign(tid) && is_alive(tid);
    });
    has_foreign || listed.is_err()
}

/// A thread that has ended but is still listed wakes no goroutine. A thread that vanished while the
/// list was read may have hidden others, so it counts as alive until the next look.
fn is_alive(tid: i32) -> bool {
    !matches!(sys::task_state(tid), Some(b'Z' | b'X'))
}

impl Sched {
    /// Whether all Ms that are awake are in calls. They are counted when they lose their P, because
    /// there may be thousands. All Ps are idle, so an M that comes back takes one, and that wakes
    /// sysmon.
    pub(in crate::sched) fn waits_for_calls(&self) -> bool {
        let core = self.core.lock();
        let in_calls = self.ms_in_calls() + self.strays.count.load(Relaxed) as i32;
        let watching = i32::from(self.poller.is_watching());
        in_calls > 0 && core.awake() == watching + in_calls
    }

    /// The activity count, if every M sleeps and nothing is due.
    fn quiet_since(&self) -> Option<u64> {
        let core = self.core.lock();
        // The watcher counts as asleep: its timer may have been taken out.
        let watching = i32::from(self.poller.is_watching());
        let quiet = core.awake() == watching
            && !self.has_timers()
            && !self.has_net_waiters()
            && core.starting == 0
            && core.pending.is_empty()
            && core.runq.is_empty()
            && !self.gcwaiting.load(SeqCst)
            && !self.is_carrying.load(SeqCst)
            && self.procs().all(|p| p.runq.is_empty());
        quiet.then_some(core.activity)
    }
}

/// What to do about a deadlock instead of a fatal error. It is called with the runtime, on a thread
/// of its own.
pub(crate) type Hook = Arc<dyn Fn(Arc<Sched>) + Send + Sync>;

/// Calls the program's hook, on a thread of its own (D9). On the creator's thread.
pub(crate) fn call_hook(sched: &Arc<Sched>) {
    let hook = sched.hook.lock().ok().and_then(|hook| hook.clone());
    let Some(hook) = hook else { return };
    let sched = Arc::clone(sched);
    let spawned = real_thread::spawn("gosched-deadlock", move || hook(sched));
    if spawned.is_err() {
        sys::write_stderr(b"gosched: no thread for the deadlock hook\n");
    }
}
