//! Failures on demand, for tests.
//!
//! They reach the paths that a healthy machine rarely takes. Each counter is off while negative. At
//! `n >= 0` the next `n` calls succeed and every later one fails, until the test stores -1 again.
//! While off it costs one relaxed load.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI64};

/// How many more mappings succeed before all fail with ENOMEM; negative: off.
pub(crate) static FAIL_MAP_AFTER: AtomicI64 = AtomicI64::new(-1);

/// How many more threads start before all fail with EAGAIN; negative: off.
pub(crate) static FAIL_THREAD_AFTER: AtomicI64 = AtomicI64::new(-1);

/// How many more descriptors can be registered before all fail with ENOSPC; negative: off.
pub(crate) static FAIL_EPOLL_AFTER: AtomicI64 = AtomicI64::new(-1);

/// How many more threads get a signal stack before all fail with ENOMEM; negative: off.
pub(crate) static FAIL_SIGSTACK_AFTER: AtomicI64 = AtomicI64::new(-1);

/// Whether unwinders ask for the list of loaded objects, as old ones do.
pub(crate) static UNWINDER_ASKS: AtomicBool = AtomicBool::new(false);

/// Whether the library behaves as if goroutines could not have their own thread-locals.
pub(crate) static REFUSE_OWN_TLS: AtomicBool = AtomicBool::new(false);

/// Whether the library behaves as if the kernel had no membarrier.
pub(crate) static REFUSE_MEMBARRIER: AtomicBool = AtomicBool::new(false);

/// Whether `TaskFile` behaves as if `/proc` were not mounted.
pub(crate) static REFUSE_PROC: AtomicBool = AtomicBool::new(false);

/// How many readings of the two clocks are interrupted in the middle, for 15 µs each (`clock`).
pub(crate) static INTERRUPT_CLOCK: AtomicI64 = AtomicI64::new(0);

/// Delays the caller like an interrupted thread, if a test has asked for it.
pub(super) fn interrupt_clock() {
    // ORDER: Relaxed; the counter orders nothing but itself.
    if INTERRUPT_CLOCK.load(Relaxed) > 0 && INTERRUPT_CLOCK.fetch_sub(1, Relaxed) > 0 {
        let until = crate::sys::linux::monotonic_ns() + 15_000;
        while crate::sys::linux::monotonic_ns() < until {}
    }
}

/// Whether CPU timers are refused, as beyond RLIMIT_SIGPENDING.
pub(crate) static REFUSE_CPU_TIMERS: AtomicBool = AtomicBool::new(false);

/// Counts one call against `budget` and returns whether it must fail; CONTEXT: any.
#[inline]
pub(super) fn refuses(budget: &AtomicI64) -> bool {
    // ORDER: Relaxed; the counter orders nothing but itself. A test stores it before it starts
    // threads, and the start makes it visible to them.
    budget.load(Relaxed) >= 0 && spend(budget)
}

/// Takes one call from a budget that is on; returns true once nothing is left.
#[cold]
fn spend(budget: &AtomicI64) -> bool {
    // ORDER: Relaxed; the counter orders nothing but itself.
    let spent = budget.fetch_update(Relaxed, Relaxed, |left| (left > 0).then(|| left - 1));
    // The update failed: at 0 the call must fail; below 0 a test has turned the budget off.
    spent == Err(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::linux::mem::{map_pages, map_pages_aligned, map_reserve, unmap};
    use crate::sys::linux::pagevec::PageVec;
    use crate::sys::linux::syscall::Errno;
    use crate::sys::linux::thread::start_thread;
    use crate::tests::child;

    #[test]
    fn a_budget_counts_down_and_then_stays_empty() {
        let budget = AtomicI64::new(2);
        assert_eq!(
            [(); 4].map(|()| refuses(&budget)),
            [false, false, true, true]
        );
        assert_eq!(budget.load(Relaxed), 0);
        budget.store(-1, Relaxed);
        assert!(!refuses(&budget));
        assert_eq!(budget.load(Relaxed), -1);
    }

    extern "C" fn nothing(_: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
        core::ptr::null_mut()
    }

    /// The switches concern the whole process, so this test runs in a process of its own.
    #[test]
    fn every_mapping_and_thread_consults_its_switch() {
        if !child::is_one() {
            let name = "every_mapping_and_thread_consults_its_switch";
            let output = child::run(module_path!(), name);
            assert!(output.status.success(), "{output:?}");
            return;
        }
        let mut kept = PageVec::new();
        kept.push(7u64).expect("before the switch");
        FAIL_MAP_AFTER.store(1, Relaxed);
        let page = map_pages(4096).expect("one is allowed");
        let refused = Err(Errno(libc::ENOMEM));
        assert_eq!(map_pages(4096), refused);
        assert_eq!(map_reserve(4096), refused);
        assert_eq!(map_pages_aligned(4096, 1 << 20), refused);
        assert_eq!(PageVec::new().push(1u8), Err(Errno(libc::ENOMEM)));
        assert_eq!(kept.reserve(100_000), Err(Errno(libc::ENOMEM)));
        assert_eq!(kept.as_slice(), [7]);
        FAIL_MAP_AFTER.store(-1, Relaxed);
        assert_eq!(kept.reserve(100_000), Ok(()));
        // SAFETY: the page was mapped above, and no pointer into it remains (D4).
        unsafe { unmap(page.as_ptr(), 4096) };

        FAIL_THREAD_AFTER.store(0, Relaxed);
        // SAFETY: `nothing` takes any argument and returns at once (D9).
        let spawn = || unsafe { start_thread(64 << 10, nothing, core::ptr::null_mut()) };
        assert_eq!(spawn(), Err(Errno(libc::EAGAIN)));
        FAIL_THREAD_AFTER.store(-1, Relaxed);
        assert_eq!(spawn(), Ok(()));
    }
}
