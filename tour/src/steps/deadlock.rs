//! Two goroutines wait for each other; the runtime notices and says who waits for what.

use std::io::{self, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gosched::thread::{self, JoinHandle};
use gosched::{Deadlock, Runtime};

use crate::text::{indented, time};

/// How long the report may take before the step gives up.
const PATIENCE: Duration = Duration::from_secs(10);
const LINES: usize = 24;

pub(super) fn run(out: &mut dyn Write) -> io::Result<()> {
    let (tx, rx) = mpsc::channel();
    // Without a hook the report goes to stderr and the process ends with status 2, as in Go.
    let runtime = Runtime::builder()
        .name("deadlock")
        .deadlock(Deadlock::Closed)
        .on_deadlock(move |report| {
            // The tour may have given up meanwhile.
            let _ = tx.send(report.to_string());
        })
        .build()?;
    let begin = Instant::now();
    runtime.go(|| {
        if let Err(error) = start("left", left) {
            panic!("cannot start a goroutine: {error}");
        }
    });
    let report = rx.recv_timeout(PATIENCE);
    let took = begin.elapsed();
    runtime.shutdown(Duration::from_secs(1));
    let report = report.map_err(|_| io::Error::other("the deadlock was not reported"))?;
    writeln!(
        out,
        "    reported {} after the goroutines were started (here without the stacks it also shows):",
        time(took)
    )?;
    out.write_all(indented(&without_stacks(&report), LINES).as_bytes())
}

/// The lines of a report that are not frames of a stack.
fn without_stacks(report: &str) -> String {
    const KEPT: [&str; 4] = ["all goroutines", "goroutine ", "waits for ", "created "];
    let is_kept = |line: &&str| KEPT.iter().any(|start| line.starts_with(start));
    let kept: Vec<_> = report.lines().filter(is_kept).collect();
    kept.join("\n")
}

fn start(name: &str, f: fn()) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(f)
}

/// Waits for the other goroutine to end, which waits for what comes after that.
fn left() {
    if let Ok(right) = start("right", thread::park) {
        let waits_for_us = right.thread().clone();
        let _ = right.join();
        waits_for_us.unpark();
    }
}
