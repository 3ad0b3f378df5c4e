//! The loop of every M: pick a goroutine, run it until it leaves, do what it asked for, again (SC, FR).
//!
//! ```text
//!            ┌───────────────────────────────────────────────┐
//!            ▼                                               │
//!        schedule() ──► find_runnable() ──► execute(g) ──► mcall's function(g)
//!                            │                 │               park_m · gosched_m · goexit0 · …
//!                            ▼                 ▼
//!                         stop_m           user code
//! ```

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::arch;
use crate::base::chaos;
use crate::base::lock::ranks;
use crate::sched::exit::Begin;
use crate::sched::model::g::{GQueue, STARTED};
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::{BLOCK, YIELD};
use crate::sched::model::p::{Fair, PStatus, STACKS_REFILL, acquire_p, gp, relinquish_p};
use crate::sched::model::ptr::{Gp, Mp, Pp};
use crate::sched::model::switch;
use crate::sched::sources::timers::EXPIRE_MAX;
use crate::sched::thread_locals::standing;
use crate::sched::{FAIR_EVERY, Sched, spin};
use crate::sys;

/// Stacks whose memory is returned in one turn of the background work.
const SCAVENGE_BUDGET: usize = 256;

/// What an M does after a goroutine has left.
pub(crate) enum Next {
    /// Look for another.
    Schedule,
    /// Run this one at once, in the same time slice.
    Run(Gp),
    /// End the thread: its goroutine ended while locked to it (U9).
    EndThread,
    /// End the thread, which has no P: its runtime was dropped.
    End,
}

/// What giving up the P led to.
pub(super) enum Gave {
    Found(Gp),
    LookAgain,
    Die,
}

/// What watching led to.
pub(super) enum Watched {
    NothingDue,
    /// This one is to be run, the others are queued.
    Found(Gp),
    NoP,
}

impl Sched {
    /// Runs goroutines until the M is told to end. On g0; returns without a P.
    pub(crate) fn run_m(&self, m: Mp) {
        let mut next = Next::Schedule;
        let mut last = None;
        loop {
            let (g, inherits) = match next {
                Next::Run(g) => (g, true),
                Next::Schedule => match self.schedule(m) {
                    Some(found) => found,
                    None => return self.leave_behind(last),
                },
                Next::EndThread => {
                    m.tp.to_own();
                    if m.p.load(Relaxed).is_some() {
                        self.hand_off_p(relinquish_p(m));
                    }
                    return;
                }
                Next::End => return self.leave_behind(last),
            };
            last = Some(g);
            self.execute(m, g, inherits);
            next = match m.mcall.take() {
                Some(f) => f(self, m, g),
                None => crate::base::fatal::throw("a goroutine left without saying why"),
            };
        }
    }

    /// The M ends. If that is because the runtime was dropped, nobody will run the goroutine that it ran last.
    fn leave_behind(&self, last: Option<Gp>) {
        if let Some(g) = last
            && self.is_given_up.load(Relaxed)
            && !matches!(g.status.get(), Status::Dead | Status::Idle)
        {
            super::teardown::take_back(g); // it may have gone to wait since everybody was
            super::teardown::tell_scope(g);
        }
    }

    /// The next goroutine for this M and whether it inherits the time slice; None: the M must end.
    fn schedule(&self, m: Mp) -> Option<(Gp, bool)> {
        ranks::assert_none("schedule");
        if m.asked.load(Relaxed) & YIELD != 0 {
            self.end_slice(m);
        }
        m.asked.store(self.first_asked(), Relaxed);
        loop {
            if let Some(g) = m.lockedg.load(Relaxed) {
                return self.stop_locked_m(m).then_some((g, false));
            }
            if m.p.load(Relaxed).is_none() {
                m.tp.to_own();
                return None; // a dead runtime's
            }
            let (g, inherits) = self.find_runnable(m)?;
            if m.is_spinning() {
                self.reset_spinning(m);
            }
            match g.owner() {
                Some(owner) if owner != m => {
                    // Not ours to run: its thread gets our P, we look for another one.
                    if !self.start_owner(m, g, owner) {
                        return None;
                    }
                }
                // Dropped since we looked: it may have gone on without a P, on its thread, and even ended (`wait_bound`).
                // ORDER: Acquire; who sees that it has no owner any more sees why.
                _ if self.dead.load(Acquire) => {
                    if !self.stop_for_world(m) {
                        return None;
                    }
                }
                _ => return Some((g, inherits)),
            }
        }
    }

    /// The goroutine that has just left was asked to: the slice is over, nobody inherits it. With chaos everybody
    /// is asked all the time; then one slice in eight is over.
    #[cold]
    fn end_slice(&self, m: Mp) {
        if let Some(p) = m.p.load(Relaxed)
            && (!chaos::is_on() || chaos::one_in(8, "end of a slice"))
        {
            // SAFETY: PL, this M holds p.
            unsafe { p.local() }.fairness.end_slice();
        }
    }

    /// What a goroutine finds asked of it when it begins to run: with chaos, always to make room.
    #[inline]
    fn first_asked(&self) -> u8 {
        if chaos::is_on() { YIELD } else { 0 }
    }

    /// The search, in Go's order (FR). Returns a goroutine, or parks until there is one; None: the M must end.
    fn find_runnable(&self, m: Mp) -> Option<(Gp, bool)> {
        loop {
            let p = m.p();
            if self.is_stopping() {
                if let Some(g) = self.turn_between_stops(m, p) {
                    return Some((g, false));
                }
                if !self.stop_for_world(m) {
                    return None;
                }
                continue;
            }
            self.check_timers(p);
            if self.is_at_limit()
                && let Some(g) = self.find_at_limit(p)
            {
                return Some((g, false));
            }
            if let Some((g, inherits)) = self.decide(p) {
                if !inherits {
                    self.prefetch_queue(p);
                }
                return Some((g, inherits));
            }
            if let Some(g) = self.poll_timers(p) {
                return Some((g, false));
            }
            if let Some(g) = self.poll_net_between(p) {
                return Some((g, false));
            }
            if let Some(g) = self.global_batch(p) {
                return Some((g, false));
            }
            if let Some(g) = self.poll_net(p) {
                return Some((g, false));
            }
            // The search may take long: a signal handler is not to meet the last goroutine's thread-locals (D6).
            m.tp.to_own();
            if let Some(g) = self.spin_and_steal(m, p) {
                return Some((g, false));
            }
            if self.background() {
                continue;
            }
            match self.give_up_p(m) {
                Gave::Found(g) => return Some((g, false)),
                Gave::LookAgain => {}
                Gave::Die => return None,
            }
        }
    }

    /// Where there are many, each one's memory has to be fetched anew: that of the next two, while this one runs. The
    /// stack of the first, whose G was fetched the last time; the G of the second. Both are guesses, and a thief may have them
    /// by now: nothing but what is fetched depends on it, and a G's memory stays a G's (GF).
    #[inline]
    fn prefetch_queue(&self, p: Pp) {
        // SAFETY: R2, this M holds p.
        let queue = unsafe { p.queue() };
        let (first, second) = (queue.peek(0), queue.peek(1));
        if !second.is_null() {
            arch::prefetch(second as usize);
            arch::prefetch(second as usize + 64);
        }
        if let Some(first) = NonNull::new(first).map(gp)
            && first.stack_hi.get() != 0
        {
            self.tls
                .prefetch_frame(first.sp.get(), first.stack_hi.get());
        }
    }

    /// No thread is left for another goroutine that might not stop: nobody begins while others can go on.
    #[cold]
    fn find_at_limit(&self, p: Pp) -> Option<Gp> {
        let mut core = self.core.lock();
        self.global_take_over(&mut core, p);
        let g = self.global_get(&mut core);
        drop(core);
        self.wake_for_global();
        g
    }

    /// A ring went to the global queue: an M that stopped spinning meanwhile has seen its goroutines neither here nor there.
    pub(super) fn wake_for_global(&self) {
        if !self.runq_is_empty() {
            spin::submitted_by_rmw(); // the lock's release was the read-modify-write
            self.wake_p();
        }
    }

    /// A decision from the queues at hand: `next`, the ring; where it must be fair, the global queue as well. And whether the
    /// goroutine inherits the time slice.
    #[inline]
    pub(super) fn decide(&self, p: Pp) -> Option<(Gp, bool)> {
        // SAFETY: PL, this M holds p.
        if unsafe { p.local() }.fairness.decide()
            && let Some(g) = self.decide_fairly(p)
        {
            return Some((g, false));
        }
        // SAFETY: R2, this M holds p.
        let (g, inherits) = unsafe { p.queue() }.get()?;
        Some((gp(g), inherits))
    }

    /// A fair decision: `next` goes to the end of the ring, the others come first (L4, U4). So a goroutine at the head of any
    /// queue waits for a fixed number of decisions, whatever comes later.
    ///
    /// A 61st decision takes from the global queue before the ring. The others take from the ring: if they did not, a global
    /// queue that is never empty would keep the ring waiting.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_fairly(&self, p: Pp) -> Option<Gp> {
        // SAFETY: PL, this M holds p.
        let local = unsafe { p.local() };
        local.owes_turn = false; // decisions are being made
        let fair = local.fairness.begin_fair();
        let is_global_due = matches!(fair, Fair::Counted) && !self.runq_is_empty();
        if is_global_due || !p.runq.is_ring_empty() {
            self.demote_next(p);
        }
        if matches!(fair, Fair::Counted) {
            p.counters.decisions.add(u64::from(FAIR_EVERY));
        }
        let global = is_global_due.then(|| self.global_get_in_turn(&mut self.core.lock()));
        // SAFETY: R2, this M holds p.
        let local = || unsafe { p.queue() }.get().map(|(g, _)| gp(g));
        global.flatten().or_else(local)
    }

    /// Worlds may be stopped one after the other without a pause. So a P that a start has put to use makes one decision before
    /// it stops again. The goroutine is asked to leave from the start; the leader waits for it.
    #[cold]
    fn turn_between_stops(&self, m: Mp, p: Pp) -> Option<Gp> {
        // SAFETY: PL, this M holds p.
        let local = unsafe { p.local() };
        if !std::mem::take(&mut local.owes_turn) || self.dead.load(Relaxed) {
            return None;
        }
        let g = if self.is_at_limit() {
            self.find_at_limit(p)?
        } else {
            local.fairness.end_slice();
            local.fairness.decide();
            self.decide_fairly(p)?
        };
        m.ask(YIELD);
        Some(g)
    }

    /// Moves the goroutine in `next` to the end of the ring.
    fn demote_next(&self, p: Pp) {
        // SAFETY: R2, this M holds p.
        let Some(next) = unsafe { p.queue() }.take_own_next() else {
            return;
        };
        self.runq_put(p, gp(next));
        // An M that stopped spinning meanwhile has seen it neither here nor there.
        spin::submitted();
        self.wake_p();
    }

    #[inline]
    fn global_batch(&self, p: Pp) -> Option<Gp> {
        if self.runq_is_empty() {
            return None;
        }
        self.global_get_batch(&mut self.core.lock(), p)
    }

    /// A busy P looks at its own timers now and then. No clock is read while none is set.
    #[inline]
    fn check_timers(&self, p: Pp) {
        // SAFETY: PL, this M holds p.
        if p.timers.next_ns() != u64::MAX && unsafe { p.local() }.pace.is_time() {
            self.check_timers_slow(p);
        }
    }

    /// What is due goes to the end of p's queue, as far as there is room; more only when that has been worked off.
    #[inline(never)]
    fn check_timers_slow(&self, p: Pp) {
        // SAFETY: R2, this M holds p.
        let room = unsafe { p.queue() }.room() as usize;
        let mut due = self.expire_own(p, room);
        if !due.is_empty() {
            self.runq_put_batch(p, &mut due);
            spin::submitted();
            self.wake_p();
            self.press_if_busy();
        }
    }

    /// A P whose queue is empty looks at its own timers: one goroutine to run now, the others queued on p.
    #[inline]
    fn poll_timers(&self, p: Pp) -> Option<Gp> {
        if p.timers.next_ns() == u64::MAX {
            return None;
        }
        let due = self.expire_own(p, EXPIRE_MAX);
        self.share_due(p, due)
    }

    /// Takes the first of what is due; the others are queued on p, where thieves find them.
    pub(super) fn share_due(&self, p: Pp, mut due: GQueue) -> Option<Gp> {
        let g = due.pop_front()?;
        if !due.is_empty() {
            self.runq_put_batch(p, &mut due);
            if !due.is_empty() {
                self.global_put_batch(&mut self.core.lock(), &mut due);
            }
            spin::submitted();
            self.wake_p();
            self.press_if_busy();
        }
        Some(g)
    }

    /// What is due on this M's own P.
    #[inline(never)]
    fn expire_own(&self, p: Pp, max: usize) -> GQueue {
        let now = sys::monotonic_ns();
        // SAFETY: PL, this M holds p.
        p.timers.note_look(&mut unsafe { p.local() }.pace, now);
        let mut due = GQueue::new();
        self.expire(p, now, max.min(EXPIRE_MAX), &mut due);
        due
    }

    /// Background work of an M with nothing else to do: memory that nobody has needed for a while goes back to the
    /// system. sysmon says when. True: it did some, look again.
    fn background(&self) -> bool {
        if !self.scavenge_now.load(Relaxed) {
            return false;
        }
        let shrinks = self.shrink_now.swap(false, Relaxed) && self.shrink_parked();
        if shrinks {
            self.shrink_now.store(true, Relaxed); // the round is not over
        }
        let standing = || standing(self);
        let scavenges = self.arena.scavenge(SCAVENGE_BUDGET, standing);
        let more = scavenges | self.blocks.trim() | shrinks;
        if crate::tls::has_surplus() {
            self.creator.kick();
        }
        self.scavenge_now.store(more, Relaxed);
        true
    }

    /// Nothing found: drop the P, re-check as the wake protocol wants, wait for a timer or park.
    pub(super) fn give_up_p(&self, m: Mp) -> Gave {
        let was_spinning = m.is_spinning();
        let mut core = self.core.lock();
        if self.is_stopping() {
            return Gave::LookAgain;
        }
        if !core.runq.is_empty() {
            let found = self.global_get_batch(&mut core, m.p());
            return found.map_or(Gave::LookAgain, Gave::Found);
        }
        if !was_spinning && self.spin.is_needed() {
            drop(core);
            self.begin_spinning(m);
            return Gave::LookAgain;
        }
        self.put_idle_p(&mut core, relinquish_p(m));
        drop(core);
        if was_spinning {
            m.set_spinning(false);
            self.spin.end();
            if self.has_work() && self.take_idle_p_spinning(m) {
                return Gave::LookAgain;
            }
        }
        spin::idle_p_added();
        if self.spin.is_needed() && self.take_idle_p_spinning(m) {
            return Gave::LookAgain;
        }
        while self.begin_watch() {
            match self.watch(m) {
                Watched::NothingDue => {}
                Watched::Found(g) => return Gave::Found(g),
                Watched::NoP => break,
            }
        }
        if self.stop_m(m) {
            Gave::LookAgain
        } else {
            Gave::Die
        }
    }

    pub(super) fn take_idle_p_spinning(&self, m: Mp) -> bool {
        let mut core = self.core.lock();
        let Some(p) = self.get_idle_p(&mut core) else {
            // Whoever took it may have other plans; the next P to go idle must look.
            self.spin.set_needed();
            return false;
        };
        drop(core);
        acquire_p(m, p);
        self.begin_spinning(m);
        true
    }

    /// If timers are set, or the network is waited for, and nobody watches, an M without a P must. A P that waits for a thread comes first: `stop_m` takes it.
    pub(super) fn begin_watch(&self) -> bool {
        let core = self.core.lock();
        // At the last threads an idle M is worth more than a watcher: sysmon watches, too.
        let is_wanted = core.runq.has_well_behaved() && self.is_at_last_threads(&core);
        core.pending.is_none()
            && !is_wanted
            && !self.dead.load(Relaxed)
            && (self.has_timers() || self.has_net_waiters())
            && self.poller.begin()
    }

    /// Watches the timers and the network, without a P, until something is due.
    pub(super) fn watch(&self, m: Mp) -> Watched {
        m.blocked.store(true, Relaxed);
        let wake = self.poller.sleep(|| self.next_timer());
        m.blocked.store(false, Relaxed);
        let mut due = self.expire_all(sys::monotonic_ns(), |_| false);
        self.collect(wake, &mut due);
        if due.is_empty() {
            return Watched::NothingDue; // called for a P that waits, or for an earlier timer, or somebody was quicker
        }
        let p = self.take_any_p(m);
        // The first one stays here: nobody is woken for a single one.
        let own = p.and_then(|_| due.pop_front());
        if !due.is_empty() {
            self.inject_list(p, &mut due);
        }
        // Nobody watches the others from here on, unless this M or another one finds nothing to do.
        self.sysmon.timer_set(self.next_timer());
        match own {
            Some(g) => Watched::Found(g),
            None => Watched::NoP, // every P is busy, and looks itself
        }
    }

    /// A P for an M that comes back with work: one that waits for a thread, or an idle one, or one that a marked call has left
    /// behind.
    fn take_any_p(&self, m: Mp) -> Option<Pp> {
        let mut core = self.core.lock();
        if self.is_stopping() {
            return None;
        }
        if let Some((p, spinning)) = self.take_pending(&mut core) {
            drop(core);
            m.set_spinning(spinning);
            acquire_p(m, p);
            return Some(p);
        }
        if let Some(p) = self.get_idle_p(&mut core) {
            drop(core);
            acquire_p(m, p);
            return Some(p);
        }
        let mut marked = self.procs().filter(|p| p.status.retake(PStatus::Idle));
        let p = marked.next()?;
        drop(core);
        self.calls.retaken.add_shared(1);
        self.room.call_is_out();
        acquire_p(m, p);
        Some(p)
    }

    /// Switches to the goroutine; returns on g0 when it leaves. Its first run takes a stack (D3).
    #[inline]
    fn execute(&self, m: Mp, g: Gp, inherits: bool) {
        let tp = if g.stack_hi.get() == 0 {
            self.take_stack(m.p(), g);
            self.tls.first_tp(&m.tp, g.stack_hi.get())
        } else {
            self.tls.tp(&m.tp, g.stack_hi.get())
        };
        self.tls.lend_malloc(&m.tp, tp);
        m.curg.store(Some(g), Relaxed);
        g.m.store(Some(m), Relaxed);
        if g.calls.get() != 0 {
            m.ask(BLOCK);
        }
        if g.is_senior.get() {
            g.is_senior.set(false);
        }
        g.status.transition(Status::Runnable, Status::Running);
        if !inherits {
            m.p().begin_slice();
        }
        switch::resume(m, g, tp);
    }

    #[inline]
    fn take_stack(&self, p: Pp, g: Gp) {
        let class = g.class.get();
        let stack = if class == self.stack_class {
            // SAFETY: PL, this M holds p.
            let cache = &mut unsafe { p.local() }.stacks;
            if cache.len == 0 {
                cache.len = self
                    .arena
                    .take_batch(class, &mut cache.stacks[..STACKS_REFILL]);
            }
            cache.len -= 1;
            cache.stacks[cache.len]
        } else {
            self.arena.take(class)
        };
        g.set_stack(Some(stack));
        g.started.store(STARTED, Relaxed);
        // SAFETY: D4, the stack is ours alone now.
        g.sp.set(unsafe { arch::prepare::<Begin>(stack.hi) });
    }
}
