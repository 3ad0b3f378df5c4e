//! M: an OS thread of the runtime. It runs goroutines while it holds a P, and schedules on its own
//! stack, g0, never on a goroutine's (MG).
//!
//! `Cell`s belong to the M's own thread, or to whoever is about to wake it (`nextp`, `spinning`: handed
//! over by its note). What other threads read at any time is atomic. M structs are reused but never freed,
//! not even with their runtime: a thread that inherited an M through GS may look at it (see `context`).

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize};

use super::Sched;
use super::g::G;
use super::note::Note;
use super::p::P;
use super::park::Mcall;
use super::ptr::{AtomicRef, Gp, Mp, Pp};

/// A thread of the runtime.
#[repr(C)]
pub(crate) struct M {
    /// The FS base this thread runs on at present: how the door tells a thread of ours from one that
    /// merely inherited our GS (a thread started by a goroutine does).
    pub(crate) fs: AtomicUsize,
    /// The thread's own FS, the one libc gave it.
    pub(crate) own_fs: Cell<usize>,
    /// malloc's words of this thread, which its goroutines borrow (D6).
    pub(crate) malloc: Cell<[usize; 2]>,
    /// How deep this thread is inside the runtime; at 0 it runs user code (D8, D9).
    pub(crate) in_rt: AtomicU32,
    /// Asked to pass through the scheduler at the next exit from the runtime.
    pub(crate) preempt: AtomicBool,
    /// g0's saved stack pointer while a goroutine runs.
    pub(crate) g0_sp: Cell<usize>,
    /// g0's stack: the thread's own.
    pub(crate) g0_lo: Cell<usize>,
    pub(crate) g0_hi: Cell<usize>,
    /// The goroutine on this thread (G2).
    pub(crate) curg: AtomicRef<G>,
    /// The P it holds (P1).
    pub(crate) p: AtomicRef<P>,
    /// The P it is being given, read after its note wakes it.
    pub(crate) nextp: AtomicRef<P>,
    /// The P it held when it entered a blocking call.
    pub(crate) oldp: AtomicRef<P>,
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
    /// Why it may not be preempted; empty otherwise.
    pub(crate) preempt_off: Cell<&'static str>,
    pub(crate) id: Cell<u32>,
    pub(crate) tid: AtomicI32,
    /// The goroutine that alone may run here (M6).
    pub(crate) lockedg: AtomicRef<G>,
    pub(crate) park: Note,
    /// Links, under the scheduler lock: all Ms, the idle list (both ways), the free list.
    pub(crate) alllink: Cell<Option<Mp>>,
    pub(crate) idle_next: Cell<Option<Mp>>,
    pub(crate) idle_prev: Cell<Option<Mp>>,
    pub(crate) is_idle: Cell<bool>,
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
            fs: AtomicUsize::new(0),
            own_fs: Cell::new(0),
            malloc: Cell::new([0; 2]),
            in_rt: AtomicU32::new(0),
            preempt: AtomicBool::new(false),
            g0_sp: Cell::new(0),
            g0_lo: Cell::new(0),
            g0_hi: Cell::new(0),
            curg: AtomicRef::none(),
            p: AtomicRef::none(),
            nextp: AtomicRef::none(),
            oldp: AtomicRef::none(),
            mcall: Cell::new(None),
            spinning: AtomicBool::new(false),
            is_guest: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            dying: AtomicBool::new(false),
            held: Cell::new(0),
            preempt_off: Cell::new(""),
            id: Cell::new(0),
            tid: AtomicI32::new(0),
            lockedg: AtomicRef::none(),
            park: Note::new(),
            alllink: Cell::new(None),
            idle_next: Cell::new(None),
            idle_prev: Cell::new(None),
            is_idle: Cell::new(false),
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
            None => super::fatal::throw("an M without a P runs the scheduler"),
        }
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
