//! What a select needs for all its cases at once: their locks, their nodes, room for an order, and
//! random numbers.

use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::chan::core::ChanHeader;
use crate::chan::select_case::Case;
use crate::sched::model::current::current_m;
use crate::sched::park::enter;
use crate::sched::waiting::waitq::{WaitNode, Waiter};

/// Above this number of cases the channels are sorted by a sort that needs fewer comparisons, but
/// more stack.
const FEW: usize = 32;

/// All channels of a select, locked by address, each once.
pub(super) struct LockAll<'s, 'c, 'a> {
    cases: &'c [Case<'a>],
    sorted: &'s [u32],
}

impl<'s, 'c, 'a> LockAll<'s, 'c, 'a> {
    pub(super) fn new(cases: &'c [Case<'a>], sorted: &'s mut [u32]) -> LockAll<'s, 'c, 'a> {
        number(sorted);
        sort_by_key(sorted, |at| address(&cases[at as usize]));
        let all = LockAll { cases, sorted };
        all.each(|header, is_first| header.queues.lock_of_several(is_first));
        all
    }

    fn each(&self, mut f: impl FnMut(&'a ChanHeader, bool)) {
        let mut last = 0;
        for at in self.sorted {
            let case = &self.cases[*at as usize];
            let address = address(case);
            if address != 0 && address != last {
                if let Some(chan) = case.chan {
                    f(chan.header(), last == 0);
                }
                last = address;
            }
        }
    }
}

/// The numbers from 0 on.
pub(super) fn number(order: &mut [u32]) {
    (0..).zip(order).for_each(|(n, at)| *at = n);
}

fn sort_by_key(order: &mut [u32], key: impl Fn(u32) -> usize) {
    if order.len() > FEW {
        return order.sort_unstable_by_key(|at| key(*at));
    }
    for end in 1..order.len() {
        let mut at = end;
        while at > 0 && key(order[at - 1]) > key(order[at]) {
            order.swap(at - 1, at);
            at -= 1;
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

/// What a select keeps for each case while it looks and waits. Its caller has room for it, mostly
/// on the stack.
pub(super) struct CaseRoom<'r> {
    /// The order of the tries.
    pub(super) order: &'r mut [u32],
    /// The order of the locks.
    pub(super) sorted: &'r mut [u32],
    nodes: &'r mut [MaybeUninit<WaitNode<'static>>],
}

/// Calls `f` with room for `n` cases. It is on the stack if there are at most `N`. With more it
/// allocates, so it is called outside the runtime.
#[inline]
pub(super) fn with_room<const N: usize, R>(n: usize, f: impl FnOnce(CaseRoom<'_>) -> R) -> R {
    let (mut order, mut sorted) = ([0; N], [0; N]);
    let mut nodes = [const { MaybeUninit::uninit() }; N];
    let few = order.get_mut(..n).zip(sorted.get_mut(..n));
    if let Some(((order, sorted), nodes)) = few.zip(nodes.get_mut(..n)) {
        let room = CaseRoom {
            order,
            sorted,
            nodes,
        };
        return f(room);
    }
    let mut nodes = Vec::with_capacity(n);
    nodes.resize_with(n, MaybeUninit::uninit);
    f(CaseRoom {
        order: &mut vec![0; n],
        sorted: &mut vec![0; n],
        nodes: &mut nodes,
    })
}

impl CaseRoom<'_> {
    /// A new node per case of one wait, for values that go to `elem`. The indices come along.
    #[inline]
    pub(super) fn parts<'s>(
        &'s mut self,
        waiter: &'s Waiter,
        elem: *mut u8,
    ) -> (&'s [u32], &'s mut [u32], &'s [WaitNode<'s>]) {
        // SAFETY: both are slices of uninitialised nodes, which differ in a lifetime. No node is
        // read that was not written, below, and the longer lifetime is not used any more.
        let nodes: &'s mut [MaybeUninit<WaitNode<'s>>] =
            unsafe { slice::from_raw_parts_mut(self.nodes.as_mut_ptr().cast(), self.nodes.len()) };
        for (at, node) in nodes.iter_mut().enumerate() {
            node.write(WaitNode::new(waiter, at)).elem.set(elem);
        }
        // SAFETY: all of them were just written.
        let nodes = unsafe { &*(&raw const *nodes as *const [WaitNode<'s>]) };
        (self.order, self.sorted, nodes)
    }
}
