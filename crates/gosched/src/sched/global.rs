//! The global run queue: unbounded, under the scheduler lock (R7).
//!
//! It takes what has no P of its own: goroutines that yield, overflow of the local rings, wake-ups and spawns from threads
//! outside, all first in first out. Goroutines that were made to leave because they had used up their slice are *spent*: they wait
//! behind the others, so that one who has just been woken does not wait for a queue of them; but every other time a P looks here for
//! fairness (L4) they come first.
//!
//! A batch get takes min(len/GOMAXPROCS + 1, half a ring), one to run and the rest for the local ring. Spent ones are
//! taken one at a time: in a ring they would again be ahead of others.
//!
//! Three rules make every wait here bounded, whatever comes later (`sched/README.md`, "Bounded waiting"):
//!
//! - A goroutine joins a queue at its tail. The one exception is a *senior* goroutine: a batch took it from here into a
//!   ring, and the ring overflows or its P goes. It returns to the head, where it came from.
//! - Goroutines that may hold a lock for which others block are *urgent*. They alternate with the fresh ones and do not
//!   go before them.
//! - Fresh and spent goroutines alternate in fair decisions.

use std::sync::atomic::Ordering::Relaxed;

use super::g::GQueue;
use super::lock::Held;
use super::p::gp;
use super::ptr::{Gp, Mp, Pp};
use super::runq::OVERFLOW;
use super::{Core, Sched};
use crate::shim::RING;

/// The queue, in three parts.
pub(crate) struct GlobalQueue {
    fresh: GQueue,
    /// May hold a lock for which others block; alternate with the fresh ones.
    urgent: GQueue,
    spent: GQueue,
    /// Whether the last one taken from `fresh` or `urgent` was an urgent one's turn.
    was_urgent: bool,
}

impl GlobalQueue {
    pub(crate) const fn new() -> GlobalQueue {
        GlobalQueue {
            fresh: GQueue::new(),
            urgent: GQueue::new(),
            spent: GQueue::new(),
            was_urgent: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.fresh.len() + self.urgent.len() + self.spent.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether anybody waits who has not used up its slice.
    pub(crate) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty() || !self.urgent.is_empty()
    }

    /// The members, for checks; the caller holds the lock.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Gp> + '_ {
        let (urgent, fresh, spent) = (&self.urgent, &self.fresh, &self.spent);
        urgent.iter().chain(fresh.iter()).chain(spent.iter())
    }

    fn pop_front(&mut self) -> Option<Gp> {
        self.pop_unspent().or_else(|| self.spent.pop_front())
    }

    /// An urgent goroutine and a fresh one, in turns.
    fn pop_unspent(&mut self) -> Option<Gp> {
        self.was_urgent = !self.was_urgent;
        match self.was_urgent {
            true => self.urgent.pop_front().or_else(|| self.fresh.pop_front()),
            false => self.fresh.pop_front().or_else(|| self.urgent.pop_front()),
        }
    }

    /// The next one when no more threads may be given to bound goroutines: one that has been running and was woken, else one
    /// that has its thread. Nobody begins.
    fn pop_at_limit(&mut self) -> Option<Gp> {
        take_first(&mut self.urgent, |g| g.has_started())
            .or_else(|| take_first(&mut self.fresh, |g| g.has_started()))
            .or_else(|| self.pop_bound())
            .or_else(|| self.pop_front())
    }

    /// Whether anybody waits who has run before and left by itself.
    pub(crate) fn has_well_behaved(&self) -> bool {
        let (urgent, fresh) = (&self.urgent, &self.fresh);
        urgent
            .iter()
            .chain(fresh.iter())
            .any(|g| g.has_started() && g.owner().is_none())
    }

    /// The first of the spent that waits on its thread.
    fn pop_bound(&mut self) -> Option<Gp> {
        take_first(&mut self.spent, |g| g.owner().is_some())
    }

    /// Somebody waits for a lock, perhaps for one that a spent goroutine holds: the spent ones become urgent.
    pub(crate) fn hurry_spent(&mut self) {
        self.urgent.append(&mut self.spent);
    }
}

/// Takes out the first that `wanted` wants; the others keep their order.
fn take_first(queue: &mut GQueue, wanted: impl Fn(Gp) -> bool) -> Option<Gp> {
    let mut before = GQueue::new();
    let found = loop {
        match queue.pop_front() {
            Some(g) if !wanted(g) => before.push_back(g),
            found => break found,
        }
    };
    before.append(queue);
    *queue = before;
    found
}

fn take_owned(queue: &mut GQueue) -> Option<(Gp, Mp)> {
    let g = take_first(queue, |g| g.owner().is_some())?;
    Some((g, g.owner()?))
}

impl Sched {
    /// Whether the global queue looked empty; without the lock.
    #[inline]
    pub(crate) fn runq_is_empty(&self) -> bool {
        self.runq_len.load(Relaxed) == 0
    }

    #[inline]
    fn mirror_len(&self, core: &Core) {
        // ORDER: Relaxed; readers without the lock re-check under it, or stand behind wake/1 and wake/2:
        // the lock's release (a swap) follows this store.
        self.runq_len.store(core.runq.len(), Relaxed);
    }

    /// Puts one goroutine at the tail.
    #[inline]
    pub(crate) fn global_put(&self, core: &mut Held<'_, Core>, g: Gp) {
        core.runq.fresh.push_back(g);
        self.mirror_len(core);
    }

    /// Puts one that has used up its slice behind all others.
    pub(crate) fn global_put_spent(&self, core: &mut Held<'_, Core>, g: Gp) {
        core.runq.spent.push_back(g);
        self.mirror_len(core);
    }

    /// Puts a batch at the tail.
    pub(crate) fn global_put_batch(&self, core: &mut Held<'_, Core>, batch: &mut GQueue) {
        core.runq.fresh.append(batch);
        self.mirror_len(core);
    }

    /// Puts one that may hold a lock for which others block.
    pub(crate) fn global_put_urgent(&self, core: &mut Held<'_, Core>, g: Gp) {
        core.runq.urgent.push_back(g);
        self.mirror_len(core);
    }

    /// Puts what leaves a ring: senior goroutines back to the head, the others at the tail, each in their order.
    pub(crate) fn global_put_from_ring(&self, core: &mut Held<'_, Core>, batch: &mut GQueue) {
        let mut senior = GQueue::new();
        while let Some(g) = batch.pop_front() {
            match g.is_senior.replace(false) {
                true => senior.push_back(g),
                false => core.runq.fresh.push_back(g),
            }
        }
        senior.append(&mut core.runq.fresh);
        core.runq.fresh = senior;
        self.mirror_len(core);
    }

    /// Moves p's queue to the tail of the global one; p is in the caller's hands.
    pub(crate) fn global_take_over(&self, core: &mut Held<'_, Core>, p: Pp) {
        // SAFETY: R2, by the caller's word.
        let queue = unsafe { p.queue() };
        while let Some((g, _)) = queue.get() {
            core.runq.fresh.push_back(gp(g));
        }
        self.mirror_len(core);
    }

    /// Takes exactly one.
    pub(crate) fn global_get(&self, core: &mut Held<'_, Core>) -> Option<Gp> {
        let g = if self.is_at_limit() {
            core.runq.pop_at_limit()
        } else {
            core.runq.pop_front()
        };
        self.mirror_len(core);
        g
    }

    /// Takes exactly one, a spent one if there is.
    pub(crate) fn global_get_spent(&self, core: &mut Held<'_, Core>) -> Option<Gp> {
        let spent = core.runq.spent.pop_front();
        let g = spent.or_else(|| core.runq.pop_unspent());
        self.mirror_len(core);
        g
    }

    /// Takes the first that waits on its thread, if nothing comes before it; with that thread.
    pub(crate) fn global_get_owned(&self, core: &mut Held<'_, Core>) -> Option<(Gp, Mp)> {
        if core.runq.has_fresh() {
            return None;
        }
        let owner = core.runq.iter().next()?.owner()?;
        let g = core.runq.pop_front()?;
        self.mirror_len(core);
        Some((g, owner))
    }

    /// Takes the first of the spent that waits on its thread; with that thread.
    pub(crate) fn global_get_bound(&self, core: &mut Held<'_, Core>) -> Option<(Gp, Mp)> {
        let g = core.runq.pop_bound()?;
        self.mirror_len(core);
        Some((g, g.owner()?))
    }

    /// Takes the first, wherever it is, that has a thread of its own; with that thread.
    pub(crate) fn global_take_owned(&self, core: &mut Held<'_, Core>) -> Option<(Gp, Mp)> {
        let runq = &mut core.runq;
        let found = take_owned(&mut runq.urgent)
            .or_else(|| take_owned(&mut runq.fresh))
            .or_else(|| take_owned(&mut runq.spent));
        self.mirror_len(core);
        found
    }

    /// Takes a batch: returns the first, puts the rest into p's ring, which is empty enough for them.
    pub(crate) fn global_get_batch(&self, core: &mut Held<'_, Core>, p: Pp) -> Option<Gp> {
        // SAFETY: R2, the caller's M holds p.
        let queue = unsafe { p.queue() };
        let share = core.runq.len() / self.nprocs() as usize + 1;
        let n = share.min(RING / 2).min(queue.room() as usize + 1);
        let first = self.global_get(core);
        for _ in 1..n {
            let Some(g) = core.runq.pop_unspent() else {
                break;
            };
            g.is_senior.set(true);
            if queue.put(g.non_null()).is_err() {
                super::fatal::throw("R1: no room for a batch that was measured");
            }
        }
        self.mirror_len(core);
        first
    }

    /// Puts `g` at the tail of p's ring, or moves half of a full ring to the global queue with it (R6).
    #[inline]
    pub(crate) fn runq_put(&self, p: Pp, g: Gp) {
        // SAFETY: R2, the caller's M holds p.
        if unsafe { p.queue() }.put(g.non_null()).is_err() {
            self.runq_put_slow(p, g);
        }
    }

    #[cold]
    #[inline(never)]
    fn runq_put_slow(&self, p: Pp, g: Gp) {
        // SAFETY: R2, as above.
        let queue = unsafe { p.queue() };
        let mut half = [std::ptr::null_mut(); OVERFLOW];
        let mut batch = GQueue::new();
        if let Some(n) = queue.take_half(&mut half) {
            for raw in &half[..n] {
                match std::ptr::NonNull::new(*raw) {
                    Some(raw) => batch.push_back(gp(raw)),
                    None => super::fatal::throw("R4: an unpublished slot inside the ring"),
                }
            }
            batch.push_back(g);
            p.counters.overflows.add(1);
            self.global_put_from_ring(&mut self.core.lock(), &mut batch);
        } else if queue.put(g.non_null()).is_err() {
            // Only the owner adds; a refusal to take half means that a thief has made room.
            super::fatal::throw("R1: a ring is full after a thief took from it");
        }
    }

    /// Puts `g` where it runs next on p; whom it displaces goes to the ring's tail (N, RD).
    #[inline]
    pub(crate) fn runq_put_next(&self, p: Pp, g: Gp) {
        // SAFETY: R2, the caller's M holds p.
        if let Some(old) = unsafe { p.queue() }.put_next(g.non_null()) {
            self.runq_put(p, gp(old));
            super::spin::submitted();
        } else {
            super::spin::submitted_by_rmw();
        }
    }

    /// Puts a batch into p's ring as far as it fits; the rest stays with the caller.
    pub(crate) fn runq_put_batch(&self, p: Pp, batch: &mut GQueue) {
        // SAFETY: R2, the caller's M holds p.
        let queue = unsafe { p.queue() };
        for _ in 0..queue.room() {
            let Some(g) = batch.pop_front() else { break };
            if queue.put(g.non_null()).is_err() {
                super::fatal::throw("R1: no room where room was measured");
            }
        }
    }
}
