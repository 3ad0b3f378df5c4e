//! Unwinds the stack of a bound goroutine on its own thread.
//!
//! A dump needs that stack, and only the thread that waits with the goroutine can unwind it.
//!
//! ```text
//!  the dumping thread (the world is stopped)   the goroutine's thread, in `wait_bound`
//!  1 store WANTED, nudge the note              1 nudged: sees WANTED, unwinds itself, stores DONE
//!  2 wait for DONE, copy                       2 sleep on
//! ```
//!
//! Neither thread waits for the lock around the result: the states let one of them use it at a
//! time.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::base::lock::{Lock, Rank};
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

/// The request and the result, one per M.
pub(crate) struct Trace {
    state: Futex,
    /// Where a signal interrupted the goroutine; 0: none did. Stack frames above it belong to the
    /// runtime.
    pub(crate) interrupted_at: AtomicUsize,
    /// The stack pointer of the interrupted frame.
    pub(crate) interrupted_sp: AtomicUsize,
    probe: Lock<Probe>,
}

impl Trace {
    pub(crate) fn new() -> Trace {
        Trace {
            state: Futex::new(IDLE),
            interrupted_at: AtomicUsize::new(0),
            interrupted_sp: AtomicUsize::new(0),
            probe: Lock::new(Rank::Probe, Probe::new()),
        }
    }

    /// Unwinds the calling thread if a dump has asked for it. CONTEXT: signal.
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
        let mut probe = self.probe.lock();
        probe.len = 0;
        // 0 would find the end of the stack, where unwinders report a frame at 0.
        if let pc @ 1.. = self.interrupted_at.load(Relaxed) {
            trace_below(&mut probe, pc);
            probe.sp = self.interrupted_sp.load(Relaxed);
        }
        if probe.len == 0 {
            backtrace_here(&mut probe); // it waits in a call into the runtime, not in the handler
        }
        drop(probe);
        // ORDER: Release; pairs with the Acquire in `ask`.
        self.state.0.store(DONE, Release);
        Futex::wake_one(&self.state);
    }
}

/// Writes the goroutine's own frames, innermost first, from the one that a signal interrupted at
/// `pc`. Writes nothing if no frame is at `pc`.
///
/// `pc` is where the interrupted frame continues. The other addresses are return addresses, which
/// are looked up one byte before. So `pc` is stored one byte further.
fn trace_below(probe: &mut Probe, pc: usize) {
    probe.len = 0;
    let _served = objects::serve();
    // SAFETY: D7. The thread unwinds its own stack, so its frames do not change meanwhile. The
    // callback only writes into the probe. `_served` keeps the unwinder off the loader's lock.
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

/// Asks the thread of `m`, on which a goroutine waits, for its stack, and passes it to `use_it`.
/// Returns false if there is no answer. The world is stopped.
pub(crate) fn ask(m: Mp, use_it: impl FnOnce(&Probe)) -> bool {
    let trace = &m.trace;
    // ORDER: Release; pairs with the Acquire in `answer`.
    trace.state.0.store(WANTED, Release);
    let deadline = sys::monotonic_ns() + PATIENCE_NS;
    while trace.state.0.load(Acquire) != DONE {
        let now = sys::monotonic_ns();
        if now > deadline {
            return false; // a later answer is not read
        }
        m.park.nudge(); // misses a thread that is about to sleep: hence the loop
        trace.state.wait(WANTED, Some(now + NUDGE_NS));
    }
    use_it(&trace.probe.lock());
    trace.state.0.store(IDLE, Relaxed);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::park::enter;

    /// What an earlier signal has left there is not shown.
    #[test]
    fn a_call_that_no_signal_interrupted_is_shown() {
        crate::run(|| {
            let trace = Trace::new();
            trace.interrupted_sp.store(16, Relaxed);
            trace.state.0.store(WANTED, Relaxed);
            let _rt = enter();
            trace.answer();
            assert_eq!(trace.state.0.load(Relaxed), DONE);
            let probe = trace.probe.lock();
            assert!(probe.len > 1, "{:x?}", &probe.pcs[..probe.len]);
            assert_ne!(probe.sp, 16);
        });
    }
}
