//! What the macros and the types accept, refuse, and say when they refuse.
//!
//! `ui/pass_*` are programs that must build and end well; `ui/fail_*` must not build,
//! with the text beside them. `TRYBUILD=overwrite` writes that text anew.
//!
//! The compiler reports the errors of one program in an order that may differ between two builds.
//! trybuild compares texts, so it runs in a child process here. Where it reports a mismatch, this
//! file compares the errors of the two texts as a set. trybuild has no hook for that.
//!
//! libtest starts tests in the order of their names. This module comes first, so that the other
//! tests of the binary run while trybuild builds the library once more.

use std::process::Command;

/// Set in the child process.
const CHILD: &str = "GOSCHED_UI_CASES";

#[test]
fn ui() {
    if std::env::var_os(CHILD).is_some() {
        let cases = trybuild::TestCases::new();
        cases.pass("tests/ui/pass_*.rs");
        cases.compile_fail("tests/ui/fail_*.rs");
        return;
    }
    let child = Command::new(std::env::current_exe().expect("a path"))
        .args(["builds::ui", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "0") // of the packages that trybuild builds anew
        .env_remove("TERM") // trybuild marks no differences in the texts then
        .output()
        .expect("the child runs");
    let said = String::from_utf8_lossy(&child.stderr);
    if child.status.success() {
        let ran = String::from_utf8_lossy(&child.stdout);
        assert!(ran.contains("1 passed"), "{ran}{said}");
    } else {
        assert!(differs_in_order_only(&said), "{said}");
    }
}

/// Whether every failure in trybuild's report is a mismatch between the same errors in two orders.
fn differs_in_order_only(report: &str) -> bool {
    let mismatches: Vec<_> = report.split(" ... mismatch\n").skip(1).collect();
    let are_all = report.contains(&format!("\n{} of ", mismatches.len()));
    are_all
        && !mismatches.is_empty()
        && mismatches.into_iter().all(|mismatch| {
            match (
                snippet(mismatch, "EXPECTED:"),
                snippet(mismatch, "ACTUAL OUTPUT:"),
            ) {
                (Some(expected), Some(actual)) => errors(expected) == errors(actual),
                _ => false,
            }
        })
}

/// The text between the dotted lines below `title`.
fn snippet<'a>(mismatch: &'a str, title: &str) -> Option<&'a str> {
    let dots = format!("{}\n", "┈".repeat(60));
    let (_, below) = mismatch.split_once(&format!("{title}\n{dots}"))?;
    below.split_once(&dots).map(|(text, _)| text)
}

/// The errors and warnings of a compiler's output, each with its notes, sorted.
fn errors(output: &str) -> Vec<String> {
    let mut all = Vec::<String>::new();
    for line in output.lines() {
        match all.last_mut() {
            Some(last) if !line.starts_with("error") && !line.starts_with("warning") => {
                last.push('\n');
                last.push_str(line);
            }
            _ => all.push(line.to_owned()),
        }
    }
    for error in &mut all {
        error.truncate(error.trim_end().len());
    }
    all.sort_unstable();
    all
}

/// A report as trybuild writes it, of one mismatch.
fn report(expected: &str, actual: &str, failures: usize) -> String {
    let dots = "┈".repeat(60);
    format!(
        "test tests/ui/fail_x.rs ... mismatch\n\nEXPECTED:\n{dots}\n{expected}{dots}\n\n\
         ACTUAL OUTPUT:\n{dots}\n{actual}{dots}\nnote: If the actual output is the correct one\n\n\
         thread 'ui' panicked:\n{failures} of 2 tests failed\n"
    )
}

const FIRST: &str = "error[E0277]: one\n --> a.rs:1:1\n  |\nnote: why\n  --> b.rs\n";
const SECOND: &str = "error[E0277]: two\n --> a.rs:2:1\n";

#[test]
fn errors_in_another_order_are_the_same() {
    let (here, there) = (format!("{FIRST}\n{SECOND}"), format!("{SECOND}\n{FIRST}"));
    assert!(differs_in_order_only(&report(&here, &there, 1)));
}

#[test]
fn other_errors_are_a_difference() {
    let both = format!("{FIRST}\n{SECOND}");
    let twice = format!("{SECOND}\n{SECOND}");
    let moved_note = format!("{SECOND}note: why\n  --> b.rs\n\nerror[E0277]: one\n --> a.rs:1:1\n");
    for actual in [FIRST, &twice, &both.replace("why", "how"), &moved_note, ""] {
        assert!(
            !differs_in_order_only(&report(&both, actual, 1)),
            "{actual}"
        );
    }
}

/// A program that built although it must not, or one that ended badly, has no such texts.
#[test]
fn any_other_failure_stays_one() {
    let both = report(FIRST, FIRST, 2);
    assert!(!differs_in_order_only(&both));
    assert!(!differs_in_order_only("\n0 of 2 tests failed\n"));
    assert!(!differs_in_order_only(
        "test tests/ui/fail_x.rs ... error\n\n1 of 2 tests failed\n"
    ));
}
