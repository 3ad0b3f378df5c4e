//! `Pollable`: any descriptor that epoll takes, with waits and deadlines.
//!
//! It is what sockets are to `gosched::net`, for descriptors that the library has no type for.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Instant;

use crate::io::Registration;
use crate::sched::sources::netpoll::Side;
use crate::sys;

/// A descriptor that goroutines can wait for: to be readable, to be writable, until a deadline.
///
/// `T` is anything with a descriptor that epoll takes: inotify, a timerfd, an eventfd, a terminal,
/// a pipe, the socket of a C library. A wait blocks only the goroutine; on a plain thread it blocks
/// the thread. Several goroutines and threads may use one `Pollable` at the same time. `T` must
/// return the same descriptor every time.
///
/// # The non-blocking flag
/// [`new`](Pollable::new) sets `O_NONBLOCK`. [`into_inner`](Pollable::into_inner) and the drop set
/// the flag back as it was. The flag belongs to the open file. Duplicates of the descriptor share
/// it, also those in other processes. Where they must not see it, as with a terminal that a shell
/// has too, use [`with_flags_unchanged`](Pollable::with_flags_unchanged).
///
/// # Several for one descriptor
/// Two `Pollable`s may have the same descriptor at the same time: two borrows of one file, or a
/// borrow of a socket that [`gosched::net`](crate::net) uses. Both get every event, and each has
/// its own deadlines. The one that waits later takes a duplicate of the descriptor until it is
/// dropped. The first one that is dropped sets the non-blocking flag back. Reads and writes through
/// the other one still work, but their waits hold a thread.
///
/// ```
/// use gosched::io::Pollable;
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let (here, mut there) = UnixStream::pair()?;
///     let mut here = Pollable::new(here)?;
///     gosched::go(move || there.write_all(b"ready").unwrap());
///     here.wait_readable()?;
///     let mut text = String::new();
///     here.read_to_string(&mut text)?;
///     assert_eq!(text, "ready");
///     Ok(())
/// })
/// # }
/// ```
pub struct Pollable<T: AsFd> {
    // First: it ends before the descriptor is closed.
    registration: Registration,
    /// `new` has set the non-blocking flag.
    must_restore: bool,
    /// None: `into_inner` has taken it.
    inner: Option<T>,
}

impl<T: AsFd> Pollable<T> {
    /// Makes the descriptor non-blocking, and goroutines can wait for it.
    ///
    /// Never blocks. See the example of [`Pollable`].
    ///
    /// # Errors
    /// - [`Unsupported`](io::ErrorKind::Unsupported) if the descriptor is always ready, so that
    ///   there is nothing to wait for: regular files, folders, some devices.
    /// - Errors of the system.
    ///
    /// ```
    /// use std::fs::File;
    ///
    /// let refused = gosched::io::Pollable::new(File::open("Cargo.toml").unwrap());
    /// assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::Unsupported);
    /// ```
    pub fn new(inner: T) -> io::Result<Pollable<T>> {
        let mut this = Pollable::with_flags_unchanged(inner)?;
        if !sys::is_nonblocking(this.as_fd())? {
            sys::set_nonblocking(this.as_fd(), true)?;
            this.must_restore = true;
        }
        Ok(this)
    }

    /// As [`new`](Pollable::new), and leaves the non-blocking flag as it is.
    ///
    /// [`wait_readable`](Pollable::wait_readable) and [`wait_writable`](Pollable::wait_writable)
    /// work as always. An operation on a blocking descriptor may block the thread: where another
    /// process takes the bytes first, or a write does not fit. Never blocks.
    ///
    /// # Errors
    /// As [`new`](Pollable::new).
    ///
    /// ```
    /// use gosched::io::Pollable;
    /// use std::io::{Read, Write};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let (reader, mut writer) = std::io::pipe()?; // blocking, as a shell's would be
    ///     let reader = Pollable::with_flags_unchanged(reader)?;
    ///     gosched::go(move || writer.write_all(b"x").unwrap());
    ///     reader.wait_readable()?;
    ///     assert_eq!(reader.get_ref().read(&mut [0; 8])?, 1);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn with_flags_unchanged(inner: T) -> io::Result<Pollable<T>> {
        match sys::try_epoll(inner.as_fd()) {
            Err(sys::Errno(libc::EPERM)) => {
                let text = "the descriptor is always ready, as regular files are: use it without `Pollable`";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
            taken => taken?,
        }
        Ok(Pollable {
            registration: Registration::new(inner.as_fd()),
            must_restore: false,
            inner: Some(inner),
        })
    }

    /// Calls `f` until it returns something else than `WouldBlock`. In between it waits until the
    /// descriptor is readable.
    ///
    /// `f` must return [`WouldBlock`](io::ErrorKind::WouldBlock) only after the descriptor has
    /// returned `EAGAIN`. A descriptor that stays ready causes no new event. Blocks the goroutine.
    ///
    /// # Errors
    /// Those of `f`; [`TimedOut`](io::ErrorKind::TimedOut) after the deadline; errors of the system
    /// if it cannot report events.
    ///
    /// ```
    /// use gosched::io::Pollable;
    /// use std::os::unix::net::UnixDatagram;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let (here, there) = UnixDatagram::pair()?;
    ///     let (here, there) = (Pollable::new(here)?, Pollable::new(there)?);
    ///     gosched::go(move || drop(there.write_with(|socket| socket.send(b"four"))));
    ///     let mut buf = [0; 16];
    ///     assert_eq!(here.read_with(|socket| socket.recv(&mut buf))?, 4);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn read_with<R>(&self, mut f: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        let inner = self.get_ref();
        let desc = self.registration.desc();
        desc.read(inner.as_fd(), || f(inner))
    }

    /// As [`read_with`](Pollable::read_with), waiting until the descriptor is writable.
    ///
    /// Blocks the goroutine. See the example of [`read_with`](Pollable::read_with).
    ///
    /// # Errors
    /// As [`read_with`](Pollable::read_with).
    pub fn write_with<R>(&self, mut f: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        let inner = self.get_ref();
        let desc = self.registration.desc();
        desc.write(inner.as_fd(), || f(inner))
    }

    /// Waits until the descriptor is readable: a read would return data, the end, or an error.
    ///
    /// Returns at once if it is readable already, however often this was called. Another reader may
    /// take the data first. Blocks the goroutine. See the example of [`Pollable`].
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) after the deadline; errors of the system if it cannot
    /// report events.
    pub fn wait_readable(&self) -> io::Result<()> {
        self.registration.wait_readable(self.as_fd())
    }

    /// Waits until the descriptor is writable: a write would take something, or return an error.
    ///
    /// Returns at once if it is writable already. Blocks the goroutine.
    ///
    /// # Errors
    /// As [`wait_readable`](Pollable::wait_readable).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let (_reader, writer) = std::io::pipe()?;
    /// gosched::io::Pollable::new(writer)?.wait_writable()
    /// # }
    /// ```
    pub fn wait_writable(&self) -> io::Result<()> {
        self.registration.wait_writable(self.as_fd())
    }

    /// Sets the deadline of both directions; `None` means no deadline.
    ///
    /// It combines [`set_read_deadline`](Self::set_read_deadline) and
    /// [`set_write_deadline`](Self::set_write_deadline). Never blocks.
    ///
    /// # Errors
    /// None at present.
    ///
    /// ```
    /// use gosched::io::Pollable;
    /// use std::io::ErrorKind;
    /// use std::time::{Duration, Instant};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let (reader, _writer) = std::io::pipe()?;
    ///     let reader = Pollable::new(reader)?;
    ///     reader.set_deadline(Some(Instant::now() + Duration::from_millis(5)))?;
    ///     assert_eq!(reader.wait_readable().unwrap_err().kind(), ErrorKind::TimedOut);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
        self.set_read_deadline(deadline)?;
        self.set_write_deadline(deadline)
    }

    /// Sets the deadline of [`wait_readable`](Pollable::wait_readable),
    /// [`read_with`](Pollable::read_with) and reads; `None` means no deadline.
    ///
    /// After the deadline they fail with [`TimedOut`](io::ErrorKind::TimedOut), even if the
    /// descriptor is readable. It applies also to calls that wait already. A new deadline replaces
    /// it. Never blocks. See the example of [`set_deadline`](Self::set_deadline).
    ///
    /// # Errors
    /// None at present.
    pub fn set_read_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
        self.registration.desc().set_deadline(Side::Read, deadline);
        Ok(())
    }

    /// Sets the deadline of [`wait_writable`](Pollable::wait_writable),
    /// [`write_with`](Pollable::write_with) and writes; `None` means no deadline.
    ///
    /// It works as [`set_read_deadline`](Self::set_read_deadline). Never blocks. See the example of
    /// [`set_deadline`](Self::set_deadline).
    ///
    /// # Errors
    /// None at present.
    pub fn set_write_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
        self.registration.desc().set_deadline(Side::Write, deadline);
        Ok(())
    }

    /// The value with the descriptor.
    ///
    /// Never blocks. See the example of [`into_inner`](Pollable::into_inner).
    #[must_use]
    pub fn get_ref(&self) -> &T {
        match &self.inner {
            Some(inner) => inner,
            None => unreachable!("`into_inner` takes the `Pollable`"),
        }
    }

    /// Returns the value, and sets the non-blocking flag back.
    ///
    /// Never blocks.
    ///
    /// ```
    /// use gosched::io::Pollable;
    /// use std::os::fd::AsRawFd;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (reader, _writer) = std::io::pipe()?;
    /// let number = reader.as_raw_fd();
    /// let pollable = Pollable::new(reader)?;
    /// assert_eq!(pollable.get_ref().as_raw_fd(), number);
    /// let reader: std::io::PipeReader = pollable.into_inner(); // it blocks again
    /// assert_eq!(reader.as_raw_fd(), number);
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_inner(mut self) -> T {
        self.restore();
        match self.inner.take() {
            Some(inner) => inner,
            None => unreachable!("`into_inner` takes the `Pollable`"),
        }
    }

    /// Sets the non-blocking flag back, once.
    fn restore(&mut self) {
        if let Some(inner) = &self.inner
            && std::mem::take(&mut self.must_restore)
        {
            // The call fails only if the descriptor was closed without its owner.
            drop(sys::set_nonblocking(inner.as_fd(), false));
        }
    }
}

impl<T: AsFd> Drop for Pollable<T> {
    fn drop(&mut self) {
        self.restore();
    }
}

impl<T: AsFd> AsFd for Pollable<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.get_ref().as_fd()
    }
}

impl<T: AsFd> AsRawFd for Pollable<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for Pollable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pollable").field(self.get_ref()).finish()
    }
}

/// `Read` and `Write` of the descriptor.
///
/// Not those of `T`: a bound `for<'a> &'a T: Read` would keep the compiler from inferring types in
/// functions of users that have the same bound.
macro_rules! descriptor_io {
    ($($pollable:ty),*) => {
        $(
            /// Reads from the descriptor, past any buffer of `T`.
            impl<T: AsFd> Read for $pollable {
                fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                    self.read_with(|inner| sys::read_fd(inner.as_fd(), buf))
                }

                fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                    self.read_with(|inner| sys::readv_fd(inner.as_fd(), bufs))
                }
            }

            /// Writes to the descriptor, past any buffer of `T`. A write may take fewer bytes than
            /// it is given.
            impl<T: AsFd> Write for $pollable {
                fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                    self.write_with(|inner| sys::write_fd(inner.as_fd(), buf))
                }

                fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                    self.write_with(|inner| sys::writev_fd(inner.as_fd(), bufs))
                }

                fn flush(&mut self) -> io::Result<()> {
                    Ok(())
                }
            }
        )*
    };
}

descriptor_io!(Pollable<T>, &Pollable<T>);
