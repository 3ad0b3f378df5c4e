//! Announces switches to AddressSanitizer. Without `--cfg gosched_asan` every function here is
//! empty.
//!
//! The sanitizer assumes that a thread stays on one stack. So the side that leaves announces each
//! switch ([`leave`]: where the thread goes). The side that the thread comes to confirms it
//! ([`arrive`]: where the thread came from).
//!
//! ```text
//!  leaves               arrives
//!  resume, on g0        suspend, on the goroutine; at its start: `first_arrival`, before its code
//!  suspend              resume
//!  Probe::collect       suspend or answer, which answer the probe
//!  answer               collect
//!  systemstack, both    systemstack, both
//! ```
//!
//! The sanitizer's marks around variables outlive frames that never return. So a goroutine that
//! leaves while it is shallow removes its own marks, because it may be ending. A new goroutine's
//! stack is cleaned of the marks that earlier goroutines left at its addresses.
//!
//! The sanitizer also keeps frames to find uses after a return. They are not handed on when a
//! goroutine ends: run with `detect_stack_use_after_return=0`.

#[cfg(not(gosched_asan))]
pub(crate) use off::*;
#[cfg(gosched_asan)]
pub(crate) use on::*;

#[cfg(not(gosched_asan))]
mod off {
    use crate::sched::model::ptr::{Gp, Mp};

    #[derive(Clone, Copy)]
    pub(crate) struct Bounds;
    pub(crate) struct Left;

    impl Left {
        pub(crate) const NOTHING: Left = Left;
    }

    #[inline(always)]
    pub(crate) fn leave(_: Bounds) -> Left {
        Left
    }

    #[inline(always)]
    pub(crate) fn arrive(_: Left) -> Bounds {
        Bounds
    }

    #[inline(always)]
    pub(crate) fn leave_g(_: Gp) -> Left {
        Left
    }

    #[inline(always)]
    pub(crate) fn leave_for(_: Gp) -> Left {
        Left
    }

    #[inline(always)]
    pub(crate) fn leave_for_g0(_: Mp) -> Left {
        Left
    }
}

#[cfg(gosched_asan)]
mod on {
    use std::ffi::c_void;
    use std::ptr;

    use crate::arch;
    use crate::sched::model::current::current_m;
    use crate::sched::model::ptr::{Gp, Mp};

    unsafe extern "C" {
        fn __sanitizer_start_switch_fiber(
            save: *mut *mut c_void,
            bottom: *const c_void,
            size: usize,
        );
        fn __sanitizer_finish_switch_fiber(
            save: *mut c_void,
            old_bottom: *mut *const c_void,
            old_size: *mut usize,
        );
        fn __asan_unpoison_memory_region(from: *const c_void, size: usize);
    }

    /// A goroutine that uses less than this of its stack may be ending.
    const SHALLOW: usize = 8 * 1024;

    /// The bounds of a stack, as the sanitizer counts them.
    #[derive(Clone, Copy)]
    pub(crate) struct Bounds {
        lo: usize,
        size: usize,
    }

    /// The sanitizer's data for a stack that was left.
    pub(crate) struct Left(*mut c_void);

    impl Left {
        /// For a stack that no code has run on.
        pub(crate) const NOTHING: Left = Left(ptr::null_mut());
    }

    /// Announces that the next switch goes to `to`.
    #[inline(always)]
    pub(crate) fn leave(to: Bounds) -> Left {
        let mut save = ptr::null_mut();
        // SAFETY: D5, the switch follows at once. The sanitizer copies the bounds.
        unsafe {
            __sanitizer_start_switch_fiber(&mut save, ptr::without_provenance(to.lo), to.size)
        };
        Left(save)
    }

    /// Confirms that the switch has come back to the stack of `left`. Returns the stack that it
    /// came from.
    #[inline(always)]
    pub(crate) fn arrive(left: Left) -> Bounds {
        let (mut lo, mut size) = (ptr::null(), 0);
        // SAFETY: D5, this is the stack that the last `leave` of this thread named.
        unsafe { __sanitizer_finish_switch_fiber(left.0, &mut lo, &mut size) };
        Bounds {
            lo: lo.addr(),
            size,
        }
    }

    /// Announces that the goroutine leaves for g0, maybe for ever.
    #[inline(always)]
    pub(crate) fn leave_g(g: Gp) -> Left {
        forget_last_frames(g);
        match current_m() {
            Some(m) => leave_for_g0(m),
            None => Left::NOTHING,
        }
    }

    #[inline(never)]
    fn forget_last_frames(g: Gp) {
        let (sp, hi) = (arch::stack_pointer(), g.stack_hi.get());
        if g.is_own_stack(sp) && hi - sp < SHALLOW {
            // SAFETY: D4, the region is this goroutine's own stack, between its stack pointer and
            // its upper end.
            unsafe { __asan_unpoison_memory_region(ptr::without_provenance(sp), hi - sp) };
        }
    }

    /// Announces that the next switch goes to this goroutine.
    #[inline(always)]
    pub(crate) fn leave_for(g: Gp) -> Left {
        let (lo, hi) = (g.stack_lo.get(), g.stack_hi.get());
        if arch::is_first_frame(g.sp.get(), hi) {
            announce_first(g);
        }
        leave(Bounds { lo, size: hi - lo })
    }

    /// Announces that the next switch goes to this M's g0.
    #[inline(always)]
    pub(crate) fn leave_for_g0(m: Mp) -> Left {
        let (lo, hi) = (m.g0_lo.get(), m.g0_hi.get());
        leave(Bounds { lo, size: hi - lo })
    }

    /// Cleans a new goroutine's stack. Makes the goroutine confirm the switch to the sanitizer when
    /// it begins.
    #[cold]
    fn announce_first(g: Gp) {
        let lo = g.stack_lo.get();
        // SAFETY: D4, the region is a whole stack that no code runs on yet. `prepare` has made the
        // frame at its stack pointer.
        let sp = unsafe {
            __asan_unpoison_memory_region(ptr::without_provenance(lo), g.stack_hi.get() - lo);
            arch::prepend_arrival(g.sp.get())
        };
        g.sp.set(sp);
    }
}
