//! sysmon: a thread without a P that looks after what nobody else can see (SM).
//!
//! It takes Ps from goroutines that block and makes those that compute give way (`retake`); runs due timers that nobody else runs;
//! writes the coarse clock, so that nobody reads a real one on spawn, park or switch (D3); prints `schedtrace`; and counts and
//! heals wake-ups that were lost, which must never happen (`rescues`).
//!
//! How often it looks: every 20 µs while a marked call holds a P that others want; every quarter of a millisecond while others
//! wait and somebody may be stuck; every half or whole one while they wait and all get on, or have no CPU; else ever less, down to
//! every 10 ms while anybody runs. While every P is idle it looks for a deadlock and sleeps (for a tenth of a second at a time if
//! there are strays whose CPU clocks it must look at, see `stray`).
//!
//! ```text
//!  word    meaning                                          who ends it
//!  AWAKE   it looks                                         –
//!  NAP     between two looks, soon over                     somebody woken who finds no P (`press`)
//!  DOZE    between two looks, for longer                    also anybody who finds no P for what it has started
//!  REST    between two looks, somebody was just served      –
//!  ASLEEP  every P is idle                                  who takes one
//!  CALLED  look now                                         –
//! ```
//!
//! Where goroutines wake each other all the time, every look finds the last one who pressed served, and the next to press would end
//! the pause that follows: two system calls a look, for nobody. So the pause after somebody was found served is a *rest*, which no
//! one ends by pressing: it is short, and at its end sysmon sees who has pressed meanwhile. Rests in a row get longer.
//!
//! The words of the pause and their order are in `nap`.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

use crate::base::upcall::Upcall;
use crate::sched::model::ptr::Pp;
use crate::sched::monitor::nap::{ASLEEP, AWAKE, DOZE, NAP, Nap, REST};
use crate::sched::monitor::room::Shortage;
use crate::sched::{Sched, deadlock};
use crate::sys;

/// Between two looks: at first, and at most.
const TICK_MIN_NS: u64 = 1_000_000;
const TICK_MAX_NS: u64 = 10_000_000;
/// The pause while timers are neglected that were left: where there are so many, the machine is busy with something else.
const OVERDUE_NS: u64 = 250_000;
/// A longer pause is a doze.
const NAP_NS: u64 = 1_000_000;
/// The first rest, and the longest.
const REST_NS: u64 = 250_000;
const REST_MAX_NS: u64 = 1_000_000;
/// A P whose M has looked at its timers no longer ago does so by itself; before that nobody would make room either (`PRESS_NS`).
const LOOKED_NS: u64 = 500_000;
/// A timer is late by so much: whoever should have, does not.
const LATE_NS: u64 = 1_000_000;
/// After so many looks at the shortest pace in which no P was taken it slows down.
const FAST_LOOKS: u32 = 50;
/// Looks at an idle runtime before sysmon sleeps.
const IDLE_LOOKS: u32 = 3;
/// How often strays without a timer are looked at while all else is idle.
const STRAYS_NS: u64 = 100_000_000;
/// How long after it is first seen to lie about memory is returned: a burst soon after another finds it still there.
const SCAVENGE_AFTER_NS: u64 = 5_000_000_000;
/// How often the stacks of waiting goroutines are looked at.
const SHRINK_PERIOD_NS: u64 = 5_000_000_000;
/// The kernel's slice for this thread: it wants little, and at once.
const KERNEL_SLICE_NS: u64 = 100_000;

/// Prints the line of `schedtrace`. `debug/attach.rs` sets it.
pub(crate) static SCHEDTRACE: Upcall<fn(&Sched, u64)> = Upcall::new();

/// sysmon's own state.
pub(crate) struct State {
    pub(in crate::sched) nap: Nap,
    /// sysmon's own: the last look found whoever pressed served; how long the next rest is.
    is_served: AtomicBool,
    rest_ns: AtomicU64,
    /// sysmon's own: looks in a row that found work waiting and everybody getting on.
    calm: AtomicU32,
    /// When a fatal report that hangs is cut short; 0: none under way.
    pub(crate) fatal_deadline_ns: AtomicU64,
    /// Looks so far, for `debug::metrics`.
    pub(crate) looks: AtomicU64,
}

impl State {
    pub(crate) fn new() -> State {
        State {
            nap: Nap::new(),
            is_served: AtomicBool::new(false),
            rest_ns: AtomicU64::new(REST_NS),
            calm: AtomicU32::new(0),
            fatal_deadline_ns: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        }
    }

    /// Ends any sleep, the one between two looks too.
    #[cold]
    pub(crate) fn wake(&self) {
        self.nap.wake();
    }

    /// Whether it is between two looks for longer.
    #[inline]
    pub(crate) fn is_dozing(&self) -> bool {
        self.nap.word.0.load(Relaxed) == DOZE
    }

    /// Something was queued and no P is idle. Missed at the very moment it lies down, it shows at the next look.
    #[inline]
    pub(crate) fn work_waits(&self) {
        if self.is_dozing() {
            self.wake();
        }
    }

    /// Somebody was woken and no P is idle.
    #[inline]
    pub(crate) fn press(&self) {
        self.nap.press();
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.nap.is_pressed()
    }

    /// Takes the request back if `is_served` says that nobody waits. sysmon.
    pub(crate) fn unpress_if(&self, is_served: impl FnOnce() -> bool) -> bool {
        let is_served = self.nap.unpress_if(is_served);
        if is_served {
            self.is_served.store(true, Relaxed);
        }
        is_served
    }

    /// For how many looks before this one work waited and everybody got on. sysmon.
    pub(crate) fn calm_looks(&self, is_calm: bool) -> u32 {
        let looks = self.calm.load(Relaxed);
        self.calm
            .store(if is_calm { looks.saturating_add(1) } else { 0 }, Relaxed);
        if is_calm { looks } else { 0 }
    }

    /// Whether everybody gets on, as far as the last look could tell.
    pub(crate) fn is_calm(&self) -> bool {
        self.calm.load(Relaxed) != 0
    }

    /// How long the pause is to be, and whether it is a rest. sysmon.
    fn measure(&self, ns: u64) -> (u64, u32) {
        let rest = self.rest_ns.load(Relaxed);
        if !self.is_served.swap(false, Relaxed) {
            self.rest_ns.store((rest / 2).max(REST_NS), Relaxed);
            return (ns, if ns > NAP_NS { DOZE } else { NAP });
        }
        self.rest_ns.store((rest * 2).min(REST_MAX_NS), Relaxed);
        (ns.min(rest), REST)
    }

    /// A timer for `when` was put in, or is there, that no M watches.
    pub(crate) fn timer_set(&self, when: u64) {
        self.nap.timer_set(when);
    }
}

/// What one look left behind for the next.
struct Seen {
    idle_looks: u32,
    /// Looks at the shortest pace since a P was taken.
    fast_looks: u32,
    tick_ns: u64,
    /// The activity count at which work lay about with nobody looking.
    stranded_at: Option<u64>,
    next_trace_ns: u64,
    /// When memory to return was first seen; 0: there is none.
    garbage_since_ns: u64,
    watch: deadlock::Watch,
    /// When to look for stacks to shrink, and the parks there had been at the last time.
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
        let all_idle = sched.npidle.load(Relaxed) == sched.nprocs();
        // Those who come back without a P then have one each.
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

/// How long to pause: what is urgent decides; else ever longer.
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

/// Sleeps until a P is taken off the idle list, looking for a deadlock now and then; returns also when it is time to
/// return memory.
fn sleep_while_idle(sched: &Sched, seen: &mut Seen) {
    seen.watch.reset();
    let garbage_at = match seen.garbage_since_ns {
        0 => u64::MAX,
        since => since + SCAVENGE_AFTER_NS,
    };
    if sched.sysmon.fatal_deadline_ns.load(SeqCst) != 0 {
        sched.pause(TICK_MAX_NS); // a report is under way: keep an eye on it
        return;
    }
    loop {
        let look_at = seen.watch.look(sched).unwrap_or(u64::MAX);
        // Where no M is left to watch the timers, this thread does.
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
    /// Somebody begins to run: sysmon must look, and the clock it keeps is stale.
    #[inline]
    pub(crate) fn wake_sysmon_if_asleep(&self) {
        if self.sysmon.nap.word.0.load(Relaxed) == ASLEEP {
            self.sysmon.wake();
            self.update_clock(sys::monotonic_ns());
        }
    }

    /// Waits between two looks, unless called; not long beyond the next timer.
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

    /// Sleeps while every P is idle; false if the deadline passed.
    pub(in crate::sched) fn sysmon_sleep(&self, until_ns: u64) -> bool {
        let word = &self.sysmon.nap.word;
        word.0.store(ASLEEP, SeqCst);
        // FENCE: the announcement before the look at the idle count; meets the read-modify-write of npidle in
        // `get_idle_p`, which precedes the look at the word in `acquire_p`.
        fence(SeqCst);
        let mut in_time = true;
        if self.npidle.load(Relaxed) == self.nprocs() && !self.dead.load(Relaxed) {
            while in_time && word.0.load(Relaxed) == ASLEEP {
                in_time = word.wait(ASLEEP, Some(until_ns));
            }
        }
        word.0.store(AWAKE, SeqCst);
        in_time
    }

    pub(crate) fn update_clock(&self, now_ns: u64) {
        let ms = (now_ns - self.started_ns) / 1_000_000;
        self.now_ms.store(ms as u32, Relaxed);
    }

    /// When a timer of p will have been left undone by everybody else. The M that holds p looks by itself until then, or the watcher.
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

    /// Runs the timers that nobody else does.
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

/// Memory that has lain about for a while is returned: asks an idle M to do it. So is, once in a while, the unused stack of
/// goroutines that wait long; an idle runtime is not woken for that.
fn scavenge(sched: &Sched, now: u64, seen: &mut Seen) {
    if now >= seen.next_shrink_ns {
        seen.next_shrink_ns = now + SHRINK_PERIOD_NS;
        let parks = sched.procs().map(|p| p.counters.parks.get()).sum();
        // Who parked just before the last walk had not waited long enough then: one more.
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
    /// Whether any M is inside the runtime, and so may be about to wake somebody. Sleepers are not, but for one that has been
    /// given a P and has not had a CPU since.
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
