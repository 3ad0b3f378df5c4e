//! `pthread_getattr_np`, by which libraries ask for the bounds of their stack.
//!
//! libc's function asks the kernel for the affinity of the thread whose id is in the block. No
//! thread has a goroutine's id, so libc's function fails with ESRCH on a goroutine. The function of
//! that name is therefore ours: it answers for the goroutine that asks about itself
//! (`tls/bounds.rs`), and calls libc's for every thread. It is exported, so that shared libraries
//! find it before libc's.

use std::ffi::c_int;
use std::mem::transmute;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::hook;
use crate::sched::model::current::current_m;
use crate::stack::Stack;
use crate::tls::bounds;

/// Makes the function below part of the program even if nothing here calls it.
pub(super) fn install() {
    std::hint::black_box(libc::pthread_getattr_np as *const ());
}

// In a static program libc's own would clash, and goroutines have no blocks there.
#[cfg(not(any(target_feature = "crt-static", gosched_asan)))]
crate::arch::export_weak!("pthread_getattr_np", ".weak", get);

type Get = unsafe extern "C" fn(libc::pthread_t, *mut libc::pthread_attr_t) -> c_int;

/// # Safety
/// As for `pthread_getattr_np`.
#[cfg_attr(any(target_feature = "crt-static", gosched_asan), allow(dead_code))]
unsafe extern "C" fn get(thread: libc::pthread_t, attributes: *mut libc::pthread_attr_t) -> c_int {
    // SAFETY: `attributes` is the caller's, as `pthread_getattr_np` demands it, in both cases.
    unsafe {
        match stack_of(thread as usize) {
            Some(stack) => bounds::describe(&stack, attributes),
            // The handle of another thread that is a goroutine. libc would read it as an address.
            None if hook::is_handle(thread as usize) => libc::ENOSYS,
            None => match libcs() {
                Some(get) => get(thread, attributes),
                None => libc::ENOSYS,
            },
        }
    }
}

/// The stack of the calling goroutine if its own block is meant, or the handle of a thread that is
/// this goroutine.
fn stack_of(thread: usize) -> Option<Stack> {
    let m = current_m().filter(|m| m.tp.current() != m.tp.own())?;
    let is_own =
        thread == m.tp.current() || hook::is_handle(thread) && thread == hook::own_handle();
    m.curg().filter(|_| is_own)?.stack()
}

/// libc's own function.
fn libcs() -> Option<Get> {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let mut found = FOUND.load(Relaxed);
    if found == 0 {
        // SAFETY: a look-up by name, past the object that this function is part of.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_getattr_np".as_ptr()) } as usize;
        FOUND.store(found, Relaxed);
    }
    // SAFETY: D6, libc's function of that name has this type.
    (found != 0).then(|| unsafe { transmute::<usize, Get>(found) })
}
