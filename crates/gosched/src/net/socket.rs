//! What all sockets have in common: how they come in and go out, and what they do alike.
//!
//! A socket is std's, non-blocking in the kernel, beside the state that its clones share (`Desc`): who waits, deadlines, timeouts,
//! and whether its user wants it non-blocking.
//!
//! ```text
//!              kernel's O_NONBLOCK   kernel's timeouts        Desc
//!  adopt       is set                are left                 flag as it was in the kernel, timeouts from there
//!  in here     set                   of no effect             decides
//!  release     as the flag says      as in the Desc           forgotten
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::sched::sources::netpoll::{Desc, Side};
use crate::sys;
use crate::sys::SocketTimeout;

/// How long `accept` waits before it reports that there is no room for another connection.
const PAUSE: Duration = Duration::from_millis(10);

/// The state of a descriptor that comes from outside. One that is no socket gets one too, and whatever errors it gives.
pub(crate) fn adopt(fd: BorrowedFd<'_>) -> Desc {
    let desc = Desc::new();
    match sys::is_nonblocking(fd) {
        Ok(true) => desc.set_nonblocking(true),
        // One that refuses shows it when it is used.
        Ok(false) | Err(_) => drop(sys::set_nonblocking(fd, true)),
    }
    // Not a connection: whoever had it may have another descriptor for it, put a protocol on top
    // with that, or take urgent data.
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

/// Makes a descriptor what std expects, before it leaves. No other clone may need it to be as it was.
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

/// Writes to a stream until all `len` bytes are gone, as a write that blocks in the kernel does; `op(done)` writes what comes after
/// the first `done` bytes. Ends early at an error, a timeout, a deadline, or where it would block and must not.
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
            // An error is told once. This write has something else to tell, the next one or a reader has not.
            if sys::has_error(fd) { Ok(0) } else { op(done) }
        });
        match more {
            Ok(0) | Err(_) => break,
            Ok(n) => done += n,
        }
    }
    done
}

/// The buffers from the first on that has room. The kernel takes so many buffers at most: were
/// those all empty, nothing read would look like the end of the stream.
pub(crate) fn with_room<'b, 'a>(
    bufs: &'b mut [io::IoSliceMut<'a>],
) -> &'b mut [io::IoSliceMut<'a>] {
    let first = bufs.iter().position(|buf| !buf.is_empty());
    &mut bufs[first.unwrap_or(0)..]
}

/// How many bytes one read may bring into a list of buffers: the kernel takes so many buffers at most, and so many bytes.
pub(crate) fn receivable(bufs: &[io::IoSliceMut<'_>]) -> usize {
    let lens = bufs.iter().take(sys::IOV_MAX).map(|buf| buf.len());
    total(lens).min(sys::RW_MAX)
}

/// The bytes in a list of buffers.
pub(crate) fn total(lens: impl Iterator<Item = usize>) -> usize {
    lens.fold(0, usize::saturating_add)
}

/// Which buffer has the byte at `at`, and where; there is one.
pub(crate) fn locate(bufs: &[io::IoSlice<'_>], mut at: usize) -> (usize, usize) {
    for (i, buf) in bufs.iter().enumerate() {
        if at < buf.len() {
            return (i, at);
        }
        at -= buf.len();
    }
    (bufs.len(), 0)
}

/// The error of an `accept`. Where there is no room for another connection the next call fails the same way at once, so it is
/// returned after a pause, unless the listener is not to block.
pub(crate) fn accept_failed(desc: &Desc, error: io::Error) -> io::Error {
    let full = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    if error.raw_os_error().is_some_and(|e| full.contains(&e)) && !desc.is_nonblocking() {
        crate::time::sleep(PAUSE);
    }
    error
}

/// Methods that do not block, and are std's.
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
        /// Another handle to the same socket: what is set on one holds for both, deadlines, timeouts and `set_nonblocking` too.
        ///
        /// Blocks nothing. Handles may be used by several goroutines and threads at a time. The socket is closed with the last one.
        ///
        /// # Errors
        /// Those of the system, if it has no descriptor left.
        ///
        #[doc = $example]
        pub fn try_clone(&self) -> io::Result<$socket> {
            Ok($socket {
                inner: self.inner.try_clone()?,
                desc: self.desc.share(),
            })
        }

        #[doc = concat!("Makes ", $blocks, " fail with [`WouldBlock`](io::ErrorKind::WouldBlock) where they would wait, or wait again.")]
        ///
        /// Blocks nothing itself. See the example of [`try_clone`](Self::try_clone).
        ///
        /// # Errors
        /// None; the result is std's.
        pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
            self.desc.set_nonblocking(nonblocking);
            Ok(())
        }
    };
}

/// Timeouts, std's way, and deadlines, Go's way, of a socket that is read and written.
macro_rules! timeouts {
    ($arg:ident, $example:literal) => {
        /// Lets each read wait for this long, then fail with [`WouldBlock`](io::ErrorKind::WouldBlock); `None`: for ever.
        ///
        #[doc = concat!("Blocks nothing itself. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a timeout of zero.
        pub fn set_read_timeout(&self, $arg: Option<Duration>) -> io::Result<()> {
            self.desc.set_timeout(Side::Read, $arg)
        }

        /// Lets each write wait for this long, then fail with [`WouldBlock`](io::ErrorKind::WouldBlock); `None`: for ever.
        ///
        #[doc = concat!("Blocks nothing itself. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a timeout of zero.
        pub fn set_write_timeout(&self, $arg: Option<Duration>) -> io::Result<()> {
            self.desc.set_timeout(Side::Write, $arg)
        }

        /// How long a read waits; `None`: for ever.
        ///
        #[doc = concat!("Blocks nothing. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// None; the result is std's.
        pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
            Ok(self.desc.timeout(Side::Read))
        }

        /// How long a write waits; `None`: for ever.
        ///
        #[doc = concat!("Blocks nothing. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// None; the result is std's.
        pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
            Ok(self.desc.timeout(Side::Write))
        }

        /// Sets the moment from which reads and writes fail with [`TimedOut`](io::ErrorKind::TimedOut); `None`: never.
        ///
        /// Both [`set_read_deadline`](Self::set_read_deadline) and [`set_write_deadline`](Self::set_write_deadline).
        ///
        #[doc = concat!("Blocks nothing itself. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// None so far.
        pub fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.desc.set_deadline(Side::Read, deadline);
            self.desc.set_deadline(Side::Write, deadline);
            Ok(())
        }

        /// Sets the moment from which reads fail with [`TimedOut`](io::ErrorKind::TimedOut); `None`: never.
        ///
        /// Unlike a timeout it is one moment for all reads, those that wait already too, on all clones of the socket. Past it a
        /// read fails at once, even if there is something to read; set again or cleared it counts no more.
        ///
        #[doc = concat!("Blocks nothing itself. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// None so far.
        pub fn set_read_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.desc.set_deadline(Side::Read, deadline);
            Ok(())
        }

        /// Sets the moment from which writes fail with [`TimedOut`](io::ErrorKind::TimedOut); `None`: never.
        ///
        /// As [`set_read_deadline`](Self::set_read_deadline). A write that has got rid of some bytes by then returns their number.
        ///
        #[doc = concat!("Blocks nothing itself. See the example of ", $example, ".")]
        ///
        /// # Errors
        /// None so far.
        pub fn set_write_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.desc.set_deadline(Side::Write, deadline);
            Ok(())
        }
    };
}

/// The deadline of a listener.
macro_rules! accept_deadline {
    ($example:literal) => {
        /// Sets the moment from which `accept` fails with [`TimedOut`](io::ErrorKind::TimedOut); `None`: never.
        ///
        /// Blocks nothing itself. It holds for all clones of the listener and for those who wait already. Past it `accept` fails at
        /// once, even if a connection waits; set again or cleared it counts no more. Accepted streams have no deadline.
        ///
        #[doc = $example]
        ///
        /// # Errors
        /// None so far.
        pub fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.desc.set_deadline(Side::Read, deadline);
            Ok(())
        }

        /// The same as [`set_deadline`](Self::set_deadline): a listener does nothing but accept.
        ///
        /// Blocks nothing itself. See the example of [`set_deadline`](Self::set_deadline).
        ///
        /// # Errors
        /// None so far.
        pub fn set_read_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.set_deadline(deadline)
        }

        /// Of no effect: a listener does not write.
        ///
        /// Blocks nothing. It is there because streams have it: see the example of [`set_deadline`](Self::set_deadline) for what does
        /// have an effect.
        ///
        /// # Errors
        /// None so far.
        pub fn set_write_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
            self.desc.set_deadline(Side::Write, deadline);
            Ok(())
        }
    };
}

/// `Read` and `Write` of a stream and of a reference to it, over its `read_from` and so on.
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

/// Descriptors and std's type, in and out, and what it looks like.
macro_rules! descriptor {
    ($socket:ident, $std:ty) => {
        // As std's: no panic happens while its state is in between.
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

        /// Blocks again, for whoever has the descriptor, unless `set_nonblocking(true)` was called.
        impl From<$socket> for $std {
            fn from(socket: $socket) -> Self {
                let $socket { inner, desc } = socket;
                socket::release(desc, inner.as_fd());
                inner
            }
        }

        /// Takes over whether it is non-blocking, and its timeouts.
        impl From<$std> for $socket {
            fn from(inner: $std) -> Self {
                let desc = socket::adopt(inner.as_fd());
                $socket { inner, desc }
            }
        }

        /// Blocks again, for whoever has the descriptor, unless `set_nonblocking(true)` was called.
        impl From<$socket> for OwnedFd {
            fn from(socket: $socket) -> Self {
                <$std>::from(socket).into()
            }
        }

        /// Takes over whether it is non-blocking, and its timeouts.
        impl From<OwnedFd> for $socket {
            fn from(fd: OwnedFd) -> Self {
                <$std>::from(fd).into()
            }
        }

        /// Blocks again, for whoever has the descriptor, unless `set_nonblocking(true)` was called.
        impl IntoRawFd for $socket {
            fn into_raw_fd(self) -> RawFd {
                <$std>::from(self).into_raw_fd()
            }
        }

        impl FromRawFd for $socket {
            unsafe fn from_raw_fd(fd: RawFd) -> Self {
                // SAFETY: the caller's promise is the one that is asked for: the descriptor is open and its own (D10).
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
        // More than the kernel reads at once, in address space that is never touched.
        let mut many = vec![0; sys::RW_MAX + 1];
        assert_eq!(receivable(&[io::IoSliceMut::new(&mut many)]), sys::RW_MAX);
    }
}
