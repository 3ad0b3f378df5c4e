//! R1–R7, I3, I4, I8, I9, S4, S5, PL: the local queues and the global one.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::*;
use crate::sched::model::g::{STARTED, Senior};
use crate::sched::model::runq::{OVERFLOW, RunQueue, Steal};
use crate::shim::RING;

/// Things to queue: their place in the array is their number.
fn items(n: usize) -> Vec<u32> {
    (0..n as u32).collect()
}

fn item(items: &[u32], index: usize) -> NonNull<u32> {
    NonNull::from(&items[index])
}

fn number(item: NonNull<u32>) -> usize {
    // SAFETY: R4, a queue gives out what was put in, and the items outlive it.
    *unsafe { item.as_ref() } as usize
}

fn fill(queue: &RunQueue<u32>, items: &[u32], range: std::ops::Range<usize>) {
    // SAFETY: R2, the test's thread is the only producer.
    let owner = unsafe { queue.owner() };
    range.for_each(|i| owner.put(item(items, i)).unwrap());
}

fn drain(queue: &RunQueue<u32>) -> Vec<usize> {
    // SAFETY: R2, as in `fill`.
    let owner = unsafe { queue.owner() };
    let taken = std::iter::from_fn(|| owner.get()).map(|(i, _)| number(i));
    taken.take(MANY).collect()
}

#[test]
fn r1_the_ring_has_256_slots_and_refuses_the_257th() {
    assert_eq!(RING, 256);
    let items = items(257);
    let queue = RunQueue::new();
    fill(&queue, &items, 0..256);
    assert_eq!(queue.len(), 256);
    // SAFETY: R2, as in `fill`.
    let owner = unsafe { queue.owner() };
    assert_eq!(owner.room(), 0);
    assert_eq!(owner.put(item(&items, 256)), Err(item(&items, 256)));
    assert_eq!(drain(&queue), (0..256).collect::<Vec<_>>());
    assert_eq!(queue.len(), 0);
}

#[test]
fn r1_the_counters_wrap() {
    let items = items(256);
    for at in [u32::MAX - 300, u32::MAX - 255, u32::MAX - 100, u32::MAX] {
        let (queue, thief) = (RunQueue::starting_at(at), RunQueue::starting_at(at / 2));
        for _ in 0..3 {
            fill(&queue, &items, 0..256);
            assert_eq!(queue.len(), 256);
            assert!(!queue.is_empty());
            // SAFETY: R2, as in `fill`.
            let to = unsafe { thief.owner() };
            assert!(matches!(
                queue.steal_into(&to, false, || ()),
                Steal::Moved(_, 128)
            ));
            assert_eq!(drain(&thief).len(), 127);
            assert_eq!(drain(&queue), (128..256).collect::<Vec<_>>());
            assert!(queue.is_empty());
        }
    }
}

#[test]
fn r2_a_thief_leaves_the_tail_alone() {
    let items = items(300);
    let (queue, thief) = (RunQueue::new(), RunQueue::new());
    fill(&queue, &items, 0..100);
    // SAFETY: R2, as in `fill`.
    let to = unsafe { thief.owner() };
    assert!(matches!(
        queue.steal_into(&to, false, || ()),
        Steal::Moved(_, 50)
    ));
    assert_eq!(queue.len(), 50);
    // What the owner puts next comes after what was there.
    fill(&queue, &items, 100..300);
    assert_eq!(drain(&queue), (50..300).collect::<Vec<_>>());
}

/// One owner and two thieves at full speed: every item comes out once (R2–R4, S1, S2, S4, S5, I3).
#[test]
fn r3_owner_and_thieves_lose_and_double_nothing() {
    const N: usize = 60_000;
    let items = items(N);
    let queue = RunQueue::new();
    let is_over = AtomicBool::new(false);
    let mut seen = std::thread::scope(|s| {
        let thieves: Vec<_> = (0..2)
            .map(|n| {
                let (queue, is_over) = (&queue, &is_over);
                s.spawn(move || {
                    let own = RunQueue::new();
                    let mut got = Vec::new();
                    while !is_over.load(SeqCst) {
                        // SAFETY: R2, the thief's own queue.
                        let to = unsafe { own.owner() };
                        match queue.steal_into(&to, n == 0, || ()) {
                            Steal::Moved(i, _) => got.push(number(i)),
                            Steal::Empty => std::thread::yield_now(),
                        }
                        got.extend(drain(&own));
                    }
                    got
                })
            })
            .collect();
        let mut got = Vec::new();
        // SAFETY: R2, the only producer.
        let owner = unsafe { queue.owner() };
        for i in 0..N {
            let new = if i % 3 == 0 {
                owner.put_next(item(&items, i))
            } else {
                Some(item(&items, i))
            };
            let Some(new) = new else { continue };
            if owner.put(new).is_err() {
                let mut half = [std::ptr::null_mut(); OVERFLOW];
                match owner.take_half(&mut half) {
                    Some(n) => {
                        got.extend(half[..n].iter().map(|i| number(NonNull::new(*i).unwrap())));
                        got.push(number(new));
                    }
                    // S4: a thief took goroutines, so this put cannot fail.
                    None => owner.put(new).expect("S4"),
                }
            }
            if i % 5 == 0 {
                got.extend(owner.get().map(|(i, _)| number(i)));
            }
        }
        got.extend(drain(&queue));
        is_over.store(true, SeqCst);
        for thief in thieves {
            got.extend(thief.join().unwrap());
        }
        got
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..N).collect::<Vec<_>>());
}

#[test]
fn s4_a_put_succeeds_at_once_where_a_thief_made_room() {
    let items = items(400);
    let (queue, thief) = (RunQueue::new(), RunQueue::new());
    fill(&queue, &items, 0..256);
    // SAFETY: R2, as in `fill`.
    let (owner, to) = unsafe { (queue.owner(), thief.owner()) };
    let mut half = [std::ptr::null_mut(); OVERFLOW];
    assert!(owner.put(item(&items, 256)).is_err());
    assert!(matches!(
        queue.steal_into(&to, false, || ()),
        Steal::Moved(_, 128)
    ));
    // The overflow that was about to happen is not needed any more, and takes nothing.
    assert_eq!(owner.take_half(&mut half), None);
    assert_eq!(owner.put(item(&items, 256)), Ok(()));
    assert_eq!(drain(&queue), (128..257).collect::<Vec<_>>());
}

#[test]
fn r5_next_is_apart_from_the_ring_and_taken_once() {
    let items = items(4);
    let (queue, thief) = (RunQueue::new(), RunQueue::new());
    // SAFETY: R2, as in `fill`.
    let (owner, to) = unsafe { (queue.owner(), thief.owner()) };
    assert_eq!(owner.put_next(item(&items, 0)), None);
    assert_eq!((queue.len(), queue.is_empty()), (0, false));
    assert_eq!(owner.put_next(item(&items, 1)), Some(item(&items, 0)));
    owner.put(item(&items, 0)).unwrap();
    assert_eq!(queue.peek_next(), item(&items, 1).as_ptr());
    assert_eq!(owner.get(), Some((item(&items, 1), true)));
    assert!(queue.peek_next().is_null());
    assert_eq!(owner.get(), Some((item(&items, 0), false)));
    assert_eq!(owner.get(), None);
    assert_eq!(owner.put_next(item(&items, 2)), None);
    match queue.steal_into(&to, true, || ()) {
        Steal::Moved(i, n) => assert_eq!((i, n), (item(&items, 2), 1)),
        Steal::Empty => panic!("the fourth round takes next"),
    }
    assert_eq!((owner.get(), to.get()), (None, None));
}

#[test]
fn r6_an_overflow_moves_half_the_ring_and_the_newcomer() {
    let sched = still(2);
    let (_, p) = m_with_p(&sched);
    let gs = runnable_gs(&sched, 257);
    gs.iter().for_each(|g| sched.runq_put(worker(p), *g));
    let mut expected = gs[..128].to_vec();
    expected.push(gs[256]);
    assert_eq!(global_members(&sched), expected);
    assert_eq!(sched.runq_len.load(Relaxed), 129);
    assert_eq!(drain_p(p), gs[128..256]);
    assert_eq!(p.counters.overflows.get(), 1);
}

#[test]
fn r6_a_kicked_next_overflows_too() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let gs = runnable_gs(&sched, 258);
    gs[..256].iter().for_each(|g| sched.runq_put(worker(p), *g));
    sched.runq_put_next(worker(p), gs[256]);
    assert_eq!(sched.runq_len.load(Relaxed), 0);
    sched.runq_put_next(worker(p), gs[257]);
    assert_eq!(sched.runq_len.load(Relaxed), 129);
    assert_eq!(p.runq.peek_next(), gs[257].as_ptr());
    assert_each_once(&drain_all(&sched), &gs);
}

#[test]
fn r7_the_global_queue_is_first_in_first_out_and_unbounded() {
    let sched = still(1);
    let gs = runnable_gs(&sched, 5000);
    for g in &gs {
        sched.global_put(&mut sched.core.lock(), *g);
    }
    assert_eq!(sched.runq_len.load(Relaxed), 5000);
    assert_eq!(drain_global(&sched), gs);
    assert!(sched.runq_is_empty());
}

/// A Runnable G that has run.
fn begun_g(sched: &Sched) -> Gp {
    let g = runnable_g(sched);
    g.started.store(STARTED, Relaxed);
    g
}

/// One that only its M may run.
fn locked_g(sched: &Sched) -> Gp {
    let (g, m) = (begun_g(sched), new_m(sched));
    g.lockedm.store(Some(m), Relaxed);
    g
}

/// What the queue promises, in two plain lists: woken goroutines, and all other fresh ones. Of 16
/// that are taken while both kinds wait, one was not woken.
#[derive(Default)]
struct Orders {
    woken: VecDeque<Gp>,
    others: VecDeque<Gp>,
    woken_in_a_row: u32,
}

impl Orders {
    fn pop(&mut self) -> Option<Gp> {
        if !self.others.is_empty() && (self.woken.is_empty() || self.woken_in_a_row == 15) {
            self.woken_in_a_row = 0;
            return self.others.pop_front();
        }
        self.woken_in_a_row += u32::from(!self.others.is_empty());
        self.woken.pop_front()
    }
}

/// Goroutines come out as from these lists, wherever they were put in.
#[test]
fn r7_woken_goroutines_have_one_order_and_the_others_another() {
    let sched = still(1);
    let (mut model, mut random) = (Orders::default(), 12345u64);
    let mut core = sched.core.lock();
    for step in 0..20_000 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
        let g = match (random >> 40) % 3 {
            0 => runnable_g(&sched),
            1 => begun_g(&sched),
            _ => locked_g(&sched),
        };
        let is_woken = g.has_started() && g.owner().is_none();
        let list = match is_woken {
            true => &mut model.woken,
            false => &mut model.others,
        };
        match (random >> 50) % 6 {
            0 if g.has_started() && random >> 60 & 1 == 0 => {
                core.runq.push_first(g, Senior::Yielded);
                model.others.push_front(g);
            }
            0 => {
                core.runq.push_first(g, Senior::Other);
                list.push_front(g);
            }
            1 => {
                core.runq.push(g);
                list.push_back(g);
            }
            2 if g.has_started() => {
                core.runq.push_left(g);
                model.others.push_back(g);
            }
            _ => assert_eq!(core.runq.pop(true), model.pop(), "step {step}"),
        }
        assert!(core.runq.is_sound(), "step {step}");
        assert_eq!(core.runq.len(), model.woken.len() + model.others.len());
    }
    while let Some(g) = model.pop() {
        assert_eq!(core.runq.pop(true), Some(g));
    }
    assert_eq!(core.runq.pop(true), None);
}

/// A burst of spawns does not delay a goroutine that was woken: it comes next, in a batch too.
#[test]
fn f2_a_woken_goroutine_comes_before_those_that_have_not_begun() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let woken = begun_g(&sched);
    let mut core = sched.core.lock();
    for g in runnable_gs(&sched, 1_000) {
        sched.global_put(&mut core, g);
    }
    sched.global_put(&mut core, woken);
    assert_eq!(sched.global_get_batch(&mut core, worker(p)), Some(woken));
    drop(core);
    drain_p(p);
}

/// And the others are not kept out, however many are woken.
#[test]
fn f2_a_fresh_goroutine_waits_for_at_most_15_woken_ones() {
    for make in [runnable_g, locked_g] {
        let sched = still(1);
        let others = [(); 3].map(|()| make(&sched));
        let mut core = sched.core.lock();
        for g in others {
            sched.global_put(&mut core, g);
        }
        for g in others {
            for waited in 0.. {
                sched.global_put(&mut core, begun_g(&sched));
                if sched.global_get(&mut core) == Some(g) {
                    assert_eq!(waited, 15);
                    break;
                }
                assert!(waited < 15, "starved");
            }
        }
    }
}

/// While no goroutine may begin, those that have not begun come last, even behind the spent ones.
#[test]
fn d7_at_the_limit_new_goroutines_come_last_and_keep_their_place() {
    let sched = still(1);
    let new = runnable_gs(&sched, 3);
    let begun: Vec<_> = (0..3).map(|_| begun_g(&sched)).collect();
    let (spent, locked) = (begun_g(&sched), locked_g(&sched));
    let mut core = sched.core.lock();
    sched.global_put_spent(&mut core, spent);
    for at in 0..3 {
        sched.global_put(&mut core, new[at]);
        sched.global_put(&mut core, begun[at]);
    }
    sched.global_put(&mut core, locked);
    sched.at_limit.store(true, Relaxed);
    for expected in [begun[0], begun[1]] {
        assert_eq!(sched.global_get(&mut core), Some(expected));
    }
    sched.at_limit.store(false, Relaxed);
    for expected in [begun[2], new[0]] {
        assert_eq!(sched.global_get(&mut core), Some(expected));
    }
    sched.at_limit.store(true, Relaxed);
    for expected in [locked, spent, new[1], new[2]] {
        assert_eq!(sched.global_get(&mut core), Some(expected));
    }
    assert_eq!(sched.global_get(&mut core), None);
}

/// F2: neither half keeps the other out, however many arrive.
#[test]
fn f2_a_spent_goroutine_waits_for_at_most_122_fresh_ones() {
    for is_at_limit in [false, true] {
        let sched = still(1);
        let spent: Vec<_> = (0..3).map(|_| begun_g(&sched)).collect();
        let mut core = sched.core.lock();
        for g in &spent {
            sched.global_put_spent(&mut core, *g);
        }
        sched.at_limit.store(is_at_limit, Relaxed);
        for g in spent {
            let mut waited = 0;
            loop {
                sched.global_put(&mut core, begun_g(&sched));
                match sched.global_get(&mut core) {
                    Some(taken) if taken == g => break,
                    Some(_) => waited += 1,
                    None => panic!("empty"),
                }
                assert!(waited <= 122, "starved");
            }
            assert!(waited > 50, "the woken come first");
        }
    }
}

/// The same for the fresh, however often the spent are hurried.
#[test]
fn f2_a_fresh_goroutine_waits_for_at_most_122_urgent_ones() {
    let sched = still(1);
    let fresh = begun_g(&sched);
    let mut core = sched.core.lock();
    sched.global_put(&mut core, fresh);
    let mut waited = 0;
    loop {
        sched.global_put_spent(&mut core, begun_g(&sched));
        core.runq.hurry_spent();
        if sched.global_get(&mut core) == Some(fresh) {
            break;
        }
        waited += 1;
        assert!(waited <= 122, "starved");
    }
    assert!(waited > 50, "the urgent come first");
}

/// The same where a P goes straight to the thread of an urgent one.
#[test]
fn f2_a_fresh_goroutine_waits_for_at_most_122_urgent_ones_with_threads_of_their_own() {
    let sched = still(1);
    let mut core = sched.core.lock();
    sched.global_put(&mut core, begun_g(&sched));
    for taken in 0.. {
        sched.global_put_urgent(&mut core, locked_g(&sched));
        if sched.global_get_owned(&mut core).is_none() {
            assert!(taken > 50, "the urgent come first");
            break;
        }
        assert!(taken < 122, "starved");
    }
}

#[test]
fn r7_a_batch_is_a_fair_share_and_at_most_128() {
    for (len, procs, expected) in [
        (0, 2, 0),
        (1, 1, 1),
        (1, 4, 1),
        (10, 2, 6),
        (10, 3, 4),
        (63, 64, 1),
        (64, 64, 2),
        (253, 2, 127),
        (254, 2, 128),
        (1000, 1, 128),
    ] {
        let sched = still(procs);
        let (_, p) = m_with_p(&sched);
        let gs = runnable_gs(&sched, len);
        gs.iter()
            .for_each(|g| sched.global_put(&mut sched.core.lock(), *g));
        let first = sched.global_get_batch(&mut sched.core.lock(), worker(p));
        let mut batch: Vec<Gp> = first.into_iter().collect();
        batch.extend(drain_p(p));
        assert_eq!(batch, gs[..expected], "{len} queued, {procs} Ps");
        assert_eq!(sched.runq_len.load(Relaxed), len - expected);
    }
}

#[test]
fn i3_i4_a_steal_takes_the_larger_half_from_the_head() {
    for n in 1..=256 {
        let items = items(n);
        let (queue, thief) = (RunQueue::new(), RunQueue::new());
        fill(&queue, &items, 0..n);
        // SAFETY: R2, as in `fill`.
        let to = unsafe { thief.owner() };
        let Steal::Moved(last, moved) = queue.steal_into(&to, false, || ()) else {
            panic!("nothing stolen of {n}");
        };
        let half = n.div_ceil(2);
        assert_eq!((moved as usize, number(last)), (half, half - 1), "of {n}");
        assert!(half <= 128);
        assert_eq!(drain(&thief), (0..half - 1).collect::<Vec<_>>());
        assert_eq!(drain(&queue), (half..n).collect::<Vec<_>>());
    }
}

#[test]
fn i8_next_is_left_alone_unless_the_ring_is_empty_and_the_round_allows_it() {
    let items = items(3);
    let (queue, thief) = (RunQueue::new(), RunQueue::new());
    // SAFETY: R2, as in `fill`.
    let (owner, to) = unsafe { (queue.owner(), thief.owner()) };
    assert_eq!(owner.put_next(item(&items, 0)), None);
    assert!(matches!(
        queue.steal_into(&to, false, || panic!("no pause")),
        Steal::Empty
    ));
    fill(&queue, &items, 1..2);
    assert!(matches!(
        queue.steal_into(&to, true, || panic!("no pause")),
        Steal::Moved(_, 1)
    ));
    // The victim has the length of the pause to run it itself.
    let pause = || assert_eq!(owner.get(), Some((item(&items, 0), true)));
    assert!(matches!(queue.steal_into(&to, true, pause), Steal::Empty));
}

/// Two victims, one with nothing but `next`: in any order of the visits, the ring of the other is
/// found first.
#[test]
fn i8_only_the_fourth_round_takes_next() {
    for seed in 1..100 {
        let sched = still(3);
        let (m, p) = m_with_p(&sched);
        let ((_, only_next), (_, ring)) = (m_with_p(&sched), m_with_p(&sched));
        let gs = runnable_gs(&sched, 2);
        sched.runq_put_next(worker(only_next), gs[0]);
        sched.runq_put(worker(ring), gs[1]);
        m.rng.set(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(seed));
        assert_eq!(sched.spin_and_steal(worker(p)), Some(gs[1]), "seed {seed}");
        assert_eq!(
            sched.spin_and_steal(worker(p)),
            Some(gs[0]),
            "F4: the fourth round"
        );
        assert_eq!(sched.spin_and_steal(worker(p)), None);
    }
}

#[test]
fn i9_stealing_takes_no_scheduler_lock() {
    let sched = still(2);
    let (_, p) = m_with_p(&sched);
    let (_, victim) = m_with_p(&sched);
    let gs = runnable_gs(&sched, 10);
    gs.iter().for_each(|g| sched.runq_put(worker(victim), *g));
    let core = sched.core.lock();
    // A second lock by this thread would be a fatal error in debug builds and hang in others.
    assert!(sched.spin_and_steal(worker(p)).is_some());
    drop(core);
    assert_eq!((p.runq.len(), victim.runq.len()), (4, 5));
}

#[test]
fn pl_the_owners_fast_paths_take_no_lock() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let gs = runnable_gs(&sched, 8);
    let dead: Vec<_> = (0..8).map(|_| dead_g(&sched)).collect();
    let mut was_called = false;
    // The walk over all Gs holds the lock of their blocks.
    sched.blocks.for_each(|_| {
        if std::mem::replace(&mut was_called, true) {
            return;
        }
        for g in &gs {
            sched.runq_put_next(worker(p), *g);
        }
        assert_eq!(drain_p(p).len(), 8);
        dead.iter().for_each(|g| sched.free_g(worker(p), *g));
        assert_eq!(worker(p).local().gfree.len(), 8);
    });
    let core = sched.core.lock();
    gs.iter().for_each(|g| sched.runq_put(worker(p), *g));
    assert_eq!(drain_p(p), gs);
    drop(core);
}
