//! Futexes for goroutines: a goroutine waits on a word of the program, beside threads that wait on
//! it in the kernel.
//!
//! Locks and channels that know no goroutines sleep by the system call `futex`. The crate
//! `gosched-hook` replaces that call, and this file is what it does instead of the kernel.
//!
//! **Wait.** A goroutine queues itself in the parking table (`sema`) under the word's address. It
//! compares the word with the expected value under the bucket's lock, as the kernel does. A thread
//! that cannot park waits in the kernel, and is counted (`futex_counts`) before the kernel loads
//! the word.
//!
//! **Wake.** The program has changed the word before. The waker pops goroutines under the bucket's
//! lock and leaves the rest to the kernel, or the other way round. A coin decides which kind is
//! first, so that neither starves where each wake-up is for one.
//!
//! **Nothing is lost.** Both sides have a full barrier between their two steps: a waiter between
//! its count and its load of the word, the waker between its change of the word and its load of the
//! count. So a waker that finds 0 has changed the word before the waiter loads it, and the waiter
//! does not sleep. A waker that finds a goroutine takes the lock. The goroutine is queued then, or
//! takes the lock later and sees the new word. The kernel has the same protocol for its own queues.
//!
//! **The count covers every wait in the kernel** on a private word that goes through the hook. Some
//! waits do not: bare system calls, libraries loaded with RTLD_DEEPBIND, `futex_waitv`. Where they
//! may be, [`always_enter_kernel`] makes each wake-up enter the kernel too. Threads that the kernel
//! moves to another word are expected there from then on ([`expect_moved`]).
//!
//! **A signal handler may wake.** It interrupts code that may hold any lock of the runtime. So:
//!
//! | the waker's thread | how it wakes goroutines |
//! |---|---|
//! | an M with a P, on a goroutine, outside the runtime | as every operation: no internal lock is held there (D9) |
//! | the same without a P | it tries the locks, and leaves to another thread what it cannot do (`futex_late`) |
//! | not an M, as far as it can see | the same |
//! | an M on g0, on its signal stack, or inside the runtime | it leaves the wake-up to that other thread |
//!
//! The third row covers an M that a signal has interrupted on the way from one thread block to
//! another. No row waits for a lock that the interrupted code holds, or for a P, and none
//! allocates. None yields: the thread's signal mask is the handler's. A wake-up that is left to the
//! other thread wakes every goroutine of the word: a futex may wake for no reason.
//!
//! **The end of a runtime** does not end these waits, for their callers cannot unwind. The goroutine
//! is abandoned in its wait (D2), and later wake-ups pass it by. If it was woken and never runs
//! again, its wake-up goes to the next waiter of the word.
//!
//! **A key** is the word's address with one more bit ([`sema::FUTEX`]). A wake-up may come late and
//! find other things at its address; it must not pop a waiter of a lock there.

use std::sync::atomic::AtomicU32;

use crate::arch::load_or_fault;
use crate::base::lock::RanksAside;
use crate::sched::life::forked;
use crate::sched::model::current::{current_m, on_curg};
use crate::sched::model::g::WaitReason;
use crate::sched::park::{Entered, enter_at_once, leave_here, try_ready};
use crate::sched::waiting::futex_counts::Uncounted;
use crate::sched::waiting::futex_late;
use crate::sched::waiting::sema::{
    FUTEX, KeyWait, LockedBucket, NEVER, ParkResult, QueueLeft, counts_of, lock, try_lock,
};
use crate::sched::waiting::waitq::{WaitKind, WaitNode, Waiter, WakeList};
use crate::sys;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FutexEnd {
    Woken,
    /// The word had another value.
    Changed,
    TimedOut,
    /// The word has no memory.
    Fault,
}

static KIND: WaitKind = WaitKind::always(WaitReason::Futex).passing_on(pass_on);

/// A goroutine was woken and never runs again: another waiter of the word gets the wake-up.
///
/// # Safety
/// See [`PassOn`](crate::sched::waiting::waitq::PassOn).
unsafe fn pass_on(waiter: &Waiter, by: Option<&WaitNode<'_>>) {
    if by.is_some() {
        let word = waiter.on.get().object;
        futex_late::owe(word | FUTEX);
        sys::futex_wake_ptr(std::ptr::without_provenance(word), 1);
    }
}

/// Parks the calling goroutine while the word at `word` is `expected`, at most until the deadline
/// (monotonic ns; [`NEVER`]). The goroutine may park.
pub(crate) fn wait(word: usize, expected: u32, deadline_ns: u64) -> FutexEnd {
    // Before the lock, too: the page may have to be read from a disk.
    match load_or_fault(word) {
        None => return FutexEnd::Fault,
        Some(value) if value != expected => return FutexEnd::Changed,
        Some(_) if deadline_ns != NEVER && deadline_ns <= sys::monotonic_ns() => {
            return FutexEnd::TimedOut;
        }
        Some(_) => {}
    }
    let key = word | FUTEX;
    let counts = counts_of(key);
    let mut refused = FutexEnd::Changed;
    let queue_up = |_: &mut LockedBucket| {
        counts.add_goroutine();
        let value = load_or_fault(word);
        if value == Some(expected) {
            return true;
        }
        counts.remove_goroutines(1);
        if value.is_none() {
            refused = FutexEnd::Fault;
        }
        false
    };
    let way = KeyWait {
        deadline_ns,
        ..KeyWait::new(key, &KIND)
    };
    let left = |queue: QueueLeft| counts.remove_goroutines(queue.was_in.into());
    match way.park(queue_up, || {}, left) {
        ParkResult::Refused => refused,
        ParkResult::TimedOut => FutexEnd::TimedOut,
        ParkResult::Got(_) | ParkResult::Cancelled => FutexEnd::Woken,
    }
}

/// Wakes `n` waiters of the word at `word` and returns how many, as far as it is known. `kernel`
/// wakes so many threads that wait in the kernel and returns their number. CONTEXT: any.
#[inline]
pub(crate) fn wake(word: usize, n: u32, mut kernel: impl FnMut(u32) -> u32) -> u32 {
    if forked::is_child() {
        return kernel(n);
    }
    let key = word | FUTEX;
    counts_of(key).wake(n, &UNCOUNTED, |n| wake_goroutines(key, n), kernel)
}

/// Wakes up to `n` goroutines of `key`. CONTEXT: any.
fn wake_goroutines(key: usize, n: u32) -> u32 {
    let Some(m) = current_m() else {
        return wake_outside(key, n);
    };
    if m.claim.depth() != 0 || !on_curg(m) {
        futex_late::owe(key);
        return 0;
    }
    match enter_at_once(m) {
        Ok(rt) => wake_inside(rt, key, n),
        Err(_without_p) => wake_outside(key, n),
    }
}

/// Inside the runtime, without locks. Leaves it.
pub(super) fn wake_inside(rt: Entered, key: usize, n: u32) -> u32 {
    let mut wake = WakeList::new();
    let woken = pop_some(&mut lock(key), key, n, &mut wake);
    wake.wake_in(&rt);
    leave_here(rt);
    woken
}

/// On a thread without a P, perhaps in a signal handler.
fn wake_outside(key: usize, n: u32) -> u32 {
    let _ranks = RanksAside::new();
    let Some(mut table) = try_lock(key) else {
        futex_late::owe(key);
        return 0;
    };
    let mut wake = WakeList::new();
    let woken = pop_some(&mut table, key, n, &mut wake);
    drop(table);
    wake.wake_with(|g| {
        if !try_ready(g) {
            futex_late::hand_over(g);
        }
    });
    woken
}

/// Claims up to `n` goroutines of `key`, in order.
pub(super) fn pop_some(table: &mut LockedBucket, key: usize, n: u32, wake: &mut WakeList) -> u32 {
    let counts = counts_of(key);
    let (mut woken, mut out) = (0, 0);
    while woken < n
        && let Some(popped) = table.pop_counting(key, &mut out)
    {
        popped.finish(0, wake);
        woken += 1;
    }
    counts.remove_goroutines(out);
    woken
}

/// The calling thread is about to wait in the kernel on the word at `word`. [`left_kernel`] ends
/// it. CONTEXT: any, both.
#[inline]
pub(crate) fn enter_kernel(word: usize) {
    counts_of(word | FUTEX).enter_kernel();
}

/// See [`enter_kernel`].
#[inline]
pub(crate) fn left_kernel(word: usize) {
    counts_of(word | FUTEX).leave_kernel();
}

/// The kernel may move waiters of other words to the word at `word`. CONTEXT: any.
pub(crate) fn expect_moved(word: usize) {
    counts_of(word | FUTEX).expect_moved();
}

/// Threads may wait in the kernel that are not counted.
static UNCOUNTED: Uncounted = Uncounted(AtomicU32::new(0));

/// From now on every wake-up enters the kernel, too. CONTEXT: any.
pub(crate) fn always_enter_kernel() {
    UNCOUNTED.expect();
}

#[cfg(test)]
mod tests;
