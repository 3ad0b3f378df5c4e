//! The one clock: CLOCK_MONOTONIC in nanoseconds, so that instants are plain
//! `u64` values that can sit in an atomic. `u64::MAX` is the instant that never comes.

use core::mem::MaybeUninit;
use core::time::Duration;

/// Nanoseconds of CLOCK_MONOTONIC; CONTEXT: any.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is this frame's own timespec. The call runs in the vdso and
    // reaches for `errno` only when it fails, which this clock never does (D9).
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr()) };
    debug_assert_eq!(answer, 0);
    // SAFETY: the call succeeded and has written the whole struct.
    let now = unsafe { now.assume_init() };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The instant `d` from now; one too far away to name is `u64::MAX`; CONTEXT: any.
pub(crate) fn deadline_after(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).map_or(u64::MAX, |ns| monotonic_ns().saturating_add(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_forward_at_the_right_rate() {
        let start = monotonic_ns();
        std::thread::sleep(Duration::from_millis(10));
        let elapsed = monotonic_ns() - start;
        assert!(elapsed >= 10_000_000, "{elapsed}");
        assert!(elapsed < 10_000_000_000, "{elapsed}");
    }

    #[test]
    fn deadlines_add_and_saturate() {
        let before = monotonic_ns();
        let deadline = deadline_after(Duration::from_secs(1));
        assert!(deadline >= before + 1_000_000_000);
        assert!(deadline <= monotonic_ns() + 1_000_000_000);
        assert_eq!(deadline_after(Duration::MAX), u64::MAX);
        assert_eq!(deadline_after(Duration::from_nanos(u64::MAX)), u64::MAX);
        assert!(deadline_after(Duration::ZERO) < u64::MAX);
    }
}
