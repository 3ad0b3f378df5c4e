//! Many goroutines that wait at once.

use std::time::{Duration, Instant};

use gosched::sync::{Condvar, Mutex};
use gosched::thread::JoinHandle;

use crate::peak;

/// No wait in a program lasts so long, unless something is lost.
const LIMIT: Duration = Duration::from_secs(60);

/// A gate that goroutines wait at until it opens. Waiting there holds no thread, with hooks or
/// without.
pub(crate) struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            is_open: Mutex::new(false),
            opened: Condvar::new(),
        }
    }

    pub(crate) fn wait(&self) {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |open| !*open).unwrap());
    }

    pub(crate) fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// Waits until this many goroutines besides the caller wait, and records the number of threads.
/// They may wait in the runtime or in the kernel.
pub(crate) fn all_wait(goroutines: usize) {
    until("the goroutines wait", || {
        let metrics = gosched::debug::metrics();
        // A goroutine that blocks its thread counts as running until its P is taken. The caller
        // runs, too.
        metrics.waiting + metrics.in_calls + metrics.running > goroutines
    });
    peak::record();
}

/// Waits for an event that has no other sign.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < LIMIT, "in vain for {LIMIT:?}: {what}");
        gosched::thread::sleep(Duration::from_millis(1));
    }
}

/// What the goroutines return, in the order of their start.
pub(crate) fn join_all<T>(goroutines: Vec<JoinHandle<T>>) -> Vec<T> {
    let results = goroutines.into_iter().map(|g| g.join().expect("no panic"));
    results.collect()
}
