//! You cannot block it: goroutines that block their thread, said so (`gosched::blocking`) or not, and what the others notice of it.
//!
//! Whatever somebody waits for here is brought about by another goroutine, most often on the only P. So a runtime that is held up
//! by the one who waits hangs, and the watchdog says where.

#[path = "../common/mod.rs"]
mod common;
mod found;
mod leaving;
mod marked;
mod no_false_deadlock;
mod permits;
mod unmarked;

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::{Runtime, thread};

/// Long enough for whatever is to happen, even here and now.
const LONG: Duration = Duration::from_secs(120);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn runtime(procs: usize) -> Runtime {
    Runtime::builder().procs(procs).build().unwrap()
}

/// Runs `f` as the main goroutine of a runtime, against the clock. No wake-up may have been lost by the end.
fn run<T: Send>(procs: usize, what: &str, f: impl FnOnce() -> T + Send) -> T {
    let runtime = runtime(procs);
    let result = common::within(LONG, what, || runtime.run(f));
    assert_eq!(runtime.metrics().rescues, 0, "WK: a wake-up was lost");
    result
}

/// Waits until so many have been counted, on a goroutine, leaving the P to others.
fn wait_for(count: &AtomicUsize, n: usize) {
    while count.load(SeqCst) < n {
        thread::sleep(ms(1));
    }
}

/// Uses up CPU for so long, without a call of any kind.
fn compute(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}
