//! What the program's own function is given at a deadlock.

use std::fmt;
use std::sync::Arc;

use super::dump::{Dump, dump_of};
use crate::sched::Sched;
use crate::sched::life::deadlock;

/// A deadlock as [`Builder::on_deadlock`](crate::Builder::on_deadlock) receives it: every goroutine
/// of the runtime is asleep and nothing is left that could wake one.
///
/// Looking at it blocks nothing.
///
/// ```
/// use std::sync::mpsc;
/// let (tx, rx) = mpsc::channel();
/// let runtime = gosched::Runtime::builder()
///     .deadlock(gosched::Deadlock::Closed)
///     .on_deadlock(move |deadlock| {
///         tx.send(deadlock.to_string()).unwrap();
///         deadlock.dump().goroutines();
///     })
///     .build()
///     .unwrap();
/// runtime.go(gosched::thread::park);
/// assert!(rx.recv().unwrap().starts_with("all goroutines are asleep"));
/// ```
pub struct DeadlockReport {
    message: &'static str,
    dump: Dump,
}

impl DeadlockReport {
    /// Takes the dump. In user context, on any thread.
    pub(super) fn new(sched: &Sched) -> DeadlockReport {
        DeadlockReport {
            message: deadlock::text(sched.goroutines() > 0),
            dump: dump_of(sched),
        }
    }

    /// Every goroutine, with what it waits for.
    ///
    /// See the example of [`DeadlockReport`].
    #[must_use]
    pub fn dump(&self) -> &Dump {
        &self.dump
    }
}

impl fmt::Display for DeadlockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n\n{}", self.message, self.dump)
    }
}

impl fmt::Debug for DeadlockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The function that the scheduler calls at a deadlock: it takes the dump and calls `hook`. The
/// runtime is let go before that, so a hook that takes long does not keep it.
pub(super) fn reporting_to(
    hook: impl Fn(&DeadlockReport) + Send + Sync + 'static,
) -> deadlock::Hook {
    Arc::new(move |sched| {
        let report = DeadlockReport::new(&sched);
        drop(sched);
        hook(&report);
    })
}
