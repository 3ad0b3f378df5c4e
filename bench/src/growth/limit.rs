//! The curve of a yield at the thread limit, among goroutines that wait to begin.
//!
//! Loops that never wait hold all the threads they may have. The scheduler must not look at each
//! queued goroutine to find one that it may run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gosched::{Runtime, debug, thread};

use super::curves::Size;
use crate::rounds;

/// The runtime's thread limit, and the loops: more than can begin.
const THREADS: usize = 8;
const HOGS: usize = 20;
/// Yields between two reads of the clock: the loops run after more than that.
const YIELDS: usize = 20;
/// Nothing here takes that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// In a runtime of its own, because the limit belongs to a runtime.
pub fn at_limit(size: &Size) -> io::Result<f64> {
    let (n, rounds) = (size.n, size.rounds);
    let player = std::thread::spawn(move || {
        let builder = Runtime::builder().procs(1).max_threads(THREADS);
        Ok(builder.build()?.run(move || play(n, rounds)))
    });
    player.join().expect("it does not panic")
}

fn play(n: usize, rounds: usize) -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let hog = |_| {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
        })
    };
    let hogs: Vec<_> = (0..HOGS).map(hog).collect();
    let began = Instant::now();
    while debug::metrics().parked_threads < 2 || debug::metrics().threads < THREADS - 1 {
        assert!(began.elapsed() < PATIENCE, "the limit is not reached");
        thread::sleep(Duration::from_millis(5));
    }
    let crowd: Vec<_> = (0..n).map(|_| thread::spawn(|| ())).collect();
    let best = (0..rounds).map(|_| median()).fold(f64::INFINITY, f64::min);
    stop.store(true, Relaxed);
    for one in hogs.into_iter().chain(crowd) {
        one.join().expect("it does not panic");
    }
    best
}

/// The median of many short stretches, so that the turns of the loops do not count.
fn median() -> f64 {
    let stretch = |_| {
        let start = Instant::now();
        (0..YIELDS).for_each(|_| gosched::yield_now());
        rounds::ns_each(start, YIELDS)
    };
    let mut stretches: Vec<f64> = (0..101).map(stretch).collect();
    stretches.sort_by(f64::total_cmp);
    stretches[stretches.len() / 2]
}
