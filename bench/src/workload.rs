//! The list of all workloads, in the order of `all`. Each group of workloads is a file of its own.
//!
//! A workload describes the work and its usual size; its ports do it on each runtime. All ports of
//! a workload do the same work, so their figures can be divided by one another.

use std::fmt::Write;
use std::io;

use crate::port::Mode;
use crate::rounds::Round;
use crate::{
    blocks, chans, crowds, existing, hogs, locks, mallocs, parked, selects, servers, sleeps,
    spawns, submits, wakes, world, yields,
};

/// How much work one run does.
#[derive(Clone, Copy)]
pub struct Params {
    /// The size of the work; its unit is in the workload's `about`.
    pub n: usize,
    /// Measured rounds.
    pub rounds: usize,
    /// The number of Ps.
    pub procs: usize,
}

/// One workload on one runtime.
pub struct Port {
    /// The runtime's name, the second word of a line.
    pub runtime: &'static str,
    /// Its name in comparisons, as in `own-shared`.
    pub short: &'static str,
    /// How it starts.
    start: Start,
}

/// Starts a port and returns its round.
pub type StartGosched = fn(&Params, Mode) -> io::Result<Round>;
/// The same for a port without a mode.
pub type StartStd = fn(&Params) -> io::Result<Round>;

enum Start {
    Gosched(StartGosched, Mode),
    Std(StartStd),
}

impl Port {
    /// The workload on gosched in one mode.
    pub const fn gosched(mode: Mode, start: StartGosched) -> Port {
        Port {
            runtime: mode.runtime(),
            short: mode.short(),
            start: Start::Gosched(start, mode),
        }
    }

    /// The workload on gosched in both modes.
    pub const fn gosched_both(start: StartGosched) -> [Port; 2] {
        [
            Port::gosched(Mode::Own, start),
            Port::gosched(Mode::Shared, start),
        ]
    }

    /// The workload on plain threads.
    pub const fn std(start: StartStd) -> Port {
        Port::threads("std", start)
    }

    /// The workload on plain threads with crossbeam-channel.
    pub const fn crossbeam(start: StartStd) -> Port {
        Port::threads("crossbeam", start)
    }

    const fn threads(name: &'static str, start: StartStd) -> Port {
        Port {
            runtime: name,
            short: name,
            start: Start::Std(start),
        }
    }

    /// Starts it; dropping the result releases everything.
    pub fn start(&self, params: &Params) -> io::Result<Round> {
        match self.start {
            Start::Gosched(start, mode) => start(params, mode),
            Start::Std(start) => start(params),
        }
    }
}

/// Which rounds of a process a figure is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// All measured rounds: the round that the metric keeps, usually the best.
    Best,
    /// The first round of every fresh process: the median.
    First,
    /// The second round of every fresh process: the median.
    Second,
}

impl When {
    /// What a program adds to the metric's name.
    pub const fn suffix(self) -> &'static str {
        match self {
            When::Best => "",
            When::First => "_first",
            When::Second => "_second",
        }
    }
}

/// The goal of a figure: at most this value; for shares, at least.
pub struct Goal {
    /// The second word of the figure's line. In a comparison it may also be `gosched-hooked`, or
    /// a ratio such as `own/go`; `own/peers` is the ratio to the best peer.
    pub runtime: &'static str,
    /// The third.
    pub metric: &'static str,
    /// Which rounds it is for. Only a comparison has first rounds.
    pub when: When,
    pub value: f64,
    pub unit: &'static str,
}

impl Goal {
    pub const fn new(
        runtime: &'static str,
        metric: &'static str,
        value: f64,
        unit: &'static str,
    ) -> Goal {
        Goal {
            runtime,
            metric,
            when: When::Best,
            value,
            unit,
        }
    }

    /// The same goal for other rounds.
    pub const fn when(self, when: When) -> Goal {
        Goal { when, ..self }
    }

    /// The goal as a line of output: the figure's line, with `_goal` at the metric.
    pub fn line(&self, workload: &str) -> String {
        let Goal {
            runtime,
            metric,
            when,
            value,
            unit,
        } = self;
        let suffix = when.suffix();
        format!("{workload} {runtime} {metric}{suffix}_goal {value} {unit}\n")
    }
}

/// The part of a workload that runs in a child process.
pub type Child = fn(&Params, Mode) -> io::Result<()>;

/// A fixed amount of work with a name.
pub struct Workload {
    /// The first word of a line.
    pub name: &'static str,
    /// What is done and measured, in one line, with the meaning of n.
    pub about: &'static str,
    /// The default n.
    pub n: usize,
    /// The default number of rounds.
    pub rounds: usize,
    /// Whether an unmeasured round comes first; not for work that takes long and does not change.
    pub has_warm_up: bool,
    /// The ports, in the order of their turns.
    pub ports: &'static [Port],
    /// The metrics by which the first port is compared with the others.
    pub compared: &'static [&'static str],
    /// The goals of its figures, where there are any.
    pub goals: &'static [Goal],
    /// The part that runs in a child process, if there is one.
    pub child: Option<Child>,
}

/// The number of rounds of a workload that needs no other.
pub const ROUNDS_DEFAULT: usize = 5;

/// Every workload, in the order of `all`.
pub static ALL: [Workload; 43] = [
    yields::YIELD,
    spawns::SPAWN,
    spawns::SPAWN_BURST,
    spawns::GO_BURST,
    submits::SUBMIT_16,
    spawns::FIB,
    chans::PINGPONG_1W,
    chans::PINGPONG_2W,
    chans::CHAN_SPSC,
    chans::CHAN_MPMC,
    chans::CHAN_UNBOUNDED,
    selects::SELECT_2,
    selects::SELECT_8,
    crowds::SKYNET,
    crowds::SIEVE,
    locks::MUTEX,
    sleeps::TIMERS,
    sleeps::TIMERS_10K,
    sleeps::TIMER_RESET,
    mallocs::MALLOC,
    parked::IDLE_1M,
    parked::IDLE_100K,
    wakes::FOREIGN_WAKE,
    world::STW,
    world::RESIZE_CHAIN,
    hogs::HOG,
    hogs::HOG_RELAY,
    hogs::HOG_SLEPT,
    blocks::BLOCK,
    blocks::BLOCK_MARKED,
    blocks::BLOCKING,
    blocks::ENTER,
    servers::TCP_ECHO,
    servers::TCP_IDLE,
    servers::TCP_ACCEPT,
    servers::ACCEPT_BURST,
    servers::TCP_HOGS,
    servers::HTTP_HELLO,
    existing::STD_ECHO,
    existing::STD_MUTEX,
    existing::STD_MPSC,
    existing::UREQ_4000,
    parked::IDLE_CPU,
];

/// The workload of that name.
pub fn find(name: &str) -> Option<&'static Workload> {
    ALL.iter().find(|workload| workload.name == name)
}

/// One line per workload: name, runtimes, default n, what it does.
pub fn list() -> String {
    let mut text = String::new();
    for workload in &ALL {
        let runtimes: Vec<_> = workload.ports.iter().map(|port| port.runtime).collect();
        writeln!(
            text,
            "{:<14} {:<34}  {} (n = {})",
            workload.name,
            runtimes.join(","),
            workload.about,
            workload.n
        )
        .expect("a String takes every write");
    }
    text
}
