//! Measures the cost of a lock: one that several tasks want all the time, and one without
//! contention.
//!
//! Goroutines use gosched's `Mutex`, plain threads std's, for the same work.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::port::{self, Mode};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, Workload};

pub const MUTEX: Workload = Workload {
    name: "mutex",
    about: "8 tasks lock and unlock a Mutex n times each, and one task alone; per lock and unlock",
    n: 500_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &[
        Port::gosched(Mode::Own, start),
        Port::gosched(Mode::Shared, start),
        Port::std(start_std),
    ],
    compared: &["time", "uncontended_time"],
    goals: &[
        Goal::new("gosched", "time", 19.0, "ns"),
        Goal::new("own-std", "uncontended_time", 3.0, "ns"),
    ],
    child: None,
};

/// Tasks that want the lock.
const TASKS: usize = 8;

/// A locked counter and its tasks, so that every port runs the same code.
trait Locked: Send + Sync + Sized + 'static {
    type Handle;

    fn zero() -> Self;
    /// Locks, adds 1, unlocks.
    fn count(&self);
    fn value(&self) -> usize;
    fn spawn(task: impl FnOnce() + Send + 'static) -> Self::Handle;
    fn join(handle: Self::Handle);
}

macro_rules! locked {
    ($runtime:ident) => {
        impl Locked for $runtime::sync::Mutex<usize> {
            type Handle = $runtime::thread::JoinHandle<()>;

            fn zero() -> Self {
                Self::new(0)
            }

            #[inline]
            fn count(&self) {
                *self.lock().expect("an addition does not panic") += 1;
            }

            fn value(&self) -> usize {
                *self.lock().expect("an addition does not panic")
            }

            fn spawn(task: impl FnOnce() + Send + 'static) -> Self::Handle {
                $runtime::thread::spawn(task)
            }

            fn join(handle: Self::Handle) {
                handle.join().expect("an addition does not panic");
            }
        }
    };
}

locked!(gosched);
locked!(std);

fn start(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        Ok(runtime.run(|| samples::<gosched::sync::Mutex<usize>>(n)))
    }))
}

fn start_std(params: &Params) -> io::Result<Round> {
    let n = params.n;
    Ok(Box::new(move || Ok(samples::<std::sync::Mutex<usize>>(n))))
}

fn samples<L: Locked>(times: usize) -> Vec<Sample> {
    vec![
        Sample::best("time", contended_ns::<L>(times), "ns"),
        Sample::best("uncontended_time", alone_ns::<L>(TASKS * times), "ns"),
    ]
}

/// All tasks at once, from before the first starts until the last has ended.
fn contended_ns<L: Locked>(times: usize) -> f64 {
    let counter = Arc::new(L::zero());
    let start = Instant::now();
    let tasks = [(); TASKS].map(|()| {
        let counter = Arc::clone(&counter);
        L::spawn(move || (0..times).for_each(|_| counter.count()))
    });
    tasks.into_iter().for_each(L::join);
    let each_ns = rounds::ns_each(start, TASKS * times);
    assert_eq!(counter.value(), TASKS * times, "two held the lock at once");
    each_ns
}

/// The calling task alone.
fn alone_ns<L: Locked>(times: usize) -> f64 {
    let counter = L::zero();
    let start = Instant::now();
    (0..times).for_each(|_| counter.count());
    rounds::ns_each(start, times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_counted_twice() {
        let runtime = port::runtime(Mode::Own, 2).expect("a runtime");
        runtime.run(|| samples::<gosched::sync::Mutex<usize>>(1_000));
        samples::<std::sync::Mutex<usize>>(1_000);
    }
}
