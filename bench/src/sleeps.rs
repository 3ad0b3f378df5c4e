//! Measures many sleeping goroutines: their total time and CPU time, and how late each one is; and
//! a timer that never fires.
//!
//! In `timers` and `timers_10k` every goroutine sleeps several times, each time for another random
//! duration, the same in every round of every port.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gosched::thread;
use gosched::time::Timer;

use crate::port::{self, Countdown, Mode};
use crate::proc;
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, When, Workload};

pub const TIMERS: Workload = Workload {
    name: "timers",
    about: "n goroutines sleep 5 times for 1 to 50 ms; time until all are done, CPU time, lateness",
    n: 100_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_sleeps),
    compared: &["time", "cpu", "late_p99"],
    goals: &[
        Goal::new("own/smol", "time", 1.0, "x").when(When::First),
        Goal::new("own/smol", "cpu", 1.0, "x").when(When::First),
        Goal::new("own/go", "late_p99", 1.0, "x").when(When::First),
        Goal::new("own/smol", "time", 1.0, "x"),
        Goal::new("own/smol", "cpu", 1.0, "x"),
        Goal::new("own/go", "late_p99", 1.0, "x"),
        Goal::new("gosched", "time", 450.0, "ms"),
        Goal::new("gosched", "cpu", 700.0, "ms"),
    ],
    child: None,
};

pub const TIMERS_10K: Workload = Workload {
    name: "timers_10k",
    about: "n goroutines sleep 5 times for 1 to 50 ms; how late they wake",
    n: 10_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_sleeps),
    compared: &["late_p50", "late_p99"],
    goals: &[
        Goal::new("gosched", "late_p50", 100.0, "us"),
        Goal::new("gosched", "late_p99", 1_000.0, "us"),
    ],
    child: None,
};

pub const TIMER_RESET: Workload = Workload {
    name: "timer_reset",
    about: "a timer is reset and stopped, n times; per reset and stop",
    n: 2_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_reset),
    compared: &["time"],
    goals: &[Goal::new("gosched", "time", 100.0, "ns")],
    child: None,
};

/// Sleeps of each goroutine.
const SLEEPS: usize = 5;
/// The shortest sleep, and the difference to the longest.
const SPAN_MIN: Duration = Duration::from_millis(1);
const SPAN_ROOM: Duration = Duration::from_millis(49);
/// Longer than any run.
const SPAN_FAR: Duration = Duration::from_secs(3_600);

fn start_sleeps(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || runtime.run(|| sleep_round(n))))
}

/// A round: all goroutines sleep, and note how late each sleep ended.
fn sleep_round(sleepers: usize) -> io::Result<Vec<Sample>> {
    let late_us: Arc<[AtomicU64]> = (0..sleepers * SLEEPS).map(|_| AtomicU64::new(0)).collect();
    let running = Countdown::leaked();
    running.expect(sleepers);
    let cpu_before = proc::own_cpu()?;
    let start = Instant::now();
    for sleeper in 0..sleepers {
        let late_us = Arc::clone(&late_us);
        gosched::go(move || {
            sleep_all(sleeper, &late_us[sleeper * SLEEPS..]);
            drop(late_us);
            running.arrive();
        });
    }
    running.wait();
    let time_ms = rounds::micros(start.elapsed()) / 1e3;
    let cpu_ms = rounds::micros(proc::own_cpu()? - cpu_before) / 1e3;
    sleep_samples(time_ms, cpu_ms, sorted_us(&late_us)?)
}

/// The sleeps of one goroutine.
fn sleep_all(sleeper: usize, late_us: &[AtomicU64]) {
    for (span, late_us) in spans(sleeper).zip(late_us) {
        let start = Instant::now();
        thread::sleep(span);
        let us = rounds::micros(start.elapsed()) - rounds::micros(span);
        // ORDER: Relaxed; `Countdown::wait` comes between this store and the load.
        late_us.store(us.to_bits(), Ordering::Relaxed);
    }
}

/// How late each sleep ended, the least first. A sleep that was too short is an error.
fn sorted_us(late_us: &[AtomicU64]) -> io::Result<Vec<f64>> {
    // ORDER: Relaxed; `Countdown::wait` comes between the stores and this load.
    let us = |late_us: &AtomicU64| f64::from_bits(late_us.load(Ordering::Relaxed));
    let mut sorted: Vec<f64> = late_us.iter().map(us).collect();
    sorted.sort_by(f64::total_cmp);
    match sorted[0] < 0.0 {
        true => Err(io::Error::other("a goroutine woke up too early")),
        false => Ok(sorted),
    }
}

fn sleep_samples(time_ms: f64, cpu_ms: f64, late_us: Vec<f64>) -> io::Result<Vec<Sample>> {
    Ok(vec![
        Sample::best("time", time_ms, "ms"),
        Sample::best("cpu", cpu_ms, "ms"),
        Sample::best("late_p50", rounds::quantile(&late_us, 0.5), "us"),
        Sample::best("late_p99", rounds::quantile(&late_us, 0.99), "us"),
    ])
}

fn start_reset(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        let each_ns = runtime.run(|| reset_ns(n));
        Ok(vec![Sample::best("time", each_ns, "ns")])
    }))
}

/// Sets one timer to a moment that never comes; it has been stopped each time before.
fn reset_ns(times: usize) -> f64 {
    let timer = Timer::new(SPAN_FAR);
    timer.stop();
    let start = Instant::now();
    for _ in 0..times {
        assert!(!timer.reset(SPAN_FAR), "it was stopped");
        assert!(timer.stop(), "it was set");
    }
    rounds::ns_each(start, times)
}

/// The durations of a goroutine's sleeps: pseudorandom whole microseconds.
fn spans(sleeper: usize) -> impl Iterator<Item = Duration> {
    (0..SLEEPS).map(move |nth| {
        let room_us = SPAN_ROOM.as_micros() as u64 + 1;
        let us = scramble((sleeper * SLEEPS + nth) as u64) % room_us;
        SPAN_MIN + Duration::from_micros(us)
    })
}

/// A number that depends on every bit of another one (SplitMix64's last steps).
pub fn scramble(number: u64) -> u64 {
    let mut x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_fill_their_room_evenly() {
        let all: Vec<_> = (0..10_000).flat_map(spans).collect();
        let longest = SPAN_MIN + SPAN_ROOM;
        assert!(all.iter().all(|span| (SPAN_MIN..=longest).contains(span)));
        let is_long = |span: &&Duration| **span > (SPAN_MIN + longest) / 2;
        let long = all.iter().filter(is_long).count();
        assert!((24_000..26_000).contains(&long), "{long} of 50,000");
    }

    #[test]
    fn nobody_is_early() {
        let runtime = port::runtime(Mode::Own, 2).expect("a runtime");
        let samples = runtime.run(|| sleep_round(10)).expect("a round");
        let value = |name| samples.iter().find(|s| s.metric == name).expect(name).value;
        let longest = (0..10)
            .map(|sleeper| spans(sleeper).sum::<Duration>())
            .max();
        let longest_ms = longest.expect("ten of them").as_secs_f64() * 1e3;
        assert!(value("time") >= longest_ms, "{} ms", value("time"));
        assert!(value("late_p50") >= 0.0 && value("late_p99") >= value("late_p50"));
    }

    #[test]
    fn a_sleep_that_is_too_short_is_an_error() {
        let late = |values: &[f64]| {
            let slots: Vec<_> = values
                .iter()
                .map(|us| AtomicU64::new(us.to_bits()))
                .collect();
            sorted_us(&slots)
        };
        assert_eq!(
            late(&[3.0, 0.0, 2.0]).expect("all in time"),
            [0.0, 2.0, 3.0]
        );
        assert!(late(&[3.0, -0.5]).is_err());
    }

    #[test]
    fn a_timer_is_set_and_stopped() {
        let runtime = port::runtime(Mode::Own, 1).expect("a runtime");
        assert!(runtime.run(|| reset_ns(10)) > 0.0);
    }
}
