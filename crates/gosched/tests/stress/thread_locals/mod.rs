//! Everything that thread-locals are good for at once, by thousands of goroutines that migrate, in
//! an order that a seed decides.
//!
//! A *round* makes a runtime with own thread-locals and lets goroutines *live*: each takes steps.
//! Every step uses thread-locals or other state of a thread, mostly across a switch, and checks
//! that it found its own. Each keeps books of what it made in thread-locals; at the end of a round
//! everything made has been dropped, once.
//!
//! `GOSCHED_STRESS_SEED` repeats a run (as far as threads can be repeated), `GOSCHED_STRESS_SECS`
//! sets its length per number of Ps. A round that hangs ends the process with the seed and a dump.

mod life;
mod steps;

use std::sync::Mutex;

use self::life::{Books, live};
use crate::common::{Now, Planned, Rng, eventually, lock, rounds, seed};
use gosched::{Runtime, thread};

/// The most goroutines of a round.
const GOROUTINES: u64 = 10_000;

/// One runtime, from beginning to end.
fn run_round(seed: u64, procs: usize, now: &Now, books: &Books) {
    let mut rng = Rng::new(seed);
    // Few with long lives, or many with short ones.
    let many = rng.one_in(3);
    let count = if many {
        GOROUTINES
    } else {
        10 + rng.below(1_000)
    };
    let steps = if many { 6 } else { 10 + rng.below(60) };
    let runtime = Runtime::builder().procs(procs).name("tls stress").build();
    let runtime = runtime.expect("own thread-locals");
    now.begin(format!("round {seed:#x}"), runtime.handle());
    runtime.run(|| {
        let mut living = Vec::new();
        for _ in 0..count {
            let rng = Rng::new(rng.next());
            living.push(thread::spawn(move || live(rng, steps, 0)));
            // In most rounds not all at once, so that stacks are used again.
            if !many && living.len() > 300 {
                let one = living.swap_remove(living.len() / 2);
                end(one);
            }
        }
        living.into_iter().for_each(end);
    });
    // Goroutines that were not joined.
    let is_empty = || runtime.metrics().goroutines == 0;
    assert!(eventually(is_empty), "{}", runtime.dump());
    runtime.check().unwrap();
    assert_eq!(runtime.metrics().rescues, 0);
    books.assert_closed();
}

/// Joins a goroutine, which may have panicked as planned.
fn end(one: thread::JoinHandle<()>) {
    if let Err(payload) = one.join()
        && !payload.is::<Planned>()
        && !payload.is::<thread::Exited>()
    {
        std::panic::resume_unwind(payload);
    }
}

/// Rounds for some seconds.
fn stress(procs: usize) {
    // The books count for the whole process.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = lock(&ONE_AT_A_TIME);
    let (seed, books) = (seed(), Books::open());
    let what = format!("thread-local stress with {procs} Ps, GOSCHED_STRESS_SEED={seed}");
    let mut rng = Rng::new(seed ^ procs as u64);
    rounds(&what, 3.0, |now| run_round(rng.next(), procs, now, &books));
    books.assert_migrated(procs);
    println!("{what}: {books}");
}

#[test]
fn stress_2_ps() {
    stress(2);
}

#[test]
fn stress_3_ps() {
    stress(3);
}

#[test]
fn stress_4_ps() {
    stress(4);
}
