//! Signals that arrive while goroutines run and switch.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};
use std::time::{Duration, Instant};

use crate::common::child_of;
use crate::tools::{own, swarm, tid};
use gosched::thread;

thread_local! {
    static MARK: Cell<usize> = const { Cell::new(0) };
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);
/// What the last handler saw.
static SEEN: AtomicUsize = AtomicUsize::new(0);
static SEEN_ON: AtomicI32 = AtomicI32::new(0);

fn errno() -> *mut i32 {
    // SAFETY: every thread has one.
    unsafe { libc::__errno_location() }
}

/// As handlers should be: errno is the same afterwards, also if a call inside failed.
extern "C" fn handler(_: i32) {
    let errno = errno();
    // SAFETY: the errno of the thread that was interrupted; a call that fails.
    unsafe {
        let before = *errno;
        libc::close(-1);
        SEEN.store(MARK.get(), Relaxed);
        SEEN_ON.store(tid(), Relaxed);
        *errno = before;
    }
    HANDLED.fetch_add(1, SeqCst);
}

fn handle(signal: i32, flags: i32) {
    // SAFETY: the handler does what handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(i32) as libc::sighandler_t;
        action.sa_flags = flags | libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// A signal to oneself is handled at once, on this thread, with this goroutine's thread-locals.
#[test]
fn raise_and_pthread_kill_reach_the_goroutine() {
    const NAME: &str = "signals::raise_and_pthread_kill_reach_the_goroutine";
    child_of(NAME, "", |_| {
        handle(libc::SIGUSR1, 0);
        handle(libc::SIGUSR2, libc::SA_ONSTACK);
        let alone = std::sync::Mutex::new(());
        swarm(|trip| {
            MARK.set(trip.number);
            for turn in trip.turns() {
                let signal = [libc::SIGUSR1, libc::SIGUSR2][turn % 2];
                let one_at_a_time = alone.lock().unwrap();
                let before = HANDLED.load(SeqCst);
                // SAFETY: the signals are handled.
                unsafe {
                    *errno() = libc::EXDEV;
                    match turn % 3 {
                        0 => assert_eq!(libc::raise(signal), 0),
                        1 => assert_eq!(libc::pthread_kill(libc::pthread_self(), signal), 0),
                        _ => assert_eq!(
                            libc::syscall(libc::SYS_tgkill, libc::getpid(), tid(), signal),
                            0
                        ),
                    }
                    trip.expect(*errno() == libc::EXDEV);
                }
                trip.expect(HANDLED.load(SeqCst) == before + 1);
                trip.expect(SEEN.load(SeqCst) == trip.number);
                trip.expect(SEEN_ON.load(SeqCst) == tid());
                drop(one_at_a_time);
                trip.step();
            }
        });
    })
    .succeeded();
}

/// The Ms of the process: its threads without this one and without those that only wait.
fn threads() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let tasks = tasks
        .flatten()
        .filter_map(|task| task.file_name().to_str()?.parse().ok());
    tasks.collect()
}

/// Signals all threads until told to stop.
fn storm(stop: &AtomicBool, signals: &[i32]) {
    let mut round = 0;
    while !stop.load(SeqCst) {
        for tid in threads() {
            // SAFETY: the signals are handled; a thread that has ended is no error worth a look.
            unsafe {
                libc::syscall(
                    libc::SYS_tgkill,
                    libc::getpid(),
                    tid,
                    signals[round % signals.len()],
                )
            };
        }
        round += 1;
        // Now and then a moment without signals, so that work continues.
        if round % 8 == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// What goroutines do meanwhile: anything that a handler at the wrong moment could spoil.
///
/// Except errno, which is not looked at here. A handler that interrupts g0 is on the errno of the
/// goroutine that was there last and may run elsewhere by now; what the handler leaves there for a
/// moment that goroutine can see (D6, accepted).
fn life_in_a_storm(number: usize, until: Instant) {
    assert_eq!(MARK.replace(number), 0);
    let own = std::thread::current().id();
    let mut turn = 0;
    while Instant::now() < until || HANDLED.load(SeqCst) <= 1_000 {
        match turn % 8 {
            0 => drop(vec![turn; 100]),
            1 => thread::spawn(move || assert_eq!(MARK.replace(number), 0))
                .join()
                .unwrap(),
            2 => thread::sleep(Duration::from_micros(50)),
            // A goroutine whose end has something to do.
            3 => thread::spawn(|| drop(std::thread::current()))
                .join()
                .unwrap(),
            _ => thread::yield_now(),
        }
        assert_eq!(MARK.get(), number);
        assert_eq!(std::thread::current().id(), own);
        turn += 1;
    }
}

/// Ends the storm, also when something has failed.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Signals on all threads while goroutines switch: handlers find a sane thread, and no goroutine
/// loses its own values.
#[test]
fn a_storm_of_signals_spoils_nothing() {
    const NAME: &str = "signals::a_storm_of_signals_spoils_nothing";
    for procs in ["2", "4"] {
        child_of(NAME, procs, |procs| {
            handle(libc::SIGUSR1, 0);
            handle(libc::SIGUSR2, libc::SA_ONSTACK);
            let (stop, runtime) = (AtomicBool::new(false), own(procs.parse().unwrap()));
            std::thread::scope(|s| {
                s.spawn(|| storm(&stop, &[libc::SIGUSR1, libc::SIGUSR2]));
                let _stops = Stops(&stop);
                let until = Instant::now() + Duration::from_secs(2);
                runtime.run(|| {
                    thread::scope(|s| {
                        for number in 1..=64 {
                            s.spawn(move || life_in_a_storm(number, until));
                        }
                    });
                });
            });
            assert!(HANDLED.load(SeqCst) > 1_000, "{HANDLED:?} signals");
        })
        .succeeded();
    }
}
