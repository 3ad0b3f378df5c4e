//! Children of `std::process::Command`: all run at once, and a goroutine waits for each.
//!
//! Half of the goroutines read the child's stdout and stderr meanwhile (std polls two pipes), half
//! only wait for its end.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::crowd::{all_wait, join_all};

/// Waits for a line, prints it and its length, and exits with its argument as status.
const SCRIPT: &str = r#"read line; echo "out $line"; echo "err ${#line}" >&2; exit "$1""#;

pub(super) fn run(children: usize) {
    let mut inputs: Vec<ChildStdin> = Vec::new();
    let mut goroutines = Vec::new();
    for i in 0..children {
        let is_read = i % 2 == 0;
        let mut child = start(i, is_read);
        inputs.push(child.stdin.take().unwrap());
        goroutines.push(gosched::thread::spawn(move || match is_read {
            true => read(i, child),
            false => wait(i, child),
        }));
    }
    all_wait(children);
    for (i, mut input) in inputs.into_iter().enumerate() {
        writeln!(input, "{}", "l".repeat(i)).unwrap();
    }
    let bytes: usize = join_all(goroutines).into_iter().sum();
    println!("{children} children ended, {bytes} bytes of output");
    ends_by_signal();
    let missing = Command::new("/nowhere/no-such-program")
        .spawn()
        .unwrap_err();
    println!("no program: {:?}", missing.kind());
}

fn start(i: usize, is_read: bool) -> Child {
    let output = || match is_read {
        true => Stdio::piped(),
        false => Stdio::null(),
    };
    let mut command = Command::new("/bin/sh");
    command.args(["-c", SCRIPT, "sh", &(i % 100).to_string()]);
    command
        .stdin(Stdio::piped())
        .stdout(output())
        .stderr(output());
    command.spawn().unwrap()
}

/// Returns the length of the child's output.
fn read(i: usize, child: Child) -> usize {
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(i as i32 % 100));
    assert_eq!(
        output.stdout,
        format!("out {}\n", "l".repeat(i)).into_bytes()
    );
    assert_eq!(output.stderr, format!("err {i}\n").into_bytes());
    output.stdout.len() + output.stderr.len()
}

fn wait(i: usize, mut child: Child) -> usize {
    assert_eq!(child.wait().unwrap().code(), Some(i as i32 % 100));
    0
}

fn ends_by_signal() {
    let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    assert_eq!(child.try_wait().unwrap(), None);
    child.kill().unwrap();
    println!("killed: {}", child.wait().unwrap());
}
