//! Measures the cost of goroutines that do nothing: memory and time of a million parked ones, and
//! wake-ups and CPU time of an idle process.
//!
//! Both run in a child process (see `child`). The child of `idle_1m` measures itself and prints
//! three numbers on one line. The child of `idle_cpu` prints one line when all goroutines are
//! parked and the main goroutine is about to sleep. Its parent then samples it from outside, well
//! after the start of the sleep and well before its end.

use std::io;
use std::time::{Duration, Instant};

use gosched::thread;

use crate::child::Role;
use crate::port::{self, Mode, Parked};
use crate::proc::{self, Activity, Change};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, Workload};

pub const IDLE_1M: Workload = Workload {
    name: "idle_1m",
    about: "n goroutines are spawned, parked, woken and finish; memory and time per goroutine",
    n: 1_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_idle),
    compared: &["memory", "park_time", "wake_time"],
    goals: &[
        Goal::new("gosched", "memory", 5_200.0, "bytes"),
        Goal::new("gosched", "park_time", 6_000.0, "ns"),
    ],
    child: Some(idle_child),
};

pub const IDLE_CPU: Workload = Workload {
    name: "idle_cpu",
    about: "main sleeps n seconds with 100,000 others parked; wake-ups and CPU in between",
    n: 10,
    rounds: 1,
    has_warm_up: false,
    ports: &Port::gosched_both(start_quiet),
    compared: &[],
    goals: &[],
    child: Some(quiet_child),
};

/// Goroutines parked beside the sleeping main goroutine of `idle_cpu`.
const QUIET_GOROUTINES: usize = 100_000;
/// How long the child of `idle_cpu` may settle before the first sample, and how long before the end
/// of its sleep the second one is.
const MARGIN: Duration = Duration::from_millis(500);

fn start_idle(params: &Params, mode: Mode) -> io::Result<Round> {
    let params = *params;
    Ok(Box::new(move || {
        let mut child = Role::start(IDLE_1M.name, &params, mode)?;
        let line = child.line()?;
        child.finish()?;
        let numbers: Vec<f64> = line.split(' ').flat_map(str::parse).collect();
        let &[bytes, park_ns, wake_ns] = numbers.as_slice() else {
            return Err(io::Error::other(format!(
                "its child process printed `{line}`"
            )));
        };
        Ok(idle_samples(bytes, park_ns, wake_ns))
    }))
}

/// The samples of a child of `idle_1m`.
pub fn idle_samples(bytes: f64, park_ns: f64, wake_ns: f64) -> Vec<Sample> {
    vec![
        Sample::best("memory", bytes, "bytes"),
        Sample::best("park_time", park_ns, "ns"),
        Sample::best("wake_time", wake_ns, "ns"),
    ]
}

/// Prints bytes, ns to spawn and park, ns to wake and finish, each per goroutine. The bytes are all
/// that came with the goroutines: stacks, page tables, control blocks, handles and the vector of
/// handles.
fn idle_child(params: &Params, mode: Mode) -> io::Result<()> {
    port::runtime(mode, params.procs)?.run(|| {
        let bytes_before = proc::own_memory_bytes()?;
        let start = Instant::now();
        let parked = Parked::spawn(params.n);
        let park_ns = rounds::ns_each(start, params.n);
        let bytes = proc::own_memory_bytes()?.saturating_sub(bytes_before);
        let start = Instant::now();
        parked.wake_all();
        let wake_ns = rounds::ns_each(start, params.n);
        let bytes_each = bytes as f64 / params.n as f64;
        crate::print(&format!("{bytes_each} {park_ns} {wake_ns}\n"))
    })
}

fn start_quiet(params: &Params, mode: Mode) -> io::Result<Round> {
    let params = *params;
    Ok(Box::new(move || {
        let mut child = Role::start(IDLE_CPU.name, &params, mode)?;
        child.line()?;
        std::thread::sleep(MARGIN);
        let before = Activity::of(child.pid())?;
        std::thread::sleep(Duration::from_secs(params.n as u64));
        let change = Activity::of(child.pid())?.since(&before);
        child.finish()?;
        Ok(quiet_samples(&change))
    }))
}

/// The samples of a process that should be idle.
pub fn quiet_samples(change: &Change) -> Vec<Sample> {
    vec![
        Sample::worst("wakeups", change.wakeups as f64, "count"),
        Sample::worst("cpu", change.cpu_ns as f64 / 1e6, "ms"),
    ]
}

/// Parks the others, prints a line, sleeps, wakes the others.
fn quiet_child(params: &Params, mode: Mode) -> io::Result<()> {
    port::runtime(mode, params.procs)?.run(|| {
        let parked = Parked::spawn(QUIET_GOROUTINES);
        crate::print("parked\n")?;
        thread::sleep(Duration::from_secs(params.n as u64) + 2 * MARGIN);
        parked.wake_all();
        Ok(())
    })
}
