//! The attributes of a function mean what they meant, under `main` and under `test`.

#![deny(warnings)]

/// Never run, never counted as passed.
#[gosched::test]
#[ignore = "for another day"]
fn ignored() {}

#[gosched::test]
#[ignore]
#[should_panic(expected = "often")]
fn ignored_and_panicking() {
    panic!("not often");
}

#[should_panic]
#[gosched::test]
fn attributes_may_stand_above() {
    panic!();
}

#[gosched::test]
#[allow(unused_variables)]
fn lint_level() {
    let unused = 1;
}

#[gosched::main]
#[cfg(any())]
fn main() {
    this_would_not_compile();
}

#[gosched::main]
#[cfg(not(any()))]
#[doc = "The one that is there."]
#[expect(unused_variables)]
#[deny(unused_mut)]
fn main() {
    #![allow(dead_code)]
    let unused = 1;
    fn nobody_calls() {}
    let _code = answer();
}

#[gosched::main]
#[must_use]
fn answer() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
