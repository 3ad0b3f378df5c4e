//! The bare system call: no `errno`, no thread-local, no libc.
//!
//! g0 runs on the thread-locals of the goroutine that it ran last (D6), so `errno` may belong to
//! that goroutine. So the kernel's answer is returned as it is: `-4095..=-1` is a negated error
//! number, everything else is a result. The instruction itself is in `arch/`.

pub(crate) use crate::arch::{
    syscall0, syscall1, syscall2, syscall3, syscall4, syscall5, syscall6,
};

/// A kernel error number, as a value.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub i32);

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

/// Splits a raw answer into result and error; CONTEXT: any.
#[inline]
pub(crate) fn check(answer: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&answer) {
        Err(Errno(-(answer as i32)))
    } else {
        Ok(answer as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_and_error_are_told_apart() {
        assert_eq!(check(0), Ok(0));
        assert_eq!(check(7), Ok(7));
        assert_eq!(check(-1), Err(Errno(1)));
        assert_eq!(check(-4095), Err(Errno(4095)));
        // An address in the upper half is a result, not an error.
        assert_eq!(check(-4096), Ok(-4096_isize as usize));
    }

    #[test]
    fn answers_match_libc_and_errno_stays_untouched() {
        // SAFETY: D9, `__errno_location` points to this thread's own word. `getpid`, and `close` of
        // an impossible descriptor, touch no memory.
        unsafe {
            *libc::__errno_location() = 12345;
            assert_eq!(syscall0(libc::SYS_getpid), libc::getpid() as isize);
            let answer = syscall1(libc::SYS_close, usize::MAX);
            assert_eq!(check(answer), Err(Errno(libc::EBADF)));
            assert_eq!(*libc::__errno_location(), 12345);
        }
    }

    #[test]
    fn six_arguments_reach_the_kernel_in_order() {
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        // SAFETY: D4, a new anonymous mapping touches no memory that exists.
        let refused = unsafe { syscall6(libc::SYS_mmap, 0, 4096, 3, flags, usize::MAX, 1) };
        assert_eq!(check(refused), Err(Errno(libc::EINVAL)));
        // SAFETY: D4, a new anonymous mapping touches no memory that exists. The page-aligned
        // offset is the sixth argument.
        let mapped = unsafe { syscall6(libc::SYS_mmap, 0, 4096, 3, flags, usize::MAX, 0) };
        let page = check(mapped).expect("one page");
        // SAFETY: the mapping was made above, and no pointer into it exists.
        let gone = unsafe { syscall2(libc::SYS_munmap, page, 4096) };
        assert_eq!(check(gone), Ok(0));
    }

    #[test]
    fn errno_becomes_the_same_io_error() {
        let error = std::io::Error::from(Errno(libc::ENOMEM));
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    }
}
