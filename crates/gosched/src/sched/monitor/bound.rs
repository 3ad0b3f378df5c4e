//! Bound goroutines: they wait for a P on the thread they are on (D7).
//!
//! A goroutine that a signal preempts may be in the middle of anything. Its registers, and whatever
//! it was doing with malloc or libc, belong to its thread. So it stays there. It is queued like any
//! other goroutine, but *bound*: its `m` is the thread it waits on. The M that takes it off the
//! queue brings its own P to that thread and goes to sleep, as for a locked goroutine.
//!
//! ```text
//!  the bound goroutine's thread                     the M that has a P
//!  1 goroutine Runnable, m.bound set, counted       1 take the goroutine off the GRQ,
//!                                                     under the lock
//!  2 put it on the GRQ, under the same lock         2 under the lock: set nextp, count down, wake
//!                                                     the note
//!  3 sleep on the note until nextp is set           3 look for another P (`stop_m`)
//! ```

use std::sync::atomic::Ordering::Relaxed;

use crate::base::lock::Held;
use crate::sched::life::threads::LIMIT_SLACK;
use crate::sched::model::g::Senior;
use crate::sched::model::gstatus::Status;
use crate::sched::model::p::gp;
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::worker::{G0, IdleP, Worker, acquire_p};
use crate::sched::{Core, Sched};

/// What takes the P of a goroutine that is to wait on its thread.
pub(crate) enum Exchange {
    /// The P is handed off.
    Nobody,
    /// This bound or locked goroutine takes it, on its thread.
    Goroutine(Gp, Mp),
    /// Nothing can take it: the goroutine must continue.
    Impossible,
}

impl Sched {
    /// Whether goroutines that have not begun wait, for lack of threads, while others can continue.
    #[inline]
    pub(crate) fn is_at_limit(&self) -> bool {
        self.at_limit.load(Relaxed)
    }

    /// Recomputes the limit after a change of `nparked`, `nmidle`, `mcount` or `is_refused`.
    pub(crate) fn mirror_limit(&self, core: &Core) {
        let is_at_limit = core.nparked > 0 && self.is_scarce(core);
        self.at_limit.store(is_at_limit, Relaxed);
        self.mirror_room(core);
    }

    /// Idle Ms, and Ms that may yet be made. While the system refuses threads, only idle Ms count.
    pub(crate) fn spare_ms(&self, core: &Core) -> u32 {
        if core.is_refused {
            return core.nmidle;
        }
        core.nmidle + core.creating + self.config.max_threads.saturating_sub(core.mcount)
    }

    /// Whether threads are too few for one more that waits with a goroutine. The last idle M stays,
    /// however many threads may yet be made: the system may refuse them.
    pub(crate) fn is_scarce(&self, core: &Core) -> bool {
        core.nmidle == 0 || self.is_at_last_threads(core)
    }

    /// Whether only a few threads are left, including threads that may yet be made.
    pub(crate) fn is_at_last_threads(&self, core: &Core) -> bool {
        self.spare_ms(core) < LIMIT_SLACK
    }

    /// What takes the P when a goroutine is to wait on its thread. If threads are scarce, the
    /// goroutine swaps places with one that already waits so: that costs no thread. It waits in
    /// addition if an M is idle and a goroutine is queued that leaves its thread by itself.
    pub(crate) fn exchange(&self, core: &mut Held<'_, Core>, w: Worker<'_>) -> Exchange {
        if self.is_stopping() || !self.is_scarce(core) {
            return Exchange::Nobody;
        }
        self.ask_for_threads(core);
        self.global_take_over(core, w);
        if core.runq.has_begun_and_unbound() {
            if core.nmidle > 0 {
                return Exchange::Nobody;
            }
            // The watcher could run it. Woken, it comes back and is idle at the end of the next
            // slice (`begin_watch`).
            if self.is_at_last_threads(core) && self.poller.is_watching() {
                self.poller.wake();
            }
        }
        match self.global_take_owned(core) {
            Some((g, owner)) => Exchange::Goroutine(g, owner),
            None => Exchange::Impossible,
        }
    }

    /// The Runnable goroutine will wait on this thread. The caller queues it in the same hold of
    /// the lock.
    pub(crate) fn bind_here(&self, core: &mut Held<'_, Core>, m: Mp, g: Gp) {
        debug_assert_eq!(g.m.load(Relaxed), Some(m));
        m.curg.store(None, Relaxed);
        m.bound.store(Some(g), Relaxed);
        m.blocked.store(true, Relaxed);
        core.nmidlelocked += 1;
        core.nparked += 1;
        self.mirror_limit(core);
    }

    /// Waits until another M has brought a P, then runs the goroutine on it. On the goroutine's
    /// thread, inside the runtime. CONTEXT: signal.
    ///
    /// When the runtime is dropped the goroutine continues without a P, as do goroutines that run
    /// at that moment: it may hold a lock that the rest of the process needs. Its thread keeps its
    /// priority, because at a lower one it might not reach the unlock.
    pub(crate) fn wait_bound(&self, m: Mp, g: Gp) {
        let p = loop {
            m.park.sleep_hearing(|| m.trace.answer());
            m.park.clear();
            let p = m.take_nextp();
            if p.is_some() || self.dead.load(Relaxed) {
                break p;
            }
        };
        m.blocked.store(false, Relaxed);
        match p {
            Some(p) => {
                p.begin_slice();
                acquire_p(m, p);
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

    /// Brings a P to the thread that alone may run `g`. `g` is off every queue.
    pub(crate) fn give_p(&self, core: &mut Held<'_, Core>, p: IdleP, g: Gp, owner: Mp) {
        g.senior.set(Senior::No);
        let is_bound = owner.bound.load(Relaxed) == Some(g);
        debug_assert!(is_bound || owner.lockedg.load(Relaxed) == Some(g), "M6");
        core.nmidlelocked -= 1;
        core.nparked -= u32::from(is_bound);
        self.mirror_limit(core);
        core.activity += 1;
        self.outside.handoffs.add_shared(1);
        owner.give_nextp(p);
        // Under the lock: later the runtime may be gone, and the M in use by another runtime.
        owner.park.wakeup();
    }

    /// Gives this M's P to the M that alone may run `g`, and goes to sleep. Returns false if this M
    /// must end.
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

    /// No M is idle: gives p to the thread of a bound or locked goroutine, if one is on p's queue
    /// or the GRQ. Otherwise returns p. That goroutine may hold the very lock for which all others
    /// wait, also the creator (D9).
    pub(crate) fn give_to_owned(&self, core: &mut Held<'_, Core>, p: IdleP) -> Option<IdleP> {
        if core.nmidlelocked <= 0 {
            return Some(p); // no goroutine waits so
        }
        // In the order of the queues: a goroutine that has just come back with a lock precedes
        // those that have not.
        let found = self
            .runq_take_owned(&p)
            .or_else(|| self.global_take_owned(core));
        let Some((g, owner)) = found else {
            return Some(p);
        };
        self.give_p(core, p, g, owner);
        None
    }

    /// Takes a goroutine with a thread of its own out of p's queue. The others keep their order.
    fn runq_take_owned(&self, p: &IdleP) -> Option<(Gp, Mp)> {
        let queue = p.hold().queue();
        let owned = |g: Gp| g.owner().map(|owner| (g, owner));
        let next = queue.take_own_next();
        let mut found = next.map(gp).and_then(owned);
        let kept = next.filter(|_| found.is_none());
        // Once around the ring: each goroutine goes from the head to the tail. A thief may take
        // some meanwhile.
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

    /// A goroutine has just left its P and is queued as spent: hands off the P. If the next
    /// goroutine waits on a thread of its own, the P goes straight there.
    pub(crate) fn pass_on(&self, mut core: Held<'_, Core>, p: IdleP) {
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
