//! One thread of this process seen from another: its CPU time, what it does right now,
//! a signal to it; and two settings a thread can make for itself.
//!
//! sysmon decides from these whether a thread that got nowhere was *blocked* in the
//! kernel or only waited for a CPU (D8). CPU time alone cannot tell the two apart, so
//! the kernel's own word is asked for too: `/proc/self/task/TID/syscall`, kept open,
//! because opening costs ten times what reading does.
//!
//! A program may close descriptors that are not its own (daemons close them all), and
//! the number then names another file, perhaps a file of another thread. Each number is
//! therefore believed only while it names the file that was opened, and closed only then.

use core::ffi::CStr;
use core::fmt::Write;
use core::mem::{MaybeUninit, size_of};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::sys::linux::inject::REFUSE_PROC;
use crate::sys::linux::io::FixedBuf;
use crate::sys::linux::syscall::{Errno, check, syscall1, syscall2, syscall3, syscall4};

/// In a clock's number: a thread's clock (4) that counts its time on a CPU (2).
const THREAD_CPU_CLOCK: i32 = 6;

/// The first number too large for the kernel to name a thread's clock by.
const TID_END: i32 = 1 << 28;

/// Longer than any text of the file: a number, eight addresses, a newline.
const TEXT_BYTES: usize = 256;

/// Arguments, stack pointer and instruction pointer of a thread in a system call.
const ADDRESSES_IN_CALL: usize = 8;

/// Stack pointer and instruction pointer of a thread that sleeps outside one.
const ADDRESSES_OUTSIDE: usize = 2;

/// The kernel's number for the CPU clock of a thread, `None` where there is no such thread; CONTEXT: any.
pub(super) fn cpu_clock(tid: i32) -> Option<i32> {
    // 0 would mean the caller, and from a number out of range the shift would make
    // another clock.
    (1..TID_END)
        .contains(&tid)
        .then_some((!tid << 3) | THREAD_CPU_CLOCK)
}

/// Nanoseconds of CPU a thread of this process has used, `None` when it is gone;
/// CONTEXT: any.
pub(crate) fn thread_cpu_ns(tid: i32) -> Option<u64> {
    let clock = cpu_clock(tid)?;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    let at = time.as_mut_ptr() as usize;
    // SAFETY: the kernel writes one timespec, this frame's (D9: bare call).
    check(unsafe { syscall2(libc::SYS_clock_gettime, clock as usize, at) }).ok()?;
    // SAFETY: the call succeeded and has written the whole struct.
    let time = unsafe { time.assume_init() };
    Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// What the kernel tells of a signal that comes with a value.
#[repr(C)]
struct SignalInfo {
    signal: i32,
    errno: i32,
    code: i32,
    gap: i32,
    pid: i32,
    uid: u32,
    value: usize,
    rest: [usize; 12],
}

const _: () = assert!(size_of::<SignalInfo>() == size_of::<libc::siginfo_t>());

/// Its address is the value by which our own signals are known.
pub(super) static MARK: u8 = 0;

/// Sends `signal` to a thread of this process, marked as ours; ESRCH when it is gone; CONTEXT: any.
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
    // SAFETY: the kernel reads this frame's struct; naming the process keeps a thread id that
    // was given away again from meaning a stranger (D9: bare call).
    let answer = unsafe { syscall4(libc::SYS_rt_tgsigqueueinfo, process, tid, signal, at) };
    match check(answer) {
        // A sandbox that knows the commoner call only: without the mark.
        Err(Errno(libc::ENOSYS | libc::EPERM)) => {
            // SAFETY: the call touches no memory.
            check(unsafe { syscall3(libc::SYS_tgkill, process, tid, signal) }).map(drop)
        }
        answer => answer.map(drop),
    }
}

/// Whether a signal was sent by [`signal_thread`]; CONTEXT: signal.
///
/// # Safety
/// `info` is what the kernel passed to the handler.
pub(crate) unsafe fn is_marked(info: *const libc::siginfo_t) -> bool {
    // SAFETY: D7, by the caller's promise; a value is there whenever the code says so.
    let info = unsafe { &*info.cast::<SignalInfo>() };
    info.code == libc::SI_QUEUE && info.value == (&raw const MARK).addr()
}

/// Whether a signal comes from a [`CpuTimer`](crate::sys::linux::CpuTimer); CONTEXT: signal.
///
/// # Safety
/// `info` is what the kernel passed to the handler.
pub(crate) unsafe fn is_marked_timer(info: *const libc::siginfo_t) -> bool {
    // SAFETY: D7, by the caller's promise; a timer's value lies where a sent one does, whenever the code says so.
    let info = unsafe { &*info.cast::<SignalInfo>() };
    info.code == libc::SI_TIMER && info.value == (&raw const MARK).addr()
}

/// What a thread's `status` file fits into.
const STATUS_BYTES: usize = 4096;

/// What a thread does, in the kernel's words.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Doing {
    /// It runs, or would if it had a CPU.
    Running,
    /// It sleeps in the system call of that number; -1: outside one, as in a page fault.
    Blocked(i64),
    /// No telling: it ended, or the descriptor is no longer ours.
    Unknown,
}

/// A thread's file `/proc/self/task/TID/syscall`, kept open.
pub(crate) struct TaskFile {
    /// The number of the descriptor.
    fd: usize,
    /// Device and inode of the file it named when it was opened.
    identity: (u64, u64),
}

impl TaskFile {
    /// Opens the file of a thread of this process; CONTEXT: any.
    pub(crate) fn open(tid: i32) -> Result<TaskFile, Errno> {
        // ORDER: Relaxed; a test's switch, set before the threads that look at it start.
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

    /// What the thread does now; the calling thread itself seems blocked in the very
    /// call that asks; CONTEXT: any.
    pub(crate) fn doing(&self) -> Doing {
        let mut text = [0u8; TEXT_BYTES];
        let at = text.as_mut_ptr() as usize;
        // SAFETY: the kernel writes at most the buffer's length to it. Reading at a
        // place never blocks on what a reused number may name, pipe or socket: both
        // refuse it (D9: bare call).
        let answer = unsafe { syscall4(libc::SYS_pread64, self.fd, at, TEXT_BYTES, 0) };
        let told = check(answer).ok().and_then(|filled| text.get(..filled));
        match told.map_or(Doing::Unknown, parse) {
            // The verdict that has consequences must be about the right thread.
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

/// How often a thread has gone to sleep by itself; None if it is gone or `/proc` cannot be read; CONTEXT: any.
pub(crate) fn voluntary_switches(tid: i32) -> Option<u64> {
    const NAME: &[u8] = b"\nvoluntary_ctxt_switches:\t";
    // ORDER: Relaxed; as in `TaskFile::open`.
    if REFUSE_PROC.load(Relaxed) {
        return None;
    }
    let mut path = FixedBuf::<48>::new();
    write!(path, "/proc/self/task/{tid}/status\0").ok()?;
    let path = CStr::from_bytes_with_nul(path.as_bytes()).ok()?;
    let (at, flags) = (path.as_ptr() as usize, libc::O_RDONLY | libc::O_CLOEXEC);
    let mut text = [0u8; STATUS_BYTES];
    // SAFETY: the kernel reads the path up to its terminating zero and writes at most the buffer's length to it (D9: bare
    // calls); the descriptor is this frame's.
    let filled = unsafe {
        let here = libc::AT_FDCWD as usize;
        let fd = check(syscall4(libc::SYS_openat, here, at, flags as usize, 0)).ok()?;
        let at = text.as_mut_ptr() as usize;
        let answer = syscall3(libc::SYS_read, fd, at, STATUS_BYTES);
        close(fd);
        check(answer).ok()?
    };
    let text = text.get(..filled)?;
    let start = text.windows(NAME.len()).position(|part| part == NAME)? + NAME.len();
    let digits = text[start..].split(|&byte| byte == b'\n').next()?;
    call_number(digits).and_then(|n| u64::try_from(n).ok())
}

/// Device and inode behind a descriptor.
fn identity(fd: usize) -> Result<(u64, u64), Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes one struct, this frame's; on this target libc's `stat`
    // is the kernel's own (D9: bare call).
    check(unsafe { syscall2(libc::SYS_fstat, fd, stat.as_mut_ptr() as usize) })?;
    // SAFETY: the call succeeded and has written the whole struct.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

/// Gives a descriptor back.
fn close(fd: usize) {
    // SAFETY: the callers know the number to be theirs and do not use it again (D9).
    unsafe { syscall1(libc::SYS_close, fd) };
}

/// Understands the file's text; whatever differs from its three forms is `Unknown`.
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

/// Sets how late the kernel may be with the calling thread's timers; 0: as it was when
/// the thread started; CONTEXT: any.
pub(crate) fn set_timer_slack_ns(ns: u64) {
    let option = libc::PR_SET_TIMERSLACK as usize;
    // SAFETY: the call takes numbers and touches no memory (D9: bare call).
    unsafe { syscall2(libc::SYS_prctl, option, ns as usize) };
}

/// Asks the kernel to run the calling thread for `ns` at a time, so that a short `ns`
/// gets it a CPU sooner; policy and nice value stay as they are. Kernels before 6.12
/// take no notice, and a thread with a policy of its own is left alone; CONTEXT: any.
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
    // SAFETY: the kernel reads one struct, this frame's, whose size it carries; thread 0
    // is the caller (D9: bare call). A refusal changes nothing.
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
    // SAFETY: all zeros is a valid value of these numbers, and so is what was written.
    Ok(unsafe { attributes.assume_init() })
}

#[cfg(test)]
mod tests;
