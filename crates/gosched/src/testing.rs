//! Switches for the project's own tests and benchmarks; not part of the API.
//!
//! They create conditions that a test cannot cause from outside, such as a refused system call.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Makes memory mappings fail after `n` more; a negative number turns this off.
pub fn fail_map_after(n: i64) {
    crate::sys::FAIL_MAP_AFTER.store(n, SeqCst);
}

/// Makes thread creation fail after `n` more threads; a negative number turns this off.
pub fn fail_thread_after(n: i64) {
    crate::sys::FAIL_THREAD_AFTER.store(n, SeqCst);
}

/// Lets the report of a fatal error take so many seconds. On a busy machine the usual five are few
/// for the symbols of a large test binary.
pub fn set_report_patience(seconds: usize) {
    // ORDER: Relaxed; a number that guards nothing.
    crate::base::fatal::PATIENCE_S.store(seconds, Relaxed);
}

/// Refuses signal stacks after `n` more threads; a negative number turns this off.
pub fn fail_signal_stack_after(n: i64) {
    crate::sys::FAIL_SIGSTACK_AFTER.store(n, SeqCst);
}

/// Makes the poller refuse sockets after `n` more; a negative number turns this off.
pub fn fail_epoll_after(n: i64) {
    crate::sys::FAIL_EPOLL_AFTER.store(n, SeqCst);
}

/// Sets how long callers wait for a thread while no marked call returns, before the process ends.
pub fn thread_patience(patience: std::time::Duration) {
    let ns = patience.as_nanos() as u64;
    crate::sched::calls::room::PATIENCE_NS.store(ns, SeqCst);
}

/// Interrupts the thread between the two readings, the next `n` times that two clocks are compared.
pub fn interrupt_clock(n: i64) {
    crate::sys::INTERRUPT_CLOCK.store(n, SeqCst);
}

/// Sets whether unwinders ask for the list of loaded objects, and so for the loader's lock, as old
/// ones do.
pub fn unwinder_asks_the_loader(asks: bool) {
    crate::sys::UNWINDER_ASKS.store(asks, SeqCst);
}

/// Sets whether `build` finds that goroutines cannot have their own thread-locals.
pub fn refuse_own_thread_locals(refuse: bool) {
    crate::sys::REFUSE_OWN_TLS.store(refuse, SeqCst);
}

/// Returns the unused stack pages of all waiting goroutines of the caller's runtime, regardless of
/// how long they have waited.
pub fn shrink_waiting() {
    if let Some(g) = crate::sched::model::current::current_g() {
        let _rt = crate::sched::park::enter();
        g.sched().shrink_all();
    }
}

/// Makes a status change that the state machine does not allow, which must end the process.
pub fn illegal_status_change() {
    if let Some(g) = crate::sched::model::current::current_g() {
        g.status.transition(
            crate::sched::model::gstatus::Status::Running,
            crate::sched::model::gstatus::Status::Leaked,
        );
    }
}

/// Pretends to run user code inside the runtime, which debug builds must detect (D9).
pub fn user_code_inside_the_runtime() {
    let _rt = crate::sched::park::enter();
    crate::sched::model::current::assert_user_context();
}

/// Enters and leaves the runtime, as every call into it does.
#[inline]
pub fn enter_and_leave() {
    drop(crate::sched::park::enter());
}
