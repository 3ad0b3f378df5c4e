//! The curves over the number of Ps that count CPU time: what idle Ps cost, and what sysmon costs.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gosched::chan::bounded;
use gosched::thread;

use super::curves::Size;
use crate::proc;
use crate::rounds;

/// The name of sysmon's thread.
const SYSMON: &str = "gosched-sysmon";

/// `n` goroutines yield; wall time per yield.
pub fn yields(size: &Size) -> io::Result<f64> {
    let each = size.work.div_ceil(size.n);
    Ok(size.best(|| {
        let start = Instant::now();
        let yielding =
            (0..size.n).map(|_| thread::spawn(move || (0..each).for_each(|_| thread::yield_now())));
        for handle in yielding.collect::<Vec<_>>() {
            handle.join().expect("a yield does not panic");
        }
        rounds::ns_each(start, each * size.n)
    }))
}

/// Two goroutines exchange messages while all other Ps are idle. Every message wakes a goroutine,
/// so an idle P is started, searches the others, and goes idle again. Returns the CPU time of the
/// process per message.
pub fn idle(size: &Size) -> io::Result<f64> {
    let mut failure = None;
    let each_ns = size.best(|| {
        let (ask, asked) = bounded(0);
        let (answer, answers) = bounded(0);
        let other = thread::spawn(move || {
            asked
                .iter()
                .try_for_each(|message: usize| answer.send(message))
        });
        let before = proc::own_cpu();
        for message in 0..size.work / 2 {
            ask.send(message).expect("the other receives");
            assert_eq!(answers.recv(), Ok(message));
        }
        let spent = before.and_then(|before| Ok(proc::own_cpu()? - before));
        drop(ask);
        let all = other.join().expect("an answer does not panic");
        assert_eq!(all, Ok(()), "every answer is received");
        match spent {
            Ok(spent) => spent.as_nanos() as f64 / size.work as f64,
            Err(error) => {
                failure = Some(error);
                f64::INFINITY
            }
        }
    });
    failure.map_or(Ok(each_ns), Err)
}

/// `n` goroutines yield all the time. Returns the CPU time of sysmon's thread per look, in µs.
pub fn sysmon(size: &Size) -> io::Result<f64> {
    let watch = Duration::from_secs(3).min(Duration::from_micros(5 * size.work as u64));
    let is_over = Arc::new(AtomicBool::new(false));
    let yielding: Vec<_> = (0..size.n)
        .map(|_| {
            let is_over = Arc::clone(&is_over);
            // ORDER: Relaxed; a flag without data.
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    thread::yield_now()
                }
            })
        })
        .collect();
    thread::sleep(watch / 4);
    let looks = || gosched::debug::metrics().sysmon_looks;
    let before = (sysmon_cpu_ns()?, looks());
    thread::sleep(watch);
    // A short watch may pass between two looks.
    let patience = Instant::now() + Duration::from_secs(10);
    while looks() == before.1 && Instant::now() < patience {
        thread::sleep(Duration::from_millis(1));
    }
    // Less than before if the monitor of another runtime has ended, as in a test.
    let spent = sysmon_cpu_ns()?.saturating_sub(before.0);
    let looks = looks() - before.1;
    is_over.store(true, Ordering::Relaxed);
    for handle in yielding {
        handle.join().expect("a yield does not panic");
    }
    match looks {
        0 => Err(io::Error::other("sysmon did not look")),
        _ => Ok(spent as f64 / 1e3 / looks as f64),
    }
}

/// The CPU time so far of sysmon's thread, or threads. Never inlined: see `port::runtime`.
#[inline(never)]
fn sysmon_cpu_ns() -> io::Result<u64> {
    let read = |task: io::Result<fs::DirEntry>| {
        let task = task.ok()?.path();
        let name = fs::read_to_string(task.join("comm")).ok()?;
        let schedstat = fs::read_to_string(task.join("schedstat")).ok()?;
        let cpu = schedstat.split_whitespace().next()?.parse::<u64>().ok()?;
        (name.trim() == SYSMON).then_some(cpu)
    };
    let all: Vec<_> = fs::read_dir("/proc/self/task")?.filter_map(read).collect();
    match all.is_empty() {
        true => Err(io::Error::other("sysmon has no thread")),
        false => Ok(all.iter().sum()),
    }
}
