//! The check must find what is broken. Each test stops a scheduler without threads, breaks one
//! thing in it by hand, and expects that the check names the clause.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::sched::model::g::WaitReason;
use crate::sched::model::m::M;
use crate::sched::model::ptr::{Gp, Mp, Pp, Ptr};
use crate::sched::model::timer::NOWHERE;
use crate::sched::waiting::wait_ops::{WaitOps, WaitView};
use crate::sched::worker::Worker;
use crate::tests::{self, dead_g};
use std::ptr::NonNull;

/// A scheduler without threads. It is leaked, because a broken one cannot be taken down.
fn still(procs: u32) -> &'static Sched {
    Box::leak(tests::still(procs))
}

/// A Runnable G on no queue, counted and with a stack reserved.
fn runnable_g(sched: &Sched) -> Gp {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let g = dead_g(sched);
    g.id.store(NEXT.fetch_add(1, Relaxed), Relaxed);
    let reserved = sched.arena.reserve(sched.stack_class, 1);
    reserved.expect("address space");
    sched.outside.spawns.add_shared(1);
    g.status.transition(Status::Dead, Status::Runnable);
    g
}

/// A Waiting G that violates no clause.
fn waiting_g(sched: &Sched) -> Gp {
    static WAYS: WaitOps<()> = WaitOps {
        reason: WaitReason::Park,
        is_open: false,
        commit: |_, ()| true,
        withdraw: |_, ()| true,
        time_out: |_, ()| true,
        view: |()| WaitView::Nothing,
        pass_on: None,
    };
    let g = runnable_g(sched);
    g.set_waiting(WaitReason::Park, 0);
    // SAFETY: the argument is a static.
    unsafe { g.set_wait(&WAYS, &()) };
    g.set_stack(Some(sched.arena.take(sched.stack_class)));

    g.status.transition(Status::Runnable, Status::Running);
    g.status.transition(Status::Running, Status::Waiting);
    g
}

/// A Running G on an M of its own, which has no P yet.
fn running_g(sched: &Sched) -> (Gp, Mp) {
    let (g, m) = (runnable_g(sched), new_m(sched));
    g.set_stack(Some(sched.arena.take(sched.stack_class)));
    g.status.transition(Status::Runnable, Status::Running);
    g.m.store(Some(m), Relaxed);
    m.curg.store(Some(g), Relaxed);
    (g, m)
}

/// A G in a marked call, on an M that violates no clause.
fn marked_g(sched: &Sched) -> (Gp, Mp) {
    let (g, m) = running_g(sched);
    g.status.transition(Status::Running, Status::Syscall);
    m.claim.mark();
    (g, m)
}

/// A G in an unmarked call in which it lost its P: its M is a stray.
fn blocked_g(sched: &Sched) -> (Gp, Mp) {
    let (g, m) = running_g(sched);
    g.status.transition(Status::Running, Status::Syscall);
    m.claim.finish();
    sched.strays.count.fetch_add(1, Relaxed);
    (g, m)
}

/// A preempted G, queued, with the M that waits with it.
fn parked_g(sched: &Sched) -> (Gp, Mp) {
    let (g, m) = running_g(sched);
    g.status.transition(Status::Running, Status::Preempted);
    g.status.requeue_preempted();
    let mut core = sched.core.lock();
    sched.bind_here(&mut core, m, g);
    sched.global_put_spent(&mut core, g);
    (g, m)
}

fn to_global(sched: &Sched, g: Gp) {
    sched.global_put(&mut sched.core.lock(), g);
}

/// Stands for an M that holds `p`.
fn worker(p: Pp) -> Worker<'static> {
    // SAFETY: GF, leaked.
    let m: Mp = unsafe { Ptr::new(NonNull::from(Box::leak(Box::new(M::new())))) };
    // SAFETY: PL, the world is stopped, or has no threads.
    unsafe { Worker::played(m, p) }
}

fn to_ring(sched: &Sched, p: u32, g: Gp) {
    sched.runq_put(worker(sched.p(p)), g);
}

fn to_next(sched: &Sched, p: u32, g: Gp) {
    sched.runq_put_next(worker(sched.p(p)), g);
}

/// An M without a thread, on the list of all.
fn new_m(sched: &Sched) -> Mp {
    let m = tests::new_m(sched);
    let mut core = sched.core.lock();
    core.link_m(m);
    core.mcount += 1;
    m
}

/// An M on the idle list.
fn idle_m(sched: &Sched) -> Mp {
    let m = new_m(sched);
    m.is_idle.set(true);
    m.blocked.store(true, Relaxed);
    let mut core = sched.core.lock();
    m.idle_next.set(core.midle);
    if let Some(next) = core.midle {
        next.idle_prev.set(Some(m));
    }
    core.midle = Some(m);
    core.nmidle += 1;
    m
}

fn names(report: Report) -> Vec<String> {
    let clauses = report.into_result().err().map(|v| v.0).unwrap_or_default();
    let name = |clause: &String| clause.split(':').next().unwrap_or_default().to_owned();
    clauses.iter().map(name).collect()
}

/// The clauses that the check of a stopped world names after `change`.
fn stopped<T>(change: impl FnOnce(&Sched) -> T) -> Vec<String> {
    let sched = still(2);
    let stopped = sched.stop_the_world().expect("alive");
    change(sched);
    let mut report = Report::new();
    check_stopped(sched, &mut Census::new(), &mut report);
    // A second scan finds the same: the first has changed nothing.
    let mut again = Report::new();
    check_stopped(sched, &mut Census::new(), &mut again);
    stopped.leave_broken();
    let found = names(report);
    assert_eq!(found, names(again));
    found
}

/// The clauses that the check of the lists names after `change`.
fn running<T>(change: impl FnOnce(&Sched) -> T) -> Vec<String> {
    let sched = still(3);
    change(sched);
    let mut report = Report::new();
    check_lists(sched, &mut report);
    names(report)
}

#[track_caller]
fn assert_names(found: &[String], clause: &str) {
    assert!(
        found.iter().any(|name| name == clause),
        "{clause} not in {found:?}"
    );
}

#[test]
fn order_is_found_in_order() {
    let found = stopped(|sched| {
        for at in 0..600 {
            match at {
                0..256 => to_ring(sched, 0, runnable_g(sched)),
                256 => to_next(sched, 0, runnable_g(sched)),
                257 => to_next(sched, 1, runnable_g(sched)),
                258..300 => {
                    waiting_g(sched);
                }
                _ => to_global(sched, runnable_g(sched)),
            }
        }
        idle_m(sched);
        idle_m(sched);
    });
    assert!(found.is_empty(), "{found:?}");
    let found = stopped(|sched| {
        for _ in 0..3 {
            marked_g(sched);
            blocked_g(sched);
            parked_g(sched);
        }
        sched.strays.count.fetch_add(1, Relaxed); // it has returned, and sysmon has not noticed
    });
    assert!(found.is_empty(), "{found:?}");
    let found = running(|sched| {
        idle_m(sched);
        to_global(sched, runnable_g(sched));
        leave_behind(sched, marked_g(sched).1);
    });
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(check_of(still(4)), Ok(()));
}

#[test]
fn g2_a_goroutine_runs_where_nobody_runs_it() {
    let found = stopped(|sched| {
        let g = runnable_g(sched);
        g.status.transition(Status::Runnable, Status::Running);
    });
    assert_names(&found, "G2");
    assert_names(&found, "P4");
    let found = stopped(|sched| waiting_g(sched).m.store(Some(new_m(sched)), Relaxed));
    assert_names(&found, "G2");
    let found = stopped(|sched| {
        let g = waiting_g(sched);
        new_m(sched).curg.store(Some(g), Relaxed);
    });
    assert_names(&found, "G2");
}

#[test]
fn g2_a_goroutine_waits_where_nobody_waits_with_it() {
    let found = stopped(|sched| {
        let (_, m) = parked_g(sched);
        m.bound.store(None, Relaxed);
    });
    assert_eq!(found, ["M6", "M6", "G2"]);
    let found = stopped(|sched| {
        let (_, m) = parked_g(sched);
        m.curg.store(m.bound.load(Relaxed), Relaxed);
    });
    assert_eq!(found, ["G2", "M6"]);
    let found = stopped(|sched| {
        let (g, m) = parked_g(sched);
        g.m.store(None, Relaxed);
        assert_eq!(m.bound.load(Relaxed), Some(g));
    });
    assert_eq!(found, ["M6"]);
}

#[test]
fn g3_a_preempted_goroutine_is_on_no_queue() {
    let found = stopped(|sched| {
        parked_g(sched);
        let mut core = sched.core.lock();
        sched.global_get(&mut core).expect("queued");
    });
    assert_eq!(found, ["G3"]);
}

#[test]
fn g3_a_goroutine_is_in_no_place_or_in_two() {
    assert_eq!(stopped(runnable_g), ["G3"]);
    let found = stopped(|sched| {
        let g = runnable_g(sched);
        to_ring(sched, 0, g);
        to_global(sched, g);
    });
    assert_eq!(found, ["G3"]);
    let found = stopped(|sched| {
        let g = runnable_g(sched);
        to_ring(sched, 0, g);
        to_ring(sched, 1, g);
    });
    assert_eq!(found, ["G3"]);
}

#[test]
fn r5_next_is_also_in_a_ring() {
    let found = stopped(|sched| {
        let g = runnable_g(sched);
        to_ring(sched, 1, g);
        to_next(sched, 1, g);
    });
    assert_eq!(found, ["R5", "G3"]);
}

#[test]
fn i2_one_that_is_not_runnable_is_queued() {
    let found = stopped(|sched| to_ring(sched, 0, waiting_g(sched)));
    assert_eq!(found, ["I2"]);
    let found = stopped(|sched| to_global(sched, waiting_g(sched)));
    assert_eq!(found, ["I2"]);
}

#[test]
fn g4_it_waits_on_nothing() {
    assert_eq!(stopped(|sched| waiting_g(sched).forget_wait()), ["G4"]);
    let found = stopped(|sched| waiting_g(sched).set_waiting(WaitReason::Sleep, 0));
    assert_eq!(found, ["G4"], "asleep without a timer");
}

#[test]
fn pl_a_timer_is_not_where_its_goroutine_says() {
    let armed = |sched: &Sched, p: u32| {
        let g = waiting_g(sched);
        g.set_deadline(u64::MAX - 1);
        sched.arm(sched.p(p), g, |_| true, || true);
        g
    };
    assert!(stopped(|sched| _ = armed(sched, 1)).is_empty());
    let found = stopped(|sched| armed(sched, 1).timer_p.store(0, Relaxed));
    assert_eq!(found, ["PL"], "in another P's heap");
    let found = stopped(|sched| armed(sched, 1).timer_p.store(NOWHERE, Relaxed));
    assert_eq!(found, ["PL", "PL"], "in a heap and does not know");
    let found = stopped(|sched| waiting_g(sched).timer_p.store(1, Relaxed));
    assert_eq!(found, ["PL"], "in no heap and does not know");
    let found = stopped(|sched| {
        let (first, second) = (armed(sched, 1), armed(sched, 1));
        let slot = first.timer_slot.replace(second.timer_slot.get());
        second.timer_slot.set(slot);
    });
    assert_eq!(found, ["PL"], "in each other's places");
}

#[test]
fn g6_a_scan_bit_is_left_behind() {
    let found = stopped(|sched| assert!(waiting_g(sched).status.begin_scan(Status::Waiting)));
    assert_eq!(found, ["G6"]);
}

#[test]
fn gf_a_dead_g_is_in_no_cache_or_in_two() {
    assert_eq!(stopped(dead_g), ["GF"]);
    let found = stopped(|sched| {
        let g = dead_g(sched);
        for p in sched.procs() {
            worker(p).local().gfree.push(g);
        }
    });
    assert_names(&found, "GF");
    let found = stopped(|sched| {
        let g = dead_g(sched);
        let p = sched.p(0);
        let gfree = &worker(p).local().gfree;
        gfree.push(g);
        gfree.push(g); // a circle
    });
    assert_names(&found, "GF");
}

#[test]
fn r7_the_global_queue_and_its_mirror_differ() {
    assert_eq!(stopped(|sched| sched.runq_len.store(5, Relaxed)), ["R7"]);
}

#[test]
fn s2_a_goroutine_is_lost() {
    assert_eq!(stopped(|sched| sched.outside.spawns.add_shared(1)), ["S2"]);
}

#[test]
fn d3_a_stack_or_a_promise_is_lost() {
    let found = stopped(|sched| parked_g(sched).0.set_stack(None));
    assert_eq!(found, ["D3", "D3"]);
    let found = stopped(|sched| blocked_g(sched).0.set_stack(None));
    assert_eq!(found, ["D3", "D3"]);
    let found = stopped(|sched| {
        let reserved = sched.arena.reserve(sched.stack_class, 1);
        reserved.expect("address space");
    });
    assert_eq!(found, ["D3"]);
    let found = stopped(|sched| sched.arena.take(sched.stack_class));
    assert_eq!(found, ["D3"]);
    assert_eq!(
        stopped(|sched| waiting_g(sched).set_stack(None)),
        ["D3", "D3"]
    );
}

#[test]
fn p1_a_p_and_an_m_are_bound_one_way() {
    let found = stopped(|sched| sched.p(1).m.store(Some(new_m(sched)), Relaxed));
    assert_eq!(found, ["P1"]);
    let found = running(|sched| {
        let p = sched.get_idle_p(&mut sched.core.lock()).expect("idle");
        p.set_status(PStatus::Running);
    });
    assert_eq!(found, ["P1"]);
}

#[test]
fn p2_p6_the_idle_list_its_count_and_the_mask_differ() {
    let first = |sched: &Sched| sched.core.lock().pidle.iter().next().expect("idle");
    let found = running(|sched| sched.spin.npidle.fetch_sub(1, Relaxed));
    assert_eq!(found, ["P2"]);
    let found = running(|sched| sched.idle_mask[0].fetch_and(!1, Relaxed));
    assert_eq!(found, ["P6", "P6"]);
    let found = running(|sched| sched.idle_mask[3].fetch_or(1, Relaxed));
    assert_eq!(found, ["P6"]);
    let found = running(|sched| first(sched).m.store(Some(new_m(sched)), Relaxed));
    assert_eq!(found, ["P2"]);
    let found = running(|sched| {
        let p = first(sched);
        to_ring(sched, p.id, runnable_g(sched));
    });
    assert_eq!(found, ["P2"]);
    let found = running(|sched| {
        let p = first(sched);
        p.link_to_itself();
    });
    assert_names(&found, "P2");
    assert_names(
        &stopped(|sched| sched.idle_mask[0].fetch_or(2, Relaxed)),
        "P6",
    );
}

/// Takes an idle P and leaves it behind for the call that `m` is in.
fn leave_behind(sched: &Sched, m: Mp) -> Pp {
    let p = sched
        .get_idle_p(&mut sched.core.lock())
        .expect("idle")
        .into_p();
    p.set_status(PStatus::Syscall);
    m.oldp.store(Some(p), Relaxed);
    p
}

#[test]
fn p1_a_p_may_change_hands() {
    let change = |is_inside: bool| {
        running(move |sched| {
            let m = marked_g(sched).1;
            leave_behind(sched, m).set_status(PStatus::Running);
            m.claim.mark();
            if is_inside {
                let _ = m.claim.enter();
            }
        })
    };
    assert!(change(true).is_empty());
    assert_eq!(change(false), ["P1"]);
}

#[test]
fn p3_a_p_is_left_behind_by_nobody_or_is_bound() {
    let found = running(|sched| {
        let m = marked_g(sched).1;
        leave_behind(sched, m).m.store(Some(m), Relaxed);
    });
    assert_eq!(found, ["P3"]);
    let found = running(|sched| {
        let m = marked_g(sched).1;
        leave_behind(sched, m);
        m.oldp.store(None, Relaxed);
    });
    assert_eq!(found, ["P3"]);
    let found = running(|sched| {
        let p = leave_behind(sched, marked_g(sched).1);
        sched.idle_mask[0].fetch_or(1 << p.id, Relaxed);
    });
    assert_eq!(found, ["P6", "P6"]);
    let found = stopped(|sched| sched.p(0).set_status(PStatus::Syscall));
    assert_eq!(found, ["P4"], "the leader takes them all");
}

#[test]
fn p4_p5_a_p_has_the_wrong_state() {
    assert_eq!(
        stopped(|sched| sched.p(0).set_status(PStatus::Idle)),
        ["P4"]
    );
    let found = stopped(|sched| new_m(sched).p.store(Some(sched.p(0)), Relaxed));
    assert_eq!(found, ["P4"]);
    assert_names(&stopped(|sched| sched.nprocs.store(1, Relaxed)), "P5");
}

#[test]
fn s3_a_p_is_in_two_places() {
    let found = stopped(|sched| new_m(sched).nextp.store(Some(sched.p(0)), Relaxed));
    assert_eq!(found, ["S3"]);
    let found = running(|sched| sched.core.lock().npending += 1);
    assert_eq!(found, ["S3"]);
    let found = running(|sched| {
        let mut core = sched.core.lock();
        let p = core.pidle.take().expect("idle");
        core.pending.put(p);
        core.npending = 1;
    });
    assert_names(&found, "S3");
}

#[test]
fn m1_an_idle_m_is_not_idle() {
    let found = running(|sched| sched.core.lock().nmidle += 1);
    assert_eq!(found, ["M1"]);
    let found = running(|sched| idle_m(sched).blocked.store(false, Relaxed));
    assert_eq!(found, ["M1"]);
    let found = running(|sched| idle_m(sched).nextp.store(Some(sched.p(0)), Relaxed));
    assert_eq!(found, ["M1"]);
    let found = running(|sched| {
        let first = idle_m(sched);
        idle_m(sched);
        first.idle_prev.set(None);
    });
    assert_eq!(found, ["M1"]);
    assert_eq!(running(|sched| new_m(sched).is_idle.set(true)), ["M1"]);
}

#[test]
fn m4_a_goroutine_is_in_a_call_and_its_m_is_not() {
    let found = stopped(|sched| {
        let (_, m) = marked_g(sched);
        m.claim.resume();
    });
    assert_eq!(found, ["G2", "M4"]);
    let found = stopped(|sched| {
        let (_, m) = blocked_g(sched);
        m.p.store(Some(sched.p(0)), Relaxed);
    });
    assert_eq!(found, ["P4", "M4"]);
    let found = stopped(|sched| {
        let (g, _) = marked_g(sched);
        g.m.store(None, Relaxed);
    });
    assert_eq!(found, ["M4"]);
    let found = stopped(|sched| to_global(sched, marked_g(sched).0));
    assert_eq!(found, ["I2"]);
}

#[test]
fn m5_an_m_is_in_a_call_and_nobody_knows_of_it() {
    let found = stopped(|sched| new_m(sched).claim.mark());
    assert_eq!(found, ["M5"]);
    let found = stopped(|sched| {
        blocked_g(sched);
        sched.strays.count.store(0, Relaxed);
    });
    assert_eq!(found, ["M5"]);
    let found = stopped(|sched| {
        blocked_g(sched);
        sched.strays.count.store(2, Relaxed);
    });
    assert_eq!(found, ["M5"], "more are watched than there are");
}

#[test]
fn m2_m7_spinners() {
    assert_eq!(
        stopped(|sched| new_m(sched).spinning.put(Some(sched.spin.begin()))),
        ["M2"]
    );
    let found = running(|sched| (0..4).for_each(|_| std::mem::forget(sched.spin.begin())));
    assert_eq!(found, ["I6"]);
}

#[test]
fn m6_a_lock_goes_one_way() {
    let found = stopped(|sched| {
        let g = waiting_g(sched);
        let m = new_m(sched);
        m.lockedg.store(Some(g), Relaxed);
    });
    assert_eq!(found, ["M6"]);
    let found = stopped(|sched| waiting_g(sched).lockedm.store(Some(new_m(sched)), Relaxed));
    assert_eq!(found, ["M6"]);
    let found = stopped(|sched| sched.core.lock().nmidlelocked = 1);
    assert_eq!(found, ["M6"]);
    let found = stopped(|sched| {
        let mut core = sched.core.lock();
        core.nparked = 1;
        sched.mirror_limit(&core);
    });
    assert_eq!(found, ["M6"]);
}

#[test]
fn mg_threads_are_miscounted() {
    assert_eq!(running(|sched| sched.core.lock().mcount += 1), ["MG"]);
    let found = running(|sched| {
        let too_many = sched.config.max_threads + 1;
        let mut core = sched.core.lock();
        core.mcount = too_many;
        core.creating = too_many;
    });
    assert_eq!(found, ["MG"]);
    let found = running(|sched| sched.at_limit.store(true, Relaxed));
    assert_eq!(found, ["MG"]);
}

#[test]
fn findings_are_listed_and_limited() {
    let mut report = Report::new();
    for n in 0..60 {
        report.expect(n % 2 == 0, "X1", format_args!("number {n}"));
    }
    let error = report.into_result().expect_err("findings");
    assert_eq!(error.clauses().len(), 30);
    assert_eq!(error.clauses()[0], "X1: number 1");
    assert!(
        error
            .to_string()
            .contains("inconsistent:\n  X1: number 1\n  X1: number 3\n")
    );
    let mut report = Report::new();
    (0..60).for_each(|n| report.add("X1", format_args!("number {n}")));
    let error = report.into_result().expect_err("findings");
    assert_eq!(error.clauses().len(), 51);
    assert_eq!(error.clauses()[50], "... and 10 more");
}
