//! Measures how late a goroutine is that needs little, while others never release their Ps.
//!
//! It shows whether preemption works, and how fair it is.
//!
//! The *ticker* sleeps a millisecond repeatedly. The time from its deadline until it runs is the
//! *lateness* of a tick. *Disturbers* run beside it, more than there are Ps. A *hog* is a disturber
//! that computes and calls nothing; `blocks` has others. The *relay*, if there is one, is a second
//! goroutine. The ticker passes its ticks to it, and the relay measures the lateness, so that a
//! tick needs two wake-ups.
//!
//! The plain thread that runs the round starts all, sleeps, sets `stop`, and waits for them with a
//! limit. So a runtime that does not let the ticker run ends with "stalled", and one that loses a
//! goroutine with "stuck". Neither holds up the next port.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gosched::Runtime;

use crate::port::{self, Mode};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, Workload};

pub const HOG: Workload = disturbed::<Hog>(
    "hog",
    "4 loops without a call, and a 1 ms ticker, for n ms; its lateness, their fair share",
);

pub const HOG_RELAY: Workload = disturbed::<HogRelay>(
    "hog_relay",
    "as hog; the ticker passes its ticks to a parked goroutine, whose lateness counts",
);

pub const HOG_SLEPT: Workload = disturbed::<HogSlept>(
    "hog_slept",
    "as hog; each loop begins after a sleep of 1 ms in its goroutine",
);

/// How long the ticker sleeps.
const TICK: Duration = Duration::from_millis(1);
/// Disturbers in a round.
const DISTURBERS: usize = 4;
/// The default length of a round.
const ROUND_MS: usize = 3_000;
/// A ticker with fewer ticks in a whole round was stalled; short rounds need fewer (see `samples`).
const TICKS_MIN: usize = 10;
/// A task that has not ended this long after `stop` never will.
const PATIENCE: Duration = Duration::from_secs(10);

/// A workload in which the ticker runs beside disturbers of one kind. One long round is enough: it
/// has thousands of ticks.
pub const fn disturbed<D: Disturber>(name: &'static str, about: &'static str) -> Workload {
    Workload {
        name,
        about,
        n: ROUND_MS,
        rounds: 1,
        has_warm_up: false,
        ports: const {
            &[
                Port::gosched(Mode::Own, start_gosched::<D>),
                Port::gosched(Mode::Shared, start_gosched::<D>),
                Port::std(start_std::<D>),
            ]
        },
        compared: &["late_p50", "late_p99"],
        goals: D::GOALS,
        child: None,
    }
}

/// A way to disturb the ticker.
pub trait Disturber: 'static {
    /// Whether the ticks go through a relay.
    const IS_RELAYED: bool = false;
    /// Whether the disturbers compete for CPU time, so that their shares count.
    const IS_SHARING: bool;
    /// The goals: the largest lateness and the smallest share.
    const GOALS: &'static [Goal];

    /// Disturbs until `stop`, and returns the amount of work done.
    fn disturb<T: Tasks>(stop: &AtomicBool) -> u64;
}

struct Hog;
struct HogRelay;
struct HogSlept;

impl Disturber for Hog {
    const IS_SHARING: bool = true;
    const GOALS: &'static [Goal] = &[
        Goal::new("gosched", "late_p50", 0.2, "ms"),
        Goal::new("gosched", "late_p99", 5.0, "ms"),
        Goal::new("gosched", "share", 0.95, "x"),
    ];

    fn disturb<T: Tasks>(stop: &AtomicBool) -> u64 {
        spin(stop)
    }
}

impl Disturber for HogRelay {
    const IS_RELAYED: bool = true;
    const IS_SHARING: bool = true;
    const GOALS: &'static [Goal] = &[
        Goal::new("gosched", "late_p50", 0.3, "ms"),
        Goal::new("gosched", "late_p99", 6.0, "ms"),
    ];

    fn disturb<T: Tasks>(stop: &AtomicBool) -> u64 {
        spin(stop)
    }
}

impl Disturber for HogSlept {
    const IS_SHARING: bool = true;
    const GOALS: &'static [Goal] = &[
        Goal::new("gosched", "late_p50", 0.3, "ms"),
        Goal::new("gosched", "late_p99", 6.0, "ms"),
    ];

    fn disturb<T: Tasks>(stop: &AtomicBool) -> u64 {
        T::sleep(TICK);
        spin(stop)
    }
}

/// The tight loop: counts until `stop`, which it reads rarely, and calls nothing. One function, so
/// that every port runs the same code.
#[inline(never)]
fn spin(stop: &AtomicBool) -> u64 {
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

/// What goroutines and plain threads have in common, so that every port runs the same code.
pub trait Tasks: 'static {
    type Handle<T>;
    type Thread: Send;

    /// Starts a task; called on plain threads.
    fn spawn<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Self::Handle<T>;
    /// The handle that wakes the task.
    fn thread<T>(handle: &Self::Handle<T>) -> Self::Thread;
    fn is_finished<T>(handle: &Self::Handle<T>) -> bool;
    fn join<T>(handle: Self::Handle<T>) -> T;
    fn unpark(thread: &Self::Thread);
    fn park();
    fn sleep(span: Duration);
    /// Runs a call that blocks, marked if the runtime has marks.
    fn blocking(call: impl FnOnce());
}

struct Goroutines(Runtime);

impl Tasks for Goroutines {
    type Handle<T> = gosched::thread::JoinHandle<T>;
    type Thread = gosched::thread::Thread;

    fn spawn<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Self::Handle<T> {
        self.0.spawn(task)
    }

    fn thread<T>(handle: &Self::Handle<T>) -> Self::Thread {
        handle.thread().clone()
    }

    fn is_finished<T>(handle: &Self::Handle<T>) -> bool {
        handle.is_finished()
    }

    fn join<T>(handle: Self::Handle<T>) -> T {
        handle.join().expect("a task does not panic")
    }

    fn unpark(thread: &Self::Thread) {
        thread.unpark();
    }

    fn park() {
        gosched::thread::park();
    }

    fn sleep(span: Duration) {
        gosched::thread::sleep(span);
    }

    fn blocking(call: impl FnOnce()) {
        gosched::blocking(call);
    }
}

struct Threads;

impl Tasks for Threads {
    type Handle<T> = std::thread::JoinHandle<T>;
    type Thread = std::thread::Thread;

    fn spawn<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Self::Handle<T> {
        std::thread::spawn(task)
    }

    fn thread<T>(handle: &Self::Handle<T>) -> Self::Thread {
        handle.thread().clone()
    }

    fn is_finished<T>(handle: &Self::Handle<T>) -> bool {
        handle.is_finished()
    }

    fn join<T>(handle: Self::Handle<T>) -> T {
        handle.join().expect("a task does not panic")
    }

    fn unpark(thread: &Self::Thread) {
        thread.unpark();
    }

    fn park() {
        std::thread::park();
    }

    fn sleep(span: Duration) {
        std::thread::sleep(span);
    }

    fn blocking(call: impl FnOnce()) {
        call();
    }
}

fn start_gosched<D: Disturber>(params: &Params, mode: Mode) -> io::Result<Round> {
    let tasks = Goroutines(port::runtime(mode, params.procs)?);
    let span = Duration::from_millis(params.n as u64);
    Ok(Box::new(move || round::<_, D>(&tasks, span)))
}

/// The kernel gives the threads all CPUs, whatever number of Ps the user asks for.
fn start_std<D: Disturber>(params: &Params) -> io::Result<Round> {
    let span = Duration::from_millis(params.n as u64);
    Ok(Box::new(move || round::<_, D>(&Threads, span)))
}

/// Runs the ticker beside disturbers for `span`.
fn round<T: Tasks, D: Disturber>(tasks: &T, span: Duration) -> io::Result<Vec<Sample>> {
    let stop = Arc::new(AtomicBool::new(false));
    let late_ms = start_ticker::<T, D>(tasks, &stop);
    let disturbers = [(); DISTURBERS].map(|()| {
        let stop = Arc::clone(&stop);
        tasks.spawn(move || D::disturb::<T>(&stop))
    });
    std::thread::sleep(span);
    // ORDER: Relaxed; the flag publishes no other data.
    stop.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + PATIENCE;
    let late_ms = join_until::<T, _>(late_ms, deadline)?;
    let mut work = Vec::with_capacity(DISTURBERS);
    for disturber in disturbers {
        work.push(join_until::<T, _>(disturber, deadline)?);
    }
    samples(late_ms, D::IS_SHARING.then_some(&work), span)
}

/// Starts the ticker, and the relay if there is one. Returns the task that measures the lateness of
/// all ticks.
fn start_ticker<T: Tasks, D: Disturber>(tasks: &T, stop: &Arc<AtomicBool>) -> T::Handle<Vec<f64>> {
    let stop = Arc::clone(stop);
    if !D::IS_RELAYED {
        return tasks.spawn(move || {
            let mut late_ms = Vec::with_capacity(ROUND_MS);
            tick::<T>(&stop, |wanted| late_ms.push(millis_since(wanted)));
            late_ms
        });
    }
    let mailbox = Arc::new(Mailbox::new());
    let relay = tasks.spawn({
        let mailbox = Arc::clone(&mailbox);
        move || mailbox.take_all(T::park)
    });
    let relay_thread = T::thread(&relay);
    tasks.spawn(move || {
        tick::<T>(&stop, |wanted| {
            mailbox.post(wanted);
            T::unpark(&relay_thread);
        });
        mailbox.close();
        T::unpark(&relay_thread);
    });
    relay
}

/// The ticker: calls `tell` for every tick, with the moment at which it wanted to wake.
fn tick<T: Tasks>(stop: &AtomicBool, mut tell: impl FnMut(Instant)) {
    // ORDER: Relaxed; the flag publishes no other data.
    while !stop.load(Ordering::Relaxed) {
        let wanted = Instant::now() + TICK;
        T::sleep(TICK);
        tell(wanted);
    }
}

fn millis_since(wanted: Instant) -> f64 {
    rounds::micros(wanted.elapsed()) / 1e3
}

/// What ticker and relay share: room for one tick.
struct Mailbox {
    /// The clock's zero.
    zero: Instant,
    /// When the tick was due, or `EMPTY`.
    wanted_ns: AtomicU64,
    /// Set after the last tick.
    is_closed: AtomicBool,
}

/// In `Mailbox::wanted_ns`: no tick.
const EMPTY: u64 = 0;

impl Mailbox {
    fn new() -> Mailbox {
        Mailbox {
            zero: Instant::now(),
            wanted_ns: AtomicU64::new(EMPTY),
            is_closed: AtomicBool::new(false),
        }
    }

    /// The ticker stores a tick. If the last one is still there, the new one is dropped: the relay
    /// is already late with the last.
    fn post(&self, wanted: Instant) {
        let wanted_ns = (wanted - self.zero).as_nanos() as u64;
        // ORDER: Release; pairs with Acquire in `take_all`.
        let _ = self.wanted_ns.compare_exchange(
            EMPTY,
            wanted_ns.max(EMPTY + 1),
            Ordering::Release,
            Ordering::Relaxed,
        );
    }

    /// The ticker is done.
    fn close(&self) {
        // ORDER: Release; pairs with Acquire in `take_all` — a relay that loads `true` sees the
        // last tick.
        self.is_closed.store(true, Ordering::Release);
    }

    /// The relay: takes every tick, and returns its lateness for each.
    fn take_all(&self, park: impl Fn()) -> Vec<f64> {
        let mut late_ms = Vec::with_capacity(ROUND_MS);
        loop {
            // ORDER: Acquire; pairs with Release in `close`. It is loaded before the tick, so that
            // the last tick is not missed.
            let was_closed = self.is_closed.load(Ordering::Acquire);
            // ORDER: Acquire; pairs with Release in `post`.
            match self.wanted_ns.swap(EMPTY, Ordering::Acquire) {
                EMPTY if was_closed => return late_ms,
                EMPTY => park(),
                wanted_ns => {
                    late_ms.push(millis_since(self.zero + Duration::from_nanos(wanted_ns)));
                }
            }
        }
    }
}

/// Joins a task after `stop`, until the deadline. A task that still runs then is left behind.
fn join_until<T: Tasks, R>(handle: T::Handle<R>, deadline: Instant) -> io::Result<R> {
    while !T::is_finished(&handle) {
        if Instant::now() > deadline {
            let text = format!("stuck: still running {PATIENCE:?} after stop was set");
            return Err(io::Error::other(text));
        }
        std::thread::sleep(TICK);
    }
    Ok(T::join(handle))
}

/// The samples of a round, from the lateness of its ticks and, if they compete, the work of the
/// disturbers.
fn samples(
    mut late_ms: Vec<f64>,
    work: Option<&Vec<u64>>,
    span: Duration,
) -> io::Result<Vec<Sample>> {
    let ticks = late_ms.len();
    let ticks_possible = span.div_duration_f64(TICK) as usize;
    if ticks < (ticks_possible / 100).clamp(1, TICKS_MIN) {
        let text = format!("stalled: {ticks} of {ticks_possible} ticks in {span:?}");
        return Err(io::Error::other(text));
    }
    late_ms.sort_by(f64::total_cmp);
    let mut samples = vec![
        Sample::best("late_p50", rounds::quantile(&late_ms, 0.50), "ms"),
        Sample::best("late_p99", rounds::quantile(&late_ms, 0.99), "ms"),
        Sample::worst("late_max", late_ms[ticks - 1], "ms"),
        Sample::least("ticks", ticks as f64, "count"),
    ];
    if let Some(work) = work {
        samples.push(Sample::least("share", share(work), "x"));
    }
    Ok(samples)
}

/// The work of the disturber with the least, as a share of the one with the most.
fn share(work: &[u64]) -> f64 {
    let least = *work.iter().min().expect("there are disturbers");
    let most = *work.iter().max().expect("there are disturbers");
    least as f64 / most.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_millis(ROUND_MS as u64);

    fn lines(late_ms: Vec<f64>, work: Option<&Vec<u64>>) -> Result<Vec<String>, String> {
        let samples = samples(late_ms, work, ROUND).map_err(|error| error.to_string())?;
        let figures = rounds::figures(&[samples]);
        Ok(figures.iter().map(|figure| figure.line("w r")).collect())
    }

    #[test]
    fn a_round_is_told_by_its_ticks_and_shares() {
        let late_ms = (1..=200).rev().map(f64::from).collect();
        let lines = lines(late_ms, Some(&vec![40, 30, 40, 20])).expect("no stall");
        assert_eq!(
            lines,
            [
                "w r late_p50 100 ms\n",
                "w r late_p50_median 100 ms\n",
                "w r late_p99 198 ms\n",
                "w r late_p99_median 198 ms\n",
                "w r late_max 200 ms\n",
                "w r ticks 200 count\n",
                "w r share 0.500 x\n",
            ]
        );
    }

    #[test]
    fn few_ticks_are_a_stall() {
        let complaint = lines(vec![300.0; TICKS_MIN - 1], None).expect_err("a stall");
        assert!(
            complaint.starts_with("stalled: 9 of 3000 ticks"),
            "{complaint}"
        );
        assert!(lines(vec![300.0; TICKS_MIN], None).is_ok());
        // A short round has time for fewer ticks, but at least one.
        let short = Duration::from_millis(20);
        assert!(samples(vec![0.0], None, short).is_ok());
        assert!(samples(Vec::new(), None, short).is_err());
    }

    #[test]
    fn who_did_nothing_has_no_share() {
        assert_eq!(share(&[7, 0]), 0.0);
        assert_eq!(share(&[0, 0]), 0.0);
        assert_eq!(share(&[7, 7]), 1.0);
    }

    #[test]
    fn the_relay_takes_the_oldest_tick_and_the_last_one() {
        let mut mailbox = Mailbox::new();
        mailbox.zero -= Duration::from_secs(1);
        mailbox.post(mailbox.zero);
        mailbox.post(Instant::now()); // dropped
        mailbox.close();
        let late_ms = mailbox.take_all(|| panic!("there is nothing to wait for"));
        assert!(matches!(*late_ms, [late] if late > 999.0), "{late_ms:?}");
    }

    #[test]
    fn the_relay_waits_for_ticks_until_the_mailbox_is_closed() {
        let mailbox = Arc::new(Mailbox::new());
        let relay = std::thread::spawn({
            let mailbox = Arc::clone(&mailbox);
            move || mailbox.take_all(std::thread::park)
        });
        mailbox.post(Instant::now());
        relay.thread().unpark();
        // ORDER: Acquire; no partner, the test only waits until the tick is taken.
        while mailbox.wanted_ns.load(Ordering::Acquire) != EMPTY {
            std::thread::yield_now();
        }
        mailbox.post(Instant::now());
        mailbox.close();
        relay.thread().unpark();
        assert_eq!(relay.join().expect("it does not panic").len(), 2);
    }

    #[test]
    fn a_task_that_does_not_stop_is_left_behind() {
        let stop = Arc::new(AtomicBool::new(false));
        let hog = || {
            let stop = Arc::clone(&stop);
            Threads.spawn(move || spin(&stop))
        };
        let (stuck, stopping) = (hog(), hog());
        let complaint = join_until::<Threads, _>(stuck, Instant::now()).expect_err("it spins");
        assert!(complaint.to_string().starts_with("stuck"), "{complaint}");
        stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + 6 * PATIENCE;
        join_until::<Threads, _>(stopping, deadline).expect("it was told to stop");
    }
}
