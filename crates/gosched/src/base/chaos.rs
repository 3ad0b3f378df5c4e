//! Disorder on demand, for stress tests: `GOSCHED_DEBUG=chaos=SEED`.
//!
//! While it is on, every exit from the runtime may be a preemption, the monitor claims Ps of
//! goroutines that are not blocked, and threads delay at the named points. The seed decides which
//! points, how often and for how long; it does not decide how the machine schedules the threads.
//! Off, it costs one load at places that are rare.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::sys;

/// The seed; 0: chaos is off.
static SEED: AtomicU64 = AtomicU64::new(0);
static TURN: AtomicU64 = AtomicU64::new(0);

/// Turns chaos on for the process; 0 turns it off.
pub(crate) fn set(seed: u64) {
    SEED.store(seed, Relaxed);
}

#[inline]
pub(crate) fn is_on() -> bool {
    SEED.load(Relaxed) != 0
}

/// A random number that depends on the seed, the name and the number of draws so far.
fn draw(name: &str) -> u64 {
    let mut x = SEED.load(Relaxed) ^ TURN.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed);
    for byte in name.bytes() {
        x = (x ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    }
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}

/// True one time in `n`, if chaos is on.
#[inline]
pub(crate) fn one_in(n: u64, name: &'static str) -> bool {
    is_on() && draw(name).is_multiple_of(n)
}

/// A place where a thread may be delayed.
#[inline]
pub(crate) fn point(name: &'static str) {
    if is_on() {
        dawdle(name);
    }
}

#[cold]
#[inline(never)]
fn dawdle(name: &'static str) {
    match draw(name) % 64 {
        0 => sys::sleep_ns(1 + draw(name) % 60_000),
        1..=3 => sys::sched_yield(),
        4..=7 => (0..draw(name) % 2_000).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}
