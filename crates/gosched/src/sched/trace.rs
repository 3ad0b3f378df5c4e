//! The stack of a goroutine that waits for a P on its thread: only that thread can unwind it, so it is asked to.
//!
//! ```text
//!  who dumps (the world is stopped)        the thread, in `wait_bound`
//!  1 WANTED, wakes its note                1 woken, sees WANTED, unwinds itself, DONE
//!  2 waits for DONE, copies                2 sleeps on
//! ```

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::ptr::Mp;
use crate::context::{Probe, backtrace_here};
use crate::os;
use crate::shim::Futex;

const IDLE: u32 = 0;
const WANTED: u32 = 1;
const DONE: u32 = 2;

/// How long a dump waits for one thread.
const PATIENCE_NS: u64 = 200_000_000;

/// An M's part in it.
pub(crate) struct Trace {
    state: Futex,
    /// Where a signal interrupted the goroutine, 0: none did. What is above it on the stack is the runtime's.
    pub(crate) interrupted_at: AtomicUsize,
    probe: UnsafeCell<Probe>,
}

impl Trace {
    pub(crate) fn new() -> Trace {
        Trace {
            state: Futex::new(IDLE),
            interrupted_at: AtomicUsize::new(0),
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
        backtrace_here(probe);
        let interrupted_at = self.interrupted_at.load(Relaxed);
        let stack = &mut probe.pcs[..probe.len];
        if let Some(at) = stack.iter().position(|pc| *pc == interrupted_at) {
            stack.copy_within(at.., 0);
            probe.len -= at;
        }
        // ORDER: Release; pairs with the Acquire in `ask`.
        self.state.0.store(DONE, Release);
        Futex::wake_one(&self.state);
    }
}

/// Asks the thread of `m`, on which a goroutine waits, for its stack; `use_it` gets it. False: no answer. The world is stopped.
pub(crate) fn ask(m: Mp, use_it: impl FnOnce(&Probe)) -> bool {
    let trace = &m.trace;
    // ORDER: Release; pairs with the Acquire in `answer`.
    trace.state.0.store(WANTED, Release);
    m.park.wakeup();
    let deadline = os::monotonic_ns() + PATIENCE_NS;
    while trace.state.0.load(Acquire) != DONE {
        if !trace.state.wait(WANTED, Some(deadline)) {
            return false; // it answers too late, and nobody reads it
        }
    }
    // SAFETY: D7, DONE: the thread does not touch it until it is asked again, and one asks at a time (the world's leader).
    use_it(unsafe { &*trace.probe.get() });
    trace.state.0.store(IDLE, Relaxed);
    true
}
