//! Timers: which heap they are in, which M takes out due ones, and that each fires once and none
//! early (PL, FR, I9, D10).

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize};
use std::time::{Duration, Instant};

use super::*;
use crate::sched::sources::timers::{Armed, EXPIRE_MAX};
use crate::sys::{Doing, TaskFile};
use crate::thread;

/// A G that waits and has no timer yet.
pub(super) fn waiting_g(sched: &Sched) -> Gp {
    let g = runnable_g(sched);
    g.status.transition(Status::Runnable, Status::Running);
    g.status.transition(Status::Running, Status::Waiting);
    g
}

pub(super) fn arm(sched: &Sched, p: Pp, g: Gp, when: u64) -> Armed {
    g.set_deadline(when);
    sched.arm(p, g, |_| true, || true)
}

fn expire(sched: &Sched, p: Pp, now: u64) -> Vec<Gp> {
    let mut due = GQueue::new();
    sched.expire(p, now, EXPIRE_MAX, &mut due);
    due.iter().collect()
}

/// A timer is in the heap of the P that set it, and the mask says so; the last one out clears it.
#[test]
fn pl_a_timer_is_in_its_own_ps_heap() {
    let sched = still(70);
    let (a, b) = (sched.p(1), sched.p(69));
    let (first, second) = (waiting_g(&sched), waiting_g(&sched));
    assert!(!sched.has_timers() && sched.next_timer() == u64::MAX);
    assert_eq!(arm(&sched, a, first, 500), Armed::Set { is_first: true });
    assert_eq!(arm(&sched, b, second, 300), Armed::Set { is_first: true });
    assert!(sched.timers.has(1) && sched.timers.has(69) && !sched.timers.has(0));
    let holders: Vec<_> = sched.timers_holders().map(|p| p.id).collect();
    assert_eq!(holders, [1, 69]);
    assert_eq!((a.timers.len(), b.timers.len()), (1, 1));
    assert_eq!((sched.next_timer(), sched.pending_timers()), (300, 2));
    assert!(sched.disarm(second) && !sched.disarm(second));
    assert_eq!(sched.next_timer(), 500);
    assert_eq!(expire(&sched, a, 500), [first]);
    assert!(!sched.has_timers() && !first.has_timer());
}

/// A refused wait leaves no timer, and the goroutine does not think that it has one.
#[test]
fn g4_a_refused_wait_has_no_timer() {
    let sched = still(1);
    let (p, g) = (sched.p(0), waiting_g(&sched));
    g.set_deadline(7);
    let refuse = || {
        assert!(g.has_timer(), "whoever wakes it now must find the timer");
        false
    };
    assert_eq!(sched.arm(p, g, |_| true, refuse), Armed::Refused);
    assert!(!g.has_timer() && !sched.has_timers());
}

/// What is due, in its order, at most a batch, and nothing early.
#[test]
fn pl_expiry_takes_what_is_due_and_nothing_else() {
    let sched = still(1);
    let p = sched.p(0);
    let gs: Vec<_> = (0..300u64)
        .map(|i| (i * 7919 % 300, waiting_g(&sched)))
        .collect();
    for (when, g) in &gs {
        arm(&sched, p, *g, 1000 + when);
    }
    let by_time = |wanted: std::ops::Range<u64>| -> Vec<Gp> {
        wanted
            .map(|when| gs.iter().find(|(w, _)| *w == when).unwrap().1)
            .collect()
    };
    assert!(expire(&sched, p, 999).is_empty());
    assert_eq!(expire(&sched, p, 1009), by_time(0..10));
    assert!(expire(&sched, p, 1009).is_empty());
    let batch = EXPIRE_MAX as u64;
    assert_eq!(expire(&sched, p, 5000), by_time(10..10 + batch));
    assert_eq!(expire(&sched, p, 5000), by_time(10 + batch..10 + 2 * batch));
    assert_eq!(expire(&sched, p, 5000).len(), 300 - 10 - 2 * EXPIRE_MAX);
    assert!(gs.iter().all(|(_, g)| g.status.get() == Status::Runnable));
}

/// A timer whose goroutine was woken already is taken out and left alone.
#[test]
fn g4_a_timer_does_not_wake_whom_somebody_else_has() {
    let sched = still(1);
    let (p, g) = (sched.p(0), waiting_g(&sched));
    g.set_deadline(1);
    assert_eq!(
        sched.arm(p, g, |_| false, || true),
        Armed::Set { is_first: true }
    );
    assert!(expire(&sched, p, 10).is_empty());
    assert!(!g.has_timer() && !sched.has_timers());
    assert_eq!(g.status.get(), Status::Waiting);
}

/// The timers of a removed P move to another P, and a later stop or reset finds them there (U7,
/// P5).
#[test]
fn u7_p5_a_removed_p_gives_its_timers_away() {
    let sched = still(2);
    let (to, from) = (sched.p(0), sched.p(1));
    let gs: Vec<_> = (0..1000u64)
        .map(|i| (i * 7919 % 1000, waiting_g(&sched)))
        .collect();
    for (i, (when, g)) in gs.iter().enumerate() {
        let p = if i % 3 == 0 { to } else { from };
        arm(&sched, p, *g, 1 + when);
    }
    sched.move_timers(from, to);
    assert_eq!((to.timers.len(), from.timers.len()), (1000, 0));
    assert!(sched.timers.has(0) && !sched.timers.has(1));
    let (kept, gone): (Vec<_>, Vec<_>) = gs.iter().partition(|(when, _)| when % 2 == 0);
    assert!(gone.iter().all(|(_, g)| sched.disarm(*g)));
    let mut fired = Vec::new();
    loop {
        let due = expire(&sched, to, 2000);
        if due.is_empty() {
            break;
        }
        fired.extend(due);
    }
    let expected: Vec<_> = kept.iter().map(|(_, g)| *g).collect();
    assert_each_once(&fired, &expected);
}

/// PL: a stop has loaded the number of its timer's P and waits for the lock of that heap. Meanwhile
/// the timer moves. The stop follows it into the other heap.
#[test]
fn pl_a_stop_follows_a_timer_that_moves_meanwhile() {
    let sched = still(2);
    let sched: &Sched = &sched;
    let (to, from) = (sched.p(0), sched.p(1));
    let g = waiting_g(sched);
    arm(sched, from, g, 1000);
    let waits_in = AtomicI32::new(0);
    std::thread::scope(|s| {
        let mut into = to.timers.heap.lock();
        let mut out = from.timers.heap.lock_beside(&into);
        let stop = s.spawn(|| {
            waits_in.store(tid(), SeqCst);
            sched.disarm(g)
        });
        wait_for("it waits for the lock", || {
            let file = TaskFile::open(waits_in.load(SeqCst));
            file.is_ok_and(|file| matches!(file.doing(), Doing::Blocked(libc::SYS_futex)))
        });
        sched.pour(from, &mut out, to, &mut into);
        drop((out, into));
        assert!(stop.join().unwrap(), "PL: it was stopped in no heap");
    });
    assert!(!sched.has_timers(), "PL: it is still in a heap");
}

/// The fourth sweep takes what is due on other Ps, on idle ones too: the first to run, the others
/// to the thief's ring.
#[test]
fn fr_i9_the_fourth_sweep_takes_others_timers() {
    let sched = still(3);
    let ((_, p), (_, busy)) = (m_with_p(&sched), m_with_p(&sched));
    let idle = sched.procs().find(|other| *other != p && *other != busy);
    for victim in [busy, idle.unwrap()] {
        let gs: Vec<_> = (0..10).map(|_| waiting_g(&sched)).collect();
        for g in &gs {
            arm(&sched, victim, *g, 1);
        }
        let late = waiting_g(&sched);
        arm(&sched, victim, late, u64::MAX - 1);
        let mut found: Vec<_> = sched.spin_and_steal(worker(p)).into_iter().collect();
        assert_eq!(found.len(), 1, "one to run");
        found.extend(drain_p(p));
        assert_each_once(&found, &gs);
        assert!(late.has_timer() && sched.disarm(late));
        assert!(sched.spin_and_steal(worker(p)).is_none());
    }
}

/// Expiry and cancellation at the same time: one of them gets each timer, while others move it from
/// heap to heap.
#[test]
fn g4_pl_each_timer_is_ended_once() {
    let sched = still(2);
    let sched: &Sched = &sched;
    let gs: Vec<_> = (0..2000).map(|_| waiting_g(sched)).collect();
    let fired = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !is_over.load(SeqCst) {
                for p in sched.procs() {
                    for g in expire(sched, p, 100) {
                        fired.fetch_add(1, SeqCst);
                        g.status.transition(Status::Runnable, Status::Running);
                        g.status.transition(Status::Running, Status::Waiting);
                    }
                }
                sched.move_timers(sched.p(1), sched.p(0));
            }
        });
        for round in 0..100 {
            let (fired_before, mut cancelled) = (fired.load(SeqCst), 0);
            for (i, g) in gs.iter().enumerate() {
                arm(sched, sched.p((i % 2) as u32), *g, 1 + i as u64 % 100);
            }
            for g in gs.iter().skip(round % 2).step_by(2) {
                cancelled += usize::from(sched.disarm(*g));
            }
            wait_for("every timer", || !sched.has_timers());
            wait_for("every wake-up", || {
                fired.load(SeqCst) - fired_before + cancelled >= gs.len()
            });
            assert_eq!(fired.load(SeqCst) - fired_before + cancelled, gs.len());
            // When all are counted and waiting, no goroutine is between two states.
            wait_for("all waiting", || {
                gs.iter().all(|g| g.status.get() == Status::Waiting)
            });
        }
        is_over.store(true, SeqCst);
    });
}

/// A sleeper whose timer is in the heap of the caller's P, and when it was due and what it saw
/// then.
fn sleeper_on_this_p(sched: &'static Sched, millis: u64) -> thread::JoinHandle<Duration> {
    loop {
        let slept = thread::spawn(move || {
            let began = Instant::now();
            thread::sleep(Duration::from_millis(millis));
            began.elapsed()
        });
        let is_here = || {
            let rt = park::enter();
            let (_, p) = here();
            let here = p.timers.len() > 0;
            drop(rt);
            here
        };
        // On a slow machine it has slept already.
        wait_yielding("the sleeper asleep", || {
            sched.has_timers() || slept.is_finished()
        });
        if is_here() {
            return slept;
        }
        slept.join().unwrap();
    }
}

/// A goroutine that keeps its P does not keep the timers set there: an idle P's M runs them.
#[test]
fn f5_a_hog_does_not_hold_up_the_timers_of_its_p() {
    live(2, |sched| {
        let slept = sleeper_on_this_p(sched, 50);
        wait_for("the sleeper", || slept.is_finished());
        assert!(slept.join().unwrap() >= Duration::from_millis(50));
    });
}

/// Nor does one that blocks its thread.
#[test]
fn f5_a_blocked_thread_does_not_hold_up_the_timers_of_its_p() {
    live(2, |sched| {
        let slept = sleeper_on_this_p(sched, 50);
        let began = Instant::now();
        while !slept.is_finished() {
            assert!(began.elapsed() < NEVER);
            std::thread::sleep(Duration::from_millis(20));
        }
        slept.join().unwrap();
    });
}

/// All Ps are kept by goroutines that do not stop: sysmon runs the timers, and the sleepers get
/// turns.
#[test]
fn f5_hogs_everywhere_do_not_hold_up_timers() {
    live(2, |sched| {
        let slept = sleeper_on_this_p(sched, 50);
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..3 {
            let stop = Arc::clone(&stop);
            crate::go(move || {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        slept.join().unwrap();
        stop.store(true, SeqCst);
    });
}

/// GOMAXPROCS goes up and down while goroutines sleep on every P: none is lost, none wakes early.
#[test]
fn u7_timers_survive_a_change_of_gomaxprocs() {
    live(4, |sched| {
        let early = Arc::new(AtomicU32::new(0));
        let handles: Vec<_> = (0..400u64)
            .map(|i| {
                let early = Arc::clone(&early);
                thread::spawn(move || {
                    for round in 0..5 {
                        let pause = Duration::from_millis(1 + (i * 7 + round * 13) % 40);
                        let began = Instant::now();
                        thread::sleep(pause);
                        early.fetch_add(u32::from(began.elapsed() < pause), SeqCst);
                    }
                })
            })
            .collect();
        for procs in [1, 4, 2, 3, 1, 6, 2, 4].into_iter().cycle().take(40) {
            sched.set_procs(procs).unwrap();
            thread::sleep(Duration::from_millis(2));
            if procs == 2 {
                crate::debug::check().unwrap();
            }
        }
        for handle in handles {
            handle.join().unwrap();
        }
        assert_eq!(early.load(SeqCst), 0);
        assert!(!sched.has_timers());
    });
}

/// Sleeps as long as there can be, and none at all.
#[test]
fn u6_zero_and_endless_durations() {
    live(1, |sched| {
        thread::sleep(Duration::ZERO);
        let endless = thread::spawn(|| thread::park_timeout(Duration::from_nanos(u64::MAX - 1)));
        let shorter = thread::spawn(|| thread::sleep(Duration::from_millis(1)));
        shorter.join().unwrap();
        wait_yielding("the long timer", || sched.pending_timers() <= 1);
        endless.thread().unpark();
        endless.join().unwrap();
        assert_eq!(sched.pending_timers(), 0);
    });
}

/// The watcher sleeps until the earliest of all Ps; one that is set later for an earlier time is
/// not overslept.
#[test]
fn d10_an_earlier_timer_wakes_the_watcher() {
    live(2, |_| {
        let long = thread::spawn(|| thread::park_timeout(Duration::from_secs(3600)));
        thread::sleep(Duration::from_millis(20));
        let began = Instant::now();
        thread::sleep(Duration::from_millis(20));
        assert!(began.elapsed() < NEVER);
        long.thread().unpark();
        long.join().unwrap();
    });
}
