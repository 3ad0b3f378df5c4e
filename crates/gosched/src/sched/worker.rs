//! Evidence about this thread and its P: `Inside`, `G0`, `Worker`, `IdleP`.
//!
//! Only the M that holds a P adds to its run queue (R2) and uses its caches (PL). Values of these
//! types prove that the caller is that M. So the functions that need it are safe, and a call from
//! the wrong place does not compile.
//!
//! ```text
//!  type         proves                                   made by
//!  Inside       this thread is M m, inside the runtime   `park::enter`, the signal handler
//!  G0           the same, on the scheduling stack of m   `threads::run_as_m`, once per thread
//!  Worker<'_>   the same, and m holds P p                `Inside::worker`
//!  IdleP        no M holds P p, and the caller has it    `release_p`, `PList::take`, a claim,
//!                                                        `IdleP::retake`, a stopped world
//! ```
//!
//! None of the first three can go to another thread. A `Worker` borrows the `Inside` that it comes
//! from, and g0 gives its P up through `&mut G0`. So no `Worker` outlives the hold of its P. The
//! leader of a stopped world gives its own P up, too (`Entered::holder_of`, which is unsafe).

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sched::model::g::G;
use crate::sched::model::m::M;
use crate::sched::model::p::{HeldP, Local, P, PStatus};
use crate::sched::model::ptr::{Mp, Pp};
use crate::sched::model::runq::Owner;

/// Keeps a type on its thread.
type ThisThread = PhantomData<*const ()>;

/// Proof that this thread is the M's, inside the runtime, while the value lives.
pub(crate) struct Inside {
    m: Mp,
    _bound: ThisThread,
}

impl Inside {
    /// # Safety
    /// This thread is `m`'s. It is inside the runtime, and does not switch, while the value lives.
    #[inline]
    pub(crate) unsafe fn new(m: Mp) -> Inside {
        Inside {
            m,
            _bound: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn m(&self) -> Mp {
        self.m
    }

    /// The hold of the M's P. None: the M has no P, as after a call on a dropped runtime.
    #[inline]
    pub(crate) fn worker(&self) -> Option<Worker<'_>> {
        self.m.p.load(Relaxed).map(|p| Worker {
            m: self.m,
            p,
            _hold: PhantomData,
            _bound: PhantomData,
        })
    }

    /// The hold of the M's P, which it must have.
    #[inline]
    pub(crate) fn held(&self) -> Worker<'_> {
        match self.worker() {
            Some(worker) => worker,
            None => crate::base::fatal::throw("an M without a P runs the scheduler"),
        }
    }

    /// Binds an Idle P that the caller has taken (P1).
    #[inline]
    pub(crate) fn acquire_p(&mut self, p: IdleP) {
        acquire_p(self.m, p);
    }

    /// Unbinds the M's P. It is Idle, and the caller has it.
    #[inline]
    pub(crate) fn release_p(&mut self) -> IdleP {
        // SAFETY: this thread is the M's, and the exclusive borrow leaves no `Worker` alive.
        unsafe { release_p(self.m) }
    }
}

/// Proof that this code runs on the scheduling stack of its M.
pub(crate) struct G0(Inside);

impl G0 {
    /// # Safety
    /// This thread is `m`'s and on its own stack, inside the runtime. `m` has one `G0`.
    pub(crate) unsafe fn new(m: Mp) -> G0 {
        // SAFETY: by this function's contract the thread is inside the runtime, on g0, which never
        // leaves its thread.
        G0(unsafe { Inside::new(m) })
    }

    /// Gives the P up. From here on g0 uses the thread's own thread-locals (D6).
    #[inline]
    pub(crate) fn relinquish_p(&mut self) -> IdleP {
        self.m.tp.to_own();
        self.release_p()
    }
}

impl Deref for G0 {
    type Target = Inside;
    #[inline]
    fn deref(&self) -> &Inside {
        &self.0
    }
}

impl DerefMut for G0 {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inside {
        &mut self.0
    }
}

/// Proof that this thread is an M inside the runtime and holds a P (P1).
#[derive(Clone, Copy)]
pub(crate) struct Worker<'a> {
    m: Mp,
    p: Pp,
    _hold: PhantomData<&'a Inside>,
    _bound: ThisThread,
}

impl<'a> Worker<'a> {
    #[inline]
    pub(crate) fn m(self) -> Mp {
        self.m
    }

    #[inline]
    pub(crate) fn p(self) -> Pp {
        self.p
    }

    /// The P's caches and counts.
    #[inline]
    pub(crate) fn local(self) -> &'a Local {
        self.hold().local()
    }

    /// The producer's side of the P's run queue.
    #[inline]
    pub(crate) fn queue(self) -> Owner<'a, G> {
        self.hold().queue()
    }

    #[inline]
    fn hold(self) -> HeldP<'a> {
        // SAFETY: PL/R2, this thread holds the P during `'a`, and the `Worker` stays on it. GF, the
        // M's thread keeps the runtime alive, and with it the P (D2).
        unsafe { HeldP::new(self.p.non_null().as_ref()) }
    }
}

/// Proof that no M holds the P, and that the holder of this value alone has it: the P is off every
/// list. It may be given to an M, to a list, or to the leader of a stopping world.
#[must_use = "a P that is lost never runs a goroutine again"]
pub(crate) struct IdleP(Pp);

impl IdleP {
    /// # Safety
    /// No M holds `p`, and the caller has taken it from where it was: a list, a blocked M by a
    /// claim, or a stopped world.
    #[inline]
    pub(crate) unsafe fn new(p: Pp) -> IdleP {
        IdleP(p)
    }

    /// Takes a P that a marked call left behind, unless another thread took it. Its status is then
    /// `Idle`.
    #[inline]
    pub(crate) fn retake(p: Pp) -> Option<IdleP> {
        p.status.retake(PStatus::Idle).then_some(IdleP(p))
    }

    /// Leaves the P to the stopped world, or to a runtime that ends (P4).
    pub(crate) fn stop(self) {
        self.set_status(PStatus::GcStop);
    }

    /// The P, for the M or the list that gets it, or to retire it.
    #[inline]
    pub(crate) fn into_p(self) -> Pp {
        self.0
    }

    /// The holder's side of the P.
    pub(crate) fn hold(&self) -> HeldP<'_> {
        // SAFETY: PL/R2, no M holds the P, and the holder of this value alone has it.
        unsafe { HeldP::new(&self.0) }
    }
}

impl Deref for IdleP {
    type Target = P;
    #[inline]
    fn deref(&self) -> &P {
        &self.0
    }
}

impl M {
    /// Leaves a P for an M that is about to be woken.
    #[inline]
    pub(crate) fn give_nextp(&self, p: IdleP) {
        // ORDER: Relaxed; the note that wakes the M hands the word on.
        self.nextp.store(Some(p.0), Relaxed);
    }

    /// The P that the waker left.
    #[inline]
    pub(crate) fn take_nextp(&self) -> Option<IdleP> {
        // ORDER: Acquire; pairs with the Release of the waker's note.
        self.nextp.swap(None, Acquire).map(IdleP)
    }
}

/// Binds P and M to each other (P1).
#[inline]
pub(crate) fn acquire_p(m: Mp, p: IdleP) {
    let p = p.into_p();
    debug_assert!(m.p.load(Relaxed).is_none() && p.m.load(Relaxed).is_none());
    debug_assert_eq!(p.status(), PStatus::Idle);
    m.p.store(Some(p), Release);
    p.m.store(Some(m), Release);
    p.set_status(PStatus::Running);
    m.sched().wake_sysmon_if_asleep();
}

/// Unbinds the M's P. It is Idle, and the caller has it.
///
/// # Safety
/// This thread is `m`'s, and no `Worker` of it is alive.
#[inline]
pub(crate) unsafe fn release_p(m: Mp) -> IdleP {
    let p = m.p();
    debug_assert_eq!(p.m.load(Relaxed), Some(m), "P1");
    m.p.store(None, Release);
    p.m.store(None, Release);
    p.set_status(PStatus::Idle);
    IdleP(p)
}

#[cfg(test)]
impl Worker<'static> {
    /// For tests that act as an M.
    ///
    /// # Safety
    /// Only the calling thread uses the P.
    pub(crate) unsafe fn played(m: Mp, p: Pp) -> Worker<'static> {
        Worker {
            m,
            p,
            _hold: PhantomData,
            _bound: PhantomData,
        }
    }
}
