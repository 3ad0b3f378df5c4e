//! The global run queue: unbounded, first in first out, under the scheduler lock (R7).
//!
//! It takes what has no P of its own: goroutines that yield, overflow of the local rings, wake-ups and
//! spawns from threads outside. A batch get takes min(len/GOMAXPROCS + 1, half a ring), one to run and the
//! rest for the local ring.

use std::sync::atomic::Ordering::Relaxed;

use super::g::GQueue;
use super::lock::Held;
use super::p::gp;
use super::ptr::{Gp, Pp};
use super::runq::OVERFLOW;
use super::{Core, Sched};
use crate::shim::RING;

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
        core.runq.push_back(g);
        self.mirror_len(core);
    }

    /// Puts a batch at the tail.
    pub(crate) fn global_put_batch(&self, core: &mut Held<'_, Core>, batch: &mut GQueue) {
        core.runq.append(batch);
        self.mirror_len(core);
    }

    /// Takes exactly one.
    pub(crate) fn global_get(&self, core: &mut Held<'_, Core>) -> Option<Gp> {
        let g = core.runq.pop_front();
        self.mirror_len(core);
        g
    }

    /// Takes a batch: returns the first, puts the rest into p's ring, which is empty enough for them.
    pub(crate) fn global_get_batch(&self, core: &mut Held<'_, Core>, p: Pp) -> Option<Gp> {
        // SAFETY: R2, the caller's M holds p.
        let queue = unsafe { p.queue() };
        let share = core.runq.len() / self.nprocs() as usize + 1;
        let n = share.min(RING / 2).min(queue.room() as usize + 1);
        let first = core.runq.pop_front();
        for _ in 1..n {
            let Some(g) = core.runq.pop_front() else {
                break;
            };
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
            self.global_put_batch(&mut self.core.lock(), &mut batch);
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
