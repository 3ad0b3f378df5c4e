//! The stack of a goroutine that waits for a P on its thread: only that thread can unwind it, so it is asked to.
//!
//! ```text
//!  who dumps (the world is stopped)        the thread, in `wait_bound`
//!  1 WANTED, nudges its note               1 nudged, sees WANTED, unwinds itself, DONE
//!  2 waits for DONE, copies                2 sleeps on
//! ```

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sched::model::ptr::Mp;
use crate::sched::model::switch::{FRAMES_MAX, Probe, backtrace_here};
use crate::shim::Futex;
use crate::sys;
use crate::sys::objects;

const IDLE: u32 = 0;
const WANTED: u32 = 1;
const DONE: u32 = 2;

/// Between two nudges.
const NUDGE_NS: u64 = 1_000_000;
/// How long a dump waits for one thread.
const PATIENCE_NS: u64 = 200_000_000;

/// An M's part in it.
pub(crate) struct Trace {
    state: Futex,
    /// Where a signal interrupted the goroutine, 0: none did. What is above it on the stack is the runtime's.
    pub(crate) interrupted_at: AtomicUsize,
    /// The stack pointer of what it interrupted.
    pub(crate) interrupted_sp: AtomicUsize,
    probe: UnsafeCell<Probe>,
}

// SAFETY: D7, `state` says which thread may use the probe: the M between WANTED and DONE, the thread
// that asked otherwise.
unsafe impl Sync for Trace {}

impl Trace {
    pub(crate) fn new() -> Trace {
        Trace {
            state: Futex::new(IDLE),
            interrupted_at: AtomicUsize::new(0),
            interrupted_sp: AtomicUsize::new(0),
            probe: UnsafeCell::new(Probe::new()),
        }
    }

    /// Unwinds the calling thread if somebody wants it. CONTEXT: signal.
    #[inline]
    pub(crate) fn answer(&self) {
        // ORDER: Acquire; pairs with the Release in `ask`.
        if self.state.0.load(Acquire) == WANTED {
            self.unwind();
        }
    }

    #[cold]
    #[inline(never)]
    fn unwind(&self) {
        // SAFETY: D7, between WANTED and DONE the probe is this thread's.
        let probe = unsafe { &mut *self.probe.get() };
        trace_below(probe, self.interrupted_at.load(Relaxed));
        probe.sp = self.interrupted_sp.load(Relaxed);
        if probe.len == 0 {
            backtrace_here(probe); // it waits where it stands, in a call into the runtime
        }
        // ORDER: Release; pairs with the Acquire in `ask`.
        self.state.0.store(DONE, Release);
        Futex::wake_one(&self.state);
    }
}

/// Writes what the goroutine itself called, innermost first: the frames from the one on that a signal interrupted at `pc`;
/// nothing if there is none. `pc` is where that one goes on; the others are return addresses, and are looked up as such, one
/// byte before: so it is moved on by one.
fn trace_below(probe: &mut Probe, pc: usize) {
    probe.len = 0;
    let _served = objects::serve();
    // SAFETY: D7, on this thread, whose frames are still; the callback only writes into the probe.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            let at = frame.ip() as usize;
            if probe.len > 0 {
                probe.pcs[probe.len] = at;
                probe.len += 1;
            } else if at == pc {
                probe.pcs[0] = at + 1;
                probe.len = 1;
            }
            probe.len < FRAMES_MAX
        });
    }
}

/// Asks the thread of `m`, on which a goroutine waits, for its stack; `use_it` gets it. False: no answer. The world is stopped.
pub(crate) fn ask(m: Mp, use_it: impl FnOnce(&Probe)) -> bool {
    let trace = &m.trace;
    // ORDER: Release; pairs with the Acquire in `answer`.
    trace.state.0.store(WANTED, Release);
    let deadline = sys::monotonic_ns() + PATIENCE_NS;
    while trace.state.0.load(Acquire) != DONE {
        let now = sys::monotonic_ns();
        if now > deadline {
            return false; // it answers too late, and nobody reads it
        }
        m.park.nudge(); // missed by one who is just about to lie down: hence again
        trace.state.wait(WANTED, Some(now + NUDGE_NS));
    }
    // SAFETY: D7, DONE: the thread does not touch it until it is asked again, and one asks at a time (the world's leader).
    use_it(unsafe { &*trace.probe.get() });
    trace.state.0.store(IDLE, Relaxed);
    true
}
