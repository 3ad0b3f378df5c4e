//! Text to stderr without std.
//!
//! A parked goroutine may hold the lock of std's stderr. So the scheduler formats on its own stack
//! and writes with a bare system call (D9).

use core::fmt;

use crate::sys::linux::syscall::{Errno, check, syscall3};

const STDERR: usize = 2;

/// How long to wait for a full pipe behind a non-blocking stderr before text is lost.
const PATIENCE_MS: usize = 100;

/// Writes all of `bytes` to standard error. Gives up silently if it is closed or stays full;
/// CONTEXT: any.
pub(crate) fn write_stderr(bytes: &[u8]) {
    write_all(STDERR, bytes);
}

/// Writes all of `bytes` to a descriptor: continues after partial writes, repeats interrupted ones.
fn write_all(fd: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the kernel reads the borrowed bytes (D9: bare call).
        let answer = unsafe { syscall3(libc::SYS_write, fd, bytes.as_ptr() as usize, bytes.len()) };
        match check(answer) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(libc::EAGAIN)) if becomes_writable(fd) => {}
            Err(_) => return,
        }
    }
}

/// Waits until a non-blocking descriptor is writable; returns false after `PATIENCE_MS`.
fn becomes_writable(fd: usize) -> bool {
    let mut poll = libc::pollfd {
        fd: fd as i32,
        events: libc::POLLOUT,
        revents: 0,
    };
    let at = core::ptr::from_mut(&mut poll) as usize;
    // SAFETY: the kernel reads and writes this frame's one pollfd.
    let answer = unsafe { syscall3(libc::SYS_poll, at, 1, PATIENCE_MS) };
    matches!(check(answer), Ok(1) | Err(Errno(libc::EINTR)))
}

/// Text in an array of `N` bytes; text that does not fit is cut off; CONTEXT: any.
pub(crate) struct FixedBuf<const N: usize> {
    /// The text, then unused bytes.
    bytes: [u8; N],
    /// Bytes of text.
    len: usize,
    /// Set once text was cut off; nothing is appended afterwards.
    truncated: bool,
}

impl<const N: usize> FixedBuf<N> {
    pub(crate) const fn new() -> Self {
        FixedBuf {
            bytes: [0; N],
            len: 0,
            truncated: false,
        }
    }

    /// The text so far, as bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The text so far.
    #[cfg(test)]
    pub(crate) fn as_str(&self) -> &str {
        // Only whole characters are appended, so the fallback is never taken.
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// True when something did not fit.
    #[cfg(test)]
    pub(crate) fn is_truncated(&self) -> bool {
        self.truncated
    }

    #[cfg(test)]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.truncated = false;
    }
}

impl<const N: usize> fmt::Write for FixedBuf<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.truncated {
            return Ok(());
        }
        let end = text.floor_char_boundary(N - self.len);
        self.bytes[self.len..self.len + end].copy_from_slice(&text.as_bytes()[..end]);
        self.len += end;
        self.truncated = end < text.len();
        Ok(())
    }
}

/// Formats to standard error through a small buffer on this stack, without allocating; CONTEXT:
/// any, if the arguments' own formatting allows it.
pub(crate) fn eprint_raw(arguments: fmt::Arguments<'_>) {
    let mut pieces = Pieces::new(STDERR);
    // Only an argument's own formatting can fail; the text before that is still printed.
    let _ = fmt::Write::write_fmt(&mut pieces, arguments);
    pieces.flush();
}

/// Collects formatted pieces, so that a short text is one write and is not mixed with other output.
struct Pieces {
    /// Where the text goes.
    fd: usize,
    /// Text not yet written, then unused bytes.
    bytes: [u8; 512],
    /// Bytes of text not yet written.
    len: usize,
}

impl Pieces {
    fn new(fd: usize) -> Self {
        Pieces {
            fd,
            bytes: [0; 512],
            len: 0,
        }
    }

    /// Writes out what was collected.
    fn flush(&mut self) {
        write_all(self.fd, &self.bytes[..self.len]);
        self.len = 0;
    }
}

impl fmt::Write for Pieces {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            if self.len == self.bytes.len() {
                self.flush();
            }
            let take = rest.len().min(self.bytes.len() - self.len);
            let (now, later) = rest.split_at(take);
            self.bytes[self.len..self.len + take].copy_from_slice(now);
            self.len += take;
            rest = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    #[test]
    fn fixed_text_fits_or_is_cut_between_characters() {
        let mut text = FixedBuf::<8>::new();
        write!(text, "a{}", 42).expect("never fails");
        assert_eq!((text.as_str(), text.is_truncated()), ("a42", false));
        write!(text, "12345").expect("never fails");
        assert_eq!((text.as_str(), text.is_truncated()), ("a4212345", false));
        text.clear();
        write!(text, "1234567é").expect("never fails");
        assert_eq!((text.as_str(), text.is_truncated()), ("1234567", true));
        // Nothing is appended after a cut, even if it would fit.
        write!(text, "8").expect("never fails");
        assert_eq!(text.as_bytes(), b"1234567");
        let mut none = FixedBuf::<0>::new();
        write!(none, "x").expect("never fails");
        assert_eq!(none.as_str(), "");
    }

    #[test]
    fn pieces_arrive_whole_and_in_order() {
        let (mut reader, writer) = std::io::pipe().expect("pipe");
        let expected = format!("{:>700}|{}|{}", 1, "é".repeat(400), "z");
        let long = "é".repeat(400);
        let mut pieces = Pieces::new(writer.as_raw_fd() as usize);
        write!(pieces, "{:>700}|{long}|z", 1).expect("never fails");
        pieces.flush();
        drop(writer);
        let mut got = String::new();
        reader.read_to_string(&mut got).expect("text");
        assert_eq!(got, expected);
    }

    #[test]
    fn partial_writes_go_on_and_closed_ends_give_up() {
        let big = vec![7u8; 1 << 20];
        let arrives = || {
            let (mut reader, writer) = std::io::pipe().expect("pipe");
            let fd = writer.as_raw_fd();
            // SAFETY: the descriptor is this test's own pipe.
            unsafe { assert_eq!(libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK), 0) };
            let reading = std::thread::spawn(move || {
                let mut all = Vec::new();
                reader.read_to_end(&mut all).expect("bytes");
                all.len()
            });
            write_all(fd as usize, &big);
            drop(writer);
            reading.join().expect("read") == big.len()
        };
        // A reader that has no CPU for `PATIENCE_MS` is given up, but not each time.
        assert!((0..20).any(|_| arrives()));
        write_all(usize::MAX, b"lost");
        // A full pipe without a reader costs `PATIENCE_MS` and does not hang.
        let (_reader, writer) = std::io::pipe().expect("pipe");
        let fd = writer.as_raw_fd();
        // SAFETY: the descriptor is this test's own pipe.
        unsafe { assert_eq!(libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK), 0) };
        write_all(fd as usize, &big);
    }

    #[test]
    fn stderr_takes_text() {
        write_stderr(b"");
        eprint_raw(format_args!("{}", ""));
    }
}
