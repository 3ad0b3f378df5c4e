//! The library's `shim`, over loom: the same names; at every step loom may switch threads.

mod atomic;
mod cell;
mod futex;

pub(crate) use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

pub(crate) use self::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Part, fence, fence_after_rmw,
    heavy_barrier, light_barrier, on_x86, with_loads_in_turn, with_stores_as_swaps, without,
};
pub(crate) use self::cell::{Cell, UnsafeCell, begin};
pub(crate) use self::futex::{
    Futex, has_time_passed, pass_deadlines, pass_deadlines_until, wake_for_no_reason,
};

/// Slots of a ring: few, so that models reach its end. A power of two, as in the library.
pub(crate) const RING: usize = 4;

/// Positions of one block of an unbounded channel, its link included: few, so that models pass from
/// block to block.
pub(crate) const BLOCK_LAP: usize = 3;

/// Loads of a wait word that is about to be finished: few, so that models sleep late.
pub(crate) const LATE_TURNS: u32 = 1;

/// A wait for another thread: loom runs the others first.
pub(crate) fn spin_hint() {
    atomic::spin();
}

/// As [`spin_hint`].
pub(crate) fn yield_thread() {
    atomic::spin();
}

/// As [`spin_hint`].
pub(crate) fn spin_or_yield(_turns: &mut u32) {
    atomic::spin();
}

/// The library's fatal error.
pub(crate) fn illegal_edge(from: u32, to: u32, found: u32) -> ! {
    panic!("illegal goroutine status change {from} -> {to} (status is {found})")
}
