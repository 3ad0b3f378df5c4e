//! Work put on one processor's queue spreads to the others, because those that run dry steal half of it.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use gosched::Runtime;

use crate::text::bar;

const PROCS: usize = 4;
/// All of them fit into one processor's queue, so the others get theirs by stealing only.
const JOBS: usize = 240;
const JOB: Duration = Duration::from_millis(10);
/// When the queues are looked at: first, and after that every so often.
const FIRST_LOOK: Duration = Duration::from_millis(2);
const LOOK: Duration = Duration::from_millis(150);

pub(super) fn run(out: &mut dyn Write) -> io::Result<()> {
    let runtime = Runtime::builder().procs(PROCS).name("stealing").build()?;
    let done = Arc::new(AtomicUsize::new(0));
    let for_jobs = Arc::clone(&done);
    writeln!(
        out,
        "    {JOBS} jobs of {} ms, all started on one of {PROCS} processors; waiting on each queue:",
        JOB.as_millis()
    )?;
    let start = Instant::now();
    runtime.go(move || {
        for _ in 0..JOBS {
            let done = Arc::clone(&for_jobs);
            gosched::go(move || work(&done));
        }
    });
    std::thread::sleep(FIRST_LOOK);
    while done.load(Acquire) < JOBS {
        writeln!(out, "{}", queues(&runtime, start, &done))?;
        out.flush()?;
        std::thread::sleep(LOOK);
    }
    let metrics = runtime.metrics();
    writeln!(
        out,
        "    done: {} steals moved {} goroutines",
        metrics.steals, metrics.stolen
    )
}

/// One look: each processor's queue as a bar.
fn queues(runtime: &Runtime, start: Instant, done: &AtomicUsize) -> String {
    let procs = runtime.metrics().per_proc;
    let bars = procs.iter().map(|p| {
        let queued = p.queued + usize::from(p.has_next);
        format!("  P{} |{}|{queued:>3}", p.id, bar(queued, JOBS, 12))
    });
    format!(
        "    {:>5} ms {}  done {:>3}",
        start.elapsed().as_millis(),
        bars.collect::<String>(),
        done.load(Acquire)
    )
}

/// Keeps a processor busy for a while.
fn work(done: &AtomicUsize) {
    let start = Instant::now();
    while start.elapsed() < JOB {
        std::hint::spin_loop();
    }
    done.fetch_add(1, Release);
}
