//! The tour as people start it.

use std::process::{Command, Output, Stdio};

fn tour(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gosched-tour"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn step_names() -> Vec<String> {
    let list = tour(&["--list"]);
    assert_eq!(list.status.code(), Some(0));
    let lines = text(&list.stdout).lines();
    lines
        .filter_map(|line| line.split_whitespace().next())
        .map(String::from)
        .collect()
}

#[test]
fn the_list_names_the_steps() {
    let names = step_names();
    for name in ["hello", "many", "stealing", "sleepers", "deadlock", "stack"] {
        assert!(names.iter().any(|n| n == name), "{names:?}");
    }
}

#[test]
fn the_whole_tour_runs_into_a_pipe() {
    let output = tour(&[]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert_eq!(err, "");
    for name in step_names() {
        assert!(
            out.contains(&format!("] {name}: ")),
            "{name} is missing in {out}"
        );
    }
    assert!(
        out.contains("all goroutines are asleep - deadlock!"),
        "{out}"
    );
    assert!(!out.contains('\x1b'), "colours in a pipe: {out}");
}

#[test]
fn one_step_runs_alone() {
    let output = tour(&["hello"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}");
    assert!(
        out.starts_with("[1/1] hello: ") && !out.contains("many"),
        "{out}"
    );
}

#[test]
fn an_unknown_step_ends_with_status_2_and_the_list() {
    let output = tour(&["dance"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.contains("no step \"dance\"") && err.contains("hello"),
        "{err}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gosched-tour"))
        .arg("hello")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}
