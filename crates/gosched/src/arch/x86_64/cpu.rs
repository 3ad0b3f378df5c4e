//! Hints, barriers and wide comparisons.

use std::arch::is_x86_feature_detected;

/// Bytes that the ABI lets code use below its stack pointer.
pub(crate) const RED_ZONE: usize = 128;

/// Whether every atomic read-modify-write is a full barrier: each locked instruction is.
pub(crate) const RMW_IS_FULL_BARRIER: bool = true;

/// Has the CPU fetch the cache line at `addr`.
#[inline]
pub(crate) fn prefetch(addr: usize) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: D5, a hint: it reads nothing that the program sees, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(addr as *const i8) };
}

/// Whether this CPU compares four words at a time. To be asked once and kept.
pub(crate) fn has_wide_compare() -> bool {
    is_x86_feature_detected!("avx2")
}

/// The bits that count by `mask` and differ between `one` and `other`, over all words.
///
/// # Safety
/// `is_wide` is false, or this CPU [`has_wide_compare`].
#[inline]
pub(crate) unsafe fn compare_masked(
    one: &[u64],
    other: &[u64],
    mask: &[u64],
    is_wide: bool,
) -> u64 {
    if is_wide {
        // SAFETY: the caller has asked the CPU.
        unsafe { compare_avx2(one, other, mask) }
    } else {
        compare(one, other, mask)
    }
}

#[inline(always)]
fn compare(one: &[u64], other: &[u64], mask: &[u64]) -> u64 {
    let pairs = one.iter().zip(other).zip(mask);
    pairs.fold(0, |seen, ((is, was), mask)| seen | (is ^ was) & mask)
}

/// Four words at a time: this comparison is part of every goroutine's end.
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn compare_avx2(one: &[u64], other: &[u64], mask: &[u64]) -> u64 {
    compare(one, other, mask)
}
