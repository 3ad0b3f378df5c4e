//! What all ports share: the size of the work, figures, right answers, random durations, and the
//! kernel's counters of this process.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How much work a round does.
#[derive(Clone, Copy)]
pub struct Params {
    /// The size of the work, in the workload's own unit.
    pub n: usize,
    /// Worker threads.
    pub procs: usize,
}

/// One figure of one round.
pub struct Metric {
    name: &'static str,
    value: f64,
    unit: &'static str,
}

impl Metric {
    /// The figure as a line for the driver.
    pub fn line(&self) -> String {
        format!("{} {} {}\n", self.name, self.value, self.unit)
    }
}

pub fn metric(name: &'static str, value: f64, unit: &'static str) -> Metric {
    Metric { name, value, unit }
}

/// The figures of a round, or an error.
pub type Figures = Result<Vec<Metric>, String>;

/// A runtime's answer to a workload.
pub enum Offer {
    /// It is ready for rounds.
    Rounds(Box<dyn FnMut() -> Figures>),
    /// It listens at this port.
    Server(u16),
    /// It cannot do the workload, for this reason.
    Unsupported(String),
}

/// An offer of rounds.
pub fn rounds(round: impl FnMut() -> Figures + 'static) -> Offer {
    Offer::Rounds(Box::new(round))
}

/// An offer with a reason why not.
pub fn unsupported(reason: &str) -> Offer {
    Offer::Unsupported(reason.into())
}

/// The time since `start`, divided by the number of operations.
pub fn ns_each(start: Instant, things: usize) -> f64 {
    start.elapsed().as_nanos() as f64 / things as f64
}

/// A duration in microseconds.
pub fn micros(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e3
}

/// Sorts the values and returns the middle one; of an even number, the upper.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The smallest of the sorted values that at least this share of them does not exceed.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Tasks alive at once in `spawn`.
pub const SPAWN_BATCH: usize = 1_000;
/// The largest argument that `fib` computes without a task.
pub const FIB_SERIAL_MAX: usize = 15;
/// How often fib(n) is computed in a round.
pub const FIB_REPEATS: usize = 10;
/// The capacity of the channels of `chan_spsc` and `chan_mpmc`.
pub const CAPACITY: usize = 128;
/// Tasks on each side of `chan_mpmc`.
pub const CROWD: usize = 4;
/// The capacity of the channels of `select…`, and selects between two fillings.
pub const SELECT_BATCH: usize = 256;
/// Children of each node of `skynet`.
pub const CHILDREN: u64 = 10;
/// Tasks that want the lock of `mutex`.
pub const LOCKERS: usize = 8;
/// Sleeps of each task of `timers`.
pub const SLEEPS: usize = 5;
/// Connections of `std_echo`, with a task at each end.
pub const TALKERS: usize = 1_000;
/// The length of a message of `std_echo`.
pub const MESSAGE: usize = 64;
/// Tasks parked in `idle_cpu`.
pub const QUIET_TASKS: usize = 100_000;
/// How much longer the sleep of `idle_cpu` is than the time measured.
pub const QUIET_MARGIN: Duration = Duration::from_secs(1);
/// Longer than any run.
pub const SPAN_FAR: Duration = Duration::from_secs(3_600);

/// Splits `count` into batches of at most `batch`.
pub fn batches(count: usize, batch: usize) -> impl Iterator<Item = usize> {
    (0..count)
        .step_by(batch)
        .map(move |done| batch.min(count - done))
}

/// The work of `fib` below the limit: plain calls.
pub fn fib_serial(n: usize) -> u64 {
    if n < 2 {
        return n as u64;
    }
    fib_serial(n - 1) + fib_serial(n - 2)
}

/// The right answer of `fib`.
pub fn fib_by_adding(n: usize) -> Result<u64, String> {
    let (mut this, mut next) = (0_u64, 1_u64);
    for _ in 0..n {
        let sum = this.checked_add(next).ok_or("n is too large")?;
        (this, next) = (next, sum);
    }
    Ok(this)
}

/// The right answer of `skynet`.
pub fn skynet_sum(leaves: u64) -> Result<u64, String> {
    let mut rest = leaves;
    while rest > 1 && rest.is_multiple_of(CHILDREN) {
        rest /= CHILDREN;
    }
    match (rest, leaves.checked_mul(leaves - 1)) {
        (1, Some(product)) => Ok(product / 2),
        _ => Err(format!("n must be a power of {CHILDREN}")),
    }
}

/// The right answer of the streams of messages.
pub fn stream_sum(messages: usize) -> u64 {
    let messages = messages as u64;
    messages * (messages - 1) / 2
}

/// The right answer of `sieve`.
pub fn nth_prime(n: usize) -> u64 {
    let mut primes: Vec<u64> = Vec::with_capacity(n);
    for number in 2.. {
        if primes.len() == n {
            break;
        }
        let mut small = primes.iter().take_while(|prime| *prime * *prime <= number);
        if small.all(|prime| number % prime != 0) {
            primes.push(number);
        }
    }
    primes[n - 1]
}

/// The durations of a task's sleeps, the same for every runtime: 1 to 50 ms, in pseudorandom whole
/// microseconds.
pub fn spans(sleeper: usize) -> impl Iterator<Item = Duration> {
    (0..SLEEPS).map(move |nth| {
        let us = 1_000 + scramble((sleeper * SLEEPS + nth) as u64) % 49_001;
        Duration::from_micros(us)
    })
}

/// A number that depends on every bit of another one (SplitMix64's last steps).
fn scramble(number: u64) -> u64 {
    let mut x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// How late each of many sleeps was, written by the sleeping tasks.
pub struct Lateness(Box<[AtomicU64]>);

impl Lateness {
    /// Room for all sleeps of this many tasks.
    pub fn of(sleepers: usize) -> Lateness {
        Lateness((0..sleepers * SLEEPS).map(|_| AtomicU64::new(0)).collect())
    }

    /// A sleep of `span` that began at `start` has ended.
    pub fn note(&self, sleeper: usize, nth: usize, start: Instant, span: Duration) {
        let us = micros(start.elapsed()) - micros(span);
        // ORDER: Relaxed; the countdown comes between this store and the load in `figures`.
        self.0[sleeper * SLEEPS + nth].store(us.to_bits(), Ordering::Relaxed);
    }

    /// The figures of `timers` and `timers_10k`: these two times, and how late the sleeps were.
    pub fn figures(&self, time: Duration, cpu: Duration) -> Figures {
        // ORDER: Relaxed; the countdown comes between the stores in `note` and this load.
        let us = |slot: &AtomicU64| f64::from_bits(slot.load(Ordering::Relaxed));
        let mut late_us: Vec<f64> = self.0.iter().map(us).collect();
        late_us.sort_by(f64::total_cmp);
        if late_us[0] < 0.0 {
            return Err(format!("a sleep was {} us too short", -late_us[0]));
        }
        Ok(vec![
            metric("time", micros(time) / 1e3, "ms"),
            metric("cpu", micros(cpu) / 1e3, "ms"),
            metric("late_p50", quantile(&late_us, 0.5), "us"),
            metric("late_p99", quantile(&late_us, 0.99), "us"),
        ])
    }
}

/// Threads that submit in `submit_16`.
const SUBMITTERS: usize = 16;

/// A round of `submit_16`: plain threads submit `tasks` tasks, each of which arrives. From the
/// moment at which the first thread begins until the last task has run. All threads exist before
/// that.
pub fn submits(tasks: usize, submit: fn(&'static Arrivals)) -> Figures {
    let arrivals: &'static Arrivals = Box::leak(Box::new(Arrivals {
        left: AtomicUsize::new(tasks),
        waiter: thread::current(),
    }));
    let gate = Arc::new(Barrier::new(SUBMITTERS));
    let submitters = [0; SUBMITTERS].map(|_| Arc::clone(&gate));
    let submitters = submitters.into_iter().enumerate().map(|(nth, gate)| {
        let share = tasks / SUBMITTERS + usize::from(nth < tasks % SUBMITTERS);
        thread::spawn(move || {
            gate.wait();
            let start = Instant::now();
            (0..share).for_each(|_| submit(arrivals));
            start
        })
    });
    let submitters: Vec<_> = submitters.collect();
    arrivals.wait();
    let end = Instant::now();
    let starts = submitters.into_iter().map(|submitter| submitter.join());
    let starts = starts.map(|start| start.expect("a submitter does not panic"));
    let start = starts.min().expect("there are submitters");
    let each_ns = (end - start).as_nanos() as f64 / tasks as f64;
    Ok(vec![metric("time", each_ns, "ns")])
}

/// A count of tasks for which one plain thread waits.
pub struct Arrivals {
    left: AtomicUsize,
    waiter: Thread,
}

impl Arrivals {
    /// A task arrives; the last one wakes the waiter.
    pub fn arrive(&self) {
        // ORDER: AcqRel; pairs with Acquire in `wait`, through the arrivals between.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waiter.unpark();
        }
    }

    /// Blocks the thread until all have arrived.
    fn wait(&self) {
        // ORDER: Acquire; pairs with AcqRel in `arrive`.
        while self.left.load(Ordering::Acquire) != 0 {
            thread::park();
        }
    }
}

/// The backlog of every server. A whole wave of `accept_burst` has room in it.
const BACKLOG: libc::c_int = 2_048;

/// Gives a listening socket the backlog that all servers have, in place of its runtime's own.
pub fn set_backlog(listener: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: the call takes numbers and touches no memory. The descriptor is open.
    match unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The memory of this process in bytes: resident pages and page tables.
pub fn own_memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is there");
    let field = |label: &str| -> u64 {
        let rest = status.lines().find_map(|line| line.strip_prefix(label));
        let word = rest.and_then(|rest| rest.split_whitespace().next());
        word.and_then(|word| word.parse().ok()).expect("a number")
    };
    (field("VmRSS:") + field("VmPTE:")) * 1024
}

/// The CPU time of this process so far.
pub fn own_cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec` in this frame.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(answer, 0, "every process has a CPU clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The connections of `std_echo`, and the echoes on each.
pub fn talkers(echoes: usize) -> (usize, usize) {
    let talkers = TALKERS.min(echoes);
    (talkers, echoes.div_ceil(talkers))
}

/// The figures of `std_echo`, per echo.
pub fn echo_figures(echoes: usize, time: Duration, cpu: Duration) -> Figures {
    let n = echoes as f64;
    Ok(vec![
        metric("time", micros(time) / n, "us"),
        metric("cpu", micros(cpu) / n, "us"),
    ])
}

/// The figures of `std_mpsc`, per round trip.
pub fn trip_figures(trips: usize, each_ns: f64, cpu: Duration) -> Figures {
    Ok(vec![
        metric("time", each_ns, "ns"),
        metric("cpu", cpu.as_nanos() as f64 / trips as f64, "ns"),
    ])
}

/// The figures of `idle_1m`, per task.
pub fn idle_figures(tasks: usize, bytes: u64, park_ns: f64, wake_ns: f64) -> Figures {
    Ok(vec![
        metric("memory", bytes as f64 / tasks as f64, "bytes"),
        metric("park_time", park_ns, "ns"),
        metric("wake_time", wake_ns, "ns"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_answers_are_right() {
        assert_eq!((nth_prime(1), nth_prime(25)), (2, 97));
        assert_eq!((fib_by_adding(20), fib_serial(20)), (Ok(6_765), 6_765));
        assert_eq!((skynet_sum(1), skynet_sum(100)), (Ok(0), Ok(4_950)));
        assert!(skynet_sum(20).is_err());
        assert_eq!(stream_sum(4), 6);
    }

    #[test]
    fn every_submission_is_awaited() {
        for tasks in [1, 16, 100] {
            let figures = submits(tasks, Arrivals::arrive).expect("a round");
            assert!(figures[0].line().starts_with("time "));
        }
    }

    #[test]
    fn the_figures_of_sleeps_have_both_times_and_the_lateness() {
        let late = Lateness::of(1);
        let (now, span) = (Instant::now(), Duration::ZERO);
        (0..SLEEPS).for_each(|nth| late.note(0, nth, now, span));
        let (time, cpu) = (Duration::from_millis(3), Duration::from_millis(2));
        let lines: String = late
            .figures(time, cpu)
            .expect("figures")
            .iter()
            .map(Metric::line)
            .collect();
        assert!(
            lines.starts_with("time 3 ms\ncpu 2 ms\nlate_p50 "),
            "{lines}"
        );
        // A sleep that was too short is an error.
        late.note(0, 0, Instant::now(), Duration::from_secs(9));
        assert!(late.figures(time, cpu).is_err());
    }

    #[test]
    fn no_echo_is_left_out() {
        assert_eq!(talkers(1), (1, 1));
        assert_eq!(talkers(1_000), (1_000, 1));
        assert_eq!(talkers(200_000), (1_000, 200));
        assert_eq!(talkers(1_001), (1_000, 2));
    }

    #[test]
    fn spans_stay_in_their_room() {
        let bounds = Duration::from_millis(1)..=Duration::from_millis(50);
        assert!(
            (0..1_000)
                .flat_map(spans)
                .all(|span| bounds.contains(&span))
        );
    }
}
