//! The basis of the concurrent algorithms: atomics, the futex and the sizes of rings.
//!
//! The crate `gosched-loom` replaces this file by loom's atomics and small rings. It compiles the
//! same algorithm files and explores every interleaving. So these files import nothing else from
//! outside:
//!
//! - `sched/model/{runq,gstatus,pstatus,claim,slot,sudog,opens}.rs`;
//! - `sched/model/spin.rs`, `sched/monitor/nap.rs`, `base/note.rs`, `sync/*_word.rs`.
//!
//! `chan/` and `sched/waiting/waitq.rs` import little else. This file contains no policy.

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

/// Positions in one block of an unbounded channel, including its link.
pub(crate) const BLOCK_LAP: usize = 32;

/// How often a waiter checks a claimed wait word before it sleeps. The claimer is about to finish.
pub(crate) const LATE_TURNS: u32 = 64;

/// One turn of a wait for another CPU that certainly finishes within nanoseconds.
#[inline]
pub(crate) fn spin_hint() {
    std::hint::spin_loop();
}

/// One turn of a wait for a thread that the kernel may have descheduled.
#[inline]
pub(crate) fn yield_thread() {
    sys::sched_yield();
}

/// One turn of a wait for a thread that is about to finish, but may be descheduled by the kernel.
#[inline]
pub(crate) fn spin_or_yield(turns: &mut u32) {
    if *turns < 64 {
        *turns += 1;
        spin_hint();
    } else {
        yield_thread();
    }
}

/// The StoreLoad barrier after a read-modify-write of this thread.
///
/// Where the instruction itself is a full barrier, only the compiler must be held back. Elsewhere
/// it is a real fence.
#[inline]
pub(crate) fn fence_after_rmw() {
    if arch::RMW_IS_FULL_BARRIER {
        std::sync::atomic::compiler_fence(SeqCst);
    } else {
        fence(SeqCst);
    }
}

/// The cheap side of an asymmetric barrier: only the compiler keeps the order here. The
/// `heavy_barrier` of the other side makes the CPUs keep it.
#[inline]
pub(crate) fn light_barrier() {
    std::sync::atomic::compiler_fence(SeqCst);
}

/// A full barrier here and on every running thread of the process. False: the system refuses it.
pub(crate) fn heavy_barrier() -> bool {
    sys::membarrier()
}

/// Reports an illegal edge of the G state machine (G0), which is a bug of the runtime.
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

    /// Sleeps while the word is `expected`, until a wake-up or until `deadline_ns` (monotonic).
    /// Returns false only after the deadline. May return early without a reason.
    pub(crate) fn wait(&self, expected: u32, deadline_ns: Option<u64>) -> bool {
        !matches!(
            sys::futex_wait(&self.0, expected, deadline_ns),
            sys::Wait::TimedOut
        )
    }

    /// Wakes one sleeper of the word at `this`. The word may be freed already: the kernel only
    /// compares addresses, so a stale address causes at most a spurious wake-up.
    pub(crate) fn wake_one(this: *const Futex) {
        sys::futex_wake_ptr(this.cast(), 1);
    }
}
