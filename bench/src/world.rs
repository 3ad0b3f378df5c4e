//! Decides what stopping the world costs: the number of processors is changed
//! to and fro, and each change stops the world, resizes, and starts it again.
//! Parked goroutines stand by to show that their number does not matter.

use std::io;
use std::time::Instant;

use crate::port::{self, GOSCHED, Parked};
use crate::rounds::{self, Figure, Sample};
use crate::workload::{Params, Port, ROUNDS_DEFAULT, Workload};

/// `stw`.
pub const STW: Workload = Workload {
    name: "stw",
    about: "stop the world, resize by one P, start it, with n goroutines parked; per stop",
    n: 100_000,
    rounds: ROUNDS_DEFAULT,
    ports: &[Port {
        runtime: GOSCHED,
        run: stw_on_gosched,
    }],
    child: None,
};

/// Changes of the number of processors in one round; even, so that every round
/// starts at the same number.
const STOPS: usize = 200;

/// A round's `time` is the median of its stops. `time_max` is the longest of
/// all stops in all rounds.
fn stw_on_gosched(params: &Params) -> io::Result<Vec<Figure>> {
    port::runtime(params.procs)?.run(|| {
        let parked = Parked::spawn(params.n);
        let figures = rounds::measure(params, || {
            let mut stops_us = stops_us(params.procs);
            let middle = rounds::median(&mut stops_us);
            Ok(vec![
                Sample::best("time", middle, "us"),
                Sample::worst("time_max", stops_us[STOPS - 1], "us"),
            ])
        });
        parked.wake_all();
        figures
    })
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
