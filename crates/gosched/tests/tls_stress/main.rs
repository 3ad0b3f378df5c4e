//! Everything that thread-locals are good for at once, by thousands of goroutines that migrate, in an order that a seed
//! decides.
//!
//! A *round* makes a runtime with own thread-locals and lets goroutines *live*: each takes steps, of which every one uses what
//! is kept per thread, mostly across a switch, and checks that it found its own. Each keeps books of what it made in
//! thread-locals; at the end of a round everything made has been dropped, once.
//!
//! `GOSCHED_STRESS_SEED` repeats a run (as far as threads can be repeated), `GOSCHED_STRESS_SECS` sets its length per number
//! of Ps. A round that hangs ends the process with the seed and a dump.

#[path = "../common/mod.rs"]
mod common;
mod life;
mod steps;

use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use self::common::{Planned, Rng, env, eventually, quiet_planned_panics, show_and_abort};
use self::life::{Books, live};
use gosched::{Handle, Runtime, thread};

/// How long a round may take. They take a second or two.
const PATIENCE: Duration = Duration::from_secs(90);
/// The most goroutines of a round.
const GOROUTINES: u64 = 10_000;

/// The round that is on, for the one who watches.
#[derive(Default)]
struct Now(Mutex<Option<(Instant, u64, Handle)>>);

impl Now {
    fn begin(&self, seed: u64, handle: Handle) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), seed, handle));
    }

    /// Ends the process if the round hangs.
    fn watch(&self, what: &str) {
        let now = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Some((began, seed, handle)) = now else {
            return;
        };
        if began.elapsed() < PATIENCE {
            return;
        }
        let _ = writeln!(std::io::stderr(), "{what}, round {seed:#x} hangs");
        show_and_abort(handle);
    }
}

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
    now.begin(seed, runtime.handle());
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
    // Those that nobody joined.
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

fn stress(procs: usize) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    quiet_planned_panics();
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = env("GOSCHED_STRESS_SEED").unwrap_or_else(|| clock.unwrap().as_nanos() as u64);
    let secs = env("GOSCHED_STRESS_SECS").unwrap_or(3.0);
    let what = format!("thread-local stress with {procs} Ps, GOSCHED_STRESS_SEED={seed}");
    println!("{what}");
    let (mut rng, now, books) = (Rng::new(seed ^ procs as u64), Now::default(), Books::open());
    let until = Instant::now() + Duration::from_secs_f64(secs);
    let is_over = AtomicBool::new(false);
    let rounds = std::thread::scope(|s| {
        s.spawn(|| {
            while !is_over.load(SeqCst) {
                now.watch(&what);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let mut rounds = 0;
        // Also when an assertion fails: the scope must end.
        let run = std::panic::AssertUnwindSafe(|| {
            while Instant::now() < until {
                run_round(rng.next(), procs, &now, &books);
                rounds += 1;
            }
        });
        let done = std::panic::catch_unwind(run);
        is_over.store(true, SeqCst);
        if let Err(payload) = done {
            println!("{what} failed in round {rounds}");
            std::panic::resume_unwind(payload);
        }
        rounds
    });
    books.assert_migrated(procs);
    println!("{what}: {books}");
    println!("{what}: {rounds} rounds");
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
