//! A futex that two processes share: always the kernel's.

use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use libc::{FUTEX_WAIT, FUTEX_WAKE};

use crate::common::{child, until};
use crate::raw::{REST, Rest, address, futex, wake};

#[test]
fn a_goroutine_and_another_process_wake_each_other() {
    let done = child("a_goroutine_and_another_process_wake_each_other", || {
        // SAFETY: a new mapping, shared with the children of this process.
        let map = unsafe {
            libc::mmap(
                ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED);
        // SAFETY: the mapping stays, begins with zeros and is used by atomics only.
        let words: &'static [AtomicU32; 2] = unsafe { &*map.cast() };
        gosched::run(|| {
            let other = fork_player(words);
            for round in 1..=200 {
                words[0].store(round, SeqCst);
                wake_shared(&words[0]);
                wait_shared(&words[1], round - 1);
            }
            let mut status = 0;
            // SAFETY: waits for the child; writes to this frame.
            unsafe { libc::waitpid(other, &mut status, 0) };
            assert_eq!(status, 0);
        });
    });
    done.succeeded();
}

/// Waits until the word is no more `old`.
fn wait_shared(word: &AtomicU32, old: u32) {
    while word.load(SeqCst) == old {
        futex(address(word), FUTEX_WAIT, Rest { value: old, ..REST });
    }
}

fn wake_shared(word: &AtomicU32) {
    futex(address(word), FUTEX_WAKE, Rest { value: 1, ..REST });
}

/// Answers each round, in a child. Its private futexes are the kernel's, too.
fn fork_player(words: &'static [AtomicU32; 2]) -> libc::pid_t {
    // SAFETY: the child calls only `syscall` and `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            for round in 1..=200 {
                wait_shared(&words[0], round - 1);
                words[1].store(round, SeqCst);
                wake_shared(&words[1]);
            }
            let private = AtomicU32::new(0);
            let is_right =
                wake(&private, 1) == 0 && crate::raw::wait(&private, 1) == (-1, libc::EAGAIN);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_right)) }
        }
        pid => {
            assert!(pid > 0);
            pid
        }
    }
}

/// A mutex of std that threads of a forked child use.
#[test]
fn a_private_futex_of_a_fork_is_the_kernels() {
    let done = child("a_private_futex_of_a_fork_is_the_kernels", || {
        gosched::run(|| {
            // SAFETY: the child calls functions that a copy of a glibc process may call.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let lock =
                    std::sync::Arc::new((std::sync::Mutex::new(0), std::sync::Condvar::new()));
                let other = std::sync::Arc::clone(&lock);
                let thread = std::thread::spawn(move || {
                    *other.0.lock().unwrap() = 1;
                    other.1.notify_one();
                });
                drop(lock.1.wait_while(lock.0.lock().unwrap(), |n| *n == 0));
                let is_right = thread.join().is_ok();
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!is_right)) }
            }
            let mut status = -1;
            until(|| {
                // SAFETY: looks after the child; writes to this frame.
                let found = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
                found == pid
            });
            assert_eq!(status, 0);
        });
    });
    done.succeeded();
}
