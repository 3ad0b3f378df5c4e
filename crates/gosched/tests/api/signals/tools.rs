//! Sending signals to oneself, and asking the system what they would do.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use gosched::chan::Receiver;

/// Every signal that arrives at all arrives sooner.
pub const LONG: Duration = Duration::from_secs(60);

/// The next signal.
#[track_caller]
pub fn next(signals: &Receiver<i32>) -> i32 {
    signals.recv_timeout(LONG).expect("a signal")
}

/// A signal to the whole process.
pub fn kill(signal: i32) {
    // SAFETY: a signal to this process.
    assert_eq!(unsafe { libc::kill(std::process::id() as i32, signal) }, 0);
}

/// A signal to this very thread: its handler has run when this returns.
pub fn raise(signal: i32) {
    // SAFETY: a signal to this thread.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

/// What the signal does now.
pub fn action(signal: i32) -> libc::sigaction {
    let mut action = MaybeUninit::uninit();
    // SAFETY: reads the action into our own memory.
    unsafe {
        assert_eq!(libc::sigaction(signal, ptr::null(), action.as_mut_ptr()), 0);
        action.assume_init()
    }
}

/// Changes what the signal does.
pub fn set_action(signal: i32, handler: usize, flags: i32) {
    // SAFETY: a zeroed action is a valid one; the handlers of these tests only count.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
    }
}

/// What can be compared of an action: libc adds a flag of its own.
pub fn essence(action: &libc::sigaction) -> (usize, i32, Vec<i32>) {
    // SAFETY: reads a set.
    let mask = (1..65).filter(|signal| unsafe { libc::sigismember(&action.sa_mask, *signal) } == 1);
    const SA_RESTORER: i32 = 0x0400_0000;
    (
        action.sa_sigaction,
        action.sa_flags & !SA_RESTORER,
        mask.collect(),
    )
}

/// Holds a signal back from this thread.
pub fn block(signal: i32) {
    // SAFETY: changes the mask of this thread.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::sigaddset(&mut set, signal);
        assert_eq!(
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()),
            0
        );
    }
}

/// How often each of the program's own handlers was called.
pub static CALLS: AtomicUsize = AtomicUsize::new(0);

pub extern "C" fn one_argument(signal: i32) {
    assert_eq!(signal, libc::SIGUSR1);
    CALLS.fetch_add(1, SeqCst);
}

pub extern "C" fn three_arguments(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's siginfo.
    assert_eq!(signal, unsafe { (*info).si_signo });
    CALLS.fetch_add(1, SeqCst);
}
