//! A buffer for text on its way to stderr, so that a line is one write.
//!
//! It lies on the stack: reports of fatal errors and of sysmon allocate nothing (D9).

use std::fmt;

use crate::sys;

/// A buffered stderr. The drop writes what is left. CONTEXT: any. `BYTES` lie on the stack: 1 KiB
/// where that may be the stack of a goroutine.
pub(super) struct Out<const BYTES: usize = 2048> {
    bytes: [u8; BYTES],
    len: usize,
}

impl<const BYTES: usize> Out<BYTES> {
    pub(super) const fn new() -> Self {
        Out {
            bytes: [0; BYTES],
            len: 0,
        }
    }

    /// Adds formatted text.
    pub(super) fn put(&mut self, text: fmt::Arguments<'_>) {
        // `write_str` never fails, so only an argument's own formatting can. What it has printed
        // stays.
        let _ = fmt::Write::write_fmt(self, text);
    }

    pub(super) fn flush(&mut self) {
        sys::write_stderr(&self.bytes[..self.len]);
        self.len = 0;
    }
}

impl<const BYTES: usize> fmt::Write for Out<BYTES> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            if self.len == BYTES {
                self.flush();
            }
            let (now, later) = rest.split_at(rest.len().min(BYTES - self.len));
            self.bytes[self.len..self.len + now.len()].copy_from_slice(now);
            self.len += now.len();
            rest = later;
        }
        Ok(())
    }
}

impl<const BYTES: usize> Drop for Out<BYTES> {
    fn drop(&mut self) {
        self.flush();
    }
}
