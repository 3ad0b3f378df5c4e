//! What a signal interrupted, and putting a system call back that it cut short.
//!
//! SA_RESTART lets most calls go on as if nothing had been. Those that wait with a timeout, `poll` and its kin and the sleeps
//! return EINTR all the same. The handler of the runtime's own signal can undo that: the registers of the call are still there
//! but for its number, which the instruction before `syscall` has loaded. Nothing else tells the number, so where it cannot be
//! read (a call through `libc::syscall`; the cancellable calls of a libc that passes the number in a register, as glibc does
//! from 2.41 on) the call stays cut short.
//!
//! Only calls that end by themselves are put back: a signal of the program's own may have come first, and a program may wait for
//! ever for what such a signal does. A call that is put back waits for its whole timeout again, except a sleep whose caller wants to know what is left: the kernel
//! has written it down, so it sleeps that.

use core::ffi::c_void;

use super::mem::page_size;
use super::syscall::{check, syscall5};

/// `syscall`, and `mov eax, imm32` before it.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const MOV_EAX: u8 = 0xb8;
const MOV_BYTES: usize = 5;

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
        let pc = self.pc();
        // SAFETY: D7, the code that just ran lies there, on the same page: readable.
        (pc % page_size() >= n)
            .then(|| unsafe { core::slice::from_raw_parts((pc - n) as *const u8, n) })
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

    /// The number that was loaded right before the call.
    fn call_number(&self) -> Option<i64> {
        let bytes = self.bytes_before(MOV_BYTES + SYSCALL.len())?;
        let [MOV_EAX, a, b, c, d, ..] = *bytes else {
            return None;
        };
        Some(i64::from(u32::from_le_bytes([a, b, c, d])))
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
    use super::super::signal::{sigaction_install, sigaction_restore};
    use super::super::thread::gettid;
    use super::super::{Doing, TaskFile, signal_thread};
    use super::*;
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

    /// Runs `call` on a thread and sends it a signal as soon as it sleeps there; returns how often a call was cut short, and
    /// what `call` returned.
    fn disturbed(call: fn() -> (i32, Duration)) -> (i32, i32, Duration) {
        static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = TURN.lock();
        let sig = libc::SIGRTMIN() + 5;
        // SAFETY: D7, the handler touches its frame and an atomic.
        let old = unsafe { sigaction_install(sig, put_back, libc::SA_RESTART) }.expect("action");
        CUT.store(0, SeqCst);
        let (tx, rx) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tx.send(gettid()).expect("the test listens");
            call()
        });
        let tid = rx.recv().expect("a thread id");
        let file = TaskFile::open(tid).expect("proc");
        let is_in = |call| matches!(call, libc::SYS_poll | libc::SYS_clock_nanosleep);
        while !matches!(file.doing(), Doing::Blocked(call) if is_in(call)) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        signal_thread(tid, sig).expect("signal");
        let (answer, took) = thread.join().expect("no panic");
        // SAFETY: D7, the action that was there before this test.
        unsafe { sigaction_restore(sig, &old).expect("restore") };
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
