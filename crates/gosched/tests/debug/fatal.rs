//! The report of a fatal error: every goroutine, cut where there are too many, and cut short where
//! it hangs.

use super::dumps::waits_in_a_function_of_its_own;
use crate::common::{child, named};
use gosched::{Deadlock, Runtime, thread};

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

/// The symboliser hangs, because a thread holds its lock for ever. The report is cut short.
#[test]
fn a_fatal_report_that_hangs_is_cut_short() {
    let out = child("a_fatal_report_that_hangs_is_cut_short", || {
        gosched::testing::set_report_patience(5);
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
}
