//! Where a goroutine's stack begins and ends, as libc keeps it in a thread block.
//!
//! libc takes at most a quarter of a thread's stack size by `alloca`, and 64 KiB if the size is 0.
//! So each goroutine's block has the bounds of the goroutine's slot. `interpose/getattr.rs` answers
//! with them too.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use crate::stack::{Arena, Stack};

/// The most that lies between the block of memory libc made for a stack and the part it reports: a
/// guard.
const GUARD_MAX: usize = 16 << 20;

/// The two words of a thread block: where the stack begins, and right behind it its size.
pub(super) type Words = [usize; 2];

/// Where a thread block has the words, from the thread pointer: a pair that describes the stack of
/// this thread, if there is exactly one. On a thread that libc made.
pub(super) fn find(tp: usize, pthread: usize) -> Option<usize> {
    let (lowest, size) = own_stack()?;
    let end = lowest + size;
    // SAFETY: D6, words of this thread's block, which has `pthread` bytes.
    let word = |at: usize| unsafe { *((tp + at) as *const usize) };
    let is_it = |at: &usize| {
        let (start, size) = (word(*at), word(at + 8));
        (lowest.saturating_sub(GUARD_MAX)..=lowest).contains(&start)
            && start.wrapping_add(size) == end
    };
    let mut found = (0..pthread - 8).step_by(8).filter(is_it);
    found.next().filter(|_| found.next().is_none())
}

/// The stack of this thread, as libc reports it: its lowest address and its size.
fn own_stack() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::uninit();
    let (mut lowest, mut size) = (ptr::null_mut(), 0);
    // SAFETY: libc fills in the attributes, which are this frame's, and they are destroyed after
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

/// The words of the block at `tp`.
///
/// # Safety
/// `at` is where this libc's blocks have the words, and the block is the caller's.
pub(super) unsafe fn read(at: usize, tp: usize) -> Words {
    // SAFETY: D6, two words of a block that is the caller's.
    unsafe { *((tp + at) as *const Words) }
}

/// Writes the words of the block at `tp`.
///
/// # Safety
/// As for [`read`].
pub(super) unsafe fn write(at: usize, tp: usize, words: Words) {
    // SAFETY: D6, two words of a block that is the caller's.
    unsafe { *((tp + at) as *mut Words) = words };
}

/// Writes the attributes of a thread on this stack, as far as they concern the stack.
///
/// # Safety
/// `attributes` is memory for them, which the caller destroys.
pub(crate) unsafe fn describe(stack: &Stack, attributes: *mut libc::pthread_attr_t) -> c_int {
    let (from, to) = Arena::guard_range(stack);
    let lowest = ptr::without_provenance_mut::<c_void>(stack.lo);
    // SAFETY: the attributes are the caller's memory; the first call initialises them.
    unsafe {
        match libc::pthread_attr_init(attributes) {
            0 => {}
            error => return error,
        }
        libc::pthread_attr_setguardsize(attributes, to - from);
        libc::pthread_attr_setstack(attributes, lowest, stack.hi - stack.lo)
    }
}
