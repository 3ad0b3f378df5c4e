//! Restarts a system call that the runtime's own signal cut short.
//!
//! SA_RESTART makes the kernel restart most calls. Calls that wait with a timeout return EINTR all
//! the same: `poll` and its kin, and the sleeps. The handler of the runtime's own signal undoes
//! that if it finds the number of the call ([`Registers::call_number`]). Otherwise the call stays
//! cut short.
//!
//! The handler restarts only calls that end by themselves. A signal of the program's own may have
//! arrived first, and the program may wait for ever for the effect of that signal. A restarted call
//! waits for its whole timeout again. One kind of call is excepted: a sleep whose caller asks for
//! the remaining time. The kernel has stored that time, so the call sleeps only for the rest.

use core::ffi::c_void;
use core::marker::PhantomData;

use crate::arch::{Registers, after_faulted_load};
use crate::sys::linux::syscall::{check, syscall5};

/// The code that a signal interrupted and that the handler returns to.
pub(crate) struct Interrupted<'a> {
    registers: Registers,
    _handler: PhantomData<&'a mut c_void>,
}

impl<'a> Interrupted<'a> {
    /// # Safety
    /// `context` is the argument that the kernel passed to an SA_SIGINFO handler. The handler runs,
    /// and no other code uses the context, during `'a`.
    pub(super) unsafe fn new(context: *mut c_void) -> Interrupted<'a> {
        // SAFETY: D7, `context` is the kernel's and stays valid while the handler runs (see
        // "Safety").
        let registers = unsafe { Registers::new(context) };
        Interrupted {
            registers,
            _handler: PhantomData,
        }
    }

    /// The instruction at which the code continues; CONTEXT: signal.
    pub(crate) fn pc(&self) -> usize {
        self.registers.pc()
    }

    /// The stack pointer of the interrupted code; CONTEXT: signal.
    pub(crate) fn sp(&self) -> usize {
        self.registers.sp()
    }

    /// If the fault came from a load that expects it, continues behind that load; CONTEXT: signal.
    pub(crate) fn skip_faulted_load(&mut self) -> bool {
        let next = after_faulted_load(self.registers.pc());
        next.inspect(|pc| self.registers.continue_at(*pc)).is_some()
    }

    /// Whether a system call is about to return EINTR because of this signal; CONTEXT: signal.
    pub(crate) fn is_call_cut_short(&self) -> bool {
        self.registers.is_call_returning(-(libc::EINTR as isize))
    }

    /// Restarts the call, so that it begins anew when the handler returns. False: it stays cut
    /// short. CONTEXT: signal.
    pub(crate) fn restart_call(&mut self) -> bool {
        let number = self.registers.call_number();
        let Some(call) = number.filter(|call| self.ends_by_itself(*call)) else {
            return false;
        };
        match call {
            libc::SYS_nanosleep => self.sleep_rest(0, 1),
            libc::SYS_clock_nanosleep if !self.is_absolute() => self.sleep_rest(2, 3),
            _ => {}
        }
        self.registers.repeat_call(call);
        true
    }

    /// Whether the call waits for a limited time. A call that may wait for ever is not restarted. A
    /// signal of the program's own may have ended it a moment before ours, and the program may rely
    /// on that.
    fn ends_by_itself(&self, call: i64) -> bool {
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|n| self.registers.argument(n));
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

    /// Whether a `clock_nanosleep` waits for a point in time.
    fn is_absolute(&self) -> bool {
        self.registers.argument(1) as i32 & libc::TIMER_ABSTIME != 0
    }

    /// Makes a sleep continue with the remaining time, if its caller gave a place for that time.
    /// `time` and `rest` are the indices of these two arguments.
    fn sleep_rest(&mut self, time: usize, rest: usize) {
        let rest = self.registers.argument(rest);
        if rest != 0 {
            self.registers.set_argument(time, rest);
        }
    }
}

/// Whether a descriptor is a socket with this timeout, so that such calls wait for a limited time.
fn has_timeout(fd: usize, option: i32) -> bool {
    let mut time = [0i64; 2];
    let mut len = size_of_val(&time) as libc::socklen_t;
    let (time_at, len_at) = (time.as_mut_ptr() as usize, &raw mut len as usize);
    let level = libc::SOL_SOCKET as usize;
    // SAFETY: D9, a bare call. The kernel writes two words and their length, which are in this
    // frame.
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
    use crate::arch::numbered::{Call, call, cancellable, on_the_stack};
    use crate::sys::linux::signal::sigaction_install;
    use crate::sys::linux::thread::gettid;
    use crate::sys::linux::{Context, Doing, Info, TaskFile, signal_thread};
    use core::ffi::c_int;
    use core::sync::atomic::AtomicI32;
    use core::sync::atomic::Ordering::SeqCst;
    use std::time::{Duration, Instant};

    static CUT: AtomicI32 = AtomicI32::new(0);

    extern "C" fn put_back(_: c_int, _: Info<'_>, mut context: Context<'_>) {
        let mut interrupted = context.interrupted();
        if interrupted.is_call_cut_short() {
            CUT.fetch_add(1, SeqCst);
            interrupted.restart_call();
        }
    }

    /// Runs `call` on a thread and sends a signal as soon as the thread sleeps in it. Returns how
    /// many calls were cut short, and the result of `call`. A call that ended before the signal
    /// arrived proves nothing, so another call is made.
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
        assert!(old.restore());
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

    /// libc's own `poll`, however it loads the number, cancellable or not.
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

    /// The program may rely on the call being cut short.
    #[test]
    fn a_poll_without_end_stays_cut_short() {
        let (cut, answer, _) = disturbed(|| {
            // SAFETY: D9, no descriptors, no timeout.
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
