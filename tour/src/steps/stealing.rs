//! Work on one P's queue spreads to the others: a P without work steals half of another's queue.
//!
//! All jobs start on one of four Ps, while goroutines that compute hold the other three, each a bit
//! longer than the one before. When one of the three becomes free, its own queue is empty.
//! Preemption is off in this runtime, so that the Ps stay held.
//!
//! The picture shows the runtime's counters at each sample: the length of every queue, and whether
//! a P is still in the same time slice as at the last sample.

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gosched::Runtime;
use gosched::debug::{Metrics, ProcStatus};

use crate::chart::{Timeline, level};
use crate::machine;
use crate::stage::Stage;
use crate::text::{Ink, ms, paint, plural};

const PROCS: usize = 4;
/// All of them fit into one P's queue, so the others get theirs only by stealing.
const JOBS: usize = 240;
/// The length of a job on a CPU of its own.
const JOB: Duration = Duration::from_millis(5);
const JOB_QUICK: Duration = Duration::from_millis(1);
/// How much longer each of the other Ps is held than the one before.
const HELD: Duration = Duration::from_millis(160);
const HELD_QUICK: Duration = Duration::from_millis(20);
/// A goroutine that has not run this long after the start never will.
const PATIENCE: Duration = Duration::from_secs(30);

/// One sample of a P.
#[derive(Clone, Copy, Default)]
struct Queue {
    waiting: u64,
    ticks: u32,
    is_running: bool,
}

type Queues = [Queue; PROCS];

pub(super) fn run(stage: &mut Stage) -> io::Result<()> {
    let (held, rounds) = (
        stage.size(HELD, HELD_QUICK),
        rounds_for(stage.size(JOB, JOB_QUICK)),
    );
    let runtime = Runtime::builder()
        .procs(PROCS)
        .preemption(false)
        .name("stealing")
        .build()?;
    let done = Arc::new(AtomicUsize::new(0));
    let before = Arc::new(OnceLock::new());
    let counts = runtime.handle();
    let mut timeline = Timeline::new(stage.size(Duration::from_millis(24), Duration::ZERO));
    let (for_jobs, for_feed) = (Arc::clone(&done), Arc::clone(&before));
    let work = move || {
        let start = Instant::now();
        runtime.go(move || feed(&for_jobs, &for_feed, held, rounds));
        let busy = wait_for_all(&runtime, start)?;
        Ok((start.elapsed(), busy))
    };
    let (took, end) = stage.watch(work, || {
        // An error means that the runtime has ended.
        if let Ok(metrics) = counts.metrics() {
            timeline.look(|| queues(&metrics));
        }
        // ORDER: Acquire; pairs with Release in `feed`.
        let jobs = done.load(Acquire);
        format!("{}{jobs} of {JOBS} jobs done\n", picture(&timeline, None))
    })?;
    timeline.add(queues(&end));
    let before = before.get().ok_or(io::Error::other("no job began"))?;
    tell(stage, &timeline, took, &Stolen::between(before, &end));
    stage.check(done.load(Acquire) == JOBS, || "some jobs were lost".into());
    Ok(())
}

/// What was stolen while there were jobs.
struct Stolen {
    steals: u64,
    moved: u64,
    /// The steals of each P.
    by_p: [u64; PROCS],
}

impl Stolen {
    /// The difference of two readings. The first is right before the jobs, because the goroutines
    /// that hold the Ps were stolen too.
    fn between(before: &Metrics, end: &Metrics) -> Stolen {
        let mut by_p = [0; PROCS];
        let looks = end.per_proc.iter().zip(&before.per_proc);
        for (steals, (end, before)) in by_p.iter_mut().zip(looks) {
            *steals = end.steals - before.steals;
        }
        Stolen {
            steals: end.steals - before.steals,
            moved: end.stolen - before.stolen,
            by_p,
        }
    }

    fn thieves(&self) -> usize {
        self.by_p.iter().filter(|steals| **steals > 0).count()
    }
}

/// The main goroutine: starts goroutines that hold the other Ps, and starts all jobs on its own.
fn feed(done: &Arc<AtomicUsize>, before: &OnceLock<Metrics>, held: Duration, rounds: u64) {
    let holding = Arc::new(AtomicUsize::new(0));
    for i in 1..PROCS as u32 {
        let holding = Arc::clone(&holding);
        gosched::go(move || hold(&holding, held * i));
    }
    // It keeps its own P meanwhile, so that each of the others takes one. On one CPU the system
    // gives each thread a turn.
    let start = Instant::now();
    // ORDER: Acquire; pairs with Release in `hold`.
    while holding.load(Acquire) < PROCS - 1 && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    before.get_or_init(gosched::debug::metrics);
    for _ in 0..JOBS {
        let done = Arc::clone(done);
        gosched::go(move || {
            compute(rounds);
            // ORDER: Release; pairs with Acquire in `run`.
            done.fetch_add(1, Release);
        });
    }
}

fn hold(holding: &AtomicUsize, span: Duration) {
    let start = Instant::now();
    // ORDER: Release; pairs with Acquire in `feed`.
    holding.fetch_add(1, Release);
    while start.elapsed() < span {
        std::hint::spin_loop();
    }
}

/// Waits on a plain thread until no goroutine is left; returns the counters at that moment.
fn wait_for_all(runtime: &Runtime, start: Instant) -> io::Result<Metrics> {
    loop {
        let metrics = runtime.metrics();
        if metrics.ends == metrics.spawns && metrics.goroutines == 0 {
            return Ok(metrics);
        }
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other("the jobs did not end"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A number of rounds that takes about `span` on a CPU of its own.
fn rounds_for(span: Duration) -> u64 {
    const ROUNDS: u64 = 20_000;
    let fastest = (0..20).map(|_| {
        let start = Instant::now();
        compute(ROUNDS);
        start.elapsed()
    });
    let fastest = fastest.min().unwrap_or(span).as_nanos().max(1) as f64;
    (ROUNDS as f64 * span.as_nanos() as f64 / fastest) as u64
}

/// Work that the compiler cannot leave out.
fn compute(rounds: u64) {
    let mut x = 1u64;
    for _ in 0..rounds {
        x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

fn queues(metrics: &Metrics) -> Queues {
    let mut queues = Queues::default();
    for (queue, p) in queues.iter_mut().zip(&metrics.per_proc) {
        *queue = Queue {
            waiting: (p.queued + usize::from(p.has_next)) as u64,
            ticks: p.ticks,
            is_running: p.status == ProcStatus::Running,
        };
    }
    queues
}

/// A line for each P: how many jobs wait there, and at the end also how often it stole.
fn picture(timeline: &Timeline<Queues>, stolen: Option<&Stolen>) -> String {
    let mut text = String::new();
    for p in 0..PROCS {
        let mut signs = Vec::new();
        let mut before: Option<Queue> = None;
        for queue in timeline.seen().map(|queues| queues[p]) {
            let is_same = before.is_some_and(|before| before.ticks == queue.ticks);
            signs.push(match queue.is_running && queue.waiting == 0 && is_same {
                true => '▒',
                false => level(queue.waiting, JOBS as u64),
            });
            before = Some(queue);
        }
        let last = match stolen.map(|stolen| stolen.by_p[p]) {
            Some(steals) => format!("{steals:>2} steal{}", plural(steals)),
            None => format!("{:>3} wait", before.unwrap_or_default().waiting),
        };
        let line = paint(Ink::Nth(p), &timeline.line(&signs, stolen.is_some()));
        text += &format!("P{p} │{line}│ {last}\n");
    }
    text
}

fn tell(stage: &mut Stage, timeline: &Timeline<Queues>, took: Duration, stolen: &Stolen) {
    let more_than_once = match stolen.moved > JOBS as u64 {
        true => ", some more than once",
        false => "",
    };
    stage.say(&format!(
        "{}   │{}│\n\
         Height: jobs in the queue; · none; ▒ one goroutine holds the P.\n\
         {JOBS} jobs began in one queue, while the other {} Ps were held. {} steal{}\n\
         moved {} of them{more_than_once}. {PROCS} Ps shared {}.\n",
        picture(timeline, Some(stolen)),
        timeline.axis(),
        PROCS - 1,
        paint(Ink::Strong, &stolen.steals.to_string()),
        plural(stolen.steals),
        paint(Ink::Strong, &stolen.moved.to_string()),
        machine::cpus_in_words(),
    ));
    let thieves = stolen.thieves();
    stage.figure("jobs", JOBS as f64, "jobs");
    stage.figure("steals", stolen.steals as f64, "times");
    stage.figure("stolen", stolen.moved as f64, "goroutines");
    stage.figure("thieves", thieves as f64, "Ps");
    stage.figure("time", ms(took), "ms");
    if machine::cpus() == 1 {
        stage.note("on 1 CPU the Ps take turns: work spreads, but ends no sooner.".into());
    }
    if (1..PROCS - 1).contains(&thieves) {
        let why = "the jobs were done before the others ran";
        stage.note(format!("only {thieves} of {PROCS} Ps stole: {why}."));
    }
    stage.check(thieves > 0 && stolen.moved > 0, || {
        let (steals, moved) = (stolen.steals, stolen.moved);
        format!("the jobs did not spread: {steals} steals by {thieves} Ps moved {moved} of {JOBS}")
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_p_is_held_while_its_slice_goes_on() {
        let mut timeline = Timeline::new(Duration::ZERO);
        let queue = |waiting, ticks| Queue {
            waiting,
            ticks,
            is_running: true,
        };
        for ticks in [1, 1, 2] {
            timeline.look(|| {
                [
                    queue(0, ticks),
                    queue(120, 5),
                    queue(240, ticks),
                    Queue::default(),
                ]
            });
        }
        let text = picture(&timeline, None);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].contains("·▒· "), "{text}");
        assert!(lines[1].contains("▄▄▄ "), "{text}");
        assert!(
            lines[2].contains("███ ") && lines[2].ends_with("240 wait"),
            "{text}"
        );
        assert!(lines[3].contains("··· "), "{text}");
    }
}
