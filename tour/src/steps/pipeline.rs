//! Stages joined by channels: a source, four goroutines that square, a sink that selects from two
//! channels and a timeout.
//!
//! Halfway the source pauses for longer than the sink's timeout, so that the timeout's arm is
//! taken. At the end every stage sees its sender disconnect, and the sink's sum is compared with
//! the source's.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gosched::chan::{Receiver, Sender, bounded, never, select};
use gosched::{Runtime, go, thread};

use crate::chart::{Timeline, bar, levels};
use crate::stage::Stage;
use crate::text::{Ink, grouped, large, paint};

const SQUARERS: usize = 4;
const CAPACITY: usize = 128;
const SPAN: Duration = Duration::from_millis(1_600);
const SPAN_QUICK: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(200);
/// How long the sink waits for either channel.
const PATIENCE: Duration = Duration::from_millis(40);
/// How many messages the source sends between two reads of the clock.
const LOOK: u64 = 256;
const WIDTH: usize = 8;

/// Receivers through which the picture reads the lengths of the channels.
struct Queues {
    numbers: Receiver<u64>,
    even: Receiver<u64>,
    odd: Receiver<u64>,
}

/// One sample.
#[derive(Clone, Copy)]
struct Moment {
    arrived: u64,
    waiting: [usize; 3],
}

/// The result of the sink.
#[derive(Default)]
struct Sum {
    even: u64,
    odd: u64,
    sum: u64,
    timeouts: u64,
}

pub(super) fn run(stage: &mut Stage) -> io::Result<()> {
    let span = stage.size(SPAN, SPAN_QUICK);
    let runtime = Runtime::builder().name("pipeline").build()?;
    let (numbers, to_square) = bounded(CAPACITY);
    let (even, evens) = bounded(CAPACITY);
    let (odd, odds) = bounded(CAPACITY);
    let queues = Queues {
        numbers: to_square.clone(),
        even: evens.clone(),
        odd: odds.clone(),
    };
    let arrived = Arc::new(AtomicU64::new(0));
    let (for_sink, timeouts) = (Arc::clone(&arrived), Arc::new(AtomicU64::new(0)));
    let work = move || {
        let start = Instant::now();
        let (sent, sum) = runtime.run(move || {
            let seen = Arc::clone(&timeouts);
            let source = thread::spawn(move || source(&numbers, span, &seen));
            for _ in 0..SQUARERS {
                let (to_square, even, odd) = (to_square.clone(), even.clone(), odd.clone());
                go(move || square(&to_square, &even, &odd));
            }
            drop((to_square, even, odd));
            let sum = sink(evens, odds, &for_sink, &timeouts);
            (source.join(), sum)
        });
        let sent = sent.map_err(|_| io::Error::other("the source panicked"))?;
        Ok((sent, sum, start.elapsed()))
    };
    let mut timeline = Timeline::new(Duration::from_millis(35));
    let (sent, sum, took) = stage.watch(work, || {
        timeline.look(|| look(&arrived, &queues));
        let now = look(&arrived, &queues);
        let waiting = now.waiting.map(|n| n as f64);
        format!(
            "{}{} messages\n",
            picture(&timeline, waiting, false),
            grouped(now.arrived)
        )
    })?;
    tell(stage, &timeline, sent, &sum, took);
    Ok(())
}

/// Sends numbers for a while, with a pause in the middle in which the sink's timeout passes. Returns
/// how many, and the sum of their squares.
fn source(numbers: &Sender<u64>, span: Duration, timeouts: &AtomicU64) -> (u64, u64) {
    let (start, mut sum, mut n, mut has_paused) = (Instant::now(), 0u64, 0u64, false);
    loop {
        if n.is_multiple_of(LOOK) {
            let now = start.elapsed();
            if now >= span / 2 && !has_paused {
                thread::sleep(PAUSE);
                // A machine that stood still has let no timeout pass.
                while timeouts.load(Relaxed) == 0 && start.elapsed() < span + 50 * PAUSE {
                    thread::sleep(PAUSE);
                }
                has_paused = true;
            } else if now >= span + PAUSE {
                return (n, sum);
            }
        }
        if numbers.send(n).is_err() {
            return (n, sum);
        }
        sum = sum.wrapping_add(n.wrapping_mul(n));
        n += 1;
    }
}

fn square(numbers: &Receiver<u64>, even: &Sender<u64>, odd: &Sender<u64>) {
    for n in numbers {
        let to = if n % 2 == 0 { even } else { odd };
        if to.send(n.wrapping_mul(n)).is_err() {
            return;
        }
    }
}

fn sink(
    mut even: Receiver<u64>,
    mut odd: Receiver<u64>,
    arrived: &AtomicU64,
    timeouts: &AtomicU64,
) -> Sum {
    let (mut sum, mut open) = (Sum::default(), 2);
    while open > 0 {
        select! {
            recv(even) -> square => match square {
                Ok(square) => {
                    sum.even += 1;
                    sum.sum = sum.sum.wrapping_add(square);
                }
                Err(_) => (even, open) = (never(), open - 1),
            },
            recv(odd) -> square => match square {
                Ok(square) => {
                    sum.odd += 1;
                    sum.sum = sum.sum.wrapping_add(square);
                }
                Err(_) => (odd, open) = (never(), open - 1),
            },
            default(PATIENCE) => sum.timeouts += 1,
        }
        timeouts.store(sum.timeouts, Relaxed);
        arrived.store(sum.even + sum.odd, Relaxed);
    }
    sum
}

fn look(arrived: &AtomicU64, queues: &Queues) -> Moment {
    Moment {
        arrived: arrived.load(Relaxed),
        waiting: [queues.numbers.len(), queues.even.len(), queues.odd.len()],
    }
}

/// The stages with the messages between them, and how many messages arrived over time.
fn picture(timeline: &Timeline<Moment>, waiting: [f64; 3], is_over: bool) -> String {
    let queue = |n: f64| format!("[{}]", paint(Ink::Bar, &bar(n, CAPACITY as f64, WIDTH)));
    let [numbers, even, odd] = waiting.map(queue);
    let rates = timeline.rates(|moment| moment.arrived);
    let most = rates.iter().copied().max().unwrap_or(0);
    format!(
        "{:35}┌─▶ {even} even ─┐\n\
         source ─▶ {numbers} ─▶ square ×{SQUARERS} ─┤                    ├─▶ select! ─▶ sum\n\
         {:35}└─▶ {odd} odd  ─┘\n\
         arrived │{}│\n",
        "",
        "",
        paint(Ink::Good, &timeline.line(&levels(rates, most), is_over)),
    )
}

/// How many messages were waiting, on average.
fn mean_waiting(timeline: &Timeline<Moment>) -> [f64; 3] {
    let looks = timeline.seen().count().max(1) as f64;
    let mut mean = [0.0; 3];
    for moment in timeline.seen() {
        for (mean, waiting) in mean.iter_mut().zip(moment.waiting) {
            *mean += waiting as f64 / looks;
        }
    }
    mean
}

fn tell(
    stage: &mut Stage,
    timeline: &Timeline<Moment>,
    (sent, expected): (u64, u64),
    sum: &Sum,
    took: Duration,
) {
    let arrived = sum.even + sum.odd;
    let rate = arrived as f64 / took.as_secs_f64();
    let is_right = sent == arrived && sum.sum == expected;
    let verdict = match is_right {
        true => paint(Ink::Good, "the sum is right"),
        false => paint(Ink::Bad, "the sum is wrong"),
    };
    stage.say(&format!(
        "{}        │{}│\n\
         {} messages arrived, {} per second; {verdict}.\n\
         The gap: the source paused, and select! took its timeout {} times.\n\
         The bars show how full each channel was on average.\n",
        picture(timeline, mean_waiting(timeline), true),
        timeline.axis(),
        grouped(arrived),
        paint(Ink::Strong, &large(rate)),
        paint(Ink::Strong, &sum.timeouts.to_string()),
    ));
    stage.figure("messages", arrived as f64, "messages");
    stage.figure("rate", rate, "messages/s");
    stage.figure("timeouts", sum.timeouts as f64, "times");
    stage.check(is_right, || {
        format!(
            "{sent} messages were sent, {arrived} arrived; sums {expected} and {}",
            sum.sum
        )
    });
    stage.check(sum.timeouts > 0, || {
        "the timeout's arm was never taken".into()
    });
}
