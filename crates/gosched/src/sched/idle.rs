//! Idle Ps and Ms, and how they are brought together with work: `wake_p`, `start_m`, `stop_m`,
//! `hand_off_p` (WK, M1, P2, S3).
//!
//! A P without work is on the idle list. An M without a P is on the idle list too, asleep on its note,
//! and whoever wakes it has put the P it is to run into `nextp`. A P that must run and finds no idle M
//! waits in `pending`; the creator is asked for a thread, but any M that comes back first takes the P (D9),
//! so no P depends on a thread being made.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::base::lock::Held;
use crate::sched::model::g::GQueue;
use crate::sched::model::p::PStatus;
use crate::sched::model::ptr::{Mp, Pp};
use crate::sched::model::spin::{self, Spinning};
use crate::sched::worker::{G0, Worker};
use crate::sched::{Core, Sched};
use crate::sys;

/// Idle Ms kept beyond one per P; the others end after a while.
const RESERVE_MS: u32 = 4;
/// How long a surplus M waits before it ends.
const SURPLUS_NS: u64 = 5_000_000_000;

impl Sched {
    /// Wakes one more M to look for work, if there is an idle P and nobody looks already (WK). The caller
    /// has made work visible and passed its barrier (wake/1).
    #[inline]
    pub(crate) fn wake_p(&self) {
        if self.spin.is_nobody_spinning()
            && self.has_idle_p_or_says_so()
            && let Some(spinning) = self.spin.claim_wake()
        {
            self.wake_p_slow(spinning);
        }
    }

    /// Whether there is an idle P; if not, the next P to go idle will know that it is needed.
    #[inline]
    fn has_idle_p_or_says_so(&self) -> bool {
        let is_idle = self.spin.has_idle_p_or_sets_need(&self.npidle);
        if !is_idle {
            self.sysmon.work_waits();
        }
        is_idle
    }

    /// Somebody was just woken: if no P is idle and nobody looks, one that has been at work for a while is to make room.
    #[inline]
    pub(crate) fn press_if_busy(&self) {
        if self.npidle.load(Relaxed) == 0 && self.spin.is_nobody_spinning() {
            self.sysmon.press();
        }
    }

    #[inline(never)]
    fn wake_p_slow(&self, spinning: Spinning) {
        self.start_claimed(self.core.lock(), spinning);
    }

    /// The winner of `claim_wake` starts a spinning M on an idle P, or finds none and says so.
    pub(crate) fn start_claimed(&self, mut core: Held<'_, Core>, spinning: Spinning) {
        match self.get_idle_p(&mut core) {
            Some(p) => {
                self.outside.wakes.add_shared(1);
                self.start_m(core, p, Some(spinning));
            }
            None => {
                // Under the lock: while the claim is counted others rely on it, and once the lock is free the runtime
                // itself may be (a thread outside has no claim on it).
                self.spin.set_needed();
                self.spin.end(spinning);
                self.sysmon.press();
            }
        }
    }

    /// Gives p to an idle M, or queues it for the next M that comes back or is born. With `spinning`
    /// the M begins to look for work.
    pub(crate) fn start_m(&self, mut core: Held<'_, Core>, p: Pp, spinning: Option<Spinning>) {
        debug_assert!(spinning.is_none() || p.runq.is_empty(), "M3");
        core.activity += 1;
        if self.dead.load(Relaxed) {
            self.end_spinning(spinning);
            return self.stop_p(&mut core, p);
        }
        if let Some(m) = self.get_idle_m(&mut core) {
            self.ask_for_threads(&core);
            m.spinning.put(spinning);
            m.nextp.store(Some(p), Relaxed);
            // A thread outside has no claim on the runtime once the lock is free; Ms are never freed.
            drop(core);
            m.park.wakeup();
            return;
        }
        if self.give_to_owned(&mut core, p) {
            return self.end_spinning(spinning); // that thread has work, and looks for none
        }
        p.spinning.put(spinning);
        p.link.set(core.pending);
        core.pending = Some(p);
        core.npending += 1;
        if self.poller.is_watching() {
            self.poller.wake(); // that M comes back and takes the P; a new thread may be slow, or refused
        }
        self.ask_for_threads(&core);
        if !self.is_out_of_threads(&core) {
            return;
        }
        if self.ms_in_calls() > 0 {
            return self.wait_for_calls(); // one of them comes back, or sysmon loses patience
        }
        drop(core);
        crate::base::fatal::thread_exhaustion(self.config.max_threads);
    }

    /// Whether no M can take a pending P unless one in a marked call returns.
    pub(crate) fn is_out_of_threads(&self, core: &Core) -> bool {
        core.mcount >= self.config.max_threads
            && !self.poller.is_watching()
            && !self.somebody_comes_back(core)
    }

    /// Whether an M without a P is awake, or being born: it passes `stop_m` and takes a pending P. One in a marked call is not:
    /// nobody knows when it comes back. (Nor of one whose P was taken; but that was done without its asking.)
    fn somebody_comes_back(&self, core: &Core) -> bool {
        let bound = self.procs().filter(|p| p.m.load(Relaxed).is_some()).count() as i32;
        core.awake() - self.ms_in_calls() - bound >= core.npending as i32
    }

    /// Takes a P that waits for a thread; the M that takes it inherits whether it spins.
    pub(crate) fn take_pending(&self, core: &mut Held<'_, Core>) -> Option<(Pp, Option<Spinning>)> {
        let p = core.pending?;
        core.pending = p.link.take();
        core.npending -= 1;
        Some((p, p.spinning.take()))
    }

    /// Puts the M to sleep until it is given a P; false: it must end. Without a P, not spinning.
    pub(crate) fn stop_m(&self, g0: &mut G0) -> bool {
        let m = g0.m();
        debug_assert!(m.p.load(Relaxed).is_none() && !m.is_spinning(), "M1");
        let mut core = self.core.lock();
        if self.dead.load(Relaxed) {
            return false;
        }
        if let Some((p, spinning)) = self.take_pending(&mut core) {
            drop(core);
            m.spinning.put(spinning);
            g0.acquire_p(p);
            return true;
        }
        self.put_idle_m(&mut core, m);
        let is_surplus = core.nmidle > self.nprocs() + RESERVE_MS;
        drop(core);
        if !is_surplus {
            m.park.sleep();
            return self.start_woken(g0);
        }
        if m.park.sleep_until(sys::monotonic_ns() + SURPLUS_NS) {
            return self.start_woken(g0);
        }
        // Timed out; a waker may be on its way all the same.
        let mut core = self.core.lock();
        if m.is_idle.get() {
            self.remove_idle_m(&mut core, m);
            m.blocked.store(false, Relaxed);
            return false;
        }
        drop(core);
        m.park.sleep();
        self.start_woken(g0)
    }

    /// The woken M takes the P that its waker left for it; false: it was woken to end.
    fn start_woken(&self, g0: &mut G0) -> bool {
        let m = g0.m();
        m.blocked.store(false, Relaxed);
        // Clear from now on: should its goroutine lock it, it sleeps on the note next as a locked M, which
        // does not clear it first (`stop_locked_m`).
        m.park.clear();
        match m.nextp.swap(None, Acquire) {
            Some(p) => {
                g0.acquire_p(p);
                true
            }
            None => false,
        }
    }

    /// Passes on a P that its M cannot use (a locked or ending thread, a blocking call): to an M if
    /// there is, or may be, work for it, else to the idle list.
    pub(crate) fn hand_off_p(&self, p: Pp) {
        self.hand_off(self.core.lock(), p);
    }

    /// As above, with the lock in hand.
    pub(crate) fn hand_off(&self, mut core: Held<'_, Core>, p: Pp) {
        self.outside.handoffs.add_shared(1);
        if self.is_stopping() {
            self.stop_p(&mut core, p);
            return;
        }
        if !p.runq.is_empty() || !core.runq.is_empty() {
            self.start_m(core, p, None);
            return;
        }
        let nobody_looks = self.spin.count() == 0 && core.pidle.is_none();
        if (nobody_looks || self.nobody_watches())
            && let Some(spinning) = self.spin.claim_wake()
        {
            self.start_m(core, p, Some(spinning));
            return;
        }
        self.put_idle_p(&mut core, p);
        drop(core);
        spin::idle_p_added();
        if self.spin.is_needed() || !self.runq_is_empty() {
            self.wake_p();
        }
    }

    /// Whether timers are set or the network is waited for, and no M sleeps until something comes of it.
    pub(crate) fn nobody_watches(&self) -> bool {
        (self.has_timers() || self.has_net_waiters()) && !self.poller.is_watching()
    }

    /// Queues runnable goroutines: up to one per idle P goes where another M finds it first, the rest to the worker's
    /// ring as far as it fits; then wakes (Go's `injectglist`).
    pub(crate) fn inject_list(&self, w: Option<Worker<'_>>, list: &mut GQueue) {
        let mut for_others = GQueue::new();
        let idle = self.npidle.load(Relaxed) as usize;
        let share = if w.is_some() { idle } else { usize::MAX };
        while for_others.len() < share
            && let Some(g) = list.pop_front()
        {
            for_others.push_back(g);
        }
        if let Some(w) = w {
            self.runq_put_batch(w, list);
            spin::submitted();
        }
        for_others.append(list);
        let wanted = for_others.len();
        if wanted > 0 {
            self.global_put_batch(&mut self.core.lock(), &mut for_others);
        }
        for _ in 0..wanted.min(idle) {
            let mut core = self.core.lock();
            match self.get_idle_p(&mut core) {
                Some(idle) if !core.runq.is_empty() => self.start_m(core, idle, None),
                Some(idle) => {
                    self.put_idle_p(&mut core, idle);
                    break;
                }
                None => break,
            }
        }
        spin::submitted_by_rmw();
        self.wake_p();
        self.press_if_busy();
    }

    /// A spinning M has found work: it stops counting as one, and recruits a successor if there is more. Who submitted
    /// while it was counted relied on it; who submits from now on wakes somebody itself.
    pub(crate) fn reset_spinning(&self, spinning: Spinning) {
        self.spin.end(spinning);
        if self.has_work() {
            self.wake_p();
        }
    }

    /// Whether any queue holds a goroutine; behind wake/2 it misses none.
    pub(crate) fn has_work(&self) -> bool {
        !self.runq_is_empty() || self.procs().any(|p| !p.runq.is_empty())
    }

    pub(crate) fn begin_spinning(&self, m: Mp) {
        m.spinning.put(Some(self.spin.begin()));
    }

    /// The M that was to look for work does not.
    pub(crate) fn end_spinning(&self, spinning: Option<Spinning>) {
        if let Some(spinning) = spinning {
            self.spin.end(spinning);
        }
    }

    // The lists. All under the scheduler lock.

    pub(crate) fn put_idle_p(&self, core: &mut Held<'_, Core>, p: Pp) {
        debug_assert!(p.runq.is_empty(), "P2: an idle P has no work");
        debug_assert_eq!(p.status(), PStatus::Idle);
        p.link.set(core.pidle);
        core.pidle = Some(p);
        self.idle_mask[p.id as usize / 64].fetch_or(1 << (p.id % 64), Relaxed);
        self.npidle.fetch_add(1, SeqCst);
    }

    pub(crate) fn get_idle_p(&self, core: &mut Held<'_, Core>) -> Option<Pp> {
        let p = core.pidle?;
        core.pidle = p.link.take();
        core.activity += 1;
        self.idle_mask[p.id as usize / 64].fetch_and(!(1 << (p.id % 64)), Relaxed);
        self.npidle.fetch_sub(1, SeqCst);
        Some(p)
    }

    /// An idle P, `wanted` if it is among them.
    pub(crate) fn get_idle_p_like(
        &self,
        core: &mut Held<'_, Core>,
        wanted: Option<Pp>,
    ) -> Option<Pp> {
        if let Some(wanted) = wanted.filter(|p| self.is_idle(*p)) {
            let before = std::iter::successors(core.pidle, |p| p.link.get())
                .find(|p| p.link.get() == Some(wanted));
            if let Some(before) = before {
                before.link.set(wanted.link.replace(core.pidle));
                core.pidle = Some(wanted);
            }
        }
        self.get_idle_p(core)
    }

    fn put_idle_m(&self, core: &mut Held<'_, Core>, m: Mp) {
        m.park.clear();
        m.nextp.store(None, Relaxed);
        m.blocked.store(true, Relaxed);
        m.is_idle.set(true);
        m.idle_prev.set(None);
        m.idle_next.set(core.midle);
        if let Some(next) = core.midle {
            next.idle_prev.set(Some(m));
        }
        core.midle = Some(m);
        core.nmidle += 1;
        if core.nparked > 0 || self.room.has_calls_out() {
            self.mirror_limit(core);
        }
    }

    pub(crate) fn get_idle_m(&self, core: &mut Held<'_, Core>) -> Option<Mp> {
        let m = core.midle?;
        self.remove_idle_m(core, m);
        Some(m)
    }

    fn remove_idle_m(&self, core: &mut Held<'_, Core>, m: Mp) {
        let (prev, next) = (m.idle_prev.take(), m.idle_next.take());
        match prev {
            Some(prev) => prev.idle_next.set(next),
            None => core.midle = next,
        }
        if let Some(next) = next {
            next.idle_prev.set(prev);
        }
        m.is_idle.set(false);
        core.nmidle -= 1;
        core.activity += 1;
        if core.nparked > 0 || self.room.has_calls_out() {
            self.mirror_limit(core);
        }
    }

    /// The M gives its P to the stopping world and sleeps until it is given one again; false: it must end.
    pub(crate) fn stop_for_world(&self, g0: &mut G0) -> bool {
        let m = g0.m();
        self.end_spinning(m.spinning.take());
        let mut core = self.core.lock();
        if !self.is_stopping() {
            return true;
        }
        let p = g0.relinquish_p();
        self.stop_p(&mut core, p);
        drop(core);
        self.stop_m(g0)
    }

    /// A P whose M has let go of it while the world stops, or the runtime ends.
    pub(crate) fn stop_p(&self, core: &mut Held<'_, Core>, p: Pp) {
        p.set_status(PStatus::GcStop);
        if self.gcwaiting.load(Relaxed) {
            core.stopwait -= 1;
            if core.stopwait == 0 {
                self.world.stopped.wakeup();
            }
        }
    }
}

impl Core {
    /// Ms that are not asleep. A newborn counts as awake until it first sleeps; so does the one that watches the timers.
    pub(crate) fn awake(&self) -> i32 {
        self.mcount as i32 - self.nmidle as i32 - self.nmidlelocked
    }
}
