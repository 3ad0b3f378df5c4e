//! Goroutines with names, finding them in a dump, and waiting until they wait.
//!
//! A dump stops the world and so shows each goroutine in one state.
//! [`gosched::debug::Metrics::waiting`] also counts goroutines that are on their way to wait: it
//! does not prove that a goroutine is parked.

use std::time::{Duration, Instant};

use gosched::Handle;
use gosched::debug::{self, Dump, Goroutine};
use gosched::thread::{self, JoinHandle};

use super::waiting::{ms, until};

/// Goroutines that are to wait do so sooner.
const SOON: Duration = Duration::from_secs(60);

/// Starts a goroutine with a name.
#[track_caller]
pub fn named<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let builder = thread::Builder::new().name(name.into());
    builder.spawn(f).expect("a goroutine")
}

/// The goroutine of that name, if the dump has one.
pub fn by_name<'a>(dump: &'a Dump, name: &str) -> Option<&'a Goroutine> {
    dump.goroutines().iter().find(|g| g.name() == Some(name))
}

/// Whether the goroutine's backtrace has a function whose path contains `part`.
pub fn has_frame(goroutine: &Goroutine, part: &str) -> bool {
    let mut frames = goroutine.frames().iter();
    frames.any(|frame| frame.function().contains(part))
}

/// Dumps the current runtime until the goroutine of that name waits for `reason`; returns the last
/// dump.
#[track_caller]
pub fn dump_when_waiting(name: &str, reason: &str) -> Dump {
    let started = Instant::now();
    loop {
        let dump = debug::dump();
        if by_name(&dump, name).is_some_and(|g| g.wait_reason() == Some(reason)) {
            return dump;
        }
        assert!(started.elapsed() < SOON, "{dump}");
        thread::sleep(ms(1));
    }
}

/// How many goroutines of a runtime wait for a reason that begins with one of `reasons`.
pub fn waiting_for(handle: &Handle, reasons: &[&str]) -> usize {
    let dump = handle.dump().expect("a runtime");
    let reasons_of_waits = dump.goroutines().iter().filter_map(|g| g.wait_reason());
    let is_meant = |why: &&str| reasons.iter().any(|reason| why.starts_with(reason));
    reasons_of_waits.filter(is_meant).count()
}

/// Waits until `n` goroutines of the current runtime wait for `reason`.
#[track_caller]
pub fn until_waiting(n: usize, reason: &str) {
    until_waiting_in(&Handle::current(), n, &[reason]);
}

/// Waits until `n` goroutines of a runtime wait for one of `reasons`. On a goroutine of any
/// runtime, or on a plain thread.
#[track_caller]
pub fn until_waiting_in(handle: &Handle, n: usize, reasons: &[&str]) {
    let started = Instant::now();
    while waiting_for(handle, reasons) != n {
        assert!(
            started.elapsed() < SOON,
            "not {n} goroutines wait for {reasons:?}:\n{}",
            handle.dump().expect("a runtime")
        );
        thread::sleep(Duration::from_micros(200));
    }
}

/// How many goroutines of a runtime are parked, for any reason.
pub fn parked(handle: &Handle) -> usize {
    waiting_for(handle, &[""])
}

/// Waits until exactly `n` goroutines of a runtime are parked. On a goroutine of any runtime, or on
/// a plain thread.
#[track_caller]
pub fn until_parked(handle: &Handle, n: usize) {
    // A dump stops the world, so the counter is asked first: it is never too small.
    until(|| handle.metrics().is_ok_and(|now| now.waiting >= n) && parked(handle) == n);
}
