//! Two goroutines wait for each other; the runtime detects it, and reports which waits for what.

use std::io;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use gosched::sync::{Barrier, Mutex};
use gosched::{Deadlock, Runtime, thread};

use crate::stage::Stage;
use crate::text::{Ink, ms, paint, time};

/// How long the report may take before the step fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many lines of the report are shown at most.
const LINES: usize = 14;
const WIDTH: usize = 75;

pub(super) fn run(stage: &mut Stage) -> io::Result<()> {
    let (tx, rx) = mpsc::channel();
    // Without a hook the report goes to stderr and the process exits with status 2, as in Go.
    let runtime = Runtime::builder()
        .name("deadlock")
        .deadlock(Deadlock::Closed)
        .on_deadlock(move |report| {
            // The tour may have stopped waiting.
            let _ = tx.send(report.to_string());
        })
        .build()?;
    let work = move || {
        let begin = Instant::now();
        runtime.go(embrace);
        let report = rx.recv_timeout(PATIENCE);
        let took = begin.elapsed();
        runtime.shutdown(Duration::from_secs(1));
        let report = report.map_err(|_| io::Error::other("the deadlock was not reported"))?;
        Ok((report, took))
    };
    let (report, took) = stage.watch(work, || "two goroutines, two locks ...\n".into())?;
    tell(stage, &report, took);
    Ok(())
}

/// Starts two goroutines that each hold one lock and wait for the other's.
fn embrace() {
    let forks = [Arc::new(Mutex::new(())), Arc::new(Mutex::new(()))];
    let both_have_one = Arc::new(Barrier::new(2));
    for (i, name) in ["left", "right"].into_iter().enumerate() {
        let (mine, other) = (Arc::clone(&forks[i]), Arc::clone(&forks[1 - i]));
        let both_have_one = Arc::clone(&both_have_one);
        let dine = move || {
            let _mine = mine.lock();
            both_have_one.wait();
            let _other = other.lock();
        };
        if let Err(error) = thread::Builder::new().name(name.into()).spawn(dine) {
            panic!("cannot start a goroutine: {error}");
        }
    }
}

fn tell(stage: &mut Stage, report: &str, took: Duration) {
    let waits = waits(report);
    let circle = circle(&waits);
    stage.say(&format!(
        "{}    {}\n\
         Reported {} after the start, with all stacks. The report without these:\n{}",
        circle.join(&paint(Ink::Warm, " ──▶ ")),
        paint(Ink::Faint, "──▶ waits for a lock held by"),
        paint(Ink::Strong, &time(took)),
        without_stacks(report),
    ));
    stage.figure("reported_after", ms(took), "ms");
    stage.figure("goroutines", waits.len() as f64, "goroutines");
    let is_whole = circle.len() == 3 && circle.first() == circle.last();
    stage.check(is_whole, || "the report does not show the circle".into());
}

/// A goroutine of the report: its id, its name, and the id of the goroutine that holds its lock.
#[derive(Debug, PartialEq)]
struct Wait<'a> {
    id: u64,
    name: &'a str,
    holder: Option<u64>,
}

/// Which goroutine waits for which, from the report.
fn waits(report: &str) -> Vec<Wait<'_>> {
    let mut waits: Vec<Wait> = Vec::new();
    for line in report.lines() {
        if let Some(rest) = line.strip_prefix("goroutine ") {
            let id = rest.split(' ').next().and_then(|id| id.parse().ok());
            let name = rest
                .split_once("{name: ")
                .and_then(|(_, rest)| rest.split_once('}'));
            waits.push(Wait {
                id: id.unwrap_or(0),
                name: name.map_or("?", |(name, _)| name),
                holder: None,
            });
        }
        let holder = line.split_once(", held by goroutine ").map(|(_, id)| id);
        if let (Some(wait), Some(id)) = (waits.last_mut(), holder) {
            wait.holder = id.parse().ok();
        }
    }
    waits
}

/// The names from the first goroutine to the one it waits for, and so on, until a name repeats or a
/// goroutine waits for none.
fn circle<'a>(waits: &[Wait<'a>]) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut next = waits.first();
    while let Some(wait) = next {
        let is_known = names.contains(&wait.name);
        names.push(wait.name);
        if is_known {
            break;
        }
        next = waits.iter().find(|other| Some(other.id) == wait.holder);
    }
    names
}

/// The lines of a report without stack frames, in a frame.
fn without_stacks(report: &str) -> String {
    const KEPT: [&str; 3] = ["all goroutines", "goroutine ", "waits "];
    let is_kept = |line: &&str| KEPT.iter().any(|start| line.starts_with(start));
    let lines = report.lines().filter(is_kept).take(LINES);
    lines
        .map(|line| {
            let cut: String = line.chars().take(WIDTH - 2).collect();
            format!("{} {cut}\n", paint(Ink::Faint, "│"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "all goroutines are asleep - deadlock!\n\n\
        goroutine 7 [sync.Mutex.Lock] {name: a}:\nwaits on mutex 0x10, held by goroutine 9\n\
        main::f\n\n\
        goroutine 8 [park]:\n\n\
        goroutine 9 [sync.Mutex.Lock] {name: b}:\nwaits on mutex 0x20, held by goroutine 7\n";

    #[test]
    fn the_circle_is_read_from_the_report() {
        let waits = waits(REPORT);
        assert_eq!(waits.len(), 3);
        let (id, name, holder) = (8, "?", None);
        assert_eq!(waits[1], Wait { id, name, holder });
        assert_eq!(circle(&waits), ["a", "b", "a"]);
        assert_eq!(circle(&waits[1..]), ["?"]);
        assert!(circle(&[]).is_empty());
    }

    #[test]
    fn stacks_are_left_out() {
        let text = without_stacks(REPORT);
        assert!(
            !text.contains("main::f") && text.contains("goroutine 8"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 6);
    }
}
