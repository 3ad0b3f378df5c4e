//! The loop of every M: pick a goroutine, run it until it leaves, do what it asked for, repeat (SC,
//! FR).
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
use crate::sched::Sched;
use crate::sched::exit::Begin;
use crate::sched::life::thread_locals::standing;
use crate::sched::model::g::{GQueue, STARTED, Senior};
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::{BLOCK, YIELD};
use crate::sched::model::p::FAIR_EVERY;
use crate::sched::model::p::{Fair, gp};
use crate::sched::model::ptr::Gp;
use crate::sched::model::spin;
use crate::sched::model::switch;
use crate::sched::sources::timers::EXPIRE_MAX;
use crate::sched::worker::{G0, IdleP, Worker};
use crate::stack::Stack;
use crate::sys;

/// Stacks whose memory is returned in one step of the background work.
const SCAVENGE_BUDGET: usize = 256;

/// What an M does after a goroutine has left.
pub(crate) enum Next {
    Schedule,
    /// Run this goroutine at once, in the same time slice.
    Run(Gp),
    /// End the thread: its goroutine ended while locked to it (U9).
    EndThread,
    /// End the thread, which has no P: its runtime was dropped.
    End,
}

pub(super) enum IdleResult {
    Found(Gp),
    LookAgain,
    Die,
}

pub(super) enum WatchResult {
    NothingDue,
    /// Run this goroutine; the others are queued.
    Found(Gp),
    NoP,
}

impl Sched {
    /// Runs goroutines until the M must end. On g0; returns without a P.
    pub(crate) fn run_m(&self, g0: &mut G0) {
        let mut next = Next::Schedule;
        let mut last = None;
        loop {
            let (g, inherits) = match next {
                Next::Run(g) => (g, true),
                Next::Schedule => match self.schedule(g0) {
                    Some(found) => found,
                    None => return self.abandon_last(last),
                },
                Next::EndThread => {
                    g0.m().tp.to_own();
                    if g0.worker().is_some() {
                        self.hand_off_p(g0.relinquish_p());
                    }
                    return;
                }
                Next::End => return self.abandon_last(last),
            };
            last = Some(g);
            self.execute(g0, g, inherits);
            next = match g0.m().take_mcall() {
                Some(f) => f(self, g0, g),
                None => crate::base::fatal::throw("a goroutine left without saying why"),
            };
        }
    }

    /// The M ends. If its runtime was dropped, the goroutine that it ran last never runs again.
    fn abandon_last(&self, last: Option<Gp>) {
        if let Some(g) = last
            && self.is_given_up.load(Relaxed)
            && !matches!(g.status.get(), Status::Dead | Status::Idle)
        {
            // It may have begun a wait after the drop looked at it.
            crate::sched::life::teardown::take_back(g);
            crate::sched::life::teardown::tell_scope(g);
        }
    }

    /// The next goroutine, and whether it inherits the time slice. None: the M must end.
    fn schedule(&self, g0: &mut G0) -> Option<(Gp, bool)> {
        ranks::assert_none("schedule");
        let m = g0.m();
        if m.asked.load(Relaxed) & YIELD != 0 {
            self.end_slice(g0);
        }
        m.asked.store(self.first_asked(), Relaxed);
        loop {
            if let Some(g) = m.lockedg.load(Relaxed) {
                return self.stop_locked_m(g0).then_some((g, false));
            }
            if g0.worker().is_none() {
                m.tp.to_own();
                return None; // a dead runtime's
            }
            let (g, inherits) = self.find_runnable(g0)?;
            if let Some(spinning) = m.spinning.take() {
                self.reset_spinning(spinning);
            }
            match g.owner() {
                Some(owner) if owner != m => {
                    // Another M must run it: that M gets this P.
                    if !self.start_owner(g0, g, owner) {
                        return None;
                    }
                }
                // The runtime was dropped meanwhile. The goroutine may have continued on its thread
                // without a P, and even ended (`wait_bound`).
                // ORDER: Acquire; pairs with the store in `stop_threads`. Such a goroutine was
                // detached after that store (`drop_g`), so an M that finds no owner sees `dead`.
                _ if self.dead.load(Acquire) => {
                    if !self.stop_for_world(g0) {
                        return None;
                    }
                }
                _ => return Some((g, inherits)),
            }
        }
    }

    /// The goroutine that has just left was asked to, so the slice is over and is not inherited.
    /// With chaos every goroutine is always asked; then one slice in eight is over.
    #[cold]
    fn end_slice(&self, g0: &G0) {
        if let Some(w) = g0.worker()
            && (!chaos::is_on() || chaos::one_in(8, "end of a slice"))
        {
            w.local().fairness.end_slice();
        }
    }

    /// What is asked of a goroutine when it begins to run: with chaos, always to yield.
    #[inline]
    fn first_asked(&self) -> u8 {
        if chaos::is_on() { YIELD } else { 0 }
    }

    /// The search, in Go's order (FR). Sleeps until there is a goroutine. None: the M must end.
    fn find_runnable(&self, g0: &mut G0) -> Option<(Gp, bool)> {
        loop {
            let w = g0.held();
            if self.is_stopping() {
                if let Some(g) = self.turn_between_stops(w) {
                    return Some((g, false));
                }
                if !self.stop_for_world(g0) {
                    return None;
                }
                continue;
            }
            self.check_timers(w);
            if self.is_at_limit()
                && let Some(g) = self.find_at_limit(w)
            {
                return Some((g, false));
            }
            if let Some((g, inherits)) = self.decide(w) {
                if !inherits {
                    self.prefetch_queue(w);
                }
                return Some((g, inherits));
            }
            if let Some(g) = self.poll_timers(w) {
                return Some((g, false));
            }
            if let Some(g) = self.poll_net_between(w) {
                return Some((g, false));
            }
            if let Some(g) = self.global_batch(w) {
                return Some((g, false));
            }
            if let Some(g) = self.poll_net(w) {
                return Some((g, false));
            }
            // The search may take long, and a signal handler must not run on the last goroutine's
            // thread-locals (D6).
            w.m().tp.to_own();
            if let Some(g) = self.spin_and_steal(w) {
                return Some((g, false));
            }
            if self.background() {
                continue;
            }
            match self.give_up_p(g0) {
                IdleResult::Found(g) => return Some((g, false)),
                IdleResult::LookAgain => {}
                IdleResult::Die => return None,
            }
        }
    }

    /// Prefetches the stack of the next goroutine and the G of the one behind it. With many
    /// goroutines their memory is cold; it arrives while this one runs. Both are guesses, because a
    /// thief may take them. Only prefetches depend on them, and a G's memory stays a G's (GF).
    #[inline]
    fn prefetch_queue(&self, w: Worker<'_>) {
        let queue = w.queue();
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

    /// At the limit: a goroutine that has not begun comes after all others, because it might hold
    /// its thread.
    #[cold]
    fn find_at_limit(&self, w: Worker<'_>) -> Option<Gp> {
        let mut core = self.core.lock();
        self.global_take_over(&mut core, w);
        let g = self.global_get(&mut core);
        drop(core);
        self.wake_for_global();
        g
    }

    /// A ring went to the global queue. An M that stopped spinning meanwhile may have missed its
    /// goroutines in both places.
    pub(super) fn wake_for_global(&self) {
        if !self.runq_is_empty() {
            spin::submitted_by_rmw(); // the lock's release was the read-modify-write
            self.wake_p();
        }
    }

    /// One decision: `next`, then the ring; in a fair decision the global queue, too. The flag: the
    /// goroutine inherits the time slice.
    #[inline]
    pub(super) fn decide(&self, w: Worker<'_>) -> Option<(Gp, bool)> {
        if w.local().fairness.decide()
            && let Some(g) = self.decide_fairly(w)
        {
            return Some((g, false));
        }
        let (g, inherits) = w.queue().get()?;
        Some((gp(g), inherits))
    }

    /// A fair decision: `next` goes to the end of the ring, and the others come first (L4, U4). So
    /// a goroutine at the head of any queue waits for a fixed number of decisions, whatever comes
    /// later.
    ///
    /// A 61st decision takes from the global queue before the ring. The others take from the ring.
    /// Otherwise a global queue that is never empty would keep the ring waiting.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_fairly(&self, w: Worker<'_>) -> Option<Gp> {
        w.local().has_yet_to_decide.set(false); // decisions are being made
        let fair = w.local().fairness.begin_fair();
        let is_global_due = matches!(fair, Fair::Counted) && !self.runq_is_empty();
        if is_global_due || !w.p().runq.is_ring_empty() {
            self.demote_next(w);
        }
        if matches!(fair, Fair::Counted) {
            w.p().counters.decisions.add(u64::from(FAIR_EVERY));
        }
        let global = is_global_due.then(|| self.global_get_in_turn(&mut self.core.lock()));
        global
            .flatten()
            .or_else(|| w.queue().get().map(|(g, _)| gp(g)))
    }

    /// One decision between two stops of the world. Stops may follow each other without a pause, so
    /// a P that a start put to use makes a decision before it stops again. The goroutine is asked
    /// to yield from the start, and the leader waits for it.
    #[cold]
    fn turn_between_stops(&self, w: Worker<'_>) -> Option<Gp> {
        if !w.local().has_yet_to_decide.take() || self.dead.load(Relaxed) {
            return None;
        }
        let g = if self.is_at_limit() {
            self.find_at_limit(w)?
        } else {
            w.local().fairness.end_slice();
            w.local().fairness.decide();
            self.decide_fairly(w)?
        };
        w.m().ask(YIELD);
        Some(g)
    }

    /// Moves the goroutine in `next` to the end of the ring.
    fn demote_next(&self, w: Worker<'_>) {
        let Some(next) = w.queue().take_own_next() else {
            return;
        };
        self.runq_put(w, gp(next));
        // An M that stopped spinning meanwhile may have missed it in both places.
        spin::submitted();
        self.wake_p();
    }

    #[inline]
    fn global_batch(&self, w: Worker<'_>) -> Option<Gp> {
        if self.runq_is_empty() {
            return None;
        }
        self.global_get_batch(&mut self.core.lock(), w)
    }

    /// A busy P checks its own timers now and then. Without timers it reads no clock.
    #[inline]
    fn check_timers(&self, w: Worker<'_>) {
        if w.p().timers.next_ns() != u64::MAX && w.local().pace.is_time() {
            self.check_timers_slow(w);
        }
    }

    /// Queues what is due at the end of the ring, as much as fits. The rest waits for the next
    /// check.
    #[inline(never)]
    fn check_timers_slow(&self, w: Worker<'_>) {
        let room = w.queue().room() as usize;
        let mut due = self.expire_own(w, room);
        if !due.is_empty() {
            self.runq_put_batch(w, &mut due);
            spin::submitted();
            self.wake_p();
            self.press_if_busy();
        }
    }

    /// A P whose queue is empty checks its own timers. Returns one goroutine and queues the others
    /// on the P.
    #[inline]
    fn poll_timers(&self, w: Worker<'_>) -> Option<Gp> {
        if w.p().timers.next_ns() == u64::MAX {
            return None;
        }
        let due = self.expire_own(w, EXPIRE_MAX);
        self.share_due(w, due)
    }

    /// Returns the first of what is due; queues the others on the P, where thieves find them.
    pub(super) fn share_due(&self, w: Worker<'_>, mut due: GQueue) -> Option<Gp> {
        let g = due.pop_front()?;
        if !due.is_empty() {
            self.runq_put_batch(w, &mut due);
            if !due.is_empty() {
                self.global_put_batch(&mut self.core.lock(), &mut due);
            }
            spin::submitted();
            self.wake_p();
            self.press_if_busy();
        }
        Some(g)
    }

    #[inline(never)]
    fn expire_own(&self, w: Worker<'_>, max: usize) -> GQueue {
        let now = sys::monotonic_ns();
        w.p().timers.note_look(&w.local().pace, now);
        let mut due = GQueue::new();
        self.expire(w.p(), now, max.min(EXPIRE_MAX), &mut due);
        due
    }

    /// Background work of an M without other work: returns memory that was unused for a while.
    /// sysmon decides when. True: it did some, so look for goroutines again.
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

    /// Nothing was found: drops the P, re-checks by the wake protocol, watches the timers, or
    /// sleeps.
    pub(super) fn give_up_p(&self, g0: &mut G0) -> IdleResult {
        let m = g0.m();
        let mut core = self.core.lock();
        if self.is_stopping() {
            return IdleResult::LookAgain;
        }
        if !core.runq.is_empty() {
            let found = self.global_get_batch(&mut core, g0.held());
            return found.map_or(IdleResult::LookAgain, IdleResult::Found);
        }
        if !m.is_spinning() && self.spin.is_needed() {
            drop(core);
            self.begin_spinning(m);
            return IdleResult::LookAgain;
        }
        self.put_idle_p(&mut core, g0.relinquish_p());
        drop(core);
        if let Some(spinning) = m.spinning.take() {
            self.spin.end(spinning);
            if self.has_work() && self.take_idle_p_spinning(g0) {
                return IdleResult::LookAgain;
            }
        }
        spin::idle_p_added();
        if self.spin.is_needed() && self.take_idle_p_spinning(g0) {
            return IdleResult::LookAgain;
        }
        while self.begin_watch() {
            match self.watch(g0) {
                WatchResult::NothingDue => {}
                WatchResult::Found(g) => return IdleResult::Found(g),
                WatchResult::NoP => break,
            }
        }
        if self.stop_m(g0) {
            IdleResult::LookAgain
        } else {
            IdleResult::Die
        }
    }

    pub(super) fn take_idle_p_spinning(&self, g0: &mut G0) -> bool {
        let mut core = self.core.lock();
        let Some(p) = self.get_idle_p(&mut core) else {
            // The M that took it may use it otherwise, so the next P that goes idle must look.
            self.spin.set_needed();
            return false;
        };
        drop(core);
        g0.acquire_p(p);
        self.begin_spinning(g0.m());
        true
    }

    /// Whether this M, without a P, becomes the watcher: timers are set or the network is waited
    /// for, and no M watches. A pending P comes first: `stop_m` takes it.
    pub(super) fn begin_watch(&self) -> bool {
        // Without the lock first: mostly there is nothing to watch, or a watcher. A watcher that
        // leaves now looks itself, or leaves the timers to sysmon (`watch`).
        if !self.needs_watcher() {
            return false;
        }
        let core = self.core.lock();
        // At the last threads an idle M is worth more than a watcher, because sysmon watches, too.
        let is_wanted = core.runq.has_begun_and_unbound() && self.is_at_last_threads(&core);
        core.pending.is_empty() && !is_wanted && !self.dead.load(Relaxed) && self.poller.begin()
    }

    /// Watches the timers and the network, without a P, until something is due.
    pub(super) fn watch(&self, g0: &mut G0) -> WatchResult {
        let m = g0.m();
        m.blocked.store(true, Relaxed);
        let wake = self.poller.sleep(|| self.next_timer());
        m.blocked.store(false, Relaxed);
        let mut due = self.expire_all(sys::monotonic_ns(), |_| false);
        self.collect(wake, &mut due);
        if due.is_empty() {
            // Woken for a pending P or an earlier timer, or another thread was faster.
            return WatchResult::NothingDue;
        }
        self.take_any_p(g0);
        // The first goroutine stays here, so no M is woken for a single one.
        let own = g0.worker().and_then(|_| due.pop_front());
        if !due.is_empty() {
            self.inject_list(g0.worker(), &mut due);
        }
        // No M watches the other timers from here on, until an M finds nothing to do.
        self.sysmon.timer_set(self.next_timer());
        match own {
            Some(g) => WatchResult::Found(g),
            None => WatchResult::NoP, // every P is busy and checks its own timers
        }
    }

    /// Takes a P for an M that comes back with work: a pending one, an idle one, or one that a
    /// marked call left behind.
    fn take_any_p(&self, g0: &mut G0) {
        let mut core = self.core.lock();
        if self.is_stopping() {
            return;
        }
        if let Some((p, spinning)) = self.take_pending(&mut core) {
            drop(core);
            g0.m().spinning.put(spinning);
            return g0.acquire_p(p);
        }
        if let Some(p) = self.get_idle_p(&mut core) {
            drop(core);
            return g0.acquire_p(p);
        }
        if let Some(p) = self.procs().find_map(IdleP::retake) {
            drop(core);
            self.calls.retaken.add_shared(1);
            self.room.call_is_out();
            g0.acquire_p(p);
        }
    }

    /// Switches to the goroutine; returns on g0 when it leaves. Its first run takes a stack (D3).
    #[inline]
    fn execute(&self, g0: &mut G0, g: Gp, inherits: bool) {
        let m = g0.m();
        let tp = if g.stack_hi.get() == 0 {
            self.take_stack(g0.held(), g);
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
        if g.senior.get() != Senior::No {
            g.senior.set(Senior::No);
        }
        g.status.transition(Status::Runnable, Status::Running);
        if !inherits {
            g0.held().p().begin_slice();
        }
        switch::resume(m, g, tp);
    }

    #[inline]
    fn take_stack(&self, w: Worker<'_>, g: Gp) {
        let class = g.class.get();
        let stack = if class == self.stack_class {
            let refill = |stacks: &mut [Stack]| self.arena.take_batch(class, stacks);
            w.local().stacks.take(refill)
        } else {
            self.arena.take(class)
        };
        g.set_stack(Some(stack));
        g.started.store(STARTED, Relaxed);
        // SAFETY: D4, the arena or the P's cache gave the stack to this goroutine alone.
        g.sp.set(unsafe { arch::prepare::<Begin>(stack.hi) });
    }
}
