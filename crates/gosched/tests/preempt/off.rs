//! Preemption by signal turned off: no goroutine is interrupted, and goroutines that call still
//! yield.

use super::*;

static SIGNALS: AtomicUsize = AtomicUsize::new(0);
static RAN: AtomicBool = AtomicBool::new(false);

extern "C" fn count_signal(_: i32) {
    SIGNALS.fetch_add(1, SeqCst);
}

/// The program's own handler sees every SIGURG there is: with preemption off the runtime installs
/// none.
fn watch_signals() {
    let f: extern "C" fn(i32) = count_signal;
    // SAFETY: the handler only adds to an atomic.
    unsafe { libc::signal(libc::SIGURG, f as libc::sighandler_t) };
}

/// A loop on the only P keeps it for the second it takes; then the other one runs.
fn keeps_its_p(runtime: &Runtime) {
    checked(runtime, || {
        gosched::go(|| RAN.store(true, SeqCst));
        burn(Duration::from_secs(1));
        assert!(!RAN.load(SeqCst), "the loop was interrupted");
        gosched::yield_now();
        assert!(RAN.load(SeqCst));
    });
}

/// U4: goroutines that call are asked to yield, and do.
fn makes_room_when_asked(runtime: &Runtime) {
    within(LONG, "those who call", || {
        checked(runtime, || {
            let hogs = Hogs::with(3, || (), |_| gosched::blocking(|| ()));
            while hogs.begun() < 3 || hogs.done().iter().any(|work| *work < 1000) {
                thread::sleep(Duration::from_millis(1));
            }
            hogs.end();
        });
    });
    assert!(runtime.metrics().preempts > 0, "nobody was asked");
}

fn off(builder: gosched::Builder) {
    watch_signals();
    let runtime = builder.procs(1).build().unwrap();
    keeps_its_p(&runtime);
    makes_room_when_asked(&runtime);
    assert_eq!(SIGNALS.load(SeqCst), 0);
    let metrics = runtime.metrics();
    assert_eq!((metrics.signals, metrics.threads_held_by_preempted), (0, 0));
    assert!(!metrics.preemption);
}

#[test]
fn u5_preemption_off_by_the_builder_sends_no_signal() {
    let _turn = beside();
    child(
        "off::u5_preemption_off_by_the_builder_sends_no_signal",
        || {
            off(Runtime::builder().preemption(false));
        },
    )
    .succeeded();
}

#[test]
fn u5_preemption_off_by_the_environment_sends_no_signal() {
    let _turn = beside();
    let name = "off::u5_preemption_off_by_the_environment_sends_no_signal";
    let set = |command: &mut std::process::Command| {
        command.env("GOSCHED_DEBUG", "asyncpreemptoff=1");
    };
    child_with(name, "", set, |_| off(Runtime::builder())).succeeded();
}

/// The world stops and the runtime ends all the same, once the loop does.
#[test]
fn u5_preemption_off_leaves_the_rest_in_order() {
    let _turn = beside();
    let runtime = Runtime::builder()
        .procs(2)
        .preemption(false)
        .build()
        .unwrap();
    within(LONG, "the rest", || {
        checked(&runtime, || {
            let hogs = Hogs::new(1);
            for _ in 0..100 {
                thread::spawn(gosched::yield_now).join().unwrap();
            }
            hogs.end();
            gosched::gomaxprocs(3);
        });
    });
}

/// Two loops take turns on one P. On average a turn takes the CPU time of its slice, and what
/// sysmon's looks add. On a busy machine it takes less.
#[test]
fn u5_the_environment_sets_the_slice() {
    let _turn = beside();
    let name = "off::u5_the_environment_sets_the_slice";
    let set = |command: &mut std::process::Command| {
        command.env("GOSCHED_DEBUG", "slicems=1");
    };
    const TURNS: u64 = 200;
    let body = |_: &str| {
        checked(&Runtime::builder().procs(1).build().unwrap(), || {
            let turns = || {
                let metrics = gosched::debug::metrics();
                metrics.preempts + metrics.threads_held_by_preempted
            };
            let (before, cpu) = (turns(), crate::common::process_cpu_time());
            let hogs = Hogs::new(2);
            while turns() - before < TURNS {
                burn(Duration::from_millis(1));
            }
            let each = (crate::common::process_cpu_time() - cpu) / TURNS as u32;
            hogs.end();
            assert!(
                each < Duration::from_millis(5),
                "{each:?} of CPU time a turn"
            );
        });
    };
    child_with(name, "", set, body).succeeded();
}
