//! x86-64 System V on Linux: the switch, and all writes of the thread register.
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
//! The compiler saves what it keeps in registers around the asm block, for they are declared
//! clobbered. It does not give up rbx and rbp: the block pushes these two. The switch jumps to the
//! resume address and does not return to it: a `ret` would miss the return predictor every time.
//! x87 and MXCSR control words are not switched; like a function call, a switch expects them
//! unchanged.
//!
//! **The thread register, FS, is written in this file and nowhere else** (D6). The caller of
//! [`enter`] passes the goroutine's thread pointer. The goroutine's side of the switch, in
//! [`leave`] or the trampoline, writes FS if the thread is on another one. So the code around
//! `leave` is on the same FS before and after, whatever the compiler keeps of it.
//! [`set_thread_pointer`] and [`call_with_thread_pointer`] are naked; their callers touch no
//! thread-local. Each write of FS is followed by a write of the M's record of the thread pointer.
//! Once the record shows another value, the thread has left the old block for good.
//!
//! The write waits for every instruction before it and holds up every one after it (13 ns). Behind
//! the jump it costs 3 ns less than before it.

mod cpu;
mod export;
mod interrupted;
mod load;
mod registers;
mod syscall;

pub(crate) mod block;

use std::arch::{asm, naked_asm};
use std::sync::atomic::AtomicUsize;

pub(crate) use cpu::*;
pub(crate) use export::*;
pub(crate) use interrupted::*;
pub(crate) use load::*;
pub(crate) use registers::*;
pub(crate) use syscall::*;

/// Switches from g0, or from the thread that probes, to a goroutine. Saves the current context
/// below `*save` and continues the one saved at `to`, which sees `arg` as the result of its own
/// [`leave`], on the thread pointer `tp`. `record` is updated to `tp`. Returns when the goroutine
/// leaves.
///
/// # Safety
/// `to` was saved by [`leave`] or made by [`prepare`], is continued once, and its stack is alive.
/// `record` shows the thread pointer of this thread. `tp` is that one, or a complete thread block
/// that no other thread runs on (D6).
#[inline(always)]
pub(crate) unsafe fn enter(
    save: *mut usize,
    to: usize,
    arg: usize,
    tp: usize,
    record: *const AtomicUsize,
) {
    // SAFETY: D5, `to` is a suspended context on a live stack. No `nostack`: the block pushes, so
    // the red zone is not in use.
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
            inout("r8") tp => _,
            inout("r9") record => _,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
            clobber_abi("sysv64"),
        );
    }
}

/// Switches from a goroutine back to the caller of [`enter`]: saves the current context below
/// `*save` and continues the one saved at `to`. Returns the argument of the next `enter`, on the
/// goroutine's thread pointer again.
///
/// # Safety
/// `to` was saved by [`enter`] on this thread, and is continued once. The caller's frames must
/// tolerate being continued on another thread (D5).
#[inline(always)]
pub(crate) unsafe fn leave(save: *mut usize, to: usize) -> usize {
    let result: usize;
    // SAFETY: D5/D6, `to` is suspended in `enter` on this thread, and the next `enter` brings a
    // complete block. FS is written on this side of the jump, which the CPU has then behind it.
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

/// Changes the thread pointer of this thread.
///
/// # Safety
/// `tp` is a complete thread block that no other thread runs on, [`can_set_thread_pointer`], and no
/// thread-local of the old block is in use.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn set_thread_pointer(tp: usize, record: *const AtomicUsize) {
    naked_asm!(
        ".cfi_startproc",
        "wrfsbase rdi",
        "mov [rsi], rdi",
        "ret",
        ".cfi_endproc",
    )
}

/// Calls `f(data)` on another thread pointer and returns to the present one.
///
/// # Safety
/// As for [`set_thread_pointer`]; `f` does not unwind and does not switch.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_with_thread_pointer(
    tp: usize,
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

/// Names the first function on a goroutine's stack. A type, so that the trampoline calls the
/// function directly.
pub(crate) trait Entry {
    /// Never returns.
    extern "C" fn goroutine_entry();
}

/// Writes the first frame of a goroutine whose stack ends at `hi` and that begins in `E`; returns
/// its stack pointer.
///
/// # Safety
/// `hi` is the 16-aligned end of a writable stack that no other code uses.
#[inline]
pub(crate) unsafe fn prepare<E: Entry>(hi: usize) -> usize {
    debug_assert_eq!(hi % 16, 0);
    let sp = hi - FIRST_FRAME;
    // SAFETY: D4, inside the top page of the stack.
    unsafe { (sp as *mut usize).write(trampoline::<E> as *const () as usize) };
    sp
}

/// Bytes of the frame that [`prepare`] writes.
const FIRST_FRAME: usize = 8;

/// Whether `sp` is what [`prepare`] returned for the stack that ends at `hi`.
#[cfg(gosched_asan)]
#[inline]
pub(crate) fn is_first_frame(sp: usize, hi: usize) -> bool {
    sp == hi - FIRST_FRAME
}

/// Where a goroutine begins and where every unwinder ends: the return address is declared
/// undefined, and rbp is zero for unwinders that follow frame pointers.
#[unsafe(naked)]
unsafe extern "C" fn trampoline<E: Entry>() {
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
        entry = sym E::goroutine_entry,
    )
}

/// Puts a frame before the first one at `sp`: it confirms the switch to AddressSanitizer and goes
/// on to the first. Returns the new stack pointer.
///
/// # Safety
/// `sp` was returned by [`prepare`], and the goroutine has not run.
#[cfg(gosched_asan)]
pub(crate) unsafe fn prepend_arrival(sp: usize) -> usize {
    let sp = sp - 8;
    // SAFETY: D4, one word further down a stack that no code runs on yet.
    unsafe { (sp as *mut usize).write(first_arrival as *const () as usize) };
    sp
}

#[cfg(gosched_asan)]
unsafe extern "C" {
    fn __sanitizer_finish_switch_fiber(
        save: *mut std::ffi::c_void,
        old_bottom: *mut *const std::ffi::c_void,
        old_size: *mut usize,
    );
}

/// Keeps what `enter` has passed in registers, and continues at the address on top of the stack.
#[cfg(gosched_asan)]
#[unsafe(naked)]
unsafe extern "C" fn first_arrival() {
    naked_asm!(
        "push rdx",
        "push r8",
        "push r9",
        "xor edi, edi",
        "xor esi, esi",
        "xor edx, edx",
        "call {finish}",
        "pop r9",
        "pop r8",
        "pop rdx",
        "ret",
        finish = sym __sanitizer_finish_switch_fiber,
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
