//! SY, M4, M5, P3, SM, U3: which M has the P during a blocking call, and on the way back.

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc;

use super::*;
use crate::sched::model::current::current_m;
use crate::sched::model::m::M;
use crate::sched::model::p::PStatus;
use crate::sched::model::watch::p_sample::SLICE_NS;
use crate::sched::park::enter;
use crate::sys::{self, Doing, REFUSE_MEMBARRIER, REFUSE_PROC};
use crate::{blocking, thread};

/// What the caller finds around itself: its M, its goroutine, and whether they have a P. From
/// outside the runtime.
fn around() -> (Mp, Gp, Option<Pp>) {
    let m = current_m().unwrap();
    (m, m.curg().unwrap(), m.p.load(Relaxed))
}

/// The P that the caller has; it may have another one at any later time.
fn present_p() -> Pp {
    let _rt = enter();
    here().1
}

/// M4: in a marked call, nothing is bound to the P any more.
fn assert_away() {
    let (m, g, p) = around();
    assert_eq!(p, None, "M4");
    assert_eq!(g.status.get(), Status::Syscall, "M4");
    assert!(m.claim.is_marked() && m.claim.depth() == 0, "M4");
    assert!(
        m.sched().procs().all(|p| p.m.load(Relaxed) != Some(m)),
        "M4"
    );
}

/// G2: and outside, it is.
fn assert_back() {
    let _rt = enter();
    let (m, p) = here();
    let g = m.curg().unwrap();
    assert_eq!(
        (p.m.load(Relaxed), p.status()),
        (Some(m), PStatus::Running),
        "P1"
    );
    assert_eq!(g.status.get(), Status::Running, "G2");
    assert_eq!(g.calls.get(), 0);
}

/// Uses up CPU for so long, without a call of any kind.
pub(super) fn compute(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        black_box((0..100u64).fold(1, |a, b| black_box(a ^ b)));
    }
}

#[test]
fn m4_a_marked_call_leaves_the_p_behind() {
    live(2, |sched| {
        let mut left_behind = 0;
        for _ in 0..100 {
            assert_back();
            let p = present_p();
            blocking(|| {
                assert_away();
                left_behind += usize::from(p.status() == PStatus::Syscall);
            });
        }
        assert_back();
        // Once in a while the monitor takes it at that very moment.
        assert!(left_behind > 0, "M4: the P is there to be taken");
        let calls: u64 = sched.procs().map(|p| p.counters.syscalls.get()).sum();
        assert!(calls >= 100);
    });
}

#[test]
fn m4_the_rest_of_a_call_that_used_the_runtime_is_again_without_a_p() {
    live(2, |_| {
        blocking(|| {
            let uses: [fn(); 7] = [
                crate::yield_now,
                || thread::spawn(|| ()).join().unwrap(),
                || thread::sleep(Duration::from_millis(1)),
                || {
                    thread::current().unpark();
                    thread::park();
                },
                || thread::park_timeout(Duration::from_millis(1)),
                || thread::scope(|s| drop(s.spawn(crate::yield_now))),
                || drop(crate::debug::metrics()),
            ];
            for (at, used) in uses.iter().enumerate() {
                assert_away();
                used();
                assert_away();
                blocking(|| {
                    assert_away();
                    used();
                    assert_away();
                });
                assert!(current_g().unwrap().calls.get() == 1, "{at}");
            }
        });
        assert_back();
    });
}

#[test]
fn sy_a_panic_leaves_the_call() {
    live(1, |_| {
        for depth in 1..4 {
            fn nested(depth: u32) {
                blocking(|| match depth {
                    1 => resume_unwind(Box::new(7)),
                    _ => nested(depth - 1),
                });
            }
            let caught = catch_unwind(AssertUnwindSafe(|| nested(depth)));
            assert_eq!(*caught.unwrap_err().downcast::<i32>().unwrap(), 7);
            assert_back();
        }
        // A call made while unwinding.
        struct Calls;
        impl Drop for Calls {
            fn drop(&mut self) {
                blocking(assert_away);
                blocking(crate::yield_now);
            }
        }
        let caught = catch_unwind(|| {
            let _calls = Calls;
            resume_unwind(Box::new(8))
        });
        assert!(caught.is_err());
        assert_back();
    });
}

/// A goroutine that sits in a marked call until it is let go, and what is known of it.
struct Held {
    g: Gp,
    m: Mp,
    /// The P it left behind.
    old: Pp,
    let_go: mpsc::Sender<()>,
    /// The P it had when it came back.
    back: thread::JoinHandle<Pp>,
}

fn hold_in_a_call() -> Held {
    let (tell, told) = mpsc::channel();
    let (let_go, release) = mpsc::channel();
    let back = thread::spawn(move || {
        blocking(|| {
            let (m, g, _) = around();
            tell.send((g, m, m.oldp.load(Relaxed).unwrap())).unwrap();
            release.recv().unwrap();
        });
        present_p()
    });
    let (g, m, old) = told.recv().unwrap();
    Held {
        g,
        m,
        old,
        let_go,
        back,
    }
}

/// Calls `look` with a goroutine in a marked call. The caller holds the P of that goroutine, and is
/// inside the runtime, so its own P stays another one. Returns the P on which the goroutine has
/// come back.
fn with_a_call(sched: &Sched, look: impl FnOnce(&Held)) -> Pp {
    loop {
        let held = hold_in_a_call();
        let rt = enter();
        if here().1 == held.old {
            // Taken by the monitor, and given to the caller.
            drop(rt);
            held.let_go.send(()).unwrap();
            held.back.join().unwrap();
            continue;
        }
        assert_eq!(held.g.status.get(), Status::Syscall);
        assert_eq!(held.m.p.load(Relaxed), None, "M4");
        take_away(sched, held.old);
        look(&held);
        wait_for("its return", || held.back.is_finished());
        drop(rt);
        return held.back.join().unwrap();
    }
}

/// Takes the P that a marked call left behind; the monitor may have been there before, and made it
/// an idle one.
fn take_away(sched: &Sched, p: Pp) {
    wait_for("the P", || {
        if p.status.retake(PStatus::Idle) {
            return true;
        }
        let mut core = sched.core.lock();
        let is_idle = list_of_ps(&core.pidle).contains(&p);
        is_idle && sched.get_idle_p_like(&mut core, Some(p)).map(IdleP::into_p) == Some(p)
    });
}

#[test]
fn sy_coming_back_takes_the_old_p() {
    live(4, |sched| {
        let mut same = 0;
        for _ in 0..20 {
            let mut old = None;
            let new = with_a_call(sched, |held| {
                old = Some(held.old);
                // Among the idle ones, and not the first.
                let mut core = sched.core.lock();
                let first = sched.get_idle_p(&mut core);
                sched.put_idle_p(&mut core, idle(held.old));
                first
                    .into_iter()
                    .for_each(|p| sched.put_idle_p(&mut core, p));
                drop(core);
                held.let_go.send(()).unwrap();
            });
            same += u32::from(Some(new) == old);
        }
        // Another goroutine may want a P once in a while.
        assert!(same >= 15, "SY: {same} of 20");
    });
}

#[test]
fn sy_coming_back_takes_the_p_that_nobody_wanted() {
    live(2, |_| {
        let mut same = 0;
        for _ in 0..1000 {
            let before = present_p();
            let ticks = before.syscalltick.load(Relaxed);
            blocking(|| ());
            let after = present_p();
            same += u32::from(after == before && after.syscalltick.load(Relaxed) == ticks + 1);
        }
        assert!(same >= 900, "SY: {same} of 1000");
    });
}

/// Among the idle Ps it is the one that it left, wherever that is on their list.
#[test]
fn sy_an_idle_p_is_the_old_one_if_it_is_there() {
    let sched = still(4);
    for wanted in 0..4 {
        let mut core = sched.core.lock();
        let wanted = sched.p(wanted);
        assert_eq!(
            sched
                .get_idle_p_like(&mut core, Some(wanted))
                .map(IdleP::into_p),
            Some(wanted)
        );
        // Gone now: another one.
        let other = sched
            .get_idle_p_like(&mut core, Some(wanted))
            .unwrap()
            .into_p();
        assert_ne!(other, wanted);
        sched.put_idle_p(&mut core, idle(other));
        sched.put_idle_p(&mut core, idle(wanted));
        let listed = core.pidle.iter().count();
        assert_eq!(listed, 4, "P2: none is lost");
    }
}

#[test]
fn sy_coming_back_takes_another_p_if_the_old_one_is_gone() {
    live(3, |sched| {
        for _ in 0..10 {
            let mut others = None;
            let new = with_a_call(sched, |held| {
                others = Some((held.old, here().1));
                held.let_go.send(()).unwrap();
                wait_for("its return", || held.back.is_finished());
                sched.hand_off_p(idle(held.old));
            });
            let (old, own) = others.unwrap();
            assert!(new != old && new != own, "SY");
        }
    });
}

#[test]
fn sy_coming_back_queues_if_no_p_is_to_be_had() {
    live(2, |sched| {
        for _ in 0..10 {
            with_a_call(sched, |held| {
                held.let_go.send(()).unwrap();
                wait_for("it queues", || held.g.status.get() == Status::Runnable);
                wait_for("G3: one place", || global_members(sched) == [held.g]);
                wait_for("M1: its thread sleeps", || {
                    let _core = sched.core.lock();
                    held.m.is_idle.get()
                });
                assert_eq!(held.m.p.load(Relaxed), None, "M1");
                assert_eq!(held.m.curg(), None, "M1");
                assert!(!held.back.is_finished(), "U3");
                sched.hand_off_p(idle(held.old));
            });
        }
    });
}

/// One P, and the three threads that may want it: its M, sysmon, and an M that needs a P.
#[test]
fn p3_one_of_those_who_want_it_gets_the_p() {
    const ROUNDS: usize = 20_000;
    let sched = still(1);
    let p = sched.get_idle_p(&mut sched.core.lock()).unwrap().into_p();
    let (round, done, winners) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    std::thread::scope(|s| {
        for to in [PStatus::Running, PStatus::Idle, PStatus::GcStop] {
            let (round, done, winners) = (&round, &done, &winners);
            s.spawn(move || {
                for turn in 1..=ROUNDS {
                    while round.load(SeqCst) != turn {
                        std::thread::yield_now();
                    }
                    if p.status.retake(to) {
                        assert_eq!(p.status(), to, "P3");
                        winners.fetch_add(1, SeqCst);
                    }
                    done.fetch_add(1, SeqCst);
                }
            });
        }
        for turn in 1..=ROUNDS {
            p.set_status(PStatus::Syscall);
            round.store(turn, SeqCst);
            while done.load(SeqCst) != 3 * turn {
                std::thread::yield_now();
            }
            assert_eq!(winners.load(SeqCst), turn, "P3");
        }
    });
}

/// The same with a live runtime: short calls against a thread that takes the Ps of calls as fast as
/// it can.
#[test]
fn p3_short_calls_against_somebody_who_takes_every_p() {
    live(2, |sched| {
        let (is_over, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(SeqCst) {
                    for p in sched.procs() {
                        if p.status.retake(PStatus::Idle) {
                            assert_eq!(p.m.load(SeqCst), None, "P3");
                            taken.fetch_add(1, SeqCst);
                            sched.hand_off_p(idle(p));
                        }
                    }
                    std::thread::yield_now();
                }
            });
            thread::scope(|s| {
                for _ in 0..4 {
                    s.spawn(|| {
                        for _ in 0..3_000 {
                            blocking(|| {
                                assert_eq!(around().2, None);
                                std::thread::yield_now();
                            });
                            let _rt = enter();
                            let (m, p) = here();
                            assert_eq!(p.m.load(Relaxed), Some(m), "P1");
                            assert_eq!(p.status(), PStatus::Running, "P1");
                        }
                    });
                }
            });
            is_over.store(true, SeqCst);
        });
        assert!(taken.load(SeqCst) > 0);
    });
}

#[test]
fn sm_a_long_marked_call_loses_its_p_when_others_wait() {
    live(1, |sched| {
        for _ in 0..5 {
            let (let_go, release) = mpsc::channel();
            let other = thread::spawn(move || let_go.send(()).unwrap());
            blocking(|| release.recv().unwrap());
            other.join().unwrap();
        }
        assert!(sched.calls.retaken.get() > 0, "SM");
        assert_eq!(sched.calls.claimed.get(), 0, "it was marked");
    });
}

/// Taken away by the monitor: what is seen of it is what is seen of a marked call.
#[test]
fn m5_an_unmarked_call_loses_its_p_when_others_wait() {
    live(1, |sched| {
        let (tell, told) = mpsc::channel();
        let (let_go, release) = mpsc::channel::<()>();
        let blocked = thread::spawn(move || {
            tell.send(current_m().unwrap()).unwrap();
            release.recv().unwrap();
            // Its next step into the runtime finds out.
            assert_back();
        });
        let began = Instant::now();
        let m: Mp = loop {
            assert!(began.elapsed() < NEVER);
            match told.try_recv() {
                Ok(m) => break m,
                Err(_) => crate::yield_now(),
            }
        };
        while !m.claim.is_taken() {
            assert!(began.elapsed() < NEVER, "M5");
            crate::yield_now();
        }
        assert!(sched.calls.claimed.get() >= 1, "M5");
        assert_eq!(m.p.load(Relaxed), None, "M5");
        assert_eq!(m.curg().unwrap().status.get(), Status::Syscall, "M5");
        let_go.send(()).unwrap();
        blocked.join().unwrap();
        // This goroutine naps, so it may be one itself.
        wait_for("no other stray", || sched.strays.count.load(Relaxed) <= 1);
    });
}

/// Back from its call the goroutine computes without a P: sysmon notices, counts and preempts it.
#[test]
fn u3_who_computes_after_an_unmarked_call_is_made_to_have_a_p() {
    live(1, |sched| {
        let is_back = AtomicBool::new(false);
        thread::scope(|s| {
            let computes = s.spawn(|| {
                let here = current_m().unwrap();
                let began = Instant::now();
                while !here.claim.is_taken() {
                    assert!(began.elapsed() < NEVER, "M5: its P was not taken");
                    std::thread::sleep(Duration::from_millis(30));
                }
                // Never into the runtime: it is still on the same thread.
                wait_while(|| here.claim.is_taken());
                is_back.store(true, SeqCst);
                compute(Duration::from_millis(30));
            });
            // Keeps the one P busy, all the time.
            while !computes.is_finished() {
                compute(Duration::from_micros(200));
                crate::yield_now();
            }
            computes.join().unwrap();
        });
        assert!(is_back.load(SeqCst));
        assert!(sched.calls.overshoots.get() >= 1, "U3: it was counted");
        assert!(sched.calls.overshoot_ns.get() >= 50_000, "U3");
    });
}

/// Computes for as long as something is so.
fn wait_while(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while is_so() {
        assert!(began.elapsed() < NEVER, "it went on and on");
        compute(Duration::from_micros(20));
    }
}

/// D8: threads that wait for a CPU look as if they did nothing. They are not blocked.
#[test]
fn m5_a_busy_machine_is_not_taken_for_a_blocking_call() {
    if !child::is_one() {
        return succeeds_alone("m5_a_busy_machine_is_not_taken_for_a_blocking_call");
    }
    live(2, |sched| {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..6 {
                threads.spawn(|| {
                    while !is_over.load(SeqCst) {
                        compute(Duration::from_millis(1));
                    }
                });
            }
            let claimed = sched.calls.claimed.get();
            thread::scope(|s| {
                for _ in 0..4 {
                    s.spawn(|| compute(Duration::from_millis(1500)));
                }
            });
            let fooled = sched.calls.claimed.get() - claimed;
            is_over.store(true, SeqCst);
            // One whose page had to come from the disk was blocked indeed.
            assert!(fooled <= 2, "M5: taken for blocked, {fooled} times");
        });
    });
}

/// A goroutine sleeps for long on the only P: another goroutine runs nevertheless, and before the
/// sleep ends. Returns what `look` sees then.
fn assert_a_sleeper_is_no_obstacle<T: Send>(look: impl FnOnce(&Sched) -> T + Send) -> T {
    let runs_beside_a_sleeper = || {
        let (is_asleep, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|s| {
            s.spawn(|| {
                is_asleep.store(true, SeqCst);
                std::thread::sleep(Duration::from_secs(1));
                is_over.store(true, SeqCst);
            });
            while !is_asleep.load(SeqCst) {
                crate::yield_now();
            }
            !is_over.load(SeqCst)
        })
    };
    live(1, |sched| {
        for _ in 0..3 {
            // A machine may stand still for a second, but not each time.
            let runs = runs_beside_a_sleeper() || runs_beside_a_sleeper();
            assert!(runs, "L2: it had to wait for the sleeper");
        }
        assert!(sched.calls.claimed.get() >= 1, "M5");
        look(sched)
    })
}

/// Runs one of these tests in a process of its own: its switches are the whole process's.
fn succeeds_alone(test: &str) {
    child::succeeds(module_path!(), test);
}

#[test]
fn l2_a_sleeper_is_no_obstacle() {
    assert_a_sleeper_is_no_obstacle(|sched| {
        assert!(!sched.calls.has_no_proc.load(SeqCst));
        assert!(!sched.calls.has_no_membarrier.load(SeqCst));
    });
}

#[test]
fn l2_a_sleeper_is_no_obstacle_without_proc() {
    if !child::is_one() {
        return succeeds_alone("l2_a_sleeper_is_no_obstacle_without_proc");
    }
    REFUSE_PROC.store(true, SeqCst);
    assert!(assert_a_sleeper_is_no_obstacle(|sched| sched
        .calls
        .has_no_proc
        .load(SeqCst)));
}

#[test]
fn l2_a_sleeper_is_no_obstacle_without_membarrier() {
    if !child::is_one() {
        return succeeds_alone("l2_a_sleeper_is_no_obstacle_without_membarrier");
    }
    REFUSE_MEMBARRIER.store(true, SeqCst);
    assert!(assert_a_sleeper_is_no_obstacle(|sched| sched
        .calls
        .has_no_membarrier
        .load(SeqCst)));
}

/// SM: only a call is under way, and sysmon sleeps.
#[test]
fn sm_no_looks_while_all_there_is_is_a_long_call() {
    let runtime = Runtime::builder().procs(2).build().unwrap();
    let (tell, told) = mpsc::channel();
    let (let_go, release) = mpsc::channel::<()>();
    let held = runtime.spawn(move || {
        let sched: *const Sched = current_g().unwrap().sched();
        tell.send(sched as usize).unwrap();
        blocking(|| release.recv().unwrap());
    });
    // SAFETY: D2, the runtime outlives this function's use of it.
    let sched = unsafe { &*(told.recv().unwrap() as *const Sched) };
    let looks = || sched.sysmon.looks.load(SeqCst);
    wait_for("the P is taken back", || {
        sched.spin.npidle.load(SeqCst) == 2
    });
    let mut before = looks();
    wait_for("it settles", || {
        std::thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut before, looks()) == looks()
    });
    std::thread::sleep(Duration::from_secs(1));
    // If it were awake, it would look a hundred times. After a stall it looks a few times more.
    assert!(looks() - before <= 10, "SM");
    let_go.send(()).unwrap();
    held.join().unwrap();
}

/// SM: the wake-up that found no P was served long ago, and one goroutine computes: sysmon sleeps
/// for its full intervals.
#[test]
fn sm_a_request_that_was_served_does_not_keep_sysmon_awake() {
    live(1, |sched| {
        let (looks, began) = (sched.sysmon.looks.load(SeqCst), Instant::now());
        sched.sysmon.press();
        while began.elapsed() < Duration::from_millis(500) {
            compute(Duration::from_millis(1));
        }
        let looks = sched.sysmon.looks.load(SeqCst) - looks;
        // Four each millisecond at most: the shortest rest.
        let most = 4 * began.elapsed().as_millis() as u64 + 100;
        assert!(looks <= most, "SM: {looks} looks, at most {most}");
        wait_for("the request is withdrawn", || !sched.sysmon.is_pressed());
    });
}

/// U9: a wired goroutine waits for a P with its thread, and never leaves it.
#[test]
fn m6_a_wired_goroutine_comes_back_on_its_thread() {
    live(1, |sched| {
        let is_over = AtomicBool::new(false);
        thread::scope(|s| {
            s.spawn(|| {
                while !is_over.load(SeqCst) {
                    compute(Duration::from_micros(100));
                    crate::yield_now();
                }
            });
            s.spawn(|| {
                crate::lock_os_thread();
                let (m, g, _) = around();
                let (mut round, began) = (0, Instant::now());
                let is_claimed = || sched.calls.claimed.get() > 0 || began.elapsed() > NEVER;
                while round < 40 || !is_claimed() {
                    round += 1;
                    let nap = || std::thread::sleep(Duration::from_millis(2));
                    if round % 2 == 0 {
                        blocking(nap);
                    } else {
                        nap();
                    }
                    let _rt = enter();
                    assert_eq!(current_m(), Some(m), "U9");
                    assert_eq!(m.lockedg.load(Relaxed), Some(g), "M6");
                }
                crate::unlock_os_thread();
                is_over.store(true, SeqCst);
            });
        });
        assert!(sched.calls.retaken.get() > 0, "its P was taken meanwhile");
        assert!(sched.calls.claimed.get() > 0, "also without a mark");
    });
}

/// M5, L2: a goroutine that naps again and again has used a little CPU at each look. sysmon takes
/// its P all the same, once its slice is over.
#[test]
fn m5_a_slice_of_naps_ends_in_a_nap() {
    live(2, |sched| {
        let (at, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|s| {
            s.spawn(|| {
                while !is_over.load(SeqCst) {
                    at.store(current_m().unwrap().as_ptr() as usize, SeqCst);
                    std::thread::sleep(Duration::from_millis(200));
                }
            });
            // A look may come just when a nap ends.
            let (mut looks, mut is_taken) = (0, false);
            wait_for("looks at naps", || {
                is_taken = look_at_nap(sched, &at).inspect(|_| looks += 1) == Some(true);
                is_taken || looks == 100
            });
            is_over.store(true, SeqCst);
            assert!(is_taken, "M5: it keeps its P in its naps");
        });
    });
}

/// Looks at a thread in a nap, as if its slice were over and it had just used the CPU. Returns
/// whether its P was taken. None: the thread is in no nap, or without a P.
fn look_at_nap(sched: &Sched, at: &AtomicUsize) -> Option<bool> {
    // SAFETY: GF, the address is null or an M's, and Ms are never freed.
    let m = unsafe { Mp::from_raw(at.load(SeqCst) as *mut M) }?;
    let _rt = enter();
    let mut claims = sched.claims.lock();
    let p = m.p.load(Relaxed)?;
    if !matches!(sched.doing(&mut claims, m), Doing::Blocked(_)) {
        return None;
    }
    let (cpu, now) = (
        sys::thread_cpu_ns(m.tid.load(Relaxed))?,
        sys::monotonic_ns(),
    );
    p.seen.begin(p.schedtick.load(Relaxed), now - 2 * SLICE_NS);
    p.seen.note_cpu(cpu - 1, now);
    let has_begun = sched.look_whether_blocked(&mut claims, p, m, now);
    sched.confirm_claims(&mut claims);
    Some(has_begun && m.p.load(Relaxed).is_none())
}
