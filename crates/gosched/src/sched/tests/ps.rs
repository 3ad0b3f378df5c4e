//! P1, P2, P4–P6, S3, U7: processors.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::*;
use crate::sched::PROCS_MAX;
use crate::sched::model::p::PStatus;
use crate::sched::model::p::STACKS_MAX;
use crate::sched::park::enter;
use crate::thread;

/// P6, P2: mask, count and list say the same.
fn assert_idle_agrees(sched: &Sched) {
    let core = sched.core.lock();
    let idle = list_of_ps(&core.pidle);
    assert_eq!(sched.spin.npidle.load(Relaxed) as usize, idle.len(), "P6");
    for id in 0..PROCS_MAX {
        let bit = sched.idle_mask[id / 64].load(Relaxed) >> (id % 64) & 1 == 1;
        assert_eq!(
            bit,
            idle.iter().any(|p| p.id as usize == id),
            "P6: bit {id}"
        );
    }
    for p in idle {
        assert_eq!((p.status(), p.m.load(Relaxed)), (PStatus::Idle, None), "P2");
        assert!(p.runq.is_empty(), "P2");
    }
}

/// S3: the places of every P, each in exactly one.
fn assert_one_place(sched: &Sched) {
    let core = sched.core.lock();
    let mut places = list_of_ps(&core.pidle);
    places.extend(list_of_ps(&core.pending));
    for m in std::iter::successors(core.allm, |m| m.alllink.get()) {
        places.extend(m.p.load(Relaxed));
        places.extend(m.nextp.load(Relaxed));
    }
    let mut ids: Vec<_> = places.iter().map(|p| p.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..sched.nprocs()).collect::<Vec<_>>(), "S3");
}

/// The promise of stacks for the Ps' caches changes with the number of Ps, however many change it
/// at once.
#[test]
fn u7_the_stacks_promised_to_ps_follow_their_number() {
    live(2, |sched| {
        let is_right = || {
            let promised = sched.arena.slack(sched.stack_class);
            promised == sched.nprocs() as usize * STACKS_MAX
        };
        crate::gomaxprocs(7);
        assert!(is_right(), "more Ps");
        crate::gomaxprocs(1);
        assert!(is_right(), "fewer Ps");
        crate::thread::scope(|s| {
            for own in 0..4 {
                s.spawn(move || {
                    for i in 0..25 {
                        crate::gomaxprocs(1 + (i * (own + 1)) % 5);
                    }
                });
            }
        });
        assert!(is_right(), "after all of them");
    });
}

#[test]
fn p1_running_means_bound_both_ways() {
    let sched = still(1);
    let (m, p) = m_with_p(&sched);
    assert_eq!((m.p.load(Relaxed), p.m.load(Relaxed)), (Some(p), Some(m)));
    assert_eq!(p.status(), PStatus::Running);
    assert_eq!(g0(m).release_p().into_p(), p);
    assert_eq!((m.p.load(Relaxed), p.m.load(Relaxed)), (None, None));
    assert_eq!(p.status(), PStatus::Idle);
}

#[test]
fn p2_p6_the_idle_list_and_its_mask_agree() {
    for procs in [1, 3, 64, 65, 130] {
        let sched = still(procs);
        assert_idle_agrees(&sched);
        let held: Vec<_> = (0..procs / 2 + 1).map(|_| m_with_p(&sched)).collect();
        assert_idle_agrees(&sched);
        for (m, p) in held {
            sched.put_idle_p(&mut sched.core.lock(), idle(g0(m).release_p().into_p()));
            assert!(list_of_ps(&sched.core.lock().pidle).contains(&p));
            assert_idle_agrees(&sched);
        }
    }
}

#[test]
fn p6_the_mask_agrees_while_it_changes() {
    live(3, |sched| {
        let is_over = AtomicBool::new(false);
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    while !is_over.load(SeqCst) {
                        thread::spawn(|| ()).join().unwrap();
                        thread::sleep(Duration::from_micros(50));
                    }
                });
            }
            for _ in 0..100 {
                assert_idle_agrees(sched);
                crate::yield_now();
            }
            is_over.store(true, SeqCst);
        });
    });
}

#[test]
fn s3_every_p_is_in_one_place() {
    let sched = still(4);
    assert_eq!(list_of_ps(&sched.core.lock().pidle).len(), 4);
    let p = sched.get_idle_p(&mut sched.core.lock()).unwrap().into_p();
    sched.start_m(sched.core.lock(), idle(p), None);
    {
        let core = sched.core.lock();
        let (idle, pending) = (list_of_ps(&core.pidle), list_of_ps(&core.pending));
        assert!(pending == [p] && !idle.contains(&p) && idle.len() == 3);
    }
    live(3, |sched| {
        let _rt = enter();
        wait_for("a moment when no P is on its way", || {
            sched.spin.npidle.load(Relaxed) == 2 && sched.spin.count() == 0
        });
        assert_one_place(sched);
    });
}

#[test]
fn p4_ps_are_stopped_only_while_the_world_is() {
    live(3, |sched| {
        let stopped = || {
            sched
                .procs()
                .filter(|p| p.status() == PStatus::GcStop)
                .count()
        };
        let (turns, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !is_over.load(SeqCst) {
                        turns.fetch_add(1, SeqCst);
                        crate::yield_now();
                    }
                });
            }
            for _ in 0..20 {
                let world = sched.stop_the_world().expect("alive");
                assert_eq!(stopped(), 3, "P4");
                let before = turns.load(SeqCst);
                std::thread::sleep(Duration::from_millis(2));
                assert_eq!(turns.load(SeqCst), before, "P4: nobody runs");
                drop(world);
                assert_eq!(stopped(), 0, "P4");
                let before = turns.load(SeqCst);
                wait_for("the world to go on", || turns.load(SeqCst) > before);
            }
            is_over.store(true, SeqCst);
        });
    });
}

#[test]
fn p4_a_thread_outside_stops_the_world_too() {
    live(2, |sched| {
        let (turns, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|s| {
            s.spawn(|| {
                while !is_over.load(SeqCst) {
                    turns.fetch_add(1, SeqCst);
                    crate::yield_now();
                }
            });
            std::thread::scope(|s| {
                let leader = s.spawn(|| {
                    wait_for("a first turn", || turns.load(SeqCst) > 0);
                    let world = sched.stop_the_world();
                    let is_stopped = sched.procs().all(|p| p.status() == PStatus::GcStop);
                    let before = turns.load(SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    let after = turns.load(SeqCst);
                    drop(world);
                    (is_stopped, after - before)
                });
                // This goroutine's P must stop as well: it passes through the scheduler until the
                // leader is done.
                while !leader.is_finished() {
                    crate::yield_now();
                }
                assert_eq!(leader.join().unwrap(), (true, 0), "P4");
            });
            is_over.store(true, SeqCst);
        });
    });
}

#[test]
fn p5_only_removed_ps_are_dead_and_they_come_back() {
    let sched = still(4);
    let before: Vec<_> = sched.procs().collect();
    assert_eq!(sched.set_procs(2).unwrap(), 4);
    assert_eq!(sched.nprocs(), 2);
    let statuses = |ps: &[Pp]| ps.iter().map(|p| p.status()).collect::<Vec<_>>();
    assert_eq!(
        statuses(&before),
        [PStatus::Idle, PStatus::Idle, PStatus::Dead, PStatus::Dead]
    );
    assert_idle_agrees(&sched);
    assert_eq!(sched.set_procs(6).unwrap(), 2);
    let after: Vec<_> = sched.procs().collect();
    assert_eq!(after[..4], before, "kept for growing again");
    assert!(after.iter().all(|p| p.status() != PStatus::Dead));
    assert_eq!(sched.spin.npidle.load(Relaxed), 6, "nothing to do for any");
}

/// What a start of the world starts: a P that waits for a thread.
#[test]
fn p4_starting_the_world_wakes_somebody_for_a_reason_only() {
    fn woken(reason: impl FnOnce(&Sched)) -> u32 {
        let sched = still(2);
        let world = sched.stop_the_world().expect("alive");
        reason(&sched);
        drop(world);
        drain_all(&sched);
        let core = sched.core.lock();
        assert_eq!(sched.spin.npidle.load(Relaxed) + core.npending, 2, "S3");
        core.npending
    }
    assert_eq!(woken(|_| ()), 0);
    assert_eq!(
        woken(|sched| {
            let g = runnable_g(sched);
            sched.global_put(&mut sched.core.lock(), g);
        }),
        1,
        "WK: a goroutine waits"
    );
    assert_eq!(
        woken(Sched::wake_p),
        1,
        "WK: who submitted found no idle P, and said so"
    );
    assert_eq!(
        woken(|sched| {
            let g = runnable_g(sched);
            g.status.transition(Status::Runnable, Status::Running);
            g.status.transition(Status::Running, Status::Waiting);
            g.set_deadline(u64::MAX - 1);
            sched.arm(sched.p(0), g, |_| true, || true);
        }),
        1,
        "PL: a timer that nobody watches"
    );
    assert_eq!(
        woken(|sched| sched.scavenge_now.store(true, Relaxed)),
        1,
        "U8: memory that is being returned"
    );
}

#[test]
fn u7_what_a_removed_p_had_queued_is_kept() {
    let sched = still(4);
    let gs = runnable_gs(&sched, 300);
    let ps: Vec<_> = (0..4)
        .map(|_| sched.get_idle_p(&mut sched.core.lock()).unwrap().into_p())
        .collect();
    for (i, p) in ps.iter().enumerate() {
        let own = &gs[i * 60..][..60];
        own.iter().for_each(|g| sched.runq_put_next(worker(*p), *g));
        sched.start_m(sched.core.lock(), idle(*p), None);
    }
    gs[240..]
        .iter()
        .for_each(|g| sched.global_put(&mut sched.core.lock(), *g));
    sched.set_procs(1).unwrap();
    assert_eq!(sched.nprocs(), 1);
    assert_each_once(&drain_all(&sched), &gs);
    let caches = |p: &Pp| worker(*p).local().gfree.len() + worker(*p).local().stacks.len();
    assert!(
        ps.iter()
            .filter(|p| p.id > 0)
            .all(|p| caches(p) == 0 && p.runq.is_empty())
    );
}
