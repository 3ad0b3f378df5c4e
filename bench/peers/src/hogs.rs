//! What `hog…` and `block…` measure, for both styles: how late a ticker is among tasks that do not
//! release their thread. Also the bell of `foreign_wake`.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Figures, metric, micros, quantile};

/// How long the ticker sleeps.
pub const TICK: Duration = Duration::from_millis(1);
/// How long a disturber of `block…` sleeps at a time.
pub const NAP: Duration = Duration::from_millis(50);
/// Disturbers in a round.
pub const DISTURBERS: usize = 4;
/// A ticker with fewer ticks in a whole round was stalled.
const TICKS_MIN: usize = 10;
/// A task that has not ended this long after `stop` never will.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What disturbs the ticker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Loops.
    Hog,
    /// Loops, and the ticks go through a relay.
    Relay,
    /// Loops, each after a sleep.
    Slept,
    /// Blocked threads.
    Block,
    /// The same, marked.
    Marked,
}

impl Kind {
    /// The kind of a workload.
    pub fn of(workload: &str) -> Option<Kind> {
        match workload {
            "hog" => Some(Kind::Hog),
            "hog_relay" => Some(Kind::Relay),
            "hog_slept" => Some(Kind::Slept),
            "block" => Some(Kind::Block),
            "block_marked" => Some(Kind::Marked),
            _ => None,
        }
    }

    fn is_sharing(self) -> bool {
        matches!(self, Kind::Hog | Kind::Relay | Kind::Slept)
    }
}

/// The tight loop: counts until `stop`, which it reads rarely, and calls nothing.
#[inline(never)]
pub fn spin(stop: &AtomicBool) -> u64 {
    const COUNTS_PER_LOOK: u64 = 1_000;
    let mut count = 0;
    // ORDER: Relaxed; the flag publishes no other data.
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..COUNTS_PER_LOOK {
            count = black_box(count + 1);
        }
    }
    count
}

pub fn is_over(stop: &AtomicBool) -> bool {
    // ORDER: Relaxed; the flag publishes no other data.
    stop.load(Ordering::Relaxed)
}

/// The lateness, in milliseconds.
pub fn late_ms(wanted: Instant) -> f64 {
    micros(wanted.elapsed()) / 1e3
}

/// What ticker and relay share: room for one tick.
pub struct Mailbox {
    zero: Instant,
    /// When the tick was due, or `EMPTY`.
    wanted_ns: AtomicU64,
    /// Set after the last tick.
    is_closed: AtomicBool,
}

const EMPTY: u64 = 0;

/// What the relay finds.
pub enum Mail {
    /// A tick that was due then.
    Tick(Instant),
    /// Nothing yet.
    None,
    /// Nothing any more.
    Over,
}

impl Mailbox {
    pub fn new() -> Mailbox {
        Mailbox {
            zero: Instant::now(),
            wanted_ns: AtomicU64::new(EMPTY),
            is_closed: AtomicBool::new(false),
        }
    }

    /// The ticker stores a tick; it is dropped if the last one is still there.
    pub fn post(&self, wanted: Instant) {
        let wanted_ns = ((wanted - self.zero).as_nanos() as u64).max(EMPTY + 1);
        // ORDER: Release; pairs with Acquire in `take`.
        let _ =
            self.wanted_ns
                .compare_exchange(EMPTY, wanted_ns, Ordering::Release, Ordering::Relaxed);
    }

    /// The ticker is done.
    pub fn close(&self) {
        // ORDER: Release; pairs with Acquire in `take`.
        self.is_closed.store(true, Ordering::Release);
    }

    /// The relay takes a tick.
    pub fn take(&self) -> Mail {
        // ORDER: Acquire; pairs with Release in `close`. It is loaded before the tick, so that the
        // last tick is not missed.
        let was_closed = self.is_closed.load(Ordering::Acquire);
        // ORDER: Acquire; pairs with Release in `post`.
        match self.wanted_ns.swap(EMPTY, Ordering::Acquire) {
            EMPTY if was_closed => Mail::Over,
            EMPTY => Mail::None,
            wanted_ns => Mail::Tick(self.zero + Duration::from_nanos(wanted_ns)),
        }
    }
}

/// Waits until `is_finished`, or the deadline.
pub fn wait_until(deadline: Instant, is_finished: impl Fn() -> bool) -> Result<(), String> {
    while !is_finished() {
        if Instant::now() > deadline {
            return Err(format!(
                "stuck: still running {PATIENCE:?} after stop was set"
            ));
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// The figures of a round, from the lateness of its ticks and the work of the disturbers, which
/// counts if they compete.
pub fn figures(kind: Kind, mut late_ms: Vec<f64>, work: &[u64], span: Duration) -> Figures {
    let ticks = late_ms.len();
    let possible = span.div_duration_f64(TICK) as usize;
    if ticks < (possible / 100).clamp(1, TICKS_MIN) {
        return Err(format!("stalled: {ticks} of {possible} ticks in {span:?}"));
    }
    late_ms.sort_by(f64::total_cmp);
    let mut figures = vec![
        metric("late_p50", quantile(&late_ms, 0.50), "ms"),
        metric("late_p99", quantile(&late_ms, 0.99), "ms"),
        metric("late_max", late_ms[ticks - 1], "ms"),
        metric("ticks", ticks as f64, "count"),
    ];
    if kind.is_sharing() {
        let least = work.iter().min().copied().unwrap_or_default() as f64;
        let most = work.iter().max().copied().unwrap_or_default().max(1) as f64;
        figures.push(metric("share", least / most, "x"));
    }
    Ok(figures)
}

/// The bell of `foreign_wake`: a plain thread stores the time and wakes the sleeper, which stores
/// how long that took.
pub struct Bell {
    zero: Instant,
    /// When it was rung, or `SILENT` or `CLOSED`.
    rung_ns: AtomicU64,
    /// How long after the ring it was heard, or `UNHEARD`.
    heard_ns: AtomicU64,
}

/// How long all sides of `foreign_wake` sleep between two wake-ups.
pub const PAUSE: Duration = Duration::from_micros(200);
const SILENT: u64 = 0;
const CLOSED: u64 = u64::MAX;
const UNHEARD: u64 = 0;

impl Bell {
    pub fn new() -> Bell {
        Bell {
            zero: Instant::now(),
            rung_ns: AtomicU64::new(SILENT),
            heard_ns: AtomicU64::new(UNHEARD),
        }
    }

    fn now_ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    /// The sleeper answers if it was rung, and returns whether to continue. If so it should sleep
    /// until woken, and listen again.
    pub fn listen(&self) -> bool {
        loop {
            // ORDER: Acquire; pairs with Release in `ring` and `close`.
            match self.rung_ns.swap(SILENT, Ordering::Acquire) {
                SILENT => return true,
                CLOSED => return false,
                rung_ns => {
                    let heard_ns = (self.now_ns() - rung_ns).max(UNHEARD + 1);
                    // ORDER: Release; pairs with Acquire in `ring`.
                    self.heard_ns.store(heard_ns, Ordering::Release);
                }
            }
        }
    }

    /// Wakes the sleeper and returns the latency in microseconds.
    pub fn ring(&self, wake: impl Fn()) -> f64 {
        // ORDER: Release; pairs with Acquire in `listen`.
        self.rung_ns.store(self.now_ns(), Ordering::Release);
        wake();
        let rung = Instant::now();
        loop {
            std::thread::sleep(PAUSE);
            // ORDER: Acquire; pairs with Release in `listen`.
            match self.heard_ns.swap(UNHEARD, Ordering::Acquire) {
                UNHEARD => assert!(rung.elapsed() < PATIENCE, "a wake-up was lost"),
                heard_ns => return heard_ns as f64 / 1e3,
            }
        }
    }

    /// Makes the sleeper return.
    pub fn close(&self, wake: impl Fn()) {
        // ORDER: Release; pairs with Acquire in `listen`.
        self.rung_ns.store(CLOSED, Ordering::Release);
        wake();
    }
}

/// Wakes a task and a plain thread in turn; the task listens to `bell`.
pub fn foreign_wakes(wakes: usize, bell: &Bell, wake: impl Fn()) -> Figures {
    let thread_bell = std::sync::Arc::new(Bell::new());
    let thread = std::thread::spawn({
        let bell = std::sync::Arc::clone(&thread_bell);
        move || {
            while bell.listen() {
                std::thread::park();
            }
        }
    });
    let wake_thread = || thread.thread().unpark();
    let (mut task_us, mut thread_us) = (Vec::new(), Vec::new());
    std::thread::sleep(PAUSE);
    for _ in 0..wakes {
        task_us.push(bell.ring(&wake));
        thread_us.push(thread_bell.ring(wake_thread));
    }
    bell.close(wake);
    thread_bell.close(wake_thread);
    thread.join().expect("a listener does not panic");
    let task_us = crate::common::median(&mut task_us);
    let thread_us = crate::common::median(&mut thread_us);
    Ok(vec![
        metric("time", task_us, "us"),
        metric("futex_time", thread_us, "us"),
        metric("ratio", task_us / thread_us, "x"),
    ])
}
