//! Where a goroutine's stack begins and ends, for libc and for libraries that ask it.
//!
//! libc keeps the address and the size of a thread's stack in the thread block. It takes at most a
//! quarter of that size by `alloca`, and 64 KiB if the size is 0. So each goroutine's block has the
//! bounds of the goroutine's slot.
//!
//! `pthread_getattr_np` reads the same words. It also asks the kernel for the affinity of the
//! thread whose id is in the block. No thread has a goroutine's id, so libc's function fails with
//! ESRCH on a goroutine. The function of that name is therefore ours: it answers for the goroutine
//! that asks about itself, and calls libc's for every thread. It is exported, so that shared
//! libraries find it before libc's.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use crate::stack::{Arena, Stack};

/// The most that lies between the block of memory libc made for a stack and the part it reports: a
/// guard.
const GUARD_MAX: usize = 16 << 20;

/// The two words of a thread block: where the stack begins, and its size right behind.
pub(super) type Words = [usize; 2];

/// Where a thread block has the words, from FS: a pair that describes the stack of this thread, if
/// there is one such pair. On a thread that libc made.
pub(super) fn find(tp: usize, pthread: usize) -> Option<usize> {
    let (lowest, size) = own_stack()?;
    let end = lowest + size;
    // SAFETY: D6, words of this thread's block.
    let word = |at: usize| unsafe { *((tp + at) as *const usize) };
    let is_it = |at: &usize| {
        let (start, size) = (word(*at), word(at + 8));
        (lowest.saturating_sub(GUARD_MAX)..=lowest).contains(&start)
            && start.wrapping_add(size) == end
    };
    let mut found = (0..pthread - 8).step_by(8).filter(is_it);
    found.next().filter(|_| found.next().is_none())
}

/// The stack of this thread, by libc's own word: its lowest address and its size.
fn own_stack() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::uninit();
    let (mut lowest, mut size) = (ptr::null_mut(), 0);
    // SAFETY: libc fills the attributes in, which are this frame's, and they are destroyed after
    // use.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let got = libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (got == 0).then_some((lowest.addr(), size))
    }
}

/// What the block at `tp` says.
///
/// # Safety
/// `at` is where this libc's blocks have the words, and the block is the caller's.
pub(super) unsafe fn read(at: usize, tp: usize) -> Words {
    // SAFETY: D6, by the caller's promise.
    unsafe { *((tp + at) as *const Words) }
}

/// Has the block at `tp` say so.
///
/// # Safety
/// As for [`read`].
pub(super) unsafe fn write(at: usize, tp: usize, words: Words) {
    // SAFETY: D6, by the caller's promise.
    unsafe { *((tp + at) as *mut Words) = words };
}

/// Writes the attributes of a thread on this stack, as far as they concern the stack.
///
/// # Safety
/// `attributes` is memory for them, which the caller destroys.
pub(crate) unsafe fn describe(stack: &Stack, attributes: *mut libc::pthread_attr_t) -> c_int {
    let (from, to) = Arena::guard_range(stack);
    let lowest = ptr::without_provenance_mut::<c_void>(stack.lo);
    // SAFETY: by the caller's promise; the first call makes them.
    unsafe {
        match libc::pthread_attr_init(attributes) {
            0 => {}
            error => return error,
        }
        libc::pthread_attr_setguardsize(attributes, to - from);
        libc::pthread_attr_setstack(attributes, lowest, stack.hi - stack.lo)
    }
}
