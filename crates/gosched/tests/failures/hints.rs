//! Advice in error messages is good advice: each test meets a message, does what it says, and
//! succeeds.

use std::hint::black_box;
use std::io;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::common::{child, child_of, child_with, limit_address_space, panic_text, until_waiting};
use gosched::chan::{Select, bounded, unbounded};
use gosched::{Runtime, debug, thread};

/// About `kib` KiB of stack.
#[inline(never)]
fn descend(kib: usize) -> usize {
    let frame = black_box([kib as u8; 1024]);
    match kib {
        0 => usize::from(frame[0]),
        _ => descend(kib - 1) + usize::from(black_box(frame[7]) == kib as u8),
    }
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
}

/// Deeper than any default stack, the main goroutine's too. Needs up to 2 KiB a level in debug
/// builds.
const DEEP_KIB: usize = 12 << 10;
const ENOUGH: usize = 64 << 20;

/// A goroutine runs out of stack: all three settings of the report help it, and two of them the
/// main goroutine.
#[test]
fn u8_an_overflow_is_cured_by_each_setting_that_the_report_names() {
    let name = "u8_an_overflow_is_cured_by_each_setting_that_the_report_names";
    let run = |variant: &str| {
        let environment = |command: &mut std::process::Command| {
            if variant.contains("RUST_MIN_STACK") {
                command.env("RUST_MIN_STACK", ENOUGH.to_string());
            }
        };
        child_with(name, variant, environment, |variant| {
            let mut builder = Runtime::builder().procs(2);
            if variant.contains("gosched::Builder") {
                builder = builder.stack_size(ENOUGH);
            }
            let runtime = builder.build().unwrap();
            let of_main = variant.contains("main");
            let of_one = variant.contains("thread::Builder");
            let depth = runtime.run(move || match of_main {
                true => descend(DEEP_KIB),
                false => {
                    let one = thread::Builder::new();
                    let one = if of_one { one.stack_size(ENOUGH) } else { one };
                    one.spawn(|| descend(DEEP_KIB)).unwrap().join().unwrap()
                }
            });
            assert_eq!(depth, DEEP_KIB);
        })
    };
    for of in ["goroutine", "main"] {
        let out = run(of);
        assert_eq!(out.code(), 2, "{out:#?}");
        out.says(&[
            "fatal error: stack overflow",
            "gosched::Builder::stack_size",
            "RUST_MIN_STACK",
        ]);
        let for_one = "gosched::thread::Builder::stack_size";
        assert_eq!(out.stderr.contains(for_one), of == "goroutine", "{out:#?}");
        run(&format!("{of}: gosched::Builder")).succeeded();
        run(&format!("{of}: RUST_MIN_STACK")).succeeded();
    }
    run("goroutine: thread::Builder").succeeded();
}

/// `Builder::stack_size` is for the main goroutine as well, also if it is less than its default.
#[test]
fn u8_the_stack_size_reaches_the_main_goroutine() {
    let name = "u8_the_stack_size_reaches_the_main_goroutine";
    let cases = [
        ("default", 8 << 20),
        ("64 KiB", 64 << 10),
        ("32 MiB", 32 << 20),
    ];
    for (variant, limit) in cases {
        let out = child_of(name, variant, |variant| {
            let builder = match variant {
                "64 KiB" => Runtime::builder().stack_size(64 << 10),
                "32 MiB" => Runtime::builder().stack_size(32 << 20),
                _ => Runtime::builder(),
            };
            builder.build().unwrap().run(|| descend(64 << 10));
        });
        assert_eq!(out.code(), 2, "{out:#?}");
        out.says(&[&format!("goroutine stack exceeds {limit}-byte limit")]);
    }
    // An environment variable that is meant for all does not make the main goroutine's stack
    // smaller.
    let small = |command: &mut std::process::Command| {
        command.env("RUST_MIN_STACK", "65536");
    };
    let out = child_with(name, "default", small, |_| {
        Runtime::builder()
            .build()
            .unwrap()
            .run(|| descend(64 << 10));
    });
    out.says(&["goroutine stack exceeds 8388608-byte limit"]);
}

/// Gives malloc some memory that it keeps: what is short is to be stacks.
fn keep_heap() {
    // SAFETY: settings of malloc's. An arena for each thread would take address space.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
    let pieces: Vec<_> = (0..4000).map(|n| Box::new([n as u8; 4000])).collect();
    drop(black_box(pieces));
}

/// Starts so many goroutines and lets them end.
fn spawn_many(runtime: &Runtime, many: usize) -> io::Result<()> {
    let mut parked = Vec::new();
    let mut spawn = || {
        runtime
            .handle()
            .try_spawn(thread::park)
            .map(|h| parked.push(h))
    };
    let spawned = (0..many).try_for_each(|_| spawn());
    for one in parked {
        one.thread().unpark();
        one.join().unwrap();
    }
    spawned
}

#[test]
fn d4_address_space_lasts_with_smaller_stacks_or_a_higher_limit() {
    let name = "d4_address_space_lasts_with_smaller_stacks_or_a_higher_limit";
    let out = child(name, || {
        let built = |size| {
            Runtime::builder()
                .procs(1)
                .stack_size(size)
                .build()
                .unwrap()
        };
        let runtime = built(4 << 20);
        keep_heap();
        let before = limit_address_space(1 << 30);
        let error = spawn_many(&runtime, 2000).unwrap_err();
        assert_says(
            &error.to_string(),
            &[
                "address space",
                "lower Builder::stack_size or raise RLIMIT_AS",
            ],
        );
        drop(runtime);
        spawn_many(&built(64 << 10), 2000).unwrap();
        // SAFETY: the limit as it was.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &before) };
        spawn_many(&built(4 << 20), 2000).unwrap();
    });
    out.succeeded();
}

/// The main goroutine's stack is refused, too, and is smaller if asked.
#[test]
fn d4_a_main_goroutine_fits_with_a_smaller_stack() {
    let out = child("d4_a_main_goroutine_fits_with_a_smaller_stack", || {
        let build = |size| Runtime::builder().procs(1).stack_size(size).build();
        let small = build(16 << 10).unwrap();
        let large = build(1 << 30).unwrap();
        // Room for every thread that is being made, and not for the main goroutine's 1 GiB.
        let before = limit_address_space(800 << 20);
        let text = panic_text(|| large.run(|| ()));
        assert_says(
            &text,
            &[
                "cannot start the main goroutine",
                "lower Builder::stack_size",
            ],
        );
        assert_eq!(small.run(|| 42), 42);
        // SAFETY: the limit as it was.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &before) };
        assert_eq!(large.run(|| 42), 42);
    });
    out.succeeded();
}

/// Where guards cost mappings, these run out first: the error names that limit and not another one.
#[test]
fn d4_mappings_last_with_a_higher_limit() {
    const LIMIT: &str = "/proc/sys/vm/max_map_count";
    /// More goroutines than two mappings each allow, with the limit that most systems have.
    const MANY: usize = 34_000;
    let name = "d4_mappings_last_with_a_higher_limit";
    let body = |variant: &str| {
        let runtime = Runtime::builder().procs(1).mprotect_guards(true);
        let runtime = runtime.stack_size(16 << 10).build().unwrap();
        match (variant, spawn_many(&runtime, MANY)) {
            ("raised", spawned) => spawned.unwrap(),
            (_, Ok(())) => println!("the limit is higher here"),
            (_, Err(error)) => {
                let error = error.to_string();
                assert_says(&error, &["memory mappings", "raise vm.max_map_count"]);
                assert!(!error.contains("RLIMIT_AS"), "{error}");
            }
        }
    };
    let out = child_of(name, "", body);
    out.succeeded();
    let Some((_, advised)) = out.stderr.split_once("sysctl -w vm.max_map_count=") else {
        assert!(out.stdout.contains("the limit is higher here"), "{out:#?}");
        return;
    };
    let advised: usize = advised.lines().next().unwrap().parse().unwrap();
    assert!(advised > 2 * MANY, "{advised} is not enough");
    // The limit is the whole machine's, and the superuser's to raise: only on request.
    if std::env::var_os("GOSCHED_TEST_SYSCTL").is_some() {
        let before = std::fs::read_to_string(LIMIT).unwrap();
        std::fs::write(LIMIT, advised.to_string()).unwrap();
        let out = catch_unwind(|| child_of(name, "raised", body));
        std::fs::write(LIMIT, before).unwrap();
        out.unwrap().succeeded();
    }
}

#[test]
fn settings_at_the_ends_of_the_ranges_that_errors_name() {
    let builder = Runtime::builder;
    let refused = |builder: gosched::Builder| builder.build().unwrap_err().to_string();
    assert_says(
        &refused(builder().stack_size(0)),
        &["between 1 byte and 1 GiB"],
    );
    assert_says(&refused(builder().procs(0)), &["from 1 to 4096"]);
    let range = "from 1 to 2147483647";
    assert_says(&refused(builder().max_threads(0)), &[range]);
    assert_says(&refused(builder().max_threads(usize::MAX)), &[range]);
    assert_says(&refused(builder().max_lookups(0)), &[range]);
    assert_says(&refused(builder().max_lookups(usize::MAX)), &[range]);
    let pair = "procs is 4 and max_threads 3: every processor needs a thread";
    assert_says(&refused(builder().procs(4).max_threads(3)), &[pair]);
    for followed in [
        builder().stack_size(1),
        builder().procs(1).stack_size(1 << 30),
        builder().procs(1),
        builder().procs(4096),
        builder().procs(1).max_threads(1),
        builder().max_threads(i32::MAX as usize),
        builder().max_lookups(1),
        builder().max_lookups(i32::MAX as usize),
        builder().procs(4).max_threads(4),
        builder().procs(3).max_threads(3),
    ] {
        let text = format!("{followed:?}");
        let runtime = followed.build().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(runtime.spawn(|| 42).join().unwrap(), 42, "{text}");
    }
    // As small a main goroutine as may be: the size is for all of them.
    let sizes = [1 << 30, 64 << 10].map(|size| builder().procs(1).stack_size(size));
    for followed in sizes {
        assert_eq!(followed.build().unwrap().run(|| 42), 42);
    }
    let runtime = builder().procs(1).max_threads(2).build().unwrap();
    let text = runtime.run(|| panic_text(|| gosched::gomaxprocs(3)));
    assert_says(
        &text,
        &["max_threads is 2, and every processor needs a thread"],
    );
    assert_eq!(runtime.run(|| gosched::gomaxprocs(2)), 1);
    let runtime = builder().procs(1).max_threads(3).build().unwrap();
    assert_eq!(runtime.run(|| gosched::gomaxprocs(3)), 1);
    let runtime = builder().procs(1).build().unwrap();
    let text = runtime.run(|| panic_text(|| gosched::gomaxprocs(4097)));
    assert_says(&text, &["at most 4096 are possible"]);
    assert_eq!(runtime.run(|| gosched::gomaxprocs(4096)), 1);
    assert_eq!(runtime.spawn(|| 42).join().unwrap(), 42);
}

#[test]
fn a_stack_size_of_a_goroutine_at_the_ends_of_its_range() {
    Runtime::builder().procs(1).build().unwrap().run(|| {
        let spawn = |size| thread::Builder::new().stack_size(size).spawn(|| 42);
        let error = spawn((1 << 30) + 1).unwrap_err().to_string();
        assert_says(&error, &["between 1 byte and 1 GiB"]);
        for size in [1, 1 << 30] {
            assert_eq!(spawn(size).unwrap().join().unwrap(), 42);
        }
    });
}

#[test]
fn calls_outside_a_goroutine_work_where_the_text_says() {
    let text = panic_text(|| gosched::go(|| ()));
    assert_says(
        &text,
        &["gosched::run or #[gosched::main], or use a Runtime or Handle"],
    );
    assert_eq!(gosched::run(|| thread::spawn(|| 42).join().unwrap()), 42);
    let runtime = Runtime::builder().build().unwrap();
    assert_eq!(runtime.spawn(|| 42).join().unwrap(), 42);
    assert_eq!(runtime.handle().spawn(|| 42).join().unwrap(), 42);

    let text = panic_text(gosched::lock_os_thread);
    assert_says(
        &text,
        &["from code started with gosched::run, go or thread::spawn"],
    );
    let lock = || {
        gosched::lock_os_thread();
        gosched::unlock_os_thread();
    };
    runtime.run(lock);
    runtime.run(move || thread::spawn(lock).join().unwrap());
    let (done, wait) = unbounded();
    runtime.go(move || {
        lock();
        done.send(()).unwrap();
    });
    wait.recv().unwrap();

    for (text, instead) in [
        (panic_text(debug::dump), "Runtime::dump or Handle::dump"),
        (
            panic_text(debug::metrics),
            "Runtime::metrics or Handle::metrics",
        ),
        (panic_text(debug::leaks), "Runtime::leaks or Handle::leaks"),
        (panic_text(debug::check), "Runtime::check"),
    ] {
        assert_says(&text, &["called outside a runtime: use", instead]);
    }
    let _ = (runtime.dump(), runtime.handle().dump().unwrap());
    let _ = (runtime.metrics(), runtime.handle().metrics().unwrap());
    let _ = (runtime.leaks(), runtime.handle().leaks().unwrap());
    runtime.check().unwrap();
}

/// `select!` says: use `Select` for more than 32 operations (`tests/ui` has the text).
#[test]
fn a_select_of_more_operations_than_the_macro_takes() {
    gosched::run(|| {
        let many: Vec<_> = (0..40).map(|_| unbounded::<usize>()).collect();
        let mut select = Select::new();
        for (_, receiver) in &many {
            select.recv(receiver);
        }
        for (n, (sender, receiver)) in many.iter().enumerate() {
            sender.send(n).unwrap();
            let operation = select.select();
            assert_eq!(operation.index(), n);
            assert_eq!(operation.recv(receiver), Ok(n));
        }
    });
}

/// Goroutines that never wait hold all threads, and the warning names `max_threads`: more of them
/// let others begin.
#[test]
fn l2_others_begin_with_more_threads() {
    let name = "l2_others_begin_with_more_threads";
    let body = |variant: &str| {
        let threads = if variant == "more" { 40 } else { 4 };
        let runtime = Runtime::builder().procs(1).max_threads(threads);
        runtime.build().unwrap().run(|| {
            let stop = Arc::new(AtomicBool::new(false));
            for _ in 0..20 {
                let stop = Arc::clone(&stop);
                gosched::go(move || while !stop.load(SeqCst) {});
            }
            let (done, wait) = unbounded();
            gosched::go(move || done.send(()).unwrap());
            // Time for the warning, also on a busy machine.
            let ms = if variant == "more" { 500 } else { 4_000 };
            thread::sleep(Duration::from_millis(ms));
            if variant == "more" {
                wait.recv().unwrap();
            }
            stop.store(true, SeqCst);
            if variant != "more" {
                wait.recv().unwrap();
            }
        });
    };
    let out = child_of(name, "", body);
    out.succeeded();
    out.says(&["others that begin must wait", "Builder::max_threads is 4"]);
    let out = child_of(name, "more", body);
    out.succeeded();
    assert_eq!(out.stderr, "");
}

/// Marked calls that beyond the limit wait for others to return all begin with more threads.
#[test]
fn mg_marked_calls_begin_with_more_threads() {
    let name = "mg_marked_calls_begin_with_more_threads";
    let body = |variant: &str| {
        let threads = if variant == "more" { 60 } else { 8 };
        let runtime = Runtime::builder().procs(2).max_threads(threads);
        runtime.build().unwrap().run(|| {
            let call = || gosched::blocking(|| std::thread::sleep(Duration::from_millis(500)));
            let calls: Vec<_> = (0..30).map(|_| thread::spawn(call)).collect();
            calls.into_iter().for_each(|one| one.join().unwrap());
        });
    };
    let out = child_of(name, "", body);
    out.succeeded();
    out.says(&["further ones wait", "Builder::max_threads is 8"]);
    let out = child_of(name, "more", body);
    out.succeeded();
    assert_eq!(out.stderr, "");
}

extern "C" fn programs_own(_: libc::c_int) {}

/// A program that replaces the handler of the runtime's signal has its loops preempted by another
/// one.
#[test]
fn d7_loops_are_preempted_by_another_signal() {
    let name = "d7_loops_are_preempted_by_another_signal";
    let body = |variant: &str| {
        let builder = match variant {
            // The only P is free for others if the loop is preempted.
            "another" => Runtime::builder()
                .procs(1)
                .preemption_signal(libc::SIGRTMIN() + 3),
            _ => Runtime::builder().procs(2),
        };
        let runtime = builder.build().unwrap();
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGURG, programs_own as *const () as usize) };
        runtime.run(|| {
            let stop = Arc::new(AtomicBool::new(false));
            let its = Arc::clone(&stop);
            let computes = thread::spawn(move || while !its.load(SeqCst) {});
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_secs(4) {
                let others = [(); 3].map(|()| thread::spawn(gosched::yield_now));
                others.into_iter().for_each(|other| other.join().unwrap());
            }
            stop.store(true, SeqCst);
            computes.join().unwrap();
        });
    };
    let out = child_of(name, "", body);
    out.succeeded();
    out.says(&[
        "replaced the handler",
        "Builder::preemption_signal chooses another signal",
    ]);
    let out = child_of(name, "another", body);
    out.succeeded();
    assert_eq!(out.stderr, "");
}

/// A scope that cannot end, since a runtime was dropped with one of its goroutines, ends if the
/// runtime is dropped later, or is shut down.
#[test]
fn d2_a_scope_ends_before_its_runtime_is_dropped_or_if_that_is_shut_down() {
    let name = "d2_a_scope_ends_before_its_runtime_is_dropped_or_if_that_is_shut_down";
    let body = |variant: &str| {
        let other = Runtime::builder().procs(1).build().unwrap();
        let lent = [7; 64];
        let mut other = Some(other);
        thread::scope(|s| {
            let waits = other.as_ref().unwrap().run(|| {
                let waits = s.spawn(|| {
                    thread::park();
                    lent.iter().sum::<i32>()
                });
                until_waiting(1, "park");
                waits
            });
            match variant {
                "after" => {
                    waits.thread().unpark();
                    assert_eq!(waits.join().unwrap(), 7 * 64);
                }
                "shutdown" => {
                    other.take().unwrap().shutdown(Duration::from_secs(20));
                    assert!(waits.join().is_err());
                }
                _ => drop(other.take()),
            }
        });
    };
    let out = child_of(name, "", body);
    assert_eq!(out.code(), 2, "{out:#?}");
    out.says(&[
        "a scope cannot end",
        "drop the runtime after the scope, or use Runtime::shutdown",
    ]);
    child_of(name, "after", body).succeeded();
    child_of(name, "shutdown", body).succeeded();
}

/// A buffer that does not fit: a smaller one does, and an unbounded channel needs none.
#[test]
fn a_channel_whose_buffer_does_not_fit() {
    let text = panic_text(|| bounded::<u64>(1 << 60));
    assert_says(
        &text,
        &[
            "does not fit into memory",
            "use a smaller capacity, or unbounded()",
        ],
    );
    for (sender, receiver) in [bounded(16), unbounded()] {
        sender.send(42u64).unwrap();
        assert_eq!(receiver.recv(), Ok(42));
    }
}

/// The error in the child of a fork advises to exec, or to fork before the runtime starts.
#[test]
fn a_fork_before_the_runtime_or_an_exec() {
    let name = "a_fork_before_the_runtime_or_an_exec";
    let out = child(name, || {
        let in_fork = |f: &dyn Fn() -> bool| {
            let mut status = 0;
            // SAFETY: the child runs `f` and ends; this process has no other thread that holds a
            // lock of libc's.
            unsafe {
                match libc::fork() {
                    0 => libc::_exit(i32::from(!f())),
                    child => libc::waitpid(child, &mut status, 0),
                };
            }
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        };
        let works = || gosched::run(|| thread::spawn(|| 42).join().unwrap()) == 42;
        in_fork(&works);
        let runtime = Runtime::builder().build().unwrap();
        in_fork(&|| {
            let text = panic_text(|| runtime.run(|| ()));
            text.contains("exec a program, or fork before the runtime starts")
        });
        let status = std::process::Command::new("true").status().unwrap();
        assert!(status.success());
        assert!(runtime.run(|| {
            std::process::Command::new("true")
                .status()
                .unwrap()
                .success()
        }));
    });
    out.succeeded();
}
