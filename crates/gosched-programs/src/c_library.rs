//! C libraries, loaded at run time.
//!
//! So the package builds without their headers, and the hooks are tried with a library that
//! `dlopen` has linked.

use std::ffi::{CStr, c_void};

/// A loaded library. It stays loaded.
pub(crate) struct Library {
    name: &'static CStr,
    handle: *mut c_void,
}

impl Library {
    /// # Panics
    /// If the machine has no such library.
    pub(crate) fn open(name: &'static CStr) -> Library {
        // SAFETY: the name is a text with a zero byte. The constructors of these libraries may run
        // anywhere.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(
            !handle.is_null(),
            "there is no {name:?} on this machine: run `scripts/services install`"
        );
        Library { name, handle }
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `F` is the type of the function with this name, an `extern "C" fn`.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is `dlopen`'s and never closed.
        let at = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!at.is_null(), "{:?} has no {name:?}", self.name);
        // SAFETY: the caller names the function's type, whose size is that of an address.
        unsafe { std::mem::transmute_copy::<*mut c_void, F>(&at) }
    }
}
