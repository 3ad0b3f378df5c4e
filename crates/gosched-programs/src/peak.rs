//! The highest number of threads that the process had.
//!
//! A plain thread takes the numbers every millisecond. Programs also record them themselves, at the
//! moment when most of their goroutines wait.

use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Duration;

use gosched::Runtime;
use gosched::debug::Metrics;

/// The highest numbers of a run.
#[derive(Clone, Copy)]
pub(crate) struct Peak {
    /// Threads of the process.
    pub(crate) all: usize,
    /// Threads of the runtime that run a goroutine or are blocked with one. Threads without a
    /// goroutine are not among them, nor those of goroutines that were preempted while they
    /// computed.
    pub(crate) busy: usize,
}

static ALL: AtomicUsize = AtomicUsize::new(0);
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Records the numbers of this moment, on a goroutine.
pub(crate) fn record() {
    record_from(&gosched::debug::metrics());
}

fn record_from(metrics: &Metrics) {
    let without_work = metrics.idle_threads + metrics.parked_threads;
    ALL.fetch_max(threads(), Relaxed);
    BUSY.fetch_max(metrics.threads.saturating_sub(without_work), Relaxed);
}

/// The threads of the process: each has a folder in `/proc/self/task`, and each folder is a link to
/// that one.
fn threads() -> usize {
    let task = std::fs::metadata("/proc/self/task").expect("/proc is mounted");
    task.nlink() as usize - 2
}

/// Runs a program, and returns the highest numbers meanwhile. The thread that takes them is one of
/// the threads.
pub(crate) fn during(runtime: &Runtime, run: impl FnOnce()) -> Peak {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            while !ends.load(Relaxed) {
                record_from(&runtime.metrics());
                thread::sleep(Duration::from_millis(1));
            }
        });
        // The sampler ends also when the program panics: the scope waits for it.
        let result = catch_unwind(AssertUnwindSafe(run));
        ends.store(true, Relaxed);
        sampler.join().expect("the sampler ends");
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    });
    Peak {
        all: ALL.load(Relaxed),
        busy: BUSY.load(Relaxed),
    }
}
