//! Measures stopping the world: each change of the number of Ps stops it, resizes, and starts it
//! again.
//!
//! In `stw` parked goroutines stand by, to show that their number does not matter. In
//! `resize_chain` a chain of spawns runs beside two goroutines that resize.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use gosched::Runtime;

use crate::port::{self, Mode, Parked};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, When, Workload};

pub const STW: Workload = Workload {
    name: "stw",
    about: "stop the world, resize by one P, start it, with n goroutines parked; per stop",
    n: 100_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start),
    compared: &[],
    goals: &[],
    child: None,
};

pub const RESIZE_CHAIN: Workload = Workload {
    name: "resize_chain",
    about: "2 goroutines resize n times each, twice, beside a chain of spawns; per round",
    n: 500,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_chain),
    compared: &["time"],
    goals: &[
        Goal::new("own/go", "time", 10.0, "x").when(When::First),
        Goal::new("own/go", "time", 10.0, "x"),
    ],
    child: None,
};

/// Resizes in one round; even, so that every round starts at the same number.
const STOPS: usize = 200;

/// A runtime with goroutines that are parked from the first round to the last.
struct Standby {
    runtime: Runtime,
    parked: Parked,
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.runtime.run(|| self.parked.wake_all());
    }
}

/// A round's `time` is the median of its stops. `time_max` is the longest stop of all rounds.
fn start(params: &Params, mode: Mode) -> io::Result<Round> {
    let (n, procs) = (params.n, params.procs);
    let runtime = port::runtime(mode, procs)?;
    let parked = runtime.run(|| Parked::spawn(n));
    let standby = Standby { runtime, parked };
    Ok(Box::new(move || {
        let mut stops_us = standby.runtime.run(|| stops_us(procs));
        let middle = rounds::median(&mut stops_us);
        Ok(vec![
            Sample::best("time", middle, "us"),
            Sample::worst("time_max", stops_us[STOPS - 1], "us"),
        ])
    }))
}

/// The time of each stop, with `procs` and one more P in turn.
fn stops_us(procs: usize) -> Vec<f64> {
    (0..STOPS)
        .map(|stop| {
            let wanted = if stop % 2 == 0 { procs + 1 } else { procs };
            let start = Instant::now();
            gosched::gomaxprocs(wanted);
            rounds::micros(start.elapsed())
        })
        .collect()
}

/// A round's `time` is what both resizers need for all their changes.
fn start_chain(params: &Params, mode: Mode) -> io::Result<Round> {
    let n = params.n;
    let runtime = port::runtime(mode, params.procs)?;
    Ok(Box::new(move || {
        let time_ms = runtime.run(move || resize_beside_chain(n));
        Ok(vec![Sample::best("time", time_ms, "ms")])
    }))
}

/// Both resizers beside the chain, in milliseconds.
fn resize_beside_chain(n: usize) -> f64 {
    let is_over = Arc::new(AtomicBool::new(false));
    respawn(Arc::clone(&is_over));
    let start = Instant::now();
    let resizers = [[2, 3], [3, 1]].map(|numbers| {
        gosched::thread::spawn(move || {
            for _ in 0..n {
                for procs in numbers {
                    gosched::gomaxprocs(procs);
                }
            }
        })
    });
    for resizer in resizers {
        resizer.join().expect("a resizer does not panic");
    }
    let time_ms = rounds::micros(start.elapsed()) / 1e3;
    // ORDER: Relaxed; the flag publishes no other data.
    is_over.store(true, Ordering::Relaxed);
    time_ms
}

/// A chain: each goroutine starts its successor and ends.
fn respawn(is_over: Arc<AtomicBool>) {
    // ORDER: Relaxed; the flag publishes no other data.
    if !is_over.load(Ordering::Relaxed) {
        gosched::go(move || respawn(is_over));
    }
}
