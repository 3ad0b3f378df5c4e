//! Measures a wake-up from outside: a plain thread unparks a goroutine of a runtime that is
//! entirely asleep.
//!
//! The comparison is the least that the kernel can do: the same thread unparks a plain thread. On
//! Linux std's `park` and `unpark` are a futex wait and a futex wake with one atomic swap before
//! each. Goroutine and thread run the same code and are woken in turn, so a disturbance hits both.
//!
//! The waker stores the time and unparks. The sleeper takes the time, reads the clock and stores
//! the difference. The waker, which sleeps meanwhile, then finds it. When the waker rings again,
//! both sleepers have slept for at least a pause.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gosched::Runtime;

use crate::port::{self, Mode};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Params, Port, ROUNDS_DEFAULT, Workload};

pub const FOREIGN_WAKE: Workload = Workload {
    name: "foreign_wake",
    about: "a plain thread wakes a goroutine of an idle runtime, n times, against a futex wake",
    n: 2_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start),
    compared: &["time"],
    goals: &[],
    child: None,
};

/// How long all sides sleep between two wake-ups.
const PAUSE: Duration = Duration::from_micros(200);
/// A sleeper that has not answered after this long never will.
const PATIENCE: Duration = Duration::from_secs(10);

/// In `Bell::rung_ns`: not rung.
const SILENT: u64 = 0;
/// In `Bell::rung_ns`: the sleeper is to return.
const CLOSED: u64 = u64::MAX;
/// In `Bell::heard_ns`: not heard yet.
const UNHEARD: u64 = 0;

fn start(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || wake_round(&runtime, n)))
}

/// The calling thread wakes a goroutine and a thread in turn, `wakes` times each.
fn wake_round(runtime: &Runtime, wakes: usize) -> io::Result<Vec<Sample>> {
    let goroutine_bell = Arc::new(Bell::new());
    let thread_bell = Arc::new(Bell::new());
    let goroutine = runtime.spawn({
        let bell = Arc::clone(&goroutine_bell);
        move || bell.listen(gosched::thread::park)
    });
    let thread = std::thread::spawn({
        let bell = Arc::clone(&thread_bell);
        move || bell.listen(std::thread::park)
    });
    let wake_goroutine = || goroutine.thread().unpark();
    let wake_thread = || thread.thread().unpark();
    let mut goroutine_us = Vec::with_capacity(wakes);
    let mut thread_us = Vec::with_capacity(wakes);
    std::thread::sleep(PAUSE);
    for _ in 0..wakes {
        goroutine_us.push(goroutine_bell.ring(wake_goroutine));
        thread_us.push(thread_bell.ring(wake_thread));
    }
    goroutine_bell.close(wake_goroutine);
    thread_bell.close(wake_thread);
    goroutine.join().expect("a listener does not panic");
    thread.join().expect("a listener does not panic");
    let goroutine_us = rounds::median(&mut goroutine_us);
    let thread_us = rounds::median(&mut thread_us);
    Ok(vec![
        Sample::best("time", goroutine_us, "us"),
        Sample::best("futex_time", thread_us, "us"),
        Sample::median("ratio", goroutine_us / thread_us, "x"),
    ])
}

/// What a sleeper and its waker share.
struct Bell {
    /// The clock's zero.
    zero: Instant,
    /// When it was rung, or `SILENT` or `CLOSED`.
    rung_ns: AtomicU64,
    /// How long after the ring it was heard, or `UNHEARD`.
    heard_ns: AtomicU64,
}

impl Bell {
    fn new() -> Bell {
        Bell {
            zero: Instant::now(),
            rung_ns: AtomicU64::new(SILENT),
            heard_ns: AtomicU64::new(UNHEARD),
        }
    }

    fn now_ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    /// The sleeper: parks until rung, answers, parks again.
    fn listen(&self, park: impl Fn()) {
        loop {
            // ORDER: Acquire; pairs with Release in `ring` and `close`.
            match self.rung_ns.swap(SILENT, Ordering::Acquire) {
                SILENT => park(),
                CLOSED => return,
                rung_ns => {
                    let heard_ns = (self.now_ns() - rung_ns).max(UNHEARD + 1);
                    // ORDER: Release; pairs with Acquire in `ring`.
                    self.heard_ns.store(heard_ns, Ordering::Release);
                }
            }
        }
    }

    /// The waker: wakes the sleeper and returns the latency in microseconds.
    fn ring(&self, unpark: impl Fn()) -> f64 {
        // ORDER: Release; pairs with Acquire in `listen`.
        self.rung_ns.store(self.now_ns(), Ordering::Release);
        unpark();
        let rung = Instant::now();
        loop {
            std::thread::sleep(PAUSE);
            // ORDER: Acquire; pairs with Release in `listen`.
            match self.heard_ns.swap(UNHEARD, Ordering::Acquire) {
                UNHEARD if rung.elapsed() > PATIENCE => give_up(),
                UNHEARD => {}
                heard_ns => return heard_ns as f64 / 1e3,
            }
        }
    }

    /// Makes the sleeper return.
    fn close(&self, unpark: impl Fn()) {
        // ORDER: Release; pairs with Acquire in `listen`.
        self.rung_ns.store(CLOSED, Ordering::Release);
        unpark();
    }
}

/// Ends the process: a sleeper that cannot be woken cannot be joined.
fn give_up() -> ! {
    let name = FOREIGN_WAKE.name;
    crate::complain(&format!(
        "{name}: a wake-up was lost: no answer after {PATIENCE:?}"
    ));
    std::process::exit(1)
}
