//! Each program with hooks and without: it succeeds, and its output is the same.
//!
//! The program itself asserts its results and its number of threads, see `src/main.rs`.

use std::process::{Command, Output, Stdio};

/// Runs a program twice. `set` is the value of `GOSCHED_HOOK` for the second run.
fn same_both_ways(name: &str) {
    let with = output(name, "on");
    let without = output(name, "off");
    assert!(!with.is_empty(), "{name} prints its results");
    assert_eq!(with, without, "{name} with hooks and without");
}

/// The output of a program that succeeds.
fn output(name: &str, hooks: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_programs"));
    command
        .arg(name)
        .env("GOSCHED_HOOK", hooks)
        .stdin(Stdio::null());
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program starts");
    let stdout = String::from_utf8(stdout).expect("results are text");
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(
        status.success(),
        "{name}, GOSCHED_HOOK={hooks}: {status}\n{stdout}\n{stderr}"
    );
    // The number of threads, for `--nocapture`.
    eprint!("{stderr}");
    stdout
}

/// A test for each program.
macro_rules! programs {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            same_both_ways(stringify!($name));
        }
    )*

        #[test]
        fn every_program_has_a_test() {
            let usage = Command::new(env!("CARGO_BIN_EXE_programs")).output().unwrap().stderr;
            let usage = String::from_utf8(usage).unwrap();
            let programs: Vec<_> = usage.lines().skip(1).map(str::trim).collect();
            let mut tested = [$(stringify!($name)),*].to_vec();
            tested.sort_by_key(|name| programs.iter().position(|p| p == name));
            assert_eq!(tested, programs);
        }
    };
}

programs! {
    ureq tiny_http postgres redis tungstenite rustls rusqlite crossbeam flume libpq libcurl command
    lookups stdin connections
}
