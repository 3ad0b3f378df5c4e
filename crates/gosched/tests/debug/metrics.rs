//! Metrics: counters and gauges agree with what the program did.

use std::time::{Duration, Instant};

use crate::common::{dump_when_waiting, named, until};
use gosched::{debug, thread};

#[gosched::test(procs = 2)]
fn metrics_count_what_happens() {
    let before = debug::metrics();
    assert_eq!((before.procs, before.goroutines, before.running), (2, 1, 1));
    let waiters: Vec<_> = (0..10).map(|_| thread::spawn(thread::park)).collect();
    let started = Instant::now();
    // A goroutine on its way from a queue to its thread counts as waiting, too: only its park
    // tells.
    let during = loop {
        let now = debug::metrics();
        if now.waiting == 10 && now.park_count - before.park_count >= 10 {
            break now;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{now}");
        thread::yield_now();
    };
    assert_eq!(during.goroutines, 11);
    assert_eq!(during.spawns - before.spawns, 10);
    assert!(during.yields >= before.yields);
    assert!(during.running <= during.procs);
    waiters.iter().for_each(|w| w.thread().unpark());
    waiters
        .into_iter()
        .for_each(|w| w.join().expect("no panic"));
    // A join is answered a few steps before the goroutine has ended.
    let mut after = debug::metrics();
    until(|| {
        after = debug::metrics();
        (after.ends - before.ends, after.goroutines) == (10, 1)
    });
    assert!(after.readies - before.readies >= 10, "{after}");
    assert_eq!(after.rescues, 0);
    assert_eq!(after.per_proc.len(), 2);
    assert!(after.per_proc.iter().map(|p| p.ticks).sum::<u32>() > 0);
    assert!(after.threads >= 1 && after.stacks.in_use >= 1);
    assert!(after.stacks.mapped_bytes > 0);
}

#[gosched::test]
fn metrics_print_as_a_table() {
    let text = debug::metrics().to_string();
    let word = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let words: Vec<_> = text.lines().filter_map(word).collect();
    for expected in [
        "procs",
        "threads",
        "goroutines",
        "stacks",
        "spawns",
        "rescues",
        "P",
        "0",
    ] {
        assert!(
            words.iter().any(|w| w == expected),
            "no {expected:?} in\n{text}"
        );
    }
}

#[gosched::test]
fn timers_are_counted() {
    let sleeper = named("sleeper", || thread::sleep(Duration::from_secs(60)));
    dump_when_waiting("sleeper", "sleep");
    assert_eq!(debug::metrics().timers, 1);
    drop(sleeper);
}
