//! What a signal interrupted, and putting a system call back that it cut short.
//!
//! SA_RESTART lets most calls go on as if nothing had been. Those that wait with a timeout, `poll` and its kin and the sleeps
//! return EINTR all the same. The handler of the runtime's own signal can undo that: the registers of the call are still there
//! but for its number. Three ways of loading it leave the number where it can be read:
//!
//! ```text
//!  mov eax, number; syscall          in the code: glibc before 2.41, inline assembly
//!  mov rax, [rsp + n]; syscall       on the stack: glibc from 2.41 on, where cancellation is off or there is one thread
//!  mov rax, rsi; …; syscall          in a function to which glibc from 2.41 on passes the number of a cancellable call in
//!                                    rsi; its caller has loaded that from the stack, where it still is
//! ```
//!
//! The last is recognised by its whole code, which is the same in every such glibc, since it
//! is written in assembly and its beginning and end are known to the handler of cancellation.
//! Anywhere else (`libc::syscall`) the call stays cut short.
//!
//! Only calls that end by themselves are put back: a signal of the program's own may have come first, and a program may wait for
//! ever for what such a signal does. A call that is put back waits for its whole timeout again, except a sleep whose caller wants to know what is left: the kernel
//! has written it down, so it sleeps that.

use core::ffi::c_void;

use crate::sys::linux::mem::page_size;
use crate::sys::linux::syscall::{check, syscall5};

/// `syscall`, and `mov eax, imm32` before it.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const MOV_EAX: u8 = 0xb8;
const MOV_BYTES: usize = 5;

/// `mov rax, [rsp + disp8]` and `mov rsi, [rsp + disp8]`, but for the last byte.
const MOV_RAX_STACK: [u8; 4] = [0x48, 0x8b, 0x44, 0x24];
const MOV_RSI_STACK: [u8; 4] = [0x48, 0x8b, 0x74, 0x24];

/// What glibc does between its look for a cancellation and its call, and the call.
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

/// From the function's first byte to its `syscall` is no more than this.
const CANCELLABLE_MAX: usize = 64;

/// Moves between registers that may stand between the load of the number and the call of that
/// function.
const MOVES_MAX: usize = 6;

/// The registers a handler will return to.
pub(crate) struct Interrupted {
    registers: *mut [libc::greg_t; 23],
}

impl Interrupted {
    /// # Safety
    /// `context` is what the kernel passed to an SA_SIGINFO handler, which runs as long as this is used.
    pub(crate) unsafe fn new(context: *mut c_void) -> Interrupted {
        // SAFETY: D7, by the caller's promise; only an address is made.
        let registers = unsafe { &raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        Interrupted { registers }
    }

    fn get(&self, register: i32) -> usize {
        // SAFETY: D7, the kernel's frame, this handler's alone.
        unsafe { (*self.registers)[register as usize] as usize }
    }

    fn set(&mut self, register: i32, value: usize) {
        // SAFETY: D7, as above.
        unsafe { (*self.registers)[register as usize] = value as libc::greg_t };
    }

    /// The instruction at which the code goes on; CONTEXT: signal.
    pub(crate) fn pc(&self) -> usize {
        self.get(libc::REG_RIP)
    }

    /// The stack pointer of the interrupted code; CONTEXT: signal.
    pub(crate) fn sp(&self) -> usize {
        self.get(libc::REG_RSP)
    }

    /// The `n` bytes before that instruction, if they are surely code.
    fn bytes_before(&self, n: usize) -> Option<&[u8]> {
        // SAFETY: D7, the code that just ran lies there.
        unsafe { code_before(self.pc(), n) }
    }

    /// A word of the stack of the interrupted code.
    ///
    /// # Safety
    /// That code has just read this word, or a function above it has.
    unsafe fn stack_word(&self, at: usize) -> usize {
        // SAFETY: D7, by the caller's promise it is there; nothing runs on that stack but this
        // handler, further down.
        unsafe { *((self.get(libc::REG_RSP) + at) as *const usize) }
    }

    /// Whether a system call is about to return EINTR because of this signal; CONTEXT: signal.
    pub(crate) fn is_call_cut_short(&self) -> bool {
        let is_eintr = self.get(libc::REG_RAX) as isize == -(libc::EINTR as isize);
        is_eintr && self.bytes_before(2) == Some(&SYSCALL)
    }

    /// Puts the call back, so that it begins anew when the handler returns; false: it stays cut short; CONTEXT: signal.
    pub(crate) fn restart_call(&mut self) -> bool {
        let Some(call) = self.call_number().filter(|call| self.ends_by_itself(*call)) else {
            return false;
        };
        match call {
            libc::SYS_nanosleep => self.sleep_rest(libc::REG_RDI, libc::REG_RSI),
            libc::SYS_clock_nanosleep if !self.is_absolute() => {
                self.sleep_rest(libc::REG_RDX, libc::REG_R10);
            }
            _ => {}
        }
        self.set(libc::REG_RAX, call as usize);
        self.set(libc::REG_RIP, self.pc() - SYSCALL.len());
        true
    }

    /// The number of the call, wherever it was loaded from.
    fn call_number(&self) -> Option<i64> {
        let bytes = self.bytes_before(MOV_BYTES + SYSCALL.len())?;
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
        if self.bytes_before(CANCELLABLE.len())? != CANCELLABLE {
            return None;
        }
        // SAFETY: D7, at the end of this function the stack pointer is as at its beginning: at the
        // return address.
        let back = unsafe { self.stack_word(0) };
        // SAFETY: D7, the code that has called it lies before the address to which it returns.
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
            // SAFETY: D7, as above.
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

    /// Whether the call waits for a limited time. One that may wait for ever is left alone: it may have been a signal of the
    /// program's own that ended it, a moment before ours, and the program may wait for just that.
    fn ends_by_itself(&self, call: i64) -> bool {
        let [a, b, c, d] =
            [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10].map(|r| self.get(r));
        let e = self.get(libc::REG_R8);
        match call {
            libc::SYS_nanosleep | libc::SYS_clock_nanosleep => true,
            libc::SYS_poll => c as i32 >= 0,
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait => d as i32 >= 0,
            libc::SYS_ppoll => c != 0,
            libc::SYS_select | libc::SYS_pselect6 => e != 0,
            libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => d != 0,
            libc::SYS_rt_sigtimedwait => b != 0 && c != 0,
            libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_accept
            | libc::SYS_accept4 => has_timeout(a, libc::SO_RCVTIMEO),
            libc::SYS_write | libc::SYS_writev | libc::SYS_sendto | libc::SYS_sendmsg => {
                has_timeout(a, libc::SO_SNDTIMEO)
            }
            _ => false,
        }
    }

    /// Whether a clock_nanosleep is to a point in time.
    fn is_absolute(&self) -> bool {
        self.get(libc::REG_RSI) as i32 & libc::TIMER_ABSTIME != 0
    }

    /// A sleep goes on with what is left, if its caller gave a place for that.
    fn sleep_rest(&mut self, time: i32, rest: i32) {
        let rest = self.get(rest);
        if rest != 0 {
            self.set(time, rest);
        }
    }
}

/// `n` bytes of code before an address, if they are on the same page.
///
/// # Safety
/// There is code right before the address.
unsafe fn code_before<'a>(pc: usize, n: usize) -> Option<&'a [u8]> {
    // SAFETY: D7, a page with code on it is readable as a whole, and code stays.
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

/// Whether a descriptor is a socket on which such calls wait for a limited time.
fn has_timeout(fd: usize, option: i32) -> bool {
    let mut time = [0i64; 2];
    let mut len = size_of_val(&time) as libc::socklen_t;
    let (time_at, len_at) = (time.as_mut_ptr() as usize, &raw mut len as usize);
    let level = libc::SOL_SOCKET as usize;
    // SAFETY: D9, a bare call; the kernel writes two words and their length, this frame's.
    let answer = unsafe {
        syscall5(
            libc::SYS_getsockopt,
            fd,
            level,
            option as usize,
            time_at,
            len_at,
        )
    };
    check(answer).is_ok() && time != [0; 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::linux::signal::{sigaction_install, sigaction_restore};
    use crate::sys::linux::thread::gettid;
    use crate::sys::linux::{Doing, TaskFile, signal_thread};
    use core::ffi::c_int;
    use core::sync::atomic::AtomicI32;
    use core::sync::atomic::Ordering::SeqCst;
    use std::time::{Duration, Instant};

    static CUT: AtomicI32 = AtomicI32::new(0);

    extern "C" fn put_back(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: D7, the kernel passed it.
        let mut interrupted = unsafe { Interrupted::new(context) };
        if interrupted.is_call_cut_short() {
            CUT.fetch_add(1, SeqCst);
            interrupted.restart_call();
        }
    }

    /// Runs `call` on a thread and sends it a signal as soon as it sleeps there; returns how often
    /// a call was cut short, and what `call` returned. A call that was over before the signal came
    /// proves nothing: another one is made.
    fn disturbed(call: fn() -> (i32, Duration)) -> (i32, i32, Duration) {
        static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = TURN.lock();
        let sig = libc::SIGRTMIN() + 5;
        // SAFETY: D7, the handler touches its frame and an atomic.
        let old = unsafe { sigaction_install(sig, put_back, libc::SA_RESTART) }.expect("action");
        let mut seen = (0, 0, Duration::ZERO);
        for _ in 0..20 {
            seen = disturbed_once(sig, call);
            if seen.0 > 0 {
                break;
            }
        }
        // SAFETY: D7, the action that was there before this test.
        unsafe { sigaction_restore(sig, &old).expect("restore") };
        seen
    }

    fn disturbed_once(sig: c_int, call: fn() -> (i32, Duration)) -> (i32, i32, Duration) {
        CUT.store(0, SeqCst);
        let (tx, rx) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tx.send(gettid()).expect("the test listens");
            call()
        });
        let tid = rx.recv().expect("a thread id");
        let is_in = |call| matches!(call, libc::SYS_poll | libc::SYS_clock_nanosleep);
        if let Ok(file) = TaskFile::open(tid) {
            while !thread.is_finished()
                && !matches!(file.doing(), Doing::Blocked(call) if is_in(call))
            {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            let _ = signal_thread(tid, sig); // it may be gone
        }
        let (answer, took) = thread.join().expect("no panic");
        (CUT.load(SeqCst), answer, took)
    }

    /// A call whose number can be read, whatever libc does: with up to four arguments.
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

    #[test]
    fn a_poll_that_was_cut_short_goes_on() {
        let (cut, answer, took) = disturbed(|| {
            let began = Instant::now();
            // SAFETY: D9, no descriptors, a timeout.
            let answer = unsafe { call!(libc::SYS_poll, 0usize, 0usize, 100usize, 0usize) };
            (answer, began.elapsed())
        });
        assert_eq!((cut, answer), (1, 0));
        assert!(took >= Duration::from_millis(100), "{took:?}");
    }

    /// Libc's own, however it loads the number, cancellable or not.
    #[test]
    fn a_poll_of_the_c_library_goes_on() {
        unsafe extern "C" {
            fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
        }
        static STATE: AtomicI32 = AtomicI32::new(0);
        for state in 0..2 {
            STATE.store(state, SeqCst);
            let (cut, answer, took) = disturbed(|| {
                let began = Instant::now();
                let mut old = 0;
                // SAFETY: D9, a setting of this thread, which ends; no descriptors, a timeout.
                let answer = unsafe {
                    pthread_setcancelstate(STATE.load(SeqCst), &mut old);
                    libc::poll(core::ptr::null_mut(), 0, 100)
                };
                (answer, began.elapsed())
            });
            assert_eq!((cut, answer), (1, 0), "cancel state {state}");
            assert!(took >= Duration::from_millis(100), "{took:?}");
        }
    }

    /// As in glibc from 2.41 on: the caller of a cancellable call, and the function that makes it,
    /// on one page.
    #[unsafe(naked)]
    unsafe extern "C" fn cancellable(
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

    /// As there where cancellation is off.
    #[unsafe(naked)]
    unsafe extern "C" fn on_the_stack(
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

    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, i64) -> isize;

    #[test]
    fn a_number_that_newer_c_libraries_pass_is_found() {
        static WAY: AtomicI32 = AtomicI32::new(0);
        for way in 0..2 {
            WAY.store(way, SeqCst);
            let (cut, answer, took) = disturbed(|| {
                let began = Instant::now();
                let ways: [Call; 2] = [cancellable, on_the_stack];
                let call = ways[WAY.load(SeqCst) as usize];
                // SAFETY: D9, no descriptors, a timeout.
                let answer = unsafe { call(0, 0, 100, 0, 0, 0, libc::SYS_poll) };
                (answer as i32, began.elapsed())
            });
            assert_eq!((cut, answer), (1, 0), "way {way}");
            assert!(took >= Duration::from_millis(100), "{took:?}");
        }
    }

    /// Somebody may wait for it to be cut short.
    #[test]
    fn a_poll_without_end_stays_cut_short() {
        let (cut, answer, _) = disturbed(|| {
            // SAFETY: D9, as above, without a timeout.
            let answer = unsafe { call!(libc::SYS_poll, 0usize, 0usize, -1isize, 0usize) };
            (answer, Duration::ZERO)
        });
        assert_eq!((cut, answer), (1, -libc::EINTR));
    }

    #[test]
    fn a_sleep_that_was_cut_short_sleeps_what_is_left() {
        static WAY: AtomicI32 = AtomicI32::new(0);
        for way in 0..3 {
            WAY.store(way, SeqCst);
            let (cut, answer, took) = disturbed(|| {
                let began = Instant::now();
                let mut time = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 300_000_000,
                };
                let mut rest = time;
                let (time, rest) = (&raw mut time, &raw mut rest);
                let rest = [time, rest, core::ptr::null_mut()][WAY.load(SeqCst) as usize];
                // SAFETY: D9, one struct read, one written, or none.
                let answer = unsafe {
                    let clock = libc::CLOCK_MONOTONIC as usize;
                    call!(libc::SYS_clock_nanosleep, clock, 0usize, time, rest)
                };
                (answer, began.elapsed())
            });
            assert_eq!((cut, answer), (1, 0));
            assert!(took >= Duration::from_millis(300), "{took:?}");
        }
    }
}
