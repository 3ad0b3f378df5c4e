//! [`sleep`] and [`sleep_until`]: Go's name for [`thread::sleep`](crate::thread::sleep), and a
//! sleep until an instant.

use std::time::{Duration, Instant};

/// Sleeps for at least `duration`, as [`thread::sleep`](crate::thread::sleep) does.
///
/// `Duration::ZERO` returns at once, `Duration::MAX` never returns. Blocks the calling goroutine or
/// plain thread.
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

/// Sleeps at least until `deadline`.
///
/// Returns at once if the deadline has passed. Blocks the calling goroutine or plain thread.
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
    // In a loop: the sleep reads the clock later than this does, so it may end a little early.
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        crate::thread::sleep(left);
    }
}
