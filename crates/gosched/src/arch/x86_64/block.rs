//! Where glibc's x86-64 ABI has the fixed words of a thread block, from the thread pointer.
//! Thread-locals lie below the thread pointer (variant II of the ELF specification).

/// The block's own address, twice.
pub(crate) const SELF: usize = 0;
pub(crate) const SELF_TOO: usize = 16;
/// The table of thread-locals of each loaded object.
pub(crate) const DTV: usize = 8;
/// 32 bits: not 0 once the process has more than one thread.
pub(crate) const MULTIPLE_THREADS: usize = 0x18;
/// 32 bits: the thread reads the loader's lists of objects.
pub(crate) const LOOKS_UP: usize = 0x1c;
pub(crate) const STACK_GUARD: usize = 0x28;
pub(crate) const POINTER_GUARD: usize = 0x30;
/// 32 bits: features of the CPU that the thread uses.
pub(crate) const FEATURES: usize = 0x48;

/// The number of this architecture in ELF files.
pub(crate) const ELF_MACHINE: u16 = libc::EM_X86_64;
/// The relocation that writes a thread-local's distance from the thread pointer
/// (`R_X86_64_TPOFF64`, with symbol 0).
pub(crate) const ELF_THREAD_OFFSET: u64 = 18;
