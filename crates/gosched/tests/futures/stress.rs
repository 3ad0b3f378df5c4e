//! At random: goroutines that end in every way are awaited in every way, by goroutines of two runtimes, plain threads and an executor
//! made by hand, while one of the runtimes goes on, shuts down, or is dropped.
//!
//! Every value that was made is dropped once, but for those that were abandoned with their goroutines; every await gets an answer.
//!
//! `GOSCHED_STRESS_SEED` repeats a run (as far as threads can be repeated), `GOSCHED_STRESS_SECS` sets its length.

use std::io::Write;
use std::panic::panic_any;
use std::time::SystemTime;

use gosched::future::block_on;
use gosched::thread;
use gosched::thread::{Exited, JoinHandle};

use super::common::{
    Alive, Planned, Rng, child_with, env, eventually, quiet_planned_panics, show_and_abort,
};
use super::*;

/// What happens to the runtime whose goroutines are awaited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    None,
    Shutdown,
    Dropped,
}

type Answer = std::thread::Result<(u64, Alive)>;

/// What everybody in a round shares.
struct Round {
    ending: Ending,
    alive: Arc<AtomicUsize>,
    awaited: AtomicUsize,
}

impl Round {
    /// An answer has come to whoever awaited goroutine `n`.
    fn check(&self, n: u64, answer: Answer) {
        match answer {
            Ok((value, _)) => assert_eq!(value, n),
            Err(payload) if payload.is::<Planned>() => assert_eq!(n % 8, 0),
            Err(payload) => {
                assert!(payload.is::<Exited>());
                assert!(n % 8 == 1 || self.ending != Ending::None);
            }
        }
        self.awaited.fetch_add(1, SeqCst);
    }
}

/// One goroutine, which ends as its number says.
fn start(runtime: &Runtime, round: &Round, n: u64, rng: &mut Rng) -> JoinHandle<(u64, Alive)> {
    let value = Alive::new(&round.alive);
    let turns = rng.below(20);
    runtime.spawn(move || {
        for turn in 0..turns {
            if turn % 5 == 4 {
                thread::sleep(Duration::from_micros(50));
            }
            thread::yield_now();
        }
        match n % 8 {
            0 => panic_any(Planned),
            1 => gosched::goexit(),
            _ => (n, value),
        }
    })
}

/// Polls a few times in vain, perhaps with other wakers, then awaits, joins or drops it.
async fn one(round: Arc<Round>, mut handle: JoinHandle<(u64, Alive)>, n: u64, mut rng: Rng) {
    for _ in 0..rng.below(3) {
        if let Poll::Ready(answer) = poll(&mut handle, Waker::noop()) {
            return round.check(n, answer);
        }
    }
    match rng.below(5) {
        0 => {
            // Dropped, perhaps while it is pending.
            drop(handle);
            round.awaited.fetch_add(1, SeqCst);
        }
        1 | 2 => round.check(n, handle.join()),
        _ => round.check(n, handle.await),
    }
}

/// The same for many: in turn, each by itself, or on the executor.
fn many(round: Arc<Round>, mut handles: Vec<(u64, JoinHandle<(u64, Alive)>)>, mut rng: Rng) {
    let all = rng.one_in(2);
    let mut task = |(n, handle)| one(Arc::clone(&round), handle, n, Rng::new(rng.next()));
    if all && gosched::thread::current().id().goroutine().is_none() {
        let tasks = handles
            .drain(..)
            .map(|handle| Box::pin(task(handle)) as Task);
        return execute(tasks.collect());
    }
    handles.drain(..).for_each(|handle| block_on(task(handle)));
}

fn play(stays: &Runtime, rng: &mut Rng) {
    let ending = match rng.below(4) {
        0 => Ending::Shutdown,
        1 => Ending::Dropped,
        _ => Ending::None,
    };
    let round = Arc::new(Round {
        ending,
        alive: Arc::default(),
        awaited: AtomicUsize::new(0),
    });
    let goes = runtime(1 + rng.below(4) as usize);
    let groups = 1 + rng.below(6);
    let each = 1 + rng.below(60);
    let mut threads = Vec::new();
    let mut goroutines = Vec::new();
    for group in 0..groups {
        let numbers = group * each..(group + 1) * each;
        let handles = numbers.map(|n| (n, start(&goes, &round, n, rng))).collect();
        let (round, rng) = (Arc::clone(&round), Rng::new(rng.next()));
        match group % 2 {
            0 => goroutines.push(stays.spawn(move || many(round, handles, rng))),
            _ => threads.push(std::thread::spawn(move || many(round, handles, rng))),
        }
    }
    std::thread::sleep(Duration::from_micros(rng.below(1000)));
    let goes = match ending {
        Ending::None => Some(goes),
        Ending::Shutdown => {
            goes.shutdown(LONG / 2);
            None
        }
        Ending::Dropped => {
            drop(goes);
            None
        }
    };
    goroutines.into_iter().for_each(|g| g.join().unwrap());
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(
        round.awaited.load(SeqCst) as u64,
        groups * each,
        "{ending:?}"
    );
    if ending != Ending::Dropped {
        assert!(eventually(|| round.alive.load(SeqCst) == 0), "{ending:?}");
    }
    for runtime in goes.iter().chain([stays]) {
        runtime.check().unwrap();
        assert_eq!(runtime.metrics().rescues, 0, "WK: a wake-up was lost");
    }
}

/// Rounds for some seconds.
fn stress(seed: u64) {
    quiet_planned_panics();
    let secs = env("GOSCHED_STRESS_SECS").unwrap_or(3.0);
    println!("GOSCHED_STRESS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let until = Instant::now() + Duration::from_secs_f64(secs);
    let mut rounds = 0;
    while Instant::now() < until {
        let (done, is_done) = mpsc::channel::<()>();
        let stays = runtime(2);
        let handle = stays.handle();
        let watchdog = std::thread::spawn(move || {
            if is_done.recv_timeout(LONG) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Not `eprintln`: that would be captured, and lost.
                let _ = writeln!(std::io::stderr(), "GOSCHED_STRESS_SEED={seed} hangs");
                show_and_abort(handle);
            }
        });
        play(&stays, &mut rng);
        drop(done);
        watchdog.join().unwrap();
        rounds += 1;
    }
    println!("GOSCHED_STRESS_SEED={seed}: {rounds} rounds");
}

fn seed() -> u64 {
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    env("GOSCHED_STRESS_SEED").unwrap_or_else(|| clock.unwrap().as_nanos() as u64)
}

#[test]
fn awaiting_at_random() {
    stress(seed());
}

/// With disorder from the runtime itself. Goroutines lose their P at any moment, also where they are about to wake whoever joins
/// them, and their runtime may be dropped before they have another one.
#[test]
fn awaiting_in_disorder() {
    let seed = seed();
    println!("GOSCHED_STRESS_SEED={seed}");
    let disorder = |command: &mut std::process::Command| {
        command
            .env("GOSCHED_DEBUG", format!("chaos={}", seed | 1))
            .env("GOSCHED_STRESS_SEED", seed.to_string());
    };
    let out = child_with("stress::awaiting_in_disorder", "", disorder, |_| {
        stress(env("GOSCHED_STRESS_SEED").unwrap());
    });
    out.succeeded();
}
