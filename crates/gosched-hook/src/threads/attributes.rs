//! What a caller of `pthread_create` asks for, and whether a goroutine can give it.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

/// The largest guard that every goroutine's stack has.
const GUARD: usize = 16 << 10;
/// The largest stack of a goroutine.
const STACK_MAX: usize = 1 << 30;
/// The words of a set of CPUs as large as the kernel's largest.
const CPU_WORDS: usize = 128;

/// What a goroutine is started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) stack: usize,
    pub(crate) is_detached: bool,
}

// glibc has all of them from 2.32 on. Goroutines with their own thread-locals need 2.34.
unsafe extern "C" {
    fn pthread_attr_getdetachstate(
        attributes: *const libc::pthread_attr_t,
        state: *mut c_int,
    ) -> c_int;
    fn pthread_attr_getsigmask_np(
        attributes: *const libc::pthread_attr_t,
        mask: *mut libc::sigset_t,
    ) -> c_int;
    fn pthread_attr_getaffinity_np(
        attributes: *const libc::pthread_attr_t,
        size: usize,
        set: *mut u64,
    ) -> c_int;
    fn pthread_getattr_default_np(attributes: *mut libc::pthread_attr_t) -> c_int;
}

/// What `pthread_attr_getsigmask_np` answers if the attributes have no mask.
const NO_MASK: c_int = -1;

/// What these attributes ask for. None: only a thread of the system can be that, with a stack at a
/// given address, a policy of its own, a CPU set, a signal mask, or sizes that goroutines do not
/// have.
///
/// # Safety
/// The pointer is null or to initialised attributes.
pub(crate) unsafe fn wanted(attributes: *const libc::pthread_attr_t) -> Option<Wanted> {
    if attributes.is_null() {
        return wanted_by_default();
    }
    // SAFETY: the attributes are initialised, as the caller promises. The libc functions write
    // values of this frame.
    unsafe {
        let (mut address, mut stack) = (ptr::null_mut(), 0);
        ok(libc::pthread_attr_getstack(
            attributes,
            &mut address,
            &mut stack,
        ))?;
        // libc keeps the end of the stack, which is null if none is given.
        if address.addr().wrapping_add(stack) != 0 {
            return None;
        }
        ok(libc::pthread_attr_getstacksize(attributes, &mut stack))?;
        let (mut guard, mut detach, mut inherits) = (0, 0, 0);
        ok(libc::pthread_attr_getguardsize(attributes, &mut guard))?;
        ok(pthread_attr_getdetachstate(attributes, &mut detach))?;
        ok(libc::pthread_attr_getinheritsched(
            attributes,
            &mut inherits,
        ))?;
        let mut mask = MaybeUninit::uninit();
        let has_mask = pthread_attr_getsigmask_np(attributes, mask.as_mut_ptr()) != NO_MASK;
        // libc fills the set with ones if the attributes have none.
        let mut cpus = [0_u64; CPU_WORDS];
        ok(pthread_attr_getaffinity_np(
            attributes,
            size_of_val(&cpus),
            cpus.as_mut_ptr(),
        ))?;
        let is_possible = stack <= STACK_MAX
            && guard <= GUARD
            && inherits == libc::PTHREAD_INHERIT_SCHED
            && !has_mask
            && cpus.iter().all(|word| *word == u64::MAX);
        is_possible.then_some(Wanted {
            stack,
            is_detached: detach == libc::PTHREAD_CREATE_DETACHED,
        })
    }
}

/// What libc gives a thread without attributes.
fn wanted_by_default() -> Option<Wanted> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut stack = 0;
    // SAFETY: libc initialises the attributes of this frame before they are read, and they are
    // destroyed after use.
    unsafe {
        ok(pthread_getattr_default_np(attributes.as_mut_ptr()))?;
        libc::pthread_attr_getstacksize(attributes.as_ptr(), &mut stack);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    (stack <= STACK_MAX).then_some(Wanted {
        stack,
        is_detached: false,
    })
}

fn ok(answer: c_int) -> Option<()> {
    (answer == 0).then_some(())
}
