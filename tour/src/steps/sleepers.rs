//! 10,000 goroutines sleep for times of their own; few threads serve them all.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use gosched::thread;

use crate::proc;
use crate::text::{bar, grouped, time};

const GOROUTINES: u32 = 10_000;
const LONGEST: Duration = Duration::from_millis(1_500);
const BUCKETS: usize = 6;

pub(super) fn run(out: &mut dyn Write) -> io::Result<()> {
    let start = Instant::now();
    let (mut woken, threads) = gosched::run(|| {
        let handles: Vec<_> = (1..=GOROUTINES)
            .map(|i| thread::spawn(move || sleep(LONGEST * i / GOROUTINES)))
            .collect();
        let threads = proc::status().map(|status| status.threads);
        (
            handles
                .into_iter()
                .flat_map(thread::JoinHandle::join)
                .collect::<Vec<_>>(),
            threads,
        )
    });
    let total: Duration = woken.iter().map(|woken| woken.asked).sum();
    writeln!(
        out,
        "    {} sleeps of {} s together took {:.2} s, on {} threads in all",
        grouped(woken.len() as u64),
        grouped(total.as_secs()),
        start.elapsed().as_secs_f64(),
        threads?
    )?;
    let mut buckets = [0; BUCKETS];
    for woken in &woken {
        let after = woken.asked + woken.late;
        let bucket = after.as_nanos() * BUCKETS as u128 / LONGEST.as_nanos();
        buckets[(bucket as usize).min(BUCKETS - 1)] += 1;
    }
    let most = buckets.iter().copied().max().unwrap_or(0);
    for (i, &count) in buckets.iter().enumerate() {
        let until = LONGEST * (i as u32 + 1) / BUCKETS as u32;
        writeln!(
            out,
            "    woken up to {:>5} ms |{}| {count}",
            until.as_millis(),
            bar(count, most, 30)
        )?;
    }
    woken.sort_by_key(|woken| woken.late);
    let late = |percent: usize| {
        woken
            .get((woken.len() - 1) * percent / 100)
            .map(|w| time(w.late))
    };
    writeln!(
        out,
        "    lateness: half under {}, 99 % under {}, the worst {}",
        late(50).unwrap_or_default(),
        late(99).unwrap_or_default(),
        late(100).unwrap_or_default()
    )
}

struct Woken {
    asked: Duration,
    late: Duration,
}

fn sleep(asked: Duration) -> Woken {
    let start = Instant::now();
    thread::sleep(asked);
    Woken {
        asked,
        late: start.elapsed().saturating_sub(asked),
    }
}
