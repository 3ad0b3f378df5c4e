//! M1–M3, M6, M7, I6, MG: threads.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::*;
use crate::sched::model::current;
use crate::sched::model::current::current_m;
use crate::sched::model::switch::systemstack;
use crate::sched::park::enter;
use crate::thread;

/// Every M of the runtime.
fn all_ms(sched: &Sched) -> Vec<Mp> {
    let core = sched.core.lock();
    std::iter::successors(core.allm, |m| m.alllink.get()).collect()
}

#[test]
fn m1_an_idle_m_has_no_p_and_no_goroutine_and_sleeps() {
    live(3, |sched| {
        for round in 0..200 {
            {
                let core = sched.core.lock();
                let idle: Vec<_> =
                    std::iter::successors(core.midle, |m| m.idle_next.get()).collect();
                assert_eq!(idle.len(), core.nmidle as usize);
                for m in idle {
                    assert!(m.is_idle.get() && m.blocked.load(Relaxed));
                    assert!(m.p.load(Relaxed).is_none() && m.curg().is_none());
                    assert!(!m.is_spinning());
                }
            }
            let busy = thread::spawn(crate::yield_now);
            if round % 2 == 0 {
                busy.join().unwrap();
            }
        }
        // This goroutine alone is left, and only its M is awake.
        wait_for("every other M asleep", || {
            let core = sched.core.lock();
            core.creating == 0 && core.nmidle + 1 == core.mcount
        });
    });
}

/// A thread that ends leaves the list in a few steps, wherever it is in it.
#[test]
fn mg_an_m_leaves_the_list_of_all_from_any_place() {
    let sched = still(1);
    let ms: Vec<_> = (0..5).map(|_| new_m(&sched)).collect();
    sched.core.lock().allm = None;
    ms.iter().for_each(|m| sched.core.lock().link_m(*m));
    assert_eq!(all_ms(&sched), [ms[4], ms[3], ms[2], ms[1], ms[0]]);
    for (gone, left) in [(2, vec![4, 3, 1, 0]), (4, vec![3, 1, 0]), (0, vec![3, 1])] {
        sched.core.lock().unlink_m(ms[gone]);
        let left: Vec<_> = left.into_iter().map(|n: usize| ms[n]).collect();
        assert_eq!(all_ms(&sched), left, "without {gone}");
    }
    for n in [3, 1] {
        sched.core.lock().unlink_m(ms[n]);
    }
    assert_eq!(all_ms(&sched), []);
}

#[test]
fn m1_an_m_is_woken_with_a_p_and_then_holds_it() {
    let sched = still(1);
    let m = new_m(&sched);
    let p = sched.get_idle_p(&mut sched.core.lock()).unwrap().into_p();
    // No M is idle: the P waits, and the next M takes it.
    sched.start_m(sched.core.lock(), idle(p), None);
    assert_eq!(sched.core.lock().npending, 1);
    assert!(sched.stop_m(&mut g0(m)));
    assert_eq!((m.p.load(Relaxed), p.m.load(Relaxed)), (Some(p), Some(m)));
    assert_eq!(sched.core.lock().npending, 0);
}

/// A goroutine that another M was woken for, spinning, and stole: by the time it runs, that M does
/// not spin.
#[test]
fn m2_an_m_that_runs_a_goroutine_does_not_spin() {
    live(2, |sched| {
        let mut stolen = 0;
        for _ in 0..50 {
            let (before, here) = (AtomicUsize::new(0), tid());
            thread::scope(|s| {
                s.spawn(|| {
                    let rt = enter();
                    let m = rt.m().unwrap();
                    assert!(!m.is_spinning(), "M2");
                    before.store(if tid() == here { 1 } else { 2 }, SeqCst);
                });
                // Blocks its thread: only the other P can run it, unless the spawn took the
                // spawner's last moment.
                wait_for("the steal", || before.load(SeqCst) != 0);
            });
            stolen += before.load(SeqCst) - 1;
        }
        assert!(stolen > 0);
        let _world = sched.stop_the_world().expect("alive");
        assert_eq!(sched.spin.count(), 0, "nobody spins in a stopped world");
        assert!(all_ms(sched).iter().all(|m| !m.is_spinning()));
    });
}

#[test]
fn m3_a_spinning_m_comes_to_an_empty_queue() {
    let sched = still(2);
    let m = new_m(&sched);
    sched.wake_p();
    // The P waits for an M, which starts spinning with it, counted already.
    assert_eq!(sched.spin.count(), 1);
    assert!(sched.stop_m(&mut g0(m)));
    assert!(m.is_spinning() && m.p().runq.is_empty());
    sched.reset_spinning(m.spinning.take().unwrap());
    assert!(!m.is_spinning());
}

#[test]
fn m6_a_locked_pair_knows_each_other() {
    live(2, |_| {
        let pair = || {
            let (m, g) = (current_m().unwrap(), current_g().unwrap());
            (
                m.lockedg.load(Relaxed) == Some(g),
                g.lockedm.load(Relaxed) == Some(m),
            )
        };
        assert_eq!(pair(), (false, false));
        crate::lock_os_thread();
        crate::lock_os_thread();
        assert_eq!(pair(), (true, true));
        crate::unlock_os_thread();
        assert_eq!(pair(), (true, true), "they nest");
        for _ in 0..20 {
            thread::spawn(|| ()).join().unwrap();
            crate::yield_now();
            assert_eq!(pair(), (true, true));
        }
        crate::unlock_os_thread();
        let (m, g) = (current_m().unwrap(), current_g().unwrap());
        assert!(m.lockedg.load(Relaxed).is_none() && g.lockedm.load(Relaxed).is_none());
    });
}

#[test]
fn m7_an_m_promotes_itself_only_while_spinners_are_few() {
    let sched = still(4);
    let held: Vec<_> = (0..4).map(|_| m_with_p(&sched)).collect();
    // Four busy Ps: 2 · 0 < 4 and 2 · 1 < 4, but not 2 · 2 < 4.
    for (i, (m, p)) in held.iter().enumerate() {
        assert_eq!(sched.spin_and_steal(worker(*p)), None);
        assert_eq!(m.is_spinning(), i < 2, "M number {i}");
        assert_eq!(sched.spin.count(), (i as u32 + 1).min(2));
    }
    // One busy P of four: 2 · 0 < 1.
    let sched = still(4);
    let (m, p) = m_with_p(&sched);
    assert_eq!(sched.spin_and_steal(worker(p)), None);
    assert_eq!((m.is_spinning(), sched.spin.count()), (true, 1));
}

#[test]
fn i6_a_wake_promotes_one_from_zero() {
    let sched = still(4);
    let claimed = sched.spin.claim_wake();
    assert!(
        claimed.is_some() && sched.spin.claim_wake().is_none(),
        "by one swap"
    );
    sched.end_spinning(claimed);
    sched.wake_p();
    sched.wake_p();
    assert_eq!(sched.spin.count(), 1, "the second finds somebody looking");
    assert_eq!(sched.core.lock().npending, 1);
    assert_eq!(sched.spin.npidle.load(Relaxed), 3);
}

#[test]
fn i6_spinners_never_exceed_the_ps() {
    live(2, |sched| {
        let (most, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    while rounds.fetch_add(1, Relaxed) < 2_000 {
                        most.fetch_max(sched.spin.count() as usize, Relaxed);
                        crate::yield_now();
                        thread::spawn(|| ()).join().unwrap();
                    }
                });
            }
        });
        // A claimed wake that finds no idle P counts for a moment: one more than there are Ps.
        assert!(most.load(Relaxed) <= 3, "{}", most.load(Relaxed));
    });
    // The count is zero, and was never below.
    live(3, |sched| {
        wait_for("no spinner", || sched.spin.count() == 0)
    });
}

#[test]
fn mg_scheduling_runs_on_g0_and_user_code_does_not() {
    live(1, |_| {
        let m = current_m().unwrap();
        assert!(current::on_curg(m) && !current::on_g0(m));
        let there = systemstack(|| {
            let m = current_m().unwrap();
            (current::on_g0(m), current::on_curg(m), 7)
        });
        assert_eq!(there, (true, false, 7));
        assert!(current::on_curg(m), "and returns");
    });
}

#[test]
fn mg_each_m_has_its_number_its_thread_and_its_runtime() {
    live(3, |sched| {
        wait_for("the spare Ms", || {
            let core = sched.core.lock();
            core.creating == 0 && !sched.wants_threads(&core)
        });
        let ms = all_ms(sched);
        let mut ids: Vec<_> = ms.iter().map(|m| m.id.get()).collect();
        let mut tids: Vec<_> = ms.iter().map(|m| m.tid.load(Relaxed)).collect();
        assert!(ids.contains(&0), "M0");
        assert!(tids.contains(&tid()));
        assert!(ms.iter().all(|m| std::ptr::eq(m.sched(), sched)));
        assert!(ms.iter().all(|m| m.g0_lo.get() < m.g0_hi.get()));
        for numbers in [&mut ids.iter().map(|id| *id as i32).collect(), &mut tids] {
            let all: &mut Vec<i32> = numbers;
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), ms.len());
        }
        ids.clear();
    });
}

#[test]
fn mg_ms_are_pooled() {
    live(1, |sched| {
        wait_for("the spare Ms", || {
            let core = sched.core.lock();
            core.creating == 0 && !sched.wants_threads(&core)
        });
        let more = undisturbed(sched, || {
            let before = sched.core.lock().next_mid;
            for _ in 0..200 {
                thread::spawn(crate::yield_now).join().unwrap();
            }
            sched.core.lock().next_mid - before
        });
        assert_eq!(more, 0, "no thread was needed");
    });
}
