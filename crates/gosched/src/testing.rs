//! Switches for the project's own tests and benchmarks; not part of the API.

use std::sync::atomic::Ordering::SeqCst;

/// From the `n`-th on, requests for memory mappings fail; a negative number ends that.
pub fn fail_map_after(n: i64) {
    crate::sys::FAIL_MAP_AFTER.store(n, SeqCst);
}

/// From the `n`-th on, thread creation fails; a negative number ends that.
pub fn fail_thread_after(n: i64) {
    crate::sys::FAIL_THREAD_AFTER.store(n, SeqCst);
}

/// From the `n`-th on, threads are refused a signal stack; a negative number ends that.
pub fn fail_signal_stack_after(n: i64) {
    crate::sys::FAIL_SIGSTACK_AFTER.store(n, SeqCst);
}

/// From the `n`-th on, sockets are refused by the poller; a negative number ends that.
pub fn fail_epoll_after(n: i64) {
    crate::sys::FAIL_EPOLL_AFTER.store(n, SeqCst);
}

/// How long callers wait for a thread while no marked call returns, before the process ends.
pub fn thread_patience(patience: std::time::Duration) {
    let ns = patience.as_nanos() as u64;
    crate::sched::monitor::room::PATIENCE_NS.store(ns, SeqCst);
}

/// The next `n` times that the two clocks are read to compare them, the thread is interrupted between the readings.
pub fn interrupt_clock(n: i64) {
    crate::sys::INTERRUPT_CLOCK.store(n, SeqCst);
}

/// Whether unwinders ask for the list of loaded objects, and so for the loader's lock, as old ones do.
pub fn unwinder_asks_the_loader(asks: bool) {
    crate::sys::UNWINDER_ASKS.store(asks, SeqCst);
}

/// Whether `build` finds that goroutines cannot have their own thread-locals.
pub fn refuse_own_thread_locals(refuse: bool) {
    crate::sys::REFUSE_OWN_TLS.store(refuse, SeqCst);
}

/// Returns the unused stack pages of every goroutine of the caller's runtime that waits, without
/// waiting for its age.
pub fn shrink_waiting() {
    if let Some(g) = crate::sched::model::current::current_g() {
        let _rt = crate::sched::park::enter();
        g.sched().shrink_all();
    }
}

/// Takes an edge that the state machine does not have, which must end the process.
pub fn illegal_status_change() {
    if let Some(g) = crate::sched::model::current::current_g() {
        g.status.transition(
            crate::sched::model::gstatus::Status::Running,
            crate::sched::model::gstatus::Status::Leaked,
        );
    }
}

/// Pretends to run user code inside the runtime, which debug builds must catch (D9).
pub fn user_code_inside_the_runtime() {
    let _rt = crate::sched::park::enter();
    crate::sched::park::assert_user_context();
}

/// Enters the runtime and leaves it, as every call does that touches it.
#[inline]
pub fn enter_and_leave() {
    drop(crate::sched::park::enter());
}
