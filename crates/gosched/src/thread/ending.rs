//! Failed spawns of a goroutine in a runtime that ends: they wait instead of returning.
//!
//! A spawn that returns no error would have to panic. In Go the process ends with main. Here main's
//! runtime is dropped while its other goroutines may run. The drop abandons a goroutine that waits,
//! and a shutdown unwinds it. A goroutine that spawns during the drop or shutdown is treated the
//! same: it waits for that.

use std::io;
use std::ptr;
use std::sync::atomic::Ordering::Acquire;

use super::check_cancelled;
use crate::sched::Sched;
use crate::sched::model::current::current_g;
use crate::sched::model::g::WaitReason;
use crate::sched::waiting::wait_slot::{SlotKind, WaitSlot};

static ENDING: SlotKind = SlotKind::new(WaitReason::Ending);

/// The runtime of the calling goroutine, only for comparison.
pub(crate) fn own_home() -> *const Sched {
    current_g().map_or(ptr::null(), |g| ptr::from_ref(g.sched()))
}

/// Returns the result of a spawn in a function that returns no error. `home` is the runtime of the
/// new goroutine.
///
/// If the caller is a goroutine of `home`, and `home` shuts down or is dropped, this does not
/// return. In all other cases an error is a panic.
#[track_caller]
#[inline]
pub(crate) fn spawned<T>(home: *const Sched, result: io::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => refused(home, "gosched: cannot start a goroutine", &error),
    }
}

/// Handles a failed spawn; see [`spawned`]. `what` names the failed operation and begins with the
/// library's name.
#[track_caller]
#[cold]
#[inline(never)]
pub(crate) fn refused(home: *const Sched, what: &str, error: &io::Error) -> ! {
    if let Some(g) = current_g()
        && ptr::eq(g.sched(), home)
        // ORDER: Acquire; pairs with the store by the drop or the shutdown, under the scheduler
        // lock. That store precedes the error.
        && g.sched().closed.load(Acquire)
    {
        wait_for_the_end();
    }
    panic!("{what}: {error}");
}

/// Waits until a shutdown unwinds the goroutine, or for ever.
fn wait_for_the_end() -> ! {
    check_cancelled();
    let slot = WaitSlot::new();
    slot.wait(&ENDING);
    check_cancelled();
    slot.wait_always(&ENDING); // it unwinds already, so it is abandoned here
    crate::base::fatal::throw("an abandoned goroutine continued to run")
}
