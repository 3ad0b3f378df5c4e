//! Locked threads (U9, M6): a goroutine that runs on one M only, and an M that runs one goroutine
//! only.
//!
//! A locked goroutine lies in ordinary queues. The M that dequeues it gives its own P to the locked
//! M and sleeps (`start_owner`). The locked M, while its goroutine does not run, hands its P off
//! and waits for that (`stop_locked_m`).
//!
//! In shared mode the runtime pairs a goroutine that waits while it unwinds in the same way. std
//! counts panics in a thread-local. So the goroutine must end its unwinding on the thread where it
//! began, and no other goroutine may run there meanwhile.

use std::sync::atomic::Ordering::Relaxed;

use super::Sched;
use super::park::{Entered, enter};
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::worker::G0;

/// Locks the calling goroutine to its current thread. Calls nest.
#[track_caller]
pub(crate) fn lock_os_thread() {
    let (_rt, m, g) = here("lock_os_thread");
    let nested = g.locked_ext.get().checked_add(1);
    g.locked_ext
        .set(nested.expect("lock_os_thread: nested too deeply"));
    bind(m, g);
}

/// Undoes one `lock_os_thread`. Without one it does nothing.
#[track_caller]
pub(crate) fn unlock_os_thread() {
    let (_rt, m, g) = here("unlock_os_thread");
    if g.locked_ext.get() > 0 {
        g.locked_ext.set(g.locked_ext.get() - 1);
        unbind(m, g);
    }
}

/// The calling goroutine and its M, which stays the same while the guard lives.
#[track_caller]
fn here(what: &str) -> (Entered, Mp, Gp) {
    let rt = enter();
    match rt.m().and_then(|m| Some((m, m.curg()?))) {
        Some((m, g)) => (rt, m, g),
        None => panic!(
            "gosched::{what} called outside a goroutine: call it from code started with gosched::run, go or thread::spawn"
        ),
    }
}

fn bind(m: Mp, g: Gp) {
    m.lockedg.store(Some(g), Relaxed);
    g.lockedm.store(Some(m), Relaxed);
}

fn unbind(m: Mp, g: Gp) {
    if g.locked_ext.get() == 0 && g.locked_int.get() == 0 {
        m.lockedg.store(None, Relaxed);
        g.lockedm.store(None, Relaxed);
    }
}

/// A goroutine is about to leave its M. It stays locked to the M while it unwinds; afterwards it is
/// free again.
#[inline]
pub(crate) fn bind_if_panicking(m: Mp, g: Gp) {
    if m.sched().tls.is_own() {
        return;
    }
    let panicking = std::thread::panicking();
    if panicking != (g.locked_int.get() != 0) {
        g.locked_int.set(u8::from(panicking));
        if panicking { bind(m, g) } else { unbind(m, g) }
    }
}

/// The goroutine is dead: dissolves the pair. A goroutine without one has no lock to forget.
#[inline]
pub(crate) fn forget(m: Mp, g: Gp) {
    if m.lockedg.load(Relaxed).is_some() {
        g.locked_ext.set(0);
        g.locked_int.set(0);
        unbind(m, g);
    }
}

impl Sched {
    /// The locked M waits, without a P, until its goroutine is dequeued. False: it must end.
    pub(crate) fn stop_locked_m(&self, g0: &mut G0) -> bool {
        let m = g0.m();
        // Counted as asleep before the P is handed off, because no thread may wait for this M to
        // come back.
        self.core.lock().nmidlelocked += 1;
        m.tp.to_own(); // it may have come here from a call without a P
        if g0.worker().is_some() {
            self.hand_off_p(g0.relinquish_p());
        }
        m.blocked.store(true, Relaxed);
        let core = self.core.lock();
        let is_dead = self.dead.load(Relaxed);
        drop(core);
        if is_dead {
            return false;
        }
        // Clear the note after the sleep, not before: the goroutine may be dequeued, and this M
        // woken, before the M comes this far.
        m.park.sleep();
        m.park.clear();
        m.blocked.store(false, Relaxed);
        match m.take_nextp() {
            Some(p) => {
                g0.acquire_p(p);
                true
            }
            None => {
                debug_assert!(self.dead.load(Relaxed), "woken without a P");
                false
            }
        }
    }
}
