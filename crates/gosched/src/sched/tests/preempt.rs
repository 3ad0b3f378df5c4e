//! U5, F2, D7: a preempted goroutine waits behind the others, on its thread; what the handler and
//! sysmon leave behind.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::*;
use crate::sched::model::current::current_m;
use crate::sched::model::g::Senior;
use crate::sched::monitor::retake::LOST_IN_A_ROW;
use crate::sched::park::enter;
use crate::thread;

/// A Runnable G that waits on the thread of an M of its own.
fn bound_g(sched: &Sched) -> (Gp, Mp) {
    let (g, m) = (runnable_g(sched), new_m(sched));
    g.m.store(Some(m), Relaxed);
    sched.bind_here(&mut sched.core.lock(), m, g);
    (g, m)
}

#[test]
fn u5_who_used_up_its_slice_waits_behind_the_others() {
    let sched = still(2);
    let gs = runnable_gs(&sched, 5);
    let mut core = sched.core.lock();
    sched.global_put_spent(&mut core, gs[0]);
    sched.global_put(&mut core, gs[1]);
    sched.global_put_spent(&mut core, gs[2]);
    sched.global_put(&mut core, gs[3]);
    core.runq.push_first(gs[4], Senior::Other);
    sched.global_put_batch(&mut core, &mut GQueue::new());
    drop(core);
    let order = [gs[4], gs[1], gs[3], gs[0], gs[2]];
    assert_eq!(global_members(&sched), order);
    assert_eq!(drain_global(&sched), order);
    assert!(sched.runq_is_empty());
}

/// Every other time that a P looks at the global queue for fairness they come first.
#[test]
fn f2_l4_the_spent_are_not_kept_out_by_the_others() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let gs = runnable_gs(&sched, 4);
    let mut core = sched.core.lock();
    sched.global_put(&mut core, gs[0]);
    sched.global_put(&mut core, gs[1]);
    sched.global_put_spent(&mut core, gs[2]);
    sched.global_put_spent(&mut core, gs[3]);
    drop(core);
    for (turn, expected) in [gs[2], gs[0], gs[3], gs[1]].into_iter().enumerate() {
        assert_eq!(decide_61st(&sched, p), Some(expected), "turn {turn}");
    }
}

/// A batch for a P's ring has none of them: there they would be ahead of others again.
#[test]
fn u5_a_batch_takes_none_of_the_spent_along() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let gs = runnable_gs(&sched, 6);
    let mut core = sched.core.lock();
    for g in &gs[..3] {
        sched.global_put(&mut core, *g);
    }
    for g in &gs[3..] {
        sched.global_put_spent(&mut core, *g);
    }
    assert_eq!(sched.global_get_batch(&mut core, worker(p)), Some(gs[0]));
    drop(core);
    assert_eq!(drain_p(p), gs[1..3]);
    assert_eq!(global_members(&sched), gs[3..]);
}

/// A goroutine waits for a lock: its holder may be among the spent goroutines.
#[test]
fn d7_the_spent_come_first_once_when_somebody_waits_for_a_lock() {
    let sched = still(1);
    let gs = runnable_gs(&sched, 5);
    let mut core = sched.core.lock();
    sched.global_put(&mut core, gs[0]);
    sched.global_put_spent(&mut core, gs[1]);
    sched.global_put_spent(&mut core, gs[2]);
    core.runq.hurry_spent();
    sched.global_put(&mut core, gs[3]);
    sched.global_put_spent(&mut core, gs[4]);
    drop(core);
    assert_eq!(drain_global(&sched), [gs[1], gs[2], gs[0], gs[3], gs[4]]);
}

#[test]
fn d7_a_bound_goroutine_is_brought_a_p_on_its_thread() {
    let sched = still(1);
    let p = sched.get_idle_p(&mut sched.core.lock()).unwrap().into_p();
    let (g, m) = bound_g(&sched);
    let mut core = sched.core.lock();
    assert_eq!((core.nparked, core.nmidlelocked), (1, 1));
    assert_eq!(
        (g.owner(), m.curg(), m.bound.load(Relaxed)),
        (Some(m), None, Some(g))
    );
    sched.global_put_spent(&mut core, g);
    assert_eq!(sched.global_get_owned(&mut core), Some((g, m)));
    sched.give_p(&mut core, idle(p), g, m);
    assert_eq!((core.nparked, core.nmidlelocked), (0, 0));
    drop(core);
    assert_eq!(m.nextp.load(Relaxed), Some(p));
    // Its thread continues with it.
    sched.wait_bound(m, g);
    assert_eq!(
        (m.p.load(Relaxed), m.curg(), m.bound.load(Relaxed)),
        (Some(p), Some(g), None)
    );
    assert_eq!(g.status.get(), Status::Running);
}

/// What has no thread of its own is not taken for one that has.
#[test]
fn d7_a_p_goes_straight_to_a_thread_only_if_nothing_comes_before() {
    let sched = still(1);
    let ((bound, m), free) = (bound_g(&sched), runnable_g(&sched));
    let mut core = sched.core.lock();
    sched.global_put_spent(&mut core, free);
    sched.global_put_spent(&mut core, bound);
    assert_eq!(sched.global_get_owned(&mut core), None);
    assert_eq!(sched.global_take_owned(&mut core), Some((bound, m)));
    assert_eq!(sched.global_take_owned(&mut core), None);
    assert_eq!(sched.global_get(&mut core), Some(free));
}

/// The creator of threads may itself be waiting for what that goroutine holds.
#[test]
fn d9_a_p_without_an_idle_m_goes_to_one_that_waits_with_its_goroutine() {
    for is_in_ring in [false, true] {
        let sched = still(1);
        let ((bound, m), free) = (bound_g(&sched), runnable_g(&sched));
        let p = sched.get_idle_p(&mut sched.core.lock()).unwrap().into_p();
        if is_in_ring {
            sched.runq_put(worker(p), free);
            sched.runq_put(worker(p), bound);
        } else {
            let mut core = sched.core.lock();
            sched.global_put(&mut core, free);
            sched.global_put_spent(&mut core, bound);
        }
        sched.core.lock().nparked = 1;
        sched.start_m(sched.core.lock(), idle(p), None);
        assert_eq!(m.nextp.load(Relaxed), Some(p));
        let core = sched.core.lock();
        assert!(core.pending.is_empty() && core.nparked == 0);
    }
}

/// The scheduler's own numbers while hogs take turns on two Ps: `look` is called many times.
fn with_hogs(n: usize, mut look: impl FnMut(&'static Sched) + Send) {
    live(2, |sched| {
        static STOP: AtomicBool = AtomicBool::new(false);
        STOP.store(false, SeqCst);
        let hog = |_| {
            thread::spawn(|| {
                while !STOP.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let hogs: Vec<_> = (0..n).map(hog).collect();
        while sched.calls.parked.get() < 20 {
            thread::sleep(Duration::from_millis(1));
            look(sched);
        }
        STOP.store(true, SeqCst);
        hogs.into_iter().for_each(|hog| hog.join().unwrap());
        wait_for("nobody is left in a handler", || {
            sched.core.lock().nparked == 0
        });
        wait_for("every signal has arrived", || {
            let core = sched.core.lock();
            let mut ms = std::iter::successors(core.allm, |m| m.alllink.get());
            !ms.any(|m| m.signalled.load(SeqCst))
        });
        let core = sched.core.lock();
        assert_eq!((core.nmidlelocked, sched.calls.refused.get()), (0, 0));
        assert!(!sched.calls.is_signal_lost.load(SeqCst));
    });
}

/// Ten signals in a row were late. Only a thread that blocks the signal is said to block it.
#[test]
fn d7_a_thread_without_a_cpu_is_not_said_to_block_the_signal() {
    live(1, |sched| {
        let _rt = enter();
        let m = current_m().unwrap();
        let is_accused = || {
            let mut claims = sched.claims.lock();
            m.watched.known(&mut claims).lost = LOST_IN_A_ROW;
            sched.look_for_signal(&mut claims, m);
            sched.calls.is_signal_lost.load(SeqCst)
        };
        assert!(!is_accused());
        // SAFETY: a set in this frame, and the mask of this thread, which the goroutine does not
        // leave before the mask is as it was.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, sched.config.preemption_signal);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            let is_accused = is_accused();
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
            assert!(is_accused);
        }
    });
}

/// One test at a time: the hogs share their flag.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A goroutine that waits in the handler is queued once, and its thread has neither P nor goroutine
/// (G3, M1).
#[test]
fn d7_who_waits_in_the_handler_is_queued_and_has_no_p() {
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut seen = 0;
    with_hogs(6, |sched| {
        let rt = crate::sched::park::enter();
        let core = sched.core.lock();
        let ms = std::iter::successors(core.allm, |m| m.alllink.get());
        let mut bound = 0;
        for (m, g) in ms.filter_map(|m| Some((m, m.bound.load(Relaxed)?))) {
            if m.nextp.load(Relaxed).is_some() || m.p.load(Relaxed).is_some() {
                continue; // on its way out
            }
            if core.runq.iter().any(|queued| queued == g) {
                assert_eq!(g.status.get(), Status::Runnable);
                assert_eq!((g.owner(), m.curg()), (Some(m), None));
                assert!(m.claim.depth() > 0, "a handler is part of the runtime");
                bound += 1;
            }
        }
        assert!(bound <= core.nparked, "{bound} of {}", core.nparked);
        seen += bound;
        drop(core);
        drop(rt);
    });
    assert!(seen > 0, "nobody was seen in a handler");
}

/// U2, U7: a stop of the world interrupts a goroutine in the middle of its slice. The goroutine
/// queues behind a goroutine that has not run. Otherwise it would be the first to run again after
/// each stop.
#[test]
fn u2_u7_a_stop_of_the_world_queues_the_running_goroutine_at_the_tail() {
    live(2, |sched| {
        for _ in 0..100 {
            if let Some(is_behind) = is_stopped_one_behind(sched) {
                assert!(is_behind, "U2: it is in front of one that never ran");
                return;
            }
        }
        panic!("a hundred times the stop came between two slices");
    });
}

/// One goroutine computes on the other P, and one waits in the global queue. Whether a stop of the
/// world puts the first behind the second. None: a P took the second before the stop.
fn is_stopped_one_behind(sched: &Sched) -> Option<bool> {
    #[derive(Default)]
    struct Hog {
        g: AtomicUsize,
        is_over: AtomicBool,
    }
    let [computing, waiting]: [Arc<Hog>; 2] = Default::default();
    let task = |hog: &Arc<Hog>| {
        let hog = Arc::clone(hog);
        move || {
            hog.g.store(current_g().unwrap().as_ptr() as usize, SeqCst);
            while !hog.is_over.load(Relaxed) {
                std::hint::spin_loop();
            }
        }
    };
    let first = thread::spawn(task(&computing));
    wait_for("it computes", || computing.g.load(SeqCst) != 0);
    // A thread outside the runtime puts its goroutine into the global queue.
    let (handle, second) = (crate::Handle::current(), task(&waiting));
    let outside = std::thread::spawn(move || handle.spawn(second));
    wait_for("it is queued", || outside.is_finished());
    let world = sched.stop_the_world().unwrap();
    let next = next_of_two(sched);
    let has_run = waiting.g.load(SeqCst) != 0;
    drop(world);
    for hog in [&computing, &waiting] {
        hog.is_over.store(true, SeqCst);
    }
    first.join().unwrap();
    outside.join().unwrap().join().unwrap();
    let is_behind = |next: Gp| next.as_ptr() as usize != computing.g.load(SeqCst);
    next.filter(|_| !has_run).map(is_behind)
}

/// The goroutine that the global queue gives out next, if two are in it.
fn next_of_two(sched: &Sched) -> Option<Gp> {
    let mut core = sched.core.lock();
    if core.runq.len() != 2 {
        return None;
    }
    let next = core.runq.pop(true).unwrap();
    core.runq.push_first(next, Senior::Other);
    Some(next)
}
