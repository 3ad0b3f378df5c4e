//! Helpers of the unit tests: child processes, waiting, runtimes, and schedulers without threads.
//!
//! A helper that one module's tests use alone is in that module. The integration tests have their
//! own, in `tests/common/`.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::runtime::Runtime;
use crate::sched::Sched;
use crate::sched::life::config::{Config, Deadlock};
use crate::sched::model::m::M;
use crate::sched::model::ptr::{Gp, Mp, Ptr};
use crate::stack::class_for;

/// What has not happened by then never will, even on a busy machine.
pub(crate) const NEVER: Duration = Duration::from_secs(60);

/// Waits until `is_so`, blocking the thread; false if that takes longer than [`NEVER`].
pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > NEVER {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A runtime with so many Ps.
pub(crate) fn runtime(procs: usize) -> Runtime {
    Runtime::builder().procs(procs).build().unwrap()
}

/// A scheduler without threads, its Ps idle. The test takes the part of the Ms.
pub(crate) fn still(procs: u32) -> Box<Sched> {
    let sched = Box::new(Sched::new(Config {
        name: None,
        procs,
        stack_class: class_for(64 << 10).unwrap(),
        main_class: class_for(64 << 10).unwrap(),
        max_threads: 10_000,
        max_lookups: 500,
        deadlock: Deadlock::Off,
        on_deadlock: None,
        sysmon: crate::sched::monitor::sysmon::run,
        has_hook: false,
        panic_abort: false,
        mprotect_guards: false,
        tls: crate::tls::Room::SHARED,
        schedtrace_ms: None,
        scheddetail: false,
        preemption: true,
        slice_ns: crate::sched::monitor::retake::SLICE_NS,
        preemption_signal: crate::sched::monitor::preempt::SIGNAL,
    }));
    sched.add_procs(procs).unwrap();
    sched
}

/// A Dead G of a still scheduler, on no list.
pub(crate) fn dead_g(sched: &Sched) -> Gp {
    let mut taken = None;
    sched
        .blocks
        .take(sched.home(), 1, |g| taken = Some(g))
        .unwrap();
    taken.unwrap()
}

/// An M without a thread, on no list.
pub(crate) fn new_m(sched: &Sched) -> Mp {
    // SAFETY: GF, an M is never freed: this one is leaked.
    let m: Mp = unsafe { Ptr::new(NonNull::from(Box::leak(Box::new(M::new())))) };
    m.home.set(sched.home());
    m
}

/// Tests that need a process of their own run themselves again as a child.
pub(crate) mod child {
    use std::process::{Command, Output};

    /// Set in children only.
    const MARK: &str = "GOSCHED_UNIT_TEST_CHILD";

    /// Whether this process is a child that [`run`] started.
    pub(crate) fn is_one() -> bool {
        std::env::var_os(MARK).is_some()
    }

    /// Runs the test `name` of `module` (its `module_path!()`) alone in a child process.
    pub(crate) fn run(module: &str, name: &str) -> Output {
        let (_crate_name, module) = module.split_once("::").expect("crate::module");
        Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", &format!("{module}::{name}")])
            .args(["--nocapture", "--test-threads=1"])
            .env(MARK, "1")
            .output()
            .expect("a child process")
    }

    /// Runs the test as [`run`] does. The child must succeed.
    pub(crate) fn succeeds(module: &str, name: &str) {
        let output = run(module, name);
        assert!(output.status.success(), "{output:?}");
    }

    /// Runs the test as [`run`] does. The child must end with a fatal error whose report contains
    /// `text`.
    pub(crate) fn assert_dies(module: &str, name: &str, text: &str) {
        let output = run(module, name);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(text), "{errors}");
    }
}
