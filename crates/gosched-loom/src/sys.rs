//! Stand-in for the clock, which is either before every deadline or after all of them.

use std::time::{Duration, Instant};

use crate::shim::has_time_passed;

/// Any deadline; the story decides when it passes.
const SOON: u64 = 1;

pub(crate) fn monotonic_ns() -> u64 {
    if has_time_passed() { SOON } else { 0 }
}

pub(crate) fn deadline_after(duration: Duration) -> u64 {
    if duration == Duration::MAX {
        u64::MAX
    } else {
        SOON
    }
}

pub(crate) fn deadline_of(_: Instant) -> u64 {
    SOON
}

pub(crate) fn instant_of(_: u64) -> Instant {
    Instant::now()
}

pub(crate) fn has_passed(when_ns: u64) -> bool {
    when_ns != u64::MAX && has_time_passed()
}
