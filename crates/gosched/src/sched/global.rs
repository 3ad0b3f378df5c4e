//! The global run queue: unbounded, under the scheduler lock (R7).
//!
//! It takes goroutines that belong to no P: those that yield, overflow of the rings, wake-ups and
//! spawns from threads outside. Goroutines that had to leave at the end of their slice are *spent*.
//! They wait behind the *fresh* ones, so that a goroutine that was just woken does not wait for a
//! slice of each.
//!
//! A batch takes min(len/GOMAXPROCS + 1, half a ring): one to run, the rest for the ring. Spent
//! goroutines are taken one at a time: in a ring they would be ahead of others again.
//!
//! Three rules make every wait here bounded, whatever comes later (`sched/README.md`, "Bounded
//! waiting"):
//!
//! - A goroutine joins a queue at its tail. The one exception is a *senior* goroutine: a batch took
//!   it from here into a ring, and the ring overflows or its P is removed. It returns to the head
//!   of its order.
//! - Spent goroutines become *urgent* if one of them may hold a lock for which others block. They
//!   go before the fresh ones, but for 122 turns at most while a fresh one waits.
//! - Fresh and spent goroutines alternate in 61st decisions (L4).

use std::sync::atomic::Ordering::Relaxed;

use super::{Core, Sched};
use crate::base::lock::Held;
use crate::sched::model::g::{G, GQueue, Senior};
use crate::sched::model::p::gp;
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::model::runq::OVERFLOW;
use crate::sched::worker::Worker;
use crate::shim::RING;

impl Sched {
    /// Whether the global queue was empty; without the lock.
    #[inline]
    pub(crate) fn runq_is_empty(&self) -> bool {
        self.runq_len.load(Relaxed) == 0
    }

    #[inline]
    fn mirror_len(&self, core: &Core) {
        // ORDER: Relaxed; readers without the lock re-check under it, or are behind wake/1 and
        // wake/2. The lock's release, a swap, follows this store.
        self.runq_len.store(core.runq.len(), Relaxed);
    }

    #[inline]
    pub(crate) fn global_put(&self, core: &mut Held<'_, Core>, g: Gp) {
        core.runq.push(g);
        self.mirror_len(core);
    }

    /// As `global_put`, for a goroutine that has just left its thread.
    #[inline]
    pub(crate) fn global_put_left(&self, core: &mut Held<'_, Core>, g: Gp) {
        core.runq.push_left(g);
        self.mirror_len(core);
    }

    /// Puts a goroutine whose slice is over at the tail of the spent half.
    pub(crate) fn global_put_spent(&self, core: &mut Held<'_, Core>, g: Gp) {
        core.runq.push_spent(g);
        self.mirror_len(core);
    }

    pub(crate) fn global_put_batch(&self, core: &mut Held<'_, Core>, batch: &mut GQueue) {
        while let Some(g) = batch.pop_front() {
            core.runq.push(g);
        }
        self.mirror_len(core);
    }

    /// Puts a goroutine that may hold a lock for which others block. All spent ones are urgent now.
    pub(crate) fn global_put_urgent(&self, core: &mut Held<'_, Core>, g: Gp) {
        core.runq.push_spent(g);
        core.runq.hurry_spent();
        self.mirror_len(core);
    }

    /// Puts goroutines that leave a ring, at most 257. Senior ones go to the head, the others to
    /// the tail, each in their order.
    pub(crate) fn global_put_from_ring(&self, core: &mut Held<'_, Core>, batch: &mut GQueue) {
        let mut seniors = GQueue::new();
        while let Some(g) = batch.pop_front() {
            match g.senior.get() {
                Senior::No => core.runq.push(g),
                _ => seniors.push_front(g),
            }
        }
        // `seniors` is in reverse order, so the first one ends up at the head.
        while let Some(g) = seniors.pop_front() {
            core.runq.push_first(g, g.senior.replace(Senior::No));
        }
        self.mirror_len(core);
    }

    /// Moves the worker's queue, at most 257 goroutines, to the global queue.
    pub(crate) fn global_take_over(&self, core: &mut Held<'_, Core>, w: Worker<'_>) {
        let queue = w.queue();
        let mut all = GQueue::new();
        while let Some((g, _)) = queue.get() {
            all.push_back(gp(g));
        }
        self.global_put_from_ring(core, &mut all);
    }

    /// Takes one goroutine. At the limit those that have not begun come after all others.
    pub(crate) fn global_get(&self, core: &mut Held<'_, Core>) -> Option<Gp> {
        let g = core.runq.pop(!self.is_at_limit());
        self.mirror_len(core);
        g
    }

    /// Takes one goroutine; every other time a spent one.
    pub(crate) fn global_get_in_turn(&self, core: &mut Held<'_, Core>) -> Option<Gp> {
        let g = core.runq.pop_in_turn(!self.is_at_limit());
        self.mirror_len(core);
        g
    }

    /// Takes the next goroutine if it is spent and waits on a thread of its own; returns both.
    pub(crate) fn global_get_owned(&self, core: &mut Held<'_, Core>) -> Option<(Gp, Mp)> {
        let found = core.runq.pop_if_owned();
        self.mirror_len(core);
        found
    }

    /// Takes the first goroutine that has a thread of its own, from either half; returns both.
    pub(crate) fn global_take_owned(&self, core: &mut Held<'_, Core>) -> Option<(Gp, Mp)> {
        let found = core.runq.pop_owned();
        self.mirror_len(core);
        found
    }

    /// Takes a batch: returns the first and puts the rest into the worker's ring, as many as fit.
    pub(crate) fn global_get_batch(&self, core: &mut Held<'_, Core>, w: Worker<'_>) -> Option<Gp> {
        let queue = w.queue();
        let share = core.runq.len() / self.nprocs() as usize + 1;
        let n = share.min(RING / 2).min(queue.room() as usize + 1);
        let may_begin = !self.is_at_limit();
        let first = core.runq.pop(may_begin);
        // At the limit a ring would only go back to the global queue (`find_at_limit`).
        let n = if may_begin { n } else { 1 };
        for _ in 1..n {
            let Some(g) = core.runq.pop_for_ring() else {
                break;
            };
            if queue.put(g.non_null()).is_err() {
                crate::base::fatal::throw("R1: no room for a batch that was measured");
            }
        }
        self.mirror_len(core);
        first
    }

    /// Puts `g` at the ring's tail. If the ring is full, moves half of it and `g` to the global
    /// queue (R6).
    #[inline]
    pub(crate) fn runq_put(&self, w: Worker<'_>, g: Gp) {
        if w.queue().put(g.non_null()).is_err() {
            self.runq_put_slow(w, g);
        }
    }

    #[cold]
    #[inline(never)]
    fn runq_put_slow(&self, w: Worker<'_>, g: Gp) {
        let queue = w.queue();
        let mut half = [std::ptr::null_mut(); OVERFLOW];
        if let Some(n) = queue.take_half(&mut half) {
            w.p().counters.overflows.add(1);
            let mut core = self.core.lock();
            let from_ring = |raw: &*mut G| match std::ptr::NonNull::new(*raw) {
                Some(raw) => gp(raw),
                None => crate::base::fatal::throw("R4: an unpublished slot inside the ring"),
            };
            // Senior ones go back to the head, the last one first; the others go to the tail.
            for senior in half[..n].iter().rev().map(from_ring) {
                match senior.senior.get() {
                    Senior::No => {}
                    was => core.runq.push_first(senior, was),
                }
            }
            for other in half[..n].iter().map(from_ring) {
                if other.senior.replace(Senior::No) == Senior::No {
                    core.runq.push(other);
                }
            }
            core.runq.push(g);
            self.mirror_len(&core);
        } else if queue.put(g.non_null()).is_err() {
            // Only the owner adds. `take_half` refuses only if a thief has taken from the ring.
            crate::base::fatal::throw("R1: a ring is full after a thief took from it");
        }
    }

    /// Puts `g` into `next`. The goroutine that it displaces goes to the ring's tail (N, RD).
    #[inline]
    pub(crate) fn runq_put_next(&self, w: Worker<'_>, g: Gp) {
        if let Some(old) = w.queue().put_next(g.non_null()) {
            self.runq_put(w, gp(old));
            crate::sched::model::spin::submitted();
        } else {
            crate::sched::model::spin::submitted_by_rmw();
        }
    }

    /// Puts a batch into the ring as far as it fits; the rest stays in `batch`.
    pub(crate) fn runq_put_batch(&self, w: Worker<'_>, batch: &mut GQueue) {
        let queue = w.queue();
        for _ in 0..queue.room() {
            let Some(g) = batch.pop_front() else { break };
            if queue.put(g.non_null()).is_err() {
                crate::base::fatal::throw("R1: no room where room was measured");
            }
        }
    }
}
