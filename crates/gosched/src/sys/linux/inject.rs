//! Refusals on demand, so that tests can walk the paths an honest machine rarely takes.
//!
//! Each counter is off while negative. At `n >= 0` the next `n` calls pass and every
//! later one fails, until the test stores -1 again. Off costs one relaxed load.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI64};

/// How many more mappings succeed before all fail with ENOMEM; negative means off.
pub(crate) static FAIL_MAP_AFTER: AtomicI64 = AtomicI64::new(-1);

/// How many more threads start before all fail with EAGAIN; negative means off.
pub(crate) static FAIL_THREAD_AFTER: AtomicI64 = AtomicI64::new(-1);

/// How many more descriptors can be registered before all are refused with ENOSPC; negative means off.
pub(crate) static FAIL_EPOLL_AFTER: AtomicI64 = AtomicI64::new(-1);

/// How many more threads get a signal stack before all are refused with ENOMEM; negative means off.
pub(crate) static FAIL_SIGSTACK_AFTER: AtomicI64 = AtomicI64::new(-1);

/// Whether unwinders ask for the list of loaded objects, as old ones do.
pub(crate) static UNWINDER_ASKS: AtomicBool = AtomicBool::new(false);

/// Whether goroutines' own thread-locals are said to be impossible.
pub(crate) static REFUSE_OWN_TLS: AtomicBool = AtomicBool::new(false);

/// Whether the kernel is said to have no barrier for all threads.
pub(crate) static REFUSE_MEMBARRIER: AtomicBool = AtomicBool::new(false);

/// Whether `/proc` is said not to be mounted, as far as `TaskFile` looks.
pub(crate) static REFUSE_PROC: AtomicBool = AtomicBool::new(false);

/// How many readings of the two clocks are interrupted in the middle, for 15 µs each (`clock`).
pub(crate) static INTERRUPT_CLOCK: AtomicI64 = AtomicI64::new(0);

/// Is as late as a thread that was interrupted, if a test has asked for it.
pub(super) fn interrupt_clock() {
    // ORDER: Relaxed; the counter orders nothing but itself.
    if INTERRUPT_CLOCK.load(Relaxed) > 0 && INTERRUPT_CLOCK.fetch_sub(1, Relaxed) > 0 {
        let until = crate::sys::linux::monotonic_ns() + 15_000;
        while crate::sys::linux::monotonic_ns() < until {}
    }
}

/// Whether timers on the CPU clocks of threads are refused, as past RLIMIT_SIGPENDING.
pub(crate) static REFUSE_CPU_TIMERS: AtomicBool = AtomicBool::new(false);

/// Counts one call against `budget` and says whether it must fail; CONTEXT: any.
#[inline]
pub(super) fn refuses(budget: &AtomicI64) -> bool {
    // ORDER: Relaxed; the counter orders nothing but itself, a test that sets it
    // before it starts threads is seen by them through the start.
    budget.load(Relaxed) >= 0 && spend(budget)
}

/// Takes one call from a budget that is on; true once nothing is left.
#[cold]
fn spend(budget: &AtomicI64) -> bool {
    // ORDER: Relaxed; see `refuses`.
    let spent = budget.fetch_update(Relaxed, Relaxed, |left| (left > 0).then(|| left - 1));
    // Refused to spend: 0 is the failure asked for, below it somebody switched it off.
    spent == Err(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::linux::mem::{map_pages, map_pages_aligned, map_reserve, unmap};
    use crate::sys::linux::pagevec::PageVec;
    use crate::sys::linux::syscall::Errno;
    use crate::sys::linux::thread::thread_spawn;
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

    /// The switches are the whole process's, so this test runs in one of its own.
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
        // SAFETY: the page mapped above, which nobody points into (D4).
        unsafe { unmap(page.as_ptr(), 4096) };

        FAIL_THREAD_AFTER.store(0, Relaxed);
        // SAFETY: `nothing` takes any argument and returns at once (D9).
        let spawn = || unsafe { thread_spawn(64 << 10, nothing, core::ptr::null_mut()) };
        assert_eq!(spawn(), Err(Errno(libc::EAGAIN)));
        FAIL_THREAD_AFTER.store(-1, Relaxed);
        assert_eq!(spawn(), Ok(()));
    }
}
