//! A descriptor's registration with the poller, which ends before the descriptor does.
//!
//! A closed descriptor may leave an open file behind: in a clone, in a child process, in its
//! lender. The kernel would go on reporting the events of that file. So a drop ends the
//! registration.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::sched::sources::netpoll::Desc;
use crate::sys;

/// The poller's state for one descriptor. It must be dropped before the descriptor is closed.
pub(crate) struct Registration {
    desc: Desc,
    /// The number of the descriptor.
    fd: RawFd,
}

// As std's descriptors: no panic leaves the state inconsistent.
impl UnwindSafe for Registration {}
impl RefUnwindSafe for Registration {}

impl Registration {
    /// The first wait registers the descriptor with the kernel.
    pub(crate) fn new(fd: BorrowedFd<'_>) -> Registration {
        Registration {
            desc: Desc::new(),
            fd: fd.as_raw_fd(),
        }
    }

    /// For a duplicate: both have the same waiters and deadlines.
    pub(crate) fn share(&self, duplicate: BorrowedFd<'_>) -> Registration {
        Registration {
            desc: self.desc.share(),
            fd: duplicate.as_raw_fd(),
        }
    }

    pub(crate) fn desc(&self) -> &Desc {
        &self.desc
    }

    /// Waits until the descriptor is readable, which it may be already.
    pub(crate) fn wait_readable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.desc.read(fd, || ready(sys::is_readable(fd)))
    }

    /// Waits until the descriptor is writable, which it may be already.
    pub(crate) fn wait_writable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.desc.write(fd, || ready(sys::is_writable(fd)))
    }
}

/// The result of an operation that would block until the descriptor is ready.
pub(crate) fn ready(is_ready: bool) -> io::Result<()> {
    match is_ready {
        true => Ok(()),
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.desc.deregister(self.fd);
    }
}
