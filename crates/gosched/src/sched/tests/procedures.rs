//! N, SC, FR, PK, RD, WK, L1, L4, F3, F4: spawn, schedule, find-runnable, park, ready, wake.

use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use super::*;
use crate::sched::model::current;
use crate::sched::model::current::current_m;
use crate::sched::model::g::WaitReason;
use crate::sched::model::p::FAIR_EVERY;
use crate::sched::park::{enter, park, ready};
use crate::sched::waiting::wait_ops::{WaitOps, WaitView};
use crate::{go, thread};

/// A log of which goroutine ran when.
static LOG: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// One test at a time writes it.
static LOG_USE: Mutex<()> = Mutex::new(());

fn log(entry: u32) {
    LOG.lock().unwrap().push(entry);
}

/// Spawns from a thread outside: onto the global queue.
fn go_outside(f: impl FnOnce() + Send + 'static) {
    let runtime = crate::Handle::current();
    std::thread::spawn(move || runtime.go(f)).join().unwrap();
}

/// Lets everything run that `prepare` queues while this goroutine cannot be taken off its P; the
/// order in which `n` goroutines ran. The count of decisions starts anew, so the 61st decision is
/// known.
fn order_of(sched: &Sched, n: usize, prepare: impl Fn()) -> Vec<u32> {
    undisturbed(sched, || {
        LOG.lock().unwrap().clear();
        let keeps_p = park::no_preempt(PreemptOff::StoppingTheWorld);
        let rt = enter();
        let (_, p) = here();
        prepare();
        count_anew(p);
        drop(rt);
        drop(keeps_p);
        while LOG.lock().unwrap().len() < n {
            crate::yield_now();
        }
        LOG.lock().unwrap().clone()
    })
}

#[test]
fn n_a_spawn_goes_to_next_and_kicks_the_old_one_to_the_tail() {
    live(1, |_| {
        let rt = enter();
        let (_, p) = here();
        let mut spawned = Vec::new();
        for i in 0..5u32 {
            go(|| ());
            spawned.push(p.runq.peek_next());
            assert_eq!(p.runq.len(), i);
        }
        let queued = drain_p(p);
        let addresses: Vec<_> = queued.iter().map(|g| g.as_ptr()).collect();
        // The last one spawned is `next`; the others stand in the ring in the order in which they
        // came.
        assert_eq!(addresses[0], spawned[4]);
        assert_eq!(addresses[1..], spawned[..4]);
        for g in queued {
            assert_eq!(g.status.get(), Status::Runnable);
            here().0.sched().runq_put(worker(p), g);
        }
        drop(rt);
    });
}

#[test]
fn n_l1_f4_a_spawn_wakes_a_p_that_steals_it_from_next() {
    live(2, |sched| {
        for _ in 0..20 {
            // The other P must be asleep, so that only a wake-up helps.
            wait_for("the other P idle", || {
                sched.spin.npidle.load(Relaxed) == 1 && sched.spin.count() == 0
            });
            let ran = std::sync::Arc::new(AtomicBool::new(false));
            let flag = std::sync::Arc::clone(&ran);
            go(move || flag.store(true, SeqCst));
            // Blocks its thread, so the spawner's P never comes to run it.
            wait_for("the other P runs it", || ran.load(SeqCst));
        }
    });
}

/// Asserts that `see` returns `expected` in one of several tries. A goroutine that was asked to
/// yield and leaves by itself ends its slice without being counted. So [`undisturbed`] misses that,
/// but it does not happen each time.
#[track_caller]
fn assert_usual<T: PartialEq + Debug>(expected: T, see: &mut dyn FnMut() -> T) {
    let mut seen = see();
    for _ in 0..20 {
        if seen == expected {
            return;
        }
        seen = see();
    }
    assert_eq!(seen, expected);
}

#[test]
fn sc_next_then_the_ring_then_the_global_queue() {
    let _use = LOG_USE.lock().unwrap();
    live(1, |sched| {
        let mut order = || {
            order_of(sched, 4, || {
                go_outside(|| log(4));
                go(|| log(2));
                go(|| log(3));
                go(|| log(1));
            })
        };
        assert_usual([1, 2, 3, 4].into(), &mut order);
    });
}

/// A full ring does not keep the global queue waiting: its head runs at the latest by the 61st
/// decision.
#[test]
fn l4_f3_every_61st_decision_the_global_queue_comes_first() {
    let _use = LOG_USE.lock().unwrap();
    assert_eq!(FAIR_EVERY, 61);
    live(1, |sched| {
        let order = order_of(sched, 203, || {
            go_outside(|| log(1000));
            go_outside(|| log(1001));
            for i in 0..201 {
                go(move || log(i));
            }
        });
        let place = |of| order.iter().position(|entry| *entry == of).unwrap();
        // Decisions 1 to 60 take `next` and the ring, the 61st the global queue, one goroutine
        // only.
        assert_eq!(place(1000), 60);
        assert_eq!(place(1001), 60 + 61);
    });
}

#[test]
fn sc_next_inherits_the_slice() {
    live(1, |sched| {
        let mut ticks = || {
            undisturbed(sched, || {
                let rt = enter();
                let (_, p) = here();
                count_anew(p);
                let before = p.schedtick.load(Relaxed);
                let main = thread::current();
                // Each spawns the next one and ends: all of them come through `next`.
                fn chain(n: u32, main: thread::Thread) {
                    match n {
                        0 => main.unpark(),
                        _ => go(move || chain(n - 1, main)),
                    }
                }
                go(move || chain(50, main));
                drop(rt);
                thread::park();
                let _rt = enter();
                p.schedtick.load(Relaxed).wrapping_sub(before)
            })
        };
        assert_usual(0, &mut ticks);
    });
}

#[test]
fn sc_a_locked_m_runs_its_goroutine_and_no_other() {
    live(1, |sched| {
        crate::lock_os_thread();
        let (here, others) = (tid(), Mutex::new(Vec::new()));
        thread::scope(|s| {
            for _ in 0..50 {
                s.spawn(|| {
                    others.lock().unwrap().push(tid());
                    crate::yield_now();
                    others.lock().unwrap().push(tid());
                });
                crate::yield_now();
                assert_eq!(tid(), here);
            }
        });
        crate::unlock_os_thread();
        assert!(!others.lock().unwrap().contains(&here));
        let handoffs = sched.outside.handoffs.get();
        assert!(handoffs > 0, "whoever dequeues it hands its P over");
    });
}

/// Without work every M ends in sleep and every P on the idle list, the one that waits for the
/// timer included.
#[test]
fn fr_without_work_everybody_parks() {
    live(3, |sched| {
        thread::scope(|s| {
            for _ in 0..50 {
                s.spawn(|| thread::sleep(Duration::from_millis(1)));
            }
        });
        std::thread::scope(|s| {
            let seen = s.spawn(|| {
                wait_for("all quiet", || {
                    sched.spin.npidle.load(Relaxed) == 3 && sched.spin.count() == 0
                });
            });
            // Main waits on a timer, so a thread without a P watches it.
            while !seen.is_finished() {
                thread::sleep(Duration::from_millis(200));
            }
        });
    });
}

/// Goroutines in the ring of a P whose M is kept busy are found by the others (FR: steal).
#[test]
fn fr_an_idle_p_steals_what_a_busy_one_cannot_run() {
    live(3, |sched| {
        let ran = std::sync::Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let ran = std::sync::Arc::clone(&ran);
            go(move || {
                ran.fetch_add(1, SeqCst);
            });
        }
        wait_for("all stolen", || ran.load(SeqCst) == 100);
        assert!(sched.procs().map(|p| p.counters.steals.get()).sum::<u64>() > 0);
    });
}

static COMMITS: AtomicU32 = AtomicU32::new(0);

/// What a park's unlock function finds; it refuses the first time.
static PROBE: WaitOps<AtomicUsize> = WaitOps {
    reason: WaitReason::Park,
    is_open: false,
    commit: |g, word| {
        let m = current_m().unwrap();
        assert_eq!(g.status.get(), Status::Waiting, "PK");
        assert_eq!(g.wait_reason(), WaitReason::Park, "PK");
        assert!(
            g.m.load(Relaxed).is_none() && m.curg().is_none(),
            "PK: detached"
        );
        assert!(current::on_g0(m), "PK: on g0");
        let refused = COMMITS.fetch_add(1, SeqCst) == 0;
        if !refused {
            word.store(g.as_ptr() as usize, SeqCst);
        }
        !refused
    },
    withdraw: |_, _| false,
    time_out: |_, _| false,
    view: |_| WaitView::Nothing,
    pass_on: None,
};

#[test]
fn pk_the_unlock_function_runs_on_g0_and_may_refuse() {
    live(1, |_| {
        let word = AtomicUsize::new(0);
        let before = here().1.schedtick.load(Relaxed);
        park(&PROBE, &word);
        // Refused: the goroutine continued at once, in the same slice, and is on no queue.
        assert_eq!((COMMITS.load(SeqCst), word.load(SeqCst)), (1, 0));
        assert_eq!(here().1.schedtick.load(Relaxed), before);
        assert_eq!(current_g().unwrap().status.get(), Status::Running);
        thread::scope(|s| {
            s.spawn(|| {
                while word.load(SeqCst) == 0 {
                    crate::yield_now();
                }
                // SAFETY: GF/G4, the commit left it here for one waker.
                let g = unsafe { Gp::from_raw(word.load(SeqCst) as *mut _) }.unwrap();
                assert_eq!(g.status.get(), Status::Waiting);
                ready(g);
            });
            park(&PROBE, &word);
        });
        assert_eq!(COMMITS.load(SeqCst), 2);
    });
}

#[test]
fn rd_a_ready_goroutine_goes_to_next() {
    live(1, |sched| {
        static ADDRESS: AtomicUsize = AtomicUsize::new(0);
        let parked = thread::spawn(|| {
            ADDRESS.store(current_g().unwrap().as_ptr() as usize, SeqCst);
            thread::park();
            thread::park();
        });
        let is_waiting = || {
            // SAFETY: GF, type-stable while the runtime lives.
            let g = unsafe { Gp::from_raw(ADDRESS.load(SeqCst) as *mut _) };
            g.filter(|g| g.status.get() == Status::Waiting)
        };
        wait_yielding("the park", || is_waiting().is_some());
        let g = is_waiting().unwrap();
        {
            let _rt = enter();
            parked.thread().unpark();
            assert_eq!(g.status.get(), Status::Runnable);
            assert_eq!(here().1.runq.peek_next(), g.as_ptr());
        }
        wait_yielding("the second park", || is_waiting().is_some());
        {
            let _rt = enter();
            std::thread::scope(|s| s.spawn(|| parked.thread().unpark()).join().unwrap());
            assert!(here().1.runq.peek_next().is_null());
            assert_eq!(global_members(sched), [g], "from outside: the global queue");
        }
        parked.join().unwrap();
    });
}

#[test]
fn rd_wk_a_thread_outside_wakes_an_idle_runtime() {
    live(2, |sched| {
        for _ in 0..20 {
            let main = thread::current();
            let waker = std::thread::spawn(move || {
                wait_for("everybody idle", || {
                    sched.spin.npidle.load(Relaxed) == 2 && sched.spin.count() == 0
                });
                main.unpark();
            });
            thread::park();
            waker.join().unwrap();
        }
    });
}

/// A thread outside hands work to a runtime that is just going idle, at every moment of its going.
#[test]
fn wk_l1_no_submission_is_lost_while_the_last_spinner_stops() {
    const ROUNDS: usize = 3_000;
    let runtime = Runtime::builder().procs(2).build().unwrap();
    let (asked, answered) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let rescues = std::thread::scope(|s| {
        let (asked, answered) = (&asked, &answered);
        let (tx, rx) = std::sync::mpsc::channel();
        let main = s.spawn(move || {
            runtime.run(move || {
                tx.send(thread::current()).unwrap();
                while answered.load(SeqCst) < ROUNDS {
                    thread::park();
                    answered.store(asked.load(SeqCst), SeqCst);
                }
                current_g().unwrap().sched().outside.rescues.get()
            })
        });
        let goroutine = rx.recv().unwrap();
        for round in 1..=ROUNDS {
            asked.store(round, SeqCst);
            goroutine.unpark();
            let began = Instant::now();
            while answered.load(SeqCst) < round {
                assert!(began.elapsed() < NEVER, "lost in round {round}");
                std::hint::spin_loop();
                if began.elapsed() > Duration::from_millis(1) {
                    std::thread::yield_now();
                }
            }
            // The goroutine is about to park and its M to stop: wait a little, another little each
            // time.
            (0..round * 7 % 2_000).for_each(|_| std::hint::spin_loop());
        }
        main.join().unwrap()
    });
    assert_eq!(rescues, 0, "WK: a wake-up was lost");
}

/// The last spinner that finds work wakes a successor: one wake-up brings all Ps to work that
/// waits.
#[test]
fn wk_a_spinner_that_finds_work_wakes_another() {
    live(4, |_| {
        // Three goroutines that each hold their thread until all three run at once, spawned in one
        // go.
        let inside = std::sync::Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let inside = std::sync::Arc::clone(&inside);
            go(move || {
                inside.fetch_add(1, SeqCst);
                wait_for("three at once", || inside.load(SeqCst) >= 3);
            });
        }
        wait_for("three at once", || inside.load(SeqCst) == 3);
    });
}

#[test]
fn wk_nobody_is_woken_while_somebody_looks_or_no_p_is_idle() {
    let sched = still(2);
    let spinning = sched.spin.begin();
    sched.wake_p();
    assert_eq!((sched.core.lock().npending, sched.spin.count()), (0, 1));
    sched.spin.end(spinning);
    let held: Vec<_> = (0..2).map(|_| m_with_p(&sched)).collect();
    sched.wake_p();
    assert_eq!((sched.core.lock().npending, sched.spin.count()), (0, 0));
    assert!(sched.spin.is_needed(), "the next P to go idle must look");
    drop(held);
}
