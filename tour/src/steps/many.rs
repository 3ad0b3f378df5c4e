//! 100,000 goroutines at once, all parked: what that costs in memory and time.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::AcqRel;
use std::time::{Duration, Instant};

use gosched::thread::{self, JoinHandle, Thread};

use crate::proc;
use crate::text::{bytes, grouped, time};

const GOROUTINES: usize = 100_000;

/// What was measured.
struct Seen {
    parked: usize,
    /// Why there are fewer than wanted, if there are.
    refused: Option<io::Error>,
    park_time: Duration,
    memory_bytes: u64,
    threads: u64,
    wake_time: Duration,
}

pub(super) fn run(out: &mut dyn Write) -> io::Result<()> {
    let seen = gosched::run(measure)?;
    if let Some(error) = &seen.refused {
        writeln!(
            out,
            "    the system allows no more than {}: {error}",
            grouped(seen.parked as u64)
        )?;
    }
    let n = seen.parked.max(1);
    writeln!(
        out,
        "    {} parked after {} ({} each), on {} threads in all",
        grouped(seen.parked as u64),
        time(seen.park_time),
        time(seen.park_time / n as u32),
        seen.threads
    )?;
    writeln!(
        out,
        "    memory: {}, page tables included ({} each)",
        bytes(seen.memory_bytes),
        bytes(seen.memory_bytes / n as u64)
    )?;
    writeln!(
        out,
        "    woken one by one and finished after {} ({} each)",
        time(seen.wake_time),
        time(seen.wake_time / n as u32)
    )
}

fn measure() -> io::Result<Seen> {
    let before = proc::status()?;
    let start = Instant::now();
    // One more than there are goroutines, for this function.
    let awake = Arc::new(AtomicUsize::new(1));
    let main = thread::current();
    let mut handles: Vec<JoinHandle<()>> = Vec::with_capacity(GOROUTINES);
    let mut refused = None;
    while handles.len() < GOROUTINES {
        awake.fetch_add(1, AcqRel);
        let (counter, main) = (Arc::clone(&awake), main.clone());
        match thread::Builder::new().spawn(move || wait_to_be_woken(&counter, &main)) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                awake.fetch_sub(1, AcqRel);
                refused = Some(error);
                break;
            }
        }
    }
    if awake.fetch_sub(1, AcqRel) > 1 {
        thread::park();
    }
    let park_time = start.elapsed();
    let after = proc::status()?;
    let start = Instant::now();
    for handle in &handles {
        handle.thread().unpark();
    }
    let parked = handles.len();
    for handle in handles {
        handle
            .join()
            .map_err(|_| io::Error::other("a goroutine panicked"))?;
    }
    Ok(Seen {
        parked,
        refused,
        park_time,
        memory_bytes: after.memory_bytes.saturating_sub(before.memory_bytes),
        threads: after.threads,
        wake_time: start.elapsed(),
    })
}

/// Counts itself and parks; the last one to count wakes whoever waits for all.
fn wait_to_be_woken(awake: &AtomicUsize, main: &Thread) {
    if awake.fetch_sub(1, AcqRel) == 1 {
        main.unpark();
    }
    thread::park();
}
