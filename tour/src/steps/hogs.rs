//! Goroutines that compute and call nothing do not starve others: they are interrupted.
//!
//! The ticker sleeps a millisecond repeatedly. Its lateness is the time from its deadline until it
//! runs. Beside it run twice as many loops as there are Ps.

use std::hint::black_box;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gosched::thread;
use gosched::{Runtime, debug::Metrics};

use crate::chart::bar;
use crate::stage::Stage;
use crate::text::{Ink, grouped, large, ms, paint, quantile, time};

const PROCS: usize = 2;
const HOGS: usize = 4;
const TICK: Duration = Duration::from_millis(1);
const SPAN: Duration = Duration::from_millis(2_500);
const SPAN_QUICK: Duration = Duration::from_millis(600);
/// A ticker is starved if it ticks, on average, less than once in this time ...
const STARVED: Duration = Duration::from_millis(250);
/// ... and still does after this additional time: the machine may be busy with other work.
const PATIENCE: Duration = Duration::from_secs(3);
/// Upper bounds of the ranges of the histogram, in µs; the last range has none.
const EDGES_US: [u64; 6] = [50, 200, 1_000, 3_000, 10_000, 30_000];
const NAMES: [&str; 7] = ["50 µs", "200 µs", "1 ms", "3 ms", "10 ms", "30 ms", "more"];
const WIDTH: usize = 44;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    late: Mutex<Vec<Duration>>,
    /// The count of each loop.
    rounds: [AtomicU64; HOGS],
}

pub(super) fn run(stage: &mut Stage) -> io::Result<()> {
    let span = stage.size(SPAN, SPAN_QUICK);
    let runtime = Runtime::builder().procs(PROCS).name("hogs").build()?;
    let shared = Arc::new(Shared::default());
    let for_work = Arc::clone(&shared);
    let (metrics, took) =
        stage.watch(move || work(&runtime, &for_work, span), || frame(&shared))?;
    tell(stage, &shared, &metrics, took);
    stage.check(has_enough(&shared, span), || {
        let ticks = late(&shared).len();
        let loops = rounds(&shared).iter().filter(|n| **n > 0).count();
        let took = time(took);
        format!("the ticker was starved: {ticks} ticks in {took}, {loops} of {HOGS} loops ran")
    });
    Ok(())
}

/// Runs the loops and the ticker; also returns for how long.
fn work(
    runtime: &Runtime,
    shared: &Arc<Shared>,
    span: Duration,
) -> io::Result<(Metrics, Duration)> {
    let start = Instant::now();
    let mut goroutines = Vec::new();
    for i in 0..HOGS {
        let shared = Arc::clone(shared);
        goroutines.push(runtime.spawn(move || hog(&shared.stop, &shared.rounds[i])));
    }
    let for_ticker = Arc::clone(shared);
    goroutines.push(runtime.spawn(move || tick(&for_ticker)));
    std::thread::sleep(span);
    while !has_enough(shared, span) && start.elapsed() < span + PATIENCE {
        std::thread::sleep(TICK);
    }
    let took = start.elapsed();
    shared.stop.store(true, Relaxed);
    for goroutine in goroutines {
        if goroutine.join().is_err() {
            return Err(io::Error::other("a goroutine panicked"));
        }
    }
    Ok((runtime.metrics(), took))
}

/// Whether every loop has run, and the ticker often enough not to be starved.
fn has_enough(shared: &Shared, span: Duration) -> bool {
    let ticks = late(shared).len() as u128;
    ticks >= span.as_millis() / STARVED.as_millis() && rounds(shared).iter().all(|n| *n > 0)
}

/// The tight loop. It reads the flag rarely, and calls nothing.
#[inline(never)]
fn hog(stop: &AtomicBool, rounds: &AtomicU64) {
    const ROUNDS_PER_LOOK: u64 = 1_000;
    let mut count = 0;
    while !stop.load(Relaxed) {
        for _ in 0..ROUNDS_PER_LOOK {
            count = black_box(count + 1);
        }
        rounds.store(count, Relaxed);
    }
}

fn tick(shared: &Shared) {
    while !shared.stop.load(Relaxed) {
        let wanted = Instant::now() + TICK;
        thread::sleep(TICK);
        let late = wanted.elapsed();
        let mut all = shared.late.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(late);
    }
}

/// The lateness of all ticks so far, sorted.
fn late(shared: &Shared) -> Vec<Duration> {
    let mut late = shared
        .late
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    late.sort_unstable();
    late
}

fn rounds(shared: &Shared) -> Vec<u64> {
    shared
        .rounds
        .iter()
        .map(|rounds| rounds.load(Relaxed))
        .collect()
}

fn frame(shared: &Shared) -> String {
    let late = late(shared);
    let total: u64 = rounds(shared).iter().sum();
    format!(
        "{}{} ticks; {HOGS} loops have made {} rounds\n",
        histogram(&late),
        grouped(late.len() as u64),
        large(total as f64),
    )
}

/// A bar for each range of lateness.
fn histogram(late: &[Duration]) -> String {
    let mut counts = [0u32; NAMES.len()];
    for late in late {
        let us = late.as_micros() as u64;
        counts[EDGES_US.partition_point(|edge| *edge < us)] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(0);
    let mut text = String::new();
    for (i, (name, count)) in NAMES.iter().zip(counts).enumerate() {
        let what = match i {
            0 => "late up to",
            _ => "",
        };
        let bar = paint(Ink::Bar, &bar(count.into(), most.into(), WIDTH));
        text += &format!("{what:>10} {name:>6} │{bar}│ {count}\n");
    }
    text
}

fn tell(stage: &mut Stage, shared: &Shared, metrics: &Metrics, took: Duration) {
    let (late, rounds) = (late(shared), rounds(shared));
    let quantile = |q| quantile(&late, q);
    let least = rounds.iter().copied().min().unwrap_or(0);
    let most = rounds.iter().copied().max().unwrap_or(0).max(1);
    let share = least as f64 / most as f64;
    // The loops call nothing, so only they are preempted by a signal.
    let interruptions = metrics.threads_held_by_preempted;
    stage.say(&format!(
        "{}{} ticks in {}, beside {HOGS} endless loops on {PROCS} Ps: half of them less\n\
         than {} late, 99 % less than {}. The loops were interrupted\n\
         {} times; the slowest loop counted {:.0} % of what the fastest counted.\n",
        histogram(&late),
        paint(Ink::Strong, &grouped(late.len() as u64)),
        time(took),
        paint(Ink::Strong, &time(quantile(0.5))),
        paint(Ink::Strong, &time(quantile(0.99))),
        grouped(interruptions),
        share * 100.0,
    ));
    stage.figure("ticks", late.len() as f64, "ticks");
    stage.figure("late_p50", ms(quantile(0.5)), "ms");
    stage.figure("late_p99", ms(quantile(0.99)), "ms");
    stage.figure("late_max", ms(quantile(1.0)), "ms");
    stage.figure("interruptions", interruptions as f64, "times");
    stage.figure("least_to_most", share, "ratio");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tick_is_counted_once() {
        let late = [0, 50, 51, 200, 30_000, 30_001, 9_999_999].map(Duration::from_micros);
        let text = histogram(&late);
        let counts: Vec<_> = text
            .lines()
            .filter_map(|line| line.split(' ').next_back())
            .collect();
        assert_eq!(counts, ["2", "2", "0", "0", "0", "1", "2"], "{text}");
    }
}
