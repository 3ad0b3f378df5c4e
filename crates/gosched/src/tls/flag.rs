//! The flag that marks Ms and their goroutines. In all other threads it is clear.
//!
//! It is a thread-local word: libc starts every thread with 0 in it; the thread-locals of each M
//! and the block of each goroutine have 1. The door (`sched/model/current.rs`) reads it first: a
//! thread that a goroutine started inherits its M's register, but not the flag.
//!
//! The word is read at a fixed distance from the thread pointer. The distance is known once two
//! threads agree on it and it lies in every block.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::AtomicIsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::arch;
use crate::tls::image;

thread_local! {
    /// 1: this is an M's thread. A whole word, so that no other thread-local shares it.
    static IS_M: Cell<u64> = const { Cell::new(0) };
}

/// Where [`IS_M`] is, from the thread pointer. Until that is known, and where there is no such
/// place, a byte that is 0 on every thread: the highest of the address at the thread pointer.
static IS_M_AT: AtomicIsize = AtomicIsize::new(NOWHERE);
const NOWHERE: isize = 7;
/// Where it is on the thread that asked first.
static FIRST_AT: AtomicIsize = AtomicIsize::new(NOWHERE);

/// Whether the flag of the present block is up, on whichever block the thread is; false also while
/// the flag has no known place.
#[inline(always)]
pub(crate) fn is_up() -> bool {
    // SAFETY: D6, a place in every thread's block, or the highest byte of the block's own address.
    unsafe { arch::load_byte_at(IS_M_AT.load(Relaxed)) != 0 }
}

/// Whether the flag has a known place.
pub(super) fn is_in_use() -> bool {
    IS_M_AT.load(Relaxed) != NOWHERE
}

/// Writes the flag of the block at `tp`.
///
/// # Safety
/// `tp` is a whole block, and the flag has a place in blocks. No thread is on it, or only this one.
pub(super) unsafe fn write(tp: usize, value: u64) {
    // SAFETY: D6, the caller names a block that it alone uses.
    unsafe { (tp.wrapping_add_signed(offset()) as *mut u64).write(value) };
}

/// Where this thread has its flag, from its thread pointer. On the thread's own block.
#[inline(never)]
pub(super) fn offset() -> isize {
    IS_M.with(|flag| {
        ptr::from_ref(flag)
            .addr()
            .wrapping_sub(arch::thread_pointer()) as isize
    })
}

/// Notes where this thread has its flag, for others to compare with.
pub(crate) fn note_first_place() {
    FIRST_AT.store(offset(), Relaxed);
}

/// This thread is an M's from now on. Its runtime's register is set.
pub(crate) fn raise() {
    IS_M.set(1);
    let at = offset();
    if at == FIRST_AT.load(Relaxed) && is_in_blocks(at) {
        let known = IS_M_AT.swap(at, Relaxed);
        assert!(
            known == NOWHERE || known == at,
            "a fixed thread-local has two places"
        );
    }
}

/// This thread is no M any more. It is on its own block.
pub(crate) fn lower() {
    IS_M.set(0);
}

/// Whether a flag at `at` is in every goroutine's block; true where no goroutine has a block.
fn is_in_blocks(at: isize) -> bool {
    let image = image::current();
    // SAFETY: D6, images are never freed.
    at < 0 && at % 8 == 0 && (image.is_null() || unsafe { &*image }.has_place(at))
}
