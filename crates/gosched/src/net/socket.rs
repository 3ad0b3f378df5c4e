//! The common part of all sockets: conversion from and to std's types, and shared methods.
//!
//! It exists so that TCP, UDP and Unix sockets behave the same. A socket is std's socket,
//! non-blocking in the kernel, plus a `Desc`. Clones share the `Desc`: waiters, deadlines,
//! timeouts, and the user's choice of non-blocking.
//!
//! ```text
//!              kernel's O_NONBLOCK   kernel's timeouts   Desc
//!  adopt       is set                unchanged           takes flag and timeouts from the kernel
//!  in use      set                   no effect           decides
//!  release     set from the Desc     set from the Desc   is dropped
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys;
use crate::sys::SocketTimeout;

/// How long `accept` pauses before it reports that the system cannot accept another connection.
const PAUSE: Duration = Duration::from_millis(10);

/// Makes the state of a descriptor from outside. A descriptor that is not a socket also gets one,
/// and its operations return the kernel's errors.
pub(crate) fn adopt(fd: BorrowedFd<'_>) -> Desc {
    let desc = Desc::new();
    match sys::is_nonblocking(fd) {
        Ok(true) => desc.set_nonblocking(true),
        // A descriptor that refuses reports its error when it is used.
        Ok(false) | Err(_) => drop(sys::set_nonblocking(fd, true)),
    }
    // Not for a connection: its previous owner may have another descriptor for it. With that it may
    // add a protocol on top, or receive urgent data.
    if sys::is_plain_listener(fd) {
        desc.set_plain();
    }
    for (side, which) in SIDES {
        let timeout = sys::socket_timeout(fd, which);
        if timeout.is_some() {
            drop(desc.set_timeout(side, timeout));
        }
    }
    desc
}

/// Sets a descriptor up as std expects it, before it leaves. No other clone may rely on the old
/// settings.
pub(crate) fn release(desc: Desc, fd: BorrowedFd<'_>) {
    for (side, which) in SIDES {
        sys::set_socket_timeout(fd, which, desc.timeout(side));
    }
    let nonblocking = desc.is_nonblocking();
    desc.forget(fd);
    if !nonblocking {
        drop(sys::set_nonblocking(fd, false));
    }
}

const SIDES: [(Side, SocketTimeout); 2] = [
    (Side::Read, SocketTimeout::Receive),
    (Side::Write, SocketTimeout::Send),
];

/// Writes to a stream until all `len` bytes are sent, as a blocking write of the kernel does.
/// `op(done)` writes the bytes after the first `done`. Stops early at an error, a timeout or a
/// deadline, or if it would block on a non-blocking socket.
#[inline]
pub(crate) fn write_whole(
    desc: &Desc,
    fd: BorrowedFd<'_>,
    len: usize,
    mut op: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<usize> {
    let done = desc.write(fd, || op(0))?;
    if done < len && done > 0 {
        return Ok(write_rest(desc, fd, len, done, op));
    }
    Ok(done)
}

#[cold]
fn write_rest(
    desc: &Desc,
    fd: BorrowedFd<'_>,
    len: usize,
    mut done: usize,
    mut op: impl FnMut(usize) -> io::Result<usize>,
) -> usize {
    let started = Instant::now();
    while done < len && !desc.is_nonblocking() {
        if let Some(timeout) = desc.timeout(Side::Write)
            && started.elapsed() >= timeout
        {
            break;
        }
        let more = desc.write(fd, || {
            // The kernel reports an error only once. This write returns a count, so the error must
            // stay for the next write or a reader.
            if sys::has_error(fd) { Ok(0) } else { op(done) }
        });
        match more {
            Ok(0) | Err(_) => break,
            Ok(n) => done += n,
        }
    }
    done
}

/// Skips the leading buffers without space. The kernel accepts a limited number of buffers. If all
/// of them were empty, the read of 0 bytes would look like the end of the stream.
pub(crate) fn with_room<'b, 'a>(
    bufs: &'b mut [io::IoSliceMut<'a>],
) -> &'b mut [io::IoSliceMut<'a>] {
    let first = bufs.iter().position(|buf| !buf.is_empty());
    &mut bufs[first.unwrap_or(0)..]
}

/// The maximum number of bytes that one read returns for a list of buffers. The kernel limits the
/// number of buffers and of bytes.
pub(crate) fn receivable(bufs: &[io::IoSliceMut<'_>]) -> usize {
    let lens = bufs.iter().take(sys::IOV_MAX).map(|buf| buf.len());
    total(lens).min(sys::RW_MAX)
}

/// The number of bytes in a list of buffers.
pub(crate) fn total(lens: impl Iterator<Item = usize>) -> usize {
    lens.fold(0, usize::saturating_add)
}

/// Returns the buffer with the byte at `at`, and the position in it. Such a byte exists.
pub(crate) fn locate(bufs: &[io::IoSlice<'_>], mut at: usize) -> (usize, usize) {
    for (i, buf) in bufs.iter().enumerate() {
        if at < buf.len() {
            return (i, at);
        }
        at -= buf.len();
    }
    (bufs.len(), 0)
}

/// Handles the error of an `accept`. If the system cannot accept another connection, the next call
/// fails the same way at once. So this pauses first, unless the listener is non-blocking.
pub(crate) fn accept_failed(desc: &Desc, error: io::Error) -> io::Error {
    let full = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    if error.raw_os_error().is_some_and(|e| full.contains(&e)) && !desc.is_nonblocking() {
        crate::time::sleep(PAUSE);
    }
    error
}

/// Methods that never block and call std's method.
macro_rules! delegate {
    ($( $(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $result:ty; )*) => {
        $(
            $(#[$doc])*
            pub fn $name(&self $(, $arg: $type)*) -> $result {
                self.inner.$name($($arg),*)
            }
        )*
    };
}

/// `set_nonblocking` and `try_clone`.
macro_rules! shared_state {
    ($socket:ident, $blocks:literal, $example:literal) => {
        /// Creates a new handle to the same socket.
        ///
        /// The handles share all settings, also deadlines, timeouts and `set_nonblocking`. Several
        /// goroutines and threads may use them at the same time. The socket is closed with the last
        /// handle. Never blocks.
        ///
        /// # Errors
        /// Errors of the system, if no descriptor is left.
        ///
        #[doc = $example]
        pub fn try_clone(&self) -> io::Result<$socket> {
            Ok($socket {
                inner: self.inner.try_clone()?,
                desc: self.desc.share(),
            })
        }

        #[doc = concat!("Makes ", $blocks, " fail instead of waiting, if `nonblocking` is true.")]
        ///
        /// The error is [`WouldBlock`](io::ErrorKind::WouldBlock). Never blocks. See the example of
        /// [`try_clone`](Self::try_clone).
        ///
        /// # Errors
        /// None. The result type is std's.
        pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
            self.desc.set_nonblocking(nonblocking);
            Ok(())
        }
    };
}

/// Timeouts as in std, and deadlines as in Go, of a socket that is read and written.
macro_rules! timeouts {
    ($arg:ident, $example:literal) => {
        /// Sets the read timeout; `None` means no timeout.
        ///
        /// A read that waits longer fails with [`WouldBlock`](io::ErrorKind::WouldBlock).
        #[doc = concat!("Never blocks. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the timeout is zero.
        pub fn set_read_timeout(&self, $arg: Option<Duration>) -> io::Result<()> {
            self.desc.set_timeout(Side::Read, $arg)
        }

        /// Sets the write timeout; `None` means no timeout.
        ///
        /// A write that waits longer fails with [`WouldBlock`](io::ErrorKind::WouldBlock).
        #[doc = concat!("Never blocks. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the timeout is zero.
        pub fn set_write_timeout(&self, $arg: Option<Duration>) -> io::Result<()> {
            self.desc.set_timeout(Side::Write, $arg)
        }

        /// Returns the read timeout; `None` means no timeout.
        ///
        #[doc = concat!("Never blocks. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// None. The result type is std's.
        pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
            Ok(self.desc.timeout(Side::Read))
        }

        /// Returns the write timeout; `None` means no timeout.
        ///
        #[doc = concat!("Never blocks. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// None. The result type is std's.
        pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
            Ok(self.desc.timeout(Side::Write))
        }

        /// Sets the deadline of reads and writes; `None` means no deadline.
        ///
        /// It combines [`set_read_deadline`](Self::set_read_deadline) and
        /// [`set_write_deadline`](Self::set_write_deadline).
        ///
        #[doc = concat!("Never blocks. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// None at present.
        pub fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.desc.set_deadline(Side::Read, deadline);
            self.desc.set_deadline(Side::Write, deadline);
            Ok(())
        }

        /// Sets the deadline of reads; `None` means no deadline.
        ///
        /// After the deadline reads fail with [`TimedOut`](io::ErrorKind::TimedOut), even if data
        /// is available. Unlike a timeout, it is one point in time for all reads on all clones of
        /// the socket, also for reads that wait already. A new deadline replaces it.
        ///
        #[doc = concat!("Never blocks. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// None at present.
        pub fn set_read_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.desc.set_deadline(Side::Read, deadline);
            Ok(())
        }

        /// Sets the deadline of writes; `None` means no deadline.
        ///
        /// It works as [`set_read_deadline`](Self::set_read_deadline). A write that has sent some
        /// bytes by then returns their number.
        ///
        #[doc = concat!("Never blocks. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// None at present.
        pub fn set_write_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.desc.set_deadline(Side::Write, deadline);
            Ok(())
        }
    };
}

/// The deadline of a listener.
macro_rules! accept_deadline {
    ($example:literal) => {
        /// Sets the deadline of `accept`; `None` means no deadline.
        ///
        /// After the deadline `accept` fails with [`TimedOut`](io::ErrorKind::TimedOut), even if a
        /// connection is pending. It applies to all clones of the listener, also to calls that wait
        /// already. A new deadline replaces it. Accepted streams have no deadline. Never blocks.
        ///
        #[doc = $example]
        ///
        /// # Errors
        /// None at present.
        pub fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.desc.set_deadline(Side::Read, deadline);
            Ok(())
        }

        /// The same as [`set_deadline`](Self::set_deadline): a listener only accepts.
        ///
        /// Never blocks. See the example of [`set_deadline`](Self::set_deadline).
        ///
        /// # Errors
        /// None at present.
        pub fn set_read_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.set_deadline(deadline)
        }

        /// Has no effect: a listener does not write.
        ///
        /// It exists because streams have it. Never blocks. See the example of
        /// [`set_deadline`](Self::set_deadline).
        ///
        /// # Errors
        /// None at present.
        pub fn set_write_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.desc.set_deadline(Side::Write, deadline);
            Ok(())
        }
    };
}

/// `Read` and `Write` of a stream and of a reference to it, by its `read_to` and `write_from`.
macro_rules! stream_io {
    ($($socket:ty),*) => {
        $(
            impl Read for $socket {
                #[inline]
                fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                    self.read_to(buf)
                }

                #[inline]
                fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                    self.read_to_many(bufs)
                }
            }

            impl Write for $socket {
                #[inline]
                fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                    self.write_from(buf)
                }

                #[inline]
                fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                    self.write_from_many(bufs)
                }

                #[inline]
                fn flush(&mut self) -> io::Result<()> {
                    Ok(())
                }
            }
        )*
    };
}

/// `write_from` and `write_from_many` of a stream.
macro_rules! stream_writes {
    () => {
        #[inline]
        fn write_from(&self, buf: &[u8]) -> io::Result<usize> {
            let fd = self.inner.as_fd();
            let op = |done| crate::sys::send(fd, &buf[done..]);
            socket::write_whole(&self.desc, self.inner.as_fd(), buf.len(), op)
        }

        fn write_from_many(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
            let len = socket::total(bufs.iter().map(|buf| buf.len()));
            let op = |done| match socket::locate(bufs, done) {
                (i, 0) => (&self.inner).write_vectored(&bufs[i..]),
                (i, at) => crate::sys::send(self.inner.as_fd(), &bufs[i][at..]),
            };
            socket::write_whole(&self.desc, self.inner.as_fd(), len, op)
        }
    };
}

/// Conversions from and to descriptors and std's type, and `Debug`.
macro_rules! descriptor {
    ($socket:ident, $std:ty) => {
        // As in std: no panic leaves its state inconsistent.
        impl std::panic::UnwindSafe for $socket {}
        impl std::panic::RefUnwindSafe for $socket {}

        impl std::fmt::Debug for $socket {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.inner.fmt(f)
            }
        }

        impl AsFd for $socket {
            #[inline]
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.desc.hand_out();
                self.inner.as_fd()
            }
        }

        impl AsRawFd for $socket {
            #[inline]
            fn as_raw_fd(&self) -> RawFd {
                self.desc.hand_out();
                self.inner.as_raw_fd()
            }
        }

        /// The descriptor becomes blocking again, unless `set_nonblocking(true)` was called.
        impl From<$socket> for $std {
            fn from(socket: $socket) -> Self {
                let $socket { inner, desc } = socket;
                socket::release(desc, inner.as_fd());
                inner
            }
        }

        /// Takes the non-blocking flag and the timeouts over from the socket.
        impl From<$std> for $socket {
            fn from(inner: $std) -> Self {
                let desc = socket::adopt(inner.as_fd());
                $socket { inner, desc }
            }
        }

        /// The descriptor becomes blocking again, unless `set_nonblocking(true)` was called.
        impl From<$socket> for OwnedFd {
            fn from(socket: $socket) -> Self {
                <$std>::from(socket).into()
            }
        }

        /// Takes the non-blocking flag and the timeouts over from the descriptor.
        impl From<OwnedFd> for $socket {
            fn from(fd: OwnedFd) -> Self {
                <$std>::from(fd).into()
            }
        }

        /// The descriptor becomes blocking again, unless `set_nonblocking(true)` was called.
        impl IntoRawFd for $socket {
            fn into_raw_fd(self) -> RawFd {
                <$std>::from(self).into_raw_fd()
            }
        }

        impl FromRawFd for $socket {
            unsafe fn from_raw_fd(fd: RawFd) -> Self {
                // SAFETY: the caller guarantees what std's `from_raw_fd` requires: the descriptor
                // is open, and no other value owns it (D10).
                unsafe { <$std>::from_raw_fd(fd) }.into()
            }
        }
    };
}

pub(crate) use {
    accept_deadline, delegate, descriptor, shared_state, stream_io, stream_writes, timeouts,
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::IoSlice;

    #[test]
    fn bytes_are_found_in_a_list_of_buffers() {
        let bufs = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")];
        assert_eq!(total(bufs.iter().map(|buf| buf.len())), 5);
        let all: Vec<_> = (0..5).map(|at| locate(&bufs, at)).collect();
        assert_eq!(all, [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]);
        assert_eq!(locate(&[], 0), (0, 0));
    }

    #[test]
    fn a_read_brings_what_the_kernel_takes() {
        let mut bytes = [0; 1500];
        let bufs: Vec<_> = bytes.chunks_mut(1).map(io::IoSliceMut::new).collect();
        assert_eq!(receivable(&bufs[..1000]), 1000);
        assert_eq!(receivable(&bufs), 1024);
        // More than one read of the kernel returns, in address space that is never touched.
        let mut many = vec![0; sys::RW_MAX + 1];
        assert_eq!(receivable(&[io::IoSliceMut::new(&mut many)]), sys::RW_MAX);
    }
}
