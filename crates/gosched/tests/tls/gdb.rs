//! What a debugger and a stack overflow make of a goroutine with its own thread-locals.

use std::cell::Cell;
use std::process::Command;

use crate::common::{child, path_of};
use crate::tools::own;
use gosched::thread;

thread_local! {
    static GDB_SEES: Cell<u32> = const { Cell::new(7) };
}

/// What the debugger stops at.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gosched_tls_test_stops_here(n: u32) -> u32 {
    std::hint::black_box(n + 1)
}

/// What the debugger calls.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gosched_tls_test_value() -> u32 {
    GDB_SEES.get()
}

#[inline(never)]
fn runs_under_gdb(value: u32) -> u32 {
    GDB_SEES.set(value);
    thread::yield_now();
    let n = gosched_tls_test_stops_here(value);
    std::hint::black_box(gosched_tls_test_value());
    n
}

/// gdb restores every register after a call. This kernel and this gdb do not agree on their size,
/// whatever the program.
const CANNOT_CALL: &str = "Couldn't write extended state status";

/// In each goroutine it stops in, gdb sees that one's. Without gdb there is nothing to show.
#[test]
fn gdb_sees_the_goroutines_thread_locals() {
    const CHILD: &str = "GOSCHED_TEST_UNDER_GDB";
    // An optimised build has no types.
    const PRINT: &str = "print ((unsigned (*)(void)) gosched_tls_test_value)()";
    const VALUES: [u32; 3] = [1_001, 2_002, 3_003];
    if std::env::var_os(CHILD).is_some() {
        own(1).run(|| {
            let all = VALUES.map(|value| thread::spawn(move || runs_under_gdb(value)));
            let _ = all.map(|one| one.join().unwrap());
        });
        return;
    }
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("no gdb here: nothing to check");
        return;
    }
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-ex", "set debuginfod enabled off"]);
    command.args(["-ex", "set language c"]);
    command.args(["-ex", "break gosched_tls_test_stops_here", "-ex", "run"]);
    for _ in VALUES {
        // A call from gdb would let the others run, too, and into the breakpoint.
        command.args(["-ex", "set scheduler-locking on", "-ex", PRINT]);
        command.args(["-ex", "set scheduler-locking off", "-ex", "continue"]);
    }
    let out = command
        .arg("--args")
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &path_of("gdb::gdb_sees_the_goroutines_thread_locals"),
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let all = || format!("{text}\n{}", String::from_utf8_lossy(&out.stderr));
    if String::from_utf8_lossy(&out.stderr).contains(CANNOT_CALL) {
        println!("gdb cannot call functions here: nothing to check");
        return;
    }
    // In any order: each saw its own.
    let value = |line: &str| line.strip_prefix('$')?.split_once(" = ")?.1.parse().ok();
    let mut seen: Vec<u32> = text.lines().filter_map(value).collect();
    seen.sort_unstable();
    assert_eq!(seen, VALUES, "{}", all());
    assert!(text.contains("exited normally"), "{}", all());
}

/// With thread-locals above it and a guard below it, the end of a stack is still found and named.
#[test]
fn a_stack_overflow_is_still_reported() {
    #[inline(never)]
    fn endless(n: u64) -> u64 {
        let frame = std::hint::black_box([n; 64]);
        if n == u64::MAX {
            return 0;
        }
        endless(n + 1) + frame[n as usize % 64]
    }
    let output = child("gdb::a_stack_overflow_is_still_reported", || {
        own(2).run(|| {
            let others: Vec<_> = (0..10).map(|_| thread::spawn(thread::park)).collect();
            let deep = thread::Builder::new().name("deep".into());
            let deep = deep.spawn(|| {
                GDB_SEES.set(1);
                thread::yield_now();
                endless(0)
            });
            deep.unwrap().join().unwrap();
            drop(others);
        });
    });
    assert_eq!(output.code(), 2, "{output:#?}");
    output.says(&["goroutine stack exceeds", "deep"]);
}
