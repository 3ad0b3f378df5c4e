//! Decides which workloads exist. Each group of workloads is a file that
//! declares its own; this one collects them in the order in which `all` runs
//! them.
//!
//! A workload says what the work is and how much of it is usual; its ports say
//! how each runtime does it. The work of two ports of one workload is the same,
//! so their figures may be divided by one another.

use std::fmt::Write;
use std::io;

use crate::rounds::Figure;
use crate::{parked, spawns, wakes, world, yields};

/// How much work one run does.
pub struct Params {
    /// The size of the work, in the unit the workload names.
    pub n: usize,
    /// Measured rounds.
    pub rounds: usize,
    /// Processors that run user code.
    pub procs: usize,
}

/// One workload as one runtime does it.
pub struct Port {
    /// The runtime's name, the second word of a line.
    pub runtime: &'static str,
    /// Does the warm-up and all rounds, and returns what to print.
    pub run: fn(&Params) -> io::Result<Vec<Figure>>,
}

/// A fixed piece of work with a name.
pub struct Workload {
    /// The first word of a line.
    pub name: &'static str,
    /// What is done and measured, in one line; says what n is.
    pub about: &'static str,
    /// n when the user gives none.
    pub n: usize,
    /// Rounds when the user gives none.
    pub rounds: usize,
    /// The runtimes that can do it.
    pub ports: &'static [Port],
    /// The part that runs in a child process, if there is one.
    pub child: Option<fn(&Params) -> io::Result<()>>,
}

/// Rounds of a workload that has no reason for another number.
pub const ROUNDS_DEFAULT: usize = 5;

/// Every workload, in the order of `all`.
pub static ALL: [Workload; 8] = [
    yields::YIELD,
    spawns::SPAWN,
    spawns::SPAWN_BURST,
    spawns::FIB,
    parked::IDLE_1M,
    wakes::FOREIGN_WAKE,
    world::STW,
    parked::IDLE_CPU,
];

/// The workload of that name.
pub fn find(name: &str) -> Option<&'static Workload> {
    ALL.iter().find(|workload| workload.name == name)
}

/// One line per workload: name, runtimes, usual n, what it is.
pub fn list() -> String {
    let mut text = String::new();
    for workload in &ALL {
        let runtimes: Vec<_> = workload.ports.iter().map(|port| port.runtime).collect();
        writeln!(
            text,
            "{:<13} {}  {} (n = {})",
            workload.name,
            runtimes.join(","),
            workload.about,
            workload.n
        )
        .expect("a String takes every write");
    }
    text
}
