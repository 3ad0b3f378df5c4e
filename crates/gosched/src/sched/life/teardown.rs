//! Drops a runtime in any state (D2).
//!
//! 1. New goroutines are refused, and every M ends when it next schedules.
//! 2. Sleeping Ms end at once. Ms in user code get a moment to come by. After that they are left
//!    alone: such a thread ends when its goroutine next has to wait.
//! 3. Every goroutine that has not ended is abandoned: it is withdrawn from what it waits on, and
//!    its join is answered. Outside all locks, the wakers of tasks that await one are called, and
//!    the closures that never started are dropped. The stack of a goroutine that had started may be
//!    pointed into. So it stays, and with it the runtime's memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::Duration;

use crate::base::once_box::OnceBox;
use crate::base::real_thread;
use crate::sched::Sched;
use crate::sched::life::deadlock::Hook;
use crate::sched::life::registry;
use crate::sched::life::thread_locals::standing;
use crate::sched::model::current::assert_user_context;
use crate::sched::model::g::WaitReason;
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::PreemptOff;
use crate::sched::model::p::HeldP;
use crate::sched::model::ptr::Gp;
use crate::sched::park::{enter, no_preempt};
use crate::sched::waiting::handle::{Fate, NeverRan};
use crate::sched::waiting::wait_ops::Asleep;
use crate::sched::waiting::wait_slot::Awaiters;
use crate::sched::waiting::waitq::{WaitEnd, pass_on};
use crate::sys;
use crate::sys::PageVec;
use crate::tls;

/// How long a drop waits for Ms in user code.
const GRACE_NS: u64 = 20_000_000;
const POLL_NS: u64 = 200_000;
const SCAVENGE_STEP: usize = 4096;

/// The first threads could not be started: ends those that were.
pub(crate) fn abandon_start(sched: &Arc<Sched>) {
    stop_threads(sched);
    let rt = enter();
    let entry = registry::remove(sched);
    drop((rt, entry)); // in this order
}

/// Drops a runtime. In user context, on any thread, also on one of its own goroutines.
pub(crate) fn drop_runtime(sched: Arc<Sched>) {
    if crate::sched::life::forked::is_child() {
        return std::mem::forget(sched); // its threads are in another process
    }
    assert_user_context();
    // The runtime of the calling goroutine may be dropped at the same time: this drop is finished
    // first.
    let no_preempt = no_preempt(PreemptOff::DroppingARuntime);
    let left = stop_threads(&sched);
    sched.is_given_up.store(true, SeqCst);
    let mut gs = live_goroutines(&sched, |_| true);
    let awaiters = answer_joins(&gs);
    take_dormant(&sched, &mut gs);
    if let Some(driver) = sched.poller.driver() {
        driver.close(left == u32::from(sched.own_m().is_some()));
    }
    let entry = forget_runtime(&sched);
    drop(no_preempt);
    drop(entry);
    sched.leaked_ms.store(left, Relaxed);
    let started = |g: &&Gp| g.started.load(Acquire) != 0;
    let gave_up = gs.as_slice().iter().filter(started).count();
    if gave_up > 0 {
        sched.leaked_gs.store(gave_up as u32, Relaxed);
        LEAKED.fetch_add(gave_up as u64, Relaxed);
        std::mem::forget(Arc::clone(&sched));
    }
    let hook = sched.hook.lock().ok().and_then(|mut hook| hook.take());
    drop_what_users_gave(LeftOver {
        awaiters,
        gs,
        hook,
        sched,
    });
    tls::free_surplus();
}

/// Removes the runtime from the registry, and returns its entry. Threads that are left may still
/// wake goroutines of other runtimes, so they count as foreign.
#[must_use = "the entry is dropped in user context"]
fn forget_runtime(sched: &Sched) -> Option<Box<registry::Entry>> {
    let _rt = enter();
    let entry = registry::remove(sched);
    let mut tids: PageVec<i32> = PageVec::new();
    let core = sched.core.lock();
    for m in std::iter::successors(core.allm, |m| m.alllink.get()) {
        let _ = tids.push(m.tid.load(Relaxed));
    }
    drop(core);
    for tid in tids.as_slice() {
        registry::disown(*tid);
    }
    sched.close_files();
    while sched.arena.scavenge(SCAVENGE_STEP, || standing(sched)) {}
    entry
}

static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Goroutines abandoned by drops of runtimes in this process.
pub(crate) fn leaked_goroutines() -> u64 {
    LEAKED.load(Relaxed)
}

/// Asks every thread to end and waits, outside the runtime, for those that can. Returns how many
/// are left.
fn stop_threads(sched: &Sched) -> u32 {
    let own = u32::from(sched.own_m().is_some());
    {
        let _rt = enter();
        let core = sched.core.lock();
        sched.closed.store(true, SeqCst);
        sched.dead.store(true, SeqCst);
        drop(core);
    }
    let deadline = sys::monotonic_ns() + GRACE_NS;
    loop {
        let is_late = sys::monotonic_ns() > deadline;
        let alive = {
            let _rt = enter();
            wake_all_threads(sched);
            let alive = sched.creator.alive.0.load(Acquire);
            if alive <= own || is_late && only_user_code_is_left(sched) {
                return alive;
            }
            alive
        };
        let until = sys::monotonic_ns() + POLL_NS;
        sched.creator.alive.wait(alive, Some(until));
    }
}

fn wake_all_threads(sched: &Sched) {
    sched.sysmon.wake();
    sched.creator.kick();
    sched.poller.wake();
    let mut core = sched.core.lock();
    while let Some(m) = sched.get_idle_m(&mut core) {
        m.park.wakeup();
    }
    let own = sched.own_m();
    let ms = std::iter::successors(core.allm, |m| m.alllink.get());
    for m in ms.filter(|m| Some(*m) != own) {
        if m.lockedg.load(Relaxed).is_some() || m.bound.load(Relaxed).is_some() {
            // A locked M sleeps without its goroutine, or is about to find the note set: it ends. A
            // bound one sleeps with its goroutine: it continues.
            m.park.wakeup();
        }
    }
}

/// Whether every thread that is left is an M in user code: then there is nothing to wait for.
fn only_user_code_is_left(sched: &Sched) -> bool {
    let core = sched.core.lock();
    let mut ms = std::iter::successors(core.allm, |m| m.alllink.get());
    let own = sched.own_m();
    let inside = ms.any(|m| m.claim.depth() > 0 && !m.may_stay_inside() && Some(m) != own);
    !inside && core.creating == 0 && sched.creator.alive.0.load(Acquire) == core.mcount
}

/// Withdraws every goroutine from its wait and answers its join. Returns the tasks that await one.
fn answer_joins(gs: &PageVec<Gp>) -> Awaiters {
    let mut awaiters = Awaiters::new();
    for g in gs.as_slice() {
        let _rt = enter();
        take_back(*g);
        abandon(*g, &mut awaiters);
    }
    awaiters
}

/// What the program gave to a runtime that is gone: wakers of tasks that await its goroutines,
/// closures that never ran, the deadlock hook. All of it is Send, because it was to run on any
/// thread.
struct LeftOver {
    awaiters: Awaiters,
    gs: PageVec<Gp>,
    hook: Option<Hook>,
    sched: Arc<Sched>,
}

// SAFETY: D3, `Task::new` requires that closures are Send; `Hook` and `Awaiters` are Send. Gs are
// type-stable (GF), and the runtime is alive through `sched`.
unsafe impl Send for LeftOver {}

impl LeftOver {
    fn unstarted(&self) -> impl Iterator<Item = Gp> + '_ {
        let gs = self.gs.as_slice().iter().copied();
        gs.filter(|g| g.started.load(Acquire) == 0)
    }

    fn drop_all(mut self) {
        drop(std::mem::replace(&mut self.awaiters, Awaiters::new()));
        self.unstarted().for_each(drop_unstarted);
        let hook = self.hook;
        std::mem::forget(catch_unwind(AssertUnwindSafe(|| drop(hook))));
    }
}

/// Runs the destructors, after every join is answered, because one may join another goroutine. It
/// may also wait. A goroutine of the dead runtime itself would never continue, so there the
/// destructors run on a thread of their own.
fn drop_what_users_gave(left: LeftOver) {
    let is_empty =
        left.awaiters.is_empty() && left.unstarted().next().is_none() && left.hook.is_none();
    if left.sched.own_m().is_none() || is_empty {
        return left.drop_all();
    }
    let spawned = real_thread::spawn("gosched-drop", move || {
        let left: LeftOver = { left };
        left.drop_all();
    });
    if spawned.is_err() {
        sys::write_stderr(b"gosched: no thread to drop what a runtime was given\n");
    }
}

/// The goroutines that have not ended and are `wanted`.
fn live_goroutines(sched: &Sched, mut wanted: impl FnMut(Gp) -> bool) -> PageVec<Gp> {
    let _rt = enter();
    let mut gs: PageVec<Gp> = PageVec::new();
    sched.blocks.for_each(|g| {
        let is_live = !matches!(g.status.get(), Status::Dead | Status::Idle);
        if is_live && wanted(g) && gs.push(g).is_err() {
            crate::base::fatal::throw("no memory for the list of a runtime's goroutines");
        }
    });
    gs
}

/// Takes the goroutines that a timer was to start, except those that another thread is about to
/// cancel.
fn take_dormant(sched: &Sched, gs: &mut PageVec<Gp>) {
    let _rt = enter();
    sched.drain_timers(|g| {
        if g.status.get() == Status::Dead && gs.push(g).is_err() {
            crate::base::fatal::throw("no memory for the list of a runtime's timers");
        }
    });
}

/// Answers the join of a goroutine of a dead runtime. Inside the runtime.
fn abandon(g: Gp, awaiters: &mut Awaiters) {
    if let Some(inner) = g.share_inner() {
        if let Some(awaiter) = inner.give_up() {
            awaiters.push(awaiter);
        }
        inner.tell_scope(fate(g));
    }
}

/// Reports the fate of a goroutine of a dead runtime to its scope. The drop answers its join,
/// before or after. Inside the runtime.
pub(crate) fn tell_scope(g: Gp) {
    if let Some(inner) = g.share_inner() {
        inner.tell_scope(fate(g));
    }
}

fn fate(g: Gp) -> Fate {
    let is_open = g.started.load(Acquire) == 0 || g.status.get() == Status::Running;
    if is_open { Fate::Open } else { Fate::Lost }
}

fn drop_unstarted(g: Gp) {
    // SAFETY: D2, no thread of the dropped runtime starts the goroutine any more.
    if let Some(unrun) = unsafe { g.take_unrun() } {
        // A destructor that panics does not end this drop.
        std::mem::forget(catch_unwind(AssertUnwindSafe(|| drop(unrun))));
    }
    let inner = {
        let _rt = enter();
        g.take_inner()
    };
    if let Some(inner) = inner {
        let awaiter = inner.give_up();
        debug_assert!(awaiter.is_none(), "`answer_joins` took the awaiting task");
        // SAFETY: D2, the goroutine had not started when its runtime died, and a dead runtime
        // starts none.
        inner.tell_scope(Fate::NeverRan(unsafe { NeverRan::new() }));
    }
}

/// Withdraws a goroutine that never continues from its wait. Passes on what it was given in a wait
/// from which it has not returned, and refuses what its open sends were promised. Inside the
/// runtime, when no thread of the dropped runtime is inside it (D2).
pub(crate) fn take_back(g: Gp) {
    // It may still run: it then finds that the promises of its open sends are refused.
    g.opens().refuse_all();
    if withdraw(g) {
        return pass_on(g, WaitEnd::Withdrawn); // it stays Waiting for ever
    }
    // Its wait has ended. Its waker sees that the runtime is dead, or queued the goroutine before.
    // The thread of such a goroutine may have been left in user code and come back to wait. The
    // Scan bit keeps the goroutine where it is.
    if g.status.begin_scan(Status::Runnable) {
        if g.started.load(Acquire) != 0 && g.wait_reason() != WaitReason::None {
            pass_on(g, WaitEnd::Woken);
        }
        g.status.end_scan(Status::Runnable);
    }
}

/// Withdraws a waiting goroutine from what it waits on. True: the caller owns its wake-up.
pub(crate) fn withdraw(g: Gp) -> bool {
    g.status.restore();
    Asleep::hold(g).is_some_and(|asleep| asleep.wait().is_some_and(|wait| wait.withdraw(g)))
}

/// Values of `G::cancelled`: asked to unwind; woken to unwind.
const ASKED: u8 = 1;
const TOLD: u8 = 2;

/// Unwinds every goroutine that waits, as `exit` does, and waits until all have ended or the
/// deadline has passed.
pub(crate) fn unwind_goroutines(sched: &Sched, deadline_ns: u64) {
    {
        let _rt = enter();
        let _core = sched.core.lock();
        sched.closed.store(true, SeqCst);
    }
    let own = u64::from(sched.own_m().is_some());
    loop {
        if cfg!(panic = "unwind") {
            cancel_all(sched); // otherwise they cannot unwind, and this only waits for them
        }
        if sched.goroutines() <= own || sys::monotonic_ns() >= deadline_ns {
            return;
        }
        crate::sched::waiting::timed::rest(Duration::from_millis(1));
    }
}

fn cancel_all(sched: &Sched) {
    let me = crate::sched::model::current::current_g();
    let gs = live_goroutines(sched, |g| {
        g.cancelled.load(Relaxed) != TOLD && Some(g) != me
    });
    let _rt = enter();
    for g in gs.as_slice() {
        g.cancelled.store(ASKED, Relaxed);
        if withdraw(*g) {
            g.cancelled.store(TOLD, Relaxed);
            crate::sched::park::ready(*g);
        }
    }
}

impl Sched {
    /// Every thread is gone: the Ps return their stacks and Gs, so that all memory can be freed.
    pub(in crate::sched) fn retire_all(&mut self) {
        let mut allp = std::mem::take(&mut self.allp); // freed outside the runtime
        let _rt = enter();
        let mut core = self.core.lock();
        for p in allp.iter_mut().filter_map(OnceBox::get_mut) {
            self.retire_p(&mut core, HeldP::alone(p));
        }
    }
}
