//! Tasks that start, yield and end: `yield`, `spawn`, `spawn_burst`, `go_burst`, `fib`.

use std::future::Future;
use std::time::Instant;

use super::{Countdown, Runtime};
use crate::common::{
    FIB_REPEATS, FIB_SERIAL_MAX, Figures, SPAWN_BATCH, batches, fib_by_adding, fib_serial, metric,
    ns_each,
};

/// Two tasks on one thread yield to each other.
pub fn yields<R: Runtime>(n: usize) -> Figures {
    let each_ns = R::run(async move {
        let start = Instant::now();
        let pair = [(); 2].map(|()| {
            R::spawn(async move {
                for _ in 0..n {
                    R::yield_now().await;
                }
            })
        });
        for task in pair {
            R::join(task).await;
        }
        ns_each(start, 2 * n)
    });
    Ok(vec![metric("time", each_ns, "ns")])
}

/// Empty tasks in batches: joined one by one, and counted down.
pub fn spawns<R: Runtime>(n: usize) -> Figures {
    let both = async move {
        let spawn_ns = spawn_ns::<R>(n, SPAWN_BATCH).await;
        (spawn_ns, go_ns::<R>(n, SPAWN_BATCH).await)
    };
    let (spawn_ns, go_ns) = R::run(both);
    Ok(vec![
        metric("time", spawn_ns, "ns"),
        metric("go_time", go_ns, "ns"),
    ])
}

/// Empty tasks, all at once, joined one by one.
pub fn spawn_burst<R: Runtime>(n: usize) -> Figures {
    let each_ns = R::run(spawn_ns::<R>(n, n));
    Ok(vec![metric("time", each_ns, "ns")])
}

/// Empty tasks, all at once, counted down.
pub fn go_burst<R: Runtime>(n: usize) -> Figures {
    let each_ns = R::run(go_ns::<R>(n, n));
    Ok(vec![metric("time", each_ns, "ns")])
}

async fn spawn_ns<R: Runtime>(count: usize, batch: usize) -> f64 {
    let mut handles = Vec::with_capacity(batch);
    let start = Instant::now();
    for size in batches(count, batch) {
        handles.extend((0..size).map(|_| R::spawn(async {})));
        for handle in handles.drain(..) {
            R::join(handle).await;
        }
    }
    ns_each(start, count)
}

async fn go_ns<R: Runtime>(count: usize, batch: usize) -> f64 {
    let running = Countdown::<R::Signal>::leaked();
    let start = Instant::now();
    for size in batches(count, batch) {
        running.expect(size);
        for _ in 0..size {
            R::detach(async { running.arrive() });
        }
        running.wait().await;
    }
    ns_each(start, count)
}

/// The parallel fib, checked.
pub fn fibs<R: Runtime>(n: usize) -> Figures {
    let expected = fib_by_adding(n)?;
    let each_ns = R::run(async move {
        let start = Instant::now();
        for _ in 0..FIB_REPEATS {
            assert_eq!(fib::<R>(n).await, expected, "fib({n})");
        }
        ns_each(start, FIB_REPEATS)
    });
    Ok(vec![metric("time", each_ns / 1e6, "ms")])
}

/// Half of the work goes to a new task, the other half stays here. It needs a box, because a future
/// cannot contain itself.
#[expect(
    clippy::manual_async_fn,
    reason = "it spawns itself, so that it is Send must be promised"
)]
fn fib<R: Runtime>(n: usize) -> impl Future<Output = u64> + Send {
    async move {
        if n <= FIB_SERIAL_MAX {
            return fib_serial(n);
        }
        let half = R::spawn(fib::<R>(n - 1));
        let other = Box::pin(fib::<R>(n - 2)).await;
        R::join(half).await + other
    }
}
