//! The scheduler's counters, summed. One table per struct defines each metric and where it comes
//! from.
//!
//! To add a metric, add a line to a table below, and count: in [`Counters`] for what happens on a
//! P, in `CallCounters` of `sched/monitor/retake.rs` for blocking and preemption. The struct, its
//! documentation, the copying and the line of the text follow from the table.
//!
//! No goroutine is stopped. A counter has one writer and is read as it is; lists are counted under
//! the scheduler lock. How many goroutines run, are runnable, are in calls or wait follows from the
//! queues and the Ms, as in Go 1.26 and later: a goroutine that is neither running nor queued nor
//! in a call waits. A goroutine that moves between these states may be counted as waiting.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use crate::base::once_box::OnceBox;
use crate::sched::Sched;
use crate::sched::life::teardown;
use crate::sched::model::p::{Count, Counters, P, PStatus};
use crate::sched::model::ptr::{Mp, Pp};
use crate::sched::model::watch::CallCounters;
use crate::sched::park::enter;
use crate::stack::{ArenaStats, Guard};
use crate::tls::{Room, Surplus};

/// A struct of metrics, from a table with one line for each:
///
/// ```text
/// KIND(UNIT) FIELD: TYPE, "NAME IN THE TEXT" = SOURCE;
/// ```
///
/// - The kind is `Counter` (only grows), `Gauge` (what there is at the moment), `Setting` or
///   `Part`; kind and unit end the field's documentation. Settings and parts have no unit.
/// - A metric with a name in the text has a line of its own there. The other metrics share the
///   lines of `fmt_now` and `fmt_calls`, or are not in the text.
/// - The last line, after `=>`, is a part that the caller of `gather` supplies.
/// - An exporter for Prometheus calls a metric `gosched_FIELD`, and a counter
///   `gosched_FIELD_total`.
macro_rules! metrics {
    (
        $(#[$meta:meta])*
        pub struct $name:ident from $source:ty;
        $(
            $(#[$doc:meta])*
            $kind:ident $(($unit:literal))? $field:ident: $type:ty $(, $text:literal)? = $from:expr;
        )*
        $(=> $(#[$moved_doc:meta])* $moved:ident: $moved_type:ty;)?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct $name {
            $(
                $(#[$doc])*
                #[doc = ""]
                #[doc = concat!(stringify!($kind) $(, ", in ", $unit)?, ".")]
                pub $field: $type,
            )*
            $($(#[$moved_doc])* pub $moved: $moved_type,)?
        }

        impl $name {
            /// The metrics as the table has them.
            fn gather(source: &$source $(, $moved: $moved_type)?) -> $name {
                $(
                    let from: fn(&$source) -> $type = $from;
                    let $field = from(source);
                )*
                $name { $($field,)* $($moved,)? }
            }

            /// The metrics that have a line of their own in the text.
            #[allow(dead_code, reason = "a part of the metrics has no such lines")]
            fn lines(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$($(($text, self.$field as u64),)?)*].into_iter()
            }
        }
    };
}

metrics! {
    /// The counters of a runtime at one moment: what [`debug::metrics`](crate::debug::metrics)
    /// returns.
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
    pub struct Metrics from Sources<'_>;

    /// GOMAXPROCS.
    Gauge("Ps") procs: usize = |s| s.procs;
    /// Ps without a thread.
    Gauge("Ps") idle_procs: usize = |s| s.sched.spin.npidle.load(Relaxed) as usize;
    /// Whether goroutines have their own thread-locals; false under
    /// [`shared_thread_locals`](crate::Builder::shared_thread_locals).
    Setting own_thread_locals: bool = |s| s.sched.tls.is_own();
    /// Whether goroutines use libc's room for static thread-locals of libraries that are loaded
    /// later.
    Setting static_tls: StaticTls = |s| StaticTls::new(&s.sched.tls);
    /// Whether goroutines that compute without a call are preempted; false under
    /// [`preemption(false)`](crate::Builder::preemption) and `GOSCHED_DEBUG=asyncpreemptoff=1`.
    Setting preemption: bool = |s| s.sched.config.preemption;
    /// Whether the program has replaced the handler of the preemption signal. If so, goroutines
    /// that compute without a call are not preempted.
    Setting signal_lost: bool = |s| s.calls().is_signal_lost.load(Relaxed);
    /// How the runtime notices goroutines that block their thread without
    /// [`blocking`](crate::blocking).
    Setting unmarked: BlockDetection = |s| BlockDetection::new(
        !s.calls().has_no_proc.load(Relaxed),
        !s.calls().has_no_membarrier.load(Relaxed),
        s.sched.config.preemption,
    );
    /// Threads that run goroutines, including those that are being started. sysmon and the creator
    /// are not among them.
    Gauge("threads") threads: usize = |s| s.counts.threads as usize;
    /// Of these threads, those that are asleep without a P.
    Gauge("threads") idle_threads: usize = |s| s.counts.idle_threads as usize;
    /// Of these threads, those that look for work.
    Gauge("threads") spinning_threads: usize = |s| s.sched.spin.count() as usize;
    /// Of these threads, those that wait with a goroutine that was preempted in the middle of its
    /// code, until it has a processor again.
    Gauge("threads") parked_threads: usize = |s| s.counts.parked_threads as usize;
    /// Of these threads, those that have no processor since it was taken from them in an unmarked
    /// call. A thread that has returned from its call is counted until sysmon notices.
    Gauge("threads") strays: usize = |s| s.sched.strays.count.load(Relaxed) as usize;
    /// Goroutines that have not ended.
    Gauge("goroutines") goroutines: usize = |s| s.goroutines;
    /// Of these goroutines, those on a run queue, preempted ones included.
    Gauge("goroutines") runnable: usize = |s| s.runnable;
    /// Of these goroutines, those that run on a processor; never more than `procs`.
    Gauge("goroutines") running: usize = |s| s.counts.running;
    /// Of these goroutines, those in a call that blocks, or may block, without a processor of their
    /// own.
    Gauge("goroutines") in_calls: usize = |s| s.counts.in_calls;
    /// Of these goroutines, all others.
    Gauge("goroutines") waiting: usize = |s| {
        let elsewhere = s.runnable + s.counts.running + s.counts.in_calls;
        s.goroutines.saturating_sub(elsewhere)
    };
    /// Of the runnable goroutines, those on the global queue.
    Gauge("goroutines") global_queue: usize = |s| s.counts.global_queue;
    /// Pending timers.
    Gauge("timers") timers: usize = |s| s.sched.pending_timers();
    /// Goroutines started so far.
    Counter("goroutines") spawns: u64, "spawns" = |s| s.sum(|c| &c.spawns);
    /// Goroutines ended so far.
    Counter("goroutines") ends: u64, "ends" = |s| s.sum(|c| &c.ends);
    /// Times that a P took goroutines from another P.
    Counter("events") steals: u64, "steals" = |s| s.sum(|c| &c.steals);
    /// Goroutines taken in this way.
    Counter("goroutines") stolen: u64, "stolen" = |s| s.sum(|c| &c.stolen);
    /// Times that a thread handed its P off.
    Counter("events") handoffs: u64, "handoffs" = |s| s.sum(|c| &c.handoffs);
    /// Times that a goroutine began to wait.
    Counter("events") park_count: u64, "parks" = |s| s.sum(|c| &c.parks);
    /// Times that a waiting goroutine was made runnable.
    Counter("events") readies: u64, "readies" = |s| s.sum(|c| &c.readies);
    /// Times that a thread was woken to look for work.
    Counter("events") wakes: u64, "wakes" = |s| s.sum(|c| &c.wakes);
    /// Times that half of a full local queue went to the global queue.
    Counter("events") overflows: u64, "overflows" = |s| s.sum(|c| &c.overflows);
    /// Times that a goroutine yielded.
    Counter("events") yields: u64, "yields" = |s| s.sum(|c| &c.yields);
    /// Times that a goroutine was preempted at a call into this library, because its time slice was
    /// over.
    Counter("events") preempts: u64, "preempts" = |s| s.sum(|c| &c.preempts);
    /// Times that a goroutine was preempted in the middle of its code. Such a goroutine holds its
    /// thread: the thread waits with it until it has a processor again.
    Counter("events") threads_held_by_preempted: u64 = |s| s.calls().parked.get();
    /// Times that a goroutine could not be preempted in the middle of its code, because
    /// [`max_threads`](crate::Builder::max_threads) leaves no threads for other goroutines.
    Counter("events") refused: u64 = |s| s.calls().refused.get();
    /// Signals sent to threads that compute.
    Counter("signals") signals: u64 = |s| s.calls().signals.get();
    /// System calls that such a signal interrupted and that were put back. They begin anew, and so
    /// does their timeout.
    Counter("calls") restarted: u64 = |s| s.calls().restarted.get();
    /// System calls that such a signal cut short: they return EINTR.
    Counter("calls") interrupted: u64 = |s| s.calls().interrupted.get();
    /// Calls of [`blocking`](crate::blocking) that left a processor behind.
    Counter("calls") syscalls: u64 = |s| s.sum(|c| &c.syscalls);
    /// Processors taken from calls of `blocking` because they took long.
    Counter("Ps") retaken: u64 = |s| s.calls().retaken.get();
    /// Processors taken from goroutines that blocked their thread without `blocking`.
    Counter("Ps") claimed: u64 = |s| s.calls().claimed.get();
    /// Attempts at this that were called off, because the goroutine made progress.
    Counter("events") cancelled: u64 = |s| s.calls().cancelled.get();
    /// Times that a goroutine was found computing without a processor after an unmarked call.
    Counter("events") overshoots: u64 = |s| s.calls().overshoots.get();
    /// The CPU time that these goroutines had used until then.
    Counter("nanoseconds") overshoot_ns: u64 = |s| s.calls().overshoot_ns.get();
    /// Scans of the Ps by sysmon.
    Counter("events") sysmon_looks: u64, "looks" = |s| s.sched.sysmon.looks.load(Relaxed);
    /// Lost wake-ups that sysmon found and repaired. Anything but 0 is a bug of this crate.
    Counter("events") rescues: u64, "rescues" = |s| s.sum(|c| &c.rescues);
    /// Calls of goroutines that `gosched-hook` left to the C library, where they may have held a
    /// thread. For the whole process. 0 without that crate.
    Counter("calls") calls_left_to_libc: u64 = |_| crate::hook::left();
    /// Goroutines that dropped runtimes of this process have abandoned.
    Counter("goroutines") leaked_goroutines: u64, "leaked Gs" = |_| teardown::leaked_goroutines();
    /// Threads that could not be ended when this runtime was dropped.
    Counter("threads") leaked_threads: usize, "leaked Ms" = |s| {
        s.sched.leaked_ms.load(Relaxed) as usize
    };
    /// The memory of stacks.
    Part stacks: StackMetrics = |s| StackMetrics::gather(&s.sched.arena.stats());

    =>
    /// Each P in use.
    per_proc: Vec<ProcMetrics>;
}

metrics! {
    /// The stacks of a runtime; part of [`Metrics`].
    ///
    /// ```
    /// gosched::run(|| {
    ///     let stacks = gosched::debug::metrics().stacks;
    ///     assert!(stacks.in_use >= 1 && stacks.mapped_bytes > 0);
    /// });
    /// ```
    pub struct StackMetrics from ArenaStats;

    /// Promised: one for every goroutine that has not ended, and a few in advance.
    Gauge("stacks") reserved: usize = |s| s.reserved;
    /// With goroutines and in the caches of Ps.
    Gauge("stacks") in_use: usize = |s| s.in_use;
    /// Free, with memory behind them.
    Gauge("stacks") free_hot: usize = |s| s.free_hot;
    /// Free, without memory.
    Gauge("stacks") free_cold: usize = |s| s.free_cold;
    /// Address space; memory is taken only for what goroutines have touched.
    Gauge("bytes") mapped_bytes: usize = |s| s.mapped_bytes;
    /// How overflows are caught.
    Setting guard: StackGuard = |s| StackGuard::new(s.guard);
}

metrics! {
    /// One P; part of [`Metrics`].
    ///
    /// ```
    /// use gosched::debug::{ProcMetrics, ProcStatus};
    /// gosched::run(|| {
    ///     let metrics = gosched::debug::metrics();
    ///     let runs = |p: &ProcMetrics| p.status == ProcStatus::Running && p.ticks > 0;
    ///     assert!(metrics.per_proc.iter().any(runs));
    /// });
    /// ```
    pub struct ProcMetrics from P;

    /// Its number.
    Setting id: usize = |p| p.id as usize;
    /// Its state.
    Setting status: ProcStatus = |p| ProcStatus::new(p.status());
    /// Time slices so far.
    Counter("time slices") ticks: u32 = |p| p.schedtick.load(Relaxed);
    /// Scheduling decisions so far: goroutines that it picked to run. Up to 60 of the latest may be
    /// missing.
    Counter("decisions") decisions: u64 = |p| p.counters.decisions.get();
    /// Goroutines on its queue.
    Gauge("goroutines") queued: usize = |p| p.runq.len() as usize;
    /// Whether one more goroutine is in `runnext`: it runs before those on the queue.
    Setting has_next: bool = |p| !p.runq.peek_next().is_null();
    /// Goroutines started on this P.
    Counter("goroutines") spawns: u64 = |p| p.counters.spawns.get();
    /// Times that it took goroutines from another P.
    Counter("events") steals: u64 = |p| p.counters.steals.get();
    /// Calls of [`blocking`](crate::blocking) that left it behind.
    Counter("calls") syscalls: u64 = |p| p.counters.syscalls.get();
}

/// An enum of metrics, with the text of each variant.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$doc:meta])* $variant:ident $text:literal,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $(#[doc = concat!("`\"", $text, "\"`")] #[doc = ""] $(#[$doc])* $variant,)*
        }

        impl $name {
            /// The text, as [`Display`](fmt::Display) prints it.
            ///
            #[doc = concat!("See the example of [`", stringify!($name), "`].")]
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words! {
    /// How a runtime notices goroutines that block their thread without
    /// [`blocking`](crate::blocking); part of [`Metrics`].
    ///
    /// ```
    /// use gosched::debug::BlockDetection;
    /// gosched::run(|| {
    ///     match gosched::debug::metrics().unmarked {
    ///         BlockDetection::KernelState => {}
    ///         other => println!("unmarked calls: {other}"),
    ///     }
    /// });
    /// ```
    pub enum BlockDetection {
        /// The kernel is asked what the thread does. A goroutine that blocks loses its processor
        /// after 1 ms.
        KernelState "kernel state",
        /// A goroutine without CPU time for 10 ms is taken for blocked.
        CpuClock "cpu clock only: /proc cannot be read",
        /// A signal makes the blocked thread give its processor up. The signal cuts the call short.
        Signal "by signal: no membarrier",
        /// Both of these: a signal, after 10 ms without CPU time.
        SignalAndCpuClock "by signal, cpu clock only: no membarrier, /proc cannot be read",
        /// Unmarked calls keep their processors.
        Off "off: no membarrier, no preemption",
    }
}

words! {
    /// The user of the room that libc keeps for libraries with initial-exec thread-locals; part of
    /// [`Metrics`].
    ///
    /// ```
    /// use gosched::debug::StaticTls;
    /// gosched::run(|| {
    ///     match gosched::debug::metrics().static_tls {
    ///         StaticTls::Reserved | StaticTls::Shared => {}
    ///         other => println!("a waiting goroutine needs two pages: {other}"),
    ///     }
    /// });
    /// ```
    pub enum StaticTls {
        /// Goroutines, for their stacks. A waiting goroutine needs one page.
        Reserved "reserved for goroutines",
        /// Libraries: [`keep_static_tls`](crate::Builder::keep_static_tls) or
        /// `GOSCHED_DEBUG=keepstatictls=1`.
        Kept "kept for libraries",
        /// Libraries: this crate is part of a library itself, and the room is its host's.
        Hosts "the host's",
        /// Libraries: no memfd, no `/proc`, a tiny `RLIMIT_FSIZE`, or libc did not give all of it.
        Unavailable "not available",
        /// Libraries: goroutines have no thread-locals of their own.
        Shared "not needed: shared thread-locals",
    }
}

words! {
    /// How stack overflows are caught; part of [`StackMetrics`].
    ///
    /// ```
    /// use gosched::debug::StackGuard;
    /// gosched::run(|| {
    ///     let guard = gosched::debug::metrics().stacks.guard;
    ///     assert!(matches!(guard, StackGuard::Markers | StackGuard::Mprotect));
    /// });
    /// ```
    pub enum StackGuard {
        /// Markers in the page table: Linux 6.13 and later.
        Markers "guard markers",
        /// A protected page, which costs a mapping for each stack.
        Mprotect "mprotect",
    }
}

words! {
    /// The state of a P; part of [`ProcMetrics`].
    ///
    /// ```
    /// use gosched::debug::ProcStatus;
    /// gosched::run(|| {
    ///     let per_proc = gosched::debug::metrics().per_proc;
    ///     assert!(per_proc.iter().any(|p| p.status == ProcStatus::Running));
    ///     assert_eq!(ProcStatus::Running.to_string(), "running");
    /// });
    /// ```
    pub enum ProcStatus {
        /// No thread has it.
        Idle "idle",
        /// A thread runs goroutines with it, or looks for some.
        Running "running",
        /// A thread left it behind in a call of [`blocking`](crate::blocking).
        Syscall "syscall",
        /// The world is stopped.
        GcStop "gcstop",
        /// Its number is beyond GOMAXPROCS.
        Dead "dead",
    }
}

impl ProcStatus {
    pub(super) fn new(status: PStatus) -> ProcStatus {
        match status {
            PStatus::Idle => ProcStatus::Idle,
            PStatus::Running => ProcStatus::Running,
            PStatus::Syscall => ProcStatus::Syscall,
            PStatus::GcStop => ProcStatus::GcStop,
            PStatus::Dead => ProcStatus::Dead,
        }
    }
}

impl StaticTls {
    fn new(room: &Room) -> StaticTls {
        match room.surplus {
            _ if !room.is_own() => StaticTls::Shared,
            Surplus::Reserved => StaticTls::Reserved,
            Surplus::Wanted => StaticTls::Kept,
            Surplus::Hosts => StaticTls::Hosts,
            Surplus::Unavailable => StaticTls::Unavailable,
        }
    }
}

impl StackGuard {
    fn new(guard: Guard) -> StackGuard {
        match guard {
            Guard::Lightweight => StackGuard::Markers,
            Guard::Mprotect => StackGuard::Mprotect,
        }
    }
}

impl BlockDetection {
    /// By what there is to notice blocked threads with.
    fn new(has_proc: bool, has_membarrier: bool, preemption: bool) -> BlockDetection {
        match (has_membarrier, has_proc) {
            (true, true) => BlockDetection::KernelState,
            (true, false) => BlockDetection::CpuClock,
            (false, _) if !preemption => BlockDetection::Off,
            (false, true) => BlockDetection::Signal,
            (false, false) => BlockDetection::SignalAndCpuClock,
        }
    }
}

impl Metrics {
    /// [`Metrics::park_count`], by its old name.
    ///
    /// See the example of [`Metrics`].
    #[deprecated(note = "read the field `park_count`")]
    #[must_use]
    pub fn parks(&self) -> u64 {
        self.park_count
    }

    /// [`Metrics::threads_held_by_preempted`], by its old name.
    ///
    /// See the example of [`Metrics`].
    #[deprecated(note = "read the field `threads_held_by_preempted`")]
    #[must_use]
    pub fn parked(&self) -> u64 {
        self.threads_held_by_preempted
    }
}

/// Whether a goroutine runs on this P.
fn is_running(p: Pp) -> bool {
    let curg = p.m.load(Relaxed).and_then(|m| m.curg());
    // While the world is stopped its leader still runs.
    matches!(p.status(), PStatus::Running | PStatus::GcStop) && curg.is_some()
}

/// Whether the goroutine of `m` is in a call. An M that returns has a P a moment before its claim
/// word shows it.
fn is_in_call(m: Mp) -> bool {
    m.claim.is_away() && m.curg().is_some() && m.p.load(Relaxed).is_none()
}

/// What is counted under the scheduler lock.
struct LockedCounts {
    threads: u32,
    idle_threads: u32,
    parked_threads: u32,
    global_queue: usize,
    running: usize,
    in_calls: usize,
}

impl LockedCounts {
    fn of(sched: &Sched, procs: usize) -> LockedCounts {
        let core = sched.core.lock();
        let ms = std::iter::successors(core.allm, |m| m.alllink.get());
        LockedCounts {
            threads: core.mcount,
            idle_threads: core.nmidle,
            parked_threads: core.nparked,
            global_queue: core.runq.len(),
            // Only the Ps in `per_proc`: there may be more by now.
            running: sched.procs().take(procs).filter(|p| is_running(*p)).count(),
            in_calls: ms.filter(|m| is_in_call(*m)).count(),
        }
    }
}

/// Where the table of [`Metrics`] has its figures from.
struct Sources<'a> {
    sched: &'a Sched,
    goroutines: usize,
    procs: usize,
    runnable: usize,
    counts: LockedCounts,
}

impl Sources<'_> {
    /// The counters of blocking and preemption.
    fn calls(&self) -> &CallCounters {
        &self.sched.calls
    }

    /// The sum of a counter over all Ps, and over what happened outside of every P.
    fn sum(&self, pick: fn(&Counters) -> &Count) -> u64 {
        let ps = self.sched.allp.iter().map_while(OnceBox::get);
        let on_ps: u64 = ps.map(|p| pick(&p.counters).get()).sum();
        on_ps + pick(&self.sched.outside).get()
    }
}

/// The counters of `sched`, from any thread, in user context.
pub(crate) fn metrics_of(sched: &Sched) -> Metrics {
    // Allocated before `enter`: inside the runtime nothing is allocated (D9).
    let mut per_proc = Vec::with_capacity(sched.nprocs() as usize);
    let rt = enter();
    let goroutines = sched.goroutines() as usize;
    for p in sched.procs().take(per_proc.capacity()) {
        per_proc.push(ProcMetrics::gather(&p));
    }
    let counts = LockedCounts::of(sched, per_proc.len());
    let queued = |p: &ProcMetrics| p.queued + usize::from(p.has_next);
    let sources = Sources {
        sched,
        goroutines,
        procs: per_proc.len(),
        runnable: counts.global_queue + per_proc.iter().map(queued).sum::<usize>(),
        counts,
    };
    let metrics = Metrics::gather(&sources, per_proc);
    drop(rt);
    metrics
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_now(f)?;
        for (name, value) in self.lines() {
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
    /// The figures of the moment.
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
            self.signals,
            self.threads_held_by_preempted,
            self.refused,
            self.restarted,
            self.interrupted
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let all = |preemption| {
            let has = [(true, true), (false, true), (true, false), (false, false)];
            has.map(|(proc, membarrier)| BlockDetection::new(proc, membarrier, preemption).as_str())
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
