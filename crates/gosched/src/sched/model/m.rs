//! M: a thread of the runtime. It runs goroutines while it holds a P, and schedules on its own
//! stack, g0 (MG).
//!
//! A `Word` belongs to the M's own thread, or to the holder of the lock that its comment names.
//! `nextp` and `spinning` are the waker's until the note hands them over. What other threads read
//! at any time is atomic. M structs are reused but never freed, not even with their runtime: a
//! thread that inherited an M through GS may read it (`current.rs`).

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32};

use crate::base::note::Note;
use crate::sched::model::g::G;
use crate::sched::model::p::P;
use crate::sched::model::ptr::{AtomicRef, Gp, Home, Mp, Pp};
use crate::sched::model::spin::SpinningSlot;
use crate::sched::model::watch::claim::Claim;
use crate::sched::model::watch::self_unwind::Trace;
use crate::sched::model::watch::{Stray, Watched};
use crate::sched::model::word::Word;
use crate::tls::ThreadPointers;

/// In `M::asked`: yield the P.
pub(crate) const YIELD: u8 = 1;
/// In `M::asked`: the goroutine is in a marked call, to which it goes back.
pub(crate) const BLOCK: u8 = 2;
/// In `M::asked`: the handler gives the P up, because the thread sleeps in a call.
pub(crate) const GIVE_UP_P: u8 = 4;

/// Why an M may not be preempted (Go's `preemptoff`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum PreemptOff {
    No,
    DroppingARuntime,
    StoppingTheWorld,
    /// It has begun a step that others rely on: a drop of its runtime must not find it in a queue
    /// (D2).
    HalfDone,
}

#[repr(C, align(128))]
pub(crate) struct M {
    /// Its own address, for the door (`current.rs`). Set when a thread becomes this M.
    pub(crate) this: Word<*const M>,
    /// The thread block that this thread is on, and its own (D6).
    pub(crate) tp: ThreadPointers,
    /// Whether this thread is inside the runtime, and whether its P is still its own (D8, D9).
    pub(crate) claim: Claim,
    /// What to do at the next exit from the runtime, or in the handler: [`YIELD`], [`BLOCK`],
    /// [`GIVE_UP_P`].
    pub(crate) asked: AtomicU8,
    /// A [`PreemptOff`]: why it may not be preempted.
    pub(crate) preempt_off: AtomicU8,
    /// g0's saved stack pointer while a goroutine runs.
    pub(crate) g0_sp: Word<usize>,
    /// g0's stack: the thread's own.
    pub(crate) g0_lo: Word<usize>,
    pub(crate) g0_hi: Word<usize>,
    /// The bounds of the stack on which the thread handles signals.
    pub(crate) signal_lo: Word<usize>,
    pub(crate) signal_hi: Word<usize>,
    /// The goroutine on this thread (G2).
    pub(crate) curg: AtomicRef<G>,
    /// The P it holds (P1).
    pub(crate) p: AtomicRef<P>,
    /// The P that a waker gives it; read after the note has woken it.
    pub(crate) nextp: AtomicRef<P>,
    /// The P that it left behind for a marked call.
    pub(crate) oldp: AtomicRef<P>,
    /// The goroutine that waits for a P on this thread, in the signal handler or where it stands
    /// (D7).
    pub(crate) bound: AtomicRef<G>,
    /// A preemption signal is under way (`preempt`).
    pub(crate) signalled: AtomicBool,
    /// Its stack, for a dump (`self_unwind`).
    pub(crate) trace: Trace,
    /// What sysmon and the leader of a stopping world know of it; under the claim lock.
    pub(crate) watched: Watched,
    /// Its time without a P after an unmarked call.
    pub(crate) stray: Stray,
    /// What g0 does with the goroutine that has just left (an `Mcall`, or null).
    pub(in crate::sched) mcall: Word<*const ()>,
    /// Set while it searches for work; counted in `Sched::spin` (M2).
    pub(crate) spinning: SpinningSlot,
    /// It waits for the world of another runtime to stop.
    pub(crate) is_guest: AtomicBool,
    /// Asleep on `park` (M1).
    pub(crate) blocked: AtomicBool,
    /// Ranks of the internal locks held, in debug builds. Scheduling asserts that there are none.
    pub(crate) held: AtomicU32,
    pub(crate) id: Word<u32>,
    pub(crate) tid: AtomicI32,
    /// The goroutine that alone may run here (M6).
    pub(crate) lockedg: AtomicRef<G>,
    pub(crate) park: Note,
    /// Links, under the scheduler lock: all Ms and the idle list (both ways), the free list.
    pub(crate) alllink: Word<Option<Mp>>,
    pub(crate) allprev: Word<Option<Mp>>,
    pub(crate) idle_next: Word<Option<Mp>>,
    pub(crate) idle_prev: Word<Option<Mp>>,
    pub(crate) is_idle: Word<bool>,
    /// The stamps of its own goroutine on the global queue (`global_queue`); under the scheduler
    /// lock.
    pub(crate) queued_at: Word<u64>,
    pub(crate) queued_behind_new: Word<u64>,
    pub(crate) freelink: Word<Option<Mp>>,
    /// Links all Ms that ever were; written once.
    pub(crate) everylink: AtomicRef<M>,
    /// Its runtime; null while the M is in the process-wide pool.
    pub(crate) home: Word<*const Home>,
    pub(crate) rng: Word<u64>,
}

impl M {
    pub(crate) fn new() -> M {
        M {
            this: Word::new(std::ptr::null()),
            tp: ThreadPointers::new(),
            claim: Claim::new(),
            asked: AtomicU8::new(0),
            preempt_off: AtomicU8::new(PreemptOff::No as u8),
            g0_sp: Word::new(0),
            g0_lo: Word::new(0),
            g0_hi: Word::new(0),
            signal_lo: Word::new(0),
            signal_hi: Word::new(0),
            curg: AtomicRef::none(),
            p: AtomicRef::none(),
            nextp: AtomicRef::none(),
            oldp: AtomicRef::none(),
            bound: AtomicRef::none(),
            signalled: AtomicBool::new(false),
            trace: Trace::new(),
            watched: Watched::default(),
            stray: Stray::default(),
            mcall: Word::new(std::ptr::null()),
            spinning: SpinningSlot::new(),
            is_guest: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            held: AtomicU32::new(0),
            id: Word::new(0),
            tid: AtomicI32::new(0),
            lockedg: AtomicRef::none(),
            park: Note::new(),
            alllink: Word::new(None),
            allprev: Word::new(None),
            idle_next: Word::new(None),
            idle_prev: Word::new(None),
            is_idle: Word::new(false),
            queued_at: Word::new(0),
            queued_behind_new: Word::new(0),
            freelink: Word::new(None),
            everylink: AtomicRef::none(),
            home: Word::new(std::ptr::null()),
            rng: Word::new(1),
        }
    }

    #[inline]
    pub(crate) fn curg(&self) -> Option<Gp> {
        self.curg.load(Relaxed)
    }

    /// The P that this M holds; it must have one.
    #[inline]
    pub(crate) fn p(&self) -> Pp {
        match self.p.load(Relaxed) {
            Some(p) => p,
            None => crate::base::fatal::throw("an M without a P runs the scheduler"),
        }
    }

    /// Whether the thread may stay inside the runtime for long. It is a guest in another runtime's
    /// world, or a goroutine waits for a P on it.
    pub(crate) fn may_stay_inside(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `wait_until_stopped`. `bound` is set under the
        // scheduler lock, which the caller holds.
        self.is_guest.load(Acquire) || self.bound.load(Acquire).is_some()
    }

    /// Sets a request that the M serves when it next leaves the runtime.
    #[inline]
    pub(crate) fn ask(&self, what: u8) {
        self.asked.fetch_or(what, Relaxed);
    }

    /// Clears a request, on the M's own thread.
    #[inline]
    pub(crate) fn unask(&self, what: u8) {
        self.asked.fetch_and(!what, Relaxed);
    }

    #[inline]
    pub(crate) fn may_be_preempted(&self) -> bool {
        self.preempt_off.load(Relaxed) == PreemptOff::No as u8
    }

    #[inline]
    pub(crate) fn is_spinning(&self) -> bool {
        self.spinning.is_set()
    }

    /// A cheap random number (xorshift), for the order of steals.
    #[inline]
    pub(crate) fn random(&self) -> u32 {
        let mut x = self.rng.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.rng.set(x);
        (x >> 16) as u32
    }
}
