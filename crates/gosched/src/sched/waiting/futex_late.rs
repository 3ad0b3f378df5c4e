//! Wake-ups of futexes that a signal handler leaves to another thread, the *waker*.
//!
//! The handler may have interrupted code that holds the lock it needs. So it stores the wake-up
//! where that takes neither a lock nor memory, and rings for the waker, a thread that does nothing
//! else. The waker waits for the locks as every thread does.
//!
//! There are two stores:
//! - each bucket's `owed`: 0, a key, or [`ALL`]. All goroutines of that key are woken, or of every
//!   futex in the bucket if two keys are owed at once;
//! - one list of goroutines that were claimed and could not be queued, linked as in a [`GQueue`].
//!   It is pushed by compare and swap, and taken as a whole.
//!
//! What is owed is hope for the deadlock check ([`is_owing`]), from before it is stored until the
//! goroutines are Runnable.
//!
//! [`GQueue`]: crate::sched::model::g::GQueue

use std::io;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError};

use crate::sched::life::registry;
use crate::sched::model::g::G;
use crate::sched::model::ptr::{Gp, Ptr};
use crate::sched::park::{enter, ready};
use crate::sched::waiting::futex::{pop_some, wake_inside};
use crate::sched::waiting::sema::{FUTEX, all_owed, lock, owed_of};
use crate::sched::waiting::waitq::WakeList;
use crate::shim::Futex;
use crate::sys;

/// Two keys of a bucket are owed: one of them, without its lowest bit, which no address of a word
/// has set.
const ALL: usize = 1;

/// The size of the waker's stack.
const STACK: usize = 256 * 1024;

/// Handlers that are storing.
static STORING: AtomicU32 = AtomicU32::new(0);
/// 1: there is something to do.
static BELL: Futex = Futex::new(0);
/// The waker is at work.
static IS_SERVING: AtomicBool = AtomicBool::new(false);

/// Goroutines whose wake-up is the waker's, newest first.
static LATE: AtomicPtr<G> = AtomicPtr::new(ptr::null_mut());

/// Leaves a wake-up of all goroutines of `key` to the waker. CONTEXT: any.
#[cold]
pub(super) fn owe(key: usize) {
    store(|| {
        let add = |owed| match owed {
            0 => Some(key),
            one if one == key => Some(key),
            one => Some(one | ALL),
        };
        // ORDER: AcqRel; pairs with the swap in `serve`.
        _ = owed_of(key).fetch_update(AcqRel, Relaxed, add);
    });
}

/// Leaves the wake-up of a goroutine, which the caller has claimed, to the waker. CONTEXT: any.
#[cold]
pub(super) fn hand_over(g: Gp) {
    store(|| {
        let mut first = LATE.load(Relaxed);
        loop {
            // SAFETY: GF, the goroutines of the list are parked, and their wake-up is the waker's.
            let next = unsafe { Ptr::from_raw(first) };
            g.schedlink.store(next, Relaxed);
            // ORDER: AcqRel; pairs with the swap in `serve`, which then sees the links.
            match LATE.compare_exchange_weak(first, g.as_ptr(), AcqRel, Relaxed) {
                Ok(_) => return,
                Err(found) => first = found,
            }
        }
    });
}

/// Stores and rings.
fn store(store: impl FnOnce()) {
    STORING.fetch_add(1, SeqCst);
    store();
    if BELL.0.swap(1, SeqCst) == 0 {
        Futex::wake_one(&BELL);
    }
    STORING.fetch_sub(1, SeqCst);
}

/// Whether goroutines are yet to be woken.
pub(crate) fn is_owing() -> bool {
    STORING.load(SeqCst) != 0 || BELL.0.load(SeqCst) != 0 || IS_SERVING.load(SeqCst)
}

/// Whether the program has hooks that wake.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// The next runtime starts the waker.
pub(crate) fn want() {
    IS_WANTED.store(true, Relaxed);
}

/// Starts the waker if it is wanted, once per process. Before the first goroutine. In user context.
pub(crate) fn start() -> io::Result<()> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done && IS_WANTED.load(Relaxed) {
        sys::thread_spawn::<WakerMain, ()>(STACK, Arc::new(()))?;
        *done = true;
    }
    Ok(())
}

struct WakerMain;

impl sys::Run<()> for WakerMain {
    fn run(_: &Arc<()>) {
        sys::set_thread_name(c"gosched-waker");
        registry::add_thread();
        loop {
            while BELL.0.load(SeqCst) == 0 {
                BELL.wait(0, None);
            }
            // Before the bell is cleared: `is_owing` reads the bell first.
            IS_SERVING.store(true, SeqCst);
            BELL.0.store(0, SeqCst);
            serve();
            IS_SERVING.store(false, SeqCst);
        }
    }
}

/// Wakes all that is owed.
pub(super) fn serve() {
    // ORDER: Acquire; pairs with the swap in `hand_over`.
    let mut next = LATE.swap(ptr::null_mut(), Acquire);
    // SAFETY: GF, the list holds goroutines that are parked. Their wake-up is this thread's alone,
    // since the swap.
    while let Some(g) = unsafe { Ptr::<G>::from_raw(next) } {
        next = g
            .schedlink
            .load(Relaxed)
            .map_or(ptr::null_mut(), Ptr::as_ptr);
        g.schedlink.store(None, Relaxed);
        ready(g);
    }
    for owed in all_owed() {
        if owed.load(Relaxed) == 0 {
            continue;
        }
        // ORDER: Acquire; pairs with the update in `owe`: the goroutines that were queued before
        // are seen under the lock.
        match owed.swap(0, Acquire) {
            0 => {}
            key if key & ALL == 0 => _ = wake_inside(enter(), key, u32::MAX),
            key => wake_bucket(key & !ALL),
        }
    }
}

/// Wakes all goroutines that wait on a futex of the bucket that `key` is in.
fn wake_bucket(key: usize) {
    debug_assert!(key & FUTEX != 0);
    let mut wake = WakeList::new();
    let rt = enter();
    {
        let mut table = lock(key);
        while let Some(found) = table.futex_key() {
            pop_some(&mut table, found, u32::MAX, &mut wake);
        }
    }
    wake.wake_in(&rt);
}
