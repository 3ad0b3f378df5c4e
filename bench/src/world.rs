//! Decides what stopping the world costs: the number of processors is changed
//! to and fro, and each change stops the world, resizes, and starts it again.
//! Parked goroutines stand by to show that their number does not matter.

use std::io;
use std::time::Instant;

use gosched::Runtime;

use crate::port::{self, Mode, Parked};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Params, Port, ROUNDS_DEFAULT, Workload};

/// `stw`.
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

/// Changes of the number of processors in one round; even, so that every round
/// starts at the same number.
const STOPS: usize = 200;

/// A runtime with goroutines that stand by, parked from the first round to the
/// last.
struct Standby {
    runtime: Runtime,
    parked: Parked,
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.runtime.run(|| self.parked.wake_all());
    }
}

/// A round's `time` is the median of its stops. `time_max` is the longest of
/// all stops in all rounds.
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

/// The time of each stop, with `procs` and one more processor in turn.
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
