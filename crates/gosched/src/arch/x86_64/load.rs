//! A load that survives a bad address: the handler of the fault continues it behind the load.
//!
//! A futex's word belongs to the program, which may pass any address. The kernel answers EFAULT for
//! a bad one, and so must code that stands in for the kernel.

use core::arch::naked_asm;

/// What [`load`] returns for a bad address: no word of 32 bits.
const FAULTED: u64 = u64::MAX;

/// The bytes from the beginning of `load` to its end, padded.
const LOAD_BYTES: usize = 16;

/// Loads the word at an address that may be bad. None: it has no memory, or may not be read.
///
/// The handler of SIGSEGV and SIGBUS must call [`after_faulted_load`].
#[inline]
pub(crate) fn load_or_fault(address: usize) -> Option<u32> {
    // SAFETY: the load is done by the CPU alone, on any address. It orders as every load of this
    // architecture does, and the compiler cannot see through the call.
    let word = unsafe { load(address) };
    u32::try_from(word).ok()
}

/// # Safety
/// None is needed where the handler of faults calls [`after_faulted_load`].
#[unsafe(naked)]
unsafe extern "C" fn load(address: usize) -> u64 {
    naked_asm!(".balign 16", "mov eax, [rdi]", "ret", ".balign 16")
}

/// What [`load`] does instead after a fault; its return address is on the stack in both.
///
/// # Safety
/// Nothing is asked for.
#[unsafe(naked)]
unsafe extern "C" fn faulted() -> u64 {
    naked_asm!("mov rax, {faulted}", "ret", faulted = const FAULTED as i64)
}

/// Where interrupted code continues that has faulted at `pc`; None: it was not [`load_or_fault`].
/// CONTEXT: signal.
pub(crate) fn after_faulted_load(pc: usize) -> Option<usize> {
    let begin = load as *const () as usize;
    (begin..begin + LOAD_BYTES)
        .contains(&pc)
        .then_some(faulted as *const () as usize)
}
