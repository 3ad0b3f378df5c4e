//! Sleeping, under Go's name for the place.

use std::time::{Duration, Instant};

/// Blocks for at least `duration`, the same as [`thread::sleep`](crate::thread::sleep). `Duration::ZERO` returns at once,
/// `Duration::MAX` never.
///
/// Blocks the goroutine, or the plain thread it is called on.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// gosched::run(|| {
///     let start = Instant::now();
///     gosched::time::sleep(Duration::from_millis(2));
///     assert!(start.elapsed() >= Duration::from_millis(2));
/// });
/// ```
pub fn sleep(duration: Duration) {
    crate::thread::sleep(duration);
}

/// Blocks until `deadline`, at least; returns at once if it has passed.
///
/// Blocks the goroutine, or the plain thread it is called on.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// gosched::run(|| {
///     let deadline = Instant::now() + Duration::from_millis(2);
///     gosched::time::sleep_until(deadline);
///     assert!(Instant::now() >= deadline);
/// });
/// ```
pub fn sleep_until(deadline: Instant) {
    // As often as it takes: a duration from a clock that is read later may end a little early.
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        crate::thread::sleep(left);
    }
}
