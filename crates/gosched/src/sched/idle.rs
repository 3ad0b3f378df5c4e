//! Idle Ps and Ms, and how they meet work: `wake_p`, `start_m`, `stop_m`, `hand_off_p` (WK, M1, P2,
//! S3).
//!
//! A P without work is on the idle list. An M without a P is on the list of idle Ms, asleep on its
//! note. Its waker puts the P that it is to run into `nextp`. A P that must run and finds no idle M
//! is pending. The creator is asked for a thread, but any M that comes back first takes the P (D9).
//! So no P depends on a thread being made.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::base::lock::Held;
use crate::sched::model::g::GQueue;
use crate::sched::model::p::PStatus;
use crate::sched::model::ptr::{Mp, Pp};
use crate::sched::model::spin::{self, Spinning};
use crate::sched::worker::{G0, IdleP, Worker};
use crate::sched::{Core, Sched};
use crate::sys;

/// Idle Ms kept beyond one per P. Further ones end after a while.
const RESERVE_MS: u32 = 4;
/// How long a surplus M sleeps before it ends.
const SURPLUS_NS: u64 = 5_000_000_000;

impl Sched {
    /// Wakes one more M to search for work, if a P is idle and no M searches already (WK). The
    /// caller has published its work and passed its barrier (wake/1).
    #[inline]
    pub(crate) fn wake_p(&self) {
        if self.spin.has_no_spinner()
            && self.has_idle_p_or_tells_sysmon()
            && let Some(spinning) = self.spin.claim_wake()
        {
            self.wake_p_slow(spinning);
        }
    }

    /// Whether a P is idle. If none is, sets `need`, so that the next P to go idle is used.
    #[inline]
    fn has_idle_p_or_tells_sysmon(&self) -> bool {
        let is_idle = self.spin.has_idle_p_or_sets_need();
        if !is_idle {
            self.sysmon.work_waits();
        }
        is_idle
    }

    /// A goroutine was just readied. If no P is idle and no M searches, presses: sysmon then
    /// preempts the goroutine that has run longest.
    #[inline]
    pub(crate) fn press_if_busy(&self) {
        if self.spin.npidle.load(Relaxed) == 0 && self.spin.has_no_spinner() {
            self.sysmon.press();
        }
    }

    #[inline(never)]
    fn wake_p_slow(&self, spinning: Spinning) {
        self.start_claimed(self.core.lock(), spinning);
    }

    /// The winner of `claim_wake` starts a spinning M on an idle P. If there is none, it sets
    /// `need`.
    pub(crate) fn start_claimed(&self, mut core: Held<'_, Core>, spinning: Spinning) {
        match self.get_idle_p(&mut core) {
            Some(p) => {
                self.outside.wakes.add_shared(1);
                self.start_m(core, p, Some(spinning));
            }
            None => {
                // Under the lock, for two reasons. Other submitters rely on the claim while it is
                // counted. Once the lock is free, the runtime may be freed: a thread outside does
                // not keep it alive.
                self.spin.set_needed();
                self.spin.end(spinning);
                self.sysmon.press();
            }
        }
    }

    /// Gives `p` to an idle M, or makes it pending. With `spinning` the M begins by searching for
    /// work.
    pub(crate) fn start_m(&self, mut core: Held<'_, Core>, p: IdleP, spinning: Option<Spinning>) {
        debug_assert!(spinning.is_none() || p.runq.is_empty(), "M3");
        core.activity += 1;
        if self.dead.load(Relaxed) {
            self.end_spinning(spinning);
            return self.stop_p(&mut core, p);
        }
        if let Some(m) = self.get_idle_m(&mut core) {
            self.ask_for_threads(&core);
            m.spinning.put(spinning);
            m.give_nextp(p);
            // A thread outside may not use the runtime once the lock is free; Ms are never freed.
            drop(core);
            m.park.wakeup();
            return;
        }
        let Some(p) = self.give_to_owned(&mut core, p) else {
            return self.end_spinning(spinning); // that thread has a goroutine and does not search
        };
        p.spinning.put(spinning);
        core.pending.put(p);
        core.npending += 1;
        if self.poller.is_watching() {
            self.poller.wake(); // that M takes the P; a new thread may be slow, or refused
        }
        self.ask_for_threads(&core);
        if !self.is_out_of_threads(&core) {
            return;
        }
        if self.ms_in_calls() > 0 {
            return self.wait_for_calls(); // one of them returns, or sysmon ends the process
        }
        drop(core);
        crate::base::fatal::thread_exhaustion(self.config.max_threads);
    }

    /// Whether no M can take a pending P unless one in a marked call returns.
    pub(crate) fn is_out_of_threads(&self, core: &Core) -> bool {
        core.mcount >= self.config.max_threads
            && !self.poller.is_watching()
            && !self.has_returning_m(core)
    }

    /// Whether an M without a P is awake or being born: it passes `stop_m` and takes a pending P.
    /// An M in a marked call does not count, because it may return late or never. An M that lost
    /// its P in an unmarked call does count.
    fn has_returning_m(&self, core: &Core) -> bool {
        let bound = self.procs().filter(|p| p.m.load(Relaxed).is_some()).count() as i32;
        core.awake() - self.ms_in_calls() - bound >= core.npending as i32
    }

    /// Takes a pending P. The M that takes it inherits its `Spinning`.
    pub(crate) fn take_pending(
        &self,
        core: &mut Held<'_, Core>,
    ) -> Option<(IdleP, Option<Spinning>)> {
        let p = core.pending.take()?;
        core.npending -= 1;
        let spinning = p.spinning.take();
        Some((p, spinning))
    }

    /// Puts the M to sleep until it is given a P. False: it must end. Without a P, not spinning.
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
        // Timed out, but a waker may have taken it off the list already.
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

    /// The woken M takes the P that its waker left in `nextp`. False: it was woken to end.
    fn start_woken(&self, g0: &mut G0) -> bool {
        let m = g0.m();
        m.blocked.store(false, Relaxed);
        // Clear it now. If the goroutine locks this M, the M sleeps on the note next in
        // `stop_locked_m`, which does not clear it first.
        m.park.clear();
        match m.take_nextp() {
            Some(p) => {
                g0.acquire_p(p);
                true
            }
            None => false,
        }
    }

    /// Passes on a P that its M cannot use (a locked or ending thread, a marked call). It goes to
    /// an M if there is or may be work for it, otherwise to the idle list.
    pub(crate) fn hand_off_p(&self, p: IdleP) {
        self.hand_off(self.core.lock(), p);
    }

    /// As [`Sched::hand_off_p`], with the lock held.
    pub(crate) fn hand_off(&self, mut core: Held<'_, Core>, p: IdleP) {
        self.outside.handoffs.add_shared(1);
        if self.is_stopping() {
            self.stop_p(&mut core, p);
            return;
        }
        if !p.runq.is_empty() || !core.runq.is_empty() {
            self.start_m(core, p, None);
            return;
        }
        let no_m_searches = self.spin.count() == 0 && core.pidle.is_empty();
        if (no_m_searches || self.needs_watcher())
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

    /// Whether timers are set or the network is waited for, and no M watches them.
    pub(crate) fn needs_watcher(&self) -> bool {
        (self.has_timers() || self.has_net_waiters()) && !self.poller.is_watching()
    }

    /// Queues runnable goroutines and wakes Ms (Go's `injectglist`). Up to one per idle P goes to
    /// the global queue, the rest to the worker's ring. Without a worker, or if the ring is full,
    /// they go to the global queue, too.
    pub(crate) fn inject_list(&self, w: Option<Worker<'_>>, list: &mut GQueue) {
        let mut for_others = GQueue::new();
        let idle = self.spin.npidle.load(Relaxed) as usize;
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

    /// A spinning M has found work: it is no longer counted, and recruits a successor if there is
    /// more. A submitter that came while it was counted relied on it. A later submitter wakes an M
    /// itself.
    pub(crate) fn reset_spinning(&self, spinning: Spinning) {
        self.spin.end(spinning);
        if self.has_work() {
            self.wake_p();
        }
    }

    /// Whether any queue holds a goroutine. Behind wake/2 it misses none: see `procs_in_use`.
    pub(crate) fn has_work(&self) -> bool {
        !self.runq_is_empty() || self.procs_in_use().any(|p| !p.runq.is_empty())
    }

    /// The Ps that are not on the idle list. It loads one word for 64 Ps, and no memory of idle
    /// ones.
    ///
    /// An idle P has an empty queue (P2), and its bit is cleared before an M holds it. So a thread
    /// behind wake/2 that must see a goroutine also sees the bit of its P cleared.
    pub(crate) fn procs_in_use(&self) -> impl Iterator<Item = Pp> + '_ {
        let n = self.nprocs();
        (0..n.div_ceil(64)).flat_map(move |word| {
            let exist = u64::MAX >> (64 - (n - word * 64).min(64));
            // ORDER: Relaxed; behind wake/2 it sees the `fetch_and` in `get_idle_p`, which precedes
            // the submitter's wake/1.
            let mut bits = !self.idle_mask[word as usize].load(Relaxed) & exist;
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (bit < 64).then(|| self.p(word * 64 + bit))
            })
        })
    }

    pub(crate) fn begin_spinning(&self, m: Mp) {
        m.spinning.put(Some(self.spin.begin()));
    }

    /// Ends the count of an M that does not search after all.
    pub(crate) fn end_spinning(&self, spinning: Option<Spinning>) {
        if let Some(spinning) = spinning {
            self.spin.end(spinning);
        }
    }

    // The lists, all under the scheduler lock.

    pub(crate) fn put_idle_p(&self, core: &mut Held<'_, Core>, p: IdleP) {
        debug_assert!(p.runq.is_empty(), "P2: an idle P has no work");
        debug_assert_eq!(p.status(), PStatus::Idle);
        let id = p.id;
        core.pidle.put(p);
        self.idle_mask[id as usize / 64].fetch_or(1 << (id % 64), Relaxed);
        self.spin.npidle.fetch_add(1, SeqCst);
    }

    pub(crate) fn get_idle_p(&self, core: &mut Held<'_, Core>) -> Option<IdleP> {
        let p = core.pidle.take()?;
        core.activity += 1;
        self.idle_mask[p.id as usize / 64].fetch_and(!(1 << (p.id % 64)), Relaxed);
        self.spin.npidle.fetch_sub(1, SeqCst);
        Some(p)
    }

    /// An idle P: `wanted` if it is idle, otherwise any.
    pub(crate) fn get_idle_p_like(
        &self,
        core: &mut Held<'_, Core>,
        wanted: Option<Pp>,
    ) -> Option<IdleP> {
        if let Some(wanted) = wanted.filter(|p| self.is_idle(p.id)) {
            core.pidle.raise(wanted);
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

    /// The M gives its P to the stopping world and sleeps until it gets one again. False: it must
    /// end.
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

    /// Stops a P that its M gave up, because the world stops or the runtime ends.
    pub(crate) fn stop_p(&self, core: &mut Held<'_, Core>, p: IdleP) {
        p.stop();
        if self.gcwaiting.load(Relaxed) {
            core.stopwait -= 1;
            if core.stopwait == 0 {
                self.world.stopped.wakeup();
            }
        }
    }
}

impl Core {
    /// Ms that are not asleep. A new M counts as awake until it first sleeps; the watcher always
    /// does.
    pub(crate) fn awake(&self) -> i32 {
        self.mcount as i32 - self.nmidle as i32 - self.nmidlelocked
    }
}
