//! One end of a pipe: what `PipeReader`, `PipeWriter` and the pipes of a child have in common.
//!
//! An end is non-blocking in the kernel. The flag belongs to the open file, which all clones of
//! this end share, also a clone that a child process has. A child expects a descriptor that blocks.
//! So an end that leaves sets the flag back. The clones that stay ask the kernel before each
//! operation whether it would block.
//!
//! ```text
//!  the end        kernel's O_NONBLOCK   a read or write
//!  all clones in  set                   is tried
//!  a clone left   not set               poll(2) first; a write takes at most PIPE_BUF bytes
//! ```

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::io::Registration;
use crate::io::registration::ready;
use crate::net::socket;
use crate::sched::sources::netpoll::Side;
use crate::sys;

/// One end of a pipe. A descriptor that is no pipe works too.
pub(crate) struct PipeEnd {
    // First: it ends before the descriptor is closed.
    registration: Registration,
    fd: OwnedFd,
    open_file: Arc<OpenFile>,
}

/// What all clones of an end share.
struct OpenFile {
    /// A clone has left, and the file blocks again.
    blocks: AtomicBool,
}

impl PipeEnd {
    /// For a descriptor that is non-blocking and has no duplicates.
    pub(crate) fn fresh(fd: OwnedFd) -> PipeEnd {
        PipeEnd {
            registration: Registration::new(fd.as_fd()),
            fd,
            open_file: Arc::new(OpenFile {
                blocks: AtomicBool::new(false),
            }),
        }
    }

    /// For a descriptor from outside. If it is non-blocking, its operations fail instead of
    /// waiting, as std's do.
    pub(crate) fn adopt(fd: OwnedFd) -> PipeEnd {
        let was_nonblocking = sys::is_nonblocking(fd.as_fd());
        // If the system refuses, the first use of the descriptor returns the error.
        let blocks = match was_nonblocking {
            Ok(false) => sys::set_nonblocking(fd.as_fd(), true).is_err(),
            Ok(true) | Err(_) => false,
        };
        let end = PipeEnd::fresh(fd);
        end.open_file.blocks.store(blocks, Relaxed);
        let desc = end.registration.desc();
        desc.set_nonblocking(was_nonblocking.unwrap_or(false));
        end
    }

    /// Gives the descriptor up, blocking as it came.
    pub(crate) fn into_fd(self) -> OwnedFd {
        let PipeEnd {
            registration,
            fd,
            open_file,
        } = self;
        if !registration.desc().is_nonblocking() {
            // Before the change: an operation of a clone that begins now asks the kernel first.
            open_file.blocks.store(true, Relaxed);
            drop(sys::set_nonblocking(fd.as_fd(), false));
        }
        drop(registration);
        fd
    }

    pub(crate) fn try_clone(&self) -> io::Result<PipeEnd> {
        let fd = self.fd.try_clone()?;
        Ok(PipeEnd {
            registration: self.registration.share(fd.as_fd()),
            fd,
            open_file: Arc::clone(&self.open_file),
        })
    }

    pub(crate) fn read_to(&self, buf: &mut [u8]) -> io::Result<usize> {
        match buf.len() {
            0 => Ok(0),
            _ => self.read(|fd| sys::read_fd(fd, buf)),
        }
    }

    pub(crate) fn read_to_many(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let bufs = socket::with_room(bufs);
        match socket::receivable(bufs) {
            0 => Ok(0),
            _ => self.read(|fd| sys::readv_fd(fd, bufs)),
        }
    }

    pub(crate) fn write_from(&self, buf: &[u8]) -> io::Result<usize> {
        self.write(buf.len(), |done, most| {
            let rest = &buf[done..];
            sys::write_fd(self.as_fd(), &rest[..rest.len().min(most)])
        })
    }

    pub(crate) fn write_from_many(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let len = socket::total(bufs.iter().map(|buf| buf.len()));
        self.write(len, |done, most| match socket::locate(bufs, done) {
            (i, 0) if most >= len => sys::writev_fd(self.as_fd(), &bufs[i..]),
            (i, at) => {
                let rest = &bufs[i][at..];
                sys::write_fd(self.as_fd(), &rest[..rest.len().min(most)])
            }
        })
    }

    fn read(&self, mut op: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>) -> io::Result<usize> {
        let fd = self.fd.as_fd();
        self.registration.desc().read(fd, || {
            if self.blocks() {
                ready(sys::is_readable(fd))?;
            }
            op(fd)
        })
    }

    /// Writes all `len` bytes, as a blocking write of the kernel does. `op(done, most)` writes at
    /// most so many bytes after the first `done`.
    fn write(
        &self,
        len: usize,
        mut op: impl FnMut(usize, usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let fd = self.fd.as_fd();
        socket::write_whole(self.registration.desc(), fd, len, |done| {
            if !self.blocks() {
                return op(done, usize::MAX);
            }
            ready(sys::is_writable(fd))?;
            op(done, sys::PIPE_BUF)
        })
    }

    #[inline]
    fn blocks(&self) -> bool {
        self.open_file.blocks.load(Relaxed)
    }

    pub(crate) fn set_deadline(&self, side: Side, deadline: Option<Instant>) {
        self.registration.desc().set_deadline(side, deadline);
    }

    /// Whether reads have a deadline.
    pub(crate) fn has_deadline(&self) -> bool {
        self.registration.desc().has_deadline(Side::Read)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// As the type `name` prints itself.
    pub(crate) fn show(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shape = f.debug_struct(name);
        shape.field("fd", &self.fd.as_raw_fd()).finish()
    }
}

/// What all types of pipe ends have: conversions, and `Debug`. `$std` is std's type.
macro_rules! pipe_end {
    ($end:ident, $std:ty) => {
        impl std::fmt::Debug for $end {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.show(stringify!($end), f)
            }
        }

        impl AsFd for $end {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.as_fd()
            }
        }

        impl AsRawFd for $end {
            fn as_raw_fd(&self) -> RawFd {
                self.0.as_fd().as_raw_fd()
            }
        }

        /// The descriptor becomes blocking again, if it was.
        impl IntoRawFd for $end {
            fn into_raw_fd(self) -> RawFd {
                self.0.into_fd().into_raw_fd()
            }
        }

        /// The descriptor becomes blocking again, if it was.
        impl From<$end> for OwnedFd {
            fn from(end: $end) -> OwnedFd {
                end.0.into_fd()
            }
        }

        /// Makes the descriptor non-blocking, also for its duplicates. If it is already,
        /// operations fail with `WouldBlock` instead of waiting, as std's do.
        impl From<OwnedFd> for $end {
            fn from(fd: OwnedFd) -> $end {
                $end(PipeEnd::adopt(fd))
            }
        }

        /// The descriptor becomes blocking again, if it was: a child process expects that.
        impl From<$end> for std::process::Stdio {
            fn from(end: $end) -> std::process::Stdio {
                end.0.into_fd().into()
            }
        }

        /// The descriptor becomes blocking again, if it was.
        impl From<$end> for $std {
            fn from(end: $end) -> $std {
                end.0.into_fd().into()
            }
        }

        /// Makes the descriptor non-blocking, also for its duplicates.
        impl From<$std> for $end {
            fn from(end: $std) -> $end {
                $end(PipeEnd::adopt(end.into()))
            }
        }
    };
}

/// `Read`, and the deadline of reads.
macro_rules! pipe_reads {
    ($end:ident, $example:literal) => {
        impl $end {
            /// Sets the deadline of reads; `None` means no deadline.
            ///
            /// After the deadline reads fail with [`TimedOut`](io::ErrorKind::TimedOut), even if
            /// data is available. It applies to all clones, also to reads that wait already. A new
            /// deadline replaces it. Never blocks.
            ///
            #[doc = $example]
            ///
            /// # Errors
            /// None at present.
            pub fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
                self.0.set_deadline(Side::Read, deadline);
                Ok(())
            }
        }

        $crate::io::pipe_end::pipe_reads!(@ $end);
        $crate::io::pipe_end::pipe_reads!(@ &$end);
    };
    (@ $end:ty) => {
        impl Read for $end {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.0.read_to(buf)
            }

            fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.0.read_to_many(bufs)
            }
        }
    };
}

/// `Write`, and the deadline of writes.
macro_rules! pipe_writes {
    ($end:ident, $example:literal) => {
        impl $end {
            /// Sets the deadline of writes; `None` means no deadline.
            ///
            /// After the deadline writes fail with [`TimedOut`](io::ErrorKind::TimedOut), even if
            /// there is room. A write that has sent some bytes by then returns their number. The
            /// deadline applies to all clones, also to writes that wait already. A new deadline
            /// replaces it. Never blocks.
            ///
            #[doc = $example]
            ///
            /// # Errors
            /// None at present.
            pub fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
                self.0.set_deadline(Side::Write, deadline);
                Ok(())
            }
        }

        $crate::io::pipe_end::pipe_writes!(@ $end);
        $crate::io::pipe_end::pipe_writes!(@ &$end);
    };
    (@ $end:ty) => {
        impl Write for $end {
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                self.0.write_from(buf)
            }

            fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.0.write_from_many(bufs)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    };
}

pub(crate) use {pipe_end, pipe_reads, pipe_writes};
