//! An unmarked call that blocks its thread does not block the P: another thread takes the P.
//!
//! Two goroutines count, one for each P. After a while a hundred others call `std::thread::sleep`,
//! which knows nothing of goroutines. If each sleeper kept its P, only two could sleep at a time,
//! and neither counter would run meanwhile.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use gosched::Runtime;
use gosched::thread::JoinHandle;

use crate::chart::{Timeline, levels};
use crate::machine;
use crate::stage::Stage;
use crate::text::{Ink, large, ms, paint, time};

const PROCS: usize = 2;
const SLEEPERS: usize = 100;
const SLEEP: Duration = Duration::from_millis(1_200);
const SLEEP_QUICK: Duration = Duration::from_millis(300);
/// How long the counters run alone at first.
const ALONE: Duration = Duration::from_millis(400);
const ALONE_QUICK: Duration = Duration::from_millis(50);
/// How much longer the sleepers may take on a busy machine. Even with it a sleep of either size
/// takes far less than with blocked Ps.
const PATIENCE: Duration = Duration::from_secs(10);
/// The least rate of counting beside the sleepers, as a share of the rate before.
const SHARE: f64 = 0.1;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    counted: [AtomicU64; PROCS],
    asleep: AtomicU64,
}

impl Shared {
    fn counted(&self) -> u64 {
        self.counted.iter().map(|count| count.load(Relaxed)).sum()
    }
}

struct Seen {
    /// From the first sleeper's start to the last one's end.
    took: Duration,
    /// Counts per second, before the sleepers and beside them.
    alone: f64,
    beside: f64,
    /// The same after them, if it was slow beside them: the machine may have become busy.
    after: Option<f64>,
    /// Ps that were taken from a blocked thread.
    claimed: u64,
    threads: u64,
}

pub(super) fn run(stage: &mut Stage) -> io::Result<()> {
    let (alone, sleep) = (
        stage.size(ALONE, ALONE_QUICK),
        stage.size(SLEEP, SLEEP_QUICK),
    );
    let runtime = Runtime::builder().procs(PROCS).name("sleep").build()?;
    let shared = Arc::new(Shared::default());
    let for_work = Arc::clone(&shared);
    let mut timeline = Timeline::new(Duration::from_millis(30));
    let seen = stage.watch(
        move || measure(&runtime, &for_work, alone, sleep),
        || {
            timeline.look(|| (shared.asleep.load(Relaxed), shared.counted()));
            let (now, counted) = (shared.asleep.load(Relaxed), shared.counted());
            let counted = large(counted as f64);
            format!(
                "{}{now} asleep; counted to {counted}\n",
                picture(&timeline, false)
            )
        },
    )?;
    tell(stage, &timeline, sleep, &seen);
    Ok(())
}

fn measure(
    runtime: &Runtime,
    shared: &Arc<Shared>,
    alone: Duration,
    sleep: Duration,
) -> io::Result<Seen> {
    let counters: Vec<_> = (0..PROCS)
        .map(|i| {
            let shared = Arc::clone(shared);
            runtime.spawn(move || count(&shared.stop, &shared.counted[i]))
        })
        .collect();
    let rate = |before: u64, start: Instant| {
        (shared.counted() - before) as f64 / start.elapsed().as_secs_f64()
    };
    let rate_alone = || {
        let (before, start) = (shared.counted(), Instant::now());
        std::thread::sleep(alone);
        rate(before, start)
    };
    let alone = rate_alone();

    let (before, start) = (shared.counted(), Instant::now());
    let sleepers: Vec<_> = (0..SLEEPERS)
        .map(|_| {
            let shared = Arc::clone(shared);
            runtime.spawn(move || {
                shared.asleep.fetch_add(1, Relaxed);
                std::thread::sleep(sleep);
                shared.asleep.fetch_sub(1, Relaxed);
            })
        })
        .collect();
    std::thread::sleep(sleep / 2);
    let threads = machine::status()?.threads;
    join(sleepers)?;
    let (took, beside) = (start.elapsed(), rate(before, start));
    let after = (beside < alone * SHARE).then(rate_alone);
    shared.stop.store(true, Relaxed);
    join(counters)?;
    Ok(Seen {
        took,
        alone,
        beside,
        after,
        claimed: runtime.metrics().claimed,
        threads,
    })
}

fn join(handles: Vec<JoinHandle<()>>) -> io::Result<()> {
    for handle in handles {
        if handle.join().is_err() {
            return Err(io::Error::other("a goroutine panicked"));
        }
    }
    Ok(())
}

fn count(stop: &AtomicBool, counted: &AtomicU64) {
    const COUNTS_PER_LOOK: u64 = 1_000;
    let mut count = 0;
    while !stop.load(Relaxed) {
        for _ in 0..COUNTS_PER_LOOK {
            count = black_box(count + 1);
        }
        counted.store(count, Relaxed);
    }
}

fn picture(timeline: &Timeline<(u64, u64)>, is_over: bool) -> String {
    let asleep = timeline.seen().map(|(asleep, _)| *asleep);
    let asleep = levels(asleep, SLEEPERS as u64);
    let rates = timeline.rates(|(_, counted)| *counted);
    let most = rates.iter().copied().max().unwrap_or(0);
    format!(
        "asleep   │{}│\ncounting │{}│\n",
        paint(Ink::Warm, &timeline.line(&asleep, is_over)),
        paint(Ink::Bar, &timeline.line(&levels(rates, most), is_over)),
    )
}

fn tell(stage: &mut Stage, timeline: &Timeline<(u64, u64)>, sleep: Duration, seen: &Seen) {
    let blocked = sleep * (SLEEPERS / PROCS) as u32;
    stage.say(&format!(
        "{}         │{}│\n\
         Height: how many goroutines sleep; how fast two others count.\n\
         {SLEEPERS} sleeps of {} took {} together; with blocked Ps: {}.\n\
         The others' counts per second: {} before, {} meanwhile.\n\
         {} times a P was taken from a sleeping thread; there were {} threads.\n",
        picture(timeline, true),
        timeline.axis(),
        time(sleep),
        paint(Ink::Strong, &time(seen.took)),
        time(blocked),
        large(seen.alone),
        paint(Ink::Strong, &large(seen.beside)),
        seen.claimed,
        seen.threads,
    ));
    stage.figure("sleepers", SLEEPERS as f64, "goroutines");
    stage.figure("sleep", ms(sleep), "ms");
    stage.figure("time", ms(seen.took), "ms");
    stage.figure("counting_before", seen.alone, "counts/s");
    stage.figure("counting_meanwhile", seen.beside, "counts/s");
    stage.figure("ps_taken", seen.claimed as f64, "times");
    stage.figure("threads", seen.threads as f64, "threads");
    check(stage, sleep, seen);
}

fn check(stage: &mut Stage, sleep: Duration, seen: &Seen) {
    let most = 5 * sleep + PATIENCE;
    stage.check(seen.took < most, || {
        let [took, most] = [seen.took, most].map(time);
        format!("the sleepers blocked the Ps: they took {took}, more than {most}")
    });
    let alone = seen.after.map_or(seen.alone, |after| seen.alone.min(after));
    let has_counted = seen.beside > 0.0 && seen.beside >= alone * SHARE;
    stage.check(has_counted, || {
        let [beside, alone] = [seen.beside, alone].map(large);
        format!(
            "the counters were slowed down: {beside} counts per second meanwhile, {alone} alone"
        )
    });
}
