//! Measures short-lived goroutines: started, doing next to nothing, and awaited.
//!
//! std's way is `thread::spawn` and `join`, with a result and a handle. Go's way is `go` and one
//! countdown for all. `spawn` measures both, as `time` and `go_time`. A burst is measured cold as
//! well, so each way has a workload of its own: `spawn_burst` and `go_burst`.

use std::io;
use std::time::Instant;

use gosched::thread;

use crate::port::{self, Countdown, Mode};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, When, Workload};

pub const SPAWN: Workload = Workload {
    name: "spawn",
    about: "n empty goroutines, spawned and joined in batches of 1,000; per goroutine",
    n: 1_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_spawn),
    compared: &["time", "go_time"],
    goals: &[Goal::new("own-shared", "time", 25.0, "ns")],
    child: None,
};

pub const SPAWN_BURST: Workload = Workload {
    name: "spawn_burst",
    about: "n empty goroutines, all spawned and then all joined; per goroutine",
    n: 100_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_spawn_burst),
    compared: &["time"],
    goals: &[
        Goal::new("own/go", "time", 0.6, "x").when(When::First),
        Goal::new("own/go", "time", 0.6, "x").when(When::Second),
        Goal::new("own/go", "time", 0.6, "x"),
    ],
    child: None,
};

pub const GO_BURST: Workload = Workload {
    name: "go_burst",
    about: "n empty goroutines, all started by `go` and then awaited; per goroutine",
    n: 100_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_go_burst),
    compared: &["time"],
    goals: &[],
    child: None,
};

pub const FIB: Workload = Workload {
    name: "fib",
    about: "fib(n), a goroutine for every call above 15; per fib(n)",
    n: 30,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_fib),
    compared: &["time"],
    goals: &[],
    child: None,
};

/// Goroutines alive at once in `spawn`.
const BATCH: usize = 1_000;
/// The largest argument that `fib` computes without a goroutine.
const FIB_SERIAL_MAX: usize = 15;
/// How often fib(n) is computed in one round, to make the round longer than the machine's pauses.
const FIB_REPEATS: usize = 10;

fn start_spawn_burst(params: &Params, mode: Mode) -> io::Result<Round> {
    start_burst(params, mode, spawn_ns)
}

fn start_go_burst(params: &Params, mode: Mode) -> io::Result<Round> {
    start_burst(params, mode, go_ns)
}

/// All goroutines in one batch, in one of the two ways.
fn start_burst(params: &Params, mode: Mode, way: fn(usize, usize) -> f64) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        let each_ns = runtime.run(|| way(n, n));
        Ok(vec![Sample::best("time", each_ns, "ns")])
    }))
}

fn start_spawn(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        let (spawn_ns, go_ns) = runtime.run(|| (spawn_ns(n, BATCH), go_ns(n, BATCH)));
        Ok(vec![
            Sample::best("time", spawn_ns, "ns"),
            Sample::best("go_time", go_ns, "ns"),
        ])
    }))
}

/// Splits `count` into batches of at most `batch`.
fn batches(count: usize, batch: usize) -> impl Iterator<Item = usize> {
    (0..count)
        .step_by(batch)
        .map(move |done| batch.min(count - done))
}

fn spawn_ns(count: usize, batch: usize) -> f64 {
    let mut handles = Vec::with_capacity(batch);
    let start = Instant::now();
    for size in batches(count, batch) {
        handles.extend((0..size).map(|_| thread::spawn(|| ())));
        for handle in handles.drain(..) {
            handle.join().expect("nothing does not panic");
        }
    }
    rounds::ns_each(start, count)
}

fn go_ns(count: usize, batch: usize) -> f64 {
    let running = Countdown::leaked();
    let start = Instant::now();
    for size in batches(count, batch) {
        running.expect(size);
        for _ in 0..size {
            gosched::go(|| running.arrive());
        }
        running.wait();
    }
    rounds::ns_each(start, count)
}

fn start_fib(params: &Params, mode: Mode) -> io::Result<Round> {
    let expected = fib_by_adding(params.n)?;
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        let each_ns = runtime.run(|| fib_ns(n, expected));
        Ok(vec![Sample::best("time", each_ns / 1e6, "ms")])
    }))
}

fn fib_ns(n: usize, expected: u64) -> f64 {
    let start = Instant::now();
    for _ in 0..FIB_REPEATS {
        assert_eq!(fib(n), expected, "fib({n})");
    }
    rounds::ns_each(start, FIB_REPEATS)
}

/// The parallel fib: above the limit, one half of the work goes to a new goroutine and the other
/// half stays here.
fn fib(n: usize) -> u64 {
    if n <= FIB_SERIAL_MAX {
        return fib_serial(n);
    }
    let half = thread::spawn(move || fib(n - 1));
    let other = fib(n - 2);
    half.join().expect("an addition does not panic") + other
}

/// The work below the limit: plain calls.
fn fib_serial(n: usize) -> u64 {
    if n < 2 {
        return n as u64;
    }
    fib_serial(n - 1) + fib_serial(n - 2)
}

/// The right answer, to compare with.
fn fib_by_adding(n: usize) -> io::Result<u64> {
    let (mut this, mut next) = (0_u64, 1_u64);
    for _ in 0..n {
        let sum = this.checked_add(next);
        (this, next) = (next, sum.ok_or_else(|| io::Error::other("n is too large"))?);
    }
    Ok(this)
}
