//! Go's scheduler as a Rust library: goroutines with std's API.
//!
//! Ordinary blocking code, no `async`, by the hundred thousand on a few threads.
//!
//! ```
//! use gosched::thread;
//!
//! let total: usize = gosched::run(|| {
//!     let words = ["a", "goroutine", "is", "a", "thread"];
//!     let handles = words.map(|word| thread::spawn(move || word.len()));
//!     handles.into_iter().map(|handle| handle.join().unwrap()).sum()
//! });
//! assert_eq!(total, 19);
//! ```
//!
//! ```text
//!  go(f) ─► G ──► P.next ─► P's ring ──overflow──► global queue
//!                   │  ▲       │  ▲                      │
//!                   │  └ready()┘  └──── steal half ──── other P
//!                   ▼
//!  M + P : schedule() ─► find_runnable() ─► execute(G) ─► your code
//!             ▲                                  │ park  → a wait queue ─ready()→ P.next
//!             └───────── back on g0 ◄────────────┘ exit  → the caches of the P
//! ```
//!
//! Where to go from here: [`run`] and [`Runtime`] start it, [`thread`] has the API you know, [`debug`] shows what is going on.

#![warn(rust_2018_idioms)]

pub mod alloc;
mod arch;
mod base;
mod builder;
pub mod chan;
pub mod context;
pub mod debug;
pub mod future;
pub mod net;
pub mod os;
mod runtime;
mod sched;
mod shim;
pub mod signal;
mod stack;
pub mod sync;
mod sys;
#[cfg(test)]
mod tests;
pub mod thread;
pub mod time;
mod tls;

#[doc(hidden)]
pub mod testing;

/// The examples of the README and of the guide are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/what-a-goroutine-shares-with-a-thread.md")]
mod guide {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/blocking-and-preemption.md")]
mod guide_blocking {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/channels-locks-and-time.md")]
mod guide_channels {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/the-network.md")]
mod guide_network {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/from-std-thread.md")]
mod guide_from_std {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/from-go.md")]
mod guide_from_go {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/from-tokio.md")]
mod guide_from_tokio {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/debugging.md")]
mod guide_debugging {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/how-the-scheduler-works.md")]
mod guide_scheduler {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/limits.md")]
mod guide_limits {}
#[cfg(doctest)]
#[doc = include_str!("../../../docs/soundness.md")]
mod soundness {}

pub use builder::{Builder, Deadlock};
pub use runtime::{Handle, Runtime, run};
pub use sched::deadlock::DeadlockReport;
pub use sched::monitor::syscall::blocking;
pub use thread::yield_now;

/// Starts a goroutine that nobody joins. On the warm path nothing is allocated.
///
/// Blocks nothing: the goroutine runs when a P is free, the caller goes on. A panic in it is reported on stderr and ends only that
/// goroutine.
///
/// When the caller's runtime is being dropped, as at the end of main, `go` does not return: the caller is abandoned, as a goroutine
/// that waits is. When the runtime shuts down ([`Runtime::shutdown`]) the caller unwinds.
/// [`thread::Builder::spawn`](crate::thread::Builder::spawn) and [`Handle::try_spawn`] return an error instead.
///
/// # Panics
/// Outside a goroutine (use [`Runtime::go`] or [`Handle::go`]), or if no stack can be had.
///
/// ```
/// # gosched::run(|| {
/// let main = gosched::thread::current();
/// gosched::go(move || main.unpark());
/// gosched::thread::park();
/// # });
/// ```
#[track_caller]
#[inline]
pub fn go<F: FnOnce() + Send + 'static>(f: F) {
    let site = std::panic::Location::caller();
    let spawned = thread::with_current("go", |sched| thread::spawn_go(sched, site, f));
    if let Err(error) = spawned {
        thread::ending::refused(
            thread::ending::own_home(),
            "gosched: cannot start a goroutine",
            &error,
        );
    }
}

/// Sets how many goroutines of this runtime run at the same time, and returns the old number; 0 only reads it.
///
/// Stops the world: for a moment no goroutine of the runtime runs, and the caller is blocked. To read the number, or to set the one
/// that is set, blocks nothing. Goroutines queued on a processor that goes are kept. In a runtime that is being dropped it changes nothing.
///
/// # Panics
/// Outside a goroutine; for more than 4,096, or than [`max_threads`](Builder::max_threads); if there is no address space for more.
///
/// ```
/// # gosched::run(|| {
/// let old = gosched::gomaxprocs(3);
/// assert_eq!(gosched::gomaxprocs(old), 3);
/// # });
/// ```
#[track_caller]
pub fn gomaxprocs(n: usize) -> usize {
    assert!(
        n <= sched::PROCS_MAX,
        "gosched::gomaxprocs({n}): at most {} are possible",
        sched::PROCS_MAX
    );
    let set = thread::with_current("gomaxprocs", |sched| sched.set_procs(n as u32));
    match set {
        Ok(old) => old as usize,
        Err(error) => panic!("gosched::gomaxprocs({n}): {error}"),
    }
}

/// The goroutines of this runtime that have not ended, this one included.
///
/// Blocks nothing.
///
/// # Panics
/// Outside a goroutine.
///
/// ```
/// # gosched::run(|| {
/// assert_eq!(gosched::num_goroutines(), 1);
/// # });
/// ```
#[track_caller]
#[must_use]
pub fn num_goroutines() -> usize {
    thread::with_current("num_goroutines", |sched| sched.goroutines() as usize)
}

/// Wires the calling goroutine to its thread: it runs nowhere else, and nothing else runs there. Calls nest.
///
/// Blocks nothing. A goroutine that ends while wired ends its thread, so thread state that it changed never spreads.
///
/// # Panics
/// Outside a goroutine.
///
/// ```
/// # gosched::run(|| {
/// gosched::lock_os_thread();
/// let before = std::fs::read_link("/proc/thread-self").unwrap(); // the kernel's thread
/// gosched::yield_now();
/// assert_eq!(std::fs::read_link("/proc/thread-self").unwrap(), before);
/// gosched::unlock_os_thread();
/// # });
/// ```
#[track_caller]
pub fn lock_os_thread() {
    sched::locked::lock_os_thread();
}

/// Undoes one [`lock_os_thread`]; does nothing if there was none.
///
/// Blocks nothing.
///
/// # Panics
/// Outside a goroutine.
///
/// ```
/// # gosched::run(|| {
/// let is_wired = || gosched::debug::dump().goroutines()[0].is_locked();
/// gosched::lock_os_thread();
/// gosched::lock_os_thread();
/// gosched::unlock_os_thread();
/// assert!(is_wired()); // locked twice, unlocked once
/// gosched::unlock_os_thread();
/// assert!(!is_wired());
/// # });
/// ```
#[track_caller]
pub fn unlock_os_thread() {
    sched::locked::unlock_os_thread();
}

/// Ends the calling goroutine, running its destructors; whoever joins it gets [`thread::Exited`].
///
/// Blocks nothing itself; destructors may. In a main goroutine the others go on; [`run`] does not return, and when no goroutine is
/// left that is a fatal error, as in Go. `catch_unwind` catches it like a panic. Without unwinding (`panic = "abort"`) this function
/// does not exist.
///
/// # Panics
/// Outside a goroutine.
///
/// ```
/// # gosched::run(|| {
/// let handle = gosched::thread::spawn(|| { gosched::exit(); });
/// assert!(handle.join().is_err());
/// # });
/// ```
#[cfg(panic = "unwind")]
#[track_caller]
pub fn exit() -> ! {
    thread::with_current("exit", |_| ());
    std::panic::resume_unwind(thread::exited());
}

/// Runs `fn main` as the main goroutine of a runtime. Blocks the thread meanwhile, as [`run`] does.
///
/// With no options this is [`run`] around the body; with options the runtime
/// is built by [`Runtime::builder`] first.
///
/// ```
/// #[gosched::main]
/// fn main() {
///     let sum = gosched::thread::spawn(|| (1..=10).sum::<u32>());
///     assert_eq!(sum.join().unwrap(), 55);
/// }
/// ```
///
/// Options go in parentheses, and whatever `main` may return it may return here:
///
/// ```
/// # use std::error::Error;
/// #[gosched::main(procs = 4, stack_size = 64 * 1024)]
/// fn main() -> Result<(), Box<dyn Error>> {
///     assert_eq!(gosched::gomaxprocs(0), 4);
///     let n: u32 = "42".parse()?;
///     assert_eq!(n, 42);
///     Ok(())
/// }
/// ```
///
/// A crate that knows this one by another name, or only through a third, says
/// under which path:
///
/// ```
/// mod vendored {
///     pub use gosched;
/// }
///
/// #[vendored::gosched::main(crate = "vendored::gosched")]
/// fn main() {
///     assert_eq!(gosched::num_goroutines(), 1);
/// }
/// ```
pub use gosched_macros::main;

/// Makes a function a test that runs as the main goroutine of a runtime of its own. Blocks the test's thread meanwhile.
///
/// ```
/// #[gosched::test]
/// fn adds_up() {
///     let one = gosched::thread::spawn(|| 1);
///     assert_eq!(one.join().unwrap() + 1, 2);
/// }
///
/// #[gosched::test(procs = 1)]
/// #[should_panic(expected = "no such luck")]
/// fn panics_as_expected() {
///     gosched::thread::spawn(|| 7).join().unwrap();
///     panic!("no such luck");
/// }
///
/// #[gosched::test]
/// fn parses() -> Result<(), std::num::ParseIntError> {
///     let n: u32 = "42".parse()?;
///     assert_eq!(n, 42);
///     Ok(())
/// }
/// # fn main() {}
/// ```
pub use gosched_macros::test;
