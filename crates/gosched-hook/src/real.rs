//! libc's own functions, behind the hooks.
//!
//! A hook has the name of the function that it replaces. So libc's own is found by a search that
//! begins behind the program: `dlsym(RTLD_NEXT, …)`.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

/// libc's function of one name, looked up once.
pub(crate) struct Real {
    name: &'static str,
    at: AtomicPtr<c_void>,
}

impl Real {
    /// For a name that ends with a zero byte.
    pub(crate) const fn new(name: &'static str) -> Real {
        Real {
            name,
            at: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The address of libc's function.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        // ORDER: Relaxed; the address is that of code, which is complete from the start.
        let at = self.at.load(Relaxed);
        if at.is_null() { self.look_up() } else { at }
    }

    /// libc's function.
    ///
    /// # Safety
    /// `F` is the function's type, an `extern "C" fn`.
    #[inline]
    pub(crate) unsafe fn get<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let at = self.address();
        // SAFETY: the caller names the function's type, whose size is that of an address. `look_up`
        // does not return null.
        unsafe { std::mem::transmute_copy::<*mut c_void, F>(&at) }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let Ok(name) = CStr::from_bytes_with_nul(self.name.as_bytes()) else {
            missing(self.name)
        };
        // SAFETY: a look-up by name.
        let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if at.is_null() {
            missing(self.name);
        }
        self.at.store(at, Relaxed);
        at
    }
}

/// The C library has no such function. The program has called it, so it cannot continue.
#[cold]
fn missing(name: &str) -> ! {
    let name = name.trim_end_matches('\0');
    for text in ["gosched-hook: the C library has no function ", name, "\n"] {
        // SAFETY: the kernel reads the text, which lives as long as the call.
        unsafe { libc::syscall(libc::SYS_write, 2, text.as_ptr(), text.len()) };
    }
    std::process::abort()
}
