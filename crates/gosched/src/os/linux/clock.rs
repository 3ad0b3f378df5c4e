//! The one clock: CLOCK_MONOTONIC in nanoseconds, so that instants are plain
//! `u64` values that can sit in an atomic. `u64::MAX` is the instant that never comes.

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

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

/// Whether the moment has come; `u64::MAX` never comes. CONTEXT: any.
#[inline]
pub(crate) fn has_passed(when_ns: u64) -> bool {
    when_ns != u64::MAX && monotonic_ns() >= when_ns
}

/// One moment on both clocks, to convert between them. The second reading is never the earlier one, so that a deadline made from an
/// `Instant` is never early.
fn anchor() -> (Instant, u64) {
    static ANCHOR: OnceLock<(Instant, u64)> = OnceLock::new();
    *ANCHOR.get_or_init(|| {
        loop {
            let before = monotonic_ns();
            let instant = Instant::now();
            let after = monotonic_ns();
            if after - before < 20_000 {
                return (instant, after);
            }
        }
    })
}

/// The moment of an `Instant`. CONTEXT: user.
pub(crate) fn deadline_of(instant: Instant) -> u64 {
    let (anchor, ns) = anchor();
    let far = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    match instant.checked_duration_since(anchor) {
        Some(after) => ns.saturating_add(far(after)),
        None => ns.saturating_sub(far(anchor - instant)),
    }
}

/// The `Instant` of a moment. CONTEXT: user.
pub(crate) fn instant_of(when_ns: u64) -> Instant {
    let (anchor, ns) = anchor();
    if when_ns >= ns {
        anchor + Duration::from_nanos(when_ns - ns)
    } else {
        anchor - Duration::from_nanos(ns - when_ns)
    }
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
