//! Go's scheduler as a Rust library: goroutines with the API of std's threads.
//!
//! It runs ordinary blocking code without `async`: hundreds of thousands of goroutines on a few
//! threads.
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
//! [`run`] and [`Runtime`] start the scheduler. [`thread`] has the API of [`std::thread`].
//! [`debug`] shows what the goroutines do.

#![warn(rust_2018_idioms)]

pub mod alloc;
mod arch;
mod base;
mod builder;
pub mod chan;
pub mod context;
pub mod debug;
pub mod future;
pub mod hook;
mod interpose;
pub mod io;
pub mod net;
pub mod os;
pub mod process;
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

/// Runs the examples of the README and of the guide as tests.
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
pub use debug::deadlock_report::DeadlockReport;
pub use runtime::{Handle, Runtime, run};
pub use sched::calls::syscall::blocking;
pub use thread::yield_now;

/// Starts a goroutine without a handle to join it.
///
/// The goroutine runs when a P is free. Never blocks, and usually allocates nothing. A panic in the
/// goroutine is reported on stderr and ends only that goroutine.
///
/// `go` does not return if the caller's runtime ends:
/// - While the runtime is being dropped, as at the end of main, the caller is abandoned, as a
///   goroutine that waits is.
/// - While the runtime shuts down ([`Runtime::shutdown`]), the caller unwinds.
///
/// [`thread::Builder::spawn`](crate::thread::Builder::spawn) and [`Handle::try_spawn`] return an
/// error instead.
///
/// # Panics
/// Outside a goroutine, where [`Runtime::go`] or [`Handle::go`] works, or if no stack is available.
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

/// Sets how many goroutines of this runtime run at the same time, and returns the old number.
///
/// With 0 it only returns the number. A change stops the world: for a moment no goroutine of the
/// runtime runs, and the caller is blocked. Otherwise this never blocks. Goroutines queued on a
/// removed P are kept. In a runtime that is being dropped nothing changes.
///
/// # Panics
/// - Outside a goroutine.
/// - If `n` is more than 4,096, or more than [`max_threads`](Builder::max_threads).
/// - If there is no address space for more Ps.
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

/// Returns how many goroutines of this runtime have not ended, including the caller.
///
/// Never blocks.
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

/// Locks the calling goroutine to its thread, as Go's `runtime.LockOSThread`.
///
/// The goroutine runs on no other thread, and the thread runs no other goroutine. Calls nest. Never
/// blocks. If the goroutine ends while it is locked, its thread ends too, so changed thread state
/// never affects other goroutines.
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

/// Undoes one [`lock_os_thread`].
///
/// Does nothing if the goroutine is not locked. Never blocks.
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

/// Ends the calling goroutine after running its destructors, as Go's `runtime.Goexit`.
///
/// A join of the goroutine returns [`thread::Exited`]. Never blocks, but destructors may.
/// `catch_unwind` catches it like a panic. Without unwinding (`panic = "abort"`) this function does
/// not exist.
///
/// After a `goexit` of a main goroutine the others continue, and [`run`] does not return. When no
/// goroutine is left, that is a fatal error, as in Go.
///
/// # Panics
/// Outside a goroutine.
///
/// ```
/// # gosched::run(|| {
/// let handle = gosched::thread::spawn(|| { gosched::goexit(); });
/// assert!(handle.join().is_err());
/// # });
/// ```
#[cfg(panic = "unwind")]
#[track_caller]
pub fn goexit() -> ! {
    thread::with_current("goexit", |_| ());
    std::panic::resume_unwind(thread::exited());
}

/// [`goexit`], by its old name.
///
/// Blocks as [`goexit`] does. See the example there.
///
/// # Panics
/// Outside a goroutine.
#[cfg(panic = "unwind")]
#[deprecated(note = "renamed to `goexit`")]
#[track_caller]
pub fn exit() -> ! {
    goexit()
}

/// Runs `fn main` as the main goroutine of a runtime.
///
/// Blocks the thread meanwhile, as [`run`] does. Without options this is [`run`] around the body.
/// With options [`Runtime::builder`] builds the runtime.
///
/// ```
/// #[gosched::main]
/// fn main() {
///     let sum = gosched::thread::spawn(|| (1..=10).sum::<u32>());
///     assert_eq!(sum.join().unwrap(), 55);
/// }
/// ```
///
/// Options go in parentheses. `main` may return what any `main` may return:
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
/// A crate that uses this one under another name, or through a third crate, gives the path:
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

/// Makes a function a test that runs as the main goroutine of its own runtime.
///
/// Blocks the test's thread meanwhile.
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
