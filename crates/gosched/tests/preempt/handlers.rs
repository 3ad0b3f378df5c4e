//! The signal belongs to the program as well: its own handler, its mask, its choice of another
//! signal.

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicI32;

use super::*;

/// What the program's own handler has seen.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static SENDER: AtomicI32 = AtomicI32::new(0);
static VALUE: AtomicI32 = AtomicI32::new(0);

extern "C" fn own_handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's siginfo; the union's members are read as its code says.
    unsafe {
        CODE.store((*info).si_code, SeqCst);
        SENDER.store((*info).si_pid(), SeqCst);
        if (*info).si_code == libc::SI_QUEUE {
            VALUE.store((*info).si_value().sival_ptr as i32, SeqCst);
        }
    }
    CALLS.fetch_add(1, SeqCst);
}

fn install(signal: i32) {
    let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = own_handler;
    // SAFETY: a zeroed action is a valid one; the handler only writes to atomics.
    let done = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = f as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    assert_eq!(done, 0);
}

fn pid() -> i32 {
    std::process::id() as i32
}

/// Hogs take turns for a while, so preemption is at work.
fn preempt_a_lot(runtime: &Runtime) {
    let work = within(LONG, "the hogs", || {
        checked(runtime, || {
            let hogs = Hogs::new(5);
            thread::sleep(Duration::from_millis(300));
            while hogs.done().contains(&0) {
                thread::sleep(Duration::from_millis(1));
            }
            hogs.end()
        })
    });
    assert!(work.iter().all(|work| *work > 0));
}

/// Waits until the handler was called for the `n`-th time, with this code, from this process.
fn was_called(n: usize, code: i32) {
    assert!(
        eventually(|| CALLS.load(SeqCst) >= n),
        "call {n} is missing"
    );
    assert_eq!(CALLS.load(SeqCst), n);
    assert_eq!((CODE.load(SeqCst), SENDER.load(SeqCst)), (code, pid()));
}

#[test]
fn d7_the_program_s_own_handler_gets_the_program_s_signals_only() {
    let _turn = beside();
    child(
        "handlers::d7_the_program_s_own_handler_gets_the_program_s_signals_only",
        || {
            install(libc::SIGURG);
            let runtime = runtime(2);
            preempt_a_lot(&runtime);
            assert_eq!(CALLS.load(SeqCst), 0, "called for the runtime's signals");
            user_signals(&runtime, libc::SIGURG);
            preempt_a_lot(&runtime);
            assert_eq!(CALLS.load(SeqCst), 4, "called for the runtime's signals");
        },
    )
    .succeeded();
}

/// Signals to the process, with a value, to a plain thread, and to a goroutine's own thread all
/// arrive as they were sent.
fn user_signals(runtime: &Runtime, signal: i32) {
    // SAFETY: signals to this process, which has a handler for them.
    unsafe {
        assert_eq!(libc::kill(pid(), signal), 0);
        was_called(1, libc::SI_USER);
        let value = libc::sigval {
            sival_ptr: 4711 as *mut _,
        };
        assert_eq!(libc::sigqueue(pid(), signal, value), 0);
        was_called(2, libc::SI_QUEUE);
        assert_eq!(VALUE.load(SeqCst), 4711);
        assert_eq!(libc::raise(signal), 0);
        was_called(3, libc::SI_TKILL);
    }
    runtime.run(|| {
        // SAFETY: raises a signal whose handler is installed; touches no memory.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    });
    was_called(4, libc::SI_TKILL);
}

#[test]
fn d7_another_signal_will_do() {
    let _turn = beside();
    child("handlers::d7_another_signal_will_do", || {
        let signal = libc::SIGRTMIN() + 3;
        install(signal);
        install(libc::SIGURG);
        let runtime = Runtime::builder()
            .procs(2)
            .preemption_signal(signal)
            .build()
            .unwrap();
        preempt_a_lot(&runtime);
        assert_eq!(CALLS.load(SeqCst), 0, "called for the runtime's signals");
        user_signals(&runtime, signal);
        // SIGURG is the program's alone.
        // SAFETY: a signal to this thread, which has a handler for it.
        assert_eq!(unsafe { libc::raise(libc::SIGURG) }, 0);
        was_called(5, libc::SI_TKILL);
    })
    .succeeded();
}

#[test]
fn d7_a_signal_that_cannot_be_is_an_error() {
    for signal in [-1, 0, 65, 1000, libc::SIGKILL, libc::SIGSTOP] {
        let built = Runtime::builder().preemption_signal(signal).build();
        assert!(built.is_err(), "signal {signal}");
    }
}

/// The signal of the runtime may have been ignored or left alone before: nothing happens to the
/// process.
#[test]
fn d7_an_earlier_ignore_stays_one() {
    let _turn = beside();
    child("handlers::d7_an_earlier_ignore_stays_one", || {
        // SAFETY: the program does not want it.
        unsafe { libc::signal(libc::SIGURG, libc::SIG_IGN) };
        let runtime = runtime(2);
        preempt_a_lot(&runtime);
        // SAFETY: a signal to this process.
        assert_eq!(unsafe { libc::kill(pid(), libc::SIGURG) }, 0);
        preempt_a_lot(&runtime);
    })
    .succeeded();
}

/// A program that replaces the handler ends preemption by signal. It gets one message, and
/// everything else works.
#[test]
fn d7_a_replaced_handler_is_noticed_and_reported_once() {
    let _turn = beside();
    let output = child(
        "handlers::d7_a_replaced_handler_is_noticed_and_reported_once",
        || {
            let runtime = runtime(2);
            preempt_a_lot(&runtime);
            install(libc::SIGURG);
            within(LONG, "the rest", || {
                checked(&runtime, || {
                    for _ in 0..2 {
                        let hogs = Hogs::new(1);
                        // The other P does all the rest.
                        let until = Instant::now() + Duration::from_millis(700);
                        while Instant::now() < until {
                            let others = [(); 3].map(|()| thread::spawn(gosched::yield_now));
                            others.into_iter().for_each(|other| other.join().unwrap());
                        }
                        hogs.end();
                    }
                });
            });
            assert!(
                CALLS.load(SeqCst) > 0,
                "the runtime's signals go to whoever took its place"
            );
        },
    );
    output.succeeded();
    let said = output.stderr.matches("replaced the handler").count();
    assert_eq!(said, 1, "{output:#?}");
}

/// The runtime's threads do not inherit the signal mask of the thread that starts it, and that mask
/// stays as it was.
#[test]
fn d7_a_blocked_signal_is_unblocked_where_it_is_needed_only() {
    let _turn = beside();
    child(
        "handlers::d7_a_blocked_signal_is_unblocked_where_it_is_needed_only",
        || {
            let is_blocked = || {
                // SAFETY: reads the mask of this thread into our own memory.
                unsafe {
                    let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
                    libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
                    libc::sigismember(&set, libc::SIGURG) == 1
                }
            };
            // SAFETY: changes the mask of this thread.
            unsafe {
                let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
                libc::sigaddset(&mut set, libc::SIGURG);
                assert_eq!(
                    libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()),
                    0
                );
            }
            let runtime = runtime(2);
            preempt_a_lot(&runtime);
            assert!(is_blocked());
            assert!(!runtime.run(is_blocked));
        },
    )
    .succeeded();
}
