//! What happens in the moment of a signal: it is noted, and the dispatcher woken.
//!
//! Words: a signal is *wanted* while somebody receives it. It is *noted* with the number of its arrival, so that the order is
//! kept; one that comes again before the dispatcher has taken note is the same one. The action *before* is the one that ours
//! replaced: a handler of the program's is called as well.
//!
//! Handlers of the runtime call [`note`] for what is not their own. If ours lies below one of them, it is not called twice.
//!
//! ```text
//!  a signal ─► ours ──────────────► note ─► arrived, BELL ─► the dispatcher
//!          │    └► the one before    ▲
//!          └─► the runtime's ────────┘
//!               └► the one before
//! ```
//!
//! CONTEXT: signal, for everything the handler calls: no allocation, no lock, no thread-local, no `errno`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use crate::shim::Futex;
use crate::sys;

/// Signals are numbered from 1 to one below this.
pub(super) const SIGNALS: usize = 65;

/// Marks the address of a handler that takes three arguments; no address has the bit.
pub(super) const THREE_ARGUMENTS: usize = 1 << (usize::BITS - 1);

/// What the handler knows of a signal.
pub(super) struct Slot {
    pub(super) is_wanted: AtomicBool,
    /// The number of the arrival that the dispatcher has not taken note of; 0: there is none.
    pub(super) arrived: AtomicU64,
    /// The program's own handler, which ours calls; 0: there is none. Stays when ours is gone, for threads that are in it.
    pub(super) below: AtomicUsize,
    /// The action before ours, from a box; null: ours was not put in place, or has been taken back.
    pub(super) before: AtomicPtr<libc::sigaction>,
}

pub(super) static SLOTS: [Slot; SIGNALS] = [const {
    Slot {
        is_wanted: AtomicBool::new(false),
        arrived: AtomicU64::new(0),
        below: AtomicUsize::new(0),
        before: AtomicPtr::new(ptr::null_mut()),
    }
}; SIGNALS];

/// Counts what arrives.
static ARRIVALS: AtomicU64 = AtomicU64::new(0);

/// 1: the dispatcher has something to do.
static BELL: Futex = Futex::new(0);

pub(super) extern "C" fn on_signal(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    note(signal);
    let Some(slot) = SLOTS.get(signal as usize) else {
        return;
    };
    // ORDER: Acquire; pairs with the Release in `actions::put_in_place`.
    let below = slot.below.load(Acquire);
    // SAFETY: all zeros is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = below & !THREE_ARGUMENTS;
    if below & THREE_ARGUMENTS != 0 {
        action.sa_flags = libc::SA_SIGINFO;
    }
    // SAFETY: D7, what the process had, and what the kernel passed to our own handler. 0 is the default action: not called.
    unsafe { sys::call_handler(&action, signal, info, context) };
}

/// A signal has come that is not the runtime's own. CONTEXT: signal.
pub(crate) fn note(signal: c_int) {
    let Some(slot) = SLOTS.get(signal as usize) else {
        return;
    };
    // ORDER: Acquire; pairs with the Release in `actions::want`.
    if !slot.is_wanted.load(Acquire) {
        return;
    }
    // ORDER: AcqRel; pairs with the Acquire in `take_arrived`: what this thread noted before.
    let number = ARRIVALS.fetch_add(1, AcqRel) + 1;
    // ORDER: AcqRel, also where the number stays; pairs with the Acquire in `take_arrived`: what the sender did before.
    let _ = slot
        .arrived
        .fetch_update(AcqRel, Relaxed, |earlier| match earlier {
            0 => Some(number),
            earlier => Some(earlier),
        });
    ring();
}

/// As [`note`], for a handler of the runtime that passes a signal on to the action before its own.
///
/// # Safety
/// As for [`sys::call_handler`].
pub(crate) unsafe fn note_and_pass_on(
    before: &libc::sigaction,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    if before.sa_sigaction != address() {
        note(signal);
    }
    // SAFETY: by the caller's promise.
    unsafe { sys::call_handler(before, signal, info, context) };
}

/// The dispatcher has something to do. CONTEXT: any.
pub(super) fn ring() {
    // ORDER: AcqRel; pairs with the swap in `wait`: what there is to do.
    if BELL.0.swap(1, AcqRel) == 0 {
        Futex::wake_one(&BELL);
    }
}

/// Waits until there is something to do. The dispatcher.
pub(super) fn wait() {
    while BELL.0.swap(0, AcqRel) == 0 {
        BELL.wait(0, None);
    }
}

/// Nobody has rung. The child of a fork, which has no dispatcher.
pub(super) fn silence() {
    BELL.0.store(0, Relaxed);
}

/// What has come since the last time, in the order in which it came. The dispatcher.
///
/// What comes while this looks is left for the next time, for which its handler rings: an earlier one might have come to a slot
/// that was looked at already.
pub(super) fn take_arrived() -> impl Iterator<Item = c_int> {
    // ORDER: Acquire; pairs with the AcqRel in `note`: what was noted before a number was given is seen.
    let last = ARRIVALS.load(Acquire);
    let mut arrived = [(0u64, 0); SIGNALS];
    for (signal, slot) in SLOTS.iter().enumerate() {
        if (1..=last).contains(&slot.arrived.load(Relaxed)) {
            // ORDER: Acquire; pairs with the update in `note`.
            arrived[signal] = (slot.arrived.swap(0, Acquire), signal as c_int);
        }
    }
    arrived.sort_unstable();
    arrived
        .into_iter()
        .filter(|(number, _)| *number != 0)
        .map(|(_, signal)| signal)
}

/// Our handler, as the system names it.
pub(super) fn address() -> usize {
    on_signal as *const () as usize
}
