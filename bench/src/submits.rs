//! Measures submissions from outside: plain threads start short goroutines through a `Handle`.
//!
//! A goroutine that starts another one puts it into its own P's queue. A plain thread has no P, so
//! its goroutines take the way through what all Ps share. Many threads at once show what that
//! sharing costs.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, Thread};
use std::time::Instant;

use gosched::Handle;

use crate::port::{self, Mode};
use crate::rounds::{Round, Sample};
use crate::workload::{Params, Port, ROUNDS_DEFAULT, Workload};

pub const SUBMIT_16: Workload = Workload {
    name: "submit_16",
    about: "16 plain threads submit n short goroutines with Handle::spawn; per goroutine",
    n: 320_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start),
    compared: &["time"],
    goals: &[],
    child: None,
};

/// Threads that submit.
const SUBMITTERS: usize = 16;

fn start(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        let each_ns = submit_ns(&runtime.handle(), n);
        Ok(vec![Sample::best("time", each_ns, "ns")])
    }))
}

/// From the moment at which the first thread begins until the last goroutine has run. All threads
/// exist before that.
fn submit_ns(handle: &Handle, goroutines: usize) -> f64 {
    let arrivals = Arrivals::leaked(goroutines);
    let gate = Arc::new(Barrier::new(SUBMITTERS));
    let submitters: Vec<_> = (0..SUBMITTERS)
        .map(|nth| {
            let (gate, handle) = (Arc::clone(&gate), handle.clone());
            let share = share(goroutines, nth);
            thread::spawn(move || {
                gate.wait();
                let start = Instant::now();
                for _ in 0..share {
                    drop(handle.spawn(|| arrivals.arrive()));
                }
                start
            })
        })
        .collect();
    arrivals.wait();
    let end = Instant::now();
    let starts = submitters.into_iter().map(|submitter| submitter.join());
    let starts = starts.map(|start| start.expect("a submitter does not panic"));
    let start = starts.min().expect("there are submitters");
    (end - start).as_nanos() as f64 / goroutines as f64
}

/// The share of one thread; the first threads take what is left over.
fn share(goroutines: usize, nth: usize) -> usize {
    goroutines / SUBMITTERS + usize::from(nth < goroutines % SUBMITTERS)
}

/// A count of goroutines for which one plain thread, its maker, waits.
struct Arrivals {
    left: AtomicUsize,
    waiter: Thread,
}

impl Arrivals {
    /// Lives as long as the program: goroutines share it without a reference count.
    fn leaked(count: usize) -> &'static Arrivals {
        Box::leak(Box::new(Arrivals {
            left: AtomicUsize::new(count),
            waiter: thread::current(),
        }))
    }

    /// A goroutine arrives; the last one wakes the waiter.
    fn arrive(&self) {
        // ORDER: AcqRel; pairs with Acquire in `wait`, through the arrivals between.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waiter.unpark();
        }
    }

    /// Blocks the thread until all have arrived.
    fn wait(&self) {
        // ORDER: Acquire; pairs with AcqRel in `arrive`.
        while self.left.load(Ordering::Acquire) != 0 {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_the_whole() {
        for whole in [1, 15, 16, 320_000, 320_007] {
            let sum: usize = (0..SUBMITTERS).map(|nth| share(whole, nth)).sum();
            assert_eq!(sum, whole);
        }
    }

    #[test]
    fn every_submission_runs() {
        let runtime = port::runtime(Mode::Own, 2).expect("a runtime");
        // It would not return if one were lost.
        assert!(submit_ns(&runtime.handle(), 500) > 0.0);
    }
}
