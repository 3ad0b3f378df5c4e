//! P: a processor, the permit to run user code and the local resources that come with it (PL).
//!
//! Where it is, its status says (`pstatus`). Everything in `local` is touched by the M that holds the P, without a lock.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::sched::FAIR_EVERY;
use crate::sched::model::g::{G, GQueue};
pub(crate) use crate::sched::model::pstatus::PStatus;
use crate::sched::model::pstatus::PStatusWord;
use crate::sched::model::ptr::{AtomicRef, Gp, Mp, Pp};
use crate::sched::model::runq::{Owner, RunQueue};
use crate::sched::monitor::p_sample::SeenP;
use crate::sched::sources::timers::{PTimers, Pace};
use crate::stack::Stack;

/// Stacks that a P keeps at hand.
pub(crate) const STACKS_MAX: usize = 32;
/// Stacks taken from the arena when there is none at hand.
pub(crate) const STACKS_REFILL: usize = 8;
/// Dead Gs: spilled at this many ...
pub(crate) const GFREE_MAX: usize = 64;
/// ... down to this many, and refilled to it (GF).
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
    /// Scheduling decisions; brought up to date at each fair one.
    pub(crate) decisions: Count,
}

/// A counter with one writer at a time.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds; only the P's holder.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds; anybody.
    pub(crate) fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Stacks at hand, most recently used last.
pub(crate) struct StackCache {
    pub(crate) len: usize,
    pub(crate) stacks: [Stack; STACKS_MAX],
}

/// What only the holder touches.
pub(crate) struct Local {
    pub(crate) gfree: GQueue,
    pub(crate) stacks: StackCache,
    /// Stack reservations at hand (D3): each lets one goroutine start.
    pub(crate) credits: usize,
    pub(crate) next_id: u64,
    pub(crate) last_id: u64,
    /// How often it looks at its timers while it is busy.
    pub(crate) pace: Pace,
    /// When its next fair decision comes.
    pub(crate) fairness: Fairness,
    /// The world has been started and this P has made no decision since.
    pub(crate) owes_turn: bool,
}

/// Decides which scheduling decisions of a P are *fair*: every 61st, the one behind it, and the first one after a
/// time slice is over. A fair decision serves the queues that wait behind `next` (L4, U4).
pub(crate) struct Fairness {
    /// Decisions until the next fair one, itself included. Never 0 between two decisions.
    left: u32,
    /// Decisions until the next 61st one, where another fair one comes before it; else 0.
    postponed: u32,
}

/// Why a decision is fair.
pub(crate) enum Fair {
    /// It is a 61st one.
    Counted,
    /// A slice is over, or the last decision was a 61st one.
    SliceOver,
}

impl Fairness {
    pub(crate) fn new() -> Fairness {
        Fairness {
            left: FAIR_EVERY,
            postponed: 0,
        }
    }

    /// Counts a decision. True: it must be a fair one.
    #[inline]
    pub(crate) fn decide(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// The slice is over: the next decision is a fair one.
    pub(crate) fn end_slice(&mut self) {
        if self.postponed == 0 {
            self.postponed = self.left;
            self.left = 1;
        }
    }

    /// As if the 61st decision were to be made.
    #[cfg(test)]
    pub(crate) fn skip_to_the_61st(&mut self) {
        (self.left, self.postponed) = (0, 0);
    }

    /// A fair decision is made: why, and the count goes on.
    pub(crate) fn begin_fair(&mut self) -> Fair {
        let postponed = std::mem::take(&mut self.postponed);
        if postponed > 1 {
            self.left = postponed - 1;
            return Fair::SliceOver;
        }
        // The decision after it is fair as well, and takes from the ring first.
        (self.left, self.postponed) = (1, FAIR_EVERY);
        Fair::Counted
    }
}

/// A processor.
#[repr(C, align(128))]
pub(crate) struct P {
    pub(crate) id: u32,
    pub(crate) status: PStatusWord,
    /// The M that holds it.
    pub(crate) m: AtomicRef<crate::sched::model::m::M>,
    /// Advances with every time slice, not with every switch (SC).
    pub(crate) schedtick: AtomicU32,
    pub(crate) syscalltick: AtomicU32,
    local: UnsafeCell<Local>,
    pub(crate) counters: Counters,
    pub(crate) runq: RunQueue<G>,
    /// The goroutines whose waits begin here and are to end in time (PL); others take out what is due, too.
    pub(crate) timers: PTimers,
    /// Link of the idle list or the list of Ps that wait for a thread; under the scheduler lock.
    pub(crate) link: Cell<Option<Pp>>,
    /// Whether the M it waits for starts spinning.
    pub(crate) wants_spinning: Cell<bool>,
    /// sysmon's last look.
    pub(crate) seen: SeenP,
}

// SAFETY: PL, `local` is the holder's; `timers` has a lock; `link` and `wants_spinning` are guarded by the scheduler lock;
// `seen` is sysmon's alone; the rest is atomic.
unsafe impl Sync for P {}

impl P {
    pub(crate) fn new(id: u32) -> P {
        P {
            id,
            status: PStatusWord::new(PStatus::Dead),
            m: AtomicRef::none(),
            schedtick: AtomicU32::new(0),
            syscalltick: AtomicU32::new(0),
            local: UnsafeCell::new(Local {
                gfree: GQueue::new(),
                stacks: StackCache {
                    len: 0,
                    stacks: [Stack::from_parts(0, 0, 0); STACKS_MAX],
                },
                credits: 0,
                next_id: 0,
                last_id: 0,
                pace: Pace::new(),
                fairness: Fairness::new(),
                owes_turn: false,
            }),
            counters: Counters::default(),
            runq: RunQueue::new(),
            timers: PTimers::new(),
            link: Cell::new(None),
            wants_spinning: Cell::new(false),
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

    /// The holder's own things.
    ///
    /// # Safety
    /// The caller's M holds this P (P1), or the world is stopped; no other reference is alive.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn local(&self) -> &mut Local {
        // SAFETY: PL, by the caller's promise.
        unsafe { &mut *self.local.get() }
    }

    /// The producer's side of its queue.
    ///
    /// # Safety
    /// As for [`P::local`] (R2).
    #[inline]
    pub(crate) unsafe fn queue(&self) -> Owner<'_, G> {
        // SAFETY: R2, by the caller's promise.
        unsafe { self.runq.owner() }
    }
}

/// Binds P and M, both ways (P1).
#[inline]
pub(crate) fn acquire_p(m: Mp, p: Pp) {
    debug_assert!(m.p.load(Relaxed).is_none() && p.m.load(Relaxed).is_none());
    debug_assert_eq!(p.status(), PStatus::Idle);
    m.p.store(Some(p), Release);
    p.m.store(Some(m), Release);
    p.set_status(PStatus::Running);
    m.sched().wake_sysmon_if_asleep();
}

impl P {
    /// A time slice begins. Only the holder.
    #[inline]
    pub(crate) fn begin_slice(&self) {
        self.schedtick
            .store(self.schedtick.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// g0 gives its P up: from here on it is on the thread's own FS (D6).
#[inline]
pub(crate) fn relinquish_p(m: Mp) -> Pp {
    m.tp.to_own();
    release_p(m)
}

/// Unbinds M's P and leaves it Idle, in the caller's hands.
#[inline]
pub(crate) fn release_p(m: Mp) -> Pp {
    let p = m.p();
    debug_assert_eq!(p.m.load(Relaxed), Some(m), "P1");
    m.p.store(None, Release);
    p.m.store(None, Release);
    p.set_status(PStatus::Idle);
    p
}

/// The goroutine a queue pointer stands for.
#[inline]
pub(crate) fn gp(raw: std::ptr::NonNull<G>) -> Gp {
    // SAFETY: GF, only Gs of this runtime are ever queued.
    unsafe { Gp::new(raw) }
}
