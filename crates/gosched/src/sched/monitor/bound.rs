//! Goroutines that wait for a P on the thread they are on (D7).
//!
//! A goroutine taken by surprise may be in the middle of anything: its registers, and whatever it was doing with malloc or
//! libc, are its thread's. So it stays there. It is queued like any other, but *bound*: its `m` says on which thread it waits.
//! Whoever takes it off the queue brings its own P to that thread and goes to sleep, as for a locked goroutine.
//!
//! ```text
//!  the thread                                          whoever has a P
//!  1 the goroutine is Runnable, m.bound set, counted   1 takes the goroutine off the global queue, under the lock
//!  2 it is on the global queue, under the same lock    2 under the lock: nextp, counted no more; wakes the note
//!  3 sleeps on the note until nextp is there           3 looks for another P (`stop_m`)
//! ```

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::base::lock::Held;
use crate::sched::model::gstatus::Status;
use crate::sched::model::p::{acquire_p, gp};
use crate::sched::model::ptr::{Gp, Mp, Pp};
use crate::sched::model::worker::{G0, Worker};
use crate::sched::{Core, Sched};

/// Idle Ms kept for goroutines that have begun and leave their thread by themselves, once no more threads can be had.
pub(crate) const LIMIT_SLACK: u32 = 4;

/// Who takes the P of a goroutine that is to wait on its thread.
pub(crate) enum Exchange {
    /// Whoever comes next.
    Nobody,
    /// This one, on its thread.
    Goroutine(Gp, Mp),
    /// Nobody can: it must go on.
    Impossible,
}

impl Sched {
    /// Whether goroutines that have not begun wait, for lack of threads, while others can go on.
    #[inline]
    pub(crate) fn is_at_limit(&self) -> bool {
        self.at_limit.load(Relaxed)
    }

    /// What the limit depends on has changed: `nparked`, `nmidle`, `mcount`, `is_refused`.
    pub(crate) fn mirror_limit(&self, core: &Core) {
        let is_at_limit = core.nparked > 0 && self.is_scarce(core);
        self.at_limit.store(is_at_limit, Relaxed);
        self.mirror_room(core);
    }

    /// Idle Ms, and Ms that may yet be made. While the system refuses threads only the idle ones count.
    pub(crate) fn spare_ms(&self, core: &Core) -> u32 {
        if core.is_refused {
            return core.nmidle;
        }
        core.nmidle + core.creating + self.config.max_threads.saturating_sub(core.mcount)
    }

    /// Whether threads are too few for one more that waits with a goroutine. The last idle M is not given away on the strength of
    /// threads that are yet to be made: the system may refuse them.
    pub(crate) fn is_scarce(&self, core: &Core) -> bool {
        core.nmidle == 0 || self.is_at_last_threads(core)
    }

    /// Whether no more than a few threads are left, those included that are yet to be made.
    pub(crate) fn is_at_last_threads(&self, core: &Core) -> bool {
        self.spare_ms(core) < LIMIT_SLACK
    }

    /// Who goes on when a goroutine is to wait on its thread. Where threads are scarce it is exchanged for one that waits so
    /// already, which costs no thread; or waits in addition, if a goroutine that leaves its thread by itself is queued and an M is
    /// idle to run it.
    pub(crate) fn exchange(&self, core: &mut Held<'_, Core>, w: Worker<'_>) -> Exchange {
        if self.is_stopping() || !self.is_scarce(core) {
            return Exchange::Nobody;
        }
        self.ask_for_threads(core);
        self.global_take_over(core, w);
        if core.runq.has_well_behaved() {
            if core.nmidle > 0 {
                return Exchange::Nobody;
            }
            // The watcher could run it: it comes back and is idle at the end of the next slice (`begin_watch`).
            if self.is_at_last_threads(core) && self.poller.is_watching() {
                self.poller.wake();
            }
        }
        match self.global_take_owned(core) {
            Some((g, owner)) => Exchange::Goroutine(g, owner),
            None => Exchange::Impossible,
        }
    }

    /// The goroutine, Runnable, will wait on this thread; the caller queues it in the same hold of the lock.
    pub(crate) fn bind_here(&self, core: &mut Held<'_, Core>, m: Mp, g: Gp) {
        debug_assert_eq!(g.m.load(Relaxed), Some(m));
        m.curg.store(None, Relaxed);
        m.bound.store(Some(g), Relaxed);
        m.blocked.store(true, Relaxed);
        core.nmidlelocked += 1;
        core.nparked += 1;
        self.mirror_limit(core);
    }

    /// Waits until somebody has brought a P, and runs the goroutine on it. On the thread, inside the runtime. CONTEXT: signal.
    ///
    /// When the runtime is dropped it goes on without one, as those do that ran at that moment: it may hold a lock that the
    /// rest of the process needs. So its thread keeps its priority: at a lower one it might not get to the unlock.
    pub(crate) fn wait_bound(&self, m: Mp, g: Gp) {
        let p = loop {
            m.park.sleep_hearing(|| m.trace.answer());
            m.park.clear();
            // ORDER: Acquire; pairs with the note's Release in `give_p`.
            let p = m.nextp.swap(None, Acquire);
            if p.is_some() || self.dead.load(Relaxed) {
                break p;
            }
        };
        m.blocked.store(false, Relaxed);
        match p {
            Some(p) => {
                acquire_p(m, p);
                p.begin_slice();
            }
            None => {
                let mut core = self.core.lock();
                core.nmidlelocked -= 1;
                core.nparked -= 1;
            }
        }
        m.bound.store(None, Relaxed);
        m.curg.store(Some(g), Relaxed);
        g.status.transition(Status::Runnable, Status::Running);
    }

    /// Brings a P to the thread that alone may run `g`, which is off every queue.
    pub(crate) fn give_p(&self, core: &mut Held<'_, Core>, p: Pp, g: Gp, owner: Mp) {
        g.is_senior.set(false);
        let is_bound = owner.bound.load(Relaxed) == Some(g);
        debug_assert!(is_bound || owner.lockedg.load(Relaxed) == Some(g), "M6");
        core.nmidlelocked -= 1;
        core.nparked -= u32::from(is_bound);
        self.mirror_limit(core);
        core.activity += 1;
        self.outside.handoffs.add_shared(1);
        owner.nextp.store(Some(p), Relaxed);
        // Under the lock: later the runtime may be gone, and the M somebody else's.
        owner.park.wakeup();
    }

    /// Gives our P to the M that alone may run `g`, and goes to sleep; false: this M must end.
    pub(crate) fn start_owner(&self, g0: &mut G0, g: Gp, owner: Mp) -> bool {
        let p = g0.relinquish_p();
        let mut core = self.core.lock();
        if self.dead.load(Relaxed) {
            self.stop_p(&mut core, p);
            return false;
        }
        self.give_p(&mut core, p, g, owner);
        drop(core);
        self.stop_m(g0)
    }

    /// No M is idle: gives p to the thread of a goroutine that waits on its own, if there is one on the queues at hand. That
    /// goroutine may hold the very lock for which everybody else, the creator of threads too, is waiting (D9).
    pub(crate) fn give_to_owned(&self, core: &mut Held<'_, Core>, p: Pp) -> bool {
        if core.nmidlelocked <= 0 {
            return false; // nobody waits so
        }
        // In the order in which they would be taken: one that has just come back with a lock is before those who have not.
        let found = self
            .runq_take_owned(p)
            .or_else(|| self.global_take_owned(core));
        if let Some((g, owner)) = found {
            self.give_p(core, p, g, owner);
        }
        found.is_some()
    }

    /// Takes a goroutine that has a thread of its own out of p's queue; p is in the caller's hands. The others stay as they are.
    fn runq_take_owned(&self, p: Pp) -> Option<(Gp, Mp)> {
        // SAFETY: R2, p is bound to nobody and in our hands.
        let queue = unsafe { p.queue() };
        let owned = |g: Gp| g.owner().map(|owner| (g, owner));
        let next = queue.take_own_next();
        let mut found = next.map(gp).and_then(owned);
        let kept = next.filter(|_| found.is_none());
        // Once around the ring: what is taken from its head goes to its tail. A thief may take some meanwhile.
        for _ in 0..p.runq.len() {
            let Some((g, _)) = queue.get() else { break };
            if found.is_none() {
                found = owned(gp(g));
                if found.is_some() {
                    continue;
                }
            }
            if queue.put(g).is_err() {
                crate::base::fatal::throw("R1: a ring refuses what it held");
            }
        }
        if let Some(next) = kept
            && queue.put_next(next).is_some()
        {
            crate::base::fatal::throw("R5: a goroutine in `next` of a P that nobody holds");
        }
        found
    }

    /// A goroutine has just left its P to be queued as spent: the P goes to the next one, straight to its thread if it waits
    /// on one.
    pub(crate) fn pass_on(&self, mut core: Held<'_, Core>, p: Pp) {
        if p.runq.is_empty()
            && !self.is_stopping()
            && let Some((g, owner)) = self.global_get_owned(&mut core)
        {
            self.give_p(&mut core, p, g, owner);
            return;
        }
        self.hand_off(core, p);
    }
}
