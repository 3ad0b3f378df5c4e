//! U5, F2, L2, D7: sysmon preempts goroutines that do not yield, whatever they hold, and nothing is
//! lost by it.
//!
//! A *hog* computes without a call into the runtime. Tests that measure how time is shared run
//! alone (`alone`), the others beside each other (`beside`). All limits are loose: the machine may
//! be busy with something else.
//!
//! A binary of its own because: other tests in the process would take CPU time from those that
//! measure it.

#[path = "../common/mod.rs"]
mod common;

mod blocked;
mod ends;
mod fair;
mod handlers;
mod holders;
mod limits;
mod locks;
mod off;
mod refused;
mod registers;
mod spin;
mod storm;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use gosched::{Deadlock, Runtime, debug, thread};

use self::spin::{burn, spin, spin_until};
use crate::common::{
    LONG, checked, child, child_of, child_with, eventually, runtime, thread_count, tid, within,
};

static TURN: RwLock<()> = RwLock::new(());

/// The calling test measures time.
fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// The calling test does not mind others.
fn beside() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Hogs that count what they do until they are told to stop.
struct Hogs {
    stop: Arc<AtomicBool>,
    begun: Arc<AtomicUsize>,
    work: Vec<Arc<AtomicU64>>,
    handles: Vec<thread::JoinHandle<()>>,
}

impl Hogs {
    /// Starts `n` of them; each runs `first`, and between two pieces of work `each`.
    fn with(
        n: usize,
        first: impl Fn() + Copy + Send + 'static,
        each: impl Fn(usize) + Copy + Send + 'static,
    ) -> Hogs {
        let mut hogs = Hogs {
            stop: Arc::default(),
            begun: Arc::default(),
            work: (0..n).map(|_| Arc::default()).collect(),
            handles: Vec::new(),
        };
        for (at, work) in hogs.work.iter().enumerate() {
            let (stop, begun) = (Arc::clone(&hogs.stop), Arc::clone(&hogs.begun));
            let work = Arc::clone(work);
            hogs.handles.push(thread::spawn(move || {
                begun.fetch_add(1, SeqCst);
                first();
                while !stop.load(Relaxed) {
                    spin(1000);
                    work.store(work.load(Relaxed) + 1, Relaxed);
                    each(at);
                }
            }));
        }
        hogs
    }

    fn new(n: usize) -> Hogs {
        Hogs::with(n, || (), |_| ())
    }

    /// What each has done so far.
    fn done(&self) -> Vec<u64> {
        self.work.iter().map(|work| work.load(Relaxed)).collect()
    }

    fn begun(&self) -> usize {
        self.begun.load(SeqCst)
    }

    /// Waits until every hog has done something: the machine may have stood still meanwhile. If a
    /// hog starves, this hangs, and `within` sees that.
    fn all_begin(&self) {
        while self.done().contains(&0) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops them; what each has done.
    fn end(self) -> Vec<u64> {
        self.stop.store(true, SeqCst);
        for handle in self.handles {
            handle.join().unwrap();
        }
        self.work.iter().map(|work| work.load(Relaxed)).collect()
    }
}

/// The least of them in relation to the most.
fn evenness(work: &[u64]) -> f64 {
    let least = *work.iter().min().unwrap() as f64;
    least / (*work.iter().max().unwrap()).max(1) as f64
}
