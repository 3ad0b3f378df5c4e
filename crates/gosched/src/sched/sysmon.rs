//! sysmon: a thread without a P that looks after what nobody else can see.
//!
//! It writes the coarse clock, so that nobody reads a real one on spawn, park or switch (D3); asks goroutines
//! that have had their slice to make room (U4: a pair that wakes each other through `next` shares one slice);
//! runs due timers when every P is busy; prints `schedtrace`; and counts and heals wake-ups that were lost,
//! which must never happen (`rescues`). While every P is idle it sleeps without a deadline.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use super::Sched;
use super::p::PStatus;
use crate::debug::schedtrace;
use crate::os;
use crate::shim::Futex;

/// A goroutine's time slice.
const SLICE_NS: u64 = 10_000_000;
/// Between two looks: at first, and at most.
const TICK_MIN_NS: u64 = 1_000_000;
const TICK_MAX_NS: u64 = 10_000_000;
/// Looks at an idle runtime before sysmon sleeps.
const IDLE_LOOKS: u32 = 3;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// sysmon's own state.
pub(crate) struct State {
    word: Futex,
    /// When a fatal report that hangs is cut short; 0: none under way.
    pub(crate) fatal_deadline_ns: AtomicU64,
}

impl State {
    pub(crate) fn new() -> State {
        State {
            word: Futex::new(AWAKE),
            fatal_deadline_ns: AtomicU64::new(0),
        }
    }

    /// Somebody begins to run: sysmon must look.
    #[inline]
    pub(crate) fn wake_if_asleep(&self) {
        if self.word.0.load(Relaxed) == ASLEEP {
            self.wake();
        }
    }

    #[cold]
    pub(crate) fn wake(&self) {
        if self.word.0.swap(AWAKE, SeqCst) == ASLEEP {
            Futex::wake_one(&self.word);
        }
    }
}

/// What one look left behind for the next.
#[derive(Default)]
struct Seen {
    idle_looks: u32,
    tick_ns: u64,
    /// The activity count at which work lay about with nobody looking.
    stranded_at: Option<u64>,
    next_trace_ns: u64,
}

/// The thread's function; returns when the runtime is dropped.
pub(crate) fn run(sched: &Sched) {
    let mut seen = Seen {
        tick_ns: TICK_MIN_NS,
        ..Seen::default()
    };
    while !sched.dead.load(Acquire) {
        let is_tracing = sched.config.schedtrace_ms.is_some();
        if seen.idle_looks >= IDLE_LOOKS && !is_tracing {
            sched.sysmon_sleep();
            seen.idle_looks = 0;
            seen.tick_ns = TICK_MIN_NS;
        } else {
            os::sleep_ns(seen.tick_ns);
        }
        let now = os::monotonic_ns();
        sched.update_clock(now);
        check_fatal(sched, now);
        let all_idle = sched.npidle.load(Relaxed) == sched.nprocs();
        seen.idle_looks = if all_idle { seen.idle_looks + 1 } else { 0 };
        let did = ask_overdue(sched, now) | sched.run_due_timers(now);
        seen.tick_ns = if did {
            TICK_MIN_NS
        } else {
            (seen.tick_ns * 2).min(TICK_MAX_NS)
        };
        rescue(sched, &mut seen);
        if let Some(period_ms) = sched.config.schedtrace_ms
            && now >= seen.next_trace_ns
        {
            seen.next_trace_ns = now + period_ms * 1_000_000;
            schedtrace::print(sched, now);
        }
    }
}

impl Sched {
    fn sysmon_sleep(&self) {
        self.sysmon.word.0.store(ASLEEP, SeqCst);
        // FENCE: the announcement before the look at the idle count; meets the read-modify-write of npidle in
        // `get_idle_p`, which precedes the look at the word in `acquire_p`.
        fence(SeqCst);
        if self.npidle.load(Relaxed) == self.nprocs() && !self.dead.load(Relaxed) {
            while self.sysmon.word.0.load(Relaxed) == ASLEEP {
                self.sysmon.word.wait(ASLEEP, None);
            }
        }
        self.sysmon.word.0.store(AWAKE, SeqCst);
    }

    pub(crate) fn update_clock(&self, now_ns: u64) {
        let ms = (now_ns - self.started_ns) / 1_000_000;
        self.now_ms.store(ms as u32, Relaxed);
    }

    fn run_due_timers(&self, now: u64) -> bool {
        if self.timers.next_ns() > now || self.poller.is_watching() || self.is_stopping() {
            return false;
        }
        let mut due = self.timers.expire(now);
        if due.is_empty() {
            return false;
        }
        self.inject_list(None, &mut due);
        true
    }
}

/// Asks the goroutine of each P that has not begun a new slice for 10 ms (the request is seen when it next
/// leaves the runtime).
fn ask_overdue(sched: &Sched, now: u64) -> bool {
    let mut asked = false;
    for p in sched.procs().filter(|p| p.status() == PStatus::Running) {
        let tick = p.schedtick.load(Relaxed);
        if tick != p.seen_tick.get() {
            p.seen_tick.set(tick);
            p.seen_since_ns.set(now);
        } else if now - p.seen_since_ns.get() >= SLICE_NS
            && let Some(m) = p.m.load(Relaxed)
        {
            m.preempt.store(true, Relaxed);
            asked = true;
        }
    }
    asked
}

/// Work, an idle P, and nobody looking, twice in a row with nothing happening in between: a lost wake-up.
fn rescue(sched: &Sched, seen: &mut Seen) {
    if sched.npidle.load(Relaxed) == 0 || sched.is_stopping() {
        seen.stranded_at = None;
        return;
    }
    let core = sched.core.lock();
    let work = !core.runq.is_empty() || sched.procs().any(|p| !p.runq.is_empty());
    let is_stranded = work
        && core.pidle.is_some()
        && core.pending.is_none()
        && sched.spin.count() == 0
        && !core.somebody_is_inside();
    if !is_stranded {
        seen.stranded_at = None;
    } else if seen.stranded_at == Some(core.activity) {
        seen.stranded_at = None;
        sched.outside.rescues.add_shared(1);
        drop(core);
        sched.wake_p();
    } else {
        seen.stranded_at = Some(core.activity);
    }
}

impl super::Core {
    /// Whether any M is inside the runtime, and so may be about to wake somebody. Sleepers are not.
    fn somebody_is_inside(&self) -> bool {
        std::iter::successors(self.allm, |m| m.alllink.get())
            .any(|m| m.in_rt.load(Acquire) > 0 && !m.blocked.load(Acquire))
    }
}

fn check_fatal(sched: &Sched, now: u64) {
    let deadline = sched.sysmon.fatal_deadline_ns.load(Relaxed);
    if deadline != 0 && now >= deadline {
        os::write_stderr(b"\n(the report was cut short: it took too long)\n");
        os::exit_process(2);
    }
}
