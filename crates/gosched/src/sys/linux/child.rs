//! Tests that need a process of their own run themselves again as a child.

use std::process::{Command, Output};

/// Set in children only.
const MARK: &str = "GOSCHED_OS_TEST_CHILD";

/// True in the child that `run` started.
pub(super) fn is_one() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Runs the test `name` of `module` alone in a child process.
pub(super) fn run(module: &str, name: &str) -> Output {
    let (_crate_name, module) = module.split_once("::").expect("a path of modules");
    Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", &format!("{module}::{name}"), "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .expect("child")
}
