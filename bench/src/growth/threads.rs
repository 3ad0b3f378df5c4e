//! The curves over numbers of threads: the later cost of threads that have ended, and the cost of
//! threads that sleep in the kernel.

use std::io;
use std::time::{Duration, Instant};

use gosched::thread;

use super::curves::Size;
use crate::port::Countdown;
use crate::proc;

/// Goroutines whose stacks the runtime returns to the system while the clock runs.
const BURST: usize = 20_000;
/// The runtime returns memory that was unused for 5 s.
const WATCH_MAX: Duration = Duration::from_secs(9);
/// Between two spawns of the measuring thread.
const PAUSE: Duration = Duration::from_micros(50);

/// How long a point measures: until all stacks are returned, or less in a quick run.
fn watch(size: &Size) -> Duration {
    WATCH_MAX.min(Duration::from_micros(250 * size.work as u64))
}

/// A burst of goroutines leaves stacks behind, and `n` threads are made that end or sleep for ever.
/// Then a plain thread spawns goroutines while the stacks are returned. Returns the worst spawn, in
/// ns. It has a single round by its nature.
pub fn past_peak(size: &Size) -> io::Result<f64> {
    let runtime = gosched::Runtime::builder().procs(size.procs).build()?;
    runtime.run(|| {
        let all = Countdown::leaked();
        all.expect(size.n);
        let held = |_| {
            thread::spawn(move || {
                gosched::blocking(|| {
                    all.arrive();
                    std::thread::sleep(Duration::from_millis(500));
                });
            })
        };
        join_all((0..size.n).map(held).collect());
        let parked = |_| thread::spawn(|| thread::sleep(Duration::from_millis(50)));
        join_all((0..BURST).map(parked).collect());
    });
    let (end, mut worst) = (Instant::now() + watch(size), Duration::ZERO);
    loop {
        let start = Instant::now();
        if start >= end {
            break;
        }
        let spawned = runtime.spawn(|| ());
        worst = worst.max(start.elapsed());
        spawned.join().expect("nothing does not panic");
        std::thread::sleep(PAUSE);
    }
    Ok(worst.as_nanos() as f64)
}

/// `n` goroutines sleep in the kernel, in unmarked calls, and have lost their Ps. Returns the CPU
/// time of the process meanwhile, in µs per second.
pub fn sleepers(size: &Size) -> io::Result<f64> {
    const SETTLE: Duration = Duration::from_secs(1);
    const EACH: Duration = Duration::from_millis(2);
    let watch = watch(size) / 4;
    let begin = Instant::now() + SETTLE + EACH * size.n as u32;
    let end = begin + watch + SETTLE;
    let asleep = |_| {
        thread::spawn(move || std::thread::sleep(end.saturating_duration_since(Instant::now())))
    };
    let asleep: Vec<_> = (0..size.n).map(asleep).collect();
    std::thread::sleep(begin.saturating_duration_since(Instant::now()));
    let before = proc::own_cpu()?;
    std::thread::sleep(watch);
    let spent = proc::own_cpu()? - before;
    join_all(asleep);
    Ok(spent.as_secs_f64() * 1e6 / watch.as_secs_f64())
}

fn join_all(handles: Vec<thread::JoinHandle<()>>) {
    for handle in handles {
        handle.join().expect("it does not panic");
    }
}
