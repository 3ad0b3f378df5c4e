//! The models, and what they share: the explorer and the items that pass through the queues.

mod actors;
mod bounded;
mod buffer;
mod claim;
mod futex;
mod future;
mod handoff;
mod locks;
mod net;
mod note;
mod park;
mod rendezvous;
mod ring;
mod select;
mod status;
mod sudog;
mod teardown;
mod unbounded;
mod wake;
mod watcher;

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use loom::cell::UnsafeCell;

use crate::shim::{begin, with_loads_in_turn};

/// Models run one at a time. Each run maps the stacks of its threads and unmaps them, and the
/// kernel has one lock for that in a process. So two models at once take longer than one after the
/// other.
static TURN: Mutex<()> = Mutex::new(());

/// Explores `story` with at most `preemptions` forced switches per run (None: all of them).
fn explore(preemptions: Option<usize>, story: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = match preemptions {
        Some(0) => preemptions, // one more would take minutes
        _ => builder.preemption_bound.or(preemptions),
    };
    builder.max_branches = 10_000;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    builder.check(move || {
        begin();
        story();
    });
}

/// As [`explore`], for algorithms that load a word and then swap it (see [`with_loads_in_turn`]).
fn explore_in_turn(preemptions: Option<usize>, story: impl Fn() + Sync + Send + 'static) {
    with_loads_in_turn(|| explore(preemptions, story));
}

/// A plain field, like those of a G: loom reports any two accesses that nothing orders.
struct Plain(UnsafeCell<u32>);

// SAFETY: loom reports every run in which two accesses to the field are not ordered.
unsafe impl Sync for Plain {}

impl Plain {
    fn new(value: u32) -> Plain {
        Plain(UnsafeCell::new(value))
    }

    fn get(&self) -> u32 {
        // SAFETY: loom checks on every run that no other access is concurrent with this one.
        self.0.with(|field| unsafe { *field })
    }

    fn set(&self, value: u32) {
        // SAFETY: loom checks on every run that no other access is concurrent with this one.
        self.0.with_mut(|field| unsafe { *field = value });
    }

    fn add(&self, n: u32) {
        // SAFETY: loom checks on every run that no other access is concurrent with this one.
        self.0.with_mut(|field| unsafe { *field += n });
    }
}

/// Goroutines as a queue sees them: addresses, and a field that only the thread that took one may
/// touch.
struct Items(Vec<Plain>);

impl Items {
    fn new(n: usize) -> Items {
        Items((0..n).map(|_| Plain::new(0)).collect())
    }

    /// Makes the item, as a spawn does: the caller writes its field, which must be visible with the
    /// address.
    fn make(&self, index: usize) -> NonNull<Plain> {
        self.0[index].set(0);
        self.at(index)
    }

    fn at(&self, index: usize) -> NonNull<Plain> {
        NonNull::from(&self.0[index])
    }

    /// Which item it is; any other value is a slot that was not published (R4).
    fn index(&self, item: NonNull<Plain>) -> usize {
        self.0
            .iter()
            .position(|known| std::ptr::eq(known, item.as_ptr()))
            .expect("R4: a queue returned an item that was not put in")
    }

    /// Runs an item that came off a queue. Loom reports it if another thread has it too, or if its
    /// maker's writes are not visible yet.
    fn run(&self, item: NonNull<Plain>) -> usize {
        let index = self.index(item);
        self.0[index].add(1);
        index
    }

    fn have_all_run(&self) -> bool {
        self.0.iter().all(|item| item.get() > 0)
    }

    /// No item was lost, none ran twice (S1, S2).
    fn assert_each_ran_once(&self) {
        for (index, item) in self.0.iter().enumerate() {
            assert_eq!(item.get(), 1, "item {index}: runs");
        }
    }
}

/// A value whose drop takes steps. It is not dropped when a run has failed, because loom is gone
/// then.
#[derive(Clone)]
struct Calm<T>(ManuallyDrop<T>);

impl<T> Calm<T> {
    fn new(value: T) -> Calm<T> {
        Calm(ManuallyDrop::new(value))
    }
}

impl<T> Deref for Calm<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Calm<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: this drop is the only place that drops the value, and it runs once.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}
