//! Loom's atomics, and worlds in which something is missing that an algorithm needs: the model must then fail.
//!
//! An atomic that is freed says so to loom, as if it were written: loom then objects if any access to it is not ordered
//! before the end of its memory. That is how the models see a touch of what may be gone.

use std::cell::Cell;

use loom::sync::atomic::{self, Ordering};

use super::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Something that can be taken away.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The side of the barrier that everybody passes all the time.
    Light,
    /// The side that pays for both.
    Heavy,
    /// Every fence of its own.
    Fence,
    /// The barrier that a read-modify-write is.
    AfterRmw,
    /// What stores and read-modify-writes publish.
    Release,
    /// What loads and read-modify-writes see of what was published.
    Acquire,
}

// Loom's threads are coroutines of the test's own thread, so each test has its own.
std::thread_local! {
    /// What is missing.
    static MISSING: Cell<Option<Part>> = const { Cell::new(None) };
    /// Whether stores are swaps.
    static STORES_SWAP: Cell<bool> = const { Cell::new(false) };
    /// Whether a read-modify-write is a barrier by itself.
    static RMW_FENCES: Cell<bool> = const { Cell::new(false) };
    /// Whether loads take turns.
    static LOADS_TAKE_TURNS: Cell<bool> = const { Cell::new(false) };
}

loom::thread_local! {
    /// Whether the thread waits for another one. Its loads take no turns then, for two that wait could take turns for ever.
    static SPINS: Cell<bool> = Cell::new(false);
}

/// A turn of a wait for another thread: loom runs the others first.
pub(super) fn spin() {
    SPINS.with(|spins| spins.set(true));
    loom::thread::yield_now();
}

/// The thread has got on.
fn has_written() {
    if LOADS_TAKE_TURNS.get() {
        SPINS.with(|spins| spins.set(false));
    }
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

/// Runs `story` in a world without some part, to see that it is needed.
pub(crate) fn without(part: Part, story: impl FnOnce()) {
    let _switch = Switch::set(&MISSING, Some(part));
    story();
}

/// Runs `story` with every store made by a swap.
///
/// Loom does not know that nothing comes between a swap and the value it found: a plain store that was made in
/// between may count as older than the swap, and then even its own thread may read what the swap wrote. No machine
/// does that. A story in which one thread stores where another swaps, and reads the word again, needs this; the price
/// is that a swap, unlike a store, passes on what the store before it published.
pub(crate) fn with_stores_as_swaps(story: impl FnOnce()) {
    let _switch = Switch::set(&STORES_SWAP, true);
    story();
}

/// Runs `story` with the barriers where x86-64 has them: at each read-modify-write and each SeqCst store, and
/// `fence_after_rmw` is nothing.
///
/// Elsewhere, and in the stories without this, it is a fence where it stands, which may be some steps later.
pub(crate) fn on_x86(story: impl FnOnce()) {
    let _switch = Switch::set(&RMW_FENCES, true);
    story();
}

/// Runs `story` with loads that take turns.
///
/// Loom tries another order of two steps if one of them writes what the other reads. It remembers one reader only: when
/// somebody reads, and then another thread reads and writes, it does not try the write before the first reader. A ring
/// whose ends are read and then swapped would hardly be explored. So each load touches a word of its atomic's own first, of which loom
/// tries every order. That word orders nothing: its swaps are relaxed, and what a fence passes on through them is what loom lets
/// every later fence see.
pub(crate) fn with_loads_in_turn(story: impl FnOnce()) {
    let _switch = Switch::set(&LOADS_TAKE_TURNS, true);
    story();
}

fn is_missing(part: Part) -> bool {
    MISSING.get() == Some(part)
}

/// A fence of its own.
pub(crate) fn fence(order: Ordering) {
    if !is_missing(Part::Fence) {
        atomic::fence(order);
    }
}

/// Loom's read-modify-writes are no barriers, so this is one.
pub(crate) fn fence_after_rmw() {
    if !RMW_FENCES.get() && !is_missing(Part::AfterRmw) {
        atomic::fence(SeqCst);
    }
}

fn rmw_was_made() {
    has_written();
    if RMW_FENCES.get() && !is_missing(Part::AfterRmw) {
        atomic::fence(SeqCst);
    }
}

/// On x86-64 a SeqCst store is a swap, and so a barrier.
fn seq_cst_was_stored() {
    if RMW_FENCES.get() && !is_missing(Part::AfterRmw) {
        atomic::fence(SeqCst);
    }
}

/// A barrier on every CPU is beyond loom. What it gives to the two who meet is what a fence on each side gives.
fn barrier(side: Part) {
    if !is_missing(side) {
        atomic::fence(SeqCst);
    }
}

/// The side that everybody passes all the time.
pub(crate) fn light_barrier() {
    barrier(Part::Light);
}

/// The side that pays. Always served: a refusal ends the claim, so it adds no order of events.
pub(crate) fn heavy_barrier() -> bool {
    barrier(Part::Heavy);
    true
}

fn of_load(order: Ordering) -> Ordering {
    if is_missing(Part::Acquire) {
        Relaxed
    } else {
        order
    }
}

fn of_store(order: Ordering) -> Ordering {
    if is_missing(Part::Release) {
        Relaxed
    } else {
        order
    }
}

fn of_rmw(order: Ordering) -> Ordering {
    match (order, MISSING.get()) {
        (AcqRel | SeqCst, Some(Part::Release)) => Acquire,
        (AcqRel | SeqCst, Some(Part::Acquire)) => Release,
        (Release, Some(Part::Release)) | (Acquire, Some(Part::Acquire)) => Relaxed,
        (order, _) => order,
    }
}

/// Makes loads take turns, in stories that want that (see [`with_loads_in_turn`]).
struct Turns(atomic::AtomicUsize);

impl Turns {
    fn new() -> Turns {
        Turns(atomic::AtomicUsize::new(0))
    }

    fn take(&self) {
        if LOADS_TAKE_TURNS.get() && !SPINS.with(Cell::get) {
            // ORDER: Relaxed; it must not order anything but the steps of the exploration.
            self.0.swap(0, Relaxed);
        }
    }
}

/// A type of loom's with what this file adds.
macro_rules! atomic {
    ($name:ident $(<$t:ident>)?, $loom:ty, $value:ty) => {
        pub(crate) struct $name $(<$t>)? ($loom, Turns);

        #[allow(dead_code, reason = "not all of them use all of it")]
        impl $(<$t>)? $name $(<$t>)? {
            #[track_caller]
            pub(crate) fn new(value: $value) -> Self {
                $name(<$loom>::new(value), Turns::new())
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.1.take();
                self.0.load(of_load(order))
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                has_written();
                if STORES_SWAP.get() {
                    self.0.swap(value, of_store(order));
                } else {
                    self.0.store(value, of_store(order));
                }
                if order == SeqCst {
                    seq_cst_was_stored();
                }
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                let old = self.0.swap(value, of_rmw(order));
                rmw_was_made();
                old
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let old =
                    self.0
                        .compare_exchange(current, new, of_rmw(success), of_load(failure));
                if old.is_ok() {
                    rmw_was_made();
                }
                old
            }

            #[track_caller]
            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
        }

        impl $(<$t>)? Drop for $name $(<$t>)? {
            /// Its memory ends: every access must be ordered before this.
            fn drop(&mut self) {
                if !std::thread::panicking() {
                    self.0.with_mut(|_| ());
                }
            }
        }
    };
}

/// The arithmetic of the numbers among them.
macro_rules! arithmetic {
    ($name:ident, $value:ty, $($method:ident)*) => {
        #[allow(dead_code, reason = "not all of them use all of it")]
        impl $name {
            $(
                #[track_caller]
                pub(crate) fn $method(&self, value: $value, order: Ordering) -> $value {
                    let old = self.0.$method(value, of_rmw(order));
                    rmw_was_made();
                    old
                }
            )*
        }
    };
}

atomic!(AtomicU32, atomic::AtomicU32, u32);
arithmetic!(AtomicU32, u32, fetch_add fetch_sub fetch_or fetch_and);
atomic!(AtomicUsize, atomic::AtomicUsize, usize);
arithmetic!(AtomicUsize, usize, fetch_add fetch_sub fetch_or fetch_and);
atomic!(AtomicU64, atomic::AtomicU64, u64);
atomic!(AtomicPtr<T>, atomic::AtomicPtr<T>, *mut T);

/// A number, for loom's own does not say when it ends.
pub(crate) struct AtomicBool(AtomicUsize);

impl AtomicBool {
    #[track_caller]
    pub(crate) fn new(value: bool) -> AtomicBool {
        AtomicBool(AtomicUsize::new(value.into()))
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> bool {
        self.0.load(order) != 0
    }

    #[track_caller]
    pub(crate) fn store(&self, value: bool, order: Ordering) {
        self.0.store(value.into(), order);
    }

    #[track_caller]
    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value.into(), order) != 0
    }
}
