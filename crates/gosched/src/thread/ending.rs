//! A goroutine that cannot go on because its runtime ends: a spawn from one has no goroutine to return.
//!
//! In Go the process ends with main. Here main's runtime is dropped while its other goroutines may be at work. A goroutine that
//! waits is abandoned by the drop, and unwound by a shutdown. A goroutine that starts others is treated alike: it waits for
//! that, instead of a panic that nobody asked for.

use std::io;
use std::ptr;
use std::sync::atomic::Ordering::Acquire;

use super::check_cancelled;
use crate::sched::Sched;
use crate::sched::model::current::current_g;
use crate::sched::model::g::WaitReason;
use crate::sched::wait::{SlotKind, WaitSlot};

static ENDING: SlotKind = SlotKind::new(WaitReason::Ending);

/// The runtime of the calling goroutine, to be compared with.
pub(crate) fn own_home() -> *const Sched {
    current_g().map_or(ptr::null(), |g| ptr::from_ref(g.sched()))
}

/// The result of a spawn in a function that returns no error. `home` is where the goroutine was to run.
///
/// A caller that is a goroutine of `home` does not come back if the runtime shuts down or is dropped. For any other reason, and
/// for any other caller, it is a panic.
#[track_caller]
#[inline]
pub(crate) fn spawned<T>(home: *const Sched, result: io::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => refused(home, "gosched: cannot start a goroutine", &error),
    }
}

/// See [`spawned`]; `what` says what could not be done, and begins with the name of the library.
#[track_caller]
#[cold]
#[inline(never)]
pub(crate) fn refused(home: *const Sched, what: &str, error: &io::Error) -> ! {
    if let Some(g) = current_g()
        && ptr::eq(g.sched(), home)
        // ORDER: Acquire; the drop and the shutdown set it under the scheduler lock, and are the reason for the error.
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
    slot.wait_always(&ENDING); // it unwinds already: it is abandoned where it is
    crate::base::fatal::throw("an abandoned goroutine went on")
}
