//! In the presence of the runtime's own handlers, and of its search for deadlocks.

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use super::tools::*;
use crate::common::{child, child_of, runtime, wait_for, within};
use gosched::signal::notify;
use gosched::{Deadlock, Runtime, chan, thread};

const URG: i32 = libc::SIGURG;

/// Goroutines that never yield, until dropped.
struct Hogs(Arc<AtomicBool>, Vec<thread::JoinHandle<()>>);

impl Hogs {
    fn new(runtime: &Runtime) -> Hogs {
        let is_over = Arc::new(AtomicBool::new(false));
        let hogs = (0..4).map(|_| {
            let is_over = Arc::clone(&is_over);
            runtime.spawn(move || while !is_over.load(SeqCst) {})
        });
        let hogs = hogs.collect();
        Hogs(is_over, hogs)
    }

    /// Waits until some more of them have been interrupted.
    fn work(runtime: &Runtime) {
        let before = interruptions(runtime);
        within(LONG, "the hogs", || {
            while interruptions(runtime) < before + 5 {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }

    fn end(self) {
        self.0.store(true, SeqCst);
        self.1.into_iter().for_each(|hog| hog.join().unwrap());
    }
}

fn interruptions(runtime: &Runtime) -> u64 {
    runtime.metrics().threads_held_by_preempted
}

/// The runtime interrupts goroutines by SIGURG all the time. Only SIGURGs from elsewhere arrive in
/// the channel.
#[test]
fn the_runtime_s_own_signals_are_left_out() {
    for variant in ["asked first", "runtime first", "asked twice"] {
        child_of(
            "runtime::the_runtime_s_own_signals_are_left_out",
            variant,
            |variant| {
                let early = (variant != "runtime first").then(|| notify(&[URG]));
                let runtime = runtime(2);
                let signals = early.unwrap_or_else(|| notify(&[URG]));
                let signals = if variant == "asked twice" {
                    drop(signals);
                    notify(&[URG])
                } else {
                    signals
                };
                let hogs = Hogs::new(&runtime);
                Hogs::work(&runtime);
                assert!(signals.try_recv().is_err(), "one of the runtime's own");
                for _ in 0..50 {
                    kill(URG);
                    assert_eq!(next(&signals), URG);
                }
                assert!(
                    signals.try_recv().is_err(),
                    "told twice, or the runtime's own"
                );
                drop(signals);
                Hogs::work(&runtime);
                kill(URG); // by default it does nothing
                hogs.end();
            },
        )
        .succeeded();
    }
}

/// The program's own handler is called after both, in either order of installation.
#[test]
fn the_program_s_own_handler_below_the_runtime_s() {
    for variant in ["asked first", "runtime first"] {
        child_of(
            "runtime::the_program_s_own_handler_below_the_runtime_s",
            variant,
            |variant| {
                let three: extern "C" fn(_, _, _) = three_arguments;
                set_action(URG, three as usize, libc::SA_SIGINFO | libc::SA_RESTART);
                let early = (variant == "asked first").then(|| notify(&[URG]));
                let runtime = runtime(2);
                let signals = early.unwrap_or_else(|| notify(&[URG]));
                let hogs = Hogs::new(&runtime);
                Hogs::work(&runtime);
                for turn in 1..=20 {
                    kill(URG);
                    assert_eq!(next(&signals), URG);
                    while CALLS.load(SeqCst) < turn {
                        std::thread::yield_now();
                    }
                    assert_eq!(CALLS.load(SeqCst), turn);
                }
                drop(signals);
                raise(URG);
                assert_eq!(CALLS.load(SeqCst), 21);
                Hogs::work(&runtime);
                hogs.end();
                assert_eq!(CALLS.load(SeqCst), 21);
            },
        )
        .succeeded();
    }
}

/// Other signals reach goroutines that compute, block and wait, on any thread.
#[test]
fn a_storm_beside_preemption() {
    child("runtime::a_storm_beside_preemption", || {
        let runtime = runtime(2);
        let hogs = Hogs::new(&runtime);
        let signals = notify(&[libc::SIGUSR1, URG]);
        let until = Instant::now() + Duration::from_millis(700);
        let talkers: Vec<_> = (0..4)
            .map(|seed| {
                runtime.spawn(move || {
                    let mut texts = Vec::new();
                    loop {
                        texts.push(format!("{seed} {:?}", thread::current().id()));
                        thread::yield_now();
                        if texts.len() > 1000 {
                            texts.clear();
                        }
                        raise(libc::SIGUSR1);
                        if Instant::now() >= until {
                            break;
                        }
                    }
                })
            })
            .collect();
        let mut told = [0, 0];
        within(LONG, "the storm", || {
            while Instant::now() < until || told.contains(&0) {
                kill(URG);
                let signal = next(&signals);
                told[usize::from(signal == URG)] += 1;
            }
            talkers.into_iter().for_each(|t| t.join().unwrap());
        });
        assert!(told[0] > 0 && told[1] > 0, "{told:?}");
        Hogs::work(&runtime);
        hogs.end();
        assert_eq!(runtime.metrics().rescues, 0);
    })
    .succeeded();
}

/// The dump on SIGQUIT is printed, and the signal arrives, in either order of installation.
#[test]
fn sigquit_is_shared_with_the_dump() {
    for variant in ["asked first", "runtime first"] {
        let out = child_of(
            "runtime::sigquit_is_shared_with_the_dump",
            variant,
            |variant| {
                let build = || {
                    Runtime::builder()
                        .dump_on_sigquit(true)
                        .build()
                        .expect("a runtime")
                };
                let quit = &[libc::SIGQUIT];
                let (_runtime, signals) = match variant {
                    "asked first" => {
                        let signals = notify(quit);
                        (build(), signals)
                    }
                    _ => (build(), notify(quit)),
                };
                for _ in 0..3 {
                    kill(libc::SIGQUIT);
                    assert_eq!(next(&signals), libc::SIGQUIT);
                    std::thread::sleep(Duration::from_millis(100));
                }
                assert!(signals.is_empty(), "told twice");
                drop(signals);
                kill(libc::SIGQUIT); // dumps only
                std::thread::sleep(Duration::from_millis(300));
            },
        );
        out.succeeded();
        let dumps = out.stderr.matches("SIGQUIT: quit").count();
        assert!((1..=4).contains(&dumps), "{out:#?}");
    }
}

/// The usual way to end: the first signal stops the workers, and the second one ends the process.
#[test]
fn the_first_signal_asks_and_the_second_insists() {
    for variant in ["once", "twice"] {
        let out = child_of(
            "runtime::the_first_signal_asks_and_the_second_insists",
            variant,
            |variant| {
                gosched::run(|| {
                    let stop = notify(&[libc::SIGINT, libc::SIGTERM]);
                    let (done, is_done) = chan::bounded::<()>(0);
                    let ticked = Arc::new(AtomicUsize::new(0));
                    let workers: Vec<_> = (0..4)
                        .map(|_| {
                            let (is_done, ticked) = (is_done.clone(), Arc::clone(&ticked));
                            thread::spawn(move || {
                                let mut jobs = 0;
                                let ticks = chan::tick(Duration::from_millis(1));
                                loop {
                                    chan::select! {
                                        recv(ticks) -> _ => {
                                            jobs += 1;
                                            ticked.fetch_add(1, SeqCst);
                                        }
                                        recv(is_done) -> _ => return jobs,
                                    }
                                }
                            })
                        })
                        .collect();
                    let alarm = notify(&[libc::SIGALRM]);
                    wait_for(&ticked, 1);
                    alarm_in(20);
                    loop {
                        chan::select! {
                            recv(alarm) -> _ => kill(libc::SIGINT),
                            recv(stop) -> signal => {
                                assert_eq!(signal, Ok(libc::SIGINT));
                                break;
                            }
                        }
                    }
                    drop(stop);
                    if variant == "twice" {
                        kill(libc::SIGINT);
                        thread::sleep(LONG);
                    }
                    drop(done);
                    let jobs = workers.into_iter().map(|w| w.join().unwrap());
                    assert!(jobs.sum::<i32>() > 0);
                });
            },
        );
        match variant {
            "once" => out.succeeded(),
            _ => assert_eq!(out.status.signal(), Some(libc::SIGINT), "{out:#?}"),
        }
    }
}

/// A signal from the kernel, some time from now.
fn alarm_in(ms: i64) {
    let value = libc::itimerval {
        it_interval: libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        },
        it_value: libc::timeval {
            tv_sec: ms / 1000,
            tv_usec: ms % 1000 * 1000,
        },
    };
    // SAFETY: reads our own memory; the signal that it sends is received.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &value, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}

fn modes() -> [(&'static str, Deadlock); 2] {
    [("auto", Deadlock::Auto), ("closed", Deadlock::Closed)]
}

fn mode(variant: &str) -> Deadlock {
    let found = modes().into_iter().find(|(name, _)| *name == variant);
    found.expect("a mode").1
}

#[test]
fn u6_a_signal_is_hope() {
    for (variant, _) in modes() {
        child_of("runtime::u6_a_signal_is_hope", variant, |variant| {
            for _ in 0..2 {
                let runtime = Runtime::builder()
                    .procs(2)
                    .deadlock(mode(variant))
                    .build()
                    .unwrap();
                runtime.run(|| {
                    let alarm = notify(&[libc::SIGALRM]);
                    alarm_in(1500);
                    assert_eq!(alarm.recv(), Ok(libc::SIGALRM));
                });
            }
        })
        .succeeded();
    }
}

/// With the last receiver the hope is gone: the dispatcher is none by itself.
#[test]
fn u6_without_a_receiver_there_is_no_hope() {
    for (variant, _) in modes() {
        let out = child_of(
            "runtime::u6_without_a_receiver_there_is_no_hope",
            variant,
            |variant| {
                let runtime = Runtime::builder()
                    .procs(2)
                    .deadlock(mode(variant))
                    .build()
                    .unwrap();
                runtime.run(|| {
                    let alarm = notify(&[libc::SIGALRM]);
                    alarm_in(50);
                    assert_eq!(alarm.recv(), Ok(libc::SIGALRM));
                    drop(alarm);
                    thread::park();
                });
            },
        );
        out.died_with(&["fatal error: all goroutines are asleep - deadlock!"]);
    }
}
