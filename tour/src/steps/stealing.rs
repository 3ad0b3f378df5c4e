//! Work put on one processor's queue spreads to the others, because those that run dry steal half of it.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use gosched::Runtime;

use crate::text::bar;

const PROCS: usize = 4;
/// All of them fit into one processor's queue, so the others get theirs by stealing only.
const JOBS: usize = 240;
const JOB: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_millis(150);

/// How many jobs each thread has done.
type Done = Arc<Mutex<HashMap<ThreadId, usize>>>;

pub(super) fn run(out: &mut dyn Write) -> io::Result<()> {
    let runtime = Runtime::builder().procs(PROCS).name("stealing").build()?;
    let done = Done::default();
    let for_jobs = Arc::clone(&done);
    let start = Instant::now();
    runtime.go(move || {
        for _ in 0..JOBS {
            let done = Arc::clone(&for_jobs);
            gosched::go(move || work(&done));
        }
    });
    writeln!(
        out,
        "    {JOBS} jobs of {} ms, put on one of {PROCS} queues; jobs done by each thread:",
        JOB.as_millis()
    )?;
    let mut order = Vec::new();
    loop {
        std::thread::sleep(LOOK);
        let counts = counts(&done, &mut order);
        let bars: Vec<_> = counts
            .iter()
            .map(|n| format!("|{}|{n:>3}", bar(*n, JOBS / 3, 12)))
            .collect();
        writeln!(
            out,
            "    {:>5} ms  {}",
            start.elapsed().as_millis(),
            bars.join("  ")
        )?;
        out.flush()?;
        if counts.iter().sum::<usize>() == JOBS {
            return Ok(());
        }
    }
}

/// Keeps a processor busy, then counts itself for the thread it ran on.
fn work(done: &Mutex<HashMap<ThreadId, usize>>) {
    let start = Instant::now();
    while start.elapsed() < JOB {
        std::hint::spin_loop();
    }
    // No switch can happen while this is held: nothing below enters the runtime.
    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
    *done.entry(std::thread::current().id()).or_default() += 1;
}

/// The counts, each thread always in the same column.
fn counts(done: &Mutex<HashMap<ThreadId, usize>>, order: &mut Vec<ThreadId>) -> Vec<usize> {
    let done = done.lock().unwrap_or_else(PoisonError::into_inner);
    for thread in done.keys() {
        if !order.contains(thread) {
            order.push(*thread);
        }
    }
    order.iter().map(|thread| done[thread]).collect()
}
