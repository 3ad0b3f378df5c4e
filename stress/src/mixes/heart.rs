//! The heartbeat: a goroutine that sleeps a millisecond and one that yields must not starve (U2,
//! U4, L2).
//!
//! On a busy machine time proves little. So a goroutine that yields, and one that is woken, also
//! count the scheduling decisions until they run again. "Bounded waiting" in `sched/README.md` has
//! the bound.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::{debug, thread};

use crate::env::{Actor, TURN};
use crate::ledger::{HEARTBEAT, SPAWN, YIELD};

const BEAT: Duration = Duration::from_millis(1);

/// One in this many decisions of a P is a fair one.
const FAIR_EVERY: u64 = 61;
/// The slots of a P's ring.
const RING: u64 = 256;

pub fn root(a: &mut Actor) {
    let yields = a.spawn(|a| {
        while !a.over() {
            a.env.ledger.beat(YIELD);
            let (waits, began) = (Waits::begin(), Instant::now());
            thread::yield_now();
            a.env.ledger.took(YIELD, began.elapsed());
            waits.end(a, "a yielding goroutine");
            a.op();
            thread::sleep(Duration::from_micros(500));
        }
    });
    let woken = a.spawn(be_woken);
    while !a.over() {
        a.env.ledger.beat(HEARTBEAT);
        let began = Instant::now();
        thread::sleep(BEAT);
        let took = began.elapsed();
        a.expect(took >= BEAT, "a sleep was too short");
        a.env.ledger.took(HEARTBEAT, took - BEAT.min(took));
        let began = Instant::now();
        // A goroutine that has not begun waits while every thread is held.
        if !a.env.has_no_threads.load(SeqCst)
            && let Some(child) = a.spawn(|_| 7)
        {
            a.join(child);
            a.env.ledger.took(SPAWN, began.elapsed());
        }
        a.op();
    }
    a.join_all(vec![yields, woken]);
}

/// Wakes a parked goroutine repeatedly, which counts decisions.
fn be_woken(a: &mut Actor) {
    let slot = Arc::new(std::sync::Mutex::new(None::<Waits>));
    let is_over = Arc::new(AtomicBool::new(false));
    let (own, is_done) = (Arc::clone(&slot), Arc::clone(&is_over));
    let sleeper = a.spawn(move |a| {
        while !is_done.load(SeqCst) && !a.over() {
            thread::park_timeout(TURN);
            if let Some(waits) = crate::ledger::lock(&own).take() {
                waits.end(a, "a woken goroutine");
            }
        }
    });
    if let Some(sleeper) = sleeper {
        while !a.over() {
            let waits = Waits::begin();
            *crate::ledger::lock(&slot) = Some(waits);
            sleeper.thread().unpark();
            a.op();
            thread::sleep(Duration::from_micros(700));
        }
        is_over.store(true, SeqCst);
        sleeper.thread().unpark();
        a.join(sleeper);
    }
}

/// A wait, measured in decisions of the Ps of the caller's runtime.
struct Waits {
    /// The count of each P.
    decisions: Vec<u64>,
    goroutines: u64,
}

impl Waits {
    fn begin() -> Waits {
        let metrics = debug::metrics();
        Waits {
            decisions: metrics.per_proc.iter().map(|p| p.decisions).collect(),
            goroutines: metrics.goroutines as u64,
        }
    }

    /// Checks that some P has made no more decisions than the bound. The bound is a wait in a ring,
    /// and then behind all others in the global queue, where every other 61st decision serves its
    /// half. The number of other goroutines is known only roughly, so it counts twice. The
    /// goroutine may also be preempted once before and once after the wait.
    fn end(self, a: &Actor, who: &str) {
        let now = Waits::begin();
        let each = self.decisions.iter().zip(&now.decisions);
        let Some(waited) = each.map(|(then, now)| now.saturating_sub(*then)).min() else {
            return;
        };
        let others = 2 * self.goroutines.max(now.goroutines);
        let bound = 3 * (FAIR_EVERY * (RING.min(others) + 2) + 2 * FAIR_EVERY * (others + 2));
        a.env.ledger.waited(waited);
        a.expect(
            waited <= bound,
            format_args!("U2: {who} waited for {waited} decisions, the bound is {bound}"),
        );
    }
}
