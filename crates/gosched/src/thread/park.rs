//! Parking and sleeping, for goroutines and plain threads.
//!
//! It implements [`park`], [`park_timeout`] and [`sleep`].

use std::time::Duration;

use super::current_inner;
use crate::sched::model::current::current_g;
use crate::sched::model::g::WaitReason;
use crate::sched::model::ptr::Gp;
use crate::sched::park::park as park_g;
use crate::sched::waiting::handle::Inner;
pub(crate) use crate::sched::waiting::timed::check_cancelled;
use crate::sched::waiting::timed::{SLEEP, arm, wait_timed, yield_until};
use crate::sched::waiting::wait_ops::{WaitOps, WaitView};
use crate::sys;

static PARK: WaitOps<Inner> = WaitOps {
    reason: WaitReason::Park,
    is_open: true,
    commit: |g, inner| inner.commit_g(g),
    withdraw: |g, inner| inner.withdraw_g(g),
    time_out: |_, _| false,
    view: |inner| WaitView::Inner(inner),
    pass_on: None,
};

static PARK_TIMEOUT: WaitOps<Inner> = WaitOps {
    reason: WaitReason::Park,
    is_open: false,
    commit: |g, inner| arm(g, || inner.commit_g(g)),
    withdraw: |g, inner| inner.withdraw_g(g),
    time_out: claim_parked,
    view: |inner| WaitView::Inner(inner),
    pass_on: None,
};

fn claim_parked(g: Gp, parked: &Inner) -> bool {
    parked.withdraw_g(g)
}

/// Blocks until the token of the calling goroutine or thread is available, and takes it.
///
/// Blocks the calling goroutine or plain thread. See [`std::thread::park`].
///
/// ```
/// # gosched::run(|| {
/// let main = gosched::thread::current();
/// gosched::go(move || main.unpark());
/// gosched::thread::park();
/// # });
/// ```
pub fn park() {
    check_cancelled();
    if current_g().is_none() {
        super::current().inner().park_thread(u64::MAX);
        return;
    }
    let inner = current_inner();
    // SAFETY: the goroutine holds a reference to its own `Inner` until it ends.
    let inner = unsafe { inner.as_ref() };
    if inner.take_token() {
        return;
    }
    park_g(&PARK, inner);
    check_cancelled();
}

/// As [`park`], for at most `dur`.
///
/// Blocks the calling goroutine or plain thread. See [`std::thread::park_timeout`].
///
/// ```
/// # gosched::run(|| {
/// gosched::thread::park_timeout(std::time::Duration::from_millis(1));
/// # });
/// ```
pub fn park_timeout(dur: Duration) {
    let deadline = sys::deadline_after(dur);
    if deadline == u64::MAX {
        return park();
    }
    check_cancelled();
    if current_g().is_none() {
        super::current().inner().park_thread(deadline);
        return;
    }
    let inner = current_inner();
    // SAFETY: the goroutine holds a reference to its own `Inner` until it ends.
    let inner = unsafe { inner.as_ref() };
    if inner.take_token() {
        return;
    }
    if !wait_timed(&PARK_TIMEOUT, inner, deadline) {
        yield_until(deadline, || inner.take_token() || is_cancelled());
    }
    check_cancelled();
}

/// Sleeps for at least `dur`.
///
/// `Duration::ZERO` returns at once, `Duration::MAX` never returns. Blocks the calling goroutine or
/// plain thread. See [`std::thread::sleep`].
///
/// ```
/// # gosched::run(|| {
/// gosched::thread::sleep(std::time::Duration::from_millis(1));
/// # });
/// ```
pub fn sleep(dur: Duration) {
    check_cancelled();
    if dur.is_zero() {
        return;
    }
    if current_g().is_none() {
        return std::thread::sleep(dur);
    }
    let deadline = sys::deadline_after(dur);
    if !wait_timed(&SLEEP, &(), deadline) {
        yield_until(deadline, is_cancelled);
    }
    check_cancelled();
}

fn is_cancelled() -> bool {
    current_g().is_some_and(|g| g.is_cancelled())
}
