//! The library's `shim`, over loom: the same names, with every step a place where loom may switch threads.
//!
//! The futex is a small kernel: one lock, and a list of who sleeps on which address. As the real one does, it
//! compares the word and queues the sleeper in one locked step, it knows a woken futex by its address alone,
//! and it may wake for no reason. Time does not exist; a model lets the deadlines pass when it wants to,
//! with [`pass_deadlines`], in a thread of its own.

pub(crate) use loom::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

use std::cell::Cell;
use std::ops::Deref;

use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

/// Slots of a ring: few, so that models reach its end. A power of two, as in the library.
pub(crate) const RING: usize = 4;

/// A wait for another thread: loom runs the others first.
pub(crate) fn spin_hint() {
    loom::thread::yield_now();
}

/// As [`spin_hint`].
pub(crate) fn yield_thread() {
    loom::thread::yield_now();
}

/// Loom's read-modify-writes are no barriers, so this is one.
pub(crate) fn fence_after_rmw() {
    fence(SeqCst);
}

/// The two sides of the barrier that only one pays for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Light,
    Heavy,
}

// Loom's threads are coroutines of the test's own thread, so each test has its own.
std::thread_local! {
    /// The side of the barrier that is missing.
    static MISSING: Cell<Option<Side>> = const { Cell::new(None) };
    /// Whether stores are swaps.
    static STORES_SWAP: Cell<bool> = const { Cell::new(false) };
}

/// Puts a switch back when its story has ended, in whichever way.
struct Switch<T: Copy + 'static>(&'static std::thread::LocalKey<Cell<T>>, T);

impl<T: Copy> Switch<T> {
    fn set(key: &'static std::thread::LocalKey<Cell<T>>, value: T) -> Switch<T> {
        Switch(key, key.replace(value))
    }
}

impl<T: Copy> Drop for Switch<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Runs `story` in a world in which one side of the barrier does nothing, to see that it is needed.
pub(crate) fn without(side: Side, story: impl FnOnce()) {
    let _switch = Switch::set(&MISSING, Some(side));
    story();
}

/// Runs `story` with every store of an [`AtomicU32`] made by a swap.
///
/// Loom does not know that nothing comes between a swap and the value it found: a plain store that was made in
/// between may count as older than the swap, and then even its own thread may read what the swap wrote. No machine
/// does that. A story in which one thread stores where another swaps, and reads the word again, needs this; the price
/// is that a swap, unlike a store, passes on what the store before it published.
pub(crate) fn with_stores_as_swaps(story: impl FnOnce()) {
    let _switch = Switch::set(&STORES_SWAP, true);
    story();
}

/// Loom's, apart from what [`with_stores_as_swaps`] says.
pub(crate) struct AtomicU32(atomic::AtomicU32);

impl AtomicU32 {
    #[track_caller]
    pub(crate) fn new(value: u32) -> AtomicU32 {
        AtomicU32(atomic::AtomicU32::new(value))
    }

    #[track_caller]
    pub(crate) fn store(&self, value: u32, order: atomic::Ordering) {
        if STORES_SWAP.get() {
            self.0.swap(value, order);
        } else {
            self.0.store(value, order);
        }
    }
}

impl Deref for AtomicU32 {
    type Target = atomic::AtomicU32;

    fn deref(&self) -> &atomic::AtomicU32 {
        &self.0
    }
}

/// A barrier on every CPU is beyond loom. What it gives to the two who meet is what a fence on each side gives.
fn barrier(side: Side) {
    if MISSING.get() != Some(side) {
        fence(SeqCst);
    }
}

/// The side that everybody passes all the time.
pub(crate) fn light_barrier() {
    barrier(Side::Light);
}

/// The side that pays.
pub(crate) fn heavy_barrier() {
    barrier(Side::Heavy);
}

/// The library's fatal error.
pub(crate) fn illegal_edge(from: u32, to: u32, found: u32) -> ! {
    panic!("illegal goroutine status change {from} -> {to} (status is {found})")
}

/// One sleeper in the kernel.
struct Sleeper {
    address: usize,
    ticket: usize,
}

/// What the kernel's lock guards.
struct Sleepers {
    asleep: Vec<Sleeper>,
    tickets: usize,
    is_past_deadline: bool,
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
                is_past_deadline: false,
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
    KERNEL.lock().is_past_deadline = true;
    KERNEL.changed.notify_all();
}

/// Everybody who sleeps in the kernel returns for no reason.
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

    /// As in the library: false only when a deadline was given and has passed.
    pub(crate) fn wait(&self, expected: u32, deadline_ns: Option<u64>) -> bool {
        let mut kernel = KERNEL.lock();
        // ORDER: Relaxed; the kernel's lock, which `wake_one` takes after the waker's store, orders it.
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
            if deadline_ns.is_some() && kernel.is_past_deadline {
                kernel.asleep.remove(at);
                return false;
            }
            kernel = KERNEL.changed.wait(kernel).unwrap();
        }
    }

    /// Wakes one sleeper of the word at `this`, which is not looked at.
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
