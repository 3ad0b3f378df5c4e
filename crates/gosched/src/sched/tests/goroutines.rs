//! G0–G6, I2, I10, GF: states, edges, and where a goroutine is.

use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::*;
#[cfg(debug_assertions)]
use crate::base::lock::{Lock, Rank};
use crate::sched::model::g::{G, WaitReason};
use crate::sched::model::gstatus::{StatusWord, edge_exists};
use crate::sched::model::p::{GFREE_KEEP, GFREE_MAX, PStatus};
use crate::sched::model::ptr::AtomicRef;
use crate::sched::park::enter;
use crate::sched::waiting::waitq::{Outcome, QueueEnd, WaitKind, WaitNode, WaitQueue, Waiter};
use crate::sched::waiting::wakelist::WakeList;
use crate::tests::eventually;
use crate::thread;

const ALL: [Status; 9] = [
    Status::Idle,
    Status::Runnable,
    Status::Running,
    Status::Syscall,
    Status::Waiting,
    Status::Dead,
    Status::CopyStack,
    Status::Preempted,
    Status::Leaked,
];

/// The diagram, written down a second time.
fn edges_from(from: Status) -> &'static [Status] {
    use Status::*;
    match from {
        Idle => &[Dead],
        Dead => &[Runnable],
        Runnable => &[Running],
        Running => &[Runnable, Syscall, Waiting, Dead, CopyStack, Preempted],
        Syscall => &[Runnable, Running],
        Waiting => &[Runnable, CopyStack, Leaked],
        CopyStack => &[Running, Waiting],
        Preempted => &[Waiting],
        Leaked => &[Waiting],
    }
}

#[test]
fn g0_exactly_the_edges_of_the_diagram_exist() {
    for from in ALL {
        for to in ALL {
            let expected = edges_from(from).contains(&to);
            assert_eq!(edge_exists(from, to), expected, "{from:?} to {to:?}");
            if expected {
                let word = StatusWord::new(from);
                word.transition(from, to);
                assert_eq!(word.get(), to);
            }
        }
    }
}

#[test]
fn g0_a_new_goroutine_goes_from_idle_over_dead_to_runnable() {
    let sched = still(1);
    let g = dead_g(&sched);
    assert_eq!(g.status.get(), Status::Dead);
    assert!(std::ptr::eq(g.sched(), &*sched));
    g.status.transition(Status::Dead, Status::Runnable);
    assert_eq!(g.status.get(), Status::Runnable);
}

#[test]
fn g0_an_edge_that_does_not_exist_is_fatal() {
    if child::is_one() {
        return live(1, |_| crate::testing::illegal_status_change());
    }
    let text = "fatal error: illegal goroutine status change 2 -> 10 (status is 2)";
    child::assert_dies(
        module_path!(),
        "g0_an_edge_that_does_not_exist_is_fatal",
        text,
    );
}

#[test]
fn g0_an_edge_from_another_state_is_fatal() {
    if child::is_one() {
        return StatusWord::new(Status::Running).transition(Status::Waiting, Status::Runnable);
    }
    let text = "fatal error: illegal goroutine status change 4 -> 1 (status is 2)";
    child::assert_dies(
        module_path!(),
        "g0_an_edge_from_another_state_is_fatal",
        text,
    );
}

/// Four threads want the Scan bit over one state: a swap gives it to one. What all interleavings do
/// is in the models.
#[test]
fn g1_one_of_several_swaps_wins() {
    const ROUNDS: usize = 2_000;
    let word = StatusWord::new(Status::Waiting);
    let wins = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..ROUNDS {
                    if word.begin_scan(Status::Waiting) {
                        wins.fetch_add(1, Relaxed);
                        word.end_scan(Status::Waiting); // fatal if another thread cleared it
                    }
                }
            });
        }
    });
    assert!((1..=4 * ROUNDS).contains(&wins.load(Relaxed)));
    assert!(!word.is_scanned());
}

#[test]
fn g2_i2_a_running_goroutine_has_its_m_and_p_and_is_on_no_queue() {
    live(2, |sched| {
        let look = move || {
            let rt = enter();
            let (m, g) = (rt.m().unwrap(), current_g().unwrap());
            assert_eq!(g.status.get(), Status::Running);
            assert_eq!(g.m.load(Relaxed), Some(m));
            assert_eq!(m.curg(), Some(g));
            let p = m.p.load(Relaxed).unwrap();
            assert_eq!(p.m.load(Relaxed), Some(m));
            assert_eq!(p.status(), PStatus::Running);
            assert_ne!(p.runq.peek_next(), g.as_ptr());
            assert!(!global_members(sched).contains(&g));
        };
        look();
        let others: Vec<_> = (0..20)
            .map(|_| {
                thread::spawn(move || {
                    look();
                    crate::yield_now();
                    look();
                    thread::park_timeout(Duration::from_millis(1));
                    look();
                })
            })
            .collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        look();
    });
}

#[test]
fn i2_what_is_taken_to_run_is_on_no_queue() {
    let sched = still(2);
    let (_, p) = m_with_p(&sched);
    let gs = runnable_gs(&sched, 6);
    sched.runq_put_next(worker(p), gs[0]);
    gs[1..4].iter().for_each(|g| sched.runq_put(worker(p), *g));
    gs[4..]
        .iter()
        .for_each(|g| sched.global_put(&mut sched.core.lock(), *g));
    let queue = worker(p).queue();
    let mut taken = vec![gp(queue.get().unwrap().0), gp(queue.get().unwrap().0)];
    taken.push(sched.global_get(&mut sched.core.lock()).unwrap());
    let rest = drain_all(&sched);
    assert!(taken.iter().all(|g| !rest.contains(g)));
    taken.extend(rest);
    assert_each_once(&taken, &gs);
}

/// Every way a runnable goroutine moves, in turn; after each it is found in one place.
#[test]
fn g3_a_runnable_goroutine_is_on_one_queue() {
    let sched = still(3);
    let ((_, to), (_, from)) = (m_with_p(&sched), m_with_p(&sched));
    let gs = runnable_gs(&sched, 400);
    let refill = |found: Vec<Gp>| {
        assert_each_once(&found, &gs);
        gs[..300]
            .iter()
            .for_each(|g| sched.runq_put(worker(from), *g)); // overflows once
        gs[300..310]
            .iter()
            .for_each(|g| sched.runq_put_next(worker(from), *g)); // kicks nine
        gs[310..]
            .iter()
            .for_each(|g| sched.global_put(&mut sched.core.lock(), *g));
    };
    refill(gs.clone());
    refill(drain_all(&sched));
    for _ in 0..20 {
        let stolen = sched.spin_and_steal(worker(to)).into_iter();
        let batch = sched
            .global_get_batch(&mut sched.core.lock(), worker(to))
            .into_iter();
        let mut found: Vec<_> = stolen.chain(batch).collect();
        found.extend(drain_all(&sched));
        refill(found);
    }
    let mut list = GQueue::new();
    let found = drain_all(&sched);
    found.iter().for_each(|g| list.push_back(*g));
    sched.inject_list(Some(worker(to)), &mut list);
    assert!(list.is_empty());
    assert_each_once(&drain_all(&sched), &gs);
}

#[test]
fn i10_everything_stolen_is_runnable() {
    let sched = still(2);
    let ((_, p), (_, victim)) = (m_with_p(&sched), m_with_p(&sched));
    let gs = runnable_gs(&sched, 9);
    gs.iter()
        .for_each(|g| sched.runq_put_next(worker(victim), *g));
    let mut stolen = Vec::new();
    while let Some(g) = sched.spin_and_steal(worker(p)) {
        stolen.push(g);
        stolen.extend(drain_p(p));
    }
    assert!(stolen.iter().all(|g| g.status.get() == Status::Runnable));
    assert_each_once(&stolen, &gs);
}

/// A wait with two possible ends has one place and one waker: once the timer has woken the
/// goroutine, an unpark finds no waiter and leaves its token.
#[test]
fn g4_a_waiting_goroutine_is_woken_by_one_of_two() {
    live(1, |_| {
        let began = Instant::now();
        while !an_unpark_meets_the_timer() {
            assert!(began.elapsed() < NEVER);
        }
    });
}

/// False if the goroutine ran before the unpark, because this thread had no CPU for a while.
fn an_unpark_meets_the_timer() -> bool {
    static SLEEPER: AtomicRef<G> = AtomicRef::none();
    static IS_PAST: AtomicBool = AtomicBool::new(false);
    SLEEPER.store(None, SeqCst);
    IS_PAST.store(false, SeqCst);
    let sleeper = thread::spawn(|| {
        SLEEPER.store(current_g(), SeqCst);
        thread::park_timeout(Duration::from_millis(5));
        IS_PAST.store(true, SeqCst);
        thread::park(); // the token is there
    });
    let is = |status| {
        let g = SLEEPER.load(SeqCst);
        g.is_some_and(|g| g.status.get() == status)
    };
    // In its first park, or in its second.
    wait_yielding("it waits", || is(Status::Waiting));
    // This goroutine keeps the only P: sysmon runs the timer, and the sleeper stays Runnable.
    wait_for("the timer", || is(Status::Runnable) || IS_PAST.load(SeqCst));
    let was_in_time = !IS_PAST.load(SeqCst);
    sleeper.thread().unpark();
    sleeper.join().unwrap();
    was_in_time
}

#[test]
fn g4_a_waiting_goroutine_says_where_it_waits() {
    live(1, |sched| {
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        let sleeps = || {
            while !IS_OVER.load(SeqCst) {
                thread::sleep(Duration::from_millis(50));
            }
        };
        let join = thread::spawn(move || thread::spawn(sleeps).join());
        let parked = thread::spawn(thread::park);
        let mut seen = Vec::new();
        wait_yielding("three waits", || {
            seen.clear();
            sched.blocks.for_each(|g| {
                if g.status.get() == Status::Waiting {
                    assert!(g.has_wait());
                    assert!(g.m.load(Relaxed).is_none(), "PK: detached");
                    seen.push(g.wait_reason());
                }
            });
            seen.len() == 3
        });
        for reason in [WaitReason::Sleep, WaitReason::Join, WaitReason::Park] {
            assert!(seen.contains(&reason), "{seen:?}");
        }
        IS_OVER.store(true, SeqCst);
        parked.thread().unpark();
        parked.join().unwrap();
        join.join().unwrap().unwrap();
    });
}

#[cfg(debug_assertions)]
#[test]
fn g5_parking_with_an_internal_lock_is_fatal() {
    if child::is_one() {
        return live(1, |sched| {
            let _core = sched.core.lock();
            thread::park();
        });
    }
    let text = "fatal error: switch with internal locks held";
    child::assert_dies(
        module_path!(),
        "g5_parking_with_an_internal_lock_is_fatal",
        text,
    );
}

#[cfg(debug_assertions)]
#[test]
fn g5_locks_are_taken_in_the_order_of_their_ranks() {
    if child::is_one() {
        let (low, high) = (Lock::new(Rank::Registry, ()), Lock::new(Rank::Sched, ()));
        drop((low.lock(), high.lock()));
        let _high = high.lock();
        let _low = low.lock();
        return;
    }
    let text = "fatal error: lock order: taking Registry";
    child::assert_dies(
        module_path!(),
        "g5_locks_are_taken_in_the_order_of_their_ranks",
        text,
    );
}

#[test]
fn g6_a_transition_waits_for_the_scan_bit() {
    let word = StatusWord::new(Status::Waiting);
    let went_on = AtomicBool::new(false);
    assert!(word.begin_scan(Status::Waiting));
    assert!(word.is_scanned());
    assert!(!word.begin_scan(Status::Waiting), "one holder");
    assert_eq!(word.get(), Status::Waiting);
    std::thread::scope(|s| {
        s.spawn(|| {
            word.transition(Status::Waiting, Status::Runnable);
            went_on.store(true, SeqCst);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!went_on.load(SeqCst));
        assert_eq!(word.get(), Status::Waiting);
        word.end_scan(Status::Waiting);
    });
    assert_eq!(word.get(), Status::Runnable);
}

#[test]
fn gf_dead_gs_are_kept_by_the_p_and_spilled_at_64_to_32() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let gs: Vec<_> = (0..GFREE_MAX).map(|_| dead_g(&sched)).collect();
    assert_eq!((GFREE_MAX, GFREE_KEEP), (64, 32));
    let kept = || worker(p).local().gfree.len();
    gs[..63].iter().for_each(|g| sched.free_g(worker(p), *g));
    assert_eq!(kept(), 63);
    sched.free_g(worker(p), gs[63]);
    assert!((31..=32).contains(&kept()), "{}", kept());
    assert_eq!(sched.blocks.outstanding(), kept());
}

#[test]
fn gf_a_spawn_reuses_a_dead_g_and_every_g_is_found() {
    live(1, |sched| {
        let count = || {
            let mut all = 0;
            sched.blocks.for_each(|_| all += 1);
            assert_eq!(all, sched.blocks.outstanding());
            all
        };
        let addresses = Mutex::new(std::collections::HashSet::new());
        thread::scope(|s| {
            for _ in 0..500 {
                s.spawn(|| {
                    addresses
                        .lock()
                        .unwrap()
                        .insert(current_g().unwrap().as_ptr() as usize)
                })
                .join()
                .unwrap();
            }
        });
        assert!(addresses.lock().unwrap().len() <= GFREE_MAX, "reused");
        assert!(count() <= GFREE_MAX + 2);
        // Warm by now: what a spawn takes from the P's cache its end puts back, without a central
        // list.
        let before = count();
        for _ in 0..100 {
            thread::spawn(|| ()).join().unwrap();
            assert_eq!(count(), before);
        }
    });
}

#[test]
fn gf_ids_come_in_batches_and_are_unique() {
    live(2, |sched| {
        let ids = Mutex::new(vec![current_g().unwrap().id()]);
        let note = || {
            let g = current_g().unwrap();
            ids.lock().unwrap().push(g.id());
            g.id()
        };
        let first = thread::scope(|s| s.spawn(note).join().unwrap());
        assert!(first > 1);
        thread::scope(|s| {
            for _ in 0..60 {
                s.spawn(|| {
                    note();
                    thread::scope(|s| s.spawn(note).join().unwrap())
                });
                // From outside ids come one by one, in between.
                let runtime = crate::Handle::current();
                let outside = std::thread::spawn(move || {
                    runtime.spawn(|| current_g().unwrap().id()).join().unwrap()
                });
                let outside = outside.join().unwrap();
                ids.lock().unwrap().push(outside);
            }
        });
        let mut ids = ids.into_inner().unwrap();
        ids.sort_unstable();
        assert_eq!(ids[0], 1, "the first goroutine has id 1");
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all);
        assert!(sched.next_goid.load(Relaxed) > *ids.last().unwrap());
    });
}

#[test]
fn gf_a_g_knows_its_parent_and_where_it_was_spawned() {
    live(1, |_| {
        let parent = current_g().unwrap().id();
        let look = || {
            let g = current_g().unwrap();
            let site = g.site.get().unwrap();
            (g.parent.load(Relaxed), site.file(), site.line())
        };
        let (tx, rx) = std::sync::mpsc::channel();
        let send = move || tx.send(look()).unwrap();
        let expect = |line| (parent, file!(), line);
        assert_eq!(thread::spawn(look).join().unwrap(), expect(line!()));
        thread::scope(|s| assert_eq!(s.spawn(look).join().unwrap(), expect(line!())));
        let built = thread::Builder::new().spawn(look).unwrap();
        assert_eq!(built.join().unwrap(), expect(line!() - 1));
        crate::go(send.clone());
        let line = line!() - 1;
        crate::yield_now();
        assert_eq!(rx.recv().unwrap(), expect(line));
        crate::Handle::current().go(send);
        let line = line!() - 1;
        crate::yield_now();
        assert_eq!(rx.recv().unwrap(), expect(line));
    });
}

/// PK: a waiter that is claimed before it sleeps does sleep while its claimer takes its time, as a
/// select's sender does that evaluates its message.
#[test]
fn pk_a_waiter_that_was_claimed_early_sleeps_until_the_claim_is_finished() {
    static KIND: WaitKind = WaitKind::new(WaitReason::Semaphore);
    live(2, |_| {
        let queue = Mutex::new(WaitQueue::new());
        let (at, is_claimed) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|s| {
            let waits = s.spawn(|| {
                let waiter = Waiter::new();
                let node = WaitNode::new(&waiter, 7);
                // SAFETY: G4, the claimer takes the node out before it finishes the claim.
                unsafe { queue.lock().unwrap().push(&node, QueueEnd::Back) };
                at.store(current_g().unwrap().as_ptr() as usize, SeqCst);
                wait_for("it is claimed", || is_claimed.load(SeqCst));
                waiter.wait(&KIND, u64::MAX)
            });
            wait_for("it is queued", || at.load(SeqCst) != 0);
            let claim = queue.lock().unwrap().pop().unwrap();
            is_claimed.store(true, SeqCst);
            let is_asleep = eventually(|| status_at(&at) == Status::Waiting);
            let mut wake = WakeList::new();
            claim.finish(&mut wake);
            wake.wake();
            assert_eq!(waits.join().unwrap(), Outcome::Case(7));
            assert!(is_asleep, "PK: it used its P until the claim was finished");
        });
    });
}

/// D2: a goroutine that has returned from its wait is in none while it is queued again, so a drop
/// passes nothing on.
#[test]
fn d2_a_goroutine_that_yields_is_in_no_wait() {
    live(1, |_| {
        let (sender, receiver) = crate::chan::bounded(0);
        let (at, has_got) = (AtomicUsize::new(0), AtomicBool::new(false));
        let is_over = AtomicBool::new(false);
        thread::scope(|s| {
            s.spawn(|| {
                at.store(current_g().unwrap().as_ptr() as usize, SeqCst);
                receiver.recv().unwrap();
                has_got.store(true, SeqCst);
                while !is_over.load(SeqCst) {
                    crate::yield_now();
                }
            });
            wait_yielding("it waits", || {
                at.load(SeqCst) != 0 && status_at(&at) == Status::Waiting
            });
            sender.send(()).unwrap();
            wait_yielding("it yields", || has_got.load(SeqCst));
            let _keeps_p = park::no_preempt(PreemptOff::StoppingTheWorld);
            let seen = (status_at(&at), g_at(&at).wait_reason());
            is_over.store(true, SeqCst);
            assert_eq!(seen, (Status::Runnable, WaitReason::None), "D2");
        });
    });
}

/// The G whose address is stored there.
fn g_at(at: &AtomicUsize) -> Gp {
    // SAFETY: GF, a goroutine stored the address of its own G, and its runtime is alive.
    unsafe { Gp::new(std::ptr::NonNull::new(at.load(SeqCst) as *mut G).unwrap()) }
}

fn status_at(at: &AtomicUsize) -> Status {
    g_at(at).status.get()
}
