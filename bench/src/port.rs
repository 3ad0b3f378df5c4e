//! Decides what the gosched ports of all workloads share: how the runtime is
//! built, how one goroutine waits for many, and how many are parked at once.
//!
//! Waiting for many is a count that the last one brings to zero before it
//! unparks the waiter: one wake-up for all of them, as Go's WaitGroup does it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gosched::Runtime;
use gosched::thread::{self, JoinHandle, Thread};

/// The name of these ports.
pub const GOSCHED: &str = "gosched";

/// The runtime every gosched port runs on.
pub fn runtime(procs: usize) -> io::Result<Runtime> {
    Runtime::builder().procs(procs).build()
}

/// A count of goroutines that one goroutine, its maker, waits for.
pub struct Countdown {
    left: AtomicUsize,
    waiter: Thread,
}

impl Countdown {
    /// A countdown for the calling goroutine that starts at zero.
    fn new() -> Countdown {
        Countdown {
            left: AtomicUsize::new(0),
            waiter: thread::current(),
        }
    }

    /// A countdown that lives as long as the program, so that goroutines share
    /// it without counting references, which would be measured too. One is
    /// made per workload or round, not per goroutine.
    pub fn leaked() -> &'static Countdown {
        Box::leak(Box::new(Countdown::new()))
    }

    /// Sets the number of goroutines to wait for. Call it before they start.
    pub fn expect(&self, count: usize) {
        // ORDER: Relaxed; starting a goroutine publishes what came before it.
        self.left.store(count, Ordering::Relaxed);
    }

    /// One of them is there; the last one wakes the waiter.
    pub fn arrive(&self) {
        // ORDER: AcqRel; pairs with Acquire in `wait`, through the arrivals
        // between — what every goroutine did is visible to the waiter.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waiter.unpark();
        }
    }

    /// Parks until all have arrived. An unpark that comes late, for a count
    /// that was seen at zero before it, only makes the loop look once more.
    pub fn wait(&self) {
        // ORDER: Acquire; pairs with AcqRel in `arrive`.
        while self.left.load(Ordering::Acquire) != 0 {
            thread::park();
        }
    }
}

/// Goroutines that are parked until they are all woken.
pub struct Parked {
    gate: &'static Gate,
    goroutines: Vec<JoinHandle<()>>,
}

struct Gate {
    parked: Countdown,
    finished: Countdown,
    is_open: AtomicBool,
}

impl Parked {
    /// Spawns `count` goroutines and returns when each has come to its
    /// `park()`. Each one announces itself just before, so the last few may
    /// still be on their way into it.
    pub fn spawn(count: usize) -> Parked {
        let gate: &'static Gate = Box::leak(Box::new(Gate {
            parked: Countdown::new(),
            finished: Countdown::new(),
            is_open: AtomicBool::new(false),
        }));
        gate.parked.expect(count);
        gate.finished.expect(count);
        let mut goroutines = Vec::with_capacity(count);
        goroutines.extend((0..count).map(|_| thread::spawn(|| gate.pass())));
        gate.parked.wait();
        Parked { gate, goroutines }
    }

    /// Unparks every goroutine and returns when all have done their work.
    pub fn wake_all(&self) {
        // ORDER: Release; pairs with Acquire in `Gate::pass`.
        self.gate.is_open.store(true, Ordering::Release);
        for goroutine in &self.goroutines {
            goroutine.thread().unpark();
        }
        self.gate.finished.wait();
    }
}

impl Gate {
    /// The whole life of a parked goroutine.
    fn pass(&self) {
        self.parked.arrive();
        // ORDER: Acquire; pairs with Release in `Parked::wake_all`.
        while !self.is_open.load(Ordering::Acquire) {
            thread::park();
        }
        self.finished.arrive();
    }
}
