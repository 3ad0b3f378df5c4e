//! Measures the cost of blocked threads for other goroutines, and the cost of marking a call.
//!
//! In `block` and `block_marked` the disturbers (see `hogs`) do not compute. They sleep in the
//! kernel, where the runtime cannot see them wait; in the second they mark the call. `blocking`
//! measures the cost of the mark, on the shortest system call there is. `enter` measures the cost
//! of any call into the runtime.

use std::hint::black_box;
use std::io;
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::hogs::{Disturber, Tasks, disturbed};
use crate::port::{self, Mode};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, Workload};

pub const BLOCK: Workload = disturbed::<Napper>(
    "block",
    "4 goroutines in std::thread::sleep(50 ms), and a 1 ms ticker, for n ms; its lateness",
);

pub const BLOCK_MARKED: Workload = disturbed::<MarkedNapper>(
    "block_marked",
    "as block, each sleep inside gosched::blocking",
);

pub const BLOCKING: Workload = Workload {
    name: "blocking",
    about: "n times getppid(), and n times blocking(getppid); per call",
    n: 1_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_blocking),
    compared: &["blocking_time"],
    goals: &[Goal::new("gosched", "added_time", 12.0, "ns")],
    child: None,
};

pub const ENTER: Workload = Workload {
    name: "enter",
    about: "n calls into the runtime that do nothing there; per call",
    n: 10_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_enter),
    compared: &["time"],
    goals: &[Goal::new("gosched", "added_time", 2.0, "ns")],
    child: None,
};

/// How long a disturber sleeps at a time.
const NAP: Duration = Duration::from_millis(50);

/// Sleeps unmarked.
struct Napper;
/// Sleeps in a marked call.
struct MarkedNapper;

impl Disturber for Napper {
    const IS_SHARING: bool = false;
    const GOALS: &'static [Goal] = &[
        Goal::new("gosched", "late_p50", 0.1, "ms"),
        Goal::new("gosched", "late_p99", 3.0, "ms"),
    ];

    fn disturb<T: Tasks>(stop: &AtomicBool) -> u64 {
        count_until(stop, nap)
    }
}

impl Disturber for MarkedNapper {
    const IS_SHARING: bool = false;
    const GOALS: &'static [Goal] = &[
        Goal::new("gosched", "late_p50", 0.1, "ms"),
        Goal::new("gosched", "late_p99", 0.3, "ms"),
    ];

    fn disturb<T: Tasks>(stop: &AtomicBool) -> u64 {
        count_until(stop, || T::blocking(nap))
    }
}

/// Calls `act` until `stop`, and returns how often.
fn count_until(stop: &AtomicBool, act: impl Fn()) -> u64 {
    let mut count = 0;
    // ORDER: Relaxed; the flag publishes no other data.
    while !stop.load(Ordering::Relaxed) {
        act();
        count += 1;
    }
    count
}

/// Blocks the thread.
///
/// Never inlined: goroutines that share their thread's thread-locals call it.
#[inline(never)]
fn nap() {
    std::thread::sleep(NAP);
}

/// Calls in a slice. So many that reading the clock is less than a hundredth of it, so few that a
/// slice is rarely interrupted.
const SLICE: usize = 1_000;
/// The same for calls that do not enter the kernel.
const SLICE_SHORT: usize = 10_000;

fn start_blocking(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        let marked = || gosched::blocking(parent_id);
        let (raw_ns, blocking_ns) = runtime.run(|| in_turn_ns(n, SLICE, parent_id, marked));
        Ok(vec![
            Sample::best("raw_time", raw_ns, "ns"),
            Sample::best("blocking_time", blocking_ns, "ns"),
            Sample::median("added_time", blocking_ns - raw_ns, "ns"),
        ])
    }))
}

/// The time of calls of two kinds. Slices of both alternate, so that a disturbance hits both. The
/// slowest tenth of each kind is left out.
fn in_turn_ns<T>(
    calls: usize,
    slice: usize,
    first: impl Fn() -> T,
    second: impl Fn() -> T,
) -> (f64, f64) {
    let slices = calls.div_ceil(slice);
    let mut first_ns = Vec::with_capacity(slices);
    let mut second_ns = Vec::with_capacity(slices);
    for done in (0..calls).step_by(slice) {
        let size = slice.min(calls - done);
        first_ns.push(each_ns(size, &first));
        second_ns.push(each_ns(size, &second));
    }
    (
        rounds::undisturbed_mean(&mut first_ns),
        rounds::undisturbed_mean(&mut second_ns),
    )
}

fn each_ns<T>(calls: usize, call: impl Fn() -> T) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        black_box(call());
    }
    rounds::ns_each(start, calls)
}

fn start_enter(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        let (call_ns, enter_ns) =
            runtime.run(|| in_turn_ns(n, SLICE_SHORT, nothing, enter_and_leave));
        Ok(vec![
            Sample::best("time", enter_ns, "ns"),
            Sample::best("call_time", call_ns, "ns"),
            Sample::median("added_time", enter_ns - call_ns, "ns"),
        ])
    }))
}

/// An empty function.
#[inline(never)]
fn nothing() {
    black_box(());
}

/// Does what every call into the library does first and last, and nothing else. The functions it
/// calls may be inlined, as elsewhere.
#[inline(never)]
fn enter_and_leave() {
    gosched::testing::enter_and_leave();
    black_box(());
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_napper_counts_its_naps_and_sees_the_end_after_each() {
        let stop = AtomicBool::new(false);
        let left = Cell::new(3);
        let act = || {
            left.set(left.get() - 1);
            // ORDER: Relaxed; only one thread uses it.
            stop.store(left.get() == 0, Ordering::Relaxed);
        };
        assert_eq!(count_until(&stop, act), 3);
        assert_eq!(count_until(&stop, || panic!("it is over")), 0);
    }
}
