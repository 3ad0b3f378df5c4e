//! The futex, as a small kernel: one lock, and a list of the sleepers with their addresses.
//!
//! Like the real one, it compares the word and queues the sleeper in one locked step. It identifies
//! a futex by its address alone, and it may wake for no reason. There is no time: a model lets
//! deadlines pass with [`pass_deadlines`], in a thread of its own.

use loom::sync::{Condvar, Mutex, MutexGuard};

use super::{AtomicU32, Relaxed};

/// One sleeper in the kernel.
struct Sleeper {
    address: usize,
    ticket: usize,
}

/// What the kernel's lock guards.
struct Sleepers {
    asleep: Vec<Sleeper>,
    tickets: usize,
    /// Deadlines up to this one have passed.
    now_ns: u64,
}

struct Kernel {
    sleepers: Mutex<Sleepers>,
    changed: Condvar,
}

impl Kernel {
    fn new() -> Kernel {
        Kernel {
            sleepers: Mutex::new(Sleepers {
                asleep: Vec::new(),
                tickets: 0,
                now_ns: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap()
    }
}

loom::lazy_static! {
    static ref KERNEL: Kernel = Kernel::new();
}

/// Every deadline passes: timed sleepers return, now and later.
pub(crate) fn pass_deadlines() {
    pass_deadlines_until(u64::MAX);
}

/// Deadlines up to `now_ns` pass, now and later.
pub(crate) fn pass_deadlines_until(now_ns: u64) {
    KERNEL.lock().now_ns = now_ns;
    KERNEL.changed.notify_all();
}

/// All sleepers in the kernel return for no reason.
pub(crate) fn wake_for_no_reason() {
    KERNEL.lock().asleep.clear();
    KERNEL.changed.notify_all();
}

/// A word that threads can sleep on.
pub(crate) struct Futex(pub(crate) AtomicU32);

impl Futex {
    pub(crate) fn new(value: u32) -> Futex {
        Futex(AtomicU32::new(value))
    }

    /// As in the library: returns false only if a deadline was given and has passed.
    pub(crate) fn wait(&self, expected: u32, deadline_ns: Option<u64>) -> bool {
        let mut kernel = KERNEL.lock();
        // ORDER: Relaxed; the kernel's lock, which `wake_one` takes after the waker's store, orders
        // it.
        if self.0.load(Relaxed) != expected {
            return true;
        }
        let ticket = kernel.tickets;
        kernel.tickets += 1;
        kernel.asleep.push(Sleeper {
            address: &raw const *self as usize,
            ticket,
        });
        loop {
            let Some(at) = kernel.asleep.iter().position(|s| s.ticket == ticket) else {
                return true;
            };
            if deadline_ns.is_some_and(|deadline| deadline <= kernel.now_ns) {
                kernel.asleep.remove(at);
                return false;
            }
            kernel = KERNEL.changed.wait(kernel).unwrap();
        }
    }

    /// Wakes one sleeper of the word at `this`, which is not read.
    pub(crate) fn wake_one(this: *const Futex) {
        let mut kernel = KERNEL.lock();
        if let Some(at) = kernel
            .asleep
            .iter()
            .position(|s| s.address == this as usize)
        {
            kernel.asleep.remove(at);
        }
        drop(kernel);
        KERNEL.changed.notify_all();
    }
}

/// Whether any deadline has passed.
pub(crate) fn has_time_passed() -> bool {
    KERNEL.lock().now_ns != 0
}
