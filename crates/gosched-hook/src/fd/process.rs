//! Whether the caller is in the process whose descriptors the entries describe.
//!
//! The child of `vfork` has descriptors of its own and the memory of its parent. What it closes is
//! still open there.

use std::ffi::c_int;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

/// The process. The child of a `fork` has memory of its own, and stores itself.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn begin() {
        note();
        // SAFETY: `note` is async-signal-safe.
        unsafe { libc::pthread_atfork(None, None, Some(note)) };
    }
    begin
};

extern "C" fn note() {
    PROCESS.store(this(), Relaxed);
}

fn this() -> c_int {
    // SAFETY: the call has no condition.
    unsafe { libc::getpid() }
}

pub(super) fn is_in_own_process() -> bool {
    PROCESS.load(Relaxed) == this()
}
