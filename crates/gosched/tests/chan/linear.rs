//! Waking n waiters takes time linear in n, and so does removing n of them from a queue. Twice as
//! many take less than three times as long, from 1,000 to 100,000.
//!
//! The best of several runs counts, because other programs may delay a run. Caches are cold at the
//! start, because a few waiters fit into them and many do not. An implementation that scans all
//! waiters for each of them is slower by a factor of hundreds.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{LazyLock, Mutex};

use gosched::chan::{Receiver, Sender, bounded, select, unbounded};

use super::*;

const LEAST: usize = 1_000;
const MOST: usize = if cfg!(debug_assertions) {
    16_000
} else {
    100_000
};

/// For all of these, one at a time: 100,000 stacks are touched once. One P: this measures the work,
/// not how much of it other Ps do.
static RUNTIME: LazyLock<Mutex<Runtime>> = LazyLock::new(|| {
    let builder = Runtime::builder().procs(1).stack_size(64 << 10);
    Mutex::new(builder.build().unwrap())
});

/// From `LEAST` to `MOST` every doubling takes less than three times as long, all in all.
#[track_caller]
fn assert_linear(what: &str, run: impl Fn(&Runtime, usize) -> Duration) {
    let limit = 3f64.powf((MOST as f64 / LEAST as f64).log2());
    let runtime = RUNTIME.lock().unwrap();
    let mut best = [Duration::MAX; 2];
    for _ in 1..=25 {
        for (best, n) in best.iter_mut().zip([LEAST, MOST]) {
            let times = if n == LEAST { 5 } else { 1 };
            let took = (0..times).map(|_| run(&runtime, n)).min();
            *best = took.into_iter().fold(*best, Duration::min);
        }
        let ratio = best[1].as_secs_f64() / best[0].as_secs_f64();
        if ratio < limit {
            return;
        }
    }
    panic!("{what}: {LEAST} and {MOST} differ by more than {limit}: {best:?}");
}

/// Fills the caches with something else.
fn cool_down() {
    static OTHER: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    let mut other = OTHER.lock().unwrap();
    other.resize(64 << 20, 0);
    other
        .iter_mut()
        .step_by(64)
        .for_each(|byte| *byte = byte.wrapping_add(1));
    std::hint::black_box(&*other);
}

/// Starts n goroutines that run `wait`. When all of them wait, measures how long it takes until
/// `wake` has woken all of them.
fn measure(
    runtime: &Runtime,
    n: usize,
    wait: impl Fn() + Sync,
    wake: impl FnOnce() + Send,
) -> Duration {
    let (started, woken) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (gate, closed) = bounded::<()>(0);
    runtime.run(|| {
        thread::scope(|scope| {
            for _ in 0..n {
                scope.spawn(|| {
                    started.fetch_add(1, SeqCst);
                    wait();
                    woken.fetch_add(1, SeqCst);
                    closed.recv().unwrap_err(); // their end is no part of it
                });
            }
            // Not all at one moment; but there is one P, and this goroutine has it.
            while started.load(SeqCst) < n || runtime.metrics().waiting < n {
                thread::sleep(ms(1));
            }
            cool_down();
            let began = Instant::now();
            wake();
            while woken.load(SeqCst) < n {
                gosched::yield_now();
            }
            let took = began.elapsed();
            drop(gate);
            took
        })
    })
}

type Channel = (Sender<usize>, Receiver<usize>);
const CHANNELS: [fn() -> Channel; 3] = [|| bounded(0), || bounded(1), unbounded];

#[test]
fn linear_close_wakes_receivers() {
    for channel in CHANNELS {
        assert_linear("receivers", |runtime, n| {
            let (s, r) = channel();
            measure(runtime, n, || assert!(r.recv().is_err()), || _ = s.close())
        });
    }
}

#[test]
fn linear_close_wakes_senders() {
    for cap in [0, 1] {
        assert_linear("senders", |runtime, n| {
            let (s, _r) = bounded(cap);
            (0..cap).for_each(|_| s.send(0).unwrap());
            measure(runtime, n, || assert!(s.send(1).is_err()), || _ = s.close())
        });
    }
}

#[test]
fn linear_values_for_receivers() {
    for channel in CHANNELS {
        assert_linear("values", |runtime, n| {
            let (s, r) = channel();
            let send = || (0..n).for_each(|n| s.send(n).unwrap());
            measure(runtime, n, || _ = r.recv().unwrap(), send)
        });
    }
}

#[test]
fn linear_room_for_senders() {
    for cap in [0, 1] {
        assert_linear("room", |runtime, n| {
            let (s, r) = bounded(cap);
            (0..cap).for_each(|_| s.send(0).unwrap());
            let recv = || (0..n).for_each(|_| _ = r.recv());
            measure(runtime, n, || s.send(1).unwrap(), recv)
        });
    }
}

/// All goroutines wait on one channel without traffic, and each on another one: each leaves the
/// long queue, from its front, its back, or its middle.
#[test]
fn linear_losers_are_taken_out() {
    for order in 0..3 {
        assert_linear("losers", |runtime, n| losers(runtime, n, order, order == 1));
    }
}

fn losers(runtime: &Runtime, n: usize, order: usize, is_send: bool) -> Duration {
    let (all_s, all_r) = bounded::<()>(0);
    let own: Vec<_> = (0..n).map(|_| bounded::<()>(0)).collect();
    let next = AtomicUsize::new(0);
    let wait = || {
        let mine = &own[next.fetch_add(1, SeqCst)].1;
        if is_send {
            select! { send(all_s, ()) -> _ => panic!("sent"), recv(mine) -> _ => {} }
        } else {
            select! { recv(all_r) -> _ => panic!("received"), recv(mine) -> _ => {} }
        }
    };
    let wake = || {
        let nth = |k: usize| match order {
            0 => k,
            1 => n - 1 - k,
            _ => k * 7919 % n,
        };
        (0..n).for_each(|k| _ = own[nth(k)].0.close());
    };
    measure(runtime, n, wait, wake)
}

/// The same by timeouts: they come out of the middle of the queue, all at the same time.
#[test]
fn linear_timeouts_leave_the_queue() {
    assert_linear("timeouts", |runtime, n| {
        let (_s, r) = bounded::<()>(0);
        let left = AtomicUsize::new(0);
        runtime.run(|| {
            let until = Instant::now() + Duration::from_micros(20 * n as u64);
            thread::scope(|scope| {
                for _ in 0..n {
                    scope.spawn(|| {
                        assert!(r.recv_deadline(until).is_err());
                        left.fetch_add(1, SeqCst);
                    });
                }
                cool_down();
                thread::sleep(until.saturating_duration_since(Instant::now()));
                while left.load(SeqCst) < n {
                    gosched::yield_now();
                }
                until.elapsed()
            })
        })
    });
}
