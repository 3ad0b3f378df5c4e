//! The registers of interrupted code, and the number of a system call that a signal cut short.
//!
//! When the handler runs, the registers of the cut call are still there, but for its number: the
//! kernel has overwritten that with the result. To put the call back, the number must be found.
//! Three ways of loading it leave the number where it can be read:
//!
//! ```text
//!  mov eax, number; syscall       in the code: glibc before 2.41, inline assembly
//!  mov rax, [rsp + n]; syscall    on the stack: glibc from 2.41 on, where cancellation is off or
//!                                 there is one thread
//!  mov rax, rsi; …; syscall       in a function to which glibc from 2.41 on passes the number of a
//!                                 cancellable call in rsi; its caller has loaded the number from
//!                                 the stack, where it still is
//! ```
//!
//! The last is recognised by its whole code, which is the same in every such glibc: it is written
//! in assembly, and the handler of cancellation knows its beginning and end. Anywhere else
//! (`libc::syscall`) the number is not found.

use core::ffi::c_void;

use crate::sys::page_size;

/// `syscall`, and `mov eax, imm32` before it.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const MOV_EAX: u8 = 0xb8;
const MOV_BYTES: usize = 5;

/// `mov rax, [rsp + disp8]` and `mov rsi, [rsp + disp8]`, but for the last byte.
const MOV_RAX_STACK: [u8; 4] = [0x48, 0x8b, 0x44, 0x24];
const MOV_RSI_STACK: [u8; 4] = [0x48, 0x8b, 0x74, 0x24];

/// The code of glibc from its check for a cancellation to the system call.
const CANCELLABLE: [u8; 35] = [
    0x49, 0x89, 0xfb, // mov r11, rdi
    0x48, 0x89, 0xf0, // mov rax, rsi
    0x48, 0x89, 0xd7, // mov rdi, rdx
    0x48, 0x89, 0xce, // mov rsi, rcx
    0x4c, 0x89, 0xc2, // mov rdx, r8
    0x4d, 0x89, 0xca, // mov r10, r9
    0x4c, 0x8b, 0x44, 0x24, 0x08, // mov r8, [rsp + 8]
    0x4c, 0x8b, 0x4c, 0x24, 0x10, // mov r9, [rsp + 16]
    0x4c, 0x89, 0x5c, 0x24, 0x08, // mov [rsp + 8], r11
    0x0f, 0x05, // syscall
];

/// `call rel32`.
const CALL: u8 = 0xe8;
const CALL_BYTES: usize = 5;

/// At most so many bytes lie between the function's first byte and its `syscall`.
const CANCELLABLE_MAX: usize = 64;

/// Moves between registers that may lie between the load of the number and the call of that
/// function.
const MOVES_MAX: usize = 6;

/// Where a system call takes its arguments.
const ARGUMENTS: [i32; 6] = [
    libc::REG_RDI,
    libc::REG_RSI,
    libc::REG_RDX,
    libc::REG_R10,
    libc::REG_R8,
    libc::REG_R9,
];

/// The registers that a signal handler returns to.
pub(crate) struct Registers {
    saved: *mut [libc::greg_t; 23],
}

impl Registers {
    /// # Safety
    /// `context` is what the kernel passed to an SA_SIGINFO handler, which runs as long as this is
    /// used.
    pub(crate) unsafe fn new(context: *mut c_void) -> Registers {
        // SAFETY: D7, `context` is the kernel's record; only an address is made.
        let saved = unsafe { &raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        Registers { saved }
    }

    fn get(&self, register: i32) -> usize {
        // SAFETY: D7, the kernel's frame, which this handler alone uses (`new`).
        unsafe { (*self.saved)[register as usize] as usize }
    }

    fn set(&mut self, register: i32, value: usize) {
        // SAFETY: D7, the kernel's frame, which this handler alone uses (`new`).
        unsafe { (*self.saved)[register as usize] = value as libc::greg_t };
    }

    /// The instruction at which the code continues; CONTEXT: signal.
    pub(crate) fn pc(&self) -> usize {
        self.get(libc::REG_RIP)
    }

    /// Has the code continue at another instruction when the handler returns; CONTEXT: signal.
    pub(crate) fn continue_at(&mut self, pc: usize) {
        self.set(libc::REG_RIP, pc);
    }

    /// The stack pointer of the interrupted code; CONTEXT: signal.
    pub(crate) fn sp(&self) -> usize {
        self.get(libc::REG_RSP)
    }

    /// Whether a system call has just ended and is about to return `result`; CONTEXT: signal.
    pub(crate) fn is_call_returning(&self, result: isize) -> bool {
        self.get(libc::REG_RAX) as isize == result
            && self.code_before_pc(SYSCALL.len()) == Some(&SYSCALL)
    }

    /// Argument `n` of the system call; CONTEXT: signal.
    pub(crate) fn argument(&self, n: usize) -> usize {
        self.get(ARGUMENTS[n])
    }

    /// Replaces argument `n` of the system call; CONTEXT: signal.
    pub(crate) fn set_argument(&mut self, n: usize, value: usize) {
        self.set(ARGUMENTS[n], value);
    }

    /// Has the code make system call `number` again, with the arguments that are there, when the
    /// handler returns. The code is right behind that call
    /// ([`Registers::is_call_returning`]); CONTEXT: signal.
    pub(crate) fn repeat_call(&mut self, number: i64) {
        self.set(libc::REG_RAX, number as usize);
        self.set(libc::REG_RIP, self.pc() - SYSCALL.len());
    }

    /// The `n` bytes before the next instruction, if they are certainly code.
    fn code_before_pc(&self, n: usize) -> Option<&[u8]> {
        // SAFETY: D7, the code that has just run lies there.
        unsafe { code_before(self.pc(), n) }
    }

    /// A word of the stack of the interrupted code.
    ///
    /// # Safety
    /// That code has just read this word, or a function above it has.
    unsafe fn stack_word(&self, at: usize) -> usize {
        // SAFETY: D7, the word has memory, for it was read; on that stack only this handler runs,
        // below it.
        unsafe { *((self.sp() + at) as *const usize) }
    }

    /// The number of the system call, wherever it was loaded from; None: it is not found;
    /// CONTEXT: signal.
    pub(crate) fn call_number(&self) -> Option<i64> {
        let bytes = self.code_before_pc(MOV_BYTES + SYSCALL.len())?;
        match *bytes {
            [MOV_EAX, a, b, c, d, ..] => Some(i64::from(u32::from_le_bytes([a, b, c, d]))),
            [a, b, c, d, at, ..] if [a, b, c, d] == MOV_RAX_STACK && at < 0x80 => {
                // SAFETY: D7, the instruction before the call has read this very word.
                Some(unsafe { self.stack_word(usize::from(at)) } as i64)
            }
            _ => self.cancellable_number(),
        }
    }

    /// The number of a cancellable call of glibc from 2.41 on.
    fn cancellable_number(&self) -> Option<i64> {
        if self.code_before_pc(CANCELLABLE.len())? != CANCELLABLE {
            return None;
        }
        // SAFETY: D7, at the end of this function the stack pointer is as at its beginning: at the
        // return address.
        let back = unsafe { self.stack_word(0) };
        // SAFETY: D7, the code that called the function lies before the return address.
        let call = unsafe { code_before(back, CALL_BYTES)? };
        let [CALL, a, b, c, d] = *call else {
            return None;
        };
        let target = back.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]) as isize);
        if !(1..=CANCELLABLE_MAX).contains(&self.pc().wrapping_sub(target)) {
            return None;
        }
        for moves in 0..=MOVES_MAX {
            let len = CALL_BYTES + moves * 3 + MOV_BYTES;
            // SAFETY: D7, the code that called the function lies before the return address.
            let code = unsafe { code_before(back, len)? };
            let (load, rest) = code.split_at(MOV_BYTES);
            let (moves, _) = rest.split_at(moves * 3);
            if load[..4] == MOV_RSI_STACK && load[4] < 0x80 && moves.chunks(3).all(is_move) {
                // SAFETY: D7, the caller has loaded this word with the stack pointer one word
                // higher than now.
                return Some(unsafe { self.stack_word(8 + usize::from(load[4])) } as i64);
            }
        }
        None
    }
}

/// `n` bytes of code before an address, if they are on the same page.
///
/// # Safety
/// There is code right before the address.
unsafe fn code_before<'a>(pc: usize, n: usize) -> Option<&'a [u8]> {
    // SAFETY: D7, a page with code on it is readable as a whole, and code is not unmapped while it
    // runs.
    (pc % page_size() >= n)
        .then(|| unsafe { core::slice::from_raw_parts((pc - n) as *const u8, n) })
}

/// Whether these three bytes move one register to another, neither of them rsi or rsp.
fn is_move(code: &[u8]) -> bool {
    let [rex @ (0x48 | 0x49 | 0x4c | 0x4d), 0x89, modrm] = *code else {
        return false;
    };
    let to_new = rex & 1 != 0; // r8 to r15
    modrm >= 0xc0 && (to_new || !matches!(modrm & 7, 4 | 6))
}

/// System calls whose numbers are loaded in each of the three ways.
#[cfg(test)]
pub(crate) mod numbered {
    /// A call whose number is in the code: with up to four arguments.
    macro_rules! call {
        ($number:path, $a:expr, $b:expr, $c:expr, $d:expr) => {{
            let answer: isize;
            core::arch::asm!(
                "mov eax, {number}",
                "syscall",
                number = const $number,
                in("rdi") $a,
                in("rsi") $b,
                in("rdx") $c,
                in("r10") $d,
                lateout("rax") answer,
                lateout("rcx") _,
                lateout("r11") _,
            );
            answer as i32
        }};
    }
    pub(crate) use call;

    /// As in glibc from 2.41 on: the caller of a cancellable call, and the function that makes it,
    /// on one page.
    #[unsafe(naked)]
    pub(crate) unsafe extern "C" fn cancellable(
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
        number: i64,
    ) -> isize {
        core::arch::naked_asm!(
            ".balign 256",
            "push rbx",
            "push r9",
            "lea r11, [rsp - 64]",
            "mov r9, rcx",
            "mov rcx, rsi",
            "push r8",
            "mov rsi, [rsp + 32]",
            "mov r8, rdx",
            "mov rdx, rdi",
            "mov rdi, r11",
            "call 2f",
            "pop rcx",
            "pop rsi",
            "pop rbx",
            "ret",
            "2:",
            "mov eax, [rdi]",
            "mov r11, rdi",
            "mov rax, rsi",
            "mov rdi, rdx",
            "mov rsi, rcx",
            "mov rdx, r8",
            "mov r10, r9",
            "mov r8, [rsp + 8]",
            "mov r9, [rsp + 16]",
            "mov [rsp + 8], r11",
            "syscall",
            "ret",
        )
    }

    /// As in glibc from 2.41 on where cancellation is off.
    #[unsafe(naked)]
    pub(crate) unsafe extern "C" fn on_the_stack(
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
        number: i64,
    ) -> isize {
        core::arch::naked_asm!(
            ".balign 64",
            "mov r10, rcx",
            "mov rax, [rsp + 8]",
            "syscall",
            "ret",
        )
    }

    pub(crate) type Call =
        unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, i64) -> isize;
}
