//! A timer on the CPU clock of another thread of this process. The thread gets a signal once it has
//! used a given CPU time.
//!
//! It watches any number of threads at no cost while they sleep.
//!
//! The kernel checks the timer in the tick that finds the thread on a CPU. So the signal comes up
//! to one tick late (1 to 10 ms, mostly 4). From Linux 5.10 on it is raised when the thread returns
//! to its own code, after a system call has its result. So the signal cuts no call short.
//!
//! Each timer takes one of the user's pending signals (RLIMIT_SIGPENDING), so the kernel may refuse
//! it.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::sys::linux::inject::REFUSE_CPU_TIMERS;
use crate::sys::linux::syscall::{Errno, check, syscall1, syscall3, syscall4};
use crate::sys::linux::task::{MARK, cpu_clock};

/// A timer that was made and not deleted yet, by the kernel's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CpuTimer(i32);

impl CpuTimer {
    /// Makes a timer on the CPU clock of thread `tid` that sends it `signal`, marked as ours. The
    /// timer is not armed; CONTEXT: any.
    pub(crate) fn new(tid: i32, signal: i32) -> Result<CpuTimer, Errno> {
        // ORDER: Relaxed; a test's switch, stored before the threads that load it start.
        if REFUSE_CPU_TIMERS.load(Relaxed) {
            return Err(Errno(libc::EAGAIN));
        }
        let clock = cpu_clock(tid).ok_or(Errno(libc::ESRCH))?;
        // SAFETY: all zeros is a valid sigevent.
        let mut event: libc::sigevent = unsafe { core::mem::zeroed() };
        event.sigev_value.sival_ptr = (&raw const MARK).cast_mut().cast();
        event.sigev_signo = signal;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_notify_thread_id = tid;
        let mut id = MaybeUninit::<i32>::uninit();
        let (event, at) = (ptr::from_ref(&event).addr(), id.as_mut_ptr().addr());
        // SAFETY: the kernel reads one sigevent and writes one number, both in this frame (D9: bare
        // call).
        check(unsafe { syscall3(libc::SYS_timer_create, clock as usize, event, at) })?;
        // SAFETY: the call succeeded and has written the number.
        Ok(CpuTimer(unsafe { id.assume_init() }))
    }

    /// Signals the thread each time it has used another `ns` of CPU time; 0: never; CONTEXT: any.
    pub(crate) fn set(self, ns: u64) -> Result<(), Errno> {
        let time = libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as _,
        };
        let times = libc::itimerspec {
            it_interval: time,
            it_value: time,
        };
        let at = ptr::from_ref(&times).addr();
        // SAFETY: the kernel reads this frame's struct and writes nothing (D9: bare call).
        check(unsafe { syscall4(libc::SYS_timer_settime, self.0 as usize, 0, at, 0) }).map(drop)
    }

    /// Deletes the timer. The kernel may then reuse the number; CONTEXT: any.
    pub(crate) fn delete(self) {
        // SAFETY: the call takes a number and touches no memory (D9: bare call).
        unsafe { syscall1(libc::SYS_timer_delete, self.0 as usize) };
    }

    /// The kernel's number, to be stored.
    pub(crate) fn id(self) -> i32 {
        self.0
    }

    /// The timer with a number from [`CpuTimer::id`] that was not deleted.
    pub(crate) fn from_id(id: i32) -> CpuTimer {
        CpuTimer(id)
    }
}

/// How many signals this user may have pending, timers included; CONTEXT: any.
pub(crate) fn pending_signals_max() -> u64 {
    soft_limit(libc::RLIMIT_SIGPENDING as usize)
}

/// A limit of this process that is in force; 0 if the system does not say.
pub(super) fn soft_limit(resource: usize) -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit64>::uninit();
    let at = limit.as_mut_ptr().addr();
    // SAFETY: process 0 is the caller; the kernel writes one struct in this frame (D9: bare call).
    match check(unsafe { syscall4(libc::SYS_prlimit64, 0, resource, 0, at) }) {
        // SAFETY: the call succeeded and has written the whole struct.
        Ok(_) => unsafe { limit.assume_init() }.rlim_cur,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::linux::frame::{Context, Info};
    use crate::sys::linux::signal::sigaction_install;
    use crate::sys::linux::thread::gettid;
    use core::ffi::c_int;
    use core::sync::atomic::Ordering::SeqCst;
    use core::sync::atomic::{AtomicBool, AtomicI32};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    static STRUCK: AtomicI32 = AtomicI32::new(0);

    extern "C" fn note(_: c_int, info: Info<'_>, _: Context<'_>) {
        if info.is_marked_timer() {
            STRUCK.store(gettid(), SeqCst);
        }
    }

    #[test]
    fn a_thread_is_signalled_for_the_cpu_it_uses_and_not_for_sleeping() {
        static COMPUTES: AtomicBool = AtomicBool::new(false);
        let sig = libc::SIGRTMIN() + 7;
        // SAFETY: D7. The handler reads its argument, makes one bare call and stores to an atomic,
        // so it is async-signal-safe.
        let old = unsafe { sigaction_install(sig, note, libc::SA_RESTART) }.expect("action");
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(gettid()).expect("the test listens");
            let began = Instant::now();
            while !COMPUTES.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            while STRUCK.load(SeqCst) == 0 && began.elapsed() < Duration::from_secs(30) {
                std::hint::spin_loop();
            }
        });
        let tid = told.recv().expect("a thread id");
        let timer = CpuTimer::new(tid, sig).expect("a timer");
        // A thread that polls a flag each millisecond has used less than this in 200 ms.
        timer.set(1_000_000_000).expect("armed");
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(STRUCK.load(SeqCst), 0, "it has not used that much");
        timer.set(200_000).expect("armed again");
        COMPUTES.store(true, SeqCst);
        thread.join().expect("no panic");
        assert_eq!(STRUCK.load(SeqCst), tid);
        assert!(timer.set(0).is_ok() || timer.set(0) == Err(Errno(libc::ESRCH)));
        timer.delete();
        assert_eq!(timer.set(0), Err(Errno(libc::EINVAL)), "deleted");
        assert!(CpuTimer::new(0, sig).is_err());
        // A join returns a little before the kernel has removed the thread.
        let is_refused = (0..20_000).any(|_| match CpuTimer::new(tid, sig) {
            Ok(timer) => {
                timer.delete();
                std::thread::sleep(Duration::from_millis(1));
                false
            }
            Err(_) => true,
        });
        assert!(is_refused, "its thread has ended");
        assert!(old.restore());
    }

    #[test]
    fn the_limit_on_pending_signals_is_told() {
        let mut limit = libc::rlimit64 {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: libc writes one struct in this frame.
        let answer = unsafe { libc::getrlimit64(libc::RLIMIT_SIGPENDING, &mut limit) };
        assert_eq!(answer, 0);
        assert_eq!(pending_signals_max(), limit.rlim_cur);
    }
}
