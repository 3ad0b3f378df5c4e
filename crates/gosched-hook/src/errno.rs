//! errno of the goroutine or thread.

use std::ffi::c_int;

/// The present value.
#[inline]
pub(crate) fn get() -> c_int {
    // SAFETY: libc returns the address of a thread-local of this thread or goroutine.
    unsafe { *libc::__errno_location() }
}

#[inline]
pub(crate) fn set(errno: c_int) {
    // SAFETY: as in `get`.
    unsafe { *libc::__errno_location() = errno }
}

/// Runs `f`, which leaves the present value as it is.
#[inline]
pub(crate) fn keep(f: impl FnOnce()) {
    let errno = get();
    f();
    set(errno);
}

/// Fails as libc's functions do.
#[inline]
pub(crate) fn fail<T: From<i8>>(errno: c_int) -> T {
    set(errno);
    T::from(-1)
}
