//! Refusals of the system, switches, signal handlers, and runtimes that end.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use gosched::thread;

use crate::common::{child, child_with, eventually};
use crate::{WHILE, start_timer};

/// Opens files until there are no more numbers.
fn use_up_numbers() -> Vec<OwnedFd> {
    let limit = libc::rlimit {
        rlim_cur: 300,
        rlim_max: 300,
    };
    // SAFETY: the limit is read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let file = std::fs::File::open("/dev/null").unwrap();
    std::iter::from_fn(|| file.try_clone().ok().map(OwnedFd::from)).collect()
}

/// The epoll for descriptors of the program cannot be made: waits hold threads.
#[test]
fn waits_without_a_free_number() {
    child("waits_without_a_free_number", || {
        gosched::run(|| {
            let (a, mut b) = UnixStream::pair().unwrap();
            let mut sleeper = std::process::Command::new("sleep")
                .arg("0.1")
                .spawn()
                .unwrap();
            let all = use_up_numbers();
            let fd = a.as_raw_fd();
            let reader = thread::spawn(move || (&a).read(&mut [0]).unwrap());
            let poller = thread::spawn(move || {
                let poll = libc::pollfd {
                    fd,
                    events: libc::POLLIN | libc::POLLPRI,
                    revents: 0,
                };
                let mut polls = [
                    poll,
                    libc::pollfd {
                        fd: 0,
                        events: 0,
                        revents: 0,
                    },
                ];
                // SAFETY: the structs of this frame are written.
                unsafe { libc::poll(polls.as_mut_ptr(), 2, 10) }
            });
            assert!(poller.join().unwrap() >= 0);
            assert!(sleeper.wait().unwrap().success());
            b.write_all(b"x").unwrap();
            assert_eq!(reader.join().unwrap(), 1);
            drop(all);
        });
    })
    .succeeded();
}

#[test]
fn a_hundred_thousand_descriptors() {
    child("a_hundred_thousand_descriptors", || {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the limit is written and read.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        let most = limit.rlim_cur.min(100_000) as usize;
        gosched::run(move || {
            let (a, b) = UnixStream::pair().unwrap();
            let all: Vec<_> = (0..most - 60).map(|_| a.try_clone().unwrap()).collect();
            // Some of them with a waiter each.
            let readers = all.iter().rev().step_by(all.len() / 100 + 1).map(|stream| {
                let stream = stream.try_clone().unwrap();
                thread::spawn(move || (&stream).read(&mut [0]).unwrap())
            });
            let readers: Vec<_> = readers.take(30).collect();
            gosched::thread::sleep(WHILE);
            (&b).write_all(&vec![0; readers.len()]).unwrap();
            readers
                .into_iter()
                .for_each(|reader| assert_eq!(reader.join().unwrap(), 1));
            drop(all);
        });
    })
    .succeeded();
}

#[test]
fn hooks_are_turned_off() {
    for value in ["off", "-recv", "on"] {
        let set = move |command: &mut std::process::Command| _ = command.env("GOSCHED_HOOK", value);
        let check = |value: &str| {
            let (recv, is_off) = (value != "on", value == "off");
            gosched_hook::install().unwrap();
            let off = |name| {
                let mut all = gosched_hook::FUNCTIONS.iter();
                all.find(|function| function.name() == name)
                    .unwrap()
                    .is_off()
            };
            assert_eq!(
                (off("recv"), off("send"), off("close")),
                (recv, is_off, is_off)
            );
            gosched::run(move || {
                let (a, mut b) = UnixStream::pair().unwrap();
                let reader = thread::spawn(move || (&a).read(&mut [0]).unwrap());
                gosched::thread::sleep(WHILE);
                // libc's call blocks its thread, which the kernel then shows asleep in it.
                let waits = || {
                    let text = gosched::debug::dump().to_string();
                    text.contains("[blocked in")
                };
                if is_off {
                    assert!(eventually(waits));
                }
                b.write_all(b"x").unwrap();
                assert_eq!(reader.join().unwrap(), 1);
            });
        };
        child_with("hooks_are_turned_off", value, set, check).succeeded();
    }
}

#[test]
fn a_wrong_setting_is_an_error() {
    let set = |command: &mut std::process::Command| _ = command.env("GOSCHED_HOOK", "-no_such");
    child_with("a_wrong_setting_is_an_error", "", set, |_| {
        let error = gosched_hook::install().unwrap_err();
        assert!(error.to_string().contains("-no_such"), "{error}");
    })
    .succeeded();
}

/// The number that the signal handler writes to, and the number that it closes.
static WRITES: AtomicI32 = AtomicI32::new(-1);

#[test]
fn signal_handlers_write_and_close() {
    child("signal_handlers_write_and_close", || {
        extern "C" fn handler(_: i32) {
            // SAFETY: async-signal-safe calls, on a number that stays open and one of the handler.
            unsafe {
                let errno = *libc::__errno_location();
                let fd = WRITES.load(SeqCst);
                let duplicate = libc::dup(fd);
                libc::write(duplicate, b"s".as_ptr().cast(), 1);
                libc::close(duplicate);
                *libc::__errno_location() = errno;
            }
        }
        let (mut reader, writer) = std::io::pipe().unwrap();
        WRITES.store(writer.as_raw_fd(), SeqCst);
        start_timer(libc::SA_RESTART);
        // SAFETY: the handler calls async-signal-safe functions only.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(i32) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
        }
        gosched::run(move || {
            let busy: Vec<_> = (0..4)
                .map(|_| {
                    thread::spawn(|| {
                        for n in 0..300u32 {
                            let (mut a, mut b) = UnixStream::pair().unwrap();
                            let reader = thread::spawn(move || b.read(&mut [0]).unwrap());
                            gosched::yield_now();
                            a.write_all(&[n as u8]).unwrap();
                            assert_eq!(reader.join().unwrap(), 1);
                        }
                    })
                })
                .collect();
            let mut signals = 0;
            while signals < 100 || busy.iter().any(|one| !one.is_finished()) {
                signals += reader.read(&mut [0; 100]).unwrap();
            }
            busy.into_iter().for_each(|one| one.join().unwrap());
        });
    })
    .succeeded();
}

/// The handler waits in the kernel, on its own thread: no thread is left with the signal blocked.
#[test]
fn a_signal_handler_that_waits_keeps_its_thread() {
    child("a_signal_handler_that_waits_keeps_its_thread", || {
        extern "C" fn handler(_: i32) {
            // SAFETY: an async-signal-safe call on a number that stays open.
            unsafe { libc::write(WRITES.load(SeqCst), [0u8; 4096].as_ptr().cast(), 4096) };
        }
        let (mut reader, writer) = std::io::pipe().unwrap();
        WRITES.store(writer.as_raw_fd(), SeqCst);
        // SAFETY: the handler calls an async-signal-safe function only.
        unsafe {
            libc::signal(libc::SIGUSR1, handler as extern "C" fn(i32) as usize);
        }
        gosched::run(move || {
            let raiser = thread::spawn(|| {
                for _ in 0..40 {
                    // SAFETY: the signal has a handler.
                    unsafe { libc::raise(libc::SIGUSR1) };
                }
            });
            let mut got = 0;
            while got < 40 * 4096 {
                thread::sleep(WHILE / 10);
                got += reader.read(&mut [0; 4096]).unwrap();
            }
            raiser.join().unwrap();
            for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                let status =
                    std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
                let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
                let mask = mask.map(|mask| u64::from_str_radix(mask.trim(), 16).unwrap());
                assert_eq!(mask.unwrap_or(0) >> (libc::SIGUSR1 - 1) & 1, 0, "{status}");
            }
        });
    })
    .succeeded();
}

#[test]
fn a_runtime_ends_while_its_goroutines_wait() {
    child("a_runtime_ends_while_its_goroutines_wait", || {
        for round in 0..5 {
            let runtime = gosched::Runtime::builder().build().unwrap();
            let streams: Vec<_> = (0..20).map(|_| UnixStream::pair().unwrap()).collect();
            for (a, _) in &streams {
                let a = a.try_clone().unwrap();
                runtime.spawn(move || {
                    let mut poll = libc::pollfd {
                        fd: a.as_raw_fd(),
                        events: 0,
                        revents: 0,
                    };
                    match round % 2 {
                        0 => _ = (&a).read(&mut [0]),
                        // SAFETY: the struct of this frame is written.
                        _ => _ = unsafe { libc::poll(&mut poll, 1, -1) },
                    }
                });
            }
            std::thread::sleep(WHILE);
            match round {
                0..3 => drop(runtime),
                _ => runtime.shutdown(Duration::from_millis(100)),
            }
            // The numbers can be used by the next runtime.
            let (a, mut b) = streams.into_iter().next().unwrap();
            b.write_all(b"xyz").unwrap();
            gosched::run(move || {
                a.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
                assert!((&a).read(&mut [0]).is_ok());
            });
        }
    })
    .succeeded();
}
