//! Sleeping on a word, and waking whoever sleeps there.
//!
//! Words: the *word* is an `AtomicU32`; a waiter names the value it *expects*.
//! The kernel compares and sleeps in one step, so a change followed by a wake is
//! never missed. Every return may be spurious, a wake for an earlier owner of the
//! same address included: callers re-read the word and decide again.

use core::ptr;
use core::sync::atomic::AtomicU32;

use crate::sys::linux::syscall::{Errno, check, syscall3, syscall6};

/// Why `futex_wait` came back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Somebody woke this word, perhaps for an earlier use of its address.
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

/// The same for an address that may be stale by now: memory that is not there has
/// changed; CONTEXT: any.
pub(crate) fn futex_wait_ptr(
    word: *const AtomicU32,
    expected: u32,
    deadline_ns: Option<u64>,
) -> Wait {
    let until = deadline_ns.filter(|&ns| ns != u64::MAX).map(timespec);
    // The bitset form is the one whose time is absolute, so that a wait repeated
    // after a spurious return ends when the first one would have.
    let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word, if it is there, and the timespec, which lives
    // in this frame; it writes neither (D9: bare call).
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
        // EAGAIN, or EFAULT where there is no word; no other refusal exists for a valid time.
        Err(_) => Wait::Changed,
    }
}

/// Wakes up to `n` waiters of `word` and says how many it woke; CONTEXT: any.
#[cfg(test)]
pub(crate) fn futex_wake(word: &AtomicU32, n: u32) -> usize {
    futex_wake_ptr(word, n)
}

/// Wakes up to `n` waiters of an address that may be stale by now: the kernel only
/// uses it as a key, so a freed word costs a spurious wake at most; CONTEXT: any.
pub(crate) fn futex_wake_ptr(word: *const AtomicU32, n: u32) -> usize {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let count = n.min(i32::MAX as u32);
    // SAFETY: a private wake hashes the address and never reads what is there, so
    // the pointer need not be live (D9: bare call).
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
        // An instant that is past already returns at once.
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
        // The word never changes, so the count is 1 exactly once the thread sleeps.
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
