//! Futexes: goroutines that wait on words of the program, beside threads that wait in the kernel.
//!
//! Only private futexes belong here. An address is a multiple of 4, and below the upper half of the
//! address space.

use std::time::Duration;

use crate::arch::load_or_fault;
use crate::sched::waiting::sema::NEVER;
use crate::sched::waiting::{futex, futex_late};
use crate::sys;

/// When a wait ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Only by a wake-up.
    Never,
    /// After this time.
    After(Duration),
    /// At this time of `CLOCK_MONOTONIC`.
    At(Duration),
}

impl Until {
    fn deadline_ns(self) -> u64 {
        match self {
            Until::Never => NEVER,
            Until::After(length) => sys::deadline_after(length),
            Until::At(time) => u64::try_from(time.as_nanos()).unwrap_or(NEVER),
        }
    }
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It was woken, perhaps for no reason.
    Woken,
    /// The word had another value.
    Changed,
    /// Its time is over.
    TimedOut,
    /// The word cannot be read.
    Fault,
}

/// Parks the goroutine while the word is `expected`. Does not unwind.
///
/// The caller has asked [`can_park`](super::can_park).
///
/// ```
/// use gosched::hook::futex::{End, Until, wait};
/// # gosched::run(|| {
/// let word = 1u32;
/// assert_eq!(wait(&raw const word as usize, 2, Until::Never), End::Changed);
/// assert_eq!(wait(0, 2, Until::Never), End::Fault);
/// # });
/// ```
pub fn wait(word: usize, expected: u32, until: Until) -> End {
    match futex::wait(word, expected, until.deadline_ns()) {
        futex::FutexEnd::Woken => End::Woken,
        futex::FutexEnd::Changed => End::Changed,
        futex::FutexEnd::TimedOut => End::TimedOut,
        futex::FutexEnd::Fault => End::Fault,
    }
}

/// Wakes `n` goroutines and threads that wait on the word, and returns how many it woke.
///
/// `kernel` wakes so many threads that wait in the kernel. It is called where there may be such
/// threads. Any thread may call this, also in a signal handler; then the number may be too small.
///
/// ```
/// let word = 1u32;
/// let woken = gosched::hook::futex::wake(&raw const word as usize, 1, |_| 0);
/// assert_eq!(woken, 0);
/// ```
#[inline]
pub fn wake(word: usize, n: u32, kernel: impl FnMut(u32) -> u32) -> u32 {
    futex::wake(word, n, kernel)
}

/// The calling thread waits in the kernel on the word, until this is dropped. It must be made before
/// the kernel compares the word.
///
/// ```
/// let word = 1u32;
/// drop(gosched::hook::futex::KernelWait::begin(&raw const word as usize));
/// ```
#[derive(Debug)]
#[must_use = "the thread counts until this is dropped"]
pub struct KernelWait {
    word: usize,
}

impl KernelWait {
    /// The thread is about to wait. See the example of [`KernelWait`].
    #[inline]
    pub fn begin(word: usize) -> KernelWait {
        futex::enter_kernel(word);
        KernelWait { word }
    }
}

impl Drop for KernelWait {
    #[inline]
    fn drop(&mut self) {
        futex::left_kernel(self.word);
    }
}

/// The kernel is about to move waiters to the word.
///
/// ```
/// let word = 1u32;
/// gosched::hook::futex::expect_moved(&raw const word as usize);
/// ```
pub fn expect_moved(word: usize) {
    futex::expect_moved(word);
}

/// From now on every [`wake`] calls its `kernel`: threads may wait that have made no [`KernelWait`].
///
/// ```
/// gosched::hook::futex::always_enter_kernel();
/// ```
pub fn always_enter_kernel() {
    futex::always_enter_kernel();
}

/// Runtimes that are made from now on expect wake-ups in signal handlers. A program with a hook
/// that calls [`wake`] calls this before it makes a runtime.
///
/// ```
/// gosched::hook::futex::prepare();
/// ```
pub fn prepare() {
    futex_late::want();
}

/// The word at any address, or none if it cannot be read. Only after a runtime was made.
///
/// ```
/// # gosched::run(|| {
/// let word = 7u32;
/// assert_eq!(gosched::hook::futex::load(&raw const word as usize), Some(7));
/// assert_eq!(gosched::hook::futex::load(8), None);
/// # });
/// ```
pub fn load(word: usize) -> Option<u32> {
    load_or_fault(word)
}
