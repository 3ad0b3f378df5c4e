//! Sleeping on a word, and waking the threads that sleep there.
//!
//! Every blocking primitive of the runtime is made of it. The *word* is an `AtomicU32`. A waiter
//! passes the value it *expects*. The kernel compares and sleeps in one step, so no wake after a
//! change is missed. Every return may be spurious, even from a wake for an earlier owner of the
//! same address. So callers load the word and decide again.

use core::ptr;
use core::sync::atomic::AtomicU32;

use crate::sys::linux::syscall::{Errno, check, syscall3, syscall6};

/// Why `futex_wait` returned.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// A thread woke this word, perhaps for an earlier use of its address.
    Woken,
    /// The word did not hold the expected value.
    Changed,
    /// The deadline passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Sleeps while `word` holds `expected`, at most until the CLOCK_MONOTONIC instant
/// `deadline_ns` (`None` and `u64::MAX`: for ever); CONTEXT: any.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, deadline_ns: Option<u64>) -> Wait {
    futex_wait_ptr(word, expected, deadline_ns)
}

/// As `futex_wait`, for an address that may be stale: unmapped memory counts as changed; CONTEXT:
/// any.
pub(crate) fn futex_wait_ptr(
    word: *const AtomicU32,
    expected: u32,
    deadline_ns: Option<u64>,
) -> Wait {
    let until = deadline_ns.filter(|&ns| ns != u64::MAX).map(timespec);
    // The bitset form takes an absolute time, so a wait that is repeated after a spurious return
    // ends when the first one would have.
    let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel checks the address before it reads the word. It also reads the timespec in
    // this frame. It writes neither (D9: bare call).
    let answer = unsafe {
        syscall6(
            libc::SYS_futex,
            word as usize,
            operation as usize,
            expected as usize,
            until.as_ref().map_or(0, |at| ptr::from_ref(at) as usize),
            0,
            libc::FUTEX_BITSET_MATCH_ANY as u32 as usize,
        )
    };
    match check(answer) {
        Ok(_) => Wait::Woken,
        Err(Errno(libc::ETIMEDOUT)) => Wait::TimedOut,
        Err(Errno(libc::EINTR)) => Wait::Interrupted,
        // EAGAIN, or EFAULT if the address is unmapped; a valid time gives no other error.
        Err(_) => Wait::Changed,
    }
}

/// Wakes up to `n` waiters of `word` and returns how many; CONTEXT: any.
#[cfg(test)]
pub(crate) fn futex_wake(word: &AtomicU32, n: u32) -> usize {
    futex_wake_ptr(word, n)
}

/// Wakes up to `n` waiters of an address that may be stale. The kernel uses it only as a key, so a
/// freed word costs at most a spurious wake; CONTEXT: any.
pub(crate) fn futex_wake_ptr(word: *const AtomicU32, n: u32) -> usize {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let count = n.min(i32::MAX as u32);
    // SAFETY: a private wake hashes the address and never reads from it, so the pointer need not be
    // valid (D9: bare call).
    let answer = unsafe {
        syscall3(
            libc::SYS_futex,
            word as usize,
            operation as usize,
            count as usize,
        )
    };
    check(answer).unwrap_or(0)
}

/// An absolute instant in the kernel's form; every `u64` of nanoseconds fits.
fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::linux::clock::monotonic_ns;
    use core::sync::atomic::Ordering::SeqCst;
    use std::sync::Arc;

    #[test]
    fn a_changed_word_does_not_sleep() {
        let word = AtomicU32::new(1);
        assert_eq!(futex_wait(&word, 0, None), Wait::Changed);
        assert_eq!(futex_wait(&word, 0, Some(0)), Wait::Changed);
    }

    #[test]
    fn the_deadline_is_absolute_and_kept() {
        let word = AtomicU32::new(0);
        let start = monotonic_ns();
        let deadline = start + 20_000_000;
        assert_eq!(futex_wait(&word, 0, Some(deadline)), Wait::TimedOut);
        assert!(monotonic_ns() >= deadline);
        // An instant in the past returns at once.
        assert_eq!(futex_wait(&word, 0, Some(start)), Wait::TimedOut);
        assert_eq!(futex_wait(&word, 0, Some(0)), Wait::TimedOut);
    }

    #[test]
    fn a_wake_is_not_missed_whatever_the_deadline() {
        for deadline in [None, Some(u64::MAX), Some(u64::MAX - 1)] {
            let word = Arc::new(AtomicU32::new(0));
            let sleeper = {
                let word = Arc::clone(&word);
                std::thread::spawn(move || {
                    while word.load(SeqCst) == 0 {
                        futex_wait(&word, 0, deadline);
                    }
                })
            };
            std::thread::sleep(std::time::Duration::from_millis(5));
            word.store(1, SeqCst);
            futex_wake(&word, 1);
            sleeper.join().expect("woken");
        }
    }

    #[test]
    fn wake_counts_the_woken() {
        let word = Arc::new(AtomicU32::new(0));
        assert_eq!(futex_wake(&word, 1), 0);
        let sleeper = {
            let word = Arc::clone(&word);
            std::thread::spawn(move || futex_wait(&word, 0, None))
        };
        // The word never changes, so the count is 1 only once the thread sleeps.
        while futex_wake(&word, u32::MAX) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(sleeper.join().expect("woken"), Wait::Woken);
    }

    #[test]
    fn a_stale_address_is_harmless() {
        let word = Box::new(AtomicU32::new(0));
        let address: *const AtomicU32 = &*word;
        drop(word);
        assert_eq!(futex_wake_ptr(address, 1), 0);
        assert_eq!(futex_wake_ptr(core::ptr::null(), 1), 0);
        assert_eq!(futex_wait_ptr(core::ptr::null(), 0, None), Wait::Changed);
    }
}
