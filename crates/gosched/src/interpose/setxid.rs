//! The handler by which libc changes the user ids of all threads.
//!
//! `setuid` and its kin change one thread in the kernel. So libc sends every thread a signal; the
//! handler makes the same change and marks it done in the thread block. libc knows the M's block
//! and waits for the mark there. On a goroutine's block the mark would be set in the wrong place,
//! and the caller would wait for ever. So the handler is wrapped: on an M it runs on the thread's
//! own block.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::arch::thread_pointer;
use crate::sched::model::current::interrupted_m;
use crate::tls::{Reason, call_on_tp};

/// libc's signal for changing the ids of all threads; libc's own functions refuse it.
const SETXID: c_int = 33;

/// A signal's action, as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// libc's handler.
static LIBCS: AtomicUsize = AtomicUsize::new(0);

/// Wraps the handler; once, after libc has made its first thread and thereby installed its own.
pub(super) fn install() -> Result<(), Reason> {
    let mut action = Action {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    if !sigaction(ptr::null(), &mut action) {
        return Err("the kernel does not tell how the C library changes user ids");
    }
    if action.handler <= 1 {
        return Ok(()); // not installed: this libc does it some other way
    }
    LIBCS.store(action.handler, Release);
    action.handler = on_setxid as *const () as usize;
    action.flags |= libc::SA_ONSTACK as u64;
    if sigaction(&action, ptr::null_mut()) {
        Ok(())
    } else {
        Err("the kernel refuses the signal handler for changes of user ids")
    }
}

fn sigaction(new: *const Action, old: *mut Action) -> bool {
    // SAFETY: the kernel reads and writes the structs that are given.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, SETXID, new, old, 8usize) == 0 }
}

/// CONTEXT: signal.
unsafe extern "C" fn on_setxid(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // ORDER: Acquire; pairs with the Release in `install`.
    let libcs = LIBCS.load(Acquire);
    // SAFETY: D6, the address is libc's own handler for this signal, of this type.
    let libcs: Handler = unsafe { std::mem::transmute(libcs) };
    let call = || {
        // SAFETY: passes on what the kernel gave.
        unsafe { libcs(signal, info, context) };
    };
    match interrupted_m().map(|m| m.tp.own()) {
        Some(own) if own != 0 && own != thread_pointer() => {
            // Not the M's own record: the interrupted code may be about to change the thread
            // pointer itself.
            let nobody = AtomicUsize::new(0);
            call_on_tp(own, &raw const nobody, call);
        }
        _ => call(),
    }
}
