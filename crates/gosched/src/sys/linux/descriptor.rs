//! Descriptors of any kind: reads and writes, duplicates, pipes, processes.
//!
//! It exists for waits on descriptors that are no sockets. The calls are bare ones: the poller
//! makes some of them under a lock.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::sys::linux::epoll::Epoll;
use crate::sys::linux::net::IOV_MAX;
use crate::sys::linux::syscall::{Errno, check, syscall2, syscall3};

/// A write of so many bytes to a pipe is never split, and never blocks on a writable pipe.
pub(crate) const PIPE_BUF: usize = libc::PIPE_BUF;

/// Another descriptor of the same open file, closed on exec; CONTEXT: any.
pub(crate) fn duplicate(fd: i32) -> Result<OwnedFd, Errno> {
    let command = libc::F_DUPFD_CLOEXEC as usize;
    // SAFETY: the call makes a descriptor and touches no memory (D9: bare call).
    let fd = check(unsafe { syscall3(libc::SYS_fcntl, fd as usize, command, 0) })?;
    // SAFETY: the descriptor is new, so no other value owns it (D10).
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Reads by read(2); CONTEXT: any.
pub(crate) fn read_fd(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    let (at, len) = (buf.as_mut_ptr() as usize, buf.len());
    // SAFETY: the kernel writes at most the buffer's length into it (D9: bare call).
    let answer = unsafe { syscall3(libc::SYS_read, fd.as_raw_fd() as usize, at, len) };
    Ok(check(answer)?)
}

/// Reads by readv(2), into the first buffers that the kernel takes; CONTEXT: any.
pub(crate) fn readv_fd(fd: BorrowedFd<'_>, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let (at, len) = (bufs.as_mut_ptr() as usize, bufs.len().min(IOV_MAX));
    // SAFETY: std guarantees that an `IoSliceMut` is an iovec of memory that may be written to. The
    // kernel writes at most the lengths of the buffers (D9: bare call).
    let answer = unsafe { syscall3(libc::SYS_readv, fd.as_raw_fd() as usize, at, len) };
    Ok(check(answer)?)
}

/// Writes by write(2); CONTEXT: any.
pub(crate) fn write_fd(fd: BorrowedFd<'_>, buf: &[u8]) -> io::Result<usize> {
    let (at, len) = (buf.as_ptr() as usize, buf.len());
    // SAFETY: the kernel reads the buffer (D9: bare call).
    let answer = unsafe { syscall3(libc::SYS_write, fd.as_raw_fd() as usize, at, len) };
    Ok(check(answer)?)
}

/// Writes by writev(2), from the first buffers that the kernel takes; CONTEXT: any.
pub(crate) fn writev_fd(fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
    let (at, len) = (bufs.as_ptr() as usize, bufs.len().min(IOV_MAX));
    // SAFETY: std guarantees that an `IoSlice` is an iovec. The kernel reads the buffers (D9: bare
    // call).
    let answer = unsafe { syscall3(libc::SYS_writev, fd.as_raw_fd() as usize, at, len) };
    Ok(check(answer)?)
}

/// A pipe, non-blocking: the end to read from and the end to write to; CONTEXT: any.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends = [-1i32; 2];
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: the kernel writes two numbers to this frame (D9: bare call).
    check(unsafe { syscall2(libc::SYS_pipe2, ends.as_mut_ptr() as usize, flags) })?;
    // SAFETY: the call has returned two new descriptors, so no other value owns them (D10).
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Whether an epoll takes the descriptor. EPERM: it is always ready, as a regular file is;
/// CONTEXT: any.
pub(crate) fn try_epoll(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    Epoll::new()?.add(fd.as_raw_fd(), 0)
}

/// A descriptor for a process of that number, readable once the process has ended; CONTEXT: any.
pub(crate) fn pidfd_open(pid: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call makes a descriptor and touches no memory (D9: bare call).
    let fd = check(unsafe { syscall2(libc::SYS_pidfd_open, pid as usize, 0) })?;
    // SAFETY: the descriptor is new, so no other value owns it (D10).
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn epoll_takes_pipes_and_no_files() {
        let (reader, _writer) = pipe().expect("a pipe");
        assert_eq!(try_epoll(reader.as_fd()), Ok(()));
        let file = File::open("/proc/self/exe").expect("own file");
        assert_eq!(try_epoll(file.as_fd()), Err(Errno(libc::EPERM)));
    }

    #[test]
    fn a_duplicate_is_of_the_same_file() {
        let (reader, writer) = pipe().expect("a pipe");
        let other = duplicate(writer.as_raw_fd()).expect("a duplicate");
        assert_ne!(other.as_raw_fd(), writer.as_raw_fd());
        drop(writer);
        File::from(other).write_all(b"x").expect("room");
        let mut all = Vec::new();
        File::from(reader)
            .read_to_end(&mut all)
            .expect("it is there");
        assert_eq!(all, b"x");
        assert_eq!(duplicate(-1).expect_err("no file"), Errno(libc::EBADF));
    }

    #[test]
    fn processes_are_found_by_their_numbers() {
        let own = pidfd_open(std::process::id()).expect("a descriptor");
        assert!(!crate::sys::is_readable(own.as_fd()));
        assert!(pidfd_open(u32::MAX).is_err());
    }
}
