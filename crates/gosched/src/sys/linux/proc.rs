//! The threads of this process and their states, read from `/proc` without allocating.
//!
//! Deadlock detection looks for threads that the runtime does not know (D11) while a parked
//! goroutine may hold malloc's lock. So directory and status files are read with bare system calls
//! into this stack (D9).

use core::ffi::CStr;
use core::fmt::Write;

use crate::sys::linux::io::FixedBuf;
use crate::sys::linux::syscall::{Errno, check, syscall1, syscall3, syscall4};

/// Directory entries fetched per system call: about 85 threads.
const DIRECTORY_BYTES: usize = 2048;

/// Offset of the record's length (two bytes) in a directory entry.
const RECORD_LENGTH_AT: usize = 16;

/// Offset of the name in a directory entry.
const NAME_AT: usize = 19;

/// A file descriptor that is closed when dropped, without libc.
struct Fd(usize);

impl Fd {
    /// Opens an absolute path for reading.
    fn open(path: &CStr, flags: i32) -> Result<Fd, Errno> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | flags;
        // SAFETY: the kernel reads the path up to its terminating zero (D9).
        let answer = unsafe {
            syscall4(
                libc::SYS_openat,
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                flags as usize,
                0,
            )
        };
        check(answer).map(Fd)
    }

    /// Calls `read` or `getdents64`, which fill a buffer and return the number of bytes.
    fn fill(&self, nr: i64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let (at, len) = (buffer.as_mut_ptr() as usize, buffer.len());
        // SAFETY: the kernel writes at most `len` bytes to the borrowed buffer (D9).
        check(unsafe { syscall3(nr, self.0, at, len) })
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: `open` made the descriptor for this value, and this drop is its last use.
        unsafe { syscall1(libc::SYS_close, self.0) };
    }
}

/// Calls `f` with the id of every thread of this process; CONTEXT: any.
///
/// A thread that starts or ends meanwhile may be missing or not. A thread that ends while a long
/// list is read in pieces may hide a neighbour. So read twice before concluding that a thread is
/// absent.
pub(crate) fn for_each_task(f: &mut dyn FnMut(i32)) -> Result<(), Errno> {
    let directory = Fd::open(c"/proc/self/task", libc::O_DIRECTORY)?;
    let mut buffer = [0u8; DIRECTORY_BYTES];
    loop {
        let filled = directory.fill(libc::SYS_getdents64, &mut buffer)?;
        if filled == 0 {
            return Ok(());
        }
        each_entry(&buffer[..filled], &mut |name| {
            if let Some(tid) = decimal(name) {
                f(tid);
            }
        });
    }
}

/// Calls `f` with the name of every entry in a buffer that `getdents64` filled.
fn each_entry(mut entries: &[u8], f: &mut dyn FnMut(&[u8])) {
    while let Some(length) = entries.get(RECORD_LENGTH_AT..RECORD_LENGTH_AT + 2) {
        let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
        let Some((entry, rest)) = entries.split_at_checked(length) else {
            return;
        };
        let Some(name) = entry.get(NAME_AT..) else {
            return;
        };
        let end = name.iter().position(|&byte| byte == 0);
        f(&name[..end.unwrap_or(name.len())]);
        entries = rest;
    }
}

/// A name that is a positive decimal number, which thread ids are and `.` is not.
fn decimal(name: &[u8]) -> Option<i32> {
    core::str::from_utf8(name).ok()?.parse().ok()
}

/// The state letter of a thread of this process (`R`, `S`, `D`, `Z`…); `None` if it has ended;
/// CONTEXT: any.
pub(crate) fn task_state(tid: i32) -> Option<u8> {
    let mut path = FixedBuf::<48>::new();
    write!(path, "/proc/self/task/{tid}/stat\0").ok()?;
    let path = CStr::from_bytes_with_nul(path.as_bytes()).ok()?;
    let file = Fd::open(path, 0).ok()?;
    let mut buffer = [0u8; 512];
    let filled = file.fill(libc::SYS_read, &mut buffer).ok()?;
    state_in_stat(&buffer[..filled])
}

/// The letter after the thread's name. The name may hold spaces and parentheses, but nothing after
/// it does. So it ends at the last closing parenthesis.
fn state_in_stat(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let letter = *stat.get(end + 2)?;
    letter.is_ascii_alphabetic().then_some(letter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::linux::thread::{gettid, set_thread_name, sleep_ns};
    use std::sync::mpsc;

    fn tasks() -> Vec<i32> {
        let mut all = Vec::new();
        for_each_task(&mut |tid| all.push(tid)).expect("own tasks");
        all
    }

    /// Starts a thread and returns its id; the thread ends when the second value is dropped.
    fn sleeper(name: &'static CStr) -> (i32, mpsc::Sender<()>) {
        let (send_tid, tid) = mpsc::channel();
        let (stop, wait) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            set_thread_name(name);
            send_tid.send(gettid()).expect("the test listens");
            let _ = wait.recv();
        });
        (tid.recv().expect("it ran"), stop)
    }

    #[test]
    fn lists_living_threads_once_across_several_reads() {
        let many: Vec<_> = (0..300).map(|_| sleeper(c"many")).collect();
        // Threads of other tests may end in the middle of a listing, so try again.
        let complete = (0..100).any(|_| {
            let all = tasks();
            let once = |tid: i32| all.iter().filter(|&&other| other == tid).count() == 1;
            once(gettid()) && many.iter().all(|&(tid, _)| once(tid))
        });
        assert!(complete);
    }

    #[test]
    fn a_thread_that_ended_disappears() {
        let (tid, stop) = sleeper(c"short");
        drop(stop);
        let gone = (0..20_000).any(|_| {
            sleep_ns(1_000_000);
            !tasks().contains(&tid) && task_state(tid).is_none()
        });
        assert!(gone);
    }

    #[test]
    fn states_are_read_whatever_the_name() {
        assert_eq!(task_state(gettid()), Some(b'R'));
        for name in [c"plain", c"a) R (b", c") ) )", c"))))", c""] {
            let (tid, _stop) = sleeper(name);
            let asleep = (0..20_000).any(|_| {
                sleep_ns(1_000_000);
                task_state(tid) == Some(b'S')
            });
            assert!(asleep, "{name:?}");
        }
        assert_eq!(task_state(-1), None);
        assert_eq!(task_state(i32::MAX), None);
    }

    #[test]
    fn stat_text_is_parsed_or_refused() {
        assert_eq!(state_in_stat(b"1 (a) S 2 3"), Some(b'S'));
        assert_eq!(state_in_stat(b"1 (a) R (x) Z 2"), Some(b'Z'));
        for garbage in [&b""[..], b"1 a S", b"1 (a)", b"1 (a) ", b"1 (a) 5"] {
            assert_eq!(state_in_stat(garbage), None);
        }
    }

    #[test]
    fn broken_entries_end_the_walk() {
        let mut names = 0;
        each_entry(&[0; 64], &mut |_| names += 1);
        each_entry(&[255; 64], &mut |_| names += 1);
        each_entry(&[], &mut |_| names += 1);
        assert_eq!(names, 0);
        assert_eq!(decimal(b".."), None);
        assert_eq!(decimal(b"17"), Some(17));
    }
}
