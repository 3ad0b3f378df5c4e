//! The rest of a list of buffers, after a part of their bytes.
//!
//! A write of several buffers that stops in the middle continues there. The list is not copied: it
//! may be long, and a goroutine's stack is short.

use libc::iovec;

use crate::memory::is_readable;

/// A list of buffers.
pub(crate) struct Rest {
    list: *const iovec,
    count: usize,
}

/// The kernel takes no longer list.
pub(crate) const MOST: usize = 1024;

/// The kernel moves no more bytes by one call.
pub(crate) const MOST_BYTES: usize = 0x7fff_f000;

impl Rest {
    /// None: the kernel refuses such a list.
    ///
    /// # Safety
    /// `list` has `count` buffers while this value lives, or no memory is there at all.
    pub(crate) unsafe fn new(list: *const iovec, count: usize) -> Option<Rest> {
        let is_list = count <= MOST && is_readable(list, count * size_of::<iovec>());
        is_list.then_some(Rest { list, count })
    }

    /// A list of this program.
    pub(crate) fn of(list: &[iovec]) -> Rest {
        Rest {
            list: list.as_ptr(),
            count: list.len(),
        }
    }

    fn buffers(&self) -> &[iovec] {
        if self.list.is_null() || self.count == 0 {
            return &[];
        }
        // SAFETY: the list has so many buffers (`new`, `of`).
        unsafe { std::slice::from_raw_parts(self.list, self.count) }
    }

    /// All bytes that one call moves; None: the kernel refuses such a list.
    pub(crate) fn len(&self) -> Option<usize> {
        let mut len: usize = 0;
        for buffer in self.buffers() {
            if buffer.iov_len > isize::MAX as usize {
                return None;
            }
            len = len.saturating_add(buffer.iov_len);
        }
        Some(len.min(MOST_BYTES))
    }

    /// Calls `f` with a list that begins `done` bytes later. It may be shorter than the rest.
    pub(crate) fn with<R>(&self, done: usize, f: impl FnOnce(*const iovec, usize) -> R) -> R {
        let (mut left, buffers) = (done, self.buffers());
        for (index, buffer) in buffers.iter().enumerate() {
            if left == 0 {
                let rest = &buffers[index..];
                return f(rest.as_ptr(), rest.len());
            }
            if left < buffer.iov_len {
                let part = iovec {
                    iov_base: buffer.iov_base.wrapping_byte_add(left),
                    iov_len: buffer.iov_len - left,
                };
                return f(&part, 1);
            }
            left -= buffer.iov_len;
        }
        f(std::ptr::null(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_begins_where_the_write_stopped() {
        let texts: [&[u8]; 4] = [b"ab", b"", b"cde", b"f"];
        let list = texts.map(|text| iovec {
            iov_base: text.as_ptr().cast_mut().cast(),
            iov_len: text.len(),
        });
        let rest = Rest::of(&list);
        assert_eq!(rest.len(), Some(6));
        for done in 0..6 {
            let begins = rest.with(done, |iov, count| {
                assert!(count > 0);
                // SAFETY: the list has `count` buffers, which are the texts above.
                unsafe {
                    let first = (0..count)
                        .map(|n| *iov.add(n))
                        .find(|b| b.iov_len > 0)
                        .unwrap();
                    *first.iov_base.cast::<u8>()
                }
            });
            assert_eq!(begins, b"abcdef"[done]);
        }
        assert_eq!(rest.with(6, |_, count| count), 0);
    }
}
