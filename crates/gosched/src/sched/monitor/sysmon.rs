//! sysmon: the monitor thread, which never holds a P (SM).
//!
//! It exists for what no M sees by itself. sysmon
//!
//! - takes Ps from goroutines that block, and preempts goroutines that compute (`retake`);
//! - runs due timers that no M runs;
//! - writes the coarse clock, so that spawn, park and switch read no real one (D3);
//! - prints `schedtrace`;
//! - counts and repairs lost wake-ups, which must never happen (`rescues`).
//!
//! How often sysmon scans:
//!
//! ```text
//!  20 µs         a marked call holds a P that others want
//!  0.25 ms       goroutines wait, and a P may be stuck
//!  0.5 or 1 ms   goroutines wait, and all Ps make progress, or their threads wait for a CPU
//!  up to 10 ms   otherwise: the interval doubles while any P is in use
//!  asleep        every P is idle. sysmon looks for a deadlock first. While strays without a
//!                timer exist, it wakes every 100 ms to read their CPU clocks (`stray`)
//! ```
//!
//! The state of the pause is one word:
//!
//! ```text
//!  word    meaning                                      what ends it early
//!  AWAKE   sysmon scans                                 –
//!  NAP     a short pause between two scans              a readied goroutine without a P (`press`)
//!  DOZE    a longer pause between two scans             also a spawned goroutine without a P
//!  REST    a pause after the last press was served      –
//!  ASLEEP  every P is idle                              an M that takes a P
//!  CALLED  scan now                                     –
//! ```
//!
//! Why REST exists. Where goroutines wake each other all the time, every scan finds the last press
//! served. The next press would end the pause that follows: two system calls a scan, for nothing.
//! So the pause after a served press is a *rest*, which a press does not end. A rest is short, and
//! the scan after it sees the presses made meanwhile. Consecutive rests get longer.
//!
//! `nap` has the words of the pause and their order.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

use crate::base::upcall::Upcall;
use crate::sched::Sched;
use crate::sched::calls::room::Shortage;
use crate::sched::life::deadlock;
use crate::sched::model::ptr::Pp;
use crate::sched::model::watch::SysmonState;
use crate::sched::model::watch::nap::{ASLEEP, AWAKE, DOZE, NAP, Nap, REST};
use crate::sys;

/// The first and the longest pause between two scans.
const TICK_MIN_NS: u64 = 1_000_000;
const TICK_MAX_NS: u64 = 10_000_000;
/// The pause while overdue timers remain. Their number shows that the machine is busy with other
/// work.
const OVERDUE_NS: u64 = 250_000;
/// A pause longer than this is a DOZE, a shorter one a NAP.
const NAP_NS: u64 = 1_000_000;
/// The first rest, and the longest.
const REST_NS: u64 = 250_000;
const REST_MAX_NS: u64 = 1_000_000;
/// sysmon leaves a P's timers to its M for this long after the M's last check. Before that no
/// goroutine would be preempted for them either (`PRESS_NS`).
const LOOKED_NS: u64 = 500_000;
/// A timer late by this much is not being run by the watcher.
const LATE_NS: u64 = 1_000_000;
/// After this many scans at the shortest interval without taking a P, sysmon slows down.
const FAST_LOOKS: u32 = 50;
/// Scans of an idle runtime before sysmon sleeps.
const IDLE_LOOKS: u32 = 3;
/// How often sysmon reads the CPU clocks of strays without a timer while all else is idle.
const STRAYS_NS: u64 = 100_000_000;
/// Free memory is returned this long after sysmon first sees it. A burst soon after another one
/// still finds the memory.
const SCAVENGE_AFTER_NS: u64 = 5_000_000_000;
/// How often the stacks of waiting goroutines are checked.
const SHRINK_PERIOD_NS: u64 = 5_000_000_000;
/// The kernel's time slice for this thread: it needs little CPU time, but at once.
const KERNEL_SLICE_NS: u64 = 100_000;

/// Prints the line of `schedtrace`. `debug/attach.rs` sets it.
pub(crate) static SCHEDTRACE: Upcall<fn(&Sched, u64)> = Upcall::new();

impl SysmonState {
    pub(crate) fn new() -> SysmonState {
        SysmonState {
            nap: Nap::new(),
            is_served: AtomicBool::new(false),
            rest_ns: AtomicU64::new(REST_NS),
            calm: AtomicU32::new(0),
            fatal_deadline_ns: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        }
    }

    /// Ends any sleep of sysmon, also a pause between two scans.
    #[cold]
    pub(crate) fn wake(&self) {
        self.nap.wake();
    }

    /// Whether sysmon is in a longer pause.
    #[inline]
    pub(crate) fn is_dozing(&self) -> bool {
        self.nap.word.0.load(Relaxed) == DOZE
    }

    /// A goroutine was queued and no P is idle. If sysmon is just about to doze and this load
    /// misses it, the next scan sees the goroutine.
    #[inline]
    pub(crate) fn work_waits(&self) {
        if self.is_dozing() {
            self.wake();
        }
    }

    /// A goroutine was readied and no P is idle.
    #[inline]
    pub(crate) fn press(&self) {
        self.nap.press();
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.nap.is_pressed()
    }

    /// Withdraws the press if `is_served` returns that no goroutine waits. sysmon.
    pub(crate) fn unpress_if(&self, is_served: impl FnOnce() -> bool) -> bool {
        let is_served = self.nap.unpress_if(is_served);
        if is_served {
            self.is_served.store(true, Relaxed);
        }
        is_served
    }

    /// Returns how many consecutive scans before this one were calm: goroutines waited, and all Ps
    /// made progress. sysmon.
    pub(crate) fn calm_looks(&self, is_calm: bool) -> u32 {
        let looks = self.calm.load(Relaxed);
        self.calm
            .store(if is_calm { looks.saturating_add(1) } else { 0 }, Relaxed);
        if is_calm { looks } else { 0 }
    }

    /// Whether all Ps made progress at the last scan.
    pub(crate) fn is_calm(&self) -> bool {
        self.calm.load(Relaxed) != 0
    }

    /// How long the next pause is, and its word. sysmon.
    fn measure(&self, ns: u64) -> (u64, u32) {
        let rest = self.rest_ns.load(Relaxed);
        if !self.is_served.swap(false, Relaxed) {
            self.rest_ns.store((rest / 2).max(REST_NS), Relaxed);
            return (ns, if ns > NAP_NS { DOZE } else { NAP });
        }
        self.rest_ns.store((rest * 2).min(REST_MAX_NS), Relaxed);
        (ns.min(rest), REST)
    }

    /// A timer for `when` was set, or exists, that no M watches.
    pub(crate) fn timer_set(&self, when: u64) {
        self.nap.timer_set(when);
    }
}

/// What one scan leaves for the next.
struct Seen {
    idle_looks: u32,
    /// Scans at the shortest interval since a P was taken.
    fast_looks: u32,
    tick_ns: u64,
    /// The activity count at which runnable goroutines were found with no M searching.
    stranded_at: Option<u64>,
    next_trace_ns: u64,
    /// When memory to return was first seen; 0: there is none.
    garbage_since_ns: u64,
    watch: deadlock::Watch,
    /// When to check for stacks to shrink, and the park count at the last check.
    next_shrink_ns: u64,
    parks: u64,
    had_parks: bool,
    shortage: Shortage,
}

/// The thread's function; returns when the runtime is dropped.
pub(crate) fn run(sched: &Sched) {
    sys::set_timer_slack_ns(1);
    sys::set_slice_ns(KERNEL_SLICE_NS);
    let mut seen = Seen {
        idle_looks: 0,
        fast_looks: 0,
        tick_ns: TICK_MIN_NS,
        stranded_at: None,
        next_trace_ns: 0,
        garbage_since_ns: 0,
        watch: deadlock::Watch::new(),
        next_shrink_ns: sched.started_ns + SHRINK_PERIOD_NS,
        parks: 0,
        had_parks: false,
        shortage: Shortage::default(),
    };
    while !sched.dead.load(Acquire) {
        if seen.idle_looks >= IDLE_LOOKS && sched.config.schedtrace_ms.is_none() {
            sleep_while_idle(sched, &mut seen);
        } else {
            sched.pause(seen.tick_ns);
        }
        let now = sys::monotonic_ns();
        sched.update_clock(now);
        sched.sysmon.looks.fetch_add(1, Relaxed);
        check_fatal(sched, now);
        sched.run_due_timers(now);
        sched.poll_net_if_late(now);
        let (pace, has_taken) = sched.retake(now);
        if has_taken {
            seen.fast_looks = 0;
        }
        sched.watch_room(now, &mut seen.shortage);
        let all_idle = sched.spin.npidle.load(Relaxed) == sched.nprocs();
        // A listed stray that comes back then finds a P.
        let has_too_many_strays = sched.strays.listed.load(Relaxed) > sched.nprocs();
        let is_idle = all_idle && !has_too_many_strays && !sched.room.is_awaited();
        seen.idle_looks = if is_idle { seen.idle_looks + 1 } else { 0 };
        set_pace(&mut seen, pace);
        rescue(sched, &mut seen);
        scavenge(sched, now, &mut seen);
        if let Some(period_ms) = sched.config.schedtrace_ms
            && now >= seen.next_trace_ns
        {
            seen.next_trace_ns = now + period_ms * 1_000_000;
            if let Some(print) = SCHEDTRACE.get() {
                print(sched, now);
            }
        }
    }
}

/// Sets the next pause: `pace` if a P is urgent, else twice the last pause.
fn set_pace(seen: &mut Seen, pace: Option<u64>) {
    let slower = (seen.tick_ns * 2).min(TICK_MAX_NS);
    let Some(pace) = pace else {
        seen.fast_looks = 0;
        seen.tick_ns = slower.max(TICK_MIN_NS);
        return;
    };
    let is_slower = pace < TICK_MIN_NS / 4 && seen.fast_looks >= FAST_LOOKS;
    seen.fast_looks = if pace < TICK_MIN_NS / 4 {
        seen.fast_looks + 1
    } else {
        0
    };
    seen.tick_ns = if is_slower {
        slower.min(TICK_MIN_NS)
    } else {
        pace
    };
}

/// Sleeps until an M takes a P off the idle list. Looks for a deadlock now and then, and also
/// returns when it is time to return memory.
fn sleep_while_idle(sched: &Sched, seen: &mut Seen) {
    seen.watch.reset();
    let garbage_at = match seen.garbage_since_ns {
        0 => u64::MAX,
        since => since + SCAVENGE_AFTER_NS,
    };
    if sched.sysmon.fatal_deadline_ns.load(SeqCst) != 0 {
        sched.pause(TICK_MAX_NS); // a fatal report is under way: watch its deadline
        return;
    }
    loop {
        let look_at = seen.watch.look(sched).unwrap_or(u64::MAX);
        // If no M watches the timers, sysmon does.
        let timer_at = match sched.poller.is_watching() {
            true => u64::MAX,
            false => sched.next_timer().min(sched.net_late_at()),
        };
        let strays_at = match sched.strays.listed.load(Relaxed) {
            0 => u64::MAX,
            _ => sys::monotonic_ns() + STRAYS_NS,
        };
        let work_at = garbage_at.min(timer_at).min(strays_at);
        if sched.sysmon_sleep(look_at.min(work_at)) || work_at <= look_at {
            break;
        }
    }
    seen.idle_looks = 0;
    seen.fast_looks = 0;
    seen.tick_ns = TICK_MIN_NS;
}

impl Sched {
    /// An M begins to run: sysmon must scan, and its coarse clock is stale.
    #[inline]
    pub(crate) fn wake_sysmon_if_asleep(&self) {
        if self.sysmon.nap.word.0.load(Relaxed) == ASLEEP {
            self.sysmon.wake();
            self.update_clock(sys::monotonic_ns());
        }
    }

    /// Pauses between two scans, until called, and not far beyond the next timer.
    fn pause(&self, ns: u64) {
        let sysmon = &self.sysmon;
        let (ns, word) = sysmon.measure(ns);
        let now = sys::monotonic_ns();
        sysmon.nap.pause(word, now + ns, || {
            match self.timer_wanted_at().min(self.net_late_at()) {
                overdue if overdue <= now => now + OVERDUE_NS,
                timer => timer,
            }
        });
    }

    /// Sleeps while every P is idle; returns false if the deadline passed.
    pub(in crate::sched) fn sysmon_sleep(&self, until_ns: u64) -> bool {
        let word = &self.sysmon.nap.word;
        word.0.store(ASLEEP, SeqCst);
        // FENCE: the store of ASLEEP before the load of `npidle`. Meets the read-modify-write of
        // `npidle` in `get_idle_p`, which precedes the load of the word in `acquire_p`.
        fence(SeqCst);
        let mut in_time = true;
        if self.spin.npidle.load(Relaxed) == self.nprocs() && !self.dead.load(Relaxed) {
            while in_time && word.0.load(Relaxed) == ASLEEP {
                in_time = word.wait(ASLEEP, Some(until_ns));
            }
        }
        word.0.store(AWAKE, SeqCst);
        in_time
    }

    pub(crate) fn update_clock(&self, now_ns: u64) {
        let ms = ((now_ns - self.started_ns) / 1_000_000) as u32;
        // Every park loads the clock: without a change it stays in the caches of all CPUs.
        if self.coarse_ms() != ms {
            self.now_ms.store(ms, Relaxed);
        }
    }

    /// From when on sysmon must run p's timers. Until then the M that holds p checks them, or the
    /// watcher does.
    fn neglected_at(&self, p: Pp, is_watched: bool) -> u64 {
        let by_owner = match p.m.load(Relaxed) {
            Some(_) => p.timers.looked_ns() + LOOKED_NS,
            None => 0,
        };
        let next = p.timers.next_ns();
        let by_watcher = match is_watched {
            true => next.saturating_add(LATE_NS),
            false => 0,
        };
        next.max(by_owner).max(by_watcher)
    }

    /// When sysmon must run a timer, if nothing changes.
    fn timer_wanted_at(&self) -> u64 {
        let is_watched = self.poller.is_watching();
        let ps = self.timers_holders();
        ps.map(|p| self.neglected_at(p, is_watched))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Runs the timers that no M and no watcher runs.
    fn run_due_timers(&self, now: u64) {
        if self.timer_wanted_at() > now || self.is_stopping() {
            return;
        }
        self.is_carrying.store(true, SeqCst);
        let is_watched = self.poller.is_watching();
        let mut due = self.expire_all(now, |p| self.neglected_at(p, is_watched) > now);
        if !due.is_empty() {
            self.inject_list(None, &mut due);
        }
        self.is_carrying.store(false, SeqCst);
    }
}

/// Heals a lost wake-up: two consecutive scans find a runnable goroutine, an idle P and no M
/// searching, and nothing has happened in between.
fn rescue(sched: &Sched, seen: &mut Seen) {
    let no_m_searches = sched.spin.npidle.load(Relaxed) != 0 && sched.spin.count() == 0;
    // Without the lock first: the look at all queues takes long where there are many Ps.
    if !no_m_searches || sched.is_stopping() || !sched.has_work() {
        seen.stranded_at = None;
        return;
    }
    let core = sched.core.lock();
    let is_stranded = sched.has_work()
        && !core.pidle.is_empty()
        && core.pending.is_empty()
        && core.starting == 0
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

/// Asks an idle M to return memory that has been free for a while. Asks also, once in a while, for
/// the unused stack pages of goroutines that wait long; an idle runtime is not woken for these.
fn scavenge(sched: &Sched, now: u64, seen: &mut Seen) {
    if now >= seen.next_shrink_ns {
        seen.next_shrink_ns = now + SHRINK_PERIOD_NS;
        let parks = sched.procs().map(|p| p.counters.parks.get()).sum();
        // A goroutine that parked just before the last check had not waited long enough then: check
        // once more.
        let is_new = std::mem::replace(&mut seen.parks, parks) != parks;
        if std::mem::replace(&mut seen.had_parks, is_new) || is_new {
            sched.shrink_now.store(true, Relaxed);
            sched.scavenge_now.store(true, Relaxed);
        }
    }
    if !sched.arena.scavenge_due() && !sched.blocks.trim_due() {
        seen.garbage_since_ns = 0;
    } else if seen.garbage_since_ns == 0 {
        seen.garbage_since_ns = now;
    } else if now - seen.garbage_since_ns >= SCAVENGE_AFTER_NS {
        seen.garbage_since_ns = now;
        sched.scavenge_now.store(true, Relaxed);
        sched.wake_p();
    }
}

impl crate::sched::Core {
    /// Whether any M is inside the runtime, and so may be about to wake a goroutine. An M that
    /// sleeps is not, unless it has been given a P and has not run since.
    fn somebody_is_inside(&self) -> bool {
        std::iter::successors(self.allm, |m| m.alllink.get()).any(|m| {
            m.claim.depth() > 0 && (!m.blocked.load(Acquire) || m.nextp.load(Relaxed).is_some())
        })
    }
}

fn check_fatal(sched: &Sched, now: u64) {
    let deadline = sched.sysmon.fatal_deadline_ns.load(Relaxed);
    if deadline != 0 && now >= deadline {
        sys::write_stderr(b"\n(the report was cut short: it took too long)\n");
        sys::exit_process(2);
    }
}
