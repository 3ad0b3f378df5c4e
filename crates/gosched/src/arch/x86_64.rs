//! The switch itself, x86-64 System V.
//!
//! ```text
//!  suspended              running                fresh
//!  ┌───────────────┐      ┌───────────────┐      ┌───────────────┐ hi (16-aligned)
//!  │ caller        │      │ frames        │      │ trampoline    │ ◄─ sp = hi − 8
//!  │ rbp           │      │  ...          │      └───────────────┘
//!  │ rbx           │      │               │ ◄─ rsp
//!  │ resume label  │ ◄─ sp└───────────────┘
//!  └───────────────┘
//! ```
//!
//! The compiler saves what it keeps in registers around the asm block (they are declared clobbered),
//! except rbx and rbp, which it will not give up: those are pushed. The resume address is jumped to, not
//! returned to: a `ret` would miss the return predictor every time. x87 and MXCSR control words are not
//! switched; like a function call, a switch expects them unchanged.
//!
//! **FS changes here and nowhere else** (D6). Whoever [`enter`]s a goroutine brings its FS along; the goroutine's side
//! of the switch, in [`leave`] or the trampoline, goes over to it if it is another one than the thread is on. So for the code
//! around `leave` FS is the same before and after, whatever the compiler keeps of it. [`set_fs`] and [`call_with_fs`] are
//! naked and used by functions that touch no thread-local. Each one also writes the M's record of the FS it runs on,
//! after FS itself: once the record shows another FS, this thread has left the old one for good.
//!
//! The change waits for everything before it and holds up everything after it (13 ns). After the jump it costs 3 ns less than
//! before.

mod cpu;
mod export;
mod interrupted;
mod syscall;

use std::arch::{asm, naked_asm};
use std::sync::atomic::AtomicUsize;

pub(crate) use cpu::*;
pub(crate) use export::*;
pub(crate) use interrupted::*;
pub(crate) use syscall::*;

/// Goes from g0, or from whoever probes, to a goroutine: saves the current context below `*save` and continues the one saved
/// at `to`, which sees `arg` as the result of its own [`leave`], on the FS `fs`; `record` says so. Returns when it leaves.
///
/// # Safety
/// `to` was saved by [`leave`] or made by [`prepare`], is continued once, and its stack is alive. `record` shows the FS this
/// thread is on. `fs` is that one, or a complete thread block that nobody else runs on (D6).
#[inline(always)]
pub(crate) unsafe fn enter(
    save: *mut usize,
    to: usize,
    arg: usize,
    fs: usize,
    record: *const AtomicUsize,
) {
    // SAFETY: D5, by the caller's promise. No `nostack`: the block pushes, so the red zone is not in use.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "lea rcx, [rip + 2f]",
            "push rcx",
            "mov [rdi], rsp",
            "mov rsp, rsi",
            "pop rcx",
            "jmp rcx",
            "2:",
            "pop rbx",
            "pop rbp",
            inout("rdi") save => _,
            inout("rsi") to => _,
            inout("rdx") arg => _,
            inout("r8") fs => _,
            inout("r9") record => _,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
            clobber_abi("sysv64"),
        );
    }
}

/// Goes from a goroutine back to whoever entered it: saves the current context below `*save` and continues the one saved at
/// `to`. Returns the argument of whoever enters next, on the goroutine's FS again.
///
/// # Safety
/// `to` was saved by [`enter`] on this thread, and is continued once. The caller's frames must tolerate being continued on
/// another thread (D5).
#[inline(always)]
pub(crate) unsafe fn leave(save: *mut usize, to: usize) -> usize {
    let result: usize;
    // SAFETY: D5/D6, by the caller's promise. FS changes on this side of the jump, which the CPU has then behind it.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "lea rcx, [rip + 2f]",
            "push rcx",
            "mov [rdi], rsp",
            "mov rsp, rsi",
            "pop rcx",
            "jmp rcx",
            "2:",
            "cmp r8, [r9]",
            "je 3f",
            "wrfsbase r8",
            "mov [r9], r8",
            "3:",
            "pop rbx",
            "pop rbp",
            inout("rdi") save => _,
            inout("rsi") to => _,
            out("rdx") result,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
            clobber_abi("sysv64"),
        );
    }
    result
}

/// Goes on with another FS.
///
/// # Safety
/// `fs` is a complete thread block that nobody else runs on, the CPU has FSGSBASE, and no thread-local of the old FS is in use.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn set_fs(fs: usize, record: *const AtomicUsize) {
    naked_asm!(
        ".cfi_startproc",
        "wrfsbase rdi",
        "mov [rsi], rdi",
        "ret",
        ".cfi_endproc",
    )
}

/// Calls `f(data)` with another FS and comes back to the present one.
///
/// # Safety
/// As for [`set_fs`]; `f` does not unwind and does not switch.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_with_fs(
    fs: usize,
    record: *const AtomicUsize,
    f: unsafe extern "C" fn(*mut u8),
    data: *mut u8,
) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rbx",
        ".cfi_offset rbx, -24",
        "push r12",
        ".cfi_offset r12, -32",
        "mov rbx, rsi",
        "rdfsbase r12",
        "wrfsbase rdi",
        "mov [rbx], rdi",
        "mov rdi, rcx",
        "call rdx",
        "wrfsbase r12",
        "mov [rbx], r12",
        "pop r12",
        "pop rbx",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbx",
        ".cfi_restore r12",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
    )
}

/// Writes the first frame of a goroutine whose stack ends at `hi`; returns its stack pointer.
///
/// # Safety
/// `hi` is the 16-aligned end of a writable stack in nobody's use.
#[inline]
pub(crate) unsafe fn prepare(hi: usize) -> usize {
    debug_assert_eq!(hi % 16, 0);
    let sp = hi - 8;
    // SAFETY: D4, inside the top page of the stack.
    unsafe { (sp as *mut usize).write(trampoline as *const () as usize) };
    sp
}

/// Where a goroutine begins and where every unwinder ends: the return address is declared undefined,
/// and rbp is zero for those who walk frame pointers.
#[unsafe(naked)]
unsafe extern "C" fn trampoline() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined rip",
        "cmp r8, [r9]",
        "je 2f",
        "wrfsbase r8",
        "mov [r9], r8",
        "2:",
        "xor ebp, ebp",
        "call {entry}",
        "ud2",
        ".cfi_endproc",
        entry = sym crate::sched::exit::goroutine_entry,
    )
}

/// Calls `f(data)` on the stack that ends at `sp` and returns.
///
/// # Safety
/// The memory below `sp` is free to use and large enough; `f` does not unwind and does not switch.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_on(
    sp: usize,
    f: unsafe extern "C" fn(*mut u8),
    data: *mut u8,
) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "and rsp, -16",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
    )
}
