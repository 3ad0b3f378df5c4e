//! What a signal does, before, while and after somebody receives it: our handler is put in place, and the action before returns.
//!
//! Handlers of the runtime share a signal: ours is never put above theirs (the preemption would take it for a stranger's), for
//! they note what is not their own. A handler that came later stays above ours, whoever it belongs to.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::handler::{self, SLOTS, Slot, THREE_ARGUMENTS};
use super::quit;
use crate::sys;
use crate::sys::Errno;

/// Whether a signal's handler is one that calls [`note`](handler::note).
fn is_heard(signal: c_int) -> bool {
    sys::current_handler(signal).is_some_and(|address| {
        address == handler::address()
            || address == crate::sched::monitor::preempt::handler()
            || address == quit::address()
    })
}

/// Has the signal noted from now on. Under the dispatcher's lock.
pub(super) fn want(signal: c_int) -> Result<(), Errno> {
    let slot = &SLOTS[signal as usize];
    slot.arrived.store(0, Relaxed); // for somebody who is gone
    // ORDER: Release; pairs with the Acquire in `note`.
    slot.is_wanted.store(true, Release);
    // Who came later and put a handler above ours calls it, or does not want us to hear: calling each other they would never end.
    if is_heard(signal) || !slot.before.load(Relaxed).is_null() {
        return Ok(());
    }
    put_in_place(signal, slot).inspect_err(|_| slot.is_wanted.store(false, Relaxed))
}

fn put_in_place(signal: c_int, slot: &Slot) -> Result<(), Errno> {
    // What is called below must be known before ours can run, so it is read first.
    let before = sys::read_action(signal)?;
    // ORDER: Release; pairs with the Acquire in `on_signal`.
    slot.below.store(below(&before), Release);
    // SAFETY: D7, the handler is async-signal-safe and makes do with the M's alternate stack.
    let before =
        unsafe { sys::sigaction_install(signal, handler::on_signal, flags(signal, &before))? };
    slot.below.store(below(&before), Release);
    slot.before.store(Box::into_raw(Box::new(before)), Release);
    Ok(())
}

/// The program's own handler in one word.
fn below(action: &libc::sigaction) -> usize {
    match action.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => 0,
        handler if action.sa_flags & libc::SA_SIGINFO != 0 => handler | THREE_ARGUMENTS,
        handler => handler,
    }
}

/// What the program decided for itself stays: whether calls are restarted, what becomes of children that end.
fn flags(signal: c_int, before: &libc::sigaction) -> c_int {
    let kept = before.sa_flags & (libc::SA_NOCLDSTOP | libc::SA_NOCLDWAIT);
    let restart = match below(before) {
        0 => libc::SA_RESTART,
        _ => before.sa_flags & libc::SA_RESTART,
    };
    let reaped = match (signal, before.sa_sigaction) {
        (libc::SIGCHLD, libc::SIG_IGN) => libc::SA_NOCLDWAIT,
        _ => 0,
    };
    libc::SA_ONSTACK | kept | restart | reaped
}

/// Nobody wants the signal any more: the action before ours returns, if ours is still the one in place. Under the dispatcher's
/// lock.
pub(super) fn unwant(signal: c_int) {
    let slot = &SLOTS[signal as usize];
    let before = slot.before.load(Acquire);
    if !before.is_null() && sys::current_handler(signal) == Some(handler::address()) {
        // SAFETY: D7, what the process had.
        let restored = unsafe { sys::sigaction_restore(signal, &*before) };
        debug_assert!(restored.is_ok());
        slot.before.store(ptr::null_mut(), Release);
        // SAFETY: made by `put_in_place`; the handler does not look at it.
        drop(unsafe { Box::from_raw(before) });
    }
    slot.is_wanted.store(false, Relaxed);
}

/// The child of a fork goes on as if nobody had asked.
pub(super) fn reset_in_child() {
    for (signal, slot) in SLOTS.iter().enumerate() {
        // SAFETY: D7, made by `put_in_place`; the child has no other thread.
        if let Some(before) = unsafe { slot.before.load(Acquire).as_ref() }
            && sys::current_handler(signal as c_int) == Some(handler::address())
        {
            // SAFETY: D7, what the process had; the call is async-signal-safe.
            unsafe { libc::sigaction(signal as c_int, before, ptr::null_mut()) };
            slot.before.store(ptr::null_mut(), Relaxed); // not freed: malloc may be held by a thread that is not here
        }
        slot.is_wanted.store(false, Relaxed);
        slot.arrived.store(0, Relaxed);
    }
}
