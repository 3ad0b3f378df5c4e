//! U2, U4, L4: how many decisions a goroutine in each queue waits, however many goroutines come
//! later (`sched/README.md`, "Bounded waiting").

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::*;
use crate::sched::model::g::{STARTED, Senior};
use crate::sched::model::m::YIELD;
use crate::sched::model::p::FAIR_EVERY;
use crate::sched::park::enter;
use crate::shim::RING;
use crate::{go, thread};

/// Each link starts its successor and ends: the chain runs through `next` and never leaves it.
#[derive(Clone)]
struct Chain {
    links: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Chain {
    fn start() -> Chain {
        let chain = Chain {
            links: Arc::default(),
            is_over: Arc::default(),
        };
        chain.clone().link();
        chain
    }

    fn link(self) {
        self.links.fetch_add(1, SeqCst);
        if !self.is_over.load(SeqCst) {
            go(move || self.link());
        }
    }
}

/// Lets `queue` put goroutines somewhere beside a chain on one P; how many links had run when the
/// last of `n` ran.
fn links_until_run(n: usize, queue: impl Fn(&'static Sched, &dyn Fn()) + Sync) -> u64 {
    live(1, |sched| {
        let counts = Arc::new(std::sync::Mutex::new(Vec::new()));
        let keeps_p = park::no_preempt(PreemptOff::StoppingTheWorld);
        let rt = enter();
        let chain = Chain::start();
        queue(sched, &|| {
            let (chain, counts) = (chain.clone(), Arc::clone(&counts));
            go(move || counts.lock().unwrap().push(chain.links.load(SeqCst)));
        });
        drop(rt);
        drop(keeps_p);
        while counts.lock().unwrap().len() < n {
            thread::sleep(Duration::from_millis(1));
        }
        chain.is_over.store(true, SeqCst);
        *counts.lock().unwrap().last().unwrap()
    })
}

#[test]
fn u4_a_chain_through_next_does_not_keep_the_ring_waiting() {
    const OTHERS: u64 = 20;
    let links = links_until_run(OTHERS as usize, |_, spawn| {
        (0..OTHERS).for_each(|_| spawn());
        // The chain has been displaced from `next`; it is in the ring, too, until it has had its
        // turn.
    });
    let bound = u64::from(FAIR_EVERY) * (OTHERS + 2);
    assert!(links <= bound, "{links} links, at most {bound}");
}

#[test]
fn u4_l4_a_chain_through_next_does_not_keep_the_global_queue_waiting() {
    const OTHERS: u64 = 20;
    for put in [
        Sched::global_put,
        Sched::global_put_spent,
        Sched::global_put_urgent,
    ] {
        let links = links_until_run(OTHERS as usize, |sched, spawn| {
            for _ in 0..OTHERS {
                spawn();
                let (_, p) = here();
                let g = worker(p).queue().take_own_next().map(gp).unwrap();
                put(sched, &mut sched.core.lock(), g);
            }
        });
        let bound = 2 * u64::from(FAIR_EVERY) * (OTHERS + 2);
        assert!(links <= bound, "{links} links, at most {bound}");
    }
}

/// The slice is over: the goroutine in `next` does not inherit it but goes behind the others.
#[test]
fn u4_a_slice_that_is_over_is_not_inherited() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let gs = runnable_gs(&sched, 3);
    sched.runq_put(worker(p), gs[0]);
    sched.runq_put(worker(p), gs[1]);
    sched.runq_put_next(worker(p), gs[2]);
    worker(p).local().fairness.end_slice();
    assert_eq!(sched.decide(worker(p)), Some((gs[0], false)));
    // The 61st is still the 61st, and takes from the global queue first.
    let late = runnable_g(&sched);
    sched.global_put(&mut sched.core.lock(), late);
    for _ in 2..FAIR_EVERY {
        let (g, _) = sched.decide(worker(p)).unwrap();
        sched.runq_put(worker(p), g);
    }
    assert_eq!(p.counters.decisions.get(), 0);
    assert_eq!(sched.decide(worker(p)), Some((late, false)));
    assert_eq!(p.counters.decisions.get(), u64::from(FAIR_EVERY));
}

/// The order in which a goroutine of the ring (1) and the one in `next` (2) run after `leave` has
/// left the P.
fn order_after(leave: impl Fn(Mp) + Sync) -> Vec<u32> {
    live(1, |sched| {
        undisturbed_but_once(sched, || {
            let log = Arc::new(std::sync::Mutex::new(Vec::new()));
            let rt = enter();
            let (m, p) = here();
            count_anew(p);
            for number in [1, 2] {
                let log = Arc::clone(&log);
                go(move || log.lock().unwrap().push(number));
            }
            m.unask(YIELD);
            let before = preempts(sched);
            drop(rt);
            leave(m);
            while log.lock().unwrap().len() < 2 {
                crate::yield_now();
            }
            (log.lock().unwrap().clone(), preempts(sched) - before)
        })
    })
}

/// Repeats an observation until sysmon, or the test, has ended one slice in it and no more.
fn undisturbed_but_once(sched: &Sched, observe: impl Fn() -> (Vec<u32>, u64)) -> Vec<u32> {
    for _ in 0..100 {
        let (order, ends) = observe();
        if ends == 1 {
            return order;
        }
    }
    panic!("disturbed a hundred times, {} in all", preempts(sched));
}

/// A goroutine that was asked to leave ends the slice, wherever it leaves.
#[test]
fn u4_a_goroutine_that_was_asked_leaves_no_slice_to_next() {
    let order = order_after(|m| {
        let rt = enter();
        m.ask(YIELD);
        drop(rt);
    });
    assert_eq!(order, [1, 2]);
}

/// The same for one that the signal takes off its P.
#[test]
fn u4_u5_a_goroutine_that_is_interrupted_leaves_no_slice_to_next() {
    let order = order_after(|m| {
        let sched = m.sched();
        let before = sched.calls.parked.get();
        let began = Instant::now();
        while sched.calls.parked.get() == before && began.elapsed() < NEVER {
            std::hint::spin_loop();
        }
    });
    assert_eq!(order, [1, 2]);
}

/// Nothing else is there: `next` runs all the same, in a slice of its own.
#[test]
fn u4_next_alone_is_not_moved() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let g = runnable_g(&sched);
    sched.runq_put_next(worker(p), g);
    assert_eq!(decide_61st(&sched, p), Some(g));
}

/// Every slice ends early: the ring and both halves of the global queue have their turns all the
/// same.
#[test]
fn u2_slices_that_all_end_early_keep_no_queue_waiting() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let mut late = runnable_gs(&sched, 1_000);
    let (ring, fresh, spent) = (runnable_g(&sched), runnable_g(&sched), runnable_g(&sched));
    sched.runq_put(worker(p), ring);
    sched.global_put(&mut sched.core.lock(), fresh);
    sched.global_put_spent(&mut sched.core.lock(), spent);
    let mut ran = Vec::new();
    for _ in 0..4 * FAIR_EVERY {
        // Others come all the time, to all of these queues.
        sched.runq_put(worker(p), late.pop().unwrap());
        sched.global_put(&mut sched.core.lock(), late.pop().unwrap());
        sched.global_put_spent(&mut sched.core.lock(), late.pop().unwrap());
        worker(p).local().fairness.end_slice();
        ran.push(sched.decide(worker(p)).unwrap().0);
    }
    for g in [ring, fresh, spent] {
        assert!(ran.contains(&g));
    }
}

/// Neither `next` nor the global queue is ever empty: each queue has the turns that were promised.
#[test]
fn u2_u4_a_decision_for_each_queue_comes_in_time() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let [rings, fresh, spent] = [(); 3].map(|()| runnable_gs(&sched, 5));
    let mut late = runnable_gs(&sched, 10_000);
    rings.iter().for_each(|g| sched.runq_put(worker(p), *g));
    for (fresh, spent) in fresh.iter().zip(&spent) {
        sched.global_put(&mut sched.core.lock(), *fresh);
        sched.global_put_spent(&mut sched.core.lock(), *spent);
    }
    let mut ran = Vec::new();
    for _ in 0..2 * FAIR_EVERY * 6 {
        sched.runq_put_next(worker(p), late.pop().unwrap());
        for put in [
            Sched::global_put,
            Sched::global_put_spent,
            Sched::global_put_urgent,
        ] {
            put(&sched, &mut sched.core.lock(), late.pop().unwrap());
        }
        ran.push(sched.decide(worker(p)).unwrap().0);
    }
    let decisions = |of: &Gp| ran.iter().position(|g| g == of).map(|at| at + 1);
    let fair_every = FAIR_EVERY as usize;
    for i in 0..5 {
        for (queue, g, bound) in [
            ("ring", rings[i], fair_every * (i + 1) + 1),
            ("fresh", fresh[i], 2 * fair_every * (i + 1)),
            ("spent", spent[i], 2 * fair_every * (i + 1)),
        ] {
            let waited = decisions(&g);
            assert!(
                waited.is_some_and(|n| n <= bound),
                "{queue} {i}: {waited:?}"
            );
        }
    }
}

/// A goroutine that a batch took into a ring keeps its place in the global queue when the ring
/// overflows.
#[test]
fn u2_r6_an_overflow_puts_senior_goroutines_back_to_the_head() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let (old, new) = (runnable_gs(&sched, 40), runnable_gs(&sched, RING));
    let mut core = sched.core.lock();
    old.iter().for_each(|g| sched.global_put(&mut core, *g));
    assert_eq!(sched.global_get_batch(&mut core, worker(p)), Some(old[0]));
    let late = runnable_g(&sched);
    sched.global_put(&mut core, late);
    drop(core);
    new.iter().for_each(|g| sched.runq_put(worker(p), *g));
    let queued = drain_global(&sched);
    assert_eq!(queued[..39], old[1..], "first come, first served");
    assert_eq!(queued[39], late);
    let kept = drain_p(p);
    assert_each_once(&[&queued[40..], &kept[..]].concat(), &new);
    for g in [&queued[..], &kept[..]].concat() {
        assert_eq!(g.senior.get(), Senior::No);
    }
}

/// An overflow puts goroutines that have yielded back before others that have yielded, and behind
/// woken ones. Otherwise batches and overflows in turn would move a woken goroutine back for ever.
#[test]
fn u2_r6_an_overflow_puts_those_that_have_yielded_behind_woken_ones() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let begun = |n| {
        let gs = runnable_gs(&sched, n);
        gs.iter().for_each(|g| g.started.store(STARTED, Relaxed));
        gs
    };
    let (woken, yielded, new) = (begun(200), begun(200), runnable_gs(&sched, RING));
    let mut core = sched.core.lock();
    woken.iter().for_each(|g| sched.global_put(&mut core, *g));
    for g in &yielded {
        sched.global_put_left(&mut core, *g);
    }
    assert_eq!(sched.global_get_batch(&mut core, worker(p)), Some(woken[0]));
    drop(core);
    let in_ring = yielded.iter().filter(|g| g.senior.get() != Senior::No);
    assert!(in_ring.count() > 5, "the batch has both");
    new.iter().for_each(|g| sched.runq_put(worker(p), *g));
    let queued = drain_global(&sched);
    let order_of = |gs: &[Gp]| {
        queued
            .iter()
            .filter(|g| gs.contains(g))
            .copied()
            .collect::<Vec<_>>()
    };
    assert_eq!(order_of(&woken), woken[1..]);
    assert_eq!(order_of(&yielded), yielded);
    let last_woken = queued.iter().position(|g| *g == woken[199]).unwrap();
    let between = last_woken - 198;
    assert!(
        between <= 199 / 15 + 1,
        "{between} came before the last woken one"
    );
    drain_p(p);
}

/// The queue of a removed P is not put before goroutines that waited longer.
#[test]
fn u2_u7_the_queue_of_a_p_that_goes_waits_for_its_turn() {
    let sched = still(2);
    let p = sched.p(1);
    let gs = runnable_gs(&sched, 4);
    sched.global_put(&mut sched.core.lock(), gs[0]);
    sched.runq_put(worker(p), gs[1]);
    sched.runq_put(worker(p), gs[2]);
    sched.runq_put_next(worker(p), gs[3]);
    sched.retire_p(&mut sched.core.lock(), idle(p).hold());
    assert_eq!(drain_global(&sched), [gs[0], gs[3], gs[1], gs[2]]);
}

/// Seniority ends with the next run.
#[test]
fn u2_a_goroutine_that_ran_is_not_senior_any_more() {
    live(1, |sched| {
        let is_senior = || current_g().unwrap().senior.get() != Senior::No;
        assert!(!is_senior());
        // More than one in the global queue: a batch takes this goroutine into the ring.
        let parked = thread::spawn(thread::park);
        for _ in 0..100 {
            crate::yield_now();
            assert!(!is_senior());
            let rt = enter();
            let g = current_g().unwrap();
            g.senior.set(Senior::Yielded);
            drop(rt);
            crate::yield_now();
            assert!(!is_senior(), "it has run since");
        }
        parked.thread().unpark();
        parked.join().unwrap();
        assert!(sched.runq_is_empty());
    });
}

/// A goroutine without a thread of its own is found in a ring that is full, and everything else
/// stays in its place.
#[test]
fn d9_a_p_is_searched_for_an_owned_goroutine_whatever_it_holds() {
    for at in [None, Some(0), Some(100), Some(RING - 1)] {
        let sched = still(1);
        let p = sched.get_idle_p(&mut sched.core.lock()).unwrap().into_p();
        let mut gs = runnable_gs(&sched, RING + 1);
        let m = new_m(&sched);
        if let Some(at) = at {
            gs[at].m.store(Some(m), Relaxed);
            sched.bind_here(&mut sched.core.lock(), m, gs[at]);
        } else {
            sched.core.lock().nmidlelocked = 1; // one M waits so, and its goroutine is not in this queue
        }
        gs[..RING]
            .iter()
            .for_each(|g| sched.runq_put(worker(p), *g));
        sched.runq_put_next(worker(p), gs[RING]);
        let back = sched.give_to_owned(&mut sched.core.lock(), idle(p));
        assert_eq!(back.is_none(), at.is_some());
        let next = gs.pop().unwrap();
        if let Some(at) = at {
            gs.remove(at);
        }
        gs.insert(0, next);
        assert_eq!(drain_p(p), gs, "owned at {at:?}");
    }
}

/// Where only goroutines with threads of their own can run, both halves of the queue have their
/// turns.
#[test]
fn u2_d9_owned_goroutines_of_both_halves_take_turns() {
    let sched = still(1);
    let owned = || {
        let (g, m) = (runnable_g(&sched), new_m(&sched));
        g.started.store(crate::sched::model::g::STARTED, Relaxed);
        g.lockedm.store(Some(m), Relaxed);
        g
    };
    let spent = owned();
    let mut core = sched.core.lock();
    sched.global_put_spent(&mut core, spent);
    let mut taken = Vec::new();
    for _ in 0..3 {
        // One that yields again and again.
        sched.global_put(&mut core, owned());
        taken.extend(sched.global_take_owned(&mut core).map(|(g, _)| g));
    }
    assert_eq!(taken.len(), 3);
    assert!(taken.contains(&spent));
}

/// A P that has made decisions since the world was started owes none before the next stop.
#[test]
fn u7_a_turn_between_stops_is_owed_until_decisions_are_made() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    worker(p).local().has_yet_to_decide.set(true);
    decide_61st(&sched, p);
    assert!(!worker(p).local().has_yet_to_decide.get());
}
