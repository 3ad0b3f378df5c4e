//! What the runtime says about itself: dumps, metrics, the check, schedtrace, and the report of a fatal error.

mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use common::{Rng, child, child_with, within};
use gosched::debug::{self, Dump, Goroutine};
use gosched::{Deadlock, Runtime, thread};

/// Looks until the goroutine called `name` waits for `reason`.
#[track_caller]
fn dump_when_waiting(name: &str, reason: &str) -> Dump {
    let started = Instant::now();
    loop {
        let dump = debug::dump();
        if by_name(&dump, name).is_some_and(|g| g.wait_reason() == Some(reason)) {
            return dump;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{dump}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn by_name<'a>(dump: &'a Dump, name: &str) -> Option<&'a Goroutine> {
    dump.goroutines().iter().find(|g| g.name() == Some(name))
}

fn named<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let builder = thread::Builder::new().name(name.into());
    builder.spawn(f).expect("a goroutine")
}

#[inline(never)]
fn waits_in_a_function_of_its_own() {
    thread::park();
    black_box(());
}

fn has_frame(goroutine: &Goroutine, part: &str) -> bool {
    goroutine
        .frames()
        .iter()
        .any(|f| f.function().contains(part))
}

#[gosched::test]
fn a_dump_shows_who_waits_where_and_why() {
    let waiter = named("waiter", waits_in_a_function_of_its_own);
    let dump = dump_when_waiting("waiter", "park");
    let found = by_name(&dump, "waiter").expect("seen before");
    assert_eq!(found.state(), "waiting");
    assert_eq!(found.parent(), Some(1));
    assert!(!found.is_locked());
    assert!(
        found
            .spawned_at()
            .is_some_and(|at| at.file().ends_with("debug.rs"))
    );
    let functions: Vec<_> = found.frames().iter().map(|f| f.function()).collect();
    assert!(functions[0].contains("park"), "{dump}");
    assert!(has_frame(found, "waits_in_a_function_of_its_own"), "{dump}");
    let inner = functions.iter().position(|f| f.contains("suspend"));
    let entry = functions.iter().position(|f| f.contains("goroutine_entry"));
    assert_eq!((inner, entry), (None, None), "{dump}");
    let own = found
        .frames()
        .iter()
        .find(|f| f.function().contains("waits_in_a_function"));
    let file = own
        .and_then(|frame| frame.file())
        .expect("debug information");
    assert!(file.ends_with("tests/debug.rs"), "{dump}");
    waiter.thread().unpark();
    waiter.join().expect("no panic");
}

#[gosched::test]
fn a_dump_reads_as_in_go() {
    let waiter = named("waiter", waits_in_a_function_of_its_own);
    let id = waiter.thread().id().goroutine().expect("a goroutine");
    let text = dump_when_waiting("waiter", "park").to_string();
    let (first, rest) = text.split_once("\n\n").expect("two goroutines");
    let main: Vec<_> = first.lines().collect();
    assert_eq!(main[0], "goroutine 1 [running] {name: main}:");
    assert!(main[1].contains("dump_when_waiting"), "{text}");
    assert!(
        main[2].starts_with('\t') && main[2].contains("tests/debug.rs:"),
        "{text}"
    );
    let last = main.last().expect("lines");
    assert!(
        last.starts_with("created outside the runtime at "),
        "{text}"
    );
    let waiter_lines: Vec<_> = rest.lines().collect();
    assert_eq!(
        waiter_lines[0],
        format!("goroutine {id} [park] {{name: waiter}}:")
    );
    let last = waiter_lines.last().expect("lines");
    assert!(
        last.starts_with("created by main in goroutine 1 at "),
        "{text}"
    );
    assert!(last.contains("tests/debug.rs:"), "{text}");
    waiter.thread().unpark();
    waiter.join().expect("no panic");
}

#[gosched::test]
fn wait_reasons_are_told_apart() {
    let sleeper = named("sleeper", || thread::sleep(Duration::from_secs(60)));
    let target = named("target", thread::park);
    let target_thread = target.thread().clone();
    let joiner = named("joiner", move || target.join().expect("no panic"));
    dump_when_waiting("sleeper", "sleep");
    dump_when_waiting("target", "park");
    let dump = dump_when_waiting("joiner", "join");
    let target_id = by_name(&dump, "target").expect("alive").id();
    let found = by_name(&dump, "joiner").expect("alive");
    assert_eq!(found.waits_for(), Some(target_id), "{dump}");
    let line = format!("waits for goroutine {target_id}\n");
    assert!(dump.to_string().contains(&line), "{dump}");
    assert_eq!(by_name(&dump, "sleeper").expect("alive").waits_for(), None);
    target_thread.unpark();
    joiner.join().expect("no panic");
    drop(sleeper);
}

#[gosched::test(procs = 1)]
fn runnable_goroutines_are_shown_started_or_not() {
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    let yielder = named("yielder", move || {
        while !is_over.load(SeqCst) {
            thread::yield_now();
        }
    });
    let is_runnable = |g: &Goroutine| (g.state(), g.wait_reason()) == ("runnable", None);
    // An optimised build has no frame of `yield_now`, whose last act is a call: the closure's frame
    // is in both builds.
    let is_seen = |dump: &Dump| {
        by_name(dump, "yielder").is_some_and(|g| is_runnable(g) && has_frame(g, "closure"))
            && by_name(dump, "fresh").is_some_and(|g| is_runnable(g) && g.frames().is_empty())
    };
    let (started, mut dump) = (Instant::now(), debug::dump());
    // If the caller has to make room at the wrong moment, the fresh one runs before it is seen.
    while !is_seen(&dump) {
        assert!(started.elapsed() < Duration::from_secs(10), "{dump}");
        thread::yield_now();
        let fresh = named("fresh", || ());
        dump = debug::dump();
        fresh.join().expect("no panic");
    }
    let text = "[runnable] {name: fresh}:\n(not started)\ncreated by main";
    assert!(dump.to_string().contains(text), "{dump}");
    stop.store(true, SeqCst);
    yielder.join().expect("no panic");
}

#[gosched::test]
fn locked_goroutines_are_marked() {
    let locked = named("locked", || {
        gosched::lock_os_thread();
        thread::park();
        gosched::unlock_os_thread();
    });
    let dump = dump_when_waiting("locked", "park");
    assert!(by_name(&dump, "locked").expect("alive").is_locked());
    assert!(
        dump.to_string()
            .contains("[park, locked to thread] {name: locked}:"),
        "{dump}"
    );
    debug::check().expect("sound");
    locked.thread().unpark();
    locked.join().expect("no panic");
}

#[gosched::test]
fn waits_are_timed() {
    let waiter = named("waiter", thread::park);
    dump_when_waiting("waiter", "park");
    thread::sleep(Duration::from_millis(200));
    let dump = debug::dump();
    let waited = by_name(&dump, "waiter").expect("alive").waiting_for();
    assert!(waited >= Duration::from_millis(150), "{waited:?}");
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    waiter.thread().unpark();
    waiter.join().expect("no panic");
}

/// A goroutine with hardly any stack can ask for a dump all the same.
#[gosched::test]
fn a_dump_from_a_small_stack() {
    let small = thread::Builder::new().stack_size(64 << 10);
    let dump = small
        .spawn(debug::dump)
        .expect("a goroutine")
        .join()
        .expect("no panic");
    assert_eq!(dump.goroutines().len(), 2);
    assert!(
        dump.goroutines()[1]
            .frames()
            .iter()
            .any(|f| f.line().is_some()),
        "{dump}"
    );
}

#[gosched::test]
fn dumps_of_many_while_they_run() {
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..50)
        .map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    thread::spawn(thread::yield_now).join().expect("no panic");
                }
            })
        })
        .collect();
    for _ in 0..10 {
        let dump = debug::dump();
        assert!(dump.goroutines().len() >= 51, "{dump}");
        let mut ids: Vec<_> = dump.goroutines().iter().map(Goroutine::id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), dump.goroutines().len());
        thread::yield_now();
    }
    stop.store(true, SeqCst);
    busy.into_iter()
        .for_each(|handle| handle.join().expect("no panic"));
}

#[test]
#[should_panic(
    expected = "gosched::debug::dump called outside a runtime: use Runtime::dump or Handle::dump"
)]
fn a_dump_outside_a_runtime_says_what_to_do() {
    let _ = debug::dump();
}

/// A plain thread may look: here the one that calls the deadlock hook.
#[test]
fn a_dump_from_a_plain_thread() {
    let (send, receive) = std::sync::mpsc::channel();
    let runtime = Runtime::builder()
        .deadlock(Deadlock::Closed)
        .on_deadlock(move |deadlock| {
            let _ = send.send(deadlock.dump().clone());
        })
        .build()
        .expect("a runtime");
    runtime.go(waits_in_a_function_of_its_own);
    let dump = receive
        .recv_timeout(Duration::from_secs(20))
        .expect("a deadlock");
    assert_eq!(dump.goroutines().len(), 1);
    let found = &dump.goroutines()[0];
    assert_eq!((found.state(), found.parent()), ("waiting", None));
    assert!(has_frame(found, "waits_in_a_function_of_its_own"), "{dump}");
}

#[gosched::test(procs = 2)]
fn metrics_count_what_happens() {
    let before = debug::metrics();
    assert_eq!((before.procs, before.goroutines, before.running), (2, 1, 1));
    let waiters: Vec<_> = (0..10).map(|_| thread::spawn(thread::park)).collect();
    let started = Instant::now();
    // A goroutine on its way from a queue to its thread counts as waiting, too: only its park tells.
    let during = loop {
        let now = debug::metrics();
        if now.waiting == 10 && now.park_count - before.park_count >= 10 {
            break now;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{now}");
        thread::yield_now();
    };
    assert_eq!(during.goroutines, 11);
    assert_eq!(during.spawns - before.spawns, 10);
    assert!(during.yields >= before.yields);
    assert!(during.running <= during.procs);
    waiters.iter().for_each(|w| w.thread().unpark());
    waiters
        .into_iter()
        .for_each(|w| w.join().expect("no panic"));
    let after = debug::metrics();
    assert_eq!((after.ends - before.ends, after.goroutines), (10, 1));
    assert!(after.readies - before.readies >= 10, "{after}");
    assert_eq!(after.rescues, 0);
    assert_eq!(after.per_proc.len(), 2);
    assert!(after.per_proc.iter().map(|p| p.ticks).sum::<u32>() > 0);
    assert!(after.threads >= 1 && after.stacks.in_use >= 1);
    assert!(after.stacks.mapped_bytes > 0);
}

#[gosched::test]
fn metrics_print_as_a_table() {
    let text = debug::metrics().to_string();
    let word = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let words: Vec<_> = text.lines().filter_map(word).collect();
    for expected in [
        "procs",
        "threads",
        "goroutines",
        "stacks",
        "spawns",
        "rescues",
        "P",
        "0",
    ] {
        assert!(
            words.iter().any(|w| w == expected),
            "no {expected:?} in\n{text}"
        );
    }
}

#[gosched::test]
fn timers_are_counted() {
    let sleeper = named("sleeper", || thread::sleep(Duration::from_secs(60)));
    dump_when_waiting("sleeper", "sleep");
    assert_eq!(debug::metrics().timers, 1);
    drop(sleeper);
}

/// Everything at once, on more Ps than there are CPUs, and the check finds nothing wrong.
fn churn(procs: usize, seed: u64) {
    let runtime = Runtime::builder().procs(procs).build().expect("a runtime");
    let stop = Arc::new(AtomicBool::new(false));
    runtime.run(|| {
        let busy: Vec<_> = (0..20)
            .map(|n| {
                let (stop, rng) = (Arc::clone(&stop), Rng::new(seed ^ n));
                thread::spawn(move || keep_busy(&stop, rng))
            })
            .collect();
        for _ in 0..100 {
            debug::check().unwrap_or_else(|v| panic!("seed {seed}: {v}"));
            thread::yield_now();
        }
        stop.store(true, SeqCst);
        busy.into_iter()
            .for_each(|handle| handle.join().expect("no panic"));
        debug::check().unwrap_or_else(|v| panic!("seed {seed}: {v}"));
        assert_eq!(debug::metrics().rescues, 0, "seed {seed}");
    });
}

fn keep_busy(stop: &AtomicBool, mut rng: Rng) {
    while !stop.load(SeqCst) {
        match rng.below(6) {
            0 => thread::yield_now(),
            1 => thread::sleep(Duration::from_micros(rng.below(500))),
            2 => thread::park_timeout(Duration::from_micros(rng.below(500))),
            3 => {
                gosched::lock_os_thread();
                thread::yield_now();
                gosched::unlock_os_thread();
            }
            4 => {
                let burst: Vec<_> = (0..rng.below(300)).map(|_| thread::spawn(|| ())).collect();
                burst.into_iter().for_each(|h| h.join().expect("no panic"));
            }
            _ => {
                let parked = thread::spawn(thread::park);
                thread::yield_now();
                parked.thread().unpark();
                parked.join().expect("no panic");
            }
        }
    }
}

#[test]
fn check_finds_nothing_wrong_under_load() {
    for (procs, seed) in [(1, 11), (2, 22), (3, 33), (64, 44)] {
        let what = format!("churn on {procs} Ps");
        within(Duration::from_secs(60), &what, || churn(procs, seed));
    }
}

#[test]
fn check_finds_nothing_wrong_while_threads_outside_spawn_and_wake() {
    let runtime = Runtime::builder().procs(2).build().expect("a runtime");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let parked = runtime.spawn(thread::park);
                    parked.thread().unpark();
                    parked.join().expect("no panic");
                }
            });
        }
        runtime.run(|| {
            for _ in 0..200 {
                debug::check().unwrap_or_else(|v| panic!("{v}"));
                thread::yield_now();
            }
        });
        stop.store(true, SeqCst);
    });
}

#[gosched::test(procs = 2)]
fn checks_dumps_and_resizes_take_turns() {
    let leaders: Vec<_> = (0..6)
        .map(|n| {
            thread::spawn(move || {
                for round in 0..20 {
                    match n % 3 {
                        0 => debug::check().unwrap_or_else(|v| panic!("{v}")),
                        1 => drop(debug::dump()),
                        _ => drop(gosched::gomaxprocs(1 + (n + round) % 5)),
                    }
                }
            })
        })
        .collect();
    leaders
        .into_iter()
        .for_each(|h| h.join().expect("no panic"));
    debug::check().unwrap_or_else(|v| panic!("{v}"));
}

/// The numbers in `key=number` pieces, in order; panics if a piece is not the next of `keys`.
#[track_caller]
fn numbers(pieces: &[&str], keys: &[&str]) -> Vec<u64> {
    assert_eq!(pieces.len(), keys.len(), "{pieces:?}");
    let number = |(piece, key): (&&str, &&str)| {
        let value = piece
            .strip_prefix(key)
            .and_then(|rest| rest.strip_prefix('='));
        let value = value.unwrap_or_else(|| panic!("{piece:?} is no {key}"));
        value
            .parse()
            .unwrap_or_else(|_| panic!("{piece:?} is no number"))
    };
    pieces.iter().zip(keys).map(number).collect()
}

const COUNTS: [&str; 7] = [
    "gomaxprocs",
    "idleprocs",
    "threads",
    "spinningthreads",
    "needspinning",
    "idlethreads",
    "runqueue",
];

/// The time and the counts at the beginning of a SCHED line, and the pieces that follow.
#[track_caller]
fn sched_line(line: &str) -> (u64, Vec<u64>, Vec<&str>) {
    let pieces: Vec<_> = line.split(' ').collect();
    assert_eq!(pieces[0], "SCHED", "{line}");
    let time = pieces[1].strip_suffix("ms:").expect("a time");
    let counts = numbers(&pieces[2..9], &COUNTS);
    (time.parse().expect("a time"), counts, pieces[9..].to_vec())
}

#[test]
fn schedtrace_prints_gos_lines() {
    let out = child_with(
        "schedtrace_prints_gos_lines",
        "",
        |command| {
            command.env("GOSCHED_DEBUG", "schedtrace=50");
        },
        |_| {
            let runtime = Runtime::builder().procs(3).build().expect("a runtime");
            runtime.run(|| thread::sleep(Duration::from_millis(400)));
        },
    );
    out.succeeded();
    let lines: Vec<_> = out
        .stderr
        .lines()
        .filter(|l| l.starts_with("SCHED "))
        .collect();
    assert!(lines.len() >= 3, "{out:#?}");
    let mut times = Vec::new();
    for line in lines {
        let (time, counts, rest) = sched_line(line);
        times.push(time);
        assert_eq!(counts[0], 3, "{line}");
        let (queues, ticks) = rest.split_at(5);
        assert_eq!((queues[0], queues[4]), ("[", "]"), "{line}");
        assert_eq!(
            (ticks[0], ticks[4], ticks.len()),
            ("schedticks=[", "]", 5),
            "{line}"
        );
        for number in queues[1..4].iter().chain(&ticks[1..4]) {
            number.parse::<u64>().expect("a number");
        }
    }
    assert_eq!(times[0], 0);
    assert!(
        times.is_sorted() && times[times.len() - 1] >= 50,
        "{times:?}"
    );
}

#[test]
fn scheddetail_lists_every_p_m_and_g() {
    let out = child_with(
        "scheddetail_lists_every_p_m_and_g",
        "",
        |command| {
            command.env("GOSCHED_DEBUG", "schedtrace=100,scheddetail=1");
        },
        |_| {
            let runtime = Runtime::builder().procs(2).build().expect("a runtime");
            runtime.run(|| {
                let parked = thread::spawn(thread::park);
                thread::sleep(Duration::from_millis(400));
                parked.thread().unpark();
            });
        },
    );
    out.succeeded();
    let blocks: Vec<_> = out.stderr.split("SCHED ").skip(1).map(block).collect();
    assert!(blocks.len() >= 2, "{out:#?}");
    for [ps, ms, _] in &blocks {
        assert_eq!(ps.len(), 2, "{out:#?}");
        assert!(
            ps.iter()
                .all(|p| p.contains(": status=") && p.contains(" schedtick="))
        );
        let begin = ": p=nil curg=nil mallocing=0 throwing=0 preemptoff= locks=";
        let shape = |m: &&str| m.contains(" mallocing=0 throwing=0 preemptoff= locks=");
        assert!(ms.iter().all(shape), "{out:#?}");
        assert!(ms.iter().any(|m| m.contains(begin)), "{out:#?}");
    }
    // At some look both goroutines waited and everything was idle.
    let is_quiet = |[ps, ms, gs]: &[Vec<&str>; 3]| {
        ps.iter()
            .all(|p| p.contains(": status=0 ") && p.contains(" m=nil runqsize=0 "))
            && ms
                .iter()
                .any(|m| m.ends_with(" spinning=false blocked=true lockedg=nil"))
            && gs.len() == 2
            && gs.contains(&"1: status=4(sleep) m=nil lockedm=nil")
            && gs
                .iter()
                .any(|g| g.ends_with(": status=4(park) m=nil lockedm=nil"))
    };
    assert!(blocks.iter().any(is_quiet), "{blocks:#?}");
}

/// The lines about Ps, Ms and Gs after a SCHED line of the detailed form, each without its letter.
fn block(text: &str) -> [Vec<&str>; 3] {
    let line = format!("SCHED {}", text.lines().next().unwrap_or_default());
    let (_, _, rest) = sched_line(&line);
    let keys: Vec<_> = rest
        .iter()
        .filter_map(|piece| piece.split('=').next())
        .collect();
    let expected = ["gcwaiting", "nmidlelocked", "stopwait", "sysmonwait"];
    assert_eq!(keys, expected, "{line}");
    ["  P", "  M", "  G"].map(|letter| {
        let lines = text
            .lines()
            .skip(1)
            .filter_map(|line| line.strip_prefix(letter));
        lines.collect()
    })
}

#[test]
fn a_fatal_error_shows_every_goroutine() {
    let out = child("a_fatal_error_shows_every_goroutine", || {
        gosched::run(|| {
            let stuck = named("stuck", waits_in_a_function_of_its_own);
            let _ = stuck.join();
        });
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!", ""]);
    let lines: Vec<_> = out.stderr.lines().collect();
    // First the addresses.
    assert!(
        lines[2].starts_with("goroutine 1 [join] {name: main} pcs: 0x"),
        "{out:#?}"
    );
    assert!(
        lines[3].contains(" [park] {name: stuck} pcs: 0x"),
        "{out:#?}"
    );
    assert_eq!(lines[4], "");
    // Then what they mean.
    assert_eq!(lines[5], "goroutine 1 [join] {name: main}:");
    out.says(&[
        "waits for goroutine ",
        " [park] {name: stuck}:\n",
        "waits_in_a_function_of_its_own\n\t",
        "created by main in goroutine 1 at ",
    ]);
    assert!(!out.stderr.contains("cut short"), "{out:#?}");
    assert!(out.took < Duration::from_secs(5), "{out:#?}");
}

#[test]
fn a_fatal_error_in_a_goroutine_shows_where() {
    let out = child("a_fatal_error_in_a_goroutine_shows_where", || {
        gosched::run(|| {
            let handle = named("culprit", gosched::testing::illegal_status_change);
            let _ = handle.join();
        });
    });
    assert_eq!(out.code(), 2, "{out:#?}");
    out.says(&[
        "fatal error: illegal goroutine status change",
        " [running] {name: culprit}:\n",
        "illegal_status_change",
    ]);
}

#[test]
fn a_fatal_error_with_many_goroutines_is_cut() {
    let out = child("a_fatal_error_with_many_goroutines_is_cut", || {
        gosched::run(|| {
            for _ in 0..1500 {
                gosched::go(thread::park);
            }
            thread::park();
        });
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!"]);
    out.says(&[
        "...1401 goroutines elided...\n",
        "\n...501 goroutines elided...\n",
    ]);
    let compact = out
        .stderr
        .lines()
        .filter(|l| l.contains("] pcs: ") || l.contains("} pcs: "));
    assert_eq!(compact.count(), 100);
    let readable = out
        .stderr
        .lines()
        .filter(|l| l.starts_with("goroutine ") && l.ends_with(':'));
    assert_eq!(readable.count(), 1000);
}

/// The symboliser hangs: somebody holds its lock for ever. The report is cut short.
#[test]
fn a_fatal_report_that_hangs_is_cut_short() {
    let out = child("a_fatal_report_that_hangs_is_cut_short", || {
        let (held, is_held) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let here = waits_in_a_function_of_its_own as *const () as usize + 1;
            backtrace::resolve(here as *mut _, |_| {
                held.send(()).expect("the test listens");
                loop {
                    std::thread::park();
                }
            });
        });
        is_held.recv().expect("a symbol");
        let closed = Runtime::builder().deadlock(Deadlock::Closed).build();
        closed.expect("a runtime").run(thread::park);
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!"]);
    out.says(&["goroutine 1 [park] {name: main} pcs: 0x", "cut short"]);
    assert!(out.took < Duration::from_secs(15), "{out:#?}");
}

/// From a thread outside, a runtime's own methods do what `debug`'s functions do inside.
#[test]
fn a_runtime_is_seen_from_outside() {
    let runtime = Runtime::builder().procs(2).build().expect("a runtime");
    runtime.go(waits_in_a_function_of_its_own);
    let started = Instant::now();
    while runtime.metrics().park_count == 0 {
        assert!(started.elapsed() < Duration::from_secs(10));
        std::thread::yield_now();
    }
    for _ in 0..20 {
        runtime.check().unwrap_or_else(|v| panic!("{v}"));
        let dump = runtime.dump();
        assert!(
            has_frame(&dump.goroutines()[0], "waits_in_a_function"),
            "{dump}"
        );
    }
}

/// An unwinder that asks the loader for the list of objects, as old ones do, does not wait in a
/// stopped world for a goroutine that was stopped with the loader's lock.
#[test]
fn a_dump_does_not_wait_for_the_loaders_lock() {
    /// Holds the loader's lock until the flag is down, 10 s at most: callbacks run under it.
    unsafe extern "C" fn hold(
        _: *mut libc::dl_phdr_info,
        _: usize,
        is_held: *mut std::ffi::c_void,
    ) -> i32 {
        // SAFETY: the flag below, which outlives the call.
        let is_held = unsafe { &*is_held.cast::<AtomicBool>() };
        is_held.store(true, SeqCst);
        let begin = std::time::Instant::now();
        while is_held.load(SeqCst) && begin.elapsed() < Duration::from_secs(10) {
            std::hint::spin_loop();
        }
        1
    }
    let name = "a_dump_does_not_wait_for_the_loaders_lock";
    for variant in ["dump", "leaks", "fatal"] {
        let out = common::child_of(name, variant, |variant| {
            // SAFETY: ends this child if it hangs.
            unsafe { libc::alarm(20) };
            gosched::testing::unwinder_asks_the_loader(true);
            let runtime = Runtime::builder().procs(2).build().unwrap();
            runtime.run(|| {
                static HELD: AtomicBool = AtomicBool::new(false);
                let holder = thread::Builder::new().name("holder".into());
                let holder = holder.spawn(|| {
                    // SAFETY: the callback takes this flag.
                    unsafe {
                        libc::dl_iterate_phdr(Some(hold), (&raw const HELD).cast_mut().cast())
                    }
                });
                let parked = thread::spawn(thread::park);
                while !HELD.load(SeqCst) || debug::metrics().park_count == 0 {
                    gosched::yield_now();
                }
                match variant {
                    "dump" => {
                        let dump = debug::dump().to_string();
                        for part in [
                            "name: holder",
                            "preempted",
                            "[park]",
                            "thread/park.rs",
                            "hold",
                        ] {
                            assert!(dump.contains(part), "no {part} in {dump}");
                        }
                    }
                    "leaks" => assert!(debug::leaks().is_empty()),
                    _ => gosched::testing::illegal_status_change(),
                }
                HELD.store(false, SeqCst);
                parked.thread().unpark();
                parked.join().unwrap();
                holder.unwrap().join().unwrap();
            });
        });
        if variant == "fatal" {
            assert_eq!(out.code(), 2, "{out:#?}");
            out.says(&["fatal error", "thread/park.rs"]);
            assert!(!out.stderr.contains("cut short"), "{out:#?}");
        } else {
            out.succeeded();
        }
    }
}
