//! Standard input with the API of `std::io::stdin`.
//!
//! A goroutine that waits for a terminal, a pipe or a socket holds no thread. Other processes share
//! the open file, a shell for one. So its flags stay as they are: a read waits until the descriptor
//! is readable, then reads. If another process takes the bytes in between, the read waits in the
//! kernel, in a marked call.
//!
//! Each wait has a registration of its own: the program may put another file under number 0 at any
//! time.

use std::fmt;
use std::io::{self, BufRead, BufReader, IoSliceMut, Lines, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::PoisonError;

use crate::io::Registration;
use crate::sched::calls::syscall::blocking;
use crate::sync::{LazyLock, Mutex, MutexGuard};
use crate::sys;

static BUFFER: LazyLock<Mutex<BufReader<Raw>>> =
    LazyLock::new(|| Mutex::new(BufReader::with_capacity(8 << 10, Raw)));

/// Returns the handle of standard input.
///
/// As [`std::io::stdin`]: buffered, with one buffer for the whole process. std's own handle has
/// another buffer, so use one of the two. Never blocks.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let mut line = String::new();
///     # if false { // the input of a test may never end
///     gosched::io::stdin().read_line(&mut line)?;
///     # }
///     assert!(line.len() < 100);
///     Ok(())
/// })
/// # }
/// ```
#[must_use]
pub fn stdin() -> Stdin {
    Stdin(())
}

/// The handle of standard input.
///
/// As [`std::io::Stdin`]. A read blocks only the goroutine where the input is a terminal, a pipe
/// or a socket; on a plain thread it blocks the thread. A file is simply read. So is an input that
/// the system cannot wait for.
///
/// The flags of the descriptor stay as they are. Another process may read from the same terminal or
/// pipe. If it takes the bytes that this one was about to read, the read waits for the next bytes
/// in the kernel, and holds a thread meanwhile.
///
/// Each call takes the lock and keeps it until it returns. A goroutine of a runtime that is dropped
/// keeps it for ever if it waits for input at that time.
pub struct Stdin(());

/// Standard input, locked.
///
/// As [`std::io::StdinLock`]. The lock is one of [`gosched::sync`](crate::sync): a goroutine that
/// waits for it holds no thread. See the example of [`Stdin::lock`].
pub struct StdinLock<'a>(MutexGuard<'a, BufReader<Raw>>);

impl Stdin {
    /// Locks standard input until the guard is dropped.
    ///
    /// Blocks the goroutine while another goroutine or thread has the lock.
    ///
    /// ```
    /// use std::io::BufRead;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let lock = gosched::io::stdin().lock();
    ///     # if false { // the input of a test may never end
    ///     for line in lock.lines() {
    ///         println!("{}", line?);
    ///     }
    ///     # }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn lock(&self) -> StdinLock<'static> {
        StdinLock(BUFFER.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Appends the next line to `buf`, with its end; returns its length, 0 at the end of the input.
    ///
    /// Blocks the goroutine. See the example of [`stdin`].
    ///
    /// # Errors
    /// Errors of the system; [`InvalidData`](io::ErrorKind::InvalidData) if it is not UTF-8.
    pub fn read_line(&self, buf: &mut String) -> io::Result<usize> {
        self.lock().read_line(buf)
    }

    /// Locks standard input and returns an iterator over its lines.
    ///
    /// Each step blocks the goroutine. See the example of [`Stdin::lock`].
    #[must_use]
    pub fn lines(self) -> Lines<StdinLock<'static>> {
        self.lock().lines()
    }

    /// Whether standard input is a terminal, as [`std::io::IsTerminal`] says.
    ///
    /// Never blocks.
    ///
    /// ```
    /// use std::io::IsTerminal;
    ///
    /// let is_terminal = std::io::stdin().is_terminal();
    /// assert_eq!(gosched::io::stdin().is_terminal(), is_terminal);
    /// ```
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        io::IsTerminal::is_terminal(&descriptor())
    }
}

impl Read for Stdin {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.lock().read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.lock().read_vectored(bufs)
    }

    fn read_to_end(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        self.lock().read_to_end(buf)
    }

    fn read_to_string(&mut self, buf: &mut String) -> io::Result<usize> {
        self.lock().read_to_string(buf)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> io::Result<()> {
        self.lock().read_exact(buf)
    }
}

impl Read for &Stdin {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.lock().read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.lock().read_vectored(bufs)
    }

    fn read_to_end(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        self.lock().read_to_end(buf)
    }

    fn read_to_string(&mut self, buf: &mut String) -> io::Result<usize> {
        self.lock().read_to_string(buf)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> io::Result<()> {
        self.lock().read_exact(buf)
    }
}

impl Read for StdinLock<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read_vectored(bufs)
    }

    fn read_to_end(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        self.0.read_to_end(buf)
    }

    fn read_to_string(&mut self, buf: &mut String) -> io::Result<usize> {
        self.0.read_to_string(buf)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(buf)
    }
}

impl BufRead for StdinLock<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.0.consume(amount);
    }
}

/// The descriptor, and `Debug`, of std's handle of the same name.
macro_rules! as_stds {
    ($($handle:ty, $name:literal;)*) => {
        $(
            impl AsFd for $handle {
                fn as_fd(&self) -> BorrowedFd<'_> {
                    descriptor()
                }
            }

            impl AsRawFd for $handle {
                fn as_raw_fd(&self) -> RawFd {
                    libc::STDIN_FILENO
                }
            }

            impl fmt::Debug for $handle {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.debug_struct($name).finish_non_exhaustive()
                }
            }
        )*
    };
}

as_stds! {
    Stdin, "Stdin";
    StdinLock<'_>, "StdinLock";
}

fn descriptor() -> BorrowedFd<'static> {
    // SAFETY: std lends the number of standard input in the same way, for as long as the process
    // lives. std opens it at start if it was closed (D10).
    unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) }
}

/// Standard input without a buffer.
struct Raw;

impl Read for Raw {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let waited = wait();
            match blocking(|| sys::read_fd(descriptor(), buf)) {
                // It is non-blocking, and another process was faster.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && waited.is_ok() => {}
                // As std's: a closed standard input is empty.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => return Ok(0),
                done => return done,
            }
        }
    }
}

/// Waits until standard input is readable. After an error, where the system cannot report that, the
/// read itself waits.
fn wait() -> io::Result<()> {
    let fd = descriptor();
    match sys::is_readable(fd) {
        true => Ok(()),
        false => Registration::new(fd).wait_readable(fd),
    }
}
