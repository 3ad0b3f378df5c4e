//! Loops that use the CPU and nothing else.

#![allow(dead_code)] // each test file uses some of it

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Goes round and round until `flag` is set: two instructions, no call, no stack.
pub fn spin_until(flag: &AtomicBool) {
    let at = flag.as_ptr();
    // SAFETY: reads a byte that others write atomically.
    unsafe {
        std::arch::asm!(
            "2:",
            "cmp byte ptr [{0}], 0",
            "je 2b",
            in(reg) at,
            options(nostack, readonly)
        );
    }
}

/// Some rounds of a loop without a call.
pub fn spin(rounds: u64) {
    // SAFETY: counts a register down.
    unsafe {
        std::arch::asm!(
            "2:",
            "dec {0}",
            "jnz 2b",
            inout(reg) rounds.max(1) => _,
            options(nostack, nomem)
        );
    }
}

/// Uses the CPU and nothing of the runtime.
pub fn burn(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        spin(1000);
    }
}
