//! Stand-in for timed waits of goroutines: the library's timer heap is a list under a lock.

use loom::sync::Mutex;

use crate::sched::model::ptr::Gp;
use crate::sched::park::ready;
use crate::shim::has_time_passed;

struct Armed(Vec<Gp>);

// SAFETY: GF. The test keeps every G until all threads have ended, and a G may be used from any
// thread.
unsafe impl Send for Armed {}

loom::lazy_static! {
    static ref TIMERS: Mutex<Armed> = Mutex::new(Armed(Vec::new()));
}

/// Every deadline passes: timed waits end, now and later.
pub(crate) fn let_time_pass() {
    crate::shim::pass_deadlines();
    expire();
}

/// Wakes the goroutines whose deadline has passed, as an M that looks for work does.
pub(crate) fn expire() {
    let mut due = Vec::new();
    {
        let mut timers = TIMERS.lock().unwrap();
        if timers.0.is_empty() || !has_time_passed() {
            return;
        }
        for g in timers.0.drain(..) {
            // SAFETY: G4. The goroutine is Waiting and in the list. The lock is held, so it has not
            // returned from its wait.
            let wait = unsafe { g.wait() };
            if wait.is_some_and(|wait| wait.time_out(g)) {
                due.push(g);
            }
        }
    }
    due.into_iter().for_each(ready);
}

pub(crate) mod park {
    //! The part of the library's `thread/park.rs` that waiters use.

    use super::TIMERS;
    use crate::current::current_g;
    use crate::sched::model::ptr::Gp;
    use crate::sched::park::{Entered, park};
    use crate::sched::waiting::wait_ops::WaitOps;
    use crate::sched::waiting::waitq::Waiter;

    pub(crate) fn arm(g: Gp, publish: impl FnOnce() -> bool) -> bool {
        let mut timers = TIMERS.lock().unwrap();
        let is_published = publish();
        if is_published {
            timers.0.push(g);
        }
        is_published
    }

    pub(crate) fn wait_timed_in(
        rt: Entered,
        ops: &'static WaitOps<Waiter>,
        arg: &Waiter,
        _deadline: u64,
    ) -> bool {
        drop(rt);
        let Some(g) = current_g() else { return true };
        park(ops, arg);
        let mut timers = TIMERS.lock().unwrap();
        timers.0.retain(|armed| armed.as_ptr() != g.as_ptr());
        true
    }

    pub(crate) fn yield_until(_deadline: u64, _is_done: impl Fn() -> bool) {
        unreachable!("there is always room for a timer")
    }

    /// Nothing unwinds here: a goroutine that was asked to unwind waits again.
    pub(crate) fn check_cancelled() {}
}

/// A loom thread.
pub(crate) type ThreadId = loom::thread::ThreadId;

pub(crate) fn current_id() -> Option<ThreadId> {
    Some(loom::thread::current().id())
}
