//! `gosched::sync`: std's locks, for goroutines and plain threads alike, and who is served when.
//!
//! Whatever somebody waits for here is brought about by somebody else; a wake-up that is lost hangs, and the watchdog says where.

mod api;
mod cancel;
#[path = "../common/mod.rs"]
mod common;
mod condvar;
mod counting;
mod dies;
mod fair;
mod gone;
mod many;
mod mixed;
mod once;
mod poison;

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use gosched::{Runtime, thread};

/// Long enough for whatever is to happen, even here and now.
const LONG: Duration = Duration::from_secs(60);

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

/// Waits until so many have been counted, on a goroutine or a thread.
fn wait_for(count: &AtomicUsize, n: usize) {
    while count.load(SeqCst) < n {
        thread::sleep(ms(1));
    }
}

/// Waits until so many goroutines of this runtime wait as `reason` says. On a goroutine.
fn wait_for_waiting(reason: &str, n: usize) {
    let waits = |g: &&gosched::debug::Goroutine| g.wait_reason() == Some(reason);
    while gosched::debug::dump()
        .goroutines()
        .iter()
        .filter(waits)
        .count()
        < n
    {
        thread::sleep(ms(2));
    }
}
