//! U3, SM: Ms whose P was taken in an unmarked call cost nothing while they sleep, and sysmon
//! notices when they compute.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Condvar, Mutex};

use super::calls::compute;
use super::*;
use crate::sched::model::current::current_m;
use crate::sys::{Context, Info, REFUSE_CPU_TIMERS};
use crate::thread;

/// So many sleepers are far beyond what one look can see to.
const SLEEPERS: u32 = 200;

/// Runs one of these tests in a process of its own: its switches are the whole process's.
fn succeeds_alone(test: &str) {
    let output = child::run(module_path!(), test);
    assert!(output.status.success(), "{output:?}");
}

/// Runs `f` while `SLEEPERS` goroutines wait in calls that are not marked, and have lost their Ps.
fn beside_sleepers<T: Send>(f: impl FnOnce(&'static Sched) -> T + Send) -> T {
    live(1, |sched| {
        let (is_over, over) = (Mutex::new(false), Condvar::new());
        thread::scope(|s| {
            for _ in 0..SLEEPERS {
                s.spawn(|| {
                    let mut is_over = is_over.lock().unwrap();
                    while !*is_over {
                        is_over = over.wait(is_over).unwrap();
                    }
                });
            }
            wait_yielding("all sleep", || sched.strays.count.load(SeqCst) >= SLEEPERS);
            let out = f(sched);
            *is_over.lock().unwrap() = true;
            over.notify_all();
            out
        })
    })
}

/// Looks of sysmon, and those of them at one stray, in a second without any activity.
fn looks_of_a_second(sched: &Sched) -> (u64, u64) {
    let looks = || {
        (
            sched.sysmon.looks.load(SeqCst),
            sched.strays.looks.load(SeqCst),
        )
    };
    std::thread::sleep(Duration::from_millis(200)); // it settles
    let before = looks();
    std::thread::sleep(Duration::from_secs(1));
    let after = looks();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn sm_sleepers_in_unmarked_calls_do_not_keep_sysmon_awake() {
    let (looks, at_strays) = beside_sleepers(looks_of_a_second);
    assert_eq!(at_strays, 0, "SM: each has a timer");
    // 1,000 if it looked each millisecond.
    assert!(looks < 100, "SM: {looks} looks while all sleep");
}

/// SM: where the kernel gives no timers, what one look costs has a bound.
#[test]
fn sm_a_look_at_sleepers_without_timers_is_short() {
    if !child::is_one() {
        return succeeds_alone("sm_a_look_at_sleepers_without_timers_is_short");
    }
    REFUSE_CPU_TIMERS.store(true, SeqCst);
    let (looks, at_strays) = beside_sleepers(looks_of_a_second);
    assert!(at_strays > 0, "they are looked at");
    assert!(at_strays <= 8 * (looks + 1), "{at_strays} in {looks} looks");
}

/// A goroutine sleeps in an unmarked call until its P is taken. It computes on its thread until it
/// has a P again, and then does `more`. Another goroutine keeps the only P busy all the time.
fn stray_computes(sched: &Sched, more: Duration) {
    let overshoots = sched.calls.overshoots.get();
    thread::scope(|s| {
        let computes = s.spawn(|| {
            let (here, began) = (current_m().unwrap(), Instant::now());
            while !here.claim.is_taken() {
                assert!(began.elapsed() < NEVER, "M5: its P was not taken");
                std::thread::sleep(Duration::from_millis(20));
            }
            while here.claim.is_taken() {
                assert!(began.elapsed() < NEVER, "U3: it went on and on");
                compute(Duration::from_micros(20));
            }
            compute(more);
        });
        while !computes.is_finished() {
            compute(Duration::from_micros(200));
            crate::yield_now();
        }
        computes.join().unwrap();
    });
    assert!(
        sched.calls.overshoots.get() > overshoots,
        "U3: it was counted"
    );
}

#[test]
fn u3_a_stray_without_a_timer_is_noticed_too() {
    if !child::is_one() {
        return succeeds_alone("u3_a_stray_without_a_timer_is_noticed_too");
    }
    REFUSE_CPU_TIMERS.store(true, SeqCst);
    live(1, |sched| {
        stray_computes(sched, Duration::ZERO);
        assert!(sched.strays.looks.load(SeqCst) > 0);
    });
}

static PROGRAMS_OWN: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_programs_own(_: c_int, _: Info<'_>, _: Context<'_>) {
    PROGRAMS_OWN.fetch_add(1, SeqCst);
}

/// D7: the timer's signal is ours, and none that the program has a handler for.
#[test]
fn d7_the_signal_of_a_strays_timer_is_not_passed_on() {
    if !child::is_one() {
        return succeeds_alone("d7_the_signal_of_a_strays_timer_is_not_passed_on");
    }
    let signal = crate::sched::monitor::preempt::SIGNAL;
    // SAFETY: D7, the handler counts in an atomic.
    unsafe { crate::sys::sigaction_install(signal, count_programs_own, libc::SA_RESTART) }.unwrap();
    live(1, |sched| {
        for _ in 0..5 {
            stray_computes(sched, Duration::from_millis(20));
        }
        assert_eq!(sched.strays.looks.load(SeqCst), 0, "each has a timer");
    });
    assert_eq!(PROGRAMS_OWN.load(SeqCst), 0, "D7");
    // SAFETY: the signal goes to this thread, and has a handler.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
    assert_eq!(PROGRAMS_OWN.load(SeqCst), 1, "the program's own is");
}

/// Timers of this process, as the kernel lists them.
fn timers() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/timers").ok()?;
    Some(text.matches("ID:").count())
}

/// D2: a thread that a dropped runtime left behind is not signalled on, and its timer goes with it.
#[test]
fn d2_a_stray_that_is_left_behind_is_let_go() {
    if !child::is_one() {
        return succeeds_alone("d2_a_stray_that_is_left_behind_is_let_go");
    }
    static IS_DROPPED: AtomicBool = AtomicBool::new(false);
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    let runtime = Runtime::builder().procs(1).build().unwrap();
    runtime.spawn(|| {
        while !IS_DROPPED.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(50));
        }
        compute(Duration::from_millis(50));
        IS_DONE.store(true, SeqCst);
    });
    runtime.run(|| {
        let here = current_g().unwrap();
        let sched = here.sched();
        wait_yielding("its P is taken", || sched.strays.count.load(Relaxed) >= 1);
    });
    if let Some(timers) = timers() {
        assert!(timers >= 1);
    }
    drop(runtime);
    IS_DROPPED.store(true, SeqCst);
    wait_for("it has computed", || IS_DONE.load(SeqCst));
    wait_for("its timer is gone", || {
        timers().is_none_or(|timers| timers == 0)
    });
}
