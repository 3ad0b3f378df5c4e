//! The names that C compilers use with `_FORTIFY_SOURCE`: the same functions with the size of the
//! buffer. A call that stays within its buffer goes to the hook. Any other goes to libc, which ends
//! the program.

use std::ffi::{c_int, c_void};

use crate::real::Real;

/// Defines `NAME`, which calls `HOOK` if `len` is at most `size`.
macro_rules! fortified {
    ($(
        fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty = $hook:path [$($passed:ident),*]
        if $fits:expr;
    )*) => {$(
        /// # Safety
        /// As for libc's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $out {
            if $fits {
                // SAFETY: the arguments are the caller's.
                return unsafe { $hook($($passed),*) };
            }
            static REAL: Real = Real::new(concat!(stringify!($name), "\0"));
            type Function = unsafe extern "C" fn($($type),*) -> $out;
            // SAFETY: libc's function of this name has this type; the arguments are the caller's.
            unsafe { REAL.get::<Function>()($($arg),*) }
        }
    )*};
}

fortified! {
    fn __read_chk(fd: c_int, buf: *mut c_void, len: usize, size: usize) -> isize
        = crate::files::read [fd, buf, len] if len <= size;
    fn __recv_chk(fd: c_int, buf: *mut c_void, len: usize, size: usize, flags: c_int) -> isize
        = crate::sockets::recv [fd, buf, len, flags] if len <= size;
    fn __recvfrom_chk(
        fd: c_int, buf: *mut c_void, len: usize, size: usize, flags: c_int,
        from: *mut libc::sockaddr, from_len: *mut libc::socklen_t
    ) -> isize = crate::sockets::recvfrom [fd, buf, len, flags, from, from_len] if len <= size;
    fn __poll_chk(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int, size: usize) -> c_int
        = crate::polling::poll [fds, count, timeout]
        if count as usize <= size / size_of::<libc::pollfd>();
    fn __ppoll_chk(
        fds: *mut libc::pollfd, count: libc::nfds_t, timeout: *const libc::timespec,
        mask: *const libc::sigset_t, size: usize
    ) -> c_int = crate::polling::ppoll [fds, count, timeout, mask]
        if count as usize <= size / size_of::<libc::pollfd>();
}
