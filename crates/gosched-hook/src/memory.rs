//! Whether memory of the caller can be read.
//!
//! libc's functions return EFAULT for a wrong pointer. A hook that reads a list or a struct of its
//! caller must not crash instead.

use std::ffi::c_void;

const PAGE: usize = 4096;
const WORD: usize = 8;

/// Whether `len` bytes can be read. One system call for each page.
pub(crate) fn is_readable<T>(at: *const T, len: usize) -> bool {
    let begin = at.addr();
    let Some(end) = begin.checked_add(len) else {
        return false;
    };
    if begin == 0 && len > 0 {
        return false;
    }
    let mut page = begin;
    while page < end {
        // A word that is aligned lies in one page.
        if !is_word_readable(at.cast::<u8>().with_addr(page & !(WORD - 1)).cast()) {
            return false;
        }
        page = (page | (PAGE - 1)) + 1;
    }
    true
}

/// The kernel reads a signal mask there, and then refuses to do anything with it.
fn is_word_readable(at: *const c_void) -> bool {
    const NOTHING: i32 = -1;
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: the kernel checks the address. No mask changes, because it knows no such operation.
    let answer = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NOTHING, at, none, WORD) };
    !(answer < 0 && crate::errno::get() == libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_memory_is_readable() {
        let bytes = [0u8; 3 * PAGE];
        assert!(is_readable(bytes.as_ptr(), bytes.len()));
        assert!(is_readable(&raw const bytes[1], 2));
        assert!(is_readable(std::ptr::null::<u8>(), 0));
        assert!(!is_readable(std::ptr::null::<u8>(), 1));
        assert!(!is_readable(bytes.as_ptr(), usize::MAX));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of two pages, whose second page is then given back.
        let at = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::mprotect(at.byte_add(PAGE), PAGE, libc::PROT_NONE);
            at.cast::<u8>()
        };
        assert!(is_readable(at.wrapping_add(PAGE - 3), 3));
        assert!(!is_readable(at.wrapping_add(PAGE - 3), 4));
        // SAFETY: the mapping above, which is not used any more.
        unsafe { libc::munmap(at.cast(), 2 * PAGE) };
    }
}
