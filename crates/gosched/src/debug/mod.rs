//! Shows what the runtime is doing: every goroutine with its stack, goroutines that can never be
//! woken, the counters. Also a check of the scheduler's own structures.
//!
//! ```
//! gosched::run(|| {
//!     let waiter = gosched::thread::spawn(gosched::thread::park);
//!     gosched::yield_now();
//!     println!("{}", gosched::debug::dump());
//!     println!("{}", gosched::debug::leaks());
//!     println!("{}", gosched::debug::metrics());
//!     gosched::debug::check().unwrap();
//! #   waiter.thread().unpark();
//! #   waiter.join().unwrap();
//! });
//! ```
//!
//! Without touching the program, `GOSCHED_DEBUG=schedtrace=1000` prints a line about the scheduler
//! every 1,000 ms, and `GOSCHED_DEBUG=schedtrace=1000,scheddetail=1` every P, M and G.

mod attach;
mod census;
mod check;
mod collect;
pub(crate) mod deadlock_report;
mod dump;
mod fatal;
mod goroutine_state;
mod leak_analysis;
mod leaks;
mod metrics;
mod out;
mod schedtrace;
mod sigquit;
mod symbols;
mod wait_target;

pub use check::Violations;
pub use dump::{Dump, Goroutine};
pub use leaks::{Leak, Leaks};
pub use metrics::{
    BlockDetection, Metrics, ProcMetrics, ProcStatus, StackGuard, StackMetrics, StaticTls,
};
pub use symbols::Frame;

use crate::sched::Sched;
use crate::sched::model::current::current_m;

/// Returns every goroutine of the caller's runtime, with its state, what it waits for, where it was
/// started and its stack.
///
/// Prints as Go's traces do. Goroutines that compute are interrupted meanwhile. Goroutines whose
/// thread is in a system call are shown without their stack.
///
/// # Blocking
/// Stops the world while every stack is unwound, about 10 µs each. Symbols are looked up after
/// that, while the other goroutines run.
///
/// # Panics
/// Outside a runtime: there [`Runtime::dump`](crate::Runtime::dump) and
/// [`Handle::dump`](crate::Handle::dump) do the same.
///
/// ```
/// gosched::run(|| {
///     let waiter = gosched::thread::Builder::new()
///         .name("waiter".into())
///         .spawn(gosched::thread::park)
///         .unwrap();
///     let dump = loop {
///         gosched::yield_now();
///         let dump = gosched::debug::dump();
///         let found = dump.goroutines().iter().find(|g| g.name() == Some("waiter"));
///         if found.unwrap().wait_reason() == Some("park") {
///             break dump;
///         }
///     };
///     assert!(dump.to_string().contains("[park] {name: waiter}:"));
///     # waiter.thread().unpark();
///     # waiter.join().unwrap();
/// });
/// ```
#[track_caller]
#[must_use]
pub fn dump() -> Dump {
    with_current("dump", "Runtime::dump or Handle::dump", dump::dump_of)
}

/// Returns the counters of the caller's runtime. No goroutine is stopped for it, so the numbers may
/// disagree by a few.
///
/// # Blocking
/// Nothing.
///
/// # Panics
/// Outside a runtime: there [`Runtime::metrics`](crate::Runtime::metrics) and
/// [`Handle::metrics`](crate::Handle::metrics) do the same.
///
/// ```
/// gosched::run(|| {
///     gosched::thread::spawn(|| ()).join().unwrap();
///     let metrics = gosched::debug::metrics();
///     assert_eq!(metrics.spawns, 2); // the main goroutine counts
///     assert!(metrics.goroutines >= 1); // the joined goroutine may be about to end
///     assert_eq!(metrics.rescues, 0);
/// });
/// ```
#[track_caller]
#[must_use]
pub fn metrics() -> Metrics {
    with_current(
        "metrics",
        "Runtime::metrics or Handle::metrics",
        metrics::metrics_of,
    )
}

/// Stops the world and verifies that the scheduler's structures agree with each other: every
/// goroutine is in the one place that its state names, every list is as long as its counter, every
/// P and M are bound both ways. Stress tests call it throughout.
///
/// # Blocking
/// Stops the world for about 0.1 µs per goroutine.
///
/// # Errors
/// The clauses that do not hold. That is a bug of the runtime, or memory corruption by unsafe code.
///
/// # Panics
/// Outside a runtime: there [`Runtime::check`](crate::Runtime::check) does the same.
///
/// ```
/// gosched::run(|| {
///     let spawn = |_| gosched::thread::spawn(gosched::yield_now);
///     let handles: Vec<_> = (0..100).map(spawn).collect();
///     gosched::debug::check().unwrap();
///     handles.into_iter().for_each(|handle| handle.join().unwrap());
///     gosched::debug::check().unwrap();
/// });
/// ```
#[track_caller]
pub fn check() -> Result<(), Violations> {
    with_current("check", "Runtime::check", check::check_of)
}

/// Finds the goroutines of the caller's runtime that can never be woken, as far as the runtime can
/// tell, and marks them.
///
/// These goroutines are known to be leaked:
/// - goroutines that wait for each other in a circle, through [`Mutex`](crate::sync::Mutex)es, the
///   writers of [`RwLock`](crate::sync::RwLock)s and joins, and goroutines that wait for one of
///   these in such a way;
/// - goroutines in [`park`](crate::thread::park) without a deadline, if there is neither a
///   [`Thread`](crate::thread::Thread) nor a join handle to unpark them with;
/// - goroutines that receive from [`never`](crate::chan::never) or select from nothing (main
///   goroutines may);
/// - goroutines whose channels can be used only by selects that are leaked themselves.
///
/// A goroutine is not reported if it has a deadline, if a waker of it is alive, or if the runtime
/// does not know all its wakers. So a goroutine that is reported stays, unless the runtime is shut
/// down. Not every leak is found: as a rule the runtime does not know which goroutine has the other
/// end of a channel.
///
/// The goroutines found are in the state *leaked* until the next call, and a [`dump`] shows it:
/// `[chan receive (leaked)]`. The mark does no harm: if such a goroutine is woken after all, it
/// runs.
///
/// # Blocking
/// Stops the world for about 1 µs per goroutine, and 10 µs for each of the first thousand leaked
/// ones, whose stacks are taken.
///
/// # Panics
/// Outside a runtime: there [`Runtime::leaks`](crate::Runtime::leaks) and
/// [`Handle::leaks`](crate::Handle::leaks) do the same.
///
/// See the example of [`Leaks`].
#[track_caller]
#[must_use]
pub fn leaks() -> Leaks {
    with_current("leaks", "Runtime::leaks or Handle::leaks", leaks::leaks_of)
}

#[track_caller]
fn with_current<R>(what: &str, instead: &str, f: impl FnOnce(&Sched) -> R) -> R {
    match current_m().filter(|m| m.curg().is_some()) {
        // A goroutine keeps its runtime alive while it runs.
        Some(m) => f(m.sched()),
        None => panic!("gosched::debug::{what} called outside a runtime: use {instead}"),
    }
}
