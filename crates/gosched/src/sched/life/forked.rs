//! The child of a fork: it has one thread and no runtime.
//!
//! A child that calls `exec` is not affected. A child that calls into an inherited runtime would
//! find locks held by threads that do not exist. It panics with a clear message instead. A child
//! whose parent had no runtime at the fork may make its own.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::base::upcall::Upcall;
use crate::sched::life::registry;
use crate::sched::model::current::current_m;

static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process is the child of a process that had a runtime.
#[inline]
pub(crate) fn is_child() -> bool {
    FORKED.load(Relaxed)
}

/// For the child of a test, which uses nothing that has threads.
#[cfg(test)]
pub(crate) fn ignore() {
    FORKED.store(false, Relaxed);
}

/// Panics, with the reason and what to do instead.
#[cold]
#[track_caller]
pub(crate) fn refuse() -> ! {
    panic!(
        "gosched: this process was forked from one with a running gosched runtime, whose threads it does not have: \
         exec a program, or fork before the runtime starts"
    )
}

/// Registers the fork handler with libc, once per process. In user context.
pub(crate) fn watch() -> io::Result<()> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        // SAFETY: the function lives as long as the process. In the child it only loads and stores
        // atomics, and calls async-signal-safe functions (`restore_in_child`).
        match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
            0 => *done = true,
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
    Ok(())
}

/// What upper floors restore in the child, in this order. A callback, because they are above.
#[derive(Clone, Copy)]
pub(crate) enum Restore {
    PreemptionSignal,
    ProgramSignals,
}

static RESTORE: [Upcall<fn()>; 2] = [const { Upcall::new() }; 2];

/// Registers `f`, which the child of a fork calls. It must be async-signal-safe. In user context.
pub(crate) fn restore_in_child(what: Restore, f: fn()) {
    RESTORE[what as usize].set(f);
}

/// Runs in the child, on its only thread, before fork returns.
extern "C" fn in_child() {
    // The preemption handler first: a handler of `signal` may be below it.
    for restore in RESTORE.iter().filter_map(Upcall::get) {
        restore();
    }
    if registry::has_runtimes() {
        FORKED.store(true, Relaxed);
        if let Some(m) = current_m() {
            m.claim.set_forked();
        }
    }
}
