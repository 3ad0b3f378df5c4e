//! M: an OS thread of the runtime. It runs goroutines while it holds a P, and schedules on its own
//! stack, g0, never on a goroutine's (MG).
//!
//! `Cell`s belong to the M's own thread, or to whoever is about to wake it (`nextp`, `spinning`: handed
//! over by its note). What other threads read at any time is atomic. M structs are reused but never freed,
//! not even with their runtime: a thread that inherited an M's register may look at it (see `current`).

use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8};

use crate::base::note::Note;
use crate::sched::Sched;
use crate::sched::model::claim::Claim;
use crate::sched::model::g::G;
use crate::sched::model::p::P;
use crate::sched::model::ptr::{AtomicRef, Gp, Mp, Pp};
use crate::sched::monitor::retake::Watched;
use crate::sched::monitor::self_unwind::Trace;
use crate::sched::monitor::stray::Stray;
use crate::sched::park::Mcall;
use crate::tls::ThreadPointers;

/// In `M::asked`: make room for others.
pub(crate) const YIELD: u8 = 1;
/// In `M::asked`: the goroutine is in a marked call, to which it goes back.
pub(crate) const BLOCK: u8 = 2;
/// In `M::asked`: the handler is to give the P up, for the thread sleeps in a call.
pub(crate) const LET_GO: u8 = 4;

/// Why an M may not be preempted (Go's `preemptoff`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum PreemptOff {
    No,
    DroppingARuntime,
    StoppingTheWorld,
    /// It has begun what others rely on: a drop of its runtime must not find it in a queue (D2).
    HalfDone,
}

/// A thread of the runtime.
#[repr(C)]
pub(crate) struct M {
    /// Its own address, for the door (`sched/model/current.rs`); set when a thread becomes it.
    pub(crate) this: Cell<*const M>,
    /// The thread block that this thread is on, and its own (D6).
    pub(crate) tp: ThreadPointers,
    /// Whether this thread is inside the runtime, and whether its P is still its own (D8, D9).
    pub(crate) claim: Claim,
    /// What to do at the next exit from the runtime, or in the handler: [`YIELD`], [`BLOCK`], [`LET_GO`].
    pub(crate) asked: AtomicU8,
    /// Why it may not be preempted, if it may not.
    pub(crate) preempt_off: AtomicU8,
    /// g0's saved stack pointer while a goroutine runs.
    pub(crate) g0_sp: Cell<usize>,
    /// g0's stack: the thread's own.
    pub(crate) g0_lo: Cell<usize>,
    pub(crate) g0_hi: Cell<usize>,
    /// The bounds of the stack on which this thread handles signals.
    pub(crate) signal_lo: Cell<usize>,
    pub(crate) signal_hi: Cell<usize>,
    /// The goroutine on this thread (G2).
    pub(crate) curg: AtomicRef<G>,
    /// The P it holds (P1).
    pub(crate) p: AtomicRef<P>,
    /// The P it is being given, read after its note wakes it.
    pub(crate) nextp: AtomicRef<P>,
    /// The P it left behind for a marked call.
    pub(crate) oldp: AtomicRef<P>,
    /// The goroutine that waits for a P on this thread, in the signal handler or where it stands (D7).
    pub(crate) bound: AtomicRef<G>,
    /// A signal is on its way (`preempt`).
    pub(crate) signalled: AtomicBool,
    /// Its stack, for a dump (`trace`).
    pub(crate) trace: Trace,
    /// What sysmon and the leader of a stopping world know of it; under the claim lock.
    pub(crate) watched: Watched,
    /// Its time without a P after an unmarked call.
    pub(crate) stray: Stray,
    /// What g0 does with the goroutine that has just left (`mcall`).
    pub(crate) mcall: Cell<Option<Mcall>>,
    /// Looking for work; counted in `Sched::spin` (M2).
    pub(crate) spinning: AtomicBool,
    /// Waits for another runtime's world to stop.
    pub(crate) is_guest: AtomicBool,
    /// Asleep on `park` (M1).
    pub(crate) blocked: AtomicBool,
    /// Told to end, or ending.
    pub(crate) dying: AtomicBool,
    /// Ranks of the internal locks held, in debug builds (Go's `locks`: scheduling asserts none).
    pub(crate) held: Cell<u32>,
    pub(crate) id: Cell<u32>,
    pub(crate) tid: AtomicI32,
    /// The goroutine that alone may run here (M6).
    pub(crate) lockedg: AtomicRef<G>,
    pub(crate) park: Note,
    /// Links, under the scheduler lock: all Ms (both ways), the idle list (both ways), the free list.
    pub(crate) alllink: Cell<Option<Mp>>,
    pub(crate) allprev: Cell<Option<Mp>>,
    pub(crate) idle_next: Cell<Option<Mp>>,
    pub(crate) idle_prev: Cell<Option<Mp>>,
    pub(crate) is_idle: Cell<bool>,
    /// The place of its own goroutine on the global queue (`global_queue`), under the scheduler lock.
    pub(crate) queued_at: Cell<u64>,
    pub(crate) queued_behind_new: Cell<u64>,
    pub(crate) freelink: Cell<Option<Mp>>,
    /// The next of all Ms there ever were; written once.
    pub(crate) everylink: AtomicRef<M>,
    /// Its runtime; null while the M is in the process-wide pool.
    pub(crate) sched: Cell<*const Sched>,
    pub(crate) rng: Cell<u64>,
}

impl M {
    pub(crate) fn new() -> M {
        M {
            this: Cell::new(std::ptr::null()),
            tp: ThreadPointers::new(),
            claim: Claim::new(),
            asked: AtomicU8::new(0),
            preempt_off: AtomicU8::new(PreemptOff::No as u8),
            g0_sp: Cell::new(0),
            g0_lo: Cell::new(0),
            g0_hi: Cell::new(0),
            signal_lo: Cell::new(0),
            signal_hi: Cell::new(0),
            curg: AtomicRef::none(),
            p: AtomicRef::none(),
            nextp: AtomicRef::none(),
            oldp: AtomicRef::none(),
            bound: AtomicRef::none(),
            signalled: AtomicBool::new(false),
            trace: Trace::new(),
            watched: Watched::default(),
            stray: Stray::default(),
            mcall: Cell::new(None),
            spinning: AtomicBool::new(false),
            is_guest: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            dying: AtomicBool::new(false),
            held: Cell::new(0),
            id: Cell::new(0),
            tid: AtomicI32::new(0),
            lockedg: AtomicRef::none(),
            park: Note::new(),
            alllink: Cell::new(None),
            allprev: Cell::new(None),
            idle_next: Cell::new(None),
            idle_prev: Cell::new(None),
            is_idle: Cell::new(false),
            queued_at: Cell::new(0),
            queued_behind_new: Cell::new(0),
            freelink: Cell::new(None),
            everylink: AtomicRef::none(),
            sched: Cell::new(std::ptr::null()),
            rng: Cell::new(1),
        }
    }

    /// Its runtime.
    #[inline]
    pub(crate) fn sched(&self) -> &Sched {
        // SAFETY: D2, every M's thread holds a reference to its Sched.
        unsafe { &*self.sched.get() }
    }

    #[inline]
    pub(crate) fn curg(&self) -> Option<Gp> {
        self.curg.load(Relaxed)
    }

    /// The P this M holds.
    #[inline]
    pub(crate) fn p(&self) -> Pp {
        match self.p.load(Relaxed) {
            Some(p) => p,
            None => crate::base::fatal::throw("an M without a P runs the scheduler"),
        }
    }

    /// Whether its thread is inside the runtime for as long as others please: as a guest in another runtime's world, or with a
    /// goroutine that waits for a P on it.
    pub(crate) fn is_elsewhere(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `wait_until_stopped`. `bound` is set under the scheduler lock, which the caller
        // holds.
        self.is_guest.load(Acquire) || self.bound.load(Acquire).is_some()
    }

    /// Asks it to do something when it next leaves the runtime.
    #[inline]
    pub(crate) fn ask(&self, what: u8) {
        self.asked.fetch_or(what, Relaxed);
    }

    /// Takes a request back; on its own thread.
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
        self.spinning.load(Relaxed)
    }

    #[inline]
    pub(crate) fn set_spinning(&self, spinning: bool) {
        self.spinning.store(spinning, Relaxed);
    }

    /// A cheap random number (xorshift), for steal order.
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
