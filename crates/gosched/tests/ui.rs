//! What the macros and the types accept, refuse, and say when they refuse.
//!
//! `ui/pass_*` are programs that must build and end well; `ui/fail_*` must not build,
//! with the text beside them. `TRYBUILD=overwrite` writes that text anew.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass_*.rs");
    cases.compile_fail("tests/ui/fail_*.rs");
}
