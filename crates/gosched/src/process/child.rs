//! A child process and its pipes.
//!
//! std's `Child` is inside. It holds the number and reaps the process once. The pipes are the
//! library's.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::process::{ExitStatus, Output};
use std::time::{Duration, Instant};

use crate::io::pipe_end::{PipeEnd, pipe_end, pipe_reads, pipe_writes};
use crate::process::wait;
use crate::sched::calls::syscall::blocking;
use crate::sched::model::current::current_g;
use crate::sched::sources::netpoll::Side;
use crate::sync::OnceLock;
use crate::thread;

/// A child process, running or ended.
///
/// As [`std::process::Child`]. [`Command::spawn`](crate::process::Command::spawn) makes one. A drop
/// neither ends the child nor waits for it. A child that has ended stays in the system's table
/// until it was waited for.
///
/// ```
/// use gosched::process::{Command, Stdio};
/// use std::io::Write;
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
///     let mut stdin = cat.stdin.take().unwrap();
///     gosched::go(move || stdin.write_all(b"hello").unwrap());
///     let output = cat.wait_with_output()?;
///     assert!(output.status.success());
///     assert_eq!(output.stdout, b"hello");
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct Child {
    /// The pipe to the child's standard input, if the command made one.
    pub stdin: Option<ChildStdin>,
    /// The pipe from the child's standard output, if the command made one.
    pub stdout: Option<ChildStdout>,
    /// The pipe from the child's standard error, if the command made one.
    pub stderr: Option<ChildStderr>,
    /// Without its pipes.
    inner: std::process::Child,
}

impl Child {
    /// Returns the number of the process.
    ///
    /// Never blocks. See the example of [`Child::kill`].
    #[must_use]
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Ends the process by SIGKILL. Does nothing if it was waited for already.
    ///
    /// Never blocks.
    ///
    /// # Errors
    /// Errors of the system.
    ///
    /// ```
    /// use gosched::process::Command;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let mut child = Command::new("sleep").arg("1000").spawn()?;
    ///     assert_ne!(child.id(), std::process::id());
    ///     assert_eq!(child.try_wait()?, None);
    ///     child.kill()?;
    ///     let status = child.wait()?;
    ///     assert!(!status.success());
    ///     assert_eq!(child.try_wait()?, Some(status));
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn kill(&mut self) -> io::Result<()> {
        self.inner.kill()
    }

    /// Closes the child's standard input, waits until the process ends, and returns its status.
    ///
    /// The status stays: later calls return it again. Blocks the goroutine, and no thread where the
    /// kernel has descriptors of processes (Linux 5.3). See the example of [`Child::kill`].
    ///
    /// # Errors
    /// Errors of the system.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        match current_g() {
            Some(_) => wait::wait(&mut self.inner),
            None => self.inner.wait(),
        }
    }

    /// As [`wait`](Child::wait), and returns `None` if the process runs when the timeout passes.
    ///
    /// std has no such method. It closes the child's standard input in any case. Blocks the
    /// goroutine.
    ///
    /// # Errors
    /// Errors of the system.
    ///
    /// ```
    /// use gosched::process::Command;
    /// use std::time::Duration;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     let mut child = Command::new("sleep").arg("1000").spawn()?;
    ///     assert_eq!(child.wait_timeout(Duration::from_millis(5))?, None);
    ///     child.kill()?;
    ///     assert!(child.wait_timeout(Duration::from_secs(60))?.is_some());
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn wait_timeout(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        drop(self.stdin.take());
        wait::wait_timeout(&mut self.inner, timeout)
    }

    /// Returns the status if the process has ended, without waiting.
    ///
    /// Never blocks, and keeps the child's standard input open. See the example of [`Child::kill`].
    ///
    /// # Errors
    /// Errors of the system.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.inner.try_wait()
    }

    /// Closes the child's standard input, reads its standard output and standard error until both
    /// end, and waits until the process ends.
    ///
    /// Output that is not piped is empty. Blocks the goroutine. See the example of [`Child`].
    ///
    /// # Errors
    /// Errors of the system; [`TimedOut`](io::ErrorKind::TimedOut) after the deadline of a pipe.
    pub fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let has_deadline = self.stdout.as_ref().is_some_and(|out| out.0.has_deadline())
            || self.stderr.as_ref().is_some_and(|err| err.0.has_deadline());
        if current_g().is_none() && !has_deadline {
            return std::process::Child::from(self).wait_with_output(); // without a helper
        }
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        match (self.stdout.take(), self.stderr.take()) {
            (None, None) => {}
            (Some(out), None) => drop({ out }.read_to_end(&mut stdout)?),
            (None, Some(err)) => drop({ err }.read_to_end(&mut stderr)?),
            (Some(out), Some(err)) => {
                if !read_both((&out, &mut stdout), (&err, &mut stderr))? {
                    (self.stdout, self.stderr) = (Some(out), Some(err));
                    return blocking(|| std::process::Child::from(self).wait_with_output());
                }
            }
        }
        let status = self.wait()?;
        Ok(Output {
            status,
            stdout,
            stderr,
        })
    }
}

/// Reads both pipes at the same time: a child that fills one of them would otherwise never close
/// the other. Returns false if no second goroutine or thread starts; then nothing was read.
fn read_both(
    (out, stdout): (&ChildStdout, &mut Vec<u8>),
    (err, stderr): (&ChildStderr, &mut Vec<u8>),
) -> io::Result<bool> {
    let failed = OnceLock::new();
    // The other pipe may stay open as long as the child runs: its read ends, too.
    let fail = |error, other: &PipeEnd| {
        _ = failed.set(error);
        other.set_deadline(Side::Read, Some(Instant::now()));
    };
    let errors = || {
        let read = { err }.read_to_end(stderr);
        read.map_or_else(|error| fail(error, &out.0), drop);
    };
    let mut read = || {
        let read = { out }.read_to_end(stdout);
        read.map_or_else(|error| fail(error, &err.0), drop);
    };
    let joined = if current_g().is_some() {
        thread::scope(|scope| {
            let errors = thread::Builder::new().spawn_scoped(scope, errors).ok()?;
            read();
            Some(errors.join())
        })
    } else {
        std::thread::scope(|scope| {
            let errors = std::thread::Builder::new()
                .spawn_scoped(scope, errors)
                .ok()?;
            read();
            Some(errors.join())
        })
    };
    let is_read = match joined {
        None => false,
        Some(Ok(())) => true,
        // It was asked to unwind, and so is this goroutine.
        Some(Err(payload)) => std::panic::resume_unwind(payload),
    };
    failed.into_inner().map_or(Ok(is_read), Err)
}

/// The pipes become the library's.
impl From<std::process::Child> for Child {
    fn from(mut inner: std::process::Child) -> Child {
        Child {
            stdin: inner.stdin.take().map(ChildStdin::from),
            stdout: inner.stdout.take().map(ChildStdout::from),
            stderr: inner.stderr.take().map(ChildStderr::from),
            inner,
        }
    }
}

/// The pipes become std's, and block.
impl From<Child> for std::process::Child {
    fn from(child: Child) -> std::process::Child {
        let mut inner = child.inner;
        inner.stdin = child.stdin.map(Into::into);
        inner.stdout = child.stdout.map(Into::into);
        inner.stderr = child.stderr.map(Into::into);
        inner
    }
}

/// The pipe to the standard input of a child.
///
/// As [`std::process::ChildStdin`]. It works as [`PipeWriter`](crate::io::PipeWriter): a write
/// blocks the goroutine until all bytes are in the pipe. A drop closes the pipe.
///
/// See the example of [`Child`].
pub struct ChildStdin(PipeEnd);

/// The pipe from the standard output of a child.
///
/// As [`std::process::ChildStdout`]. It works as [`PipeReader`](crate::io::PipeReader). A drop
/// closes the pipe.
///
/// See the example of [`ChildStdout::set_deadline`].
pub struct ChildStdout(PipeEnd);

/// The pipe from the standard error of a child.
///
/// As [`std::process::ChildStderr`]. It works as [`PipeReader`](crate::io::PipeReader). A drop
/// closes the pipe.
///
/// See the example of [`ChildStdout::set_deadline`], which applies to both.
pub struct ChildStderr(PipeEnd);

pipe_end!(ChildStdin, std::process::ChildStdin);
pipe_end!(ChildStdout, std::process::ChildStdout);
pipe_end!(ChildStderr, std::process::ChildStderr);

pipe_writes!(
    ChildStdin,
    "See the example of [`PipeWriter::set_deadline`](crate::io::PipeWriter::set_deadline)."
);
pipe_reads!(
    ChildStdout,
    "```
use gosched::process::{Command, Stdio};
use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

# fn main() -> std::io::Result<()> {
gosched::run(|| {
    let mut child = Command::new(\"sleep\").arg(\"1000\").stdout(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().unwrap();
    stdout.set_deadline(Some(Instant::now() + Duration::from_millis(5)))?;
    assert_eq!(stdout.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
    child.kill()?;
    child.wait()?;
    Ok(())
})
# }
```"
);
pipe_reads!(
    ChildStderr,
    "See the example of [`ChildStdout::set_deadline`]."
);
