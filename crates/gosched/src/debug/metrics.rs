//! The scheduler's counters, summed.
//!
//! Nobody is stopped: counters have one writer each and are read as they are, lists are counted under the scheduler lock.
//! How many goroutines run, are runnable, in calls or wait follows from the queues and the Ms, as Go ≥ 1.26 has it: what is
//! neither running nor queued nor in a call waits. A goroutine on its way from one to the other may be counted as waiting.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use crate::sched::Sched;
use crate::sched::life::teardown;
use crate::sched::model::p::{Counters, P, PStatus};
use crate::sched::model::ptr::{Mp, Pp};
use crate::sched::park::enter;
use crate::stack::Guard;

/// The counters of a runtime at one moment: what [`debug::metrics`](crate::debug::metrics) returns.
///
/// Displays as a table.
///
/// ```
/// gosched::run(|| {
///     let before = gosched::debug::metrics();
///     gosched::yield_now();
///     let after = gosched::debug::metrics();
///     assert_eq!(after.yields - before.yields, 1);
///     assert_eq!(after.per_proc.len(), after.procs);
///     println!("{after}");
/// });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// GOMAXPROCS.
    pub procs: usize,
    /// Ps that nobody runs on.
    pub idle_procs: usize,
    /// Whether goroutines have their own thread-locals; false under
    /// [`shared_thread_locals`](crate::Builder::shared_thread_locals).
    pub own_thread_locals: bool,
    /// Whether goroutines that compute without a call are made to give way; false under
    /// [`preemption(false)`](crate::Builder::preemption) and `GOSCHED_DEBUG=asyncpreemptoff=1`.
    pub preemption: bool,
    /// The program has replaced the handler of the preemption signal: they are not, after all.
    pub signal_lost: bool,
    /// How goroutines are noticed that block their thread without [`blocking`](crate::blocking): `"kernel state"`, or what
    /// takes its place and why, such as `"cpu clock only: /proc cannot be read"` (they keep their processor for 10 ms, not
    /// 1 ms), `"by signal: no membarrier"` (what they wait in is cut short), `"off: no membarrier, no preemption"`.
    pub unmarked: &'static str,
    /// Threads that run goroutines, those being started included; sysmon and creator are not.
    pub threads: usize,
    /// Of these, asleep without a P.
    pub idle_threads: usize,
    /// Of these, looking for work.
    pub spinning_threads: usize,
    /// Of these, waiting with a goroutine that was preempted in the middle of its code, until it has a processor again.
    pub parked_threads: usize,
    /// Of these, without a processor since it was taken from them in an unmarked call; those that have come back
    /// meanwhile are counted until sysmon looks.
    pub strays: usize,
    /// Goroutines that have not ended.
    pub goroutines: usize,
    /// Of these, on a run queue, the preempted ones included.
    pub runnable: usize,
    /// Of these, running on a processor; never more than `procs`.
    pub running: usize,
    /// Of these, in a call that blocks, or may, without a processor of their own.
    pub in_calls: usize,
    /// Of these, the rest.
    pub waiting: usize,
    /// Of the runnable ones, on the global queue.
    pub global_queue: usize,
    /// Pending timers.
    pub timers: usize,
    /// Goroutines started so far.
    pub spawns: u64,
    /// Goroutines ended so far.
    pub ends: u64,
    /// Times that a P took goroutines from another.
    pub steals: u64,
    /// Goroutines taken so.
    pub stolen: u64,
    /// Times that a thread passed its P on.
    pub handoffs: u64,
    /// Times that a goroutine began to wait.
    pub parks: u64,
    /// Times that a waiting goroutine was made runnable.
    pub readies: u64,
    /// Times that a thread was woken to look for work.
    pub wakes: u64,
    /// Times that half of a full local queue went to the global one.
    pub overflows: u64,
    /// Times that a goroutine gave the others a turn.
    pub yields: u64,
    /// Times that a goroutine had to make room at a call into this library, because its time slice was over.
    pub preempts: u64,
    /// Times that a goroutine had to make room in the middle of its code, where its thread waits with it.
    pub parked: u64,
    /// Times that one could not, because [`max_threads`](crate::Builder::max_threads) leaves no threads for others.
    pub refused: u64,
    /// Signals sent to threads that compute.
    pub signals: u64,
    /// System calls that such a signal met after all, and that were put back: they begin anew, and so does their timeout.
    pub restarted: u64,
    /// System calls that it met and cut short: they return EINTR.
    pub interrupted: u64,
    /// Calls of [`blocking`](crate::blocking) that left a processor behind.
    pub syscalls: u64,
    /// Processors taken from such calls because they took long.
    pub retaken: u64,
    /// Processors taken from goroutines that blocked their thread without `blocking`.
    pub claimed: u64,
    /// Attempts at that which were called off: the goroutine moved.
    pub cancelled: u64,
    /// Times that a goroutine was found computing without a processor after such a call.
    pub overshoots: u64,
    /// The CPU time that these had used until then, in nanoseconds.
    pub overshoot_ns: u64,
    /// Times that sysmon has looked around.
    pub sysmon_looks: u64,
    /// Lost wake-ups that sysmon found and healed. Anything but 0 is a bug of this crate.
    pub rescues: u64,
    /// Goroutines that dropped runtimes of this process have abandoned.
    pub leaked_goroutines: u64,
    /// Threads that could not be ended when this runtime was dropped.
    pub leaked_threads: usize,
    /// The memory of stacks.
    pub stacks: StackMetrics,
    /// Each P in use.
    pub per_proc: Vec<ProcMetrics>,
}

/// What a runtime's stacks take; part of [`Metrics`].
///
/// ```
/// gosched::run(|| {
///     let stacks = gosched::debug::metrics().stacks;
///     assert!(stacks.in_use >= 1 && stacks.mapped_bytes > 0);
/// });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StackMetrics {
    /// Promised: one for every goroutine that has not ended, and a few in advance.
    pub reserved: usize,
    /// With goroutines and in the caches of Ps.
    pub in_use: usize,
    /// Free, with memory behind them.
    pub free_hot: usize,
    /// Free, without memory.
    pub free_cold: usize,
    /// Address space; memory is taken only for what goroutines have touched.
    pub mapped_bytes: usize,
    /// How overflows are caught: `"guard markers"` (Linux 6.13 and later) or `"mprotect"`.
    pub guard: &'static str,
}

/// One P; part of [`Metrics`].
///
/// ```
/// gosched::run(|| {
///     let metrics = gosched::debug::metrics();
///     assert!(metrics.per_proc.iter().any(|p| p.status == "running" && p.ticks > 0));
/// });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProcMetrics {
    /// Its number.
    pub id: usize,
    /// `"idle"`, `"running"`, `"syscall"`, `"gcstop"` (the world is stopped) or `"dead"`.
    pub status: &'static str,
    /// Time slices so far.
    pub ticks: u32,
    /// Scheduling decisions so far: goroutines that it picked to run. Up to 60 of the latest may be missing.
    pub decisions: u64,
    /// Goroutines on its queue.
    pub queued: usize,
    /// Whether one is to run next, before those.
    pub has_next: bool,
    /// Goroutines started here.
    pub spawns: u64,
    /// Times that it took goroutines from another P.
    pub steals: u64,
    /// Calls of [`blocking`](crate::blocking) that left it behind.
    pub syscalls: u64,
}

/// The word for a P's state.
pub(super) fn status_name(status: PStatus) -> &'static str {
    match status {
        PStatus::Idle => "idle",
        PStatus::Running => "running",
        PStatus::Syscall => "syscall",
        PStatus::GcStop => "gcstop",
        PStatus::Dead => "dead",
    }
}

fn proc_metrics(p: &P) -> ProcMetrics {
    ProcMetrics {
        id: p.id as usize,
        status: status_name(p.status()),
        ticks: p.schedtick.load(Relaxed),
        decisions: p.counters.decisions.get(),
        queued: p.runq.len() as usize,
        has_next: !p.runq.peek_next().is_null(),
        spawns: p.counters.spawns.get(),
        steals: p.counters.steals.get(),
        syscalls: p.counters.syscalls.get(),
    }
}

/// Whether a goroutine runs on this P.
fn is_running(p: Pp) -> bool {
    let curg = p.m.load(Relaxed).and_then(|m| m.curg());
    // While the world is stopped its leader still runs.
    matches!(p.status(), PStatus::Running | PStatus::GcStop) && curg.is_some()
}

/// Whether its goroutine is in a call. One that comes back has a P a moment before it says so.
fn is_in_call(m: Mp) -> bool {
    m.claim.is_away() && m.curg().is_some() && m.p.load(Relaxed).is_none()
}

/// How unmarked blocking is noticed, by what there is to notice it with.
fn unmarked(has_proc: bool, has_membarrier: bool, preemption: bool) -> &'static str {
    match (has_membarrier, has_proc) {
        (true, true) => "kernel state",
        (true, false) => "cpu clock only: /proc cannot be read",
        (false, _) if !preemption => "off: no membarrier, no preemption",
        (false, true) => "by signal: no membarrier",
        (false, false) => "by signal, cpu clock only: no membarrier, /proc cannot be read",
    }
}

/// What is counted under the scheduler lock.
struct Counts {
    threads: u32,
    idle_threads: u32,
    parked_threads: u32,
    global_queue: usize,
    running: usize,
    in_calls: usize,
}

impl Counts {
    fn of(sched: &Sched, procs: usize) -> Counts {
        let core = sched.core.lock();
        let ms = std::iter::successors(core.allm, |m| m.alllink.get());
        Counts {
            threads: core.mcount,
            idle_threads: core.nmidle,
            parked_threads: core.nparked,
            global_queue: core.runq.len(),
            // As many as are told of: there may be more by now.
            running: sched.procs().take(procs).filter(|p| is_running(*p)).count(),
            in_calls: ms.filter(|m| is_in_call(*m)).count(),
        }
    }
}

/// The counters of `sched`, from any thread, in user context.
pub(crate) fn metrics_of(sched: &Sched) -> Metrics {
    // Made before: inside the runtime nothing is allocated (D9).
    let mut per_proc = Vec::with_capacity(sched.nprocs() as usize);
    let rt = enter();
    let goroutines = sched.goroutines() as usize;
    for p in sched.procs().take(per_proc.capacity()) {
        per_proc.push(proc_metrics(&p));
    }
    let counts = Counts::of(sched, per_proc.len());
    let metrics = gather(sched, goroutines, &counts, per_proc);
    drop(rt);
    metrics
}

fn gather(
    sched: &Sched,
    goroutines: usize,
    counts: &Counts,
    per_proc: Vec<ProcMetrics>,
) -> Metrics {
    let sum = |pick: fn(&Counters) -> u64| -> u64 {
        let ps = sched.allp.iter().map_while(|p| p.load(Relaxed));
        ps.map(|p| pick(&p.counters)).sum::<u64>() + pick(&sched.outside)
    };
    let queued = |p: &ProcMetrics| p.queued + usize::from(p.has_next);
    let runnable = counts.global_queue + per_proc.iter().map(queued).sum::<usize>();
    let elsewhere = runnable + counts.running + counts.in_calls;
    let calls = &sched.calls;
    Metrics {
        procs: per_proc.len(),
        idle_procs: sched.npidle.load(Relaxed) as usize,
        own_thread_locals: sched.tls.is_own(),
        preemption: sched.config.preemption,
        signal_lost: calls.is_signal_lost.load(Relaxed),
        unmarked: unmarked(
            !calls.has_no_proc.load(Relaxed),
            !calls.has_no_membarrier.load(Relaxed),
            sched.config.preemption,
        ),
        threads: counts.threads as usize,
        idle_threads: counts.idle_threads as usize,
        spinning_threads: sched.spin.count() as usize,
        parked_threads: counts.parked_threads as usize,
        strays: sched.strays.count.load(Relaxed) as usize,
        goroutines,
        runnable,
        running: counts.running,
        in_calls: counts.in_calls,
        waiting: goroutines.saturating_sub(elsewhere),
        global_queue: counts.global_queue,
        timers: sched.pending_timers(),
        spawns: sum(|c| c.spawns.get()),
        ends: sum(|c| c.ends.get()),
        steals: sum(|c| c.steals.get()),
        stolen: sum(|c| c.stolen.get()),
        handoffs: sum(|c| c.handoffs.get()),
        parks: sum(|c| c.parks.get()),
        readies: sum(|c| c.readies.get()),
        wakes: sum(|c| c.wakes.get()),
        overflows: sum(|c| c.overflows.get()),
        yields: sum(|c| c.yields.get()),
        preempts: sum(|c| c.preempts.get()),
        parked: calls.parked.get(),
        refused: calls.refused.get(),
        signals: calls.signals.get(),
        restarted: calls.restarted.get(),
        interrupted: calls.interrupted.get(),
        syscalls: sum(|c| c.syscalls.get()),
        retaken: calls.retaken.get(),
        claimed: calls.claimed.get(),
        cancelled: calls.cancelled.get(),
        overshoots: calls.overshoots.get(),
        overshoot_ns: calls.overshoot_ns.get(),
        sysmon_looks: sched.sysmon.looks.load(Relaxed),
        rescues: sum(|c| c.rescues.get()),
        leaked_goroutines: teardown::leaked_goroutines(),
        leaked_threads: sched.leaked_ms.load(Relaxed) as usize,
        stacks: stack_metrics(sched),
        per_proc,
    }
}

fn stack_metrics(sched: &Sched) -> StackMetrics {
    let stats = sched.arena.stats();
    StackMetrics {
        reserved: stats.reserved,
        in_use: stats.in_use,
        free_hot: stats.free_hot,
        free_cold: stats.free_cold,
        mapped_bytes: stats.mapped_bytes,
        guard: match stats.guard {
            Guard::Lightweight => "guard markers",
            Guard::Mprotect => "mprotect",
        },
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_now(f)?;
        for (name, value) in self.counters() {
            writeln!(f, "{name:<10} {value:>10}")?;
        }
        self.fmt_calls(f)?;
        writeln!(
            f,
            "   P  status       ticks  queued  next      spawns      steals    syscalls"
        )?;
        for p in &self.per_proc {
            let next = if p.has_next { "yes" } else { "no" };
            writeln!(
                f,
                "{:>4}  {:<8} {:>9} {:>7}  {next:<4} {:>11} {:>11} {:>11}",
                p.id, p.status, p.ticks, p.queued, p.spawns, p.steals, p.syscalls
            )?;
        }
        Ok(())
    }
}

impl Metrics {
    /// What there is at the moment.
    fn fmt_now(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.own_thread_locals {
            true => "their own",
            false => "their thread's",
        };
        writeln!(
            f,
            "procs      {:>10}   idle {}, goroutines with {whose} thread-locals",
            self.procs, self.idle_procs
        )?;
        writeln!(
            f,
            "threads    {:>10}   idle {}, spinning {}, parked {}, stray {}",
            self.threads,
            self.idle_threads,
            self.spinning_threads,
            self.parked_threads,
            self.strays
        )?;
        writeln!(
            f,
            "goroutines {:>10}   running {}, runnable {} ({} global), in calls {}, waiting {}",
            self.goroutines,
            self.running,
            self.runnable,
            self.global_queue,
            self.in_calls,
            self.waiting
        )?;
        writeln!(f, "timers     {:>10}", self.timers)?;
        let stacks = &self.stacks;
        writeln!(
            f,
            "stacks     {:>10}   reserved {}, free {} hot and {} cold, {} MiB mapped, {}",
            stacks.in_use,
            stacks.reserved,
            stacks.free_hot,
            stacks.free_cold,
            stacks.mapped_bytes >> 20,
            stacks.guard,
        )
    }

    /// Preemption and blocking calls.
    fn fmt_calls(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let preemption = match (self.preemption, self.signal_lost) {
            (false, _) => "off",
            (true, false) => "on",
            (true, true) => "on, but the signal does not arrive",
        };
        writeln!(
            f,
            "signals    {:>10}   parked {}, refused {}, met calls {} (put back) and {}; preemption {preemption}",
            self.signals, self.parked, self.refused, self.restarted, self.interrupted
        )?;
        writeln!(
            f,
            "syscalls   {:>10}   retaken {}",
            self.syscalls, self.retaken
        )?;
        writeln!(
            f,
            "claimed    {:>10}   cancelled {}, overshoots {} ({} µs); unmarked calls: {}",
            self.claimed,
            self.cancelled,
            self.overshoots,
            self.overshoot_ns / 1000,
            self.unmarked
        )
    }

    fn counters(&self) -> [(&'static str, u64); 15] {
        [
            ("spawns", self.spawns),
            ("ends", self.ends),
            ("steals", self.steals),
            ("stolen", self.stolen),
            ("handoffs", self.handoffs),
            ("parks", self.parks),
            ("readies", self.readies),
            ("wakes", self.wakes),
            ("overflows", self.overflows),
            ("yields", self.yields),
            ("preempts", self.preempts),
            ("looks", self.sysmon_looks),
            ("rescues", self.rescues),
            ("leaked Gs", self.leaked_goroutines),
            ("leaked Ms", self.leaked_threads as u64),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let all = |preemption| {
            let has = [(true, true), (false, true), (true, false), (false, false)];
            has.map(|(proc, membarrier)| unmarked(proc, membarrier, preemption))
        };
        assert_eq!(all(true)[..2], all(false)[..2], "no signal is needed");
        for text in all(true) {
            let is_usual = text == "kernel state";
            assert_eq!(is_usual, text == all(true)[0]);
            assert_eq!(text.contains("/proc"), text.contains("cpu clock only"));
            assert_eq!(text.contains("no membarrier"), text.contains("by signal"));
        }
        assert!(all(false)[2..].iter().all(|text| text.starts_with("off")));
    }
}
