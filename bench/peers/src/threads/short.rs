//! Tasks that start, yield and end: `yield`, `spawn`, `spawn_burst`, `go_burst`, `fib`.

use std::time::Instant;

use super::{Countdown, Tasks};
use crate::common::{
    FIB_REPEATS, FIB_SERIAL_MAX, Figures, SPAWN_BATCH, batches, fib_by_adding, fib_serial, metric,
    ns_each,
};

/// Two tasks on one thread, or CPU, yield to each other.
pub fn yields<T: Tasks>(n: usize) -> Figures {
    let each_ns = T::run(move || {
        let start = Instant::now();
        let pair = [(); 2].map(|()| T::spawn(move || (0..n).for_each(|_| T::yield_now())));
        pair.into_iter().for_each(T::join);
        ns_each(start, 2 * n)
    });
    Ok(vec![metric("time", each_ns, "ns")])
}

/// Empty tasks in batches: joined one by one, and counted down.
pub fn spawns<T: Tasks>(n: usize) -> Figures {
    let both = move || (spawn_ns::<T>(n, SPAWN_BATCH), go_ns::<T>(n, SPAWN_BATCH));
    let (spawn_ns, go_ns) = T::run(both);
    Ok(vec![
        metric("time", spawn_ns, "ns"),
        metric("go_time", go_ns, "ns"),
    ])
}

/// Empty tasks, all at once, joined one by one.
pub fn spawn_burst<T: Tasks>(n: usize) -> Figures {
    let each_ns = T::run(move || spawn_ns::<T>(n, n));
    Ok(vec![metric("time", each_ns, "ns")])
}

/// Empty tasks, all at once, counted down.
pub fn go_burst<T: Tasks>(n: usize) -> Figures {
    let each_ns = T::run(move || go_ns::<T>(n, n));
    Ok(vec![metric("time", each_ns, "ns")])
}

fn spawn_ns<T: Tasks>(count: usize, batch: usize) -> f64 {
    let mut handles = Vec::with_capacity(batch);
    let start = Instant::now();
    for size in batches(count, batch) {
        handles.extend((0..size).map(|_| T::spawn(|| ())));
        handles.drain(..).for_each(T::join);
    }
    ns_each(start, count)
}

fn go_ns<T: Tasks>(count: usize, batch: usize) -> f64 {
    let running = Countdown::<T>::leaked();
    let start = Instant::now();
    for size in batches(count, batch) {
        running.expect(size);
        for _ in 0..size {
            drop(T::spawn(|| running.arrive()));
        }
        running.wait();
    }
    ns_each(start, count)
}

/// The parallel fib, checked.
pub fn fibs<T: Tasks>(n: usize) -> Figures {
    let expected = fib_by_adding(n)?;
    let each_ns = T::run(move || {
        let start = Instant::now();
        for _ in 0..FIB_REPEATS {
            assert_eq!(fib::<T>(n), expected, "fib({n})");
        }
        ns_each(start, FIB_REPEATS)
    });
    Ok(vec![metric("time", each_ns / 1e6, "ms")])
}

/// Half of the work goes to a new task, the other half stays here.
fn fib<T: Tasks>(n: usize) -> u64 {
    if n <= FIB_SERIAL_MAX {
        return fib_serial(n);
    }
    let half = T::spawn(move || fib::<T>(n - 1));
    let other = fib::<T>(n - 2);
    T::join(half) + other
}
