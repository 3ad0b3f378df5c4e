//! Decides what is followed over numbers of threads: what many that there were
//! cost afterwards, and what many that sleep in the kernel cost meanwhile.

use std::io;
use std::time::{Duration, Instant};

use gosched::thread;

use super::curves::Size;
use crate::port::Countdown;
use crate::proc;

/// Goroutines whose stacks the runtime returns to the system while the clock
/// runs.
const BURST: usize = 20_000;
/// The runtime returns memory that nobody has needed for 5 s.
const WATCH_MAX: Duration = Duration::from_secs(9);
/// Between two spawns of the thread that watches.
const PAUSE: Duration = Duration::from_micros(50);

/// How long a point watches: as long as there is to see, but for a trial.
fn watch(size: &Size) -> Duration {
    WATCH_MAX.min(Duration::from_micros(250 * size.work as u64))
}

/// A burst of goroutines leaves stacks behind, and `n` threads are made that end
/// or sleep for ever; a plain thread then spawns goroutines while the stacks
/// are returned. The worst spawn, in ns. A single round by its nature.
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

/// `n` goroutines sleep in the kernel, in calls that are not marked, and have
/// lost their Ps; what the process takes of a CPU meanwhile, in µs for a second.
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
