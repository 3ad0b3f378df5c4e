//! What a signal interrupted, and putting a system call back that it cut short.
//!
//! SA_RESTART lets most calls go on as if nothing had been. Those that wait with a timeout, `poll` and its kin and the sleeps
//! return EINTR all the same. The handler of the runtime's own signal can undo that: the registers of the call are still there
//! but for its number, which the instruction before `syscall` has loaded. Nothing else tells the number, so where it cannot be
//! read (a call through `libc::syscall`) the call stays cut short.
//!
//! A call that is put back waits for its whole timeout again, except a sleep whose caller wants to know what is left: the kernel
//! has written it down, so it sleeps that.

use core::ffi::c_void;

use super::mem::page_size;

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
        // SAFETY: by the caller's promise; only an address is made.
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

    /// The `n` bytes before that instruction, if they are surely code.
    fn bytes_before(&self, n: usize) -> Option<&[u8]> {
        let pc = self.pc();
        // SAFETY: the code that just ran lies there, on the same page: readable.
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
        let Some(call) = self.call_number().filter(|call| may_restart(*call)) else {
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

/// Calls that may begin anew: they wait, and have done nothing when they return EINTR.
fn may_restart(call: i64) -> bool {
    matches!(
        call,
        libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_select
            | libc::SYS_pselect6
            | libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_nanosleep
            | libc::SYS_clock_nanosleep
            | libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_semop
            | libc::SYS_semtimedop
            | libc::SYS_msgsnd
            | libc::SYS_msgrcv
            | libc::SYS_pause
            | libc::SYS_rt_sigtimedwait
    )
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
        // SAFETY: the kernel passed it (D7).
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
        // SAFETY: the handler touches its frame and an atomic (D7).
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
        // SAFETY: the action that was there before this test.
        unsafe { sigaction_restore(sig, &old).expect("restore") };
        (CUT.load(SeqCst), answer, took)
    }

    #[test]
    fn a_poll_that_was_cut_short_goes_on() {
        let (cut, answer, took) = disturbed(|| {
            let began = Instant::now();
            // SAFETY: no descriptors, a timeout.
            let answer = unsafe { libc::poll(core::ptr::null_mut(), 0, 100) };
            (answer, began.elapsed())
        });
        assert_eq!((cut, answer), (1, 0));
        assert!(took >= Duration::from_millis(100), "{took:?}");
    }

    #[test]
    fn a_sleep_that_was_cut_short_sleeps_what_is_left() {
        const TIME: libc::timespec = libc::timespec {
            tv_sec: 0,
            tv_nsec: 300_000_000,
        };
        let sleeps: [fn() -> i32; 3] = [
            || {
                let mut time = TIME;
                let at = &raw mut time;
                // SAFETY: one struct, read and written in place.
                unsafe { libc::nanosleep(at, at) }
            },
            || {
                let mut rest = TIME;
                // SAFETY: one struct read, another written.
                unsafe { libc::nanosleep(&TIME, &mut rest) }
            },
            // SAFETY: one struct, read; nothing is written.
            || unsafe { libc::nanosleep(&TIME, core::ptr::null_mut()) },
        ];
        static SLEEP: std::sync::Mutex<Option<fn() -> i32>> = std::sync::Mutex::new(None);
        for sleep in sleeps {
            *SLEEP.lock().expect("no panic") = Some(sleep);
            let (cut, answer, took) = disturbed(|| {
                let began = Instant::now();
                let sleep = SLEEP.lock().expect("no panic").expect("set above");
                (sleep(), began.elapsed())
            });
            assert_eq!((cut, answer), (1, 0));
            assert!(took >= Duration::from_millis(300), "{took:?}");
        }
    }
}
