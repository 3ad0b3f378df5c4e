//! What `gosched-hook` needs of the runtime. **Unstable**: it changes without notice.
//!
//! The crate `gosched-hook` replaces functions of libc, so that blocking calls of unmodified code
//! park the goroutine. These functions are its interface to the scheduler. They never unwind: their
//! callers stand in for functions of C. Where a goroutine is asked to unwind, they return instead,
//! and the caller leaves the call to libc.

mod descriptor;
pub mod futex;
mod threads;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::sched::life::thread_locals::is_home;
use crate::sched::model::current::{current_g, current_m, on_curg};
use crate::sched::waiting::timed::rest;

pub use self::descriptor::{Deadline, Descriptor, Direction, Ticket, Waited};
pub use self::threads::{
    HANDLE_TAG, Thread, Unstarted, is_goroutine, is_handle, name_goroutine, own_handle,
    real_threads, wants_real_threads, yield_now,
};

/// Whether the caller is a goroutine that may park here: on a stack and thread-locals of its own,
/// outside the runtime, outside [`blocking`](crate::blocking), and not in the child of a fork.
///
/// ```
/// assert!(!gosched::hook::can_park());
/// gosched::run(|| assert!(gosched::hook::can_park()));
/// ```
#[inline]
pub fn can_park() -> bool {
    let Some(m) = current_m() else { return false };
    let Some(g) = m.curg() else { return false };
    m.claim.depth() == 0
        && m.may_be_preempted()
        && g.calls.get() == 0
        && on_curg(m)
        && m.sched().tls.is_own()
        && is_home(m, g)
        && !crate::sched::life::forked::is_child()
}

/// Whether this code may take locks of the runtime: on a plain thread, or on a goroutine outside the
/// runtime.
fn is_outside_the_runtime() -> bool {
    !crate::sched::life::forked::is_child()
        && current_m().is_none_or(|m| m.claim.depth() == 0 && on_curg(m))
}

/// Runs `look_up`, a name lookup of libc, in a marked call; no more of them at a time than
/// [`Builder::max_lookups`](crate::Builder::max_lookups). None: the runtime asks the goroutine to
/// unwind.
///
/// ```
/// assert_eq!(gosched::run(|| gosched::hook::look_up(|| 1)), Some(1));
/// ```
pub fn look_up<T>(look_up: impl FnOnce() -> T) -> Option<T> {
    let Some(g) = current_g() else {
        return Some(look_up());
    };
    // A wait for a permit unwinds if the runtime shuts down. The caller must not.
    let run = || g.sched().lookups.run(look_up);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).ok()
}

/// Parks the goroutine for at least `length`. Takes no token, and does not unwind.
pub fn sleep(length: Duration) {
    if !length.is_zero() {
        rest(length);
    }
}

/// Calls that goroutines have left to libc.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Counts a call of a goroutine that is left to libc and may hold its thread, for
/// [`debug::metrics`](crate::debug::metrics).
pub fn count_left() {
    LEFT.fetch_add(1, Relaxed);
}

/// How many calls [`count_left`] has counted, in the whole process.
pub(crate) fn left() -> u64 {
    LEFT.load(Relaxed)
}
