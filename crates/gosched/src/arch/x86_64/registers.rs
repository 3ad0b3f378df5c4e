//! The stack pointer, the thread register and the runtime's register, as the running code sees
//! them. Writes of the thread register are in the parent module.

use std::arch::asm;

/// HWCAP2 bit by which the kernel allows programs the FSGSBASE instructions.
const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// The stack pointer.
#[inline]
pub(crate) fn stack_pointer() -> usize {
    let sp: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// The thread pointer. The first word of a thread block is the block's own address; that word is a
/// nanosecond cheaper to read than the FS base itself. g0 may be on a block that its next goroutine
/// is making new on another thread; this word of a block never changes (D6).
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: the System V ABI has this word on every thread. Not `pure`: the answer changes with
    // every switch.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) tp, options(readonly, nostack, preserves_flags));
    }
    tp
}

/// Whether the kernel and the CPU let programs change the thread pointer.
pub(crate) fn can_set_thread_pointer() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // CPUID leaf 7, EBX bit 0: FSGSBASE.
    has_runtime_register() && __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & 1 != 0
}

/// Whether the kernel lets programs read and write the runtime's register.
pub(crate) fn has_runtime_register() -> bool {
    // SAFETY: reads the auxiliary vector of the process.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}

/// A byte of the present thread block, at `offset` from the thread pointer.
///
/// # Safety
/// Every thread block that this thread can be on has memory at the offset.
#[inline(always)]
pub(crate) unsafe fn load_byte_at(offset: isize) -> u32 {
    let value: u32;
    // SAFETY: D6, the caller names a place that every block has. Not `pure`: the answer changes
    // with every switch.
    unsafe {
        asm!("movzx {:e}, byte ptr fs:[{}]", out(reg) value, in(reg) offset,
            options(readonly, nostack, preserves_flags));
    }
    value
}

/// A 32-bit word of the present thread block, at `offset` from the thread pointer.
///
/// # Safety
/// As for [`load_byte_at`].
#[inline(always)]
pub(crate) unsafe fn load_word_at(offset: usize) -> u32 {
    let value: u32;
    // SAFETY: D6, the caller names a place that every block has.
    unsafe {
        asm!("mov {:e}, fs:[{}]", out(reg) value, in(reg) offset, options(nostack, readonly))
    };
    value
}

/// Writes a 32-bit word of the present thread block, at `offset` from the thread pointer.
///
/// # Safety
/// As for [`load_byte_at`], and no other code relies on the word's old value.
#[inline(always)]
pub(crate) unsafe fn store_word_at(offset: usize, value: u32) {
    // SAFETY: D6, the caller names a place that every block has and may write it.
    unsafe { asm!("mov fs:[{}], {:e}", in(reg) offset, in(reg) value, options(nostack)) };
}

/// Swaps a 32-bit word of the present thread block, at `offset` from the thread pointer, in one
/// step; returns the old value.
///
/// # Safety
/// As for [`store_word_at`].
#[inline(always)]
pub(crate) unsafe fn swap_word_at(offset: usize, value: u32) -> u32 {
    let mut was = value;
    // SAFETY: D6, the caller names a place that every block has and may write it.
    unsafe { asm!("xchg fs:[{}], {:e}", in(reg) offset, inout(reg) was, options(nostack)) };
    was
}

/// The runtime's register; 0 on a thread that never set it and inherited none.
///
/// # Safety
/// [`has_runtime_register`].
#[inline(always)]
pub(crate) unsafe fn runtime_register() -> usize {
    let base: usize;
    // SAFETY: D5, the caller has checked for FSGSBASE. Not `pure`: the answer changes with every
    // switch.
    unsafe { asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base
}

/// Sets the runtime's register of this thread.
///
/// # Safety
/// [`has_runtime_register`]; no other code on this thread uses the register.
#[inline(always)]
pub(crate) unsafe fn set_runtime_register(value: usize) {
    // SAFETY: D5, the caller has checked for FSGSBASE; programs do not use GS.
    unsafe { asm!("wrgsbase {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// The word that lies `OFFSET` bytes above the address in the runtime's register: far cheaper than
/// to read the register itself.
///
/// # Safety
/// The register holds the address of a live object with such a word.
#[inline(always)]
pub(crate) unsafe fn load_by_runtime_register<const OFFSET: usize>() -> usize {
    let word: usize;
    // SAFETY: D5, the caller knows what the register points to. Not `pure`: the answer changes with
    // every switch.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) word, const OFFSET,
            options(readonly, nostack, preserves_flags));
    }
    word
}
