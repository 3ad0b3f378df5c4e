//! The connections of this floor with the floors below, none of which imports it.
//!
//! - The methods of [`Runtime`], [`Handle`] and [`Builder`] that show something are here.
//! - [`Builder::build`] is here because every runtime begins there. It sets the callbacks by which
//!   the floors below reach this one.

use std::io;

use super::check::{Violations, check_of};
use super::deadlock_report::{DeadlockReport, reporting_to};
use super::dump::{Dump, dump_of};
use super::leaks::{Leaks, leaks_of};
use super::metrics::{Metrics, metrics_of};
use super::{fatal, schedtrace, sigquit};
use crate::base::fatal::PRINT_GOROUTINES;
use crate::builder::Builder;
use crate::runtime::{Handle, Runtime};
use crate::sched::monitor::sysmon::SCHEDTRACE;

impl Builder {
    /// Checks the settings and starts the runtime's threads.
    ///
    /// Blocks the calling thread until the first threads exist, also in a goroutine.
    ///
    /// # Errors
    /// - `InvalidInput` for an invalid setting, such as no procs or a huge stack size.
    /// - `Unsupported`, with the reason, if goroutines cannot have their own thread-locals and
    ///   [`shared_thread_locals`](Builder::shared_thread_locals) was not called.
    /// - Otherwise the error of the system when it refused memory or a thread.
    ///
    /// ```
    /// let error = gosched::Runtime::builder().procs(0).build().unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    /// ```
    pub fn build(self) -> io::Result<Runtime> {
        PRINT_GOROUTINES.set(fatal::print_fatal);
        SCHEDTRACE.set(schedtrace::print);
        self.start(sigquit::install)
    }

    /// Sets a function that is called on a deadlock, instead of the fatal error.
    ///
    /// It is called on its own thread, once each time the runtime deadlocks.
    ///
    /// See [`DeadlockReport`] for an example.
    pub fn on_deadlock(self, hook: impl Fn(&DeadlockReport) + Send + Sync + 'static) -> Builder {
        self.with_hook(reporting_to(hook))
    }
}

impl Runtime {
    /// Returns a dump of all goroutines with their stacks.
    ///
    /// Works on any thread. Stops the world: for a moment no goroutine of the runtime runs, and the
    /// caller is blocked. See [`debug::dump`](crate::debug::dump).
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// runtime.go(gosched::thread::park);
    /// assert_eq!(runtime.dump().goroutines().len(), 1);
    /// ```
    #[must_use]
    pub fn dump(&self) -> Dump {
        dump_of(self.sched())
    }

    /// Returns the runtime's counters.
    ///
    /// Works on any thread. Never blocks. See [`debug::metrics`](crate::debug::metrics).
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().procs(2).build().unwrap();
    /// assert_eq!(runtime.metrics().procs, 2);
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        metrics_of(self.sched())
    }

    /// Checks the invariants of the runtime's data structures.
    ///
    /// Works on any thread. Stops the world: for a moment no goroutine of the runtime runs, and the
    /// caller is blocked. See [`debug::check`](crate::debug::check).
    ///
    /// # Errors
    /// The violated invariants, which are bugs of this library.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// runtime.check().unwrap();
    /// ```
    pub fn check(&self) -> Result<(), Violations> {
        check_of(self.sched())
    }

    /// Returns the goroutines that can never be woken.
    ///
    /// Works on any thread. Stops the world: for a moment no goroutine of the runtime runs, and the
    /// caller is blocked. See [`debug::leaks`](crate::debug::leaks).
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// runtime.go(gosched::thread::park);
    /// while runtime.leaks().is_empty() {
    ///     std::thread::yield_now(); // it has yet to get there
    /// }
    /// ```
    #[must_use]
    pub fn leaks(&self) -> Leaks {
        leaks_of(self.sched())
    }
}

impl Handle {
    /// Returns a dump of all goroutines with their stacks.
    ///
    /// Stops the world: for a moment no goroutine of the runtime runs, and the caller is blocked.
    /// See [`debug::dump`](crate::debug::dump).
    ///
    /// # Errors
    /// If the runtime was dropped.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let handle = gosched::Handle::current();
    /// assert!(handle.dump().unwrap().to_string().contains("goroutine 1"));
    /// # });
    /// ```
    pub fn dump(&self) -> io::Result<Dump> {
        Ok(dump_of(&*self.upgrade()?))
    }

    /// Returns the runtime's counters.
    ///
    /// Never blocks. See [`debug::metrics`](crate::debug::metrics).
    ///
    /// # Errors
    /// If the runtime was dropped.
    ///
    /// ```
    /// # gosched::run(|| {
    /// assert!(gosched::Handle::current().metrics().unwrap().goroutines >= 1);
    /// # });
    /// ```
    pub fn metrics(&self) -> io::Result<Metrics> {
        Ok(metrics_of(&*self.upgrade()?))
    }

    /// Returns the goroutines that can never be woken.
    ///
    /// Stops the world: for a moment no goroutine of the runtime runs, and the caller is blocked.
    /// See [`debug::leaks`](crate::debug::leaks).
    ///
    /// # Errors
    /// If the runtime was dropped.
    ///
    /// ```
    /// # gosched::run(|| {
    /// assert!(gosched::Handle::current().leaks().unwrap().is_empty());
    /// # });
    /// ```
    pub fn leaks(&self) -> io::Result<Leaks> {
        Ok(leaks_of(&*self.upgrade()?))
    }
}
