//! Loom's atomics, and worlds in which a part that an algorithm needs is missing: the model must
//! then fail.
//!
//! An atomic that is freed counts as written for loom. So loom reports any access to it that is not
//! ordered before the end of its memory. That is how the models find a use after free.

use std::cell::Cell;

use loom::sync::atomic::{self, Ordering};

use super::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// A part that can be taken away.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The cheap side of the asymmetric barrier.
    Light,
    /// The side that pays for both.
    Heavy,
    /// Every separate fence.
    Fence,
    /// The barrier that a read-modify-write is.
    AfterRmw,
    /// What stores and read-modify-writes publish.
    Release,
    /// What loads and read-modify-writes see of it.
    Acquire,
}

// Loom's threads are coroutines of the test's own thread, so each test has its own.
std::thread_local! {
    static MISSING: Cell<Option<Part>> = const { Cell::new(None) };
    /// Whether stores are swaps.
    static STORES_SWAP: Cell<bool> = const { Cell::new(false) };
    /// Whether a read-modify-write is a barrier by itself.
    static RMW_FENCES: Cell<bool> = const { Cell::new(false) };
    /// Whether loads take turns.
    static LOADS_TAKE_TURNS: Cell<bool> = const { Cell::new(false) };
}

loom::thread_local! {
    /// Whether the thread waits for another one. Its loads take no turns then, because two waiting
    /// threads could take turns for ever.
    static SPINS: Cell<bool> = Cell::new(false);
}

/// One step of a wait for another thread: loom runs the others first.
pub(super) fn spin() {
    SPINS.with(|spins| spins.set(true));
    loom::thread::yield_now();
}

/// The thread has made progress.
fn has_written() {
    if LOADS_TAKE_TURNS.get() {
        SPINS.with(|spins| spins.set(false));
    }
}

/// Resets a switch when its story has ended, also by a panic.
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

/// Runs `story` in a world without this part, to show that it is needed.
pub(crate) fn without(part: Part, story: impl FnOnce()) {
    let _switch = Switch::set(&MISSING, Some(part));
    story();
}

/// Runs `story` with every store made by a swap.
///
/// Loom does not know that no store comes between a swap and the value it found. A plain store made
/// in between may count as older than the swap. Then even its own thread may load what the swap
/// wrote. No machine does that. A story needs this if one thread stores where another swaps, and
/// loads the word again. The price: unlike a store, a swap passes on what the store before it
/// published.
pub(crate) fn with_stores_as_swaps(story: impl FnOnce()) {
    let _switch = Switch::set(&STORES_SWAP, true);
    story();
}

/// Runs `story` with the barriers where x86-64 has them: at each read-modify-write and each SeqCst
/// store. `fence_after_rmw` does nothing then.
///
/// Without this, `fence_after_rmw` is a fence where it stands, which may be some steps later.
pub(crate) fn on_x86(story: impl FnOnce()) {
    let _switch = Switch::set(&RMW_FENCES, true);
    story();
}

/// Runs `story` with loads that take turns.
///
/// Loom tries another order of two steps if one of them writes what the other reads. It remembers
/// only one reader. If one thread reads, and then another reads and writes, loom does not try the
/// write before the first read. A ring whose ends are read and then swapped would hardly be
/// explored. So each load first touches a separate word of its atomic, of which loom tries every
/// order. That word orders nothing: its swaps are relaxed, and a fence passes on through them only
/// what loom lets every later fence see.
pub(crate) fn with_loads_in_turn(story: impl FnOnce()) {
    let _switch = Switch::set(&LOADS_TAKE_TURNS, true);
    story();
}

fn is_missing(part: Part) -> bool {
    MISSING.get() == Some(part)
}

/// A separate fence.
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

/// Loom has no barrier on every CPU. A fence on each side gives the two threads the same.
fn barrier(side: Part) {
    if !is_missing(side) {
        atomic::fence(SeqCst);
    }
}

/// The cheap side.
pub(crate) fn light_barrier() {
    barrier(Part::Light);
}

/// The side that pays. It always succeeds: a refusal cancels the claim, so it adds no order of
/// events.
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

/// Makes loads take turns, in stories that need it (see [`with_loads_in_turn`]).
struct Turns(atomic::AtomicUsize);

impl Turns {
    fn new() -> Turns {
        Turns(atomic::AtomicUsize::new(0))
    }

    fn take(&self) {
        if LOADS_TAKE_TURNS.get() && !SPINS.with(Cell::get) {
            // ORDER: Relaxed; it must order nothing but the steps of the exploration.
            self.0.swap(0, Relaxed);
        }
    }
}

/// A loom type with the additions of this file.
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

/// The arithmetic of the integer types.
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

/// Made of a number, because loom's own AtomicBool does not report its end.
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
