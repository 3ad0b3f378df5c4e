//! Limits of time, and waiting until a condition holds.
//!
//! Every limit is so long that only a hang exceeds it, also on a busy machine.

use std::io::Write;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::process::threads_of;

/// Nothing takes this long unless it hangs, even on a busy machine.
pub const LONG: Duration = Duration::from_secs(120);
/// Longer than any test: a deadline that must not pass.
pub const HOUR: Duration = Duration::from_secs(3600);
/// Conditions that [`eventually`] and [`until`] wait for hold sooner.
const SOON: Duration = Duration::from_secs(60);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Aborts the process with a description of its threads if `body` takes longer than `limit`.
pub fn within<T>(limit: Duration, what: &str, body: impl FnOnce() -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    let what = what.to_owned();
    let watchdog = thread::spawn(move || {
        if is_done.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{what}: hangs (over {limit:?})\n{}", threads_of("self"));
            std::process::abort();
        }
    });
    let value = body();
    drop(done);
    watchdog.join().expect("the watchdog ends");
    value
}

/// Waits until `is_so`, blocking the thread; false if that takes too long.
pub fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > SOON {
            return false;
        }
        thread::sleep(ms(1));
    }
    true
}

/// Waits until `is_so`. A goroutine leaves its P to others meanwhile.
#[track_caller]
pub fn until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(
            started.elapsed() < SOON,
            "the condition does not hold in time"
        );
        gosched::thread::sleep(Duration::from_micros(100));
    }
}

/// Waits until `count` is at least `n`. A goroutine leaves its P to others meanwhile.
pub fn wait_for(count: &AtomicUsize, n: usize) {
    while count.load(SeqCst) < n {
        gosched::thread::sleep(ms(1));
    }
}

/// Uses CPU time for so long, without a call into the runtime.
pub fn compute(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Prints metrics and a dump of a runtime that hangs, if it still answers, and aborts the process.
/// `eprintln` would not do: libtest captures it, and the abort loses it.
pub fn show_and_abort(handle: gosched::Handle) -> ! {
    let shows = thread::spawn(move || {
        if let Ok(metrics) = handle.metrics() {
            let _ = writeln!(std::io::stderr(), "{metrics}");
        }
        if let Ok(dump) = handle.dump() {
            let _ = writeln!(std::io::stderr(), "{dump}");
        }
    });
    let until = Instant::now() + Duration::from_secs(10);
    while !shows.is_finished() && Instant::now() < until {
        thread::sleep(ms(10));
    }
    std::process::abort()
}
