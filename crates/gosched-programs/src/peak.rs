//! The highest number of threads that the process had.
//!
//! A plain thread reads the number every millisecond. Programs also record it themselves, at the
//! moment when most of their goroutines wait.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Duration;

static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Records the number of threads now.
pub(crate) fn record() {
    PEAK.fetch_max(now(), Relaxed);
}

/// The number of threads now: each has a folder in `/proc/self/task`, and each folder is a link to
/// that one.
fn now() -> usize {
    let task = std::fs::metadata("/proc/self/task").expect("/proc is mounted");
    task.nlink() as usize - 2
}

/// Runs a program, and returns the highest number of threads meanwhile. The thread that samples is
/// one of them.
pub(crate) fn during(run: impl FnOnce()) -> usize {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            while !stop.load(Relaxed) {
                record();
                thread::sleep(Duration::from_millis(1));
            }
        });
        // Stopped also when the program panics: the scope waits for the sampler.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        stop.store(true, Relaxed);
        sampler.join().expect("the sampler ends");
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    PEAK.load(Relaxed)
}
