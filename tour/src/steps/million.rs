//! A million goroutines at once, all parked: their cost in memory and time.
//!
//! There are as many as the memory allows. Each counts itself before it parks and after it was
//! woken, so the counts are final once all are parked, or have ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use gosched::Runtime;
use gosched::debug::StackGuard;
use gosched::thread::{self, JoinHandle};

use crate::machine;
use crate::stage::Stage;
use crate::text::{Ink, bytes, grouped, paint, time};

const GOROUTINES: usize = 1_000_000;
const GOROUTINES_QUICK: usize = 2_000;
/// The expected memory of one goroutine, to limit their number: two pages and what belongs to them.
const BYTES_EXPECTED: u64 = 10_000;
/// The share of the available memory that the step may use.
const SHARE: f64 = 0.8;
/// Mappings left for the rest of the program.
const MAPPINGS_LEFT: u64 = 5_000;
const CELLS: usize = 40;
/// No goroutine is started after this time: some machines are slow to find memory.
const TIME_MAX: Duration = Duration::from_secs(20);
/// A goroutine that was started and is not parked by then is lost, even on a slow machine.
const PARKED_MAX: Duration = Duration::from_secs(120);
/// How many goroutines are started between two reads of the clock.
const CLOCK: usize = 1_000;
/// Between two checks whether all are parked.
const LOOK: Duration = Duration::from_micros(200);

/// Counted by the goroutines themselves.
#[derive(Default)]
struct Counts {
    parked: AtomicUsize,
    woken: AtomicUsize,
}

struct Seen {
    parked: usize,
    /// Why there are fewer than wanted, if there are.
    refused: Option<io::Error>,
    park_time: Duration,
    memory_bytes: u64,
    threads: u64,
    wake_time: Duration,
}

pub(super) fn run(stage: &mut Stage) -> io::Result<()> {
    let runtime = Runtime::builder().name("million").build()?;
    let needs_mappings = runtime.metrics().stacks.guard == StackGuard::Mprotect;
    let mappings = machine::mappings_max().filter(|_| needs_mappings);
    let (wanted, why) = allowed(
        stage.size(GOROUTINES, GOROUTINES_QUICK),
        machine::memory_available(),
        mappings,
    );
    if let Some(why) = why {
        stage.note(why);
    } else if stage.is_quick {
        stage.note(format!("a quick look, at {} only.", grouped(wanted as u64)));
    }
    let counts = Arc::new(Counts::default());
    let for_work = Arc::clone(&counts);
    let seen = stage.watch(
        move || {
            let seen = runtime.run(|| measure(wanted, &for_work));
            drop(runtime);
            seen
        },
        || frame(wanted, &counts),
    )?;
    tell(stage, wanted, seen);
    Ok(())
}

/// How many of the wanted goroutines are possible, and why not more. Limits are the available
/// bytes, and the mappings that a process may have: every stack needs two.
fn allowed(wanted: usize, memory: Option<u64>, mappings: Option<u64>) -> (usize, Option<String>) {
    let by_memory = memory.map(|memory| {
        let n = (memory as f64 * SHARE) as u64 / BYTES_EXPECTED;
        (n, format!("{} of memory are available", bytes(memory)))
    });
    let by_mappings = mappings.map(|mappings| {
        let n = mappings.saturating_sub(MAPPINGS_LEFT) / 2;
        let max = grouped(mappings);
        (
            n,
            format!("a stack needs two mappings here, of {max} (vm.max_map_count)"),
        )
    });
    match by_memory.into_iter().chain(by_mappings).min() {
        Some((n, why)) if n < wanted as u64 => {
            let n = rounded_down(n.max(1));
            (n as usize, Some(format!("only {}: {why}", grouped(n))))
        }
        _ => (wanted, None),
    }
}

/// Rounds down to one significant digit.
fn rounded_down(n: u64) -> u64 {
    let unit = 10u64.pow(n.max(1).ilog10());
    n / unit * unit
}

fn measure(wanted: usize, counts: &Arc<Counts>) -> io::Result<Seen> {
    let before = machine::status()?;
    let start = Instant::now();
    let mut handles: Vec<JoinHandle<()>> = Vec::with_capacity(wanted);
    let mut refused = None;
    while handles.len() < wanted && refused.is_none() {
        if handles.len().is_multiple_of(CLOCK) && start.elapsed() > TIME_MAX {
            let slow = "starting more takes too long for a tour";
            refused = Some(io::Error::new(io::ErrorKind::TimedOut, slow));
            break;
        }
        let counts = Arc::clone(counts);
        match thread::Builder::new().spawn(move || wait_to_be_woken(&counts)) {
            Ok(handle) => handles.push(handle),
            Err(error) => refused = Some(error),
        }
    }
    wait_for_parked(counts, handles.len(), start + PARKED_MAX)?;
    let park_time = start.elapsed();
    let after = machine::status()?;
    let start = Instant::now();
    for handle in &handles {
        handle.thread().unpark();
    }
    let parked = handles.len();
    for handle in handles {
        if handle.join().is_err() {
            return Err(io::Error::other("a goroutine panicked"));
        }
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

/// Waits until `started` goroutines are parked; the error has the number of the others.
fn wait_for_parked(counts: &Counts, started: usize, until: Instant) -> io::Result<()> {
    loop {
        // ORDER: Acquire; pairs with Release in `wait_to_be_woken`.
        let parked = counts.parked.load(Acquire);
        if parked >= started {
            return Ok(());
        }
        if Instant::now() > until {
            let [parked, started] = [parked, started].map(|n| grouped(n as u64));
            let text = format!("only {parked} of {started} goroutines came to park");
            return Err(io::Error::other(text));
        }
        thread::sleep(LOOK);
    }
}

fn wait_to_be_woken(counts: &Counts) {
    // ORDER: Release; pairs with Acquire in `wait_for_parked`.
    counts.parked.fetch_add(1, Release);
    thread::park();
    counts.woken.fetch_add(1, Relaxed);
}

fn frame(wanted: usize, counts: &Counts) -> String {
    let woken = counts.woken.load(Relaxed);
    let waiting = counts.parked.load(Relaxed).saturating_sub(woken);
    let memory = machine::status().map_or(0, |status| status.memory_bytes);
    let doing = match woken {
        0 => "they start and park",
        _ if waiting > 0 => "they wake and end",
        _ => "their memory is given back",
    };
    format!(
        "{}\n{doing}; the process takes {}\n",
        cells(waiting, wanted),
        bytes(memory)
    )
}

/// A row of cells, each a fortieth of the goroutines, and the number that a cell means.
fn cells(waiting: usize, wanted: usize) -> String {
    let full = (waiting * CELLS).div_ceil(wanted.max(1)).min(CELLS);
    let each = format!("■ = {}", grouped(wanted.div_ceil(CELLS) as u64));
    format!(
        "{}{}  {}  {} waiting",
        paint(Ink::Bar, &"■".repeat(full)),
        paint(Ink::Faint, &"□".repeat(CELLS - full)),
        paint(Ink::Faint, &each),
        paint(Ink::Strong, &grouped(waiting as u64)),
    )
}

fn tell(stage: &mut Stage, wanted: usize, seen: Seen) {
    let n = seen.parked.max(1);
    let (park_each, wake_each) = (seen.park_time / n as u32, seen.wake_time / n as u32);
    let bytes_each = seen.memory_bytes / n as u64;
    stage.say(&format!(
        "{}\n\
         to start and park: {}, {} each, on {} threads\n\
         memory: {}, {} each, stacks and page tables included\n\
         to wake and end:   {}, {} each\n",
        cells(seen.parked, wanted),
        time(seen.park_time),
        paint(Ink::Strong, &time(park_each)),
        seen.threads,
        bytes(seen.memory_bytes),
        paint(Ink::Strong, &bytes(bytes_each)),
        time(seen.wake_time),
        paint(Ink::Strong, &time(wake_each)),
    ));
    stage.figure("goroutines", seen.parked as f64, "goroutines");
    stage.figure("park_time", park_each.as_nanos() as f64, "ns/goroutine");
    stage.figure("memory", bytes_each as f64, "bytes/goroutine");
    stage.figure("wake_time", wake_each.as_nanos() as f64, "ns/goroutine");
    stage.figure("threads", seen.threads as f64, "threads");
    if seen.park_time > TIME_MAX {
        let took = time(seen.park_time);
        stage.note(format!(
            "this machine is slow or busy: the start took {took}."
        ));
    }
    check(stage, wanted, seen.parked, seen.refused.as_ref());
}

/// Checks that there were as many as wanted, or as the machine had memory or time for.
fn check(stage: &mut Stage, wanted: usize, parked: usize, refused: Option<&io::Error>) {
    use io::ErrorKind::{OutOfMemory, TimedOut};
    let is_reason = |error: &io::Error| matches!(error.kind(), OutOfMemory | TimedOut);
    let why = refused.map_or("without a reason".into(), io::Error::to_string);
    let n = grouped(parked as u64);
    let is_explained = parked > 0 && refused.is_some_and(is_reason);
    if is_explained {
        stage.note(format!("no more than {n}: {why}"));
    }
    stage.check(parked == wanted || is_explained, || {
        format!("only {n} of {} goroutines: {why}", grouped(wanted as u64))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_mappings_bound_the_number() {
        assert_eq!(allowed(1_000_000, None, None), (1_000_000, None));
        assert_eq!(allowed(1_000_000, Some(13_000_000_000), None).0, 1_000_000);
        let (n, why) = allowed(1_000_000, Some(8 << 30), None);
        assert_eq!(n, 600_000);
        let why = why.expect("a reason");
        assert_eq!(why, "only 600,000: 8,192 MiB of memory are available");
        let (n, why) = allowed(1_000_000, Some(64 << 30), Some(65_530));
        assert_eq!(n, 30_000);
        assert!(why.is_some_and(|why| why.contains("65,530")));
        assert_eq!(allowed(2_000, Some(0), None).0, 1);
    }

    #[test]
    fn who_never_parks_is_not_waited_for_without_end() {
        let counts = Counts::default();
        counts.parked.store(1_999, Relaxed);
        assert!(wait_for_parked(&counts, 1_999, Instant::now()).is_ok());
        let error = wait_for_parked(&counts, 2_000, Instant::now() - LOOK).unwrap_err();
        let expected = "only 1,999 of 2,000 goroutines came to park";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_cell_is_full_when_anybody_is_in_it() {
        // One sign belongs to the legend.
        let full = |waiting| cells(waiting, 1_000).matches('■').count() - 1;
        assert_eq!(
            [full(0), full(1), full(25), full(26), full(1_000)],
            [0, 1, 1, 2, CELLS]
        );
    }
}
