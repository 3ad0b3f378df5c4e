//! What the gosched ports of all workloads share: the two modes and how a runtime is built for
//! each, a countdown, and many parked goroutines.
//!
//! A countdown makes one goroutine wait for many: the last one brings the count to zero and unparks
//! the waiter. That is one wake-up for all of them, as in Go's WaitGroup.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gosched::Runtime;
use gosched::thread::{self, JoinHandle, Thread};

/// Whose thread-locals a goroutine sees: its own (the default), or those of its thread. Each mode
/// is a port of every workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Own,
    Shared,
}

impl Mode {
    /// The name of the port, the second word of a line.
    pub const fn runtime(self) -> &'static str {
        match self {
            Mode::Own => "gosched",
            Mode::Shared => "gosched-shared",
        }
    }

    /// The mode's own name, for comparisons and for child processes.
    pub const fn short(self) -> &'static str {
        match self {
            Mode::Own => "own",
            Mode::Shared => "shared",
        }
    }

    /// The mode with this `short` name.
    pub fn find(short: &str) -> Option<Mode> {
        [Mode::Own, Mode::Shared]
            .into_iter()
            .find(|mode| mode.short() == short)
    }
}

/// Whether runtimes preempt; off only in a run whose instructions are counted.
static PREEMPTION: AtomicBool = AtomicBool::new(true);

/// Runtimes that are built from now on do not preempt.
pub fn without_preemption() {
    // ORDER: Relaxed; the thread that builds the runtimes calls it.
    PREEMPTION.store(false, Ordering::Relaxed);
}

/// The runtime of every gosched port.
///
/// The workloads may share their thread's thread-locals. They declare none, take no `Rc`, guard or
/// handle out of one, and use no thread's identity. malloc, a read of `/proc` and a printed line
/// use thread-locals inside std and libc, but not after they return. A goroutine makes the latter
/// two calls before and after switches. They are never inlined, so that no address of a
/// thread-local outlives the call.
pub fn runtime(mode: Mode, procs: usize) -> io::Result<Runtime> {
    // ORDER: Relaxed; the thread that builds the runtimes stored it.
    let preemption = PREEMPTION.load(Ordering::Relaxed);
    let builder = Runtime::builder().procs(procs).preemption(preemption);
    let builder = match mode {
        Mode::Own => builder,
        // SAFETY: D6. Goroutines of this program keep nothing of a thread-local over a switch; see
        // the doc of this function.
        Mode::Shared => unsafe { builder.shared_thread_locals() },
    };
    builder.build()
}

/// A count of goroutines for which one goroutine, its maker, waits.
pub struct Countdown {
    left: AtomicUsize,
    waiter: Thread,
}

impl Countdown {
    /// A countdown for the calling goroutine, at zero.
    fn new() -> Countdown {
        Countdown {
            left: AtomicUsize::new(0),
            waiter: thread::current(),
        }
    }

    /// A countdown that lives as long as the program. Goroutines share it without a reference
    /// count, which would be measured too. One is made per workload or round, not per goroutine.
    pub fn leaked() -> &'static Countdown {
        Box::leak(Box::new(Countdown::new()))
    }

    /// Sets the number of goroutines to wait for. Call it before they start.
    pub fn expect(&self, count: usize) {
        // ORDER: Relaxed; starting a goroutine publishes the store.
        self.left.store(count, Ordering::Relaxed);
    }

    /// A goroutine arrives; the last one wakes the waiter.
    pub fn arrive(&self) {
        // ORDER: AcqRel; pairs with Acquire in `wait`, through the arrivals between. All that the
        // goroutines did is visible to the waiter.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waiter.unpark();
        }
    }

    /// Parks until all have arrived. An unpark that comes late, after the count was seen at zero,
    /// only causes one more check.
    pub fn wait(&self) {
        // ORDER: Acquire; pairs with AcqRel in `arrive`.
        while self.left.load(Ordering::Acquire) != 0 {
            thread::park();
        }
    }
}

/// Goroutines that are parked until all are woken.
pub struct Parked {
    gate: &'static Gate,
    goroutines: Vec<JoinHandle<()>>,
}

struct Gate {
    parked: Countdown,
    /// The countdown of the goroutine that wakes them; set when the gate opens.
    finished: OnceLock<Countdown>,
}

impl Parked {
    /// Spawns `count` goroutines and returns when each has come to its `park()`. Each counts itself
    /// just before, so the last few may still be about to park.
    pub fn spawn(count: usize) -> Parked {
        let gate: &'static Gate = Box::leak(Box::new(Gate {
            parked: Countdown::new(),
            finished: OnceLock::new(),
        }));
        gate.parked.expect(count);
        let mut goroutines = Vec::with_capacity(count);
        goroutines.extend((0..count).map(|_| thread::spawn(|| gate.pass())));
        gate.parked.wait();
        Parked { gate, goroutines }
    }

    /// Unparks every goroutine and returns when all have ended. Call it once, in any goroutine of
    /// their runtime.
    pub fn wake_all(&self) {
        let finished = self.gate.finished.get_or_init(|| {
            let finished = Countdown::new();
            finished.expect(self.goroutines.len());
            finished
        });
        for goroutine in &self.goroutines {
            goroutine.thread().unpark();
        }
        finished.wait();
    }
}

impl Gate {
    /// The whole life of a parked goroutine.
    fn pass(&self) {
        self.parked.arrive();
        loop {
            match self.finished.get() {
                Some(finished) => return finished.arrive(),
                None => thread::park(),
            }
        }
    }
}
