//! WK, FR: second looks, on a still scheduler. A submitter or an M that goes idle must find what
//! came after its first look. The loom models explore the protocols; these tests hold the library
//! to them.

use super::timers::{arm, waiting_g};
use super::*;
use crate::sched::model::watch::nap::{ASLEEP, CALLED, REST};
use crate::sched::schedule::{IdleResult, WatchResult};
use crate::sched::waiting::timed::announce;
use crate::sys;

/// A P waits for a thread, so that an M that stops takes it instead of going to sleep.
fn pend_a_p(sched: &Sched) -> Pp {
    let p = sched.get_idle_p(&mut sched.core.lock()).unwrap().into_p();
    sched.start_m(sched.core.lock(), idle(p), None);
    assert_eq!(sched.core.lock().npending, 1);
    p
}

/// A wake-up found no idle P after the M's first look: the M that has put its P on the idle list
/// looks at `need` again (need/2) and takes a P back.
#[test]
fn wk_an_m_that_drops_its_p_looks_at_need_again() {
    let sched = still(2);
    let (m, p) = m_with_p(&sched);
    let pending = pend_a_p(&sched);
    sched.begin_spinning(m); // a spinning M has no first look
    sched.spin.set_needed();
    assert!(matches!(sched.give_up_p(&mut g0(m)), IdleResult::LookAgain));
    assert!(m.p() == p && m.p() != pending, "WK: it stopped");
    assert!(m.is_spinning() && !sched.spin.is_needed());
    assert_eq!(sched.core.lock().npending, 1);
}

/// The same for an M that does not spin. Its first look, under the lock, only saves it the way to
/// the idle list and back.
#[test]
fn wk_an_m_that_has_not_spun_looks_at_need_too() {
    let sched = still(2);
    let (m, p) = m_with_p(&sched);
    pend_a_p(&sched);
    sched.spin.set_needed();
    assert!(matches!(sched.give_up_p(&mut g0(m)), IdleResult::LookAgain));
    assert!(m.p() == p && m.is_spinning() && !sched.spin.is_needed());
}

/// A goroutine came after the search: the spinner that has stopped looks at the queues of all Ps in
/// use again (wake/2) and takes a P back.
#[test]
fn fr_wk_whoever_stops_spinning_looks_at_every_queue_again() {
    let sched = still(130);
    let (m, p) = m_with_p(&sched);
    let others: Vec<_> = (0..128).map(|_| m_with_p(&sched).1).collect();
    pend_a_p(&sched);
    for other in others {
        sched.begin_spinning(m);
        sched.runq_put(worker(other), runnable_g(&sched)); // its M holds it
        assert!(matches!(sched.give_up_p(&mut g0(m)), IdleResult::LookAgain));
        assert!(m.p() == p && m.is_spinning(), "WK: it stopped");
        sched.end_spinning(m.spinning.take());
        assert_eq!(drain_p(other).len(), 1);
    }
}

/// A walk over the Ps in use skips the idle ones, and only these.
#[test]
fn p6_a_walk_over_the_ps_in_use_skips_idle_ones() {
    for n in [1_u32, 63, 64, 65, 130] {
        let sched = still(n);
        assert_eq!(sched.procs_in_use().count(), 0, "{n}: all are idle");
        let mut taken: Vec<_> = (0..n).map(|_| m_with_p(&sched).1).collect();
        let ids = |ps: &mut dyn Iterator<Item = Pp>| ps.map(|p| p.id).collect::<Vec<_>>();
        assert_eq!(ids(&mut sched.procs_in_use()), (0..n).collect::<Vec<_>>());
        let idle_one = taken.swap_remove(n as usize / 2);
        let m = idle_one.m.load(Relaxed).unwrap();
        sched.put_idle_p(&mut sched.core.lock(), g0(m).relinquish_p());
        taken.sort_unstable_by_key(|p| p.id);
        assert_eq!(
            ids(&mut sched.procs_in_use()),
            ids(&mut taken.iter().copied())
        );
    }
}

/// Another M has taken the P that the M dropped: the next P to go idle must look.
#[test]
fn wk_an_m_that_finds_its_p_taken_leaves_word() {
    let sched = still(1);
    let (m, _) = m_with_p(&sched);
    sched.spin.end(sched.spin.begin());
    assert!(!sched.take_idle_p_spinning(&mut g0(m)), "no P is idle");
    assert!(sched.spin.is_needed());
}

/// A claimed wake-up finds the idle P gone: the claim is given back, and the next P to go idle
/// looks.
#[test]
fn wk_a_claim_that_finds_no_p_leaves_word() {
    let sched = still(1);
    let _held = m_with_p(&sched);
    let spinning = sched.spin.claim_wake().unwrap();
    sched.start_claimed(sched.core.lock(), spinning);
    assert_eq!(sched.spin.count(), 0);
    assert!(sched.spin.is_needed());
}

/// A P without work is handed off after a wake-up has found no P: it is put to use. Another P is
/// idle, so the first look puts this one on the idle list.
#[test]
fn wk_a_hand_off_looks_at_need() {
    let sched = still(2);
    let (m, p) = m_with_p(&sched);
    sched.spin.set_needed();
    g0(m).release_p().into_p();
    sched.hand_off_p(idle(p));
    assert_eq!(sched.core.lock().npending, 1, "WK: nobody was started");
}

const NS: u64 = 1_000_000_000;
/// How long a sleep lasts that nothing ends, and how long one may last that something ends.
const REST_S: u64 = 60;
const SOON: Duration = Duration::from_secs(40);

/// How many Ms were started on idle Ps.
fn started(sched: &Sched) -> u32 {
    sched.core.lock().npending
}

/// A P with other work sets a timer, and no M watches timers: another M is started, which will
/// watch.
#[test]
fn d10_a_timer_that_nobody_watches_starts_an_m() {
    let sched = still(2);
    let (_, p) = m_with_p(&sched);
    announce(&sched, p, NS);
    assert_eq!(started(&sched), 0, "this M has nothing else to do");
    sched.runq_put(worker(p), runnable_g(&sched));
    announce(&sched, p, NS);
    assert_eq!(started(&sched), 1);
    drain_p(p);
}

/// The same for a timer that starts a goroutine; its setter has other work, or is not a thread of
/// this runtime.
#[test]
fn d10_a_goroutine_s_timer_that_nobody_watches_starts_an_m() {
    let sched = still(2);
    let (_, p) = m_with_p(&sched);
    crate::time::timer_spawn::announce(&sched, Some(p), NS);
    assert_eq!(started(&sched), 1);
    let sched = still(1);
    crate::time::timer_spawn::announce(&sched, None, NS);
    assert_eq!(started(&sched), 1);
}

/// A goroutine of a P with other work, or a foreign thread, is the first to wait for the network,
/// and no M watches: another M is started, which will.
#[test]
fn f5_the_first_to_wait_for_the_network_starts_an_m() {
    let sched = still(2);
    let (m, p) = m_with_p(&sched);
    sched.net_waiter_came(m);
    assert_eq!(started(&sched), 0, "this M has nothing else to do");
    sched.runq_put(worker(p), runnable_g(&sched));
    sched.net_waiter_came(m);
    assert_eq!(started(&sched), 1);
    drain_p(p);
    let sched = still(1);
    sched.net_stranger_came();
    assert_eq!(started(&sched), 1);
}

/// sysmon has looked at the timers and sleeps for long when `f` sets one: it must come back.
fn ends_a_rest(sched: &Sched, f: impl FnOnce()) {
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = sys::monotonic_ns() + REST_S * NS;
            sched.sysmon.nap.pause(REST, end, || u64::MAX);
        });
        wait_for("sysmon rests", || {
            sched.sysmon.nap.word.0.load(Relaxed) == REST
        });
        f();
    });
    assert!(began.elapsed() < SOON, "SM: nobody called sysmon");
}

#[test]
fn sm_a_timer_that_nobody_watches_calls_sysmon() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    let when = sys::monotonic_ns() + NS;
    ends_a_rest(&sched, || announce(&sched, p, when));
    ends_a_rest(&sched, || {
        crate::time::timer_spawn::announce(&sched, Some(p), when)
    });
}

/// The watcher comes back with what is due, and every P is busy: no M watches the next timer.
#[test]
fn sm_a_watcher_without_a_p_leaves_the_timers_to_sysmon() {
    let sched = still(1);
    let (_, p) = m_with_p(&sched);
    arm(&sched, p, waiting_g(&sched), 1);
    arm(&sched, p, waiting_g(&sched), sys::monotonic_ns() + 30 * NS);
    let m = new_m(&sched);
    assert!(sched.poller.begin());
    ends_a_rest(&sched, || {
        assert!(matches!(sched.watch(&mut g0(m)), WatchResult::NoP))
    });
    assert_eq!(drain_global(&sched).len(), 1);
}

/// A P is taken off the idle list, or the runtime ends, when sysmon has seen every P idle and is
/// about to sleep: its second look keeps it awake. The M that took the P found it awake.
#[test]
fn sm_sysmon_looks_at_the_idle_ps_again_before_it_sleeps() {
    let sched = still(1);
    let held = m_with_p(&sched);
    let began = Instant::now();
    assert!(sched.sysmon_sleep(sys::monotonic_ns() + REST_S * NS));
    g0(held.0).release_p().into_p();
    sched.put_idle_p(&mut sched.core.lock(), idle(held.1));
    sched.dead.store(true, Relaxed);
    assert!(sched.sysmon_sleep(sys::monotonic_ns() + REST_S * NS));
    assert!(began.elapsed() < SOON, "SM: it slept");
}

/// An M takes a P while sysmon sleeps because every P was idle: sysmon must look at it.
#[test]
fn sm_an_m_that_takes_a_p_wakes_sysmon() {
    let sched = still(1);
    let word = &sched.sysmon.nap.word.0;
    word.store(ASLEEP, Relaxed);
    let _held = m_with_p(&sched);
    assert_eq!(word.load(Relaxed), CALLED);
}

/// Before it sleeps sysmon asks whether all that is awake are Ms in calls. It does not walk over
/// all Ms under the scheduler lock: in this list a walk would never end.
#[test]
fn sm_ms_in_calls_are_counted_and_not_looked_for() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let sched = still(1);
        let m = new_m(&sched);
        let mut core = sched.core.lock();
        core.link_m(m);
        core.mcount += 1;
        drop(core);
        m.alllink.set(Some(m));
        let before = sched.waits_for_calls();
        sched.room.call_is_out();
        let marked = sched.waits_for_calls();
        sched.call_is_back();
        sched.count_stray(m);
        let unmarked = sched.waits_for_calls();
        sched.core.lock().mcount += 1; // one more that is awake
        let beside = sched.waits_for_calls();
        m.alllink.set(None);
        tell.send([before, marked, unmarked, beside]).unwrap();
    });
    let answers = told.recv_timeout(SOON).expect("SM: a walk");
    assert_eq!(answers, [false, true, true, false]);
}

/// A P waits for a thread and no M is idle: the watcher comes back for it, and no M goes to watch
/// first.
#[test]
fn d9_a_p_that_waits_for_a_thread_comes_before_the_watch() {
    let sched = still(1);
    arm(&sched, sched.p(0), waiting_g(&sched), u64::MAX - 1);
    assert!(sched.begin_watch());
    pend_a_p(&sched);
    let began = Instant::now();
    drop(sched.poller.sleep(|| sys::monotonic_ns() + REST_S * NS));
    assert!(began.elapsed() < SOON, "D9: nobody called the watcher");
    assert!(!sched.begin_watch(), "D9: the P waits");
}

/// Several timers are due at once: the M runs one goroutine and starts another M for the rest.
#[test]
fn wk_timers_that_are_due_at_once_start_an_m() {
    let sched = still(2);
    let (_, p) = m_with_p(&sched);
    let mut due = GQueue::new();
    let gs = runnable_gs(&sched, 2);
    gs.iter().for_each(|g| due.push_back(*g));
    assert!(sched.share_due(worker(p), due) == Some(gs[0]));
    assert_eq!((started(&sched), drain_p(p).len()), (1, 1));
}
