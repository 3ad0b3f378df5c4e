//! How many name lookups run at a time.
//!
//! libc's resolver blocks its thread for seconds. So a runtime gives lookups a number of threads of
//! their own, and further lookups wait for a permit.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::sched::calls::syscall::blocking;
use crate::sched::waiting::semaphore::Semaphore;

/// Threads that lookups leave to the rest of a runtime, in addition to one for each P.
const THREADS_LEFT: u32 = 4;

pub(crate) struct Lookups {
    permits: Semaphore,
    /// Lookups that run in a marked call.
    under_way: AtomicU32,
    /// Lookups that are about to enter such a call, and may wait for a thread.
    pub(crate) waiting: AtomicU32,
}

impl Lookups {
    pub(crate) fn new(max_lookups: u32, max_threads: u32, procs: u32) -> Lookups {
        let threads = max_threads.saturating_sub(procs + THREADS_LEFT);
        Lookups {
            permits: Semaphore::new(max_lookups.min(threads).max(1) as usize),
            under_way: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        }
    }

    /// The number of threads in a lookup. CONTEXT: any.
    pub(crate) fn under_way(&self) -> u32 {
        self.under_way.load(Relaxed)
    }

    pub(crate) fn run<T>(&self, f: impl FnOnce() -> T) -> T {
        let _permit = self.permits.acquire();
        let waiting = Counted::new(&self.waiting);
        // Inside the call, not around it: a lookup that waits for a thread does not end by itself.
        blocking(|| {
            let _under_way = Counted::new(&self.under_way);
            drop(waiting);
            f()
        })
    }
}

/// Adds one to a counter until it is dropped.
struct Counted<'a>(&'a AtomicU32);

impl Counted<'_> {
    fn new(count: &AtomicU32) -> Counted<'_> {
        count.fetch_add(1, Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lookups_leave_to_others() {
        let free = |lookups: Lookups| lookups.permits.available_permits();
        assert_eq!(free(Lookups::new(500, 10_000, 2)), 500);
        assert_eq!(free(Lookups::new(500, 100, 2)), 94);
        assert_eq!(free(Lookups::new(500, 2, 2)), 1);
        assert_eq!(free(Lookups::new(7, 100, 2)), 7);
    }
}
