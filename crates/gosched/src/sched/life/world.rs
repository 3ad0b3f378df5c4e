//! Stops the world, starts it, and changes GOMAXPROCS in between (U7, P4, P5).
//!
//! There is one leader at a time in the process, a goroutine or any thread. It sets `gcwaiting`
//! under the scheduler lock. It takes the Ps that no M runs on and those that marked calls left
//! behind. It asks every running M to pass through the scheduler, where the M gives its P up and
//! sleeps. An M that has not done so after a moment is blocked and loses its P, or computes and
//! gets a signal. `stopwait` counts the Ps that still run; the M that brings it to zero wakes the
//! leader. The leader keeps its own P, if it has one, and stays on its thread until the world runs
//! again.

use std::io;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, fence};
use std::time::Duration;

use crate::base::lock::Held;
use crate::base::note::Note;
use crate::sched::life::p_list::PList;
use crate::sched::model::current::current_m;
use crate::sched::model::g::GQueue;
use crate::sched::model::m::{PreemptOff, YIELD};
use crate::sched::model::p::{HeldP, P, PStatus, STACKS_MAX, gp};
use crate::sched::model::ptr::{Mp, Pp};
use crate::sched::park::{Entered, NoPreempt, enter, no_preempt};
use crate::sched::worker::{IdleP, Inside};
use crate::sched::{Core, Sched};
use crate::sys;

/// How long the leader waits before it asks again.
const ASK_AGAIN_NS: u64 = 100_000;

/// The pause between two tries for the right to stop a world.
const TRY_AGAIN: Duration = Duration::from_micros(50);

/// The right to stop a world. There is one in the process: otherwise two runtimes could stop each
/// other's leaders.
static RIGHT: AtomicBool = AtomicBool::new(false);

/// The note on which the leader waits.
pub(crate) struct World {
    pub(crate) stopped: Note,
}

impl World {
    pub(crate) fn new() -> World {
        World {
            stopped: Note::new(),
        }
    }
}

/// Possession of the right. Its holder is not asked to yield: a drop of its runtime must not find
/// it in a queue with the right.
struct Right {
    _no_preempt: NoPreempt,
}

impl Right {
    /// Waits for the right. A goroutine sleeps between two tries, so that its P can stop for the
    /// present leader.
    fn acquire() -> Right {
        loop {
            let no_preempt = no_preempt(PreemptOff::StoppingTheWorld);
            if !RIGHT.swap(true, Acquire) {
                return Right {
                    _no_preempt: no_preempt,
                };
            }
            drop(no_preempt);
            crate::sched::waiting::timed::rest(TRY_AGAIN);
        }
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        // ORDER: Release; pairs with the next holder's Acquire in `acquire`.
        RIGHT.store(false, Release);
    }
}

/// The world is stopped while this exists. No parking, no user code.
pub(crate) struct Stopped<'a> {
    sched: &'a Sched,
    /// The number of Ps when the world starts.
    procs: u32,
    /// The leader stays inside the runtime until the world runs again.
    inside: Entered,
    /// Given back last.
    _right: Right,
}

impl Sched {
    /// Stops the world. From a goroutine outside the runtime, which may have to wait, or from any
    /// thread. None: the runtime is being dropped, and there is nothing to stop.
    pub(crate) fn stop_the_world(&self) -> Option<Stopped<'_>> {
        self.stop_with(Right::acquire())
    }

    /// As [`Sched::stop_the_world`], for a caller that has the right.
    fn stop_with(&self, right: Right) -> Option<Stopped<'_>> {
        let inside = enter();
        let mut core = self.core.lock();
        self.world.stopped.clear();
        self.gcwaiting.store(true, Relaxed);
        // A drop of the runtime may have stopped some already.
        let running = |p: &Pp| p.status() != PStatus::GcStop;
        core.stopwait = self.procs().filter(running).count() as u32;
        if let Some(m) = self.own_m()
            && let Some(p) = m.p.load(Relaxed)
        {
            p.set_status(PStatus::GcStop);
            core.stopwait -= 1;
        }
        while let Some(p) = self.get_idle_p(&mut core) {
            p.stop();
            core.stopwait -= 1;
        }
        while let Some((p, spinning)) = self.take_pending(&mut core) {
            self.end_spinning(spinning);
            p.stop();
            core.stopwait -= 1;
        }
        // FENCE: stop/2 — `gcwaiting` before the look at the Ps in marked calls; meets stop/1 in
        // `enter_syscall`.
        fence(SeqCst);
        for p in self.procs() {
            if p.status.retake(PStatus::GcStop) {
                self.calls.retaken.add_shared(1);
                self.room.call_is_out();
                core.stopwait -= 1;
            }
        }
        let must_wait = core.stopwait > 0;
        drop(core);
        if must_wait && !self.wait_until_stopped() {
            self.abandon_stop();
            return None;
        }
        Some(Stopped {
            sched: self,
            procs: self.nprocs(),
            inside,
            _right: right,
        })
    }

    /// Returns whether the world stopped. False: the runtime is being dropped.
    fn wait_until_stopped(&self) -> bool {
        // A leader from another runtime is a guest here: a drop of its own runtime need not wait
        // for it.
        let guest = current_m().filter(|m| !ptr::eq(m.sched(), self));
        if let Some(m) = guest {
            m.is_guest.store(true, Release);
        }
        let stopped = self.ask_until_stopped();
        if let Some(m) = guest {
            m.is_guest.store(false, Release);
        }
        stopped
    }

    fn ask_until_stopped(&self) -> bool {
        self.preempt_all();
        loop {
            let until = sys::monotonic_ns() + ASK_AGAIN_NS;
            if self.world.stopped.sleep_until(until) {
                return true;
            }
            if self.dead.load(Relaxed) {
                return false;
            }
            self.preempt_all();
            self.force_stop();
        }
    }

    /// The leader continues alone; no other goroutine of this runtime runs any more.
    fn abandon_stop(&self) {
        let _core = self.core.lock();
        self.gcwaiting.store(false, Relaxed);
        if let Some(m) = self.own_m()
            && let Some(p) = m.p.load(Relaxed)
        {
            p.set_status(PStatus::Running);
        }
    }

    /// Asks every running M to pass through the scheduler.
    fn preempt_all(&self) {
        for p in self.procs() {
            if let Some(m) = p.m.load(Relaxed) {
                m.ask(YIELD);
            }
        }
    }

    /// The M of this thread, if it is one of this runtime's.
    pub(crate) fn own_m(&self) -> Option<Mp> {
        current_m().filter(|m| ptr::eq(m.sched(), self))
    }

    /// Makes the first Ps of a runtime and reserves address space for the stacks that they cache.
    pub(crate) fn add_procs(&self, n: u32) -> io::Result<()> {
        self.make_procs(n);
        let _rt = enter();
        self.set_slack(n)?;
        let mut core = self.core.lock();
        self.nprocs.store(n, Relaxed);
        for p in self.procs() {
            let p = take(&mut core, p);
            self.put_idle_p(&mut core, p);
        }
        Ok(())
    }

    /// Reserves address space for the stacks that `n` Ps cache. The caller has the right to stop
    /// the world, or is alone: the reservation and the number of Ps change together.
    fn set_slack(&self, n: u32) -> io::Result<()> {
        let slack = n as usize * STACKS_MAX;
        Ok(self.arena.set_slack(self.stack_class, slack)?)
    }

    /// Makes all Ps below `n` exist.
    fn make_procs(&self, n: u32) {
        self.timers.grow_to(n);
        for id in 0..n {
            let slot = &self.allp[id as usize];
            if slot.get().is_none() {
                slot.set_if_none(Box::new(P::new(id))); // unless another thread was faster
            }
        }
    }

    /// Go's GOMAXPROCS: returns the old value; sets the new one unless it is 0.
    pub(crate) fn set_procs(&self, n: u32) -> io::Result<u32> {
        if n == 0 || n == self.nprocs() {
            return Ok(self.nprocs());
        }
        if n > self.config.max_threads {
            let limit = self.config.max_threads;
            let text = format!("max_threads is {limit}, and every processor needs a thread");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // Before the stop: this allocates, and so may wait for malloc's lock, held by a goroutine
        // without a P.
        self.make_procs(n);
        let right = Right::acquire();
        let old = self.nprocs();
        if n > old {
            let _rt = enter();
            self.set_slack(n)?;
        }
        if let Some(mut stopped) = self.stop_with(right) {
            stopped.procs = n;
        }
        // The leader was asked to yield like all others, and could not while it had the right.
        drop(enter());
        Ok(old)
    }
}

#[cfg(test)]
impl Stopped<'_> {
    /// Gives the right back and leaves the world stopped, for tests that broke it. On a plain
    /// thread.
    pub(crate) fn leave_broken(self) {
        std::mem::forget(self);
        RIGHT.store(false, Release);
    }
}

impl Drop for Stopped<'_> {
    /// Starts the world with `self.procs` Ps.
    fn drop(&mut self) {
        let sched = self.sched;
        for id in self.procs..sched.nprocs() {
            sched.move_timers(sched.p(id), sched.p(id % self.procs));
        }
        let mut core = sched.core.lock();
        // Until an M is woken: the leader may be no M, and nothing else shows its intention.
        core.starting += 1;
        // SAFETY: the leader is here and nowhere else: it uses no `Worker` until the world runs.
        let leader = unsafe { self.inside.holder_of(sched) };
        sched.resize(&mut core, leader, self.procs);
        let mut busy = PList::default();
        for p in sched.procs().filter(|p| p.status() == PStatus::GcStop) {
            let p = take(&mut core, p);
            p.hold().local().has_yet_to_decide.set(true);
            if p.runq.is_empty() {
                sched.put_idle_p(&mut core, p);
            } else {
                busy.put(p);
            }
        }
        sched.gcwaiting.store(false, Relaxed);
        drop(core);
        while let Some(p) = busy.take() {
            sched.start_m(sched.core.lock(), p, None);
        }
        // As for any P that goes idle (need/2): a submitter that found none meanwhile has set
        // `need`.
        crate::sched::model::spin::idle_p_added();
        let is_interrupted = sched.scavenge_now.load(Relaxed);
        if sched.spin.is_needed() || sched.has_work() || sched.needs_watcher() || is_interrupted {
            sched.wake_p();
        }
        sched.core.lock().starting -= 1;
    }
}

impl Sched {
    /// Go's `procresize`: the Ps beyond `n` return everything, and new ones join. The leader's M
    /// keeps a P.
    fn resize(&self, core: &mut Held<'_, Core>, mut leader: Option<&mut Inside>, n: u32) {
        let old = self.nprocs();
        let mut own = leader.as_mut().map(|leader| leader.release_p());
        for id in n..old {
            let own = own.take_if(|own| own.id == id);
            let p = own.unwrap_or_else(|| take(core, self.p(id)));
            self.retire_p(core, p.hold());
            p.into_p().set_status(PStatus::Dead);
        }
        self.nprocs.store(n, Relaxed);
        self.mirror_limit(core);
        if n < old && self.set_slack(n).is_err() {
            crate::base::fatal::throw("U7: a smaller promise of stacks was refused");
        }
        for id in old..n {
            self.p(id).set_status(PStatus::GcStop);
        }
        if let Some(leader) = leader {
            leader.acquire_p(own.unwrap_or_else(|| take(core, self.p(0))));
        }
    }

    /// Takes everything from a P that is removed. Its queue goes to the global one, in order,
    /// `next` first.
    pub(in crate::sched) fn retire_p(&self, core: &mut Held<'_, Core>, p: HeldP<'_>) {
        let mut queue = GQueue::new();
        let (owner, local) = (p.queue(), p.local());
        while let Some((g, _)) = owner.get() {
            queue.push_back(gp(g));
        }
        self.global_put_from_ring(core, &mut queue);
        self.blocks.give(std::iter::from_fn(|| local.gfree.pop()));
        local.stacks.empty(|stacks| self.arena.give_batch(stacks));
        let credits = local.credits.replace(0);
        self.arena.unreserve(self.stack_class, credits);
    }
}

/// Takes a P of a stopped world, or a P that is not in use yet. Its status is then `Idle`, so the
/// lock admits one caller that gets it.
fn take(_core: &mut Held<'_, Core>, p: Pp) -> IdleP {
    let is_free = matches!(p.status(), PStatus::GcStop | PStatus::Dead);
    if !is_free || p.m.load(Relaxed).is_some() {
        crate::base::fatal::throw("P4: the leader takes a P that is not stopped");
    }
    p.set_status(PStatus::Idle);
    // SAFETY: P4/P5. No M holds the P, and the P is on no list: its last owner left it to the
    // stopped world (`IdleP::stop`, a swap in `stop_with`), or it was retired, or is new. The
    // status has changed under the lock, so no other caller gets here with it.
    unsafe { IdleP::new(p) }
}
