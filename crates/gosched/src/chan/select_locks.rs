//! What a select needs for all its cases at once: their locks, their nodes, room for an order, and
//! random numbers.

use std::mem::MaybeUninit;
use std::ptr;

use crate::chan::core::ChanHeader;
use crate::chan::select_case::Case;
use crate::sched::model::current::current_m;
use crate::sched::park::enter;
use crate::sched::waiting::waitq::{WaitNode, Waiter};

/// Cases for which a select needs no memory but its stack.
const INLINE: usize = 8;

/// All channels of a select, locked by address, each once.
pub(super) struct LockAll<'s, 'c, 'a> {
    cases: &'c [Case<'a>],
    sorted: &'s [usize],
}

impl<'s, 'c, 'a> LockAll<'s, 'c, 'a> {
    pub(super) fn new(cases: &'c [Case<'a>], sorted: &'s mut [usize]) -> LockAll<'s, 'c, 'a> {
        sorted.iter_mut().enumerate().for_each(|(n, at)| *at = n);
        sorted.sort_unstable_by_key(|at| address(&cases[*at]));
        let all = LockAll { cases, sorted };
        all.each(|header, is_first| header.queues.lock_of_several(is_first));
        all
    }

    fn each(&self, mut f: impl FnMut(&'a ChanHeader, bool)) {
        let mut last = 0;
        for at in self.sorted {
            let address = address(&self.cases[*at]);
            if address != 0 && address != last {
                if let Some(chan) = self.cases[*at].chan {
                    f(chan.header(), last == 0);
                }
                last = address;
            }
        }
    }
}

fn address(case: &Case<'_>) -> usize {
    case.chan
        .map_or(0, |chan| ptr::from_ref(chan.header()).addr())
}

impl Drop for LockAll<'_, '_, '_> {
    fn drop(&mut self) {
        // The lock that was taken first carries the rank: it is dropped last.
        let mut first = None;
        self.each(|header, is_first| {
            if is_first {
                first = Some(header);
            } else {
                // SAFETY: `new` took the lock of each channel once.
                unsafe { header.queues.unlock_of_several(false) };
            }
        });
        if let Some(header) = first {
            // SAFETY: `new` took the lock of each channel once.
            unsafe { header.queues.unlock_of_several(true) };
        }
    }
}

/// A random number below `n`.
#[inline]
pub(super) fn below(n: usize) -> usize {
    ((u64::from(random()) * n as u64) >> 32) as usize
}

/// A random number: from the M, or on a plain thread from one counter for all.
fn random() -> u32 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let rt = enter();
    if let Some(m) = rt.m() {
        return m.random();
    }
    debug_assert!(current_m().is_none());
    let mut x = NEXT.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 32) as u32
}

/// Room for an index per case: on the stack if there are at most [`INLINE`] cases. With more it
/// allocates, so it is called outside the runtime.
pub(super) fn with_indices<R>(n: usize, f: impl FnOnce(&mut [usize]) -> R) -> R {
    let mut few = [0; INLINE];
    match few.get_mut(..n) {
        Some(few) => f(few),
        None => f(&mut vec![0; n]),
    }
}

/// A node per case.
pub(super) fn with_nodes<S, R>(
    cases: &[Case<'_>],
    waiter: &Waiter,
    with: S,
    f: impl FnOnce(S, &[WaitNode<'_>]) -> R,
) -> R {
    let n = cases.len();
    if n <= INLINE {
        let few: [MaybeUninit<WaitNode<'_>>; INLINE] =
            std::array::from_fn(|at| MaybeUninit::new(WaitNode::new(waiter, at)));
        // SAFETY: all of them were just written.
        return f(with, unsafe {
            &*(&raw const few[..n] as *const [WaitNode<'_>])
        });
    }
    let many: Vec<WaitNode<'_>> = (0..n).map(|at| WaitNode::new(waiter, at)).collect();
    f(with, &many)
}
