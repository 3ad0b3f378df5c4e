//! The scheduler's counters, summed.
//!
//! Nobody is stopped: counters have one writer each and are read as they are, lists are counted under the scheduler lock.
//! How many goroutines run, are runnable or wait follows from the queues, as Go ≥ 1.26 has it: what is neither running nor
//! queued waits.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use crate::context::stack::Guard;
use crate::sched::Sched;
use crate::sched::p::{Counters, P, PStatus};
use crate::sched::park::enter;
use crate::sched::ptr::Pp;
use crate::sched::teardown;

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
    /// Threads that run goroutines, those being started included; sysmon and creator are not.
    pub threads: usize,
    /// Of these, asleep without a P.
    pub idle_threads: usize,
    /// Of these, looking for work.
    pub spinning_threads: usize,
    /// Goroutines that have not ended.
    pub goroutines: usize,
    /// Of these, on a run queue.
    pub runnable: usize,
    /// Of these, running; never more than `procs`.
    pub running: usize,
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
    /// Times that a goroutine had to make room because its time slice was over.
    pub preempts: u64,
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
    /// Goroutines on its queue.
    pub queued: usize,
    /// Whether one is to run next, before those.
    pub has_next: bool,
    /// Goroutines started here.
    pub spawns: u64,
    /// Times that it took goroutines from another P.
    pub steals: u64,
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
        queued: p.runq.len() as usize,
        has_next: !p.runq.peek_next().is_null(),
        spawns: p.counters.spawns.get(),
        steals: p.counters.steals.get(),
    }
}

/// Whether a goroutine runs on this P.
fn is_running(p: Pp) -> bool {
    let curg = p.m.load(Relaxed).and_then(|m| m.curg());
    // While the world is stopped its leader still runs.
    matches!(p.status(), PStatus::Running | PStatus::GcStop) && curg.is_some()
}

/// The counters of `sched`, from any thread, in user context.
pub(crate) fn metrics_of(sched: &Sched) -> Metrics {
    // Made before: inside the runtime nothing is allocated (D9).
    let mut per_proc = Vec::with_capacity(sched.nprocs() as usize);
    let rt = enter();
    let sum = |pick: fn(&Counters) -> u64| -> u64 {
        let ps = sched.allp.iter().map_while(|p| p.load(Relaxed));
        ps.map(|p| pick(&p.counters)).sum::<u64>() + pick(&sched.outside)
    };
    let goroutines = sched.goroutines() as usize;
    for p in sched.procs().take(per_proc.capacity()) {
        per_proc.push(proc_metrics(&p));
    }
    let queued: usize = per_proc
        .iter()
        .map(|p| p.queued + usize::from(p.has_next))
        .sum();
    let core = sched.core.lock();
    let (threads, idle_threads, global_queue) = (core.mcount, core.nmidle, core.runq.len());
    let running = sched.procs().filter(|p| is_running(*p)).count();
    drop(core);
    let runnable = global_queue + queued;
    let metrics = Metrics {
        procs: per_proc.len(),
        idle_procs: sched.npidle.load(Relaxed) as usize,
        own_thread_locals: sched.tls.is_own(),
        threads: threads as usize,
        idle_threads: idle_threads as usize,
        spinning_threads: sched.spin.count() as usize,
        goroutines,
        runnable,
        running,
        waiting: goroutines.saturating_sub(runnable + running),
        global_queue,
        timers: sched.timers.len(),
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
        rescues: sum(|c| c.rescues.get()),
        leaked_goroutines: teardown::leaked_goroutines(),
        leaked_threads: sched.leaked_ms.load(Relaxed) as usize,
        stacks: stack_metrics(sched),
        per_proc,
    };
    drop(rt);
    metrics
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
        writeln!(
            f,
            "procs      {:>10}   idle {}, goroutines with {} thread-locals\n\
             threads    {:>10}   idle {}, spinning {}\n\
             goroutines {:>10}   running {}, runnable {} ({} global), waiting {}\n\
             timers     {:>10}",
            self.procs,
            self.idle_procs,
            if self.own_thread_locals {
                "their own"
            } else {
                "their thread's"
            },
            self.threads,
            self.idle_threads,
            self.spinning_threads,
            self.goroutines,
            self.running,
            self.runnable,
            self.global_queue,
            self.waiting,
            self.timers,
        )?;
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
        )?;
        for (name, value) in self.counters() {
            writeln!(f, "{name:<10} {value:>10}")?;
        }
        writeln!(
            f,
            "   P  status       ticks  queued  next      spawns      steals"
        )?;
        for p in &self.per_proc {
            let next = if p.has_next { "yes" } else { "no" };
            writeln!(
                f,
                "{:>4}  {:<8} {:>9} {:>7}  {next:<4} {:>11} {:>11}",
                p.id, p.status, p.ticks, p.queued, p.spawns, p.steals
            )?;
        }
        Ok(())
    }
}

impl Metrics {
    fn counters(&self) -> [(&'static str, u64); 14] {
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
            ("rescues", self.rescues),
            ("leaked Gs", self.leaked_goroutines),
            ("leaked Ms", self.leaked_threads as u64),
        ]
    }
}
