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
    /// Starts the runtime's threads.
    ///
    /// Blocks the thread it is called on, also that of a goroutine, until the first of them run.
    ///
    /// # Errors
    /// - `InvalidInput` for a setting out of range, such as no procs or an absurd stack size.
    /// - `Unsupported`, with the reason, if goroutines cannot have their own thread-locals and
    ///   [`shared_thread_locals`](Builder::shared_thread_locals) was not called.
    /// - Otherwise the system's error, if it refused memory or a thread.
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

    /// Has a deadlock reported to `hook` instead of a fatal error. `hook` is called on a thread of
    /// its own, once for each deadlock of the runtime.
    ///
    /// See [`DeadlockReport`] for an example.
    pub fn on_deadlock(self, hook: impl Fn(&DeadlockReport) + Send + Sync + 'static) -> Builder {
        self.with_hook(reporting_to(hook))
    }
}

impl Runtime {
    /// Every goroutine with its stack, from any thread; see [`debug::dump`](crate::debug::dump).
    ///
    /// Stops the world: for a moment no goroutine of the runtime runs, and the caller is blocked.
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

    /// The counters, from any thread; see [`debug::metrics`](crate::debug::metrics).
    ///
    /// Blocks nothing.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().procs(2).build().unwrap();
    /// assert_eq!(runtime.metrics().procs, 2);
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        metrics_of(self.sched())
    }

    /// Checks the runtime's own structures, from any thread; see
    /// [`debug::check`](crate::debug::check).
    ///
    /// Stops the world: for a moment no goroutine of the runtime runs, and the caller is blocked.
    ///
    /// # Errors
    /// The clauses that do not hold: a bug of this library.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// runtime.check().unwrap();
    /// ```
    pub fn check(&self) -> Result<(), Violations> {
        check_of(self.sched())
    }

    /// The goroutines that can never be woken, from any thread; see
    /// [`debug::leaks`](crate::debug::leaks).
    ///
    /// Stops the world: for a moment no goroutine of the runtime runs, and the caller is blocked.
    ///
    /// ```
    /// let runtime = gosched::Runtime::builder().build().unwrap();
    /// runtime.go(gosched::thread::park);
    /// while runtime.leaks().is_empty() {
    ///     std::thread::yield_now(); // the goroutine has not parked yet
    /// }
    /// ```
    #[must_use]
    pub fn leaks(&self) -> Leaks {
        leaks_of(self.sched())
    }
}

impl Handle {
    /// Every goroutine with its stack; see [`debug::dump`](crate::debug::dump).
    ///
    /// Stops the world: for a moment no goroutine of the runtime runs, and the caller is blocked.
    ///
    /// # Errors
    /// If the runtime is gone.
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

    /// The counters; see [`debug::metrics`](crate::debug::metrics).
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// If the runtime is gone.
    ///
    /// ```
    /// # gosched::run(|| {
    /// assert!(gosched::Handle::current().metrics().unwrap().goroutines >= 1);
    /// # });
    /// ```
    pub fn metrics(&self) -> io::Result<Metrics> {
        Ok(metrics_of(&*self.upgrade()?))
    }

    /// The goroutines that can never be woken; see [`debug::leaks`](crate::debug::leaks).
    ///
    /// Stops the world: for a moment no goroutine of the runtime runs, and the caller is blocked.
    ///
    /// # Errors
    /// If the runtime is gone.
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
