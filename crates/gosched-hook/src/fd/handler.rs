//! Whether the caller may be in a signal handler.
//!
//! A handler belongs to its thread: the thread's mask blocks the signal until the handler returns.
//! If the goroutine parked there, it might return on another thread, and this one would block the
//! signal for good. So a write of a handler that would wait is left to libc. And a handler may have
//! interrupted code that holds a lock of the runtime.

use std::ffi::c_int;

/// Whether the thread blocks a signal for which there is a handler, as it does in the handler.
///
/// One system call, as a rule. So of all waits only those of writes ask: handlers write, and the
/// waits that are frequent are those of reads.
pub(super) fn may_be_in_one() -> bool {
    let mut mask = 0u64;
    let at = (&raw mut mask).cast::<libc::sigset_t>();
    let none = std::ptr::null::<libc::sigset_t>();
    // SAFETY: the kernel writes 8 bytes.
    let answer = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, none, at, 8) };
    answer == 0
        && mask != 0
        && (1..=64).any(|signal| mask >> (signal - 1) & 1 == 1 && is_handled(signal))
}

fn is_handled(signal: c_int) -> bool {
    // SAFETY: all bits zero are an action, which libc writes.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0
            && !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
    }
}
