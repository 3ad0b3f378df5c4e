//! What channels and select do, whoever uses them: goroutines, plain threads, goroutines of another runtime.
//!
//! `golang` has Go's rules, `selects` those of select, `found` what was found by thinking about who meets whom, `u10` what is seen
//! after a channel operation, `memory` what is left behind, `linear` how long it takes, `runtime` what the end of a runtime does
//! to those who wait, `not_send` where values are dropped that must not change threads, and `stress` all of it at random.

#[path = "../common/mod.rs"]
mod common;
mod found;
mod golang;
mod linear;
mod memory;
mod not_send;
mod runtime;
mod selects;
mod stress;
mod traffic;
mod u10;

use std::time::{Duration, Instant};

use common::within;
use gosched::{Handle, Runtime, thread};

/// Long enough for whatever is to happen, even here and now.
const LONG: Duration = Duration::from_secs(60);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn runtime(procs: usize) -> Runtime {
    Runtime::builder().procs(procs).build().unwrap()
}

/// Runs `f` as the main goroutine of a runtime, against the clock. No wake-up may have been lost by the end, and all is in order.
fn run<T: Send>(procs: usize, what: &str, f: impl FnOnce() -> T + Send) -> T {
    let runtime = runtime(procs);
    let result = within(LONG, what, || runtime.run(f));
    runtime.check().unwrap();
    assert_eq!(runtime.metrics().rescues, 0, "WK: a wake-up was lost");
    result
}

/// Whether exactly `n` goroutines of a runtime wait and none does anything else.
fn all_wait(runtime: &Runtime, n: usize) -> bool {
    let dump = runtime.dump();
    let mut all = dump.goroutines().iter();
    all.len() == n && all.all(|g| g.state() == "waiting")
}

/// How many goroutines of a runtime wait for `reason`.
fn waiting_for(handle: &Handle, reason: &str) -> usize {
    let dump = handle.dump().unwrap();
    let waits = dump.goroutines().iter();
    waits
        .filter(|g| g.wait_reason().is_some_and(|why| why.starts_with(reason)))
        .count()
}

/// Waits until `n` goroutines of this runtime wait for `reason`: on a goroutine.
#[track_caller]
fn until_waiting(n: usize, reason: &str) {
    until_waiting_in(&Handle::current(), n, reason);
}

/// The same for any runtime, on a goroutine or a plain thread.
#[track_caller]
fn until_waiting_in(handle: &Handle, n: usize, reason: &str) {
    let began = Instant::now();
    while waiting_for(handle, reason) != n {
        assert!(
            began.elapsed() < LONG / 2,
            "not {n} goroutines in {reason}:\n{}",
            handle.dump().unwrap()
        );
        thread::sleep(Duration::from_micros(200));
    }
}

/// Waits until `n` goroutines of this runtime wait on channels, in whatever way.
#[track_caller]
fn until_waiting_for_any(n: usize) {
    let handle = Handle::current();
    let waiting = || {
        let reasons = ["chan receive", "chan send", "select"];
        reasons
            .map(|reason| waiting_for(&handle, reason))
            .iter()
            .sum::<usize>()
    };
    let began = Instant::now();
    while waiting() != n {
        assert!(
            began.elapsed() < LONG / 2,
            "not {n} wait:\n{}",
            handle.dump().unwrap()
        );
        thread::sleep(Duration::from_micros(200));
    }
}
