//! Signal actions: installs our handler for a received signal, and restores the previous action.
//!
//! A signal with a receiver must not have its usual effect, and must have it again afterwards.
//!
//! The runtime's own handlers (preemption, SIGQUIT dump) can share a signal. They call `note` for
//! signals that are not their own, so ours is never installed above them. The preemption would take
//! ours for a foreign handler. A handler that was installed later stays above ours.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::quit;
use crate::base::signals;
use crate::base::signals::{SLOTS, Slot, THREE_ARGUMENTS};
use crate::sys;
use crate::sys::{Action, Errno};

/// Whether the current handler of a signal calls [`note`](signals::note).
fn is_heard(signal: c_int) -> bool {
    sys::current_handler(signal).is_some_and(|address| {
        address == signals::address()
            || address == crate::sched::monitor::preempt::handler()
            || address == quit::address()
    })
}

/// Starts noting the signal. Under the dispatcher's lock.
pub(super) fn want(signal: c_int) -> Result<(), Errno> {
    let slot = &SLOTS[signal as usize];
    slot.arrived.store(0, Relaxed); // an arrival for earlier receivers
    // ORDER: Release; pairs with the Acquire in `note`.
    slot.is_wanted.store(true, Release);
    // A later handler above ours calls ours, or deliberately does not. Installing ours above it
    // again could make the two call each other without end.
    if is_heard(signal) || !slot.before.load(Relaxed).is_null() {
        return Ok(());
    }
    put_in_place(signal, slot).inspect_err(|_| slot.is_wanted.store(false, Relaxed))
}

fn put_in_place(signal: c_int, slot: &Slot) -> Result<(), Errno> {
    // `on_signal` reads `below`, so store it before the handler can run.
    let before = Action::read(signal)?;
    // ORDER: Release; pairs with the Acquire in `on_signal`.
    slot.below.store(below(&before), Release);
    // SAFETY: D7: the handler is async-signal-safe, and the M's alternate stack is large enough for
    // it.
    let before =
        unsafe { sys::sigaction_install(signal, signals::on_signal, flags(signal, &before))? };
    slot.below.store(below(&before), Release);
    slot.before.store(Box::into_raw(Box::new(before)), Release);
    Ok(())
}

/// The program's own handler, encoded in one word.
fn below(action: &Action) -> usize {
    match action.handler() {
        libc::SIG_DFL | libc::SIG_IGN => 0,
        handler if action.flags() & libc::SA_SIGINFO != 0 => handler | THREE_ARGUMENTS,
        handler => handler,
    }
}

/// Keeps the program's choices: whether calls are restarted, and what becomes of children that end.
fn flags(signal: c_int, before: &Action) -> c_int {
    let kept = before.flags() & (libc::SA_NOCLDSTOP | libc::SA_NOCLDWAIT);
    let restart = match below(before) {
        0 => libc::SA_RESTART,
        _ => before.flags() & libc::SA_RESTART,
    };
    let reaped = match (signal, before.handler()) {
        (libc::SIGCHLD, libc::SIG_IGN) => libc::SA_NOCLDWAIT,
        _ => 0,
    };
    libc::SA_ONSTACK | kept | restart | reaped
}

/// Stops noting the signal and restores the previous action, if our handler is still the current
/// one. Under the dispatcher's lock.
pub(super) fn unwant(signal: c_int) {
    let slot = &SLOTS[signal as usize];
    let before = slot.before.load(Acquire);
    if !before.is_null() && sys::current_handler(signal) == Some(signals::address()) {
        // SAFETY: `put_in_place` made it from a box, and the handler never reads it.
        let before = unsafe { Box::from_raw(before) };
        let restored = before.restore();
        debug_assert!(restored);
        slot.before.store(ptr::null_mut(), Release);
    }
    slot.is_wanted.store(false, Relaxed);
}

/// In the child of a fork: restores all actions, as if no receiver existed.
pub(super) fn reset_in_child() {
    for (signal, slot) in SLOTS.iter().enumerate() {
        // SAFETY: D7: `put_in_place` made it from a box, and the child has no other thread that
        // frees it.
        if let Some(before) = unsafe { slot.before.load(Acquire).as_ref() }
            && sys::current_handler(signal as c_int) == Some(signals::address())
        {
            before.restore();
            // Not freed: malloc's lock may be held by a thread that the child does not have.
            slot.before.store(ptr::null_mut(), Relaxed);
        }
        slot.is_wanted.store(false, Relaxed);
        slot.arrived.store(0, Relaxed);
    }
}
