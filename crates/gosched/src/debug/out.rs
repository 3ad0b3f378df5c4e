//! Text on its way to stderr, collected on this stack so that a line is one write (D9).

use std::fmt;

use crate::sys;

/// A buffered stderr; what is left is written when it is dropped. CONTEXT: any. `BYTES` lie on the stack: 1 KiB where that may be
/// a goroutine's.
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
        // Only an argument's own formatting can fail; what it printed so far still counts.
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
