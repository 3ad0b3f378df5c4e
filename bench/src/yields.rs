//! Measures a yield: two goroutines on one P only yield to each other, so every yield is a switch
//! through the scheduler.

use std::io;
use std::time::Instant;

use gosched::thread;

use crate::port::{self, Mode};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, Workload};

pub const YIELD: Workload = Workload {
    name: "yield",
    about: "2 goroutines on 1 P yield n times each; per yield",
    n: 1_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start),
    compared: &["time"],
    goals: &[
        Goal::new("gosched", "time", 46.0, "ns"),
        Goal::new("own-shared", "time", 16.0, "ns"),
    ],
    child: None,
};

/// On one P, whatever the user asks: with two, the goroutines would not meet.
fn start(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, 1)?, params.n);
    Ok(Box::new(move || {
        let each_ns = runtime.run(|| yield_ns(n));
        Ok(vec![Sample::best("time", each_ns, "ns")])
    }))
}

fn yield_ns(yields: usize) -> f64 {
    let start = Instant::now();
    let pair =
        [(); 2].map(|()| thread::spawn(move || (0..yields).for_each(|_| thread::yield_now())));
    for goroutine in pair {
        goroutine.join().expect("a yield does not panic");
    }
    rounds::ns_each(start, 2 * yields)
}
