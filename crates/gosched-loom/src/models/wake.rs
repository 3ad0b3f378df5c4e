//! Submitting against stopping to spin (WK): no runnable goroutine is left with an idle P and no
//! spinning M.
//!
//! [`World`] is the scheduler reduced to what the protocol needs: the library's own run queues and
//! [`Spin`]. Around them it repeats, step by step, what `idle.rs`, `schedule.rs`, `steal.rs` and
//! `global.rs` do with the scheduler lock, the idle list and the global queue. An M that runs a
//! goroutine keeps its P for good. An M that is started is only recorded, and stays counted as
//! spinning. So when all threads of a story have ended nothing changes any more, and
//! [`World::assert_work_conserved`] checks the final state.
//!
//! Why the fences come in pairs. The submitter stores into a queue and loads `nmspinning`; the
//! stopping M decrements `nmspinning` and loads the queues. Nothing else orders a store before a
//! later load of another word.
//!
//! - Without wake/1 the submitter may count the M that has already stopped: its load runs before
//!   its own store is visible.
//! - Without wake/2 the M may re-check a queue as it was before the submission: its loads run
//!   before its decrement is visible.
//!
//! Either way the submitter relies on the M and the M on the submitter. The goroutine stays where
//! it is and the M's P is idle. need/1 and need/2 are the same for `need` and `npidle`: without one
//! of them a submitter sees no idle P while the P that goes idle sees no `need`. Removing any one
//! of the fences in `submitted`, `submitted_by_rmw`, `Spin::end`, `Spin::set_needed` or
//! `idle_p_added` fails the stories that name it. need/3 can be removed without a failure here: a
//! spinner that missed something looks again behind wake/2 when it ends.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use loom::sync::{Mutex, MutexGuard};
use loom::thread;

use super::{Items, Plain, explore};
use crate::runq::{Owner, RunQueue, Steal};
use crate::shim::{AtomicUsize, Relaxed, SeqCst};
use crate::spin::{self, Spin, Spinning};

/// What the scheduler lock guards.
struct Core {
    pidle: Vec<usize>,
    /// The global queue, by the items' numbers.
    runq: VecDeque<usize>,
    /// Ps given to Ms that were started, and whether those spin.
    started: Vec<(usize, bool)>,
}

/// The part of an M that matters here.
struct M {
    p: usize,
    spinning: Option<Spinning>,
}

/// The result of giving up the P.
enum IdleResult {
    Found(NonNull<Plain>),
    LookAgain,
    Parked,
}

struct World {
    core: Mutex<Core>,
    spin: Spin,
    /// Bit i: P i is on the idle list.
    idle_mask: AtomicUsize,
    runq_len: AtomicUsize,
    queues: Vec<RunQueue<Plain>>,
    items: Items,
}

impl World {
    /// A world in which every P is held.
    fn new(ps: usize, items: usize) -> Arc<World> {
        Arc::new(World {
            core: Mutex::new(Core {
                pidle: Vec::new(),
                runq: VecDeque::new(),
                started: Vec::new(),
            }),
            spin: Spin::new(),
            idle_mask: AtomicUsize::new(0),
            runq_len: AtomicUsize::new(0),
            queues: (0..ps).map(|_| RunQueue::new()).collect(),
            items: Items::new(items),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap()
    }

    fn owner(&self, p: usize) -> Owner<'_, Plain> {
        // SAFETY: R2. In every story one thread at a time acts as the M of p.
        unsafe { self.queues[p].owner() }
    }

    // Submitting.

    /// A spawn or a ready on p.
    fn submit_next(&self, p: usize, item: usize) {
        match self.owner(p).put_next(self.items.make(item)) {
            Some(kicked) => {
                assert!(self.owner(p).put(kicked).is_ok());
                spin::submitted();
            }
            None => spin::submitted_by_rmw(),
        }
        self.wake_p();
    }

    /// A batch of one for p's ring.
    fn submit_ring(&self, p: usize, item: usize) {
        assert!(self.owner(p).put(self.items.make(item)).is_ok());
        spin::submitted();
        self.wake_p();
    }

    /// A spawn or a ready from outside: in one locked step.
    fn inject(&self, item: usize) {
        self.items.make(item);
        let mut core = self.lock();
        core.runq.push_back(item);
        self.mirror_len(&core);
        self.wake_after_put(core);
    }

    fn wake_after_put(&self, core: MutexGuard<'_, Core>) {
        spin::submitted();
        if self.spin.has_no_spinner()
            && let Some(spinning) = self.spin.claim_wake()
        {
            self.start_claimed(core, spinning);
        }
    }

    /// A goroutine yields to the global queue.
    fn submit_global(&self, item: usize) {
        self.items.make(item);
        let mut core = self.lock();
        core.runq.push_back(item);
        self.mirror_len(&core);
        drop(core);
        spin::submitted_by_rmw();
        self.wake_p();
    }

    fn mirror_len(&self, core: &Core) {
        // ORDER: Relaxed; loaded without the lock only behind the fences of the wake protocol.
        self.runq_len.store(core.runq.len(), Relaxed);
    }

    // idle.rs

    fn wake_p(&self) {
        if self.spin.has_no_spinner()
            && self.has_idle_p_or_tells_sysmon()
            && let Some(spinning) = self.spin.claim_wake()
        {
            self.start_claimed(self.lock(), spinning);
        }
    }

    fn has_idle_p_or_tells_sysmon(&self) -> bool {
        self.spin.has_idle_p_or_sets_need()
    }

    fn start_claimed(&self, mut core: MutexGuard<'_, Core>, spinning: Spinning) {
        match self.get_idle_p(&mut core) {
            Some(p) => {
                core.started.push((p, true));
                std::mem::forget(spinning); // the M that starts has it
            }
            None => {
                self.spin.set_needed();
                // Under the lock: a thread that sees the claim there relies on the claimer's check
                // of the idle list.
                self.spin.end(spinning);
            }
        }
    }

    fn hand_off_p(&self, p: usize) {
        let mut core = self.lock();
        if !self.queues[p].is_empty() || !core.runq.is_empty() {
            core.started.push((p, false));
            return;
        }
        let nobody_looks = self.spin.count() == 0 && core.pidle.is_empty();
        if nobody_looks && let Some(spinning) = self.spin.claim_wake() {
            core.started.push((p, true));
            std::mem::forget(spinning); // the M that starts has it
            return;
        }
        self.put_idle_p(&mut core, p);
        drop(core);
        spin::idle_p_added();
        if self.spin.is_needed() || self.runq_len.load(Relaxed) != 0 {
            self.wake_p();
        }
    }

    fn put_idle_p(&self, core: &mut Core, p: usize) {
        assert!(self.queues[p].is_empty(), "P2: an idle P has no work");
        core.pidle.push(p);
        self.idle_mask.fetch_or(1 << p, Relaxed);
        self.spin.npidle.fetch_add(1, SeqCst);
    }

    fn get_idle_p(&self, core: &mut Core) -> Option<usize> {
        let p = core.pidle.pop()?;
        self.idle_mask.fetch_and(!(1 << p), Relaxed);
        self.spin.npidle.fetch_sub(1, SeqCst);
        Some(p)
    }

    fn begin_spinning(&self, m: &mut M) {
        m.spinning = Some(self.spin.begin());
    }

    // schedule.rs and steal.rs

    /// The M searches until it has run one goroutine, or has parked.
    fn look(&self, mut m: M) {
        while let Some(found) = self.find_runnable(&mut m) {
            if let Some(item) = found {
                if let Some(spinning) = m.spinning.take() {
                    self.spin.end(spinning);
                    if self.has_work() {
                        self.wake_p();
                    }
                }
                self.items.run(item);
                return;
            }
        }
    }

    /// An M that does not spin and has found nothing: it drops its P, unless `need` or work shows
    /// up.
    fn drop_p(&self, p: usize) {
        let mut m = self.quiet_m(p);
        match self.give_up_p(&mut m) {
            IdleResult::Found(item) => {
                self.items.run(item);
            }
            IdleResult::LookAgain => self.look(m),
            IdleResult::Parked => {}
        }
    }

    /// One round of the search: Some(None) wants another, None has parked.
    fn find_runnable(&self, m: &mut M) -> Option<Option<NonNull<Plain>>> {
        if let Some((item, _)) = self.owner(m.p).get() {
            return Some(Some(item));
        }
        if self.runq_len.load(Relaxed) != 0
            && let Some(item) = self.global_get(&mut self.lock())
        {
            return Some(Some(item));
        }
        if let Some(item) = self.spin_and_steal(m) {
            return Some(Some(item));
        }
        match self.give_up_p(m) {
            IdleResult::Found(item) => Some(Some(item)),
            IdleResult::LookAgain => Some(None),
            IdleResult::Parked => None,
        }
    }

    fn global_get(&self, core: &mut Core) -> Option<NonNull<Plain>> {
        let item = core.runq.pop_front();
        self.mirror_len(core);
        item.map(|item| self.items.at(item))
    }

    /// Only the fourth sweep; the others see less.
    fn spin_and_steal(&self, m: &mut M) -> Option<NonNull<Plain>> {
        if m.spinning.is_none() {
            let busy = self.queues.len() - self.spin.npidle.load(Relaxed) as usize;
            if 2 * self.spin.count() as usize >= busy {
                return None;
            }
            self.begin_spinning(m);
        }
        let victims = (0..self.queues.len()).filter(|&victim| victim != m.p);
        for victim in victims {
            if let Steal::Moved(item, _) =
                self.queues[victim].steal_into(&self.owner(m.p), true, || {})
            {
                return Some(item);
            }
        }
        None
    }

    fn give_up_p(&self, m: &mut M) -> IdleResult {
        let mut core = self.lock();
        if let Some(item) = self.global_get(&mut core) {
            return IdleResult::Found(item);
        }
        if m.spinning.is_none() && self.spin.is_needed() {
            drop(core);
            self.begin_spinning(m);
            return IdleResult::LookAgain;
        }
        self.put_idle_p(&mut core, m.p);
        drop(core);
        if let Some(spinning) = m.spinning.take() {
            self.spin.end(spinning);
            if self.has_work() && self.take_idle_p_spinning(m) {
                return IdleResult::LookAgain;
            }
        }
        spin::idle_p_added();
        if self.spin.is_needed() && self.take_idle_p_spinning(m) {
            return IdleResult::LookAgain;
        }
        IdleResult::Parked
    }

    fn has_work(&self) -> bool {
        self.runq_len.load(Relaxed) != 0 || self.procs_in_use().any(|queue| !queue.is_empty())
    }

    fn procs_in_use(&self) -> impl Iterator<Item = &RunQueue<Plain>> {
        let idle = self.idle_mask.load(Relaxed);
        let ps = self.queues.iter().enumerate();
        ps.filter_map(move |(p, queue)| (idle >> p & 1 == 0).then_some(queue))
    }

    fn take_idle_p_spinning(&self, m: &mut M) -> bool {
        let mut core = self.lock();
        let Some(p) = self.get_idle_p(&mut core) else {
            self.spin.set_needed();
            return false;
        };
        drop(core);
        m.p = p;
        self.begin_spinning(m);
        true
    }

    // The final state.

    /// WK, when nothing changes any more: work and an idle P only if a started M is about to
    /// search.
    fn assert_work_conserved(&self) {
        let core = self.lock();
        let spinning = core.started.iter().filter(|(_, spins)| *spins).count();
        assert_eq!(self.spin.count() as usize, spinning, "I6: nmspinning");
        assert!(
            self.items.have_all_run() || core.pidle.is_empty() || spinning > 0,
            "WK: a runnable goroutine, an idle P, and nobody looking"
        );
    }

    /// The M of the last P, spinning since before the story.
    fn spinning_m(&self) -> M {
        let mut m = self.quiet_m(self.queues.len() - 1);
        self.begin_spinning(&mut m);
        m
    }

    fn quiet_m(&self, p: usize) -> M {
        M { p, spinning: None }
    }
}

/// Runs a submission against an M that spins, finds nothing or something, and stops.
fn submit_against_stop(submit: fn(&World)) {
    explore(None, move || {
        let world = World::new(2, 1);
        let m = world.spinning_m();
        let stopping = thread::spawn({
            let world = world.clone();
            move || world.look(m)
        });
        submit(&world);
        stopping.join().unwrap();
        world.assert_work_conserved();
    });
}

/// The goroutine goes to the tail of the ring, a plain store. Fails without the fence in
/// `submitted` (wake/1) or the one in `Spin::end` (wake/2), and if the M re-checks nothing.
#[test]
fn wk_a_ring_submission_against_a_stopping_m() {
    submit_against_stop(|world| world.submit_ring(0, 0));
}

/// The goroutine goes to `next`, a swap. Fails without the fence in `submitted_by_rmw` or in
/// `Spin::end` (where swaps are no barriers), and if the re-check overlooks `next`.
#[test]
fn wk_a_next_submission_against_a_stopping_m() {
    submit_against_stop(|world| world.submit_next(0, 0));
}

/// The goroutine comes from a thread outside, through the global queue. Fails without the fence in
/// `submitted` or in `Spin::end`, and if the re-check overlooks the global queue.
#[test]
fn wk_an_injection_against_a_stopping_m() {
    submit_against_stop(|world| world.inject(0));
}

/// The goroutine yields to the global queue. Fails as the one with `next` does.
#[test]
fn wk_a_yield_against_a_stopping_m() {
    submit_against_stop(|world| world.submit_global(0));
}

/// The submitter's M takes its P off the idle list first, and the stopping M re-checks only the Ps
/// that are not on the list. Fails if the bit is cleared after the submission.
#[test]
fn wk_a_submission_on_a_p_that_was_idle_against_a_stopping_m() {
    explore(Some(4), || {
        let world = World::new(3, 1);
        let m = world.spinning_m();
        world.put_idle_p(&mut world.lock(), 0);
        let stopping = thread::spawn({
            let world = world.clone();
            move || world.look(m)
        });
        // The spinner takes none before it has dropped its own.
        let p = world.get_idle_p(&mut world.lock()).unwrap();
        world.submit_ring(p, 0);
        stopping.join().unwrap();
        world.assert_work_conserved();
    });
}

/// Two submissions, one from inside and one from outside, and a stopping M. The submitter that
/// claims the wake does it for both. An M that finds one of the goroutines recruits a successor for
/// the other.
#[test]
fn wk_two_submissions_against_a_stopping_m() {
    explore(Some(4), || {
        let world = World::new(2, 2);
        let m = world.spinning_m();
        let stopping = thread::spawn({
            let world = world.clone();
            move || world.look(m)
        });
        let outside = thread::spawn({
            let world = world.clone();
            move || world.inject(1)
        });
        world.submit_next(0, 0);
        stopping.join().unwrap();
        outside.join().unwrap();
        world.assert_work_conserved();
    });
}

/// The second race: the submitter finds no idle P, because the other M still holds its own. That M
/// does not spin, so it re-checks nothing when it drops the P a moment later. `need` makes it
/// search again. Fails
///
/// - without the fence in `set_needed` (need/1) or in `idle_p_added` (need/2),
/// - if `set_needed` does nothing, and
/// - if the M does not load `need` behind its fence.
#[test]
fn wk_need_stops_an_m_that_has_not_spun() {
    explore(None, || {
        let world = World::new(2, 1);
        let dropping = thread::spawn({
            let world = world.clone();
            move || world.drop_p(1)
        });
        world.submit_next(0, 0);
        dropping.join().unwrap();
        world.assert_work_conserved();
    });
}

/// The same with a P that is handed off because its thread ends. The thread that hands it off
/// starts no M while an M spins. That M finds one of two goroutines at this very moment and wants a
/// successor for the other, but sees no idle P yet. Fails without need/1 or need/2, and if a
/// hand-off does not load `need`.
#[test]
fn wk_need_meets_a_hand_off() {
    explore(None, || {
        let world = World::new(3, 2);
        for item in 0..2 {
            assert!(world.owner(0).put(world.items.make(item)).is_ok());
        }
        let m = world.spinning_m();
        let finding = thread::spawn({
            let world = world.clone();
            move || world.look(m)
        });
        world.hand_off_p(1);
        finding.join().unwrap();
        world.assert_work_conserved();
    });
}

/// An injection claims the wake and finds no idle P. An M takes its goroutine at once; its thread
/// then ends and hands off its P. Another goroutine is submitted. Both see a claim, and rely on the
/// claimer. So the claim must not outlive the claimer's check of the idle list: it is given back
/// under the same lock. Fails if `give_up` comes after the unlock.
#[test]
fn wk_a_hand_off_does_not_trust_a_dying_claim() {
    explore(None, || {
        let world = World::new(2, 2);
        let ending = thread::spawn({
            let world = world.clone();
            move || {
                if let Some(item) = world.global_get(&mut world.lock()) {
                    world.items.run(item);
                }
                world.hand_off_p(1);
            }
        });
        let outside = thread::spawn({
            let world = world.clone();
            move || world.inject(1)
        });
        world.submit_next(0, 0);
        ending.join().unwrap();
        outside.join().unwrap();
        world.assert_work_conserved();
    });
}

/// Three Ps, two Ms that do not spin at first, a submission and an injection, in any order: a claim
/// that finds no idle P, an M that is needed, finds work and recruits a successor, another that
/// drops its P meanwhile. Fails if `give_up` comes after the unlock, and if a spinner that finds
/// work does not wake another M.
#[test]
fn wk_two_submissions_and_two_ms() {
    explore(Some(3), || {
        let world = World::new(3, 2);
        let ms = [1, 2].map(|p| {
            let world = world.clone();
            thread::spawn(move || world.drop_p(p))
        });
        let outside = thread::spawn({
            let world = world.clone();
            move || world.inject(1)
        });
        world.submit_next(0, 0);
        for m in ms {
            m.join().unwrap();
        }
        outside.join().unwrap();
        world.assert_work_conserved();
    });
}
