//! At random: goroutines that end in every way are awaited in every way. The waiters are goroutines
//! of two runtimes, plain threads and a hand-made executor. Meanwhile one of the runtimes
//! continues, shuts down, or is dropped.
//!
//! Every value that was made is dropped once, but for those that were abandoned with their
//! goroutines; every await gets an answer.
//!
//! `GOSCHED_STRESS_SEED` repeats a run (as far as threads can be repeated), `GOSCHED_STRESS_SECS`
//! sets its length.

use std::panic::panic_any;

use gosched::future::block_on;
use gosched::thread;
use gosched::thread::{Exited, JoinHandle};

use super::*;
use crate::common::{Alive, Planned, Rng, chaos, child_with, env, eventually, rounds, seed};

/// What happens to the runtime whose goroutines are awaited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    None,
    Shutdown,
    Dropped,
}

type Answer = std::thread::Result<(u64, Alive)>;

/// What all goroutines and threads of a round share.
struct Round {
    ending: Ending,
    alive: Arc<AtomicUsize>,
    awaited: AtomicUsize,
}

impl Round {
    /// The task that awaited goroutine `n` has its answer.
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
    let mut rng = Rng::new(seed);
    rounds(
        &format!("futures, GOSCHED_STRESS_SEED={seed}"),
        3.0,
        |now| {
            let stays = runtime(2);
            now.begin("a round".to_owned(), stays.handle());
            play(&stays, &mut rng);
        },
    );
}

#[test]
fn awaiting_at_random() {
    stress(seed());
}

/// With disorder from the runtime itself. Goroutines lose their P at any moment, also where they
/// are about to wake a joiner, and their runtime may be dropped before they have another one.
#[test]
fn awaiting_in_disorder() {
    let seed = seed();
    println!("GOSCHED_STRESS_SEED={seed}");
    let out = child_with("stress::awaiting_in_disorder", "", chaos(seed), |_| {
        stress(env("GOSCHED_STRESS_SEED").unwrap());
    });
    out.succeeded();
}
