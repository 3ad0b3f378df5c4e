//! The one clock: CLOCK_MONOTONIC in nanoseconds.
//!
//! Instants are plain `u64` values, so that they fit in an atomic. `u64::MAX` is the instant that
//! never comes.

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds of CLOCK_MONOTONIC; CONTEXT: any.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is to this frame's own timespec. The call runs in the vdso and sets
    // `errno` only when it fails, which it never does for this clock (D9).
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr()) };
    debug_assert_eq!(answer, 0);
    // SAFETY: the call succeeded and has written the whole struct.
    let now = unsafe { now.assume_init() };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The instant `d` from now; `u64::MAX` if it does not fit; CONTEXT: any.
pub(crate) fn deadline_after(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).map_or(u64::MAX, |ns| monotonic_ns().saturating_add(ns))
}

/// Whether the instant has passed; `u64::MAX` never does. CONTEXT: any.
#[inline]
pub(crate) fn has_passed(when_ns: u64) -> bool {
    when_ns != u64::MAX && monotonic_ns() >= when_ns
}

/// How often the two clocks are read to compare them.
const READINGS: usize = 16;

/// An `Instant` between two readings of CLOCK_MONOTONIC.
struct Reading {
    before: u64,
    instant: Instant,
    after: u64,
}

/// One moment on both clocks, to convert between them.
fn anchor() -> (Instant, u64) {
    static ANCHOR: OnceLock<(Instant, u64)> = OnceLock::new();
    *ANCHOR.get_or_init(|| {
        anchor_of((0..READINGS).map(|_| {
            let before = monotonic_ns();
            let instant = Instant::now();
            crate::sys::linux::inject::interrupt_clock();
            let after = monotonic_ns();
            Reading {
                before,
                instant,
                after,
            }
        }))
    })
}

/// The anchor from the tightest reading: a thread may be interrupted in the middle of one. It is
/// exact if `nanos_of` can read an `Instant`. Otherwise it takes the later time of the reading: no
/// deadline is early then, and all are late by that reading, some 50 ns.
fn anchor_of(readings: impl Iterator<Item = Reading>) -> (Instant, u64) {
    let Some(tightest) = readings.min_by_key(|reading| reading.after - reading.before) else {
        unreachable!("the clocks are read at least once")
    };
    let Reading {
        before,
        instant,
        after,
    } = tightest;
    let exact = nanos_of(instant).filter(|ns| (before..=after).contains(ns));
    (instant, exact.unwrap_or(after))
}

/// The clock's nanoseconds that an `Instant` was made from, if it consists of seconds in an i64 and
/// of nanoseconds. std does not promise that, so the caller compares the result with the clock. The
/// largest duration that can be subtracted is the distance from the smallest `Instant`.
fn nanos_of(instant: Instant) -> Option<u64> {
    let fits = |d: Duration| instant.checked_sub(d).is_some();
    let secs = largest(u64::MAX, |secs| fits(Duration::from_secs(secs)));
    let nanos = largest(999_999_999, |nanos| fits(Duration::new(secs, nanos as u32)));
    let secs = secs.checked_sub(i64::MIN.unsigned_abs())?;
    secs.checked_mul(1_000_000_000)?.checked_add(nanos)
}

/// The largest number up to `most` for which `fits` is true. `fits(0)` is true, and `fits` is
/// monotonic.
fn largest(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = high - (high - low) / 2;
        match fits(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    low
}

/// The nanoseconds of an `Instant`. CONTEXT: user.
pub(crate) fn deadline_of(instant: Instant) -> u64 {
    let (anchor, ns) = anchor();
    let far = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    match instant.checked_duration_since(anchor) {
        Some(after) => ns.saturating_add(far(after)),
        None => ns.saturating_sub(far(anchor - instant)),
    }
}

/// The `Instant` of an instant in nanoseconds. CONTEXT: user.
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

    /// With another layout of `Instant` std would cost some 50 ns of precision; the project should
    /// know.
    #[test]
    fn an_instant_is_read_exactly() {
        for _ in 0..100 {
            let before = monotonic_ns();
            let instant = Instant::now();
            let after = monotonic_ns();
            let ns = nanos_of(instant).expect("seconds and nanoseconds");
            assert!((before..=after).contains(&ns), "{before} {ns} {after}");
            assert_eq!(deadline_of(instant), ns);
            assert_eq!(instant_of(ns), instant);
        }
    }

    #[test]
    fn an_anchor_is_exact_however_late_the_second_reading_was() {
        let instant = Instant::now();
        let ns = nanos_of(instant).unwrap();
        let reading = |early, late| Reading {
            before: ns - early,
            instant,
            after: ns + late,
        };
        assert_eq!(anchor_of([reading(10, 20_000_000)].into_iter()).1, ns);
        assert_eq!(anchor_of([reading(0, 0)].into_iter()).1, ns);
    }

    /// As if an `Instant` could not be read: both readings are of another moment.
    #[test]
    fn of_several_readings_the_tightest_is_kept() {
        let far = 1 << 60;
        let reading = |before: u64, gap: u64| Reading {
            before: far + before,
            instant: Instant::now(),
            after: far + before + gap,
        };
        let readings = [reading(0, 19_999), reading(30_000, 40), reading(60_000, 41)];
        assert_eq!(anchor_of(readings.into_iter()).1, far + 30_040);
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
