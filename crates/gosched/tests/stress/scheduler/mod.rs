//! Everything at once, in an order that a seed decides, over 1, 2, 3 and 64 Ps; every goroutine is
//! counted in and out.
//!
//! A *round* makes a runtime, lets goroutines and plain threads do random things to each other for
//! a while, and ends it in one of several ways. The *ledger* counts tickets: each goroutine's
//! closure owns one, which says when it ran and when it was dropped. Whatever the ending, no
//! goroutine may be lost, run twice, or leave a join unanswered:
//!
//! ```text
//!  drained    every goroutine ran and ended
//!  shut down  every goroutine that started has ended, the others' closures were dropped
//!  dropped    every goroutine started, or its closure was dropped; every join is answered
//! ```
//!
//! `GOSCHED_STRESS_SEED` repeats a run (as far as threads can be repeated), `GOSCHED_STRESS_SECS`
//! sets its length per number of Ps. A round that hangs ends the process with the seed, the
//! counters and a dump.

mod life;
mod round;

use std::any::Any;
use std::fmt::Display;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use self::life::*;
use self::round::*;
use crate::common::{Now, Planned, Rng, eventually, lock, rounds, seed};
use gosched::thread::{Exited, JoinHandle, Thread};
use gosched::{Deadlock, Handle, Runtime, debug, thread};

/// How long a shutdown may take; all that is shut down here ends by itself.
const SHUTDOWN: Duration = Duration::from_secs(30);
/// Goroutines of a round that are remembered for stray wake-ups.
const KNOWN_MAX: usize = 64;
/// What a goroutine's children's children may have.
const DEPTH_MAX: u32 = 6;

/// What a plain thread does to a runtime.
fn outside_step(round: &Arc<Round>, handle: &Handle, rng: &mut Rng, children: &mut Vec<Child>) {
    match rng.below(16) {
        0..=4 => round.wake(1 + rng.below(4)),
        5..=7 => round.stray(rng),
        8..=10 if round.may_spawn() => {
            let (number, fate, body) = Child::body(round, 3);
            match handle.try_spawn(body) {
                Ok(handle) => children.push(Child {
                    handle,
                    number,
                    fate,
                }),
                Err(_) if round.is_ending.load(SeqCst) => {}
                Err(error) => round.complain(error),
            }
        }
        11 => children.truncate(rng.below(4) as usize),
        12 => drop(handle.metrics()),
        13 => thread::park_timeout(Duration::from_micros(rng.below(50))),
        _ => std::thread::sleep(Duration::from_micros(rng.below(200))),
    }
}

/// A plain thread for the length of a round. It keeps waking those that wait until the round is
/// over.
fn outside(round: &Arc<Round>, handle: &Handle, is_over: &AtomicBool) {
    let (mut rng, mut children) = (round.rng(), Vec::new());
    while !is_over.load(SeqCst) {
        outside_step(round, handle, &mut rng, &mut children);
        if rng.one_in(64) {
            join_all(round, &mut children);
        }
    }
    join_all(round, &mut children);
}

/// Joins them on a plain thread, while another one wakes those that they may wait for.
fn join_all(round: &Arc<Round>, children: &mut Vec<Child>) {
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            while is_done.try_recv() == Err(mpsc::TryRecvError::Empty) {
                round.wake(8);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        children.drain(..).for_each(|child| child.join(round));
        drop(done);
    });
}

/// How a round ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Drained,
    Shutdown,
    Dropped,
    DroppedInside,
    DroppedElsewhere,
}

impl Ending {
    fn random(rng: &mut Rng) -> Ending {
        match rng.below(8) {
            0 => Ending::Dropped,
            1 => Ending::DroppedInside,
            2 => Ending::DroppedElsewhere,
            // A shutdown unwinds.
            3 if cfg!(panic = "unwind") => Ending::Shutdown,
            _ => Ending::Drained,
        }
    }
}

/// Wakes waiters until every goroutine has ended, then checks the structures. On a main goroutine.
fn drain(round: &Arc<Round>, rng: &mut Rng, has_helpers: bool) {
    let roots = 1 + rng.below(8);
    let mut life = Life::new(round, rng.clone(), DEPTH_MAX, None);
    for _ in 0..roots {
        life.spawn();
    }
    let is_done = || {
        let (born, _, ended, unrun) = round.counts();
        let is_spent = !has_helpers || round.budget.load(SeqCst) == 0;
        born == ended + unrun && is_spent && round.outsiders.load(SeqCst) == 0
    };
    while !is_done() {
        round.wake(1 + rng.below(16));
        match rng.below(64) {
            0 => life.check(),
            1 => round.budget.store(0, SeqCst),
            2..=40 => gosched::yield_now(),
            _ => thread::sleep(Duration::from_micros(rng.below(400))),
        }
    }
    life.children
        .into_iter()
        .for_each(|child| child.join(round));
}

/// The runtime is drained and its helpers are gone: nothing is left in it.
fn assert_drained(runtime: &Runtime, round: &Round) {
    let is_empty = || {
        round.wake(8);
        round.outsiders.load(SeqCst) == 0 && runtime.metrics().goroutines == 0
    };
    assert!(eventually(is_empty), "{}", runtime.dump());
    runtime.check().unwrap();
    let metrics = runtime.metrics();
    assert_eq!(metrics.spawns, metrics.ends);
    assert_eq!((metrics.rescues, metrics.timers), (0, 0), "{metrics}");
    let (born, ran, ended, unrun) = round.counts();
    assert_eq!((ran, ended, unrun), (born, born, 0));
}

/// Lets goroutines loose and ends the runtime under them.
fn end_midway(runtime: Runtime, round: &Arc<Round>, rng: &mut Rng, ending: Ending) {
    let mut roots = Vec::new();
    for _ in 0..1 + rng.below(12) {
        let (number, fate, body) = Child::body(round, DEPTH_MAX);
        let handle = runtime.spawn(body);
        roots.push(Child {
            handle,
            number,
            fate,
        });
    }
    for _ in 0..rng.below(20) {
        round.wake(rng.below(8));
        match rng.below(16) {
            0 => runtime.check().unwrap(),
            1 => drop(runtime.dump()),
            _ => std::thread::sleep(Duration::from_micros(rng.below(500))),
        }
    }
    assert_eq!(runtime.metrics().rescues, 0);
    round.is_ending.store(true, SeqCst);
    match ending {
        Ending::Shutdown => runtime.shutdown(SHUTDOWN),
        Ending::DroppedInside => {
            let handle = runtime.handle();
            handle.spawn(move || drop(runtime)).join().unwrap_err();
        }
        Ending::DroppedElsewhere => {
            let other = Runtime::builder().procs(1).build().unwrap();
            other.run(|| drop(runtime));
        }
        Ending::Dropped | Ending::Drained => drop(runtime),
    }
    roots.into_iter().for_each(|root| root.join(round));
}

/// One runtime, from beginning to end.
fn run_round(seed: u64, procs: usize, now: &Now) {
    let mut rng = Rng::new(seed);
    let ending = Ending::random(&mut rng);
    let is_drained = matches!(ending, Ending::Drained);
    let round = Round::new(&mut rng, procs, is_drained);
    let helpers = rng.below(4) as usize;
    // Without helpers a main goroutine that never waits for long is all the hope there is.
    let is_closed = helpers == 0 && is_drained && rng.one_in(2);
    // Two mappings per stack, which a dropped runtime keeps: there are only so many.
    let ends_empty = is_drained || matches!(ending, Ending::Shutdown);
    let has_mprotect = ends_empty && procs < 64 && rng.one_in(4);
    let runtime = Runtime::builder()
        .procs(procs)
        .name("stress")
        .deadlock(if is_closed {
            Deadlock::Closed
        } else {
            Deadlock::Auto
        })
        .mprotect_guards(has_mprotect)
        .build()
        .unwrap();
    begin(now, seed, ending, runtime.handle(), &round);
    let (handle, is_over) = (runtime.handle(), AtomicBool::new(false));
    std::thread::scope(|s| {
        for _ in 0..helpers {
            s.spawn(|| outside(&round, &handle, &is_over));
        }
        if is_drained {
            runtime.run(|| drain(&round, &mut rng, helpers > 0));
            is_over.store(true, SeqCst);
        } else {
            end_midway(runtime, &round, &mut rng, ending);
            is_over.store(true, SeqCst);
            return None;
        }
        Some(runtime)
    })
    .inspect(|runtime| assert_drained(runtime, &round));
    settle(&round, ending);
}

/// The ledger is closed: no goroutine is lost.
fn settle(round: &Round, ending: Ending) {
    let is_settled = || {
        let (born, ran, ended, unrun) = round.counts();
        match ending {
            Ending::Drained | Ending::Shutdown => born == ended + unrun,
            // The others were given up; some perhaps on a thread where they were about to begin.
            _ => (ran + unrun..=ran + unrun + 2 * round.procs + 16).contains(&born),
        }
    };
    assert!(eventually(is_settled), "{:?}", round.counts());
    let complaints = lock(&round.complaints);
    assert!(complaints.is_empty(), "{ending:?}: {complaints:#?}");
}

/// A goroutine that answers each time it is unparked.
struct Partner {
    handle: JoinHandle<()>,
    answers: Arc<AtomicUsize>,
}

impl Partner {
    fn new(is_locked: bool, is_over: &Arc<AtomicBool>) -> Partner {
        let (answers, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::clone(is_over));
        let counts = Arc::clone(&answers);
        let handle = thread::spawn(move || {
            if is_locked {
                gosched::lock_os_thread();
            }
            while !is_over.load(SeqCst) {
                thread::park();
                counts.fetch_add(1, SeqCst);
            }
        });
        Partner { handle, answers }
    }
}

/// Keeps the P busy, out of the runtime's sight, until the count is reached.
fn spin_until(round: &Round, count: &AtomicUsize, target: usize) {
    let until = Instant::now() + Duration::from_secs(60);
    while count.load(SeqCst) != target {
        if Instant::now() > until {
            return round.complain("a goroutine did not run though a P was idle");
        }
        std::thread::yield_now();
    }
}

/// A quiet round: a goroutine hands work on and keeps its own P busy until the work is done. So
/// another P must wake up for the work. A wake-up that is lost here stays lost until sysmon finds
/// it, and counts it as a rescue (L1, WK).
fn hand_over(round: &Arc<Round>, rng: &mut Rng) {
    let is_over = Arc::new(AtomicBool::new(false));
    let partners = [false, false, true].map(|locked| Partner::new(locked, &is_over));
    let (done, mut expected) = (Arc::new(AtomicUsize::new(0)), [0; 3]);
    for at in 1..=100 {
        // One, or several at a time.
        let first = rng.below(3) as usize;
        for which in first..=first + usize::from(first < 2 && rng.one_in(4)) {
            partners[which].handle.thread().unpark();
            expected[which] += 1;
        }
        for (partner, expected) in partners.iter().zip(expected) {
            spin_until(round, &partner.answers, expected);
        }
        let (ticket, done_there) = (Ticket::new(round), Arc::clone(&done));
        gosched::go(move || {
            ticket.run();
            done_there.fetch_add(1, SeqCst);
        });
        spin_until(round, &done, at);
        // Others are on their way to sleep, at every point of it.
        match rng.below(8) {
            0 => thread::sleep(Duration::from_micros(rng.below(200))),
            1 => gosched::yield_now(),
            _ => (0..rng.below(20_000)).for_each(|_| std::hint::spin_loop()),
        }
    }
    is_over.store(true, SeqCst);
    for partner in partners {
        partner.handle.thread().unpark();
        partner.handle.join().unwrap();
    }
}

fn run_quiet_round(seed: u64, procs: usize, now: &Now) {
    let mut rng = Rng::new(seed);
    let round = Round::new(&mut rng, procs, true);
    let runtime = Runtime::builder().procs(procs).build().unwrap();
    begin(now, seed, Ending::Drained, runtime.handle(), &round);
    runtime.run(|| hand_over(&round, &mut rng));
    assert_drained(&runtime, &round);
    settle(&round, Ending::Drained);
}

/// Tells the watchdog which round begins.
fn begin(now: &Now, seed: u64, ending: Ending, handle: Handle, round: &Arc<Round>) {
    let round = Arc::clone(round);
    now.begin_with(format!("round {seed:#x} ({ending:?})"), handle, move || {
        let waiting = lock(&round.waiting).len();
        let counts = round.counts();
        format!("(born, ran, ended, unrun) {counts:?}\nwaiting {waiting}")
    });
}

/// Rounds for some seconds.
fn stress(procs: usize) {
    let seed = seed();
    let what = format!("stress with {procs} Ps, GOSCHED_STRESS_SEED={seed}");
    let mut rng = Rng::new(seed ^ procs as u64);
    rounds(&what, 3.0, |now| {
        if procs > 1 && rng.one_in(3) {
            run_quiet_round(rng.next(), procs, now);
        } else {
            run_round(rng.next(), procs, now);
        }
    });
}

#[test]
fn stress_1_p() {
    stress(1);
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
fn stress_64_ps() {
    stress(64);
}
