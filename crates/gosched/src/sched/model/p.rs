//! P: a processor, the permit to run user code, with the resources that come with it (PL).
//!
//! `pstatus` has its states. Only the M that holds the P uses `local`, without a lock: `HeldP` is
//! the proof.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::sched::model::g::G;
pub(crate) use crate::sched::model::pstatus::PStatus;
use crate::sched::model::pstatus::PStatusWord;
use crate::sched::model::ptr::{AtomicRef, Gp, Pp};
use crate::sched::model::runq::{Owner, RunQueue};
use crate::sched::model::spin::SpinningSlot;
use crate::sched::model::timer::{PTimers, Pace};
use crate::sched::model::watch::p_sample::SeenP;
use crate::sched::model::word::Word;
use crate::stack::Stack;

/// Every so many scheduling decisions a P makes a fair one (L4, U4).
pub(crate) const FAIR_EVERY: u32 = 61;

/// The most stacks that a P caches.
pub(crate) const STACKS_MAX: usize = 32;
/// Stacks taken from the arena when the cache is empty.
pub(crate) const STACKS_REFILL: usize = 8;
/// The cache of dead Gs spills at this length ...
pub(crate) const GFREE_MAX: usize = 64;
/// ... down to this length, and is refilled to it (GF).
pub(crate) const GFREE_KEEP: usize = 32;
/// Goroutine ids taken from the runtime at a time.
pub(crate) const ID_BATCH: u64 = 16;

/// Counters of what happened on a P; summed for `debug::metrics`.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) spawns: Count,
    pub(crate) ends: Count,
    pub(crate) steals: Count,
    pub(crate) stolen: Count,
    pub(crate) handoffs: Count,
    pub(crate) parks: Count,
    pub(crate) readies: Count,
    pub(crate) wakes: Count,
    pub(crate) overflows: Count,
    pub(crate) yields: Count,
    pub(crate) preempts: Count,
    pub(crate) syscalls: Count,
    pub(crate) rescues: Count,
    /// Scheduling decisions; updated at each fair one.
    pub(crate) decisions: Count,
}

/// A counter with one writer at a time.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds. Only the P's holder calls this.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds, on any thread.
    pub(crate) fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The fields that only the holder of the P uses.
pub(crate) struct Local {
    pub(crate) gfree: FreeGs,
    pub(crate) stacks: StackCache,
    /// Stack reservations (D3): each lets one goroutine start.
    pub(crate) credits: Cell<usize>,
    /// Goroutine ids to give out: from `next_id` to below `last_id`.
    pub(crate) next_id: Cell<u64>,
    pub(crate) last_id: Cell<u64>,
    /// How often a busy P checks its timers.
    pub(crate) pace: Pace,
    /// When the next fair decision comes.
    pub(crate) fairness: Fairness,
    /// The world was started and this P has made no decision since.
    pub(crate) has_yet_to_decide: Cell<bool>,
}

/// Dead Gs, linked through `schedlink`: last in, first out.
pub(crate) struct FreeGs {
    head: Cell<Option<Gp>>,
    len: Cell<usize>,
}

impl FreeGs {
    const fn new() -> FreeGs {
        FreeGs {
            head: Cell::new(None),
            len: Cell::new(0),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    #[inline]
    pub(crate) fn push(&self, g: Gp) {
        g.schedlink.store(self.head.replace(Some(g)), Relaxed);
        self.len.set(self.len.get() + 1);
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<Gp> {
        let g = self.head.get()?;
        self.head.set(g.schedlink.load(Relaxed));
        g.schedlink.store(None, Relaxed);
        self.len.set(self.len.get() - 1);
        Some(g)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Gp> + '_ {
        std::iter::successors(self.head.get(), |g| g.schedlink.load(Relaxed))
    }
}

/// Cached stacks, the most recently used last.
pub(crate) struct StackCache {
    len: Cell<usize>,
    stacks: [Cell<Stack>; STACKS_MAX],
}

impl StackCache {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    /// The stack used last. If the cache is empty, `refill` fetches a few.
    #[inline]
    pub(crate) fn take(&self, refill: impl FnOnce(&mut [Stack]) -> usize) -> Stack {
        if self.len.get() == 0 {
            self.refill(refill);
        }
        let last = self.len.get() - 1;
        self.len.set(last);
        self.stacks[last].get()
    }

    #[inline]
    fn refill(&self, refill: impl FnOnce(&mut [Stack]) -> usize) {
        let mut fresh = [Stack::from_parts(0, 0, 0); STACKS_REFILL];
        let n = refill(&mut fresh);
        for (at, stack) in self.stacks.iter().zip(&fresh[..n]) {
            at.set(*stack);
        }
        self.len.set(n);
    }

    /// Keeps a stack. A full cache first gives its colder half to `spill`.
    #[inline]
    pub(crate) fn give(&self, stack: Stack, spill: impl FnOnce(&[Stack])) {
        if self.len.get() == STACKS_MAX {
            self.spill(spill);
        }
        self.stacks[self.len.get()].set(stack);
        self.len.set(self.len.get() + 1);
    }

    #[cold]
    fn spill(&self, spill: impl FnOnce(&[Stack])) {
        const HALF: usize = STACKS_MAX / 2;
        let cold: [Stack; HALF] = std::array::from_fn(|i| self.stacks[i].get());
        spill(&cold);
        for i in 0..HALF {
            self.stacks[i].set(self.stacks[i + HALF].get());
        }
        self.len.set(HALF);
    }

    pub(crate) fn empty(&self, to: impl FnOnce(&[Stack])) {
        let all: [Stack; STACKS_MAX] = std::array::from_fn(|i| self.stacks[i].get());
        to(&all[..self.len.replace(0)]);
    }
}

/// Decides which decisions of a P are *fair*: every 61st, the one behind it, and the first one
/// after a time slice ended. A fair decision serves the queues behind `next` (L4, U4).
pub(crate) struct Fairness {
    /// Decisions until the next fair one, which counts. Never 0 between two decisions.
    left: Cell<u32>,
    /// Decisions until the next 61st one, if another fair one comes before it; otherwise 0.
    postponed: Cell<u32>,
}

pub(crate) enum Fair {
    /// It is a 61st decision.
    Counted,
    /// A slice is over, or the decision before was a 61st one.
    SliceOver,
}

impl Fairness {
    pub(crate) fn new() -> Fairness {
        Fairness {
            left: Cell::new(FAIR_EVERY),
            postponed: Cell::new(0),
        }
    }

    /// Counts a decision; returns whether it must be fair.
    #[inline]
    pub(crate) fn decide(&self) -> bool {
        let left = self.left.get() - 1;
        self.left.set(left);
        left == 0
    }

    /// The slice is over, so the next decision is fair.
    pub(crate) fn end_slice(&self) {
        if self.postponed.get() == 0 {
            self.postponed.set(self.left.replace(1));
        }
    }

    /// Makes the next decision the 61st.
    #[cfg(test)]
    pub(crate) fn skip_to_the_61st(&self) {
        self.left.set(0);
        self.postponed.set(0);
    }

    /// Starts the count of decisions again.
    #[cfg(test)]
    pub(crate) fn begin_anew(&self) {
        self.left.set(FAIR_EVERY);
        self.postponed.set(0);
    }

    /// Begins a fair decision: returns the reason and restarts the count.
    pub(crate) fn begin_fair(&self) -> Fair {
        let postponed = self.postponed.take();
        if postponed > 1 {
            self.left.set(postponed - 1);
            return Fair::SliceOver;
        }
        // The decision behind a 61st one is fair, too, and takes from the ring first.
        self.left.set(1);
        self.postponed.set(FAIR_EVERY);
        Fair::Counted
    }
}

#[repr(C, align(128))]
pub(crate) struct P {
    pub(crate) id: u32,
    pub(crate) status: PStatusWord,
    /// The M that holds it.
    pub(crate) m: AtomicRef<crate::sched::model::m::M>,
    /// Advances with every time slice, not with every switch (SC).
    pub(crate) schedtick: AtomicU32,
    pub(crate) syscalltick: AtomicU32,
    local: HolderOnly,
    pub(crate) counters: Counters,
    pub(crate) runq: RunQueue<G>,
    /// Goroutines that began a wait with a deadline here (PL). Other threads expire them, too.
    pub(crate) timers: PTimers,
    /// Link of a list of Ps; only `PList` changes it.
    pub(in crate::sched) link: Word<Option<Pp>>,
    /// For a pending P: whether its next M begins to spin.
    pub(crate) spinning: SpinningSlot,
    pub(crate) seen: SeenP,
}

struct HolderOnly(Local);

// SAFETY: PL, only the M that holds the P uses it: the contract of `HeldP::new`.
unsafe impl Sync for HolderOnly {}

impl P {
    pub(crate) fn new(id: u32) -> P {
        P {
            id,
            status: PStatusWord::new(PStatus::Dead),
            m: AtomicRef::none(),
            schedtick: AtomicU32::new(0),
            syscalltick: AtomicU32::new(0),
            local: HolderOnly(Local {
                gfree: FreeGs::new(),
                stacks: StackCache {
                    len: Cell::new(0),
                    stacks: [const { Cell::new(Stack::from_parts(0, 0, 0)) }; STACKS_MAX],
                },
                credits: Cell::new(0),
                next_id: Cell::new(0),
                last_id: Cell::new(0),
                pace: Pace::new(),
                fairness: Fairness::new(),
                has_yet_to_decide: Cell::new(false),
            }),
            counters: Counters::default(),
            runq: RunQueue::new(),
            timers: PTimers::new(),
            link: Word::new(None),
            spinning: SpinningSlot::new(),
            seen: SeenP::default(),
        }
    }

    pub(crate) fn status(&self) -> PStatus {
        self.status.get()
    }

    #[inline]
    pub(crate) fn set_status(&self, status: PStatus) {
        self.status.set(status);
    }

    /// Breaks the list that the P is on, for a test of the checks.
    #[cfg(test)]
    pub(crate) fn link_to_itself(&self) {
        // SAFETY: GF, a P of a runtime under test.
        self.link
            .set(Some(unsafe { Pp::new(std::ptr::NonNull::from(self)) }));
    }

    /// Begins a time slice. Only the holder calls this.
    #[inline]
    pub(crate) fn begin_slice(&self) {
        self.schedtick
            .store(self.schedtick.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// Proof that only this thread uses the holder's side of a P. `Worker` and `IdleP` give it.
#[derive(Clone, Copy)]
pub(crate) struct HeldP<'a>(&'a P, PhantomData<*const ()>);

impl<'a> HeldP<'a> {
    /// # Safety
    /// During `'a` the M of this thread holds the P (P1). Or no M does, and the caller alone has it
    /// (`IdleP`).
    #[inline]
    pub(crate) unsafe fn new(p: &'a P) -> HeldP<'a> {
        HeldP(p, PhantomData)
    }

    /// The P of a runtime without threads: the exclusive borrow is the proof.
    pub(crate) fn alone(p: &'a mut P) -> HeldP<'a> {
        HeldP(p, PhantomData)
    }

    /// The holder's fields: caches and counts (PL).
    #[inline]
    pub(crate) fn local(self) -> &'a Local {
        &self.0.local.0
    }

    /// The producer's side of the run queue.
    #[inline]
    pub(crate) fn queue(self) -> Owner<'a, G> {
        // SAFETY: R2, only this thread uses the holder's side of the P (`HeldP::new`).
        unsafe { self.0.runq.owner() }
    }
}

#[inline]
pub(crate) fn gp(raw: std::ptr::NonNull<G>) -> Gp {
    // SAFETY: GF, run queues hold only Gs of this runtime.
    unsafe { Gp::new(raw) }
}
