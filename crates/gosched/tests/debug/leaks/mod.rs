//! `debug::leaks` finds, marks and unmarks exactly the goroutines that can never be woken. Dumps
//! show what waiting goroutines wait for.

mod channels;
mod locks;
mod marks;
mod parked;
mod waits;

use std::time::{Duration, Instant};

use crate::common::named;
use gosched::debug::{self, Leak, Leaks};
use gosched::thread::{self, JoinHandle};

/// Nothing that happens at all takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn find<'a>(leaks: &'a Leaks, name: &str) -> Option<&'a Leak> {
    let mut all = leaks.goroutines().iter();
    all.find(|leak| leak.goroutine().name() == Some(name))
}

/// The names of those found, in order.
fn names(leaks: &Leaks) -> Vec<String> {
    let name = |leak: &Leak| leak.goroutine().name().unwrap_or("?").to_owned();
    let mut names: Vec<_> = leaks.goroutines().iter().map(name).collect();
    names.sort_unstable();
    names
}

/// Looks until the goroutines with these names wait, and returns what the next leak check finds.
#[track_caller]
fn leaks_when_waiting(expected: &[&str]) -> Leaks {
    let started = Instant::now();
    loop {
        let dump = debug::dump();
        let waits = |name: &&str| {
            let mut all = dump.goroutines().iter();
            all.any(|g| g.name() == Some(name) && g.wait_reason().is_some())
        };
        if expected.iter().all(waits) && !is_looking_up() {
            return debug::leaks();
        }
        assert!(started.elapsed() < PATIENCE, "{dump}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a thread that resolves symbols for a dump is alive. The check counts it as a thread that
/// may wake goroutines.
fn is_looking_up() -> bool {
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.any(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.trim_end() == "gosched-symbols")
    })
}

/// The same until any is found: the goroutines may first wait for something else, or a thread that
/// resolved symbols may still count as a foreign thread.
#[track_caller]
fn leaks_when_some(expected: &[&str]) -> Leaks {
    let started = Instant::now();
    loop {
        let leaks = leaks_when_waiting(expected);
        if !leaks.is_empty() {
            return leaks;
        }
        assert!(started.elapsed() < PATIENCE, "{}", debug::dump());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Checks until so many are found.
#[track_caller]
fn leaks_when_count(count: usize) -> Leaks {
    let started = Instant::now();
    loop {
        let leaks = debug::leaks();
        if leaks.goroutines().len() == count {
            return leaks;
        }
        assert!(started.elapsed() < PATIENCE, "{leaks}\n{}", debug::dump());
        thread::sleep(Duration::from_millis(1));
    }
}

fn id_of<T>(handle: &JoinHandle<T>) -> u64 {
    let id = handle.thread().id().goroutine();
    id.expect("a goroutine").get()
}
