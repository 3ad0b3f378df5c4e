//! What dumps, metrics and checks show of goroutines that compute without a call or block their
//! thread. All three must return meanwhile.

use std::hint::black_box;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::common::{Rng, child, child_with, named, within};
use gosched::debug::{self, Dump, Goroutine, Metrics};
use gosched::{Runtime, thread};

/// Runs `body` on a runtime of its own. A hang ends the process.
fn on_procs<T: Send>(procs: usize, what: &str, body: impl FnOnce() -> T + Send) -> T {
    let runtime = Runtime::builder().procs(procs).build().expect("a runtime");
    within(Duration::from_secs(100), what, || runtime.run(body))
}

/// Waits, in a goroutine, until `is_so`.
#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        let text = || format!("{}\n{}", debug::metrics(), debug::dump());
        assert!(started.elapsed() < Duration::from_secs(60), "{}", text());
        thread::sleep(Duration::from_millis(1));
    }
}

#[track_caller]
fn by_name<'a>(dump: &'a Dump, name: &str) -> &'a Goroutine {
    let found = dump.goroutines().iter().find(|g| g.name() == Some(name));
    found.unwrap_or_else(|| panic!("no {name} in\n{dump}"))
}

/// Looks until `is_so`.
#[track_caller]
fn dump_when_all(is_so: impl Fn(&Dump) -> bool) -> Dump {
    let mut last = None;
    wait_until(|| {
        let dump = debug::dump();
        let found = is_so(&dump);
        last = Some(dump);
        found
    });
    last.expect("a look")
}

/// Looks until `is_so` of the goroutine called `name`.
#[track_caller]
fn dump_when(name: &str, is_so: impl Fn(&Goroutine) -> bool) -> Dump {
    dump_when_all(|dump| is_so(by_name(dump, name)))
}

fn functions(goroutine: &Goroutine) -> Vec<&str> {
    goroutine.frames().iter().map(|f| f.function()).collect()
}

/// A loop without calls, until told.
#[inline(never)]
fn spins_without_a_call(stop: &AtomicBool, turns: &AtomicU64) {
    while !stop.load(Relaxed) {
        turns.store(black_box(turns.load(Relaxed) + 1), Relaxed);
    }
}

/// Goroutines that compute until dropped.
struct Hogs {
    stop: Arc<AtomicBool>,
    turns: Vec<Arc<AtomicU64>>,
    handles: Vec<thread::JoinHandle<()>>,
}

impl Hogs {
    /// Starts `n`, called `hog 0` and so on, and waits until each has run.
    fn start(n: usize) -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        let turns: Vec<_> = (0..n).map(|_| Arc::new(AtomicU64::new(0))).collect();
        let start = |(at, turns): (usize, &Arc<AtomicU64>)| {
            let (stop, turns) = (Arc::clone(&stop), Arc::clone(turns));
            named(&format!("hog {at}"), move || {
                spins_without_a_call(&stop, &turns)
            })
        };
        let handles = turns.iter().enumerate().map(start).collect();
        let hogs = Hogs {
            stop,
            turns,
            handles,
        };
        hogs.all_advance();
        hogs
    }

    #[track_caller]
    fn all_advance(&self) {
        for turns in &self.turns {
            let before = turns.load(Relaxed);
            wait_until(|| turns.load(Relaxed) > before);
        }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for handle in self.handles.drain(..) {
            handle.join().expect("no panic");
        }
    }
}

/// A goroutine in a marked call, and one in an unmarked one, until dropped.
struct Blocked {
    gates: Vec<mpsc::Sender<()>>,
    handles: Vec<thread::JoinHandle<()>>,
}

impl Blocked {
    fn start() -> Blocked {
        let (marked, is_marked) = mpsc::channel();
        let (unmarked, is_unmarked) = mpsc::channel();
        let wait = |gate: mpsc::Receiver<()>| gate.recv().expect_err("only closed");
        let handles = vec![
            named("marked", move || {
                gosched::blocking(|| wait(is_marked));
            }),
            named("unmarked", move || {
                wait(is_unmarked);
            }),
        ];
        Blocked {
            gates: vec![marked, unmarked],
            handles,
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.gates.clear();
        for handle in self.handles.drain(..) {
            handle.join().expect("no panic");
        }
    }
}

/// No frame of the handler, the wait in it or the goroutine's entry is shown.
#[track_caller]
fn assert_own_frames_only(goroutine: &Goroutine, dump: &Dump) {
    let runtime = [
        "restore_rt",
        "on_signal",
        "park_here",
        "wait_bound",
        "goroutine_entry",
    ];
    for function in functions(goroutine) {
        let is_own = !runtime.iter().any(|part| function.contains(part));
        assert!(is_own, "{function} in\n{dump}");
    }
}

#[test]
fn u5_a_dump_shows_where_tight_loops_were_interrupted() {
    on_procs(2, "a dump of tight loops", || {
        let hogs = Hogs::start(4);
        // A thread that gets no CPU for long does not answer in time; the others do.
        let names = ["hog 0", "hog 1", "hog 2", "hog 3"];
        let has_frames = |dump: &Dump, name: &&str| !by_name(dump, name).frames().is_empty();
        let dump = dump_when_all(|dump| names.iter().all(|name| has_frames(dump, name)));
        let main = by_name(&dump, "main");
        assert_eq!((main.state(), main.is_preempted()), ("running", false));
        for name in names {
            let hog = by_name(&dump, name);
            assert_eq!((hog.state(), hog.is_preempted()), ("running", true));
            assert_eq!((hog.wait_reason(), hog.blocked_in()), (None, None));
            let shown = functions(hog);
            let is_there = shown.iter().any(|f| f.contains("spins_without_a_call"));
            assert!(is_there, "{dump}");
            assert_own_frames_only(hog, &dump);
            let head = format!("[running, preempted] {{name: {name}}}:\n");
            assert!(dump.to_string().contains(&head), "{dump}");
        }
        // No goroutine is lost.
        hogs.all_advance();
    });
}

#[test]
fn u5_a_dump_from_outside_shows_tight_loops_too() {
    let runtime = Runtime::builder().procs(2).build().expect("a runtime");
    let stop = Arc::new(AtomicBool::new(false));
    let turns: Vec<_> = (0..3).map(|_| Arc::new(AtomicU64::new(0))).collect();
    for turns in &turns {
        let (stop, turns) = (Arc::clone(&stop), Arc::clone(turns));
        runtime.go(move || spins_without_a_call(&stop, &turns));
    }
    let have_run = || turns.iter().all(|turns| turns.load(Relaxed) > 0);
    assert!(crate::common::eventually(have_run), "{}", runtime.metrics());
    within(Duration::from_secs(60), "dumps from outside", || {
        for _ in 0..10 {
            let dump = runtime.dump();
            assert_eq!(dump.goroutines().len(), 3, "{dump}");
            assert!(
                dump.goroutines().iter().all(Goroutine::is_preempted),
                "{dump}"
            );
        }
    });
    stop.store(true, Relaxed);
}

/// Sets the flag when dropped, also if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// As deep as asked, then a loop without calls.
#[inline(never)]
fn spins_deep_down(depth: u64, stop: &AtomicBool, turns: &AtomicU64) -> u64 {
    if depth == 0 {
        spins_without_a_call(stop, turns);
        return 0;
    }
    black_box(spins_deep_down(depth - 1, stop, turns)) + 1
}

#[test]
fn u5_a_deep_stack_is_cut_after_the_frames_of_the_goroutine_itself() {
    on_procs(2, "a dump of a deep stack", || {
        let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let stop_it = StopOnDrop(&stop);
            let deep = thread::Builder::new().name("deep".into());
            let deep = deep.spawn_scoped(scope, || spins_deep_down(200, &stop, &turns));
            let deep = deep.expect("a goroutine");
            wait_until(|| turns.load(Relaxed) > 0);
            let dump = dump_when("deep", |g| !g.frames().is_empty());
            let found = by_name(&dump, "deep");
            assert!(found.is_preempted(), "{dump}");
            let is_deep = |f: &&&str| f.contains("spins_deep_down");
            let shown = functions(found).iter().filter(is_deep).count();
            assert!(shown >= 90, "{shown} in\n{dump}");
            assert_own_frames_only(found, &dump);
            let text = found.to_string();
            assert!(text.contains("...additional frames elided...\n"), "{text}");
            drop(stop_it);
            assert_eq!(deep.join().expect("no panic"), 200);
        });
    });
}

#[test]
fn sy_a_dump_shows_marked_calls() {
    on_procs(2, "a dump of a marked call", || {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let caller = named("caller", move || {
            gosched::blocking(|| {
                while !is_over.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        });
        let dump = dump_when("caller", |g| g.state() == "syscall");
        let found = by_name(&dump, "caller");
        assert_eq!((found.blocked_in(), found.wait_reason()), (None, None));
        assert!(!found.is_preempted() && found.frames().is_empty());
        let text = "[syscall] {name: caller}:\n\t(in a system call; stack unavailable)\ncreated by";
        assert!(dump.to_string().contains(text), "{dump}");
        stop.store(true, SeqCst);
        caller.join().expect("no panic");
    });
}

/// The goroutine called `name` is shown blocked in `call`.
#[track_caller]
fn assert_blocked_in(name: &str, call: &str) {
    let dump = dump_when(name, |g| g.blocked_in() == Some(call));
    let found = by_name(&dump, name);
    assert_eq!((found.state(), found.is_preempted()), ("syscall", false));
    let text = format!("[blocked in {call}] {{name: {name}}}:\n\t(in a system call; ");
    assert!(dump.to_string().contains(&text), "{dump}");
}

#[test]
fn m5_a_dump_names_the_system_call_of_who_blocks() {
    on_procs(2, "a dump of unmarked calls", || {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let sleeper = named("sleeper", move || {
            while !is_over.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let lock = Arc::new(Mutex::new(()));
        let held = lock.lock().expect("no poison");
        let wanted = Arc::clone(&lock);
        let locker = named("locker", move || drop(wanted.lock().expect("no poison")));
        let (reader, writer) = pipe();
        let reader = named("reader", move || read_to_end(reader));
        assert_blocked_in("sleeper", "clock_nanosleep");
        assert_blocked_in("locker", "futex");
        assert_blocked_in("reader", "read");
        drop((held, writer));
        stop.store(true, SeqCst);
        sleeper.join().expect("no panic");
        locker.join().expect("no panic");
        assert_eq!(reader.join().expect("no panic"), 0);
    });
}

fn pipe() -> (std::fs::File, std::fs::File) {
    let mut ends = [0; 2];
    // SAFETY: the call fills in two descriptors, which are ours alone.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        ends.map(|end| std::fs::File::from_raw_fd(end)).into()
    }
}

fn read_to_end(mut from: std::fs::File) -> usize {
    from.read_to_end(&mut Vec::new()).expect("a pipe")
}

/// Every goroutine is counted once.
fn adds_up(metrics: &Metrics) -> bool {
    let parts = [
        metrics.running,
        metrics.runnable,
        metrics.in_calls,
        metrics.waiting,
    ];
    parts.iter().sum::<usize>() == metrics.goroutines && metrics.running <= metrics.procs
}

#[test]
fn metrics_count_calls_and_who_is_in_them() {
    on_procs(2, "metrics of calls", || {
        let before = debug::metrics();
        assert!(before.preemption && !before.signal_lost, "{before}");
        assert_eq!(before.unmarked, debug::BlockDetection::KernelState);
        assert_eq!((before.in_calls, before.strays), (0, 0), "{before}");
        for _ in 0..100 {
            gosched::blocking(|| black_box(()));
        }
        let after = debug::metrics();
        assert_eq!(after.syscalls - before.syscalls, 100);
        let per_proc: u64 = after.per_proc.iter().map(|p| p.syscalls).sum();
        assert_eq!(per_proc, after.syscalls);
        let blocked = Blocked::start();
        wait_until(|| {
            let now = debug::metrics();
            let are_seen = now.in_calls == 2 && now.strays == 1 && now.retaken > before.retaken;
            are_seen && adds_up(&now)
        });
        let during = debug::metrics();
        assert_eq!((during.goroutines, during.waiting), (3, 0), "{during}");
        assert!(during.claimed > before.claimed, "{during}");
        assert!(during.sysmon_looks > before.sysmon_looks, "{during}");
        drop(blocked);
        wait_until(|| {
            let now = debug::metrics();
            (now.in_calls, now.strays) == (0, 0) && adds_up(&now)
        });
    });
}

#[test]
fn metrics_count_preemptions_and_who_waits_on_its_thread() {
    on_procs(2, "metrics of preemption", || {
        let before = debug::metrics();
        assert_eq!(
            (before.signals, before.threads_held_by_preempted),
            (0, 0),
            "{before}"
        );
        let hogs = Hogs::start(4);
        wait_until(|| {
            let now = debug::metrics();
            let some_wait = (1..=4).contains(&now.parked_threads);
            some_wait && now.runnable >= now.parked_threads && adds_up(&now)
        });
        let during = debug::metrics();
        assert!(
            during.threads_held_by_preempted > 0 && during.signals > 0,
            "{during}"
        );
        assert_eq!(during.refused, 0, "{during}");
        assert!(during.threads >= 4, "{during}");
        drop(hogs);
        wait_until(|| debug::metrics().parked_threads == 0);
    });
}

#[test]
fn metrics_say_that_preemption_is_off() {
    let off = Runtime::builder().procs(2).preemption(false);
    let runtime = off.build().expect("a runtime");
    let metrics = runtime.metrics();
    assert!(!metrics.preemption, "{metrics}");
    assert_eq!(metrics.unmarked, debug::BlockDetection::KernelState);
    assert!(
        metrics.to_string().contains("preemption off\n"),
        "{metrics}"
    );
    // A blocked goroutine is noticed nevertheless.
    runtime.run(|| {
        let blocked = Blocked::start();
        wait_until(|| debug::metrics().in_calls == 2);
        assert_blocked_in("unmarked", "futex");
        drop(blocked);
    });
    assert_eq!(runtime.metrics().signals, 0);
}

#[test]
fn metrics_print_calls_in_their_table() {
    on_procs(2, "the table", || {
        gosched::blocking(|| ());
        let text = debug::metrics().to_string();
        for part in [
            ", parked ",
            ", stray ",
            ", in calls ",
            "; preemption on\n",
            "unmarked calls: kernel state\n",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let line = text.lines().find(|line| line.starts_with("syscalls "));
        let words: Vec<_> = line.expect("a line").split_whitespace().collect();
        assert_eq!(words[..3], ["syscalls", "1", "retaken"], "{text}");
    });
}

#[test]
fn u7_the_world_stops_while_goroutines_spin_or_block() {
    for procs in [1, 2, 3] {
        on_procs(procs, "stops of the world", || {
            let blocked = Blocked::start();
            assert_blocked_in("unmarked", "futex");
            wait_until(|| debug::metrics().in_calls == 2);
            let hogs = Hogs::start(5);
            for round in 0..12 {
                gosched::gomaxprocs(1 + round % 4);
                debug::check().unwrap_or_else(|v| panic!("{v}"));
                let dump = debug::dump();
                let is_parked = |at| by_name(&dump, &format!("hog {at}")).is_preempted();
                assert!((0..5).all(is_parked), "{dump}");
                assert_eq!(by_name(&dump, "marked").state(), "syscall", "{dump}");
                assert_eq!(by_name(&dump, "unmarked").blocked_in(), Some("futex"));
            }
            gosched::gomaxprocs(procs);
            hogs.all_advance();
            drop((hogs, blocked));
            assert_eq!(debug::metrics().rescues, 0);
        });
    }
}

/// Computes, blocks, waits and calls, in any order.
fn misbehave(stop: &AtomicBool, lock: &Mutex<u64>, mut rng: Rng) {
    let spin = |us: u64| {
        let until = Instant::now() + Duration::from_micros(us);
        while Instant::now() < until {
            black_box(());
        }
    };
    while !stop.load(SeqCst) {
        let us = Duration::from_micros(rng.below(3000));
        match rng.below(10) {
            0 => spin(rng.below(15_000)),
            1 => std::thread::sleep(us),
            2 => gosched::blocking(|| std::thread::sleep(us)),
            3 => (0..rng.below(300)).for_each(|_| gosched::blocking(|| black_box(()))),
            4 => {
                let mut held = lock.lock().expect("no poison");
                *held += 1;
                spin(rng.below(500));
            }
            5 => gosched::blocking(|| {
                thread::yield_now(); // it comes back for that
                std::thread::sleep(us);
            }),
            6 => thread::sleep(us),
            7 => {
                gosched::lock_os_thread();
                std::thread::sleep(us);
                thread::yield_now();
                gosched::unlock_os_thread();
            }
            8 => thread::spawn(|| std::thread::sleep(Duration::from_micros(100)))
                .join()
                .expect("no panic"),
            _ => thread::yield_now(),
        }
    }
}

#[test]
fn check_finds_nothing_wrong_while_goroutines_spin_and_block() {
    for (procs, seed) in [(1, 5), (2, 6), (4, 7)] {
        on_procs(procs, "checks", || {
            let stop = Arc::new(AtomicBool::new(false));
            let lock = Arc::new(Mutex::new(0));
            let busy: Vec<_> = (0..16)
                .map(|n| {
                    let (stop, lock) = (Arc::clone(&stop), Arc::clone(&lock));
                    let rng = Rng::new(seed << 8 | n);
                    thread::spawn(move || misbehave(&stop, &lock, rng))
                })
                .collect();
            for round in 0..80 {
                debug::check().unwrap_or_else(|v| panic!("seed {seed}: {v}"));
                if round % 40 == 0 {
                    assert!(debug::dump().goroutines().len() >= 17);
                    let metrics = debug::metrics();
                    assert!(metrics.running <= metrics.procs, "{metrics}");
                }
                thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, SeqCst);
            for handle in busy {
                handle.join().expect("no panic");
            }
            debug::check().unwrap_or_else(|v| panic!("seed {seed}: {v}"));
            assert_eq!(debug::metrics().rescues, 0, "seed {seed}");
        });
    }
}

/// `GOSCHED_DEBUG=scheddetail=1` shows a P in state Syscall (2), left by its M, and the goroutine
/// in it (3).
#[test]
fn p3_scheddetail_shows_ps_left_behind() {
    let out = child_with(
        "p3_scheddetail_shows_ps_left_behind",
        "",
        |command| {
            command.env("GOSCHED_DEBUG", "schedtrace=1,scheddetail=1");
        },
        |_| {
            let runtime = Runtime::builder().procs(2).build().expect("a runtime");
            runtime.run(|| {
                for _ in 0..60 {
                    gosched::blocking(|| std::thread::sleep(Duration::from_millis(8)));
                }
            });
        },
    );
    out.succeeded();
    let is_left = |line: &&str| {
        line.starts_with("  P") && line.contains(": status=2 ") && line.contains(" m=nil ")
    };
    let left = out.stderr.lines().find(is_left);
    let ticks = left
        .and_then(|line| line.split(" syscalltick=").nth(1))
        .and_then(|rest| rest.split(' ').next())
        .and_then(|ticks| ticks.parse::<u32>().ok());
    assert!(ticks.is_some_and(|ticks| ticks > 0), "{out:#?}");
    let is_caller =
        |line: &str| line.starts_with("  G1: status=3() m=") && !line.contains(" m=nil");
    assert!(out.stderr.lines().any(is_caller), "{out:#?}");
}

/// A fatal error takes no lock of the scheduler's: it shows states only.
#[test]
fn a_fatal_error_shows_goroutines_in_calls() {
    let out = child("a_fatal_error_shows_goroutines_in_calls", || {
        gosched::run(|| {
            let blocked = Blocked::start();
            wait_until(|| debug::metrics().in_calls == 2);
            named("culprit", gosched::testing::illegal_status_change)
                .join()
                .expect("not reached");
            drop(blocked);
        });
    });
    assert_eq!(out.code(), 2, "{out:#?}");
    out.says(&[
        "fatal error: illegal goroutine status change",
        " [syscall] (stack unavailable)\n",
        " [syscall]:\n\t(in a system call; stack unavailable)\n",
    ]);
}
