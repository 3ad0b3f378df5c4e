//! How many child processes start at a time.
//!
//! A start blocks its thread until the child has called exec. Without a limit, many goroutines that
//! start children at once would take a thread each. Further starts wait for a permit and hold no
//! thread.

use crate::sched::calls::syscall::blocking;
use crate::sched::waiting::semaphore::Semaphore;

const AT_A_TIME: usize = 8;

pub(crate) struct Starts(Semaphore);

impl Starts {
    pub(crate) fn new() -> Starts {
        Starts(Semaphore::new(AT_A_TIME))
    }

    /// Calls `f` in a marked call.
    pub(crate) fn run<T>(&self, f: impl FnOnce() -> T) -> T {
        let _permit = self.0.acquire();
        blocking(f)
    }
}
