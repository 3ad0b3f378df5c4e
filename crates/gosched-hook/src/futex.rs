//! Futexes: `syscall(SYS_futex, …)` parks and wakes goroutines.
//!
//! std's locks, condition variables, channels and `park`, and crates like parking_lot, sleep by
//! libc's `syscall`. The hook looks at the number of the call only. Every other call goes to libc
//! as it is.
//!
//! | operation, with FUTEX_PRIVATE_FLAG | on a goroutine | elsewhere |
//! |---|---|---|
//! | WAIT, WAIT_BITSET with every bit | parks | the kernel, counted |
//! | WAIT_BITSET with other bits, or by CLOCK_REALTIME; WAIT_REQUEUE_PI | the kernel, counted | the same |
//! | WAKE, WAKE_BITSET | wakes goroutines, whatever their bits, and threads | the same |
//! | REQUEUE, CMP_REQUEUE | the kernel moves threads; goroutines are woken | the same |
//! | WAKE_OP | the kernel; goroutines on both words are woken as well | the same |
//! | others | the kernel | the kernel |
//!
//! Without the flag all is the kernel's: another process may wait or wake there. The protocol is in
//! the library's `sched/waiting/futex.rs`.
//!
//! A call with bad arguments goes to the kernel, which refuses it with the right errno.

use std::ffi::{c_int, c_long};
use std::time::Duration;

use gosched::hook::futex::{End, KernelWait, Until};
use gosched::hook::{count_left, futex as runtime};

use crate::table;

/// libc's `syscall`.
type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

/// The first number of a system call about futexes after `futex` itself.
const FUTEX_CALLS: c_long = libc::SYS_futex_waitv;
const SYS_FUTEX_WAKE: c_long = 454;
const SYS_FUTEX_REQUEUE: c_long = 456;
/// `futex_wake` and its kin: words of 32 bits, private.
const FUTEX2_PRIVATE_U32: u32 = 128 | 2;

table::hook! {
    fn syscall(
        number: c_long,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> c_long = |real| {
        if number == libc::SYS_futex {
            let call = Call { real, number, words: [a, b, c, d, e, f] };
            return call.futex();
        }
        if (FUTEX_CALLS..=SYS_FUTEX_REQUEUE).contains(&number) {
            let call = Call { real, number, words: [a, b, c, d, e, f] };
            return call.other_futex();
        }
        // SAFETY: the arguments are the caller's.
        unsafe { real(number, a, b, c, d, e, f) }
    };
}

/// A call of `syscall`.
struct Call {
    real: Syscall,
    number: c_long,
    words: [usize; 6],
}

impl Call {
    /// The call, made by libc.
    #[inline]
    fn real(&self) -> c_long {
        let [a, b, c, d, e, f] = self.words;
        // SAFETY: the arguments are those of the program's call, or the same with a smaller number
        // of waiters to wake.
        unsafe { (self.real)(self.number, a, b, c, d, e, f) }
    }

    /// The word.
    fn address(&self) -> usize {
        self.words[0]
    }

    /// The third argument: the expected value, or the number of waiters to wake.
    fn value(&self) -> u32 {
        self.words[2] as u32
    }

    /// `SYS_futex`.
    fn futex(&self) -> c_long {
        let operation = self.words[1] as c_int;
        if operation & libc::FUTEX_PRIVATE_FLAG == 0 {
            return self.shared(operation);
        }
        if table::syscall.is_off() || !is_plain(self.address()) {
            return self.real();
        }
        match operation & !libc::FUTEX_PRIVATE_FLAG {
            libc::FUTEX_WAIT => self.wait(false),
            libc::FUTEX_WAIT_BITSET if self.mask() == u32::MAX => self.wait(true),
            libc::FUTEX_WAKE => self.wake(),
            libc::FUTEX_WAKE_BITSET if self.mask() != 0 => self.wake(),
            libc::FUTEX_REQUEUE | libc::FUTEX_CMP_REQUEUE => self.requeue(),
            libc::FUTEX_WAKE_OP => self.wake_op(),
            WAIT_BITSET_REALTIME
            | libc::FUTEX_WAIT_BITSET
            | libc::FUTEX_WAIT_REQUEUE_PI
            | WAIT_REQUEUE_PI_REALTIME => self.wait_left(),
            _ => self.real(),
        }
    }

    /// The bits of WAIT_BITSET and WAKE_BITSET.
    fn mask(&self) -> u32 {
        self.words[5] as u32
    }

    /// Other processes may wait on the word.
    fn shared(&self, operation: c_int) -> c_long {
        if matches!(
            operation & !libc::FUTEX_CLOCK_REALTIME,
            libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET
        ) && table::syscall.applies()
        {
            table::syscall.count_left();
        }
        self.real()
    }

    fn wait(&self, is_absolute: bool) -> c_long {
        if table::syscall.applies()
            && let Some(until) = until(self.words[3], is_absolute)
        {
            match runtime::wait(self.address(), self.value(), until) {
                End::Woken => return 0,
                End::Changed => return fail(libc::EAGAIN),
                End::TimedOut => return fail(libc::ETIMEDOUT),
                End::Fault => {}
            }
        }
        self.wait_in_kernel()
    }

    /// A wait that is always the kernel's.
    fn wait_left(&self) -> c_long {
        if table::syscall.applies() {
            table::syscall.count_left();
        }
        self.wait_in_kernel()
    }

    fn wait_in_kernel(&self) -> c_long {
        let _counted = KernelWait::begin(self.address());
        self.real()
    }

    /// The kernel wakes one if it is asked for less.
    fn wake(&self) -> c_long {
        let n = (self.value() as c_int).max(1) as u32;
        c_long::from(runtime::wake(self.address(), n, |n| self.kernel_wake(n)))
    }

    /// Wakes so many threads in the kernel.
    fn kernel_wake(&self, n: u32) -> u32 {
        let mut words = self.words;
        words[2] = n as usize;
        Call { words, ..*self }.real().max(0) as u32
    }

    /// The kernel compares the word and moves its waiters. Goroutines that it would have moved are
    /// woken: they find that their word has changed, or wait again.
    fn requeue(&self) -> c_long {
        let (wake, moved) = (self.value() as c_int, self.words[3] as c_int);
        let to = self.words[4];
        if is_plain(to) {
            runtime::expect_moved(to);
        }
        let done = self.real();
        if done < 0 {
            return done;
        }
        let rest = i64::from(wake) + i64::from(moved) - done;
        done + wake_goroutines(self.address(), rest)
    }

    /// The kernel changes the second word and wakes. Whether the condition held is not known
    /// outside the kernel, so goroutines of the second word are woken in any case.
    fn wake_op(&self) -> c_long {
        let done = self.real();
        if done < 0 {
            return done;
        }
        let (first, second) = (self.value() as c_int, self.words[3] as c_int);
        let mut woken = wake_goroutines(self.address(), first.max(1).into());
        if is_plain(self.words[4]) {
            woken += wake_goroutines(self.words[4], second.max(1).into());
        }
        done + woken
    }

    /// `futex_waitv`, `futex_wake`, `futex_wait`, `futex_requeue`: waits there are not counted, so
    /// from the first such call on every wake-up enters the kernel.
    #[cold]
    fn other_futex(&self) -> c_long {
        if table::syscall.is_off() {
            return self.real();
        }
        runtime::always_enter_kernel();
        let done = self.real();
        let is_private = self.words[3] as u32 == FUTEX2_PRIVATE_U32;
        if self.number == SYS_FUTEX_WAKE && done >= 0 && is_private && is_plain(self.address()) {
            return done + wake_goroutines(self.address(), self.words[2] as i64 - done);
        }
        if self.number != SYS_FUTEX_WAKE && gosched::hook::can_park() {
            count_left();
        }
        done
    }
}

const WAIT_BITSET_REALTIME: c_int = libc::FUTEX_WAIT_BITSET | libc::FUTEX_CLOCK_REALTIME;
const WAIT_REQUEUE_PI_REALTIME: c_int = libc::FUTEX_WAIT_REQUEUE_PI | libc::FUTEX_CLOCK_REALTIME;

/// Wakes up to `n` goroutines, and no threads.
fn wake_goroutines(word: usize, n: i64) -> c_long {
    match u32::try_from(n) {
        Ok(n) if n > 0 => runtime::wake(word, n, |_| 0).into(),
        _ => 0,
    }
}

/// The end of user space with page tables of four levels, as the kernel checks it.
const USER_END: usize = (1 << 47) - 4096;

/// Whether the kernel takes the address for that of a futex. A kernel with five levels of page
/// tables takes more addresses: waits and wake-ups there are all left to it.
fn is_plain(word: usize) -> bool {
    word.is_multiple_of(4) && word < USER_END
}

/// When the wait with the timespec at this address ends. None: the timespec is bad.
fn until(timespec: usize, is_absolute: bool) -> Option<Until> {
    if timespec == 0 {
        return Some(Until::Never);
    }
    let long = |at: usize| -> Option<i64> {
        let low = runtime::load(timespec.checked_add(at)?)?;
        let high = runtime::load(timespec.checked_add(at + 4)?)?;
        Some((u64::from(high) << 32 | u64::from(low)) as i64)
    };
    let (seconds, nanos) = (long(0)?, long(8)?);
    if seconds < 0 || !(0..1_000_000_000).contains(&nanos) {
        return None;
    }
    let time = Duration::new(seconds as u64, nanos as u32);
    Some(match is_absolute {
        true => Until::At(time),
        false => Until::After(time),
    })
}

fn fail(errno: c_int) -> c_long {
    // SAFETY: the address is that of the calling goroutine's own errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}
