//! How many wait on the futexes of one bucket: goroutines, and threads in the kernel.
//!
//! A wake-up looks only where a count is above 0. So most wake-ups make no system call, and most of
//! those on plain threads take no lock. The protocol is in `futex.rs`.
//!
//! ```text
//!  the waiter                              the waker
//!  1 count + 1                             1 changes the word (the program does)
//!  2 full barrier           (futex/1)      2 full barrier                  (futex/2)
//!  3 loads the word: as expected, sleep    3 loads the count: 0, no waiter to wake
//! ```

use crate::shim::{AtomicU32, Relaxed, SeqCst, fence, fence_after_rmw};

/// A waiter in the kernel that may be moved to this bucket by the kernel: the count stays above 0.
const MOVED: u32 = 1 << 31;

pub(crate) struct FutexCounts {
    /// Goroutines in the queues of the bucket's futexes. Changed under the bucket's lock.
    pub(crate) goroutines: AtomicU32,
    /// Threads that wait in the kernel on a private futex of this bucket, or are about to.
    pub(crate) kernel: AtomicU32,
    /// The state of the coin that is tossed where both kinds wait.
    pub(crate) coin: AtomicU32,
}

/// Whether threads may wait in the kernel that no bucket counts.
pub(crate) struct Uncounted(pub(crate) AtomicU32);

impl Uncounted {
    /// From now on each wake-up enters the kernel. Before such a thread waits.
    pub(crate) fn expect(&self) {
        self.0.fetch_or(1, Relaxed);
        // FENCE: futex/1 — the flag before the kernel's load of the word; meets futex/2.
        fence_after_rmw();
    }
}

impl FutexCounts {
    /// A goroutine is about to load the word and to queue itself. Under the bucket's lock.
    #[inline]
    pub(crate) fn add_goroutine(&self) {
        self.goroutines.fetch_add(1, Relaxed);
        // FENCE: futex/1 — the count before the load of the word; meets futex/2.
        fence_after_rmw();
    }

    /// Goroutines are out of their queue. Under the bucket's lock.
    #[inline]
    pub(crate) fn remove_goroutines(&self, n: u32) {
        self.goroutines
            .store(self.goroutines.load(Relaxed) - n, Relaxed);
    }

    /// A thread is about to wait in the kernel.
    #[inline]
    pub(crate) fn enter_kernel(&self) {
        self.kernel.fetch_add(1, Relaxed);
        // FENCE: futex/1 — the count before the kernel's load of the word; meets futex/2.
        fence_after_rmw();
    }

    /// That thread is back.
    #[inline]
    pub(crate) fn leave_kernel(&self) {
        self.kernel.fetch_sub(1, Relaxed);
    }

    /// Threads may wait here that were counted elsewhere.
    pub(crate) fn expect_moved(&self) {
        self.kernel.fetch_or(MOVED, Relaxed);
        // FENCE: futex/1 — the mark before the kernel moves a waiter; meets futex/2.
        fence_after_rmw();
    }

    /// Wakes `n` waiters. `pop` wakes so many goroutines, `kernel` so many threads; both return how
    /// many there were.
    #[inline]
    pub(crate) fn wake(
        &self,
        n: u32,
        uncounted: &Uncounted,
        mut pop: impl FnMut(u32) -> u32,
        kernel: impl FnMut(u32) -> u32,
    ) -> u32 {
        // A goroutine that is found needs no barrier: only a waiter that is overlooked does. So the
        // usual wake-up has one barrier less.
        if self.goroutines.load(Relaxed) == 0 || self.has_threads(uncounted) {
            return self.wake_both(n, uncounted, pop, kernel);
        }
        match pop(n) {
            woken if woken >= n => woken,
            woken => woken + self.wake_both(n - woken, uncounted, pop, kernel),
        }
    }

    /// As `wake`, of both kinds.
    #[inline]
    fn wake_both(
        &self,
        n: u32,
        uncounted: &Uncounted,
        mut pop: impl FnMut(u32) -> u32,
        mut kernel: impl FnMut(u32) -> u32,
    ) -> u32 {
        // FENCE: futex/2 — the program's store to the word before the loads of the counts; meets
        // futex/1.
        fence(SeqCst);
        let has_goroutines = self.goroutines.load(Relaxed) != 0;
        let has_threads = self.has_threads(uncounted);
        match (has_goroutines, has_threads) {
            (false, false) => 0,
            (true, false) => pop(n),
            (false, true) => kernel(n),
            (true, true) if self.toss() => in_turn(n, pop, kernel),
            (true, true) => in_turn(n, kernel, pop),
        }
    }

    /// Whether threads may wait in the kernel.
    #[inline]
    fn has_threads(&self, uncounted: &Uncounted) -> bool {
        self.kernel.load(Relaxed) != 0 || uncounted.0.load(Relaxed) != 0
    }

    /// Which kind is first. A strict change would starve a kind if wake-ups of two words alternate
    /// as well. So this is a random number; a lost update does no harm.
    fn toss(&self) -> bool {
        let next = self
            .coin
            .load(Relaxed)
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.coin.store(next, Relaxed);
        next >> 31 != 0
    }
}

/// Wakes by the one, and what is left by the other.
fn in_turn(n: u32, mut one: impl FnMut(u32) -> u32, mut other: impl FnMut(u32) -> u32) -> u32 {
    let woken = one(n);
    match n.saturating_sub(woken) {
        0 => woken,
        rest => woken + other(rest),
    }
}
