//! Random calls on random descriptors: the hooks against the kernel.
//!
//! A round makes a list of calls from a seed. A plain thread makes them on descriptors of its own,
//! where every call is libc's. Then a goroutine makes the same calls on descriptors of the same
//! kinds. Results, errors and data must be equal.
//!
//! A call that waits is answered by a partner: it acts when the call has returned, or has waited
//! for a while. So the order of effects is the same in both runs. A difference counts only if it
//! stays when both runs are repeated with longer times.
//!
//! `GOSCHED_STRESS_SECS=600` makes a long run, `GOSCHED_STRESS_SEED` repeats the rounds of another.

mod call;
mod partner;
mod world;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use gosched_hook as _;

use crate::call::{Call, Outcome, Rng};
use crate::partner::Partner;
use crate::world::World;

const CALLS: usize = 60;
/// A call that takes longer hangs.
const HANGS: Duration = Duration::from_secs(20);
/// What times are multiplied with, at the first look and at the later ones.
const SCALES: [u32; 4] = [1, 4, 16, 16];

/// Makes the calls. Ends early after a call that no partner could end.
fn run(calls: &[Call], scale: u32, spawn: fn(Box<dyn FnOnce() + Send>)) -> Vec<Outcome> {
    let mut world = World::new(scale);
    let partner = Partner::start(spawn);
    let mut outcomes = Vec::new();
    for call in calls {
        let steps = call.steps(&mut world, scale);
        partner.begin(steps);
        let outcome = call.make(&mut world, scale);
        let closed = partner.end();
        world.closed_by_partner(&closed);
        outcomes.push(outcome);
    }
    outcomes
}

fn on_thread(calls: Vec<Call>, scale: u32) -> Result<Vec<Outcome>, mpsc::RecvTimeoutError> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let spawn = |f| _ = std::thread::spawn(f);
        _ = send.send(run(&calls, scale, spawn));
    });
    receive.recv_timeout(HANGS * scale)
}

fn on_goroutine(
    runtime: &gosched::Handle,
    calls: Vec<Call>,
    scale: u32,
) -> Result<Vec<Outcome>, mpsc::RecvTimeoutError> {
    let (send, receive) = mpsc::channel();
    runtime.spawn(move || {
        let spawn = |f| _ = gosched::thread::spawn(f);
        _ = send.send(run(&calls, scale, spawn));
    });
    receive.recv_timeout(HANGS * scale)
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What one round has found.
enum Found {
    Equal,
    /// The kernel itself gave two answers.
    Varies,
    Different(usize),
}

fn round(runtime: &gosched::Handle, seed: u64) -> (Found, usize) {
    let mut rng = Rng::new(seed);
    let mut calls: Vec<Call> = (0..CALLS).map(|n| Call::random(&mut rng, n)).collect();
    let (mut found, mut varied) = (Found::Equal, false);
    for scale in SCALES {
        // A wait that no partner ends.
        let Ok(thread) = on_thread(calls.clone(), scale) else {
            return (Found::Varies, 0);
        };
        let goroutine = on_goroutine(runtime, calls.clone(), scale)
            .unwrap_or_else(|_| panic!("seed {seed}: the calls hang on a goroutine: {calls:#?}"));
        let differs = thread.iter().zip(&goroutine).position(|(a, b)| a != b);
        let Some(at) = differs else {
            let found = if varied { Found::Varies } else { Found::Equal };
            return (found, thread.len());
        };
        let Ok(again) = on_thread(calls.clone(), scale) else {
            return (Found::Varies, 0);
        };
        found = match thread.iter().zip(&again).position(|(a, b)| a != b) {
            Some(place) if place <= at => {
                varied = true;
                Found::Varies
            }
            _ => Found::Different(at),
        };
        if scale == SCALES[SCALES.len() - 1]
            && let Found::Different(at) = found
        {
            eprintln!("seed {seed}: call {at} differs");
            for (n, call) in calls.iter().enumerate().take(at + 1) {
                eprintln!("{n}: {call:?}\n    {:?}", thread[n]);
            }
            eprintln!("goroutine: {:?}", goroutine[at]);
        }
        calls.truncate(at + 1);
    }
    if let Found::Varies = found {
        return (found, 0);
    }
    (found, calls.len())
}

#[test]
fn calls_on_goroutines_return_what_they_return_on_threads() {
    gosched_hook::install().unwrap();
    let seed = env("GOSCHED_STRESS_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64 % 1_000_000_000)
    });
    let secs = env("GOSCHED_STRESS_SECS").unwrap_or(5);
    println!("GOSCHED_STRESS_SEED={seed} GOSCHED_STRESS_SECS={secs}");
    let runtime = gosched::Runtime::builder().build().unwrap();
    let handle = runtime.handle();
    let begun = Instant::now();
    let (mut calls, mut rounds, mut varied, mut different) = (0, 0, 0, Vec::new());
    while begun.elapsed() < Duration::from_secs(secs) || rounds == 0 {
        let seed = seed.wrapping_add(rounds);
        let (found, made) = round(&handle, seed);
        calls += made;
        rounds += 1;
        match found {
            Found::Varies => varied += 1,
            Found::Different(at) => different.push((seed, at)),
            Found::Equal => {}
        }
    }
    println!(
        "{rounds} rounds, {calls} calls compared; the kernel's answers varied in {varied} rounds"
    );
    assert!(
        different.is_empty(),
        "seeds and calls that differ: {different:?}"
    );
}
