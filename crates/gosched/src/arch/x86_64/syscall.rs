//! The bare system call.

use core::arch::asm;

/// Defines one entry per argument count: the kernel takes the number in `rax`,
/// arguments in `rdi rsi rdx r10 r8 r9`, and overwrites `rcx` and `r11`.
macro_rules! entry {
    ($(#[$doc:meta])* $name:ident $($arg:ident in $reg:tt),*) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The call must be one that keeps Rust's memory rules: pointers among the
        /// arguments are valid for what the kernel does with them.
        #[inline]
        pub(crate) unsafe fn $name(nr: i64 $(, $arg: usize)*) -> isize {
            let answer: isize;
            // SAFETY: D9, the caller has checked the call itself. The registers that
            // the instruction overwrites are declared, and `sysret`
            // restores the flags and leaves the user stack alone.
            unsafe {
                asm!(
                    "syscall",
                    inlateout("rax") nr as isize => answer,
                    $(in($reg) $arg,)*
                    lateout("rcx") _,
                    lateout("r11") _,
                    options(nostack, preserves_flags),
                );
            }
            answer
        }
    };
}

entry!(
    /// Makes a system call without arguments; CONTEXT: any.
    syscall0
);
entry!(
    /// Makes a system call with one argument; CONTEXT: any.
    syscall1 a in "rdi"
);
entry!(
    /// Makes a system call with two arguments; CONTEXT: any.
    syscall2 a in "rdi", b in "rsi"
);
entry!(
    /// Makes a system call with three arguments; CONTEXT: any.
    syscall3 a in "rdi", b in "rsi", c in "rdx"
);
entry!(
    /// Makes a system call with four arguments; CONTEXT: any.
    syscall4 a in "rdi", b in "rsi", c in "rdx", d in "r10"
);
entry!(
    /// Makes a system call with five arguments; CONTEXT: any.
    syscall5 a in "rdi", b in "rsi", c in "rdx", d in "r10", e in "r8"
);
entry!(
    /// Makes a system call with six arguments; CONTEXT: any.
    syscall6 a in "rdi", b in "rsi", c in "rdx", d in "r10", e in "r8", f in "r9"
);
