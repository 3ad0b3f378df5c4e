//! What the concurrent algorithms stand on: atomics, the futex and the sizes of their rings.
//!
//! `sched/{runq,gstatus,pstatus,claim,nap,note,spin,slot,sudog,opens}.rs` import these names and nothing else from outside, `chan/` and
//! `sched/waitq.rs` little else, so the crate `gosched-loom` can compile the very same files over loom's atomics and small rings
//! and explore every interleaving. Nothing here decides anything.

pub(crate) use std::cell::{Cell, UnsafeCell};
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

use crate::arch;
use crate::sys;

/// Slots of a P's local run queue (R1). A power of two.
pub(crate) const RING: usize = 256;

/// Positions of one block of an unbounded channel, its link included.
pub(crate) const BLOCK_LAP: usize = 32;

/// Looks at the word of a wait that somebody is about to finish, before its waiter sleeps after all.
pub(crate) const LATE_TURNS: u32 = 64;

/// One turn of a wait for another CPU that is certain to finish within nanoseconds.
#[inline]
pub(crate) fn spin_hint() {
    std::hint::spin_loop();
}

/// One turn of a wait for a thread that the kernel may have descheduled.
#[inline]
pub(crate) fn yield_thread() {
    sys::sched_yield();
}

/// One turn of a wait for somebody who is about to finish, but whom the kernel may have descheduled meanwhile.
#[inline]
pub(crate) fn snooze(turns: &mut u32) {
    if *turns < 64 {
        *turns += 1;
        spin_hint();
    } else {
        yield_thread();
    }
}

/// The StoreLoad barrier after a read-modify-write that this thread has just made.
///
/// Where the instruction itself is a full barrier, only the compiler must be held back; elsewhere it
/// is a real fence.
#[inline]
pub(crate) fn fence_after_rmw() {
    if arch::RMW_IS_FULL_BARRIER {
        std::sync::atomic::compiler_fence(SeqCst);
    } else {
        fence(SeqCst);
    }
}

/// The cheap side of a barrier that somebody else pays for: the compiler keeps the order, `heavy_barrier` makes the CPUs keep it.
#[inline]
pub(crate) fn light_barrier() {
    std::sync::atomic::compiler_fence(SeqCst);
}

/// A full barrier here and on every thread of the process that runs; false: the system refuses it.
pub(crate) fn heavy_barrier() -> bool {
    sys::membarrier()
}

/// An illegal edge of the G state machine (G0): a bug of the runtime, never the user's.
#[cold]
#[inline(never)]
pub(crate) fn illegal_edge(from: u32, to: u32, found: u32) -> ! {
    crate::base::fatal::throw_fmt(format_args!(
        "illegal goroutine status change {from} -> {to} (status is {found})"
    ))
}

/// A word that threads can sleep on.
pub(crate) struct Futex(pub(crate) AtomicU32);

impl Futex {
    pub(crate) const fn new(value: u32) -> Futex {
        Futex(AtomicU32::new(value))
    }

    /// Sleeps while the word is `expected`, until woken or until `deadline_ns` (monotonic); returns
    /// false only when the deadline has passed. May return early for no reason.
    pub(crate) fn wait(&self, expected: u32, deadline_ns: Option<u64>) -> bool {
        !matches!(
            sys::futex_wait(&self.0, expected, deadline_ns),
            sys::Wait::TimedOut
        )
    }

    /// Wakes one sleeper of the word at `this`, which may already be gone: the kernel compares
    /// addresses only, so a stale one costs a spurious wake-up at most.
    pub(crate) fn wake_one(this: *const Futex) {
        sys::futex_wake_ptr(this.cast(), 1);
    }
}
