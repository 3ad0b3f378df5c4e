//! The handler of SIGQUIT in programs that want a dump on it.
//!
//! The handler notes the signal and wakes the thread that prints; `debug/sigquit.rs` has that
//! thread.
//!
//! CONTEXT: signal, for everything the handler calls: no allocation, no lock, no thread-local, no
//! `errno`.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::base::signals;
use crate::shim::Futex;
use crate::sys;
use crate::sys::Errno;

/// How many signals have come.
static ASKED: Futex = Futex::new(0);

/// Installs the handler.
pub(crate) fn install() -> Result<(), Errno> {
    // SAFETY: D7, the handler is async-signal-safe: it stores to atomics and makes one bare system
    // call.
    unsafe { sys::sigaction_install(libc::SIGQUIT, on_quit, libc::SA_ONSTACK | libc::SA_RESTART)? };
    Ok(())
}

/// The handler, as the system names it.
pub(super) fn address() -> usize {
    on_quit as *const () as usize
}

extern "C" fn on_quit(signal: c_int, _: sys::Info<'_>, _: sys::Context<'_>) {
    signals::note(signal);
    ASKED.0.fetch_add(1, SeqCst);
    Futex::wake_one(&ASKED);
}

/// Waits on the calling thread until more than `answered` signals have come; returns how many have.
pub(crate) fn wait(answered: u32) -> u32 {
    while ASKED.0.load(SeqCst) == answered {
        ASKED.wait(answered, None);
    }
    ASKED.0.load(Relaxed)
}
