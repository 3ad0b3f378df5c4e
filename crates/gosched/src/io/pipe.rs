//! Pipes with the API of `std::io::pipe`.
//!
//! A goroutine that waits for a pipe holds no thread.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Instant;

use crate::io::pipe_end::{PipeEnd, pipe_end, pipe_reads, pipe_writes};
use crate::sched::sources::netpoll::Side;
use crate::sys;

/// Makes a pipe: what is written to one end is read from the other.
///
/// As [`std::io::pipe`]. Never blocks.
///
/// # Errors
/// Errors of the system, if no descriptor is left.
///
/// ```
/// use std::io::{Read, Write};
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let (mut reader, mut writer) = gosched::io::pipe()?;
///     gosched::go(move || writer.write_all(b"hello").unwrap());
///     let mut all = String::new();
///     reader.read_to_string(&mut all)?; // until the last writer is dropped
///     assert_eq!(all, "hello");
///     Ok(())
/// })
/// # }
/// ```
pub fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = sys::pipe()?;
    Ok((
        PipeReader(PipeEnd::fresh(reader)),
        PipeWriter(PipeEnd::fresh(writer)),
    ))
}

/// The end of a pipe to read from.
///
/// As [`std::io::PipeReader`]. A read blocks only the goroutine; on a plain thread it blocks the
/// thread. A read returns 0 at the end: when all writers are dropped, in every process.
///
/// The descriptor is non-blocking in the kernel. Conversions to [`OwnedFd`], to
/// [`Stdio`](std::process::Stdio) and to std's type make it blocking again, as a child process
/// expects. The flag is that of all clones. The clones that stay ask the kernel before each read,
/// which costs a system call more.
///
/// See the example of [`pipe`].
pub struct PipeReader(PipeEnd);

/// The end of a pipe to write to.
///
/// As [`std::io::PipeWriter`]. A write returns when all its bytes are in the pipe. Until then it
/// blocks the goroutine; on a plain thread it blocks the thread. Without a reader it fails with
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe). Up to 4,096 bytes (`PIPE_BUF`) are never mixed with
/// those of other writers.
///
/// Conversions are as for [`PipeReader`]. The clones of an end that left write 4,096 bytes at a
/// time.
///
/// See the example of [`pipe`].
pub struct PipeWriter(PipeEnd);

pipe_end!(PipeReader, io::PipeReader);
pipe_end!(PipeWriter, io::PipeWriter);

pipe_reads!(
    PipeReader,
    "```
use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

# fn main() -> std::io::Result<()> {
gosched::run(|| {
    let (mut reader, _writer) = gosched::io::pipe()?;
    reader.set_deadline(Some(Instant::now() + Duration::from_millis(5)))?;
    assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
    Ok(())
})
# }
```"
);
pipe_writes!(
    PipeWriter,
    "```
use std::io::{ErrorKind, Write};
use std::time::Instant;

# fn main() -> std::io::Result<()> {
let (_reader, mut writer) = gosched::io::pipe()?;
writer.set_deadline(Some(Instant::now()))?;
assert_eq!(writer.write(b\"late\").unwrap_err().kind(), ErrorKind::TimedOut);
# Ok(())
# }
```"
);

/// What std's pipes have and those of children have not.
macro_rules! clones {
    ($end:ident) => {
        impl $end {
            /// Creates a new handle to the same end of the pipe.
            ///
            /// The handles share the deadline. Never blocks.
            ///
            /// # Errors
            /// Errors of the system, if no descriptor is left.
            ///
            /// ```
            /// use std::io::{Read, Write};
            ///
            /// # fn main() -> std::io::Result<()> {
            /// gosched::run(|| {
            ///     let (reader, mut writer) = gosched::io::pipe()?;
            ///     let (mut reader, mut other) = (reader.try_clone()?, writer.try_clone()?);
            ///     writer.write_all(b"one ")?;
            ///     other.write_all(b"two")?;
            ///     drop((writer, other));
            ///     let mut all = String::new();
            ///     reader.read_to_string(&mut all)?;
            ///     assert_eq!(all, "one two");
            ///     Ok(())
            /// })
            /// # }
            /// ```
            pub fn try_clone(&self) -> io::Result<$end> {
                self.0.try_clone().map($end)
            }
        }

        impl FromRawFd for $end {
            unsafe fn from_raw_fd(fd: RawFd) -> $end {
                // SAFETY: the caller guarantees what std's `from_raw_fd` requires: the descriptor
                // is open, and no other value owns it (D10).
                unsafe { OwnedFd::from_raw_fd(fd) }.into()
            }
        }
    };
}

clones!(PipeReader);
clones!(PipeWriter);
