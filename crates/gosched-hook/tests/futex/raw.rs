//! The system call itself: results, errno, requeue, WAKE_OP.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::time::Instant;

use libc::{
    FUTEX_CLOCK_REALTIME, FUTEX_CMP_REQUEUE, FUTEX_PRIVATE_FLAG, FUTEX_REQUEUE, FUTEX_WAIT,
    FUTEX_WAIT_BITSET, FUTEX_WAKE, FUTEX_WAKE_BITSET, FUTEX_WAKE_OP,
};

use crate::common::{LONG, ms, until, within};
use crate::{Kind, left};

pub const PRIVATE: c_int = FUTEX_PRIVATE_FLAG;

/// The arguments behind the operation.
#[derive(Clone, Copy)]
pub struct Rest {
    pub value: u32,
    pub third: usize,
    pub second_word: usize,
    pub last: u32,
}

pub const REST: Rest = Rest {
    value: 0,
    third: 0,
    second_word: 0,
    last: 0,
};

/// libc's own `syscall`, behind the hook.
fn libcs_syscall() -> Syscall {
    // SAFETY: libc's function has this type.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr());
        assert!(!found.is_null());
        std::mem::transmute::<*mut c_void, Syscall>(found)
    }
}

type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;

/// `syscall(SYS_futex, …)`, with errno.
pub fn futex(word: usize, operation: c_int, rest: Rest) -> (c_long, c_int) {
    futex_by(libc::syscall, word, operation, rest)
}

/// The same past the hook.
pub fn libcs_futex(word: usize, operation: c_int, rest: Rest) -> (c_long, c_int) {
    futex_by(libcs_syscall(), word, operation, rest)
}

fn futex_by(by: Syscall, word: usize, operation: c_int, rest: Rest) -> (c_long, c_int) {
    // SAFETY: the kernel and the hook check the addresses, and the tests pass words of their own.
    unsafe {
        *libc::__errno_location() = 0;
        let result = by(
            libc::SYS_futex,
            word,
            operation,
            rest.value,
            rest.third,
            rest.second_word,
            rest.last,
        );
        (result, *libc::__errno_location())
    }
}

pub fn address(word: &AtomicU32) -> usize {
    ptr::from_ref(word).addr()
}

/// Waits while the word is `value`.
pub fn wait(word: &AtomicU32, value: u32) -> (c_long, c_int) {
    futex(address(word), FUTEX_WAIT | PRIVATE, Rest { value, ..REST })
}

/// Wakes so many.
pub fn wake(word: &AtomicU32, value: u32) -> c_long {
    futex(address(word), FUTEX_WAKE | PRIVATE, Rest { value, ..REST }).0
}

fn time(tv_sec: i64, tv_nsec: i64) -> Box<libc::timespec> {
    Box::new(libc::timespec { tv_sec, tv_nsec })
}

fn at(time: &libc::timespec) -> usize {
    ptr::from_ref(time).addr()
}

type Futex = fn(usize, c_int, Rest) -> (c_long, c_int);

/// Calls that return at once, with good and bad arguments, with their results.
fn table(futex: Futex) -> Vec<(String, (c_long, c_int))> {
    let words = Box::new([const { AtomicU32::new(7) }; 4]);
    let word = address(&words[0]);
    let (zero, short, long) = (time(0, 0), time(0, 1_000_000), time(1 << 40, 0));
    let (negative, too_many, minus) = (time(-1, 0), time(0, 1_000_000_000), time(0, -1));
    let times = [
        0,
        at(&zero),
        at(&short),
        at(&negative),
        at(&too_many),
        at(&minus),
        8,
        usize::MAX - 7,
        at(&long),
    ];
    let places = [
        word,
        word + 1,
        word + 2,
        0,
        8,
        4096,
        usize::MAX - 3,
        1 << 63,
        1 << 47,
        (1 << 47) - 4096,
        1 << 62,
    ];
    let mut results = Vec::new();
    let mut try_one = |what: &str, word: usize, operation: c_int, rest: Rest| {
        results.push((format!("{what} {operation}"), futex(word, operation, rest)));
    };
    for flags in [PRIVATE, 0, PRIVATE | FUTEX_CLOCK_REALTIME] {
        for (n, place) in places.iter().enumerate() {
            for (t, third) in times.iter().enumerate() {
                for value in [7, 8] {
                    let is_endless = value == 7 && n == 0 && (t == 0 || t == times.len() - 1);
                    let last = u32::MAX;
                    let rest = Rest {
                        value,
                        third: *third,
                        last,
                        ..REST
                    };
                    let what = format!("wait, place {n}, time {t}, value {value}");
                    // On this clock the long time is in the future as well.
                    if !is_endless {
                        try_one(&what, *place, FUTEX_WAIT | flags, rest);
                        try_one(&what, *place, FUTEX_WAIT_BITSET | flags, rest);
                        try_one(
                            &what,
                            *place,
                            FUTEX_WAIT_BITSET | flags,
                            Rest { last: 5, ..rest },
                        );
                        try_one(
                            &what,
                            *place,
                            FUTEX_WAIT_BITSET | flags,
                            Rest { last: 0, ..rest },
                        );
                    }
                }
            }
            for value in [0, 1, u32::MAX] {
                let what = format!("wake, place {n}, value {value}");
                let rest = Rest { value, ..REST };
                try_one(&what, *place, FUTEX_WAKE | flags, rest);
                for last in [0, 5, u32::MAX] {
                    try_one(
                        &what,
                        *place,
                        FUTEX_WAKE_BITSET | flags,
                        Rest { last, ..rest },
                    );
                }
                for second_word in [address(&words[1]), address(&words[1]) + 1, 8] {
                    for last in [7, 8] {
                        let rest = Rest {
                            value,
                            third: 1,
                            second_word,
                            last,
                        };
                        try_one(&what, *place, FUTEX_REQUEUE | flags, rest);
                        try_one(&what, *place, FUTEX_CMP_REQUEUE | flags, rest);
                        try_one(&what, *place, FUTEX_WAKE_OP | flags, rest);
                    }
                }
            }
        }
    }
    try_one("no operation", word, 99 | PRIVATE, REST);
    try_one("no operation", word, -1, REST);
    results
}

#[test]
fn results_and_errno_are_the_kernels() {
    gosched::run(|| {
        let kernels = table(libcs_futex);
        let on_thread = std::thread::spawn(|| table(futex)).join().unwrap();
        assert_eq!(kernels.len(), on_thread.len());
        for ((kernels, there), here) in kernels.into_iter().zip(on_thread).zip(table(futex)) {
            assert_eq!(kernels, there, "on a thread");
            assert_eq!(kernels, here, "on a goroutine");
        }
    });
}

#[test]
fn other_system_calls_go_through() {
    let pid = std::process::id();
    gosched::run(move || {
        // SAFETY: calls without memory, and one that writes to a buffer of this frame.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_getpid), c_long::from(pid as c_int));
            assert_eq!(libc::syscall(libc::SYS_close, -1), -1);
            assert_eq!(*libc::__errno_location(), libc::EBADF);
            let mut bytes = [0u8; 32];
            let (at, none) = (bytes.as_mut_ptr(), 0);
            let read = libc::syscall(libc::SYS_getrandom, at, bytes.len(), none);
            assert_eq!(read, 32);
            assert_ne!(bytes, [0; 32]);
            // Six arguments, the last on the stack.
            let map = libc::syscall(
                libc::SYS_mmap,
                0usize,
                4096usize,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1isize,
                0usize,
            );
            assert!(map > 0);
            assert_eq!(libc::syscall(libc::SYS_munmap, map, 4096usize), 0);
        }
    });
}

/// In a process of its own, where no other test counts calls that are left to the kernel.
#[test]
fn timeouts_are_kept() {
    let done = crate::common::child("timeouts_are_kept", || gosched::run(wait_with_timeouts));
    done.succeeded();
}

fn wait_with_timeouts() {
    let word = AtomicU32::new(1);
    let before = left();
    let began = Instant::now();
    let relative = time(0, 30_000_000);
    let rest = Rest {
        value: 1,
        third: at(&relative),
        last: u32::MAX,
        ..REST
    };
    let timed_out = (-1, libc::ETIMEDOUT);
    assert_eq!(futex(address(&word), FUTEX_WAIT | PRIVATE, rest), timed_out);
    assert!(began.elapsed() >= ms(30));
    let mut absolute = time(0, 0);
    // SAFETY: libc writes the timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut *absolute) };
    absolute.tv_sec += 1;
    let began = Instant::now();
    let rest = Rest {
        third: at(&absolute),
        ..rest
    };
    assert_eq!(
        futex(address(&word), FUTEX_WAIT_BITSET | PRIVATE, rest),
        timed_out
    );
    assert!(began.elapsed() >= ms(900));
    assert_eq!(left(), before, "a timed wait was left to the kernel");
}

/// Waits of both kinds on `word`; they end once `stop` is set and they are woken.
fn waiters(word: &Arc<AtomicU32>, n: usize, woken: &Arc<AtomicUsize>) -> Vec<crate::Party<()>> {
    let begun = Arc::new(AtomicUsize::new(0));
    let all = (0..n)
        .map(|at| {
            let (word, woken, begun) = (Arc::clone(word), Arc::clone(woken), Arc::clone(&begun));
            Kind::of(at).start(move || {
                begun.fetch_add(1, SeqCst);
                assert_eq!(wait(&word, 0), (0, 0));
                woken.fetch_add(1, SeqCst);
            })
        })
        .collect();
    until(|| begun.load(SeqCst) == n);
    gosched::thread::sleep(ms(100)); // most of them wait by now; `wake_exactly` needs no more
    all
}

/// Wakes until so many were woken, by what the calls return.
fn wake_exactly(word: &AtomicU32, n: usize) {
    let mut done = 0;
    until(|| {
        done += wake(word, (n - done) as u32) as usize;
        done == n
    });
}

#[test]
fn wake_counts_both_kinds() {
    within(LONG, "counts", || {
        gosched::run(|| {
            let (word, woken) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicUsize::new(0)));
            let all = waiters(&word, 12, &woken);
            wake_exactly(&word, 5);
            until(|| woken.load(SeqCst) == 5);
            wake_exactly(&word, 7);
            all.into_iter().for_each(|party| party.join());
            assert_eq!(wake(&word, 100), 0);
        });
    });
}

#[test]
fn a_requeue_loses_no_waiter() {
    within(LONG, "requeue", || {
        gosched::run(|| {
            for operation in [FUTEX_REQUEUE, FUTEX_CMP_REQUEUE] {
                let (from, woken) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicUsize::new(0)));
                let to = AtomicU32::new(0);
                let all = waiters(&from, 12, &woken);
                let wrong = Rest {
                    value: 1,
                    third: 100,
                    second_word: address(&to),
                    last: 1,
                };
                if operation == FUTEX_CMP_REQUEUE {
                    let result = futex(address(&from), operation | PRIVATE, wrong);
                    assert_eq!(result, (-1, libc::EAGAIN));
                }
                let right = Rest { last: 0, ..wrong };
                let mut moved = 0;
                until(|| {
                    let (n, _) = futex(address(&from), operation | PRIVATE, right);
                    moved += n;
                    moved == 12
                });
                // The goroutines were woken. Of the threads one was, the others wait on `to`.
                until(|| {
                    wake(&to, 1);
                    woken.load(SeqCst) == 12
                });
                all.into_iter().for_each(|party| party.join());
            }
        });
    });
}

#[test]
fn a_requeue_moves_no_more_than_asked() {
    within(LONG, "requeue", || {
        gosched::run(|| {
            let (from, woken) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicUsize::new(0)));
            let to = AtomicU32::new(0);
            let all = waiters(&from, 8, &woken);
            let rest = Rest {
                value: 1,
                third: 2,
                second_word: address(&to),
                last: 0,
            };
            let (moved, _) = futex(address(&from), FUTEX_REQUEUE | PRIVATE, rest);
            assert!((1..=3).contains(&moved), "{moved}");
            let none = Rest {
                value: 0,
                third: 0,
                ..rest
            };
            assert_eq!(futex(address(&from), FUTEX_REQUEUE | PRIVATE, none), (0, 0));
            let mut rest = 8 - moved as usize;
            until(|| {
                rest -= wake(&from, rest as u32) as usize;
                rest == 0
            });
            until(|| {
                wake(&to, 8);
                woken.load(SeqCst) == 8
            });
            all.into_iter().for_each(|party| party.join());
        });
    });
}

#[test]
fn wake_op_changes_the_word_and_wakes_on_both() {
    within(LONG, "wake_op", || {
        gosched::run(|| {
            let (first, second) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let woken = Arc::new(AtomicUsize::new(0));
            let mut all = waiters(&first, 4, &woken);
            all.extend(waiters(&second, 4, &woken));
            // FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 0): old == 0, so both words wake.
            let rest = Rest {
                value: 100,
                third: 100,
                second_word: address(&second),
                last: 1 << 28 | 3 << 12,
            };
            futex(address(&first), FUTEX_WAKE_OP | PRIVATE, rest);
            assert_eq!(second.load(SeqCst), 3);
            until(|| {
                let _ = (wake(&first, 8), wake(&second, 8)); // late comers
                woken.load(SeqCst) == 8
            });
            all.into_iter().for_each(|party| match party {
                crate::Party::Goroutine(g) => drop(g.join()),
                crate::Party::Thread(t) => drop(t.join()),
            });
        });
    });
}

/// Waits with a mask, by the wall clock, or shared are the kernel's. They hold a thread, and are
/// woken as ever.
#[test]
fn waits_that_are_the_kernels_are_woken() {
    within(LONG, "in the kernel", || {
        gosched::run(|| {
            let ways = [
                (FUTEX_WAIT_BITSET | PRIVATE, FUTEX_WAKE_BITSET | PRIVATE, 2),
                (
                    FUTEX_WAIT_BITSET | PRIVATE | FUTEX_CLOCK_REALTIME,
                    FUTEX_WAKE | PRIVATE,
                    u32::MAX,
                ),
                (FUTEX_WAIT, FUTEX_WAKE, 0),
            ];
            for (wait, wake, last) in ways {
                let word = Arc::new(AtomicU32::new(0));
                let before = left();
                let waiter = {
                    let word = Arc::clone(&word);
                    gosched::thread::spawn(move || {
                        futex(address(&word), wait, Rest { last, ..REST })
                    })
                };
                let rest = Rest {
                    value: 1,
                    last,
                    ..REST
                };
                until(|| futex(address(&word), wake, rest).0 == 1);
                assert_eq!(waiter.join().unwrap(), (0, 0));
                assert!(left() > before);
            }
        });
    });
}

/// From the first `futex_waitv` on, every wake-up enters the kernel. In a process of its own.
#[test]
fn a_waitv_is_woken() {
    #[repr(C)]
    struct Waiter {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    let child = crate::common::child("a_waitv_is_woken", || {
        gosched::run(|| {
            let word = Arc::new(AtomicU32::new(0));
            let waiter = {
                let word = Arc::clone(&word);
                gosched::thread::spawn(move || {
                    let flags = 2 | PRIVATE as u32;
                    let one = Waiter {
                        value: 0,
                        address: address(&word) as u64,
                        flags,
                        reserved: 0,
                    };
                    // SAFETY: the kernel reads the one struct of this frame.
                    unsafe { libc::syscall(libc::SYS_futex_waitv, &one, 1, 0, 0, 0) }
                })
            };
            until(|| waiter.is_finished() || wake(&word, 1) == 1);
            let result = waiter.join().unwrap();
            assert!(
                result == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS)
            );
        });
    });
    child.succeeded();
}
