//! Measures what a hook costs on a plain thread: a hooked function against libc's own.
//!
//! The calls are such that the kernel returns at once. Slices of both kinds take turns,
//! and a disturbance hits both alike. A figure is the median of all slices of its kind, the added
//! time that of the differences of neighbours.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::fmt::Write;
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use crate::common::median;

/// Calls in a slice.
const CALLS: usize = 1_000;
/// Slices of each kind.
const SLICES: usize = 1_001;
/// The most that a hook may add, in nanoseconds.
const GOAL_NS: f64 = 5.0;

type Recv = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
type Close = unsafe extern "C" fn(c_int) -> c_int;
type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;

/// What one function costs.
struct Cost {
    name: &'static str,
    /// Through the hook, libc's own, and the difference, in nanoseconds.
    hooked_ns: f64,
    libc_ns: f64,
    added_ns: f64,
}

/// All functions as lines, in the benchmark's form: `plain FUNCTION METRIC VALUE UNIT`.
pub fn report() -> String {
    let mut text = String::new();
    for cost in costs(SLICES) {
        for (metric, ns) in [
            ("hooked_time", cost.hooked_ns),
            ("libc_time", cost.libc_ns),
            ("added_time", cost.added_ns),
            ("added_time_goal", GOAL_NS),
        ] {
            writeln!(text, "plain {} {metric} {ns:.1} ns", cost.name)
                .expect("a String takes every write");
        }
    }
    text
}

fn costs(slices: usize) -> [Cost; 5] {
    // SAFETY: libc's functions of these names have these types.
    let (recv, read, close, syscall) = unsafe {
        (
            own::<Recv>(c"recv"),
            own::<Read>(c"read"),
            own::<Close>(c"close"),
            own::<Syscall>(c"syscall"),
        )
    };
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    [
        // SAFETY: there is no descriptor -1, so the kernel touches no memory.
        cost("recv", slices, [libc::recv, recv], |f| unsafe {
            f(-1, ptr::null_mut(), 0, 0);
        }),
        // SAFETY: there is no descriptor -1, so the kernel touches no memory.
        cost("read", slices, [libc::read, read], |f| unsafe {
            f(-1, ptr::null_mut(), 0);
        }),
        // SAFETY: there is no descriptor -1.
        cost("close", slices, [libc::close, close], |f| unsafe {
            f(-1);
        }),
        // SAFETY: the call touches no memory.
        cost("syscall", slices, [libc::syscall, syscall], |f| unsafe {
            f(libc::SYS_getppid);
        }),
        // SAFETY: the call wakes all that wait at the word, which lives for good.
        cost("futex_wake", slices, [libc::syscall, syscall], |f| unsafe {
            let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            f(libc::SYS_futex, NOBODY.as_ptr(), wake, 1);
        }),
    ]
}

/// libc's own function, behind the hook.
///
/// # Safety
/// `F` is the type of libc's function of this name.
unsafe fn own<F: Copy>(name: &CStr) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a look-up by name.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!at.is_null(), "libc has no {name:?}");
    // SAFETY: the caller names the function's type, whose size is that of an address.
    unsafe { std::mem::transmute_copy(&at) }
}

/// Calls both functions in turn, first the hooked one.
fn cost<F: Copy>(
    name: &'static str,
    slices: usize,
    [hooked, libc]: [F; 2],
    call: impl Fn(F),
) -> Cost {
    let slice = |function: F| {
        let start = Instant::now();
        for _ in 0..CALLS {
            call(black_box(function));
        }
        start.elapsed().as_nanos() as f64 / CALLS as f64
    };
    let pairs: Vec<_> = (0..slices).map(|_| (slice(hooked), slice(libc))).collect();
    let middle = |of: fn(&(f64, f64)) -> f64| median(&mut pairs.iter().map(of).collect::<Vec<_>>());
    Cost {
        name,
        hooked_ns: middle(|pair| pair.0),
        libc_ns: middle(|pair| pair.1),
        added_ns: middle(|pair| pair.0 - pair.1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_measured() {
        for cost in costs(3) {
            assert!(cost.hooked_ns > 0.0 && cost.libc_ns > 0.0, "{}", cost.name);
        }
    }

    #[test]
    fn the_hook_is_not_libc_s_own_function() {
        // SAFETY: libc's function of this name has this type.
        let own = unsafe { own::<Read>(c"read") };
        assert_ne!(own as usize, libc::read as Read as usize);
    }
}
