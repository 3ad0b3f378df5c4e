//! Wake-ups in signal handlers, whatever they interrupt.

use std::ffi::c_int;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::common::{LONG, child_of, within};
use crate::raw::{wait, wake};

/// Raised and woken by the handler.
static RAISED: AtomicU32 = AtomicU32::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// What the waiter has seen of [`RAISED`].
static SEEN: AtomicU32 = AtomicU32::new(0);

const BURSTS: u32 = 2_000;

extern "C" fn on_signal(_: c_int) {
    // SAFETY: the address is that of this thread's, or goroutine's, errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: errno is an int, and the interrupted code's value is put back.
    let before = unsafe { *errno };
    RAISED.fetch_add(1, SeqCst);
    wake(&RAISED, 1);
    // SAFETY: see above.
    unsafe { *errno = before };
}

fn install(flags: c_int) {
    // SAFETY: an action with a handler that makes async-signal-safe calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()),
            0
        );
    }
}

/// Every thread of the process, again and again: Ms in the scheduler and out of it, plain threads
/// that wake goroutines, and the runtime's own threads.
///
/// After each burst the waiter must see all that was raised: a lost wake-up is not made good by the
/// signal after it.
fn signal_all() {
    for _ in 0..BURSTS {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let tids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
        for tid in tids.map(|tid| tid.parse::<c_int>().unwrap()) {
            // SAFETY: a signal to a thread of this process, or to none.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR2) };
        }
        let raised = RAISED.load(SeqCst);
        assert!(
            eventually_spinning(|| SEEN.load(SeqCst) >= raised),
            "a wake-up was lost"
        );
    }
}

/// Whether it is so within a minute.
fn eventually_spinning(mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// A waiter would sleep for ever if a wake-up were lost, and the process would hang if a handler
/// waited for a lock that it has interrupted.
fn be_signalled(flags: c_int) {
    install(flags);
    gosched::run(|| {
        let waiter = gosched::thread::spawn(|| {
            while !IS_OVER.load(SeqCst) {
                let last = RAISED.load(SeqCst);
                SEEN.store(last, SeqCst);
                if !IS_OVER.load(SeqCst) {
                    let (result, errno) = wait(&RAISED, last);
                    assert!(result == 0 || errno == libc::EAGAIN || errno == libc::EINTR);
                }
            }
        });
        let work = Arc::new(AtomicUsize::new(0));
        let lock = Arc::new(Mutex::new(0));
        let busy: Vec<_> = (0..6)
            .map(|n| {
                let (work, lock) = (Arc::clone(&work), Arc::clone(&lock));
                let (send, receive) = mpsc::channel::<()>();
                let sink = crate::Kind::of(n + 1).start(move || receive.iter().count());
                crate::Kind::of(n).start(move || {
                    while !IS_OVER.load(SeqCst) {
                        *lock.lock().unwrap() += 1;
                        send.send(()).unwrap();
                        std::thread::yield_now();
                        work.fetch_add(1, SeqCst);
                    }
                    drop(send);
                    sink.join();
                })
            })
            .collect();
        let sender = std::thread::spawn(signal_all);
        within(LONG, "the sender of signals", || sender.join().unwrap());
        IS_OVER.store(true, SeqCst);
        RAISED.fetch_add(1, SeqCst);
        wake(&RAISED, 1);
        within(LONG, "the busy ones", || {
            busy.into_iter().for_each(|party| party.join())
        });
        within(LONG, "the waiter", || waiter.join().unwrap());
        assert!(work.load(SeqCst) > 0);
    });
}

#[test]
fn a_handler_may_wake() {
    const OWN: &str = "on the signal stack";
    for variant in [OWN, "on the interrupted stack"] {
        let done = child_of("a_handler_may_wake", variant, |variant| {
            let stack = if variant == OWN { libc::SA_ONSTACK } else { 0 };
            be_signalled(libc::SA_RESTART | stack);
        });
        done.succeeded();
    }
}
