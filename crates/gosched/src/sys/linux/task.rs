//! Another thread of this process: its CPU time, its state, a signal to it. And two settings of the
//! calling thread.
//!
//! sysmon decides by these whether a thread that made no progress was *blocked* in the kernel or
//! only waited for a CPU (D8). CPU time alone cannot tell the two apart. So sysmon also reads
//! `/proc/self/task/TID/syscall`. The file is kept open, because opening costs ten times as much as
//! reading.
//!
//! A program may close descriptors that are not its own; daemons close them all. The number then
//! names another file, perhaps that of another thread. So a number is used, and closed, only while
//! it names the file that was opened.

use core::ffi::CStr;
use core::fmt::Write;
use core::mem::{MaybeUninit, size_of};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::sys::linux::cpu_timer::soft_limit;
use crate::sys::linux::inject::REFUSE_PROC;
use crate::sys::linux::io::FixedBuf;
use crate::sys::linux::syscall::{Errno, check, syscall1, syscall2, syscall3, syscall4};

/// In a clock id: a thread's clock (4) that counts its time on a CPU (2).
const THREAD_CPU_CLOCK: i32 = 6;

/// The first thread id too large for a clock id.
const TID_END: i32 = 1 << 28;

/// More bytes than any text of the file: a number, eight addresses, a newline.
const TEXT_BYTES: usize = 256;

/// Arguments, stack pointer and instruction pointer of a thread in a system call.
const ADDRESSES_IN_CALL: usize = 8;

/// Stack pointer and instruction pointer of a thread that is blocked outside a system call.
const ADDRESSES_OUTSIDE: usize = 2;

/// The clock id of a thread's CPU clock; `None` if there is no such thread; CONTEXT: any.
pub(super) fn cpu_clock(tid: i32) -> Option<i32> {
    // 0 would mean the caller, and the shift would turn an id out of range into another clock.
    (1..TID_END)
        .contains(&tid)
        .then_some((!tid << 3) | THREAD_CPU_CLOCK)
}

/// The CPU time in nanoseconds that a thread of this process has used; `None` if it has ended;
/// CONTEXT: any.
pub(crate) fn thread_cpu_ns(tid: i32) -> Option<u64> {
    let clock = cpu_clock(tid)?;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    let at = time.as_mut_ptr() as usize;
    // SAFETY: the kernel writes one timespec in this frame (D9: bare call).
    check(unsafe { syscall2(libc::SYS_clock_gettime, clock as usize, at) }).ok()?;
    // SAFETY: the call succeeded and has written the whole struct.
    let time = unsafe { time.assume_init() };
    Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// How many descriptors this process may have; CONTEXT: any.
pub(crate) fn files_limit() -> u32 {
    let limit = soft_limit(libc::RLIMIT_NOFILE as usize);
    limit.try_into().unwrap_or(u32::MAX)
}

/// The kernel's `siginfo_t` of a signal that carries a value.
#[repr(C)]
pub(super) struct SignalInfo {
    pub(super) signal: i32,
    errno: i32,
    pub(super) code: i32,
    gap: i32,
    pub(super) pid: i32,
    uid: u32,
    pub(super) value: usize,
    rest: [usize; 12],
}

const _: () = assert!(size_of::<SignalInfo>() == size_of::<libc::siginfo_t>());

/// Its address is the value that marks our own signals.
pub(super) static MARK: u8 = 0;

/// Sends `signal` to a thread of this process, marked as ours; ESRCH if the thread has ended;
/// CONTEXT: any.
pub(crate) fn signal_thread(tid: i32, signal: i32) -> Result<(), Errno> {
    let process = crate::sys::linux::thread::getpid();
    let info = SignalInfo {
        signal,
        errno: 0,
        code: libc::SI_QUEUE,
        gap: 0,
        pid: process,
        uid: 0,
        value: (&raw const MARK).addr(),
        rest: [0; 12],
    };
    let at = ptr::from_ref(&info).addr();
    let [process, tid, signal] = [process as usize, tid as usize, signal as usize];
    // SAFETY: the kernel reads this frame's struct. The process id makes the call fail if the
    // thread id now belongs to another process (D9: bare call).
    let answer = unsafe { syscall4(libc::SYS_rt_tgsigqueueinfo, process, tid, signal, at) };
    match check(answer) {
        // A sandbox that allows only the more common call: send without the mark.
        Err(Errno(libc::ENOSYS | libc::EPERM)) => {
            // SAFETY: the call takes numbers and touches no memory.
            check(unsafe { syscall3(libc::SYS_tgkill, process, tid, signal) }).map(drop)
        }
        answer => answer.map(drop),
    }
}

/// More bytes than a thread's `status` file.
const STATUS_BYTES: usize = 4096;

/// What a thread does, as the kernel reports it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Doing {
    /// The thread runs or is runnable.
    Running,
    /// The thread is blocked in the system call of that number; -1: outside one, as in a page
    /// fault.
    Blocked(i64),
    /// Not known: the thread has ended, or the descriptor is no longer ours.
    Unknown,
}

/// A thread's file `/proc/self/task/TID/syscall`, kept open.
pub(crate) struct TaskFile {
    fd: usize,
    /// Device and inode of the file when it was opened.
    identity: (u64, u64),
}

impl TaskFile {
    /// Opens the file of a thread of this process; CONTEXT: any.
    pub(crate) fn open(tid: i32) -> Result<TaskFile, Errno> {
        // ORDER: Relaxed; a test's switch, stored before the threads that load it start.
        if REFUSE_PROC.load(Relaxed) {
            return Err(Errno(libc::ENOENT));
        }
        let mut path = FixedBuf::<48>::new();
        // The longest id fits, so neither step fails.
        let _ = write!(path, "/proc/self/task/{tid}/syscall\0");
        let path =
            CStr::from_bytes_with_nul(path.as_bytes()).map_err(|_| Errno(libc::ENAMETOOLONG))?;
        let (at, flags) = (path.as_ptr() as usize, libc::O_RDONLY | libc::O_CLOEXEC);
        let here = libc::AT_FDCWD as usize;
        // SAFETY: the kernel reads the path up to its terminating zero (D9: bare call).
        let fd = check(unsafe { syscall4(libc::SYS_openat, here, at, flags as usize, 0) })?;
        match identity(fd) {
            Ok(identity) => Ok(TaskFile { fd, identity }),
            Err(errno) => {
                close(fd);
                Err(errno)
            }
        }
    }

    /// What the thread does now. The calling thread itself appears blocked in the call that reads;
    /// CONTEXT: any.
    pub(crate) fn doing(&self) -> Doing {
        let mut text = [0u8; TEXT_BYTES];
        let at = text.as_mut_ptr() as usize;
        // SAFETY: the kernel writes at most the buffer's length to it. The call never blocks on
        // another file that the number may name by now: a pipe or socket refuses a read at an
        // offset (D9: bare call).
        let answer = unsafe { syscall4(libc::SYS_pread64, self.fd, at, TEXT_BYTES, 0) };
        let told = check(answer).ok().and_then(|filled| text.get(..filled));
        match told.map_or(Doing::Unknown, parse) {
            // A P may be taken because of `Blocked`, so it must be about the right thread.
            Doing::Blocked(_) if !self.is_ours() => Doing::Unknown,
            doing => doing,
        }
    }

    /// Whether the number still names the file that was opened.
    fn is_ours(&self) -> bool {
        identity(self.fd) == Ok(self.identity)
    }
}

impl Drop for TaskFile {
    fn drop(&mut self) {
        if self.is_ours() {
            close(self.fd);
        }
    }
}

/// How often a thread has blocked by itself; None if it has ended or `/proc` cannot be read;
/// CONTEXT: any.
pub(crate) fn voluntary_switches(tid: i32) -> Option<u64> {
    read_status(tid, b"\nvoluntary_ctxt_switches:\t", |digits| {
        call_number(digits).and_then(|n| u64::try_from(n).ok())
    })
}

/// Whether a thread blocks a signal. True if that cannot be known; CONTEXT: any.
pub(crate) fn blocks_signal(tid: i32, signal: i32) -> bool {
    let mask = read_status(tid, b"\nSigBlk:\t", |digits| {
        u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    });
    mask.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

/// What a field of a thread's `/proc` status says; None if the thread has ended or `/proc` cannot
/// be read; CONTEXT: any. Never inlined: its buffer is for sysmon's stack alone
/// (`scripts/check-frames`).
#[inline(never)]
fn read_status(tid: i32, name: &[u8], parse: fn(&[u8]) -> Option<u64>) -> Option<u64> {
    // ORDER: Relaxed; a test's switch, stored before the threads that load it start.
    if REFUSE_PROC.load(Relaxed) {
        return None;
    }
    let mut path = FixedBuf::<48>::new();
    write!(path, "/proc/self/task/{tid}/status\0").ok()?;
    let path = CStr::from_bytes_with_nul(path.as_bytes()).ok()?;
    let (at, flags) = (path.as_ptr() as usize, libc::O_RDONLY | libc::O_CLOEXEC);
    let mut text = [0u8; STATUS_BYTES];
    // SAFETY: the kernel reads the path up to its terminating zero and writes at most the buffer's
    // length to it (D9: bare calls). The descriptor is used only in this block.
    let filled = unsafe {
        let here = libc::AT_FDCWD as usize;
        let fd = check(syscall4(libc::SYS_openat, here, at, flags as usize, 0)).ok()?;
        let at = text.as_mut_ptr() as usize;
        let answer = syscall3(libc::SYS_read, fd, at, STATUS_BYTES);
        close(fd);
        check(answer).ok()?
    };
    let text = text.get(..filled)?;
    let start = text.windows(name.len()).position(|part| part == name)? + name.len();
    let digits = text[start..].split(|&byte| byte == b'\n').next()?;
    parse(digits)
}

/// Device and inode behind a descriptor.
fn identity(fd: usize) -> Result<(u64, u64), Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes one struct in this frame; on this target libc's `stat` is the
    // kernel's own (D9: bare call).
    check(unsafe { syscall2(libc::SYS_fstat, fd, stat.as_mut_ptr() as usize) })?;
    // SAFETY: the call succeeded and has written the whole struct.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

fn close(fd: usize) {
    // SAFETY: the callers have just opened the descriptor, or compared its identity, and do not use
    // it again (D9).
    unsafe { syscall1(libc::SYS_close, fd) };
}

/// Parses the file's text; anything but its three forms is `Unknown`.
fn parse(text: &[u8]) -> Doing {
    if text == b"running\n" {
        return Doing::Running;
    }
    let Some(line) = text.strip_suffix(b"\n") else {
        return Doing::Unknown;
    };
    let mut words = line.split(|&byte| byte == b' ');
    let call = words.next().and_then(call_number);
    let addresses = words.clone().count();
    match call {
        Some(call) if words.all(is_address) => {
            let right = if call < 0 {
                ADDRESSES_OUTSIDE
            } else {
                ADDRESSES_IN_CALL
            };
            if addresses == right {
                Doing::Blocked(call)
            } else {
                Doing::Unknown
            }
        }
        _ => Doing::Unknown,
    }
}

/// A decimal number of at most ten digits, or exactly `-1`.
fn call_number(word: &[u8]) -> Option<i64> {
    if word == b"-1" {
        return Some(-1);
    }
    if word.is_empty() || word.len() > 10 || !word.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = |sum: i64, &digit: &u8| sum * 10 + i64::from(digit - b'0');
    Some(word.iter().fold(0, value))
}

/// `0x` and one to sixteen hexadecimal digits.
fn is_address(word: &[u8]) -> bool {
    word.strip_prefix(b"0x").is_some_and(|digits| {
        (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit)
    })
}

/// Sets how late the kernel may be with the calling thread's timers; 0: the value from the thread's
/// start; CONTEXT: any.
pub(crate) fn set_timer_slack_ns(ns: u64) {
    let option = libc::PR_SET_TIMERSLACK as usize;
    // SAFETY: the call takes numbers and touches no memory (D9: bare call).
    unsafe { syscall2(libc::SYS_prctl, option, ns as usize) };
}

/// Asks the kernel to run the calling thread for `ns` at a time: a short slice gets it a CPU
/// sooner. Policy and nice value stay as they are. Kernels before 6.12 ignore it, and a thread with
/// another policy is not changed; CONTEXT: any.
pub(crate) fn set_slice_ns(ns: u64) {
    let Ok(mut attributes) = scheduling() else {
        return;
    };
    let policy = attributes.sched_policy as i32;
    if policy != libc::SCHED_OTHER && policy != libc::SCHED_BATCH {
        return;
    }
    attributes.sched_runtime = ns;
    let at = ptr::from_ref(&attributes) as usize;
    // SAFETY: the kernel reads one struct in this frame, which carries its size; thread 0 is the
    // caller (D9: bare call). An error changes nothing.
    unsafe { syscall3(libc::SYS_sched_setattr, 0, at, 0) };
}

/// The calling thread's scheduling attributes.
fn scheduling() -> Result<libc::sched_attr, Errno> {
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    let (at, len) = (
        attributes.as_mut_ptr() as usize,
        size_of::<libc::sched_attr>(),
    );
    // SAFETY: the kernel writes at most `len` bytes to this frame's struct; thread 0 is
    // the caller (D9: bare call).
    check(unsafe { syscall4(libc::SYS_sched_getattr, 0, at, len, 0) })?;
    // SAFETY: all fields are plain numbers; the struct was zeroed and the kernel has written part
    // of it.
    Ok(unsafe { attributes.assume_init() })
}

#[cfg(test)]
mod tests;
