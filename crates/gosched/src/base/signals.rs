//! The signal handler: notes the signal and wakes the dispatcher.
//!
//! A handler can do little else safely. The dispatcher does the rest on a thread of its own.
//!
//! - A signal is *wanted* while it has a receiver.
//! - It is *noted* with the number of its arrival, which keeps the order. A second arrival before
//!   the dispatcher has taken the first counts as the same.
//! - The action *before* is the one that our handler replaced. If that is a handler of the program,
//!   ours calls it.
//!
//! The runtime's own handlers call [`note`] for signals that are not their own. If our handler is
//! the one before such a handler, the signal is still noted only once.
//!
//! ```text
//!  a signal ─► our handler ─────────► note ─► arrived, BELL ─► the dispatcher
//!          │    └► the one before      ▲
//!          └─► the runtime's handler ──┘
//!               └► the one before
//! ```
//!
//! CONTEXT: signal, for everything the handler calls: no allocation, no lock, no thread-local, no
//! `errno`.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use crate::shim::Futex;
use crate::sys;
use crate::sys::{Action, Context, Info};

/// One more than the highest signal number.
pub(crate) const SIGNALS: usize = 65;

/// Marks the address of a handler that takes three arguments; no address has the bit.
pub(crate) const THREE_ARGUMENTS: usize = 1 << (usize::BITS - 1);

/// The handler's data for one signal.
pub(crate) struct Slot {
    pub(crate) is_wanted: AtomicBool,
    /// The number of the arrival that the dispatcher has not taken yet; 0: none.
    pub(crate) arrived: AtomicU64,
    /// The program's own handler, which ours calls; 0: none. It stays after the restore, for
    /// threads that still run our handler.
    pub(crate) below: AtomicUsize,
    /// The action before ours, in a box. Null: ours is not installed.
    pub(crate) before: AtomicPtr<Action>,
}

pub(crate) static SLOTS: [Slot; SIGNALS] = [const {
    Slot {
        is_wanted: AtomicBool::new(false),
        arrived: AtomicU64::new(0),
        below: AtomicUsize::new(0),
        before: AtomicPtr::new(ptr::null_mut()),
    }
}; SIGNALS];

/// The number of arrivals so far.
static ARRIVALS: AtomicU64 = AtomicU64::new(0);

/// 1: the dispatcher has work.
static BELL: Futex = Futex::new(0);

pub(crate) extern "C" fn on_signal(signal: c_int, info: Info<'_>, mut context: Context<'_>) {
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
    // SAFETY: D7: the handler that the process had for this signal. With 0, the default action,
    // nothing is called.
    unsafe { sys::call_handler(&action, signal, info, &mut context) };
}

/// Notes a signal that is not the runtime's own. CONTEXT: signal.
pub(crate) fn note(signal: c_int) {
    let Some(slot) = SLOTS.get(signal as usize) else {
        return;
    };
    // ORDER: Acquire; pairs with the Release in `actions::want`.
    if !slot.is_wanted.load(Acquire) {
        return;
    }
    // ORDER: AcqRel; pairs with the Acquire in `take_arrived`: earlier notes of this thread are
    // seen.
    let number = ARRIVALS.fetch_add(1, AcqRel) + 1;
    // ORDER: AcqRel, also if the number stays; pairs with the Acquire in `take_arrived`: what the
    // sender did before is seen.
    let _ = slot
        .arrived
        .fetch_update(AcqRel, Relaxed, |earlier| match earlier {
            0 => Some(number),
            earlier => Some(earlier),
        });
    ring();
}

/// As [`note`], for a handler of the runtime that then calls the action before its own.
pub(crate) fn note_and_pass_on(
    before: &Action,
    signal: c_int,
    info: Info<'_>,
    context: &mut Context<'_>,
) {
    if before.handler() != address() {
        note(signal);
    }
    before.call(signal, info, context);
}

/// Wakes the dispatcher. CONTEXT: any.
pub(crate) fn ring() {
    // ORDER: AcqRel; pairs with the swap in `wait`: the dispatcher sees its work.
    if BELL.0.swap(1, AcqRel) == 0 {
        Futex::wake_one(&BELL);
    }
}

/// Waits until the bell rings. Only the dispatcher calls this.
pub(crate) fn wait() {
    while BELL.0.swap(0, AcqRel) == 0 {
        BELL.wait(0, None);
    }
}

/// Resets the bell in the child of a fork, which has no dispatcher.
pub(crate) fn silence() {
    BELL.0.store(0, Relaxed);
}

/// Takes the signals that have arrived since the last call, in order. Only the dispatcher calls
/// this.
///
/// A signal that arrives during the call is left for the next call, for which its handler rings.
/// Otherwise it could overtake an earlier signal with a slot that was already visited.
pub(crate) fn take_arrived() -> impl Iterator<Item = c_int> {
    // ORDER: Acquire; pairs with the AcqRel in `note`: notes before a number are seen with that
    // number.
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

/// The address of our handler, as the system reports it.
pub(crate) fn address() -> usize {
    on_signal as *const () as usize
}
