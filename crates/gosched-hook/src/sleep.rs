//! Sleeping: `nanosleep` and its kin park the goroutine.

use std::ffi::{c_int, c_uint};
use std::time::Duration;

use gosched::hook;

use crate::table;

const NS_PER_S: i64 = 1_000_000_000;

table::hook! {
    fn nanosleep(time: *const libc::timespec, rest: *mut libc::timespec) -> c_int = |real| {
        if table::nanosleep.applies()
            // SAFETY: the caller passes a timespec or null.
            && let Some(length) = unsafe { time.as_ref() }.and_then(duration)
        {
            hook::sleep(length);
            return 0;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { real(time, rest) }
    };

    fn clock_nanosleep(
        clock: libc::clockid_t,
        flags: c_int,
        time: *const libc::timespec,
        rest: *mut libc::timespec,
    ) -> c_int = |real| {
        if table::clock_nanosleep.applies()
            // SAFETY: the caller passes a timespec or null.
            && let Some(length) = unsafe { time.as_ref() }.and_then(|t| on_clock(clock, flags, t))
        {
            hook::sleep(length);
            return 0;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { real(clock, flags, time, rest) }
    };

    fn usleep(time: c_uint) -> c_int = |real| {
        if table::usleep.applies() {
            hook::sleep(Duration::from_micros(time.into()));
            return 0;
        }
        // SAFETY: the call has no condition.
        unsafe { real(time) }
    };

    fn sleep(time: c_uint) -> c_uint = |real| {
        if table::sleep.applies() {
            hook::sleep(Duration::from_secs(time.into()));
            return 0;
        }
        // SAFETY: the call has no condition.
        unsafe { real(time) }
    };
}

/// None: the kernel refuses such a time, and says how.
fn duration(time: &libc::timespec) -> Option<Duration> {
    let is_valid = time.tv_sec >= 0 && (0..NS_PER_S).contains(&time.tv_nsec);
    is_valid.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// How long a sleep by a clock lasts, from now on; None: the kernel sleeps.
fn on_clock(clock: libc::clockid_t, flags: c_int, time: &libc::timespec) -> Option<Duration> {
    let until = duration(time)?;
    match (clock, flags) {
        (libc::CLOCK_MONOTONIC | libc::CLOCK_REALTIME, 0) => Some(until),
        (libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME) => {
            let mut now = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: libc writes the timespec.
            unsafe { libc::clock_gettime(clock, &mut now) };
            Some(until.saturating_sub(duration(&now)?))
        }
        _ => None,
    }
}
