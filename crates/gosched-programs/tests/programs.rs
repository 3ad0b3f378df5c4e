//! Each program with hooks and without: it succeeds, and its output is the same.
//!
//! The program itself asserts its results and its number of threads, see `src/main.rs`.

use std::process::{Command, Output, Stdio};

/// With hooks, with hooks and without preemption, and without hooks.
const WAYS: [(&str, &str); 3] = [("on", ""), ("on", "asyncpreemptoff=1"), ("off", "")];

fn same_every_way(name: &str) {
    let [with, unhurried, without] = WAYS.map(|(hooks, debug)| output(name, hooks, debug));
    assert!(!with.is_empty(), "{name} prints its results");
    assert_eq!(with, without, "{name} with hooks and without");
    assert_eq!(with, unhurried, "{name} with preemption and without");
}

/// The output of a program that succeeds.
fn output(name: &str, hooks: &str, debug: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_programs"));
    command.arg(name).stdin(Stdio::null());
    command
        .env("GOSCHED_HOOK", hooks)
        .env("GOSCHED_DEBUG", debug);
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program starts");
    let stdout = String::from_utf8(stdout).expect("results are text");
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(
        status.success(),
        "{name}, GOSCHED_HOOK={hooks} GOSCHED_DEBUG={debug}: {status}\n{stdout}\n{stderr}"
    );
    // The numbers of threads, for `--nocapture`.
    eprint!("{stderr}");
    stdout
}

/// A test for each program.
macro_rules! programs {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            same_every_way(stringify!($name));
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
