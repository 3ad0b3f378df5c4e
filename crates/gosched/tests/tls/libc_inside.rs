//! What libc keeps per thread: errno, the locale, the resolver's state, and the thread's identity.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io::Error;
use std::net::ToSocketAddrs;
use std::sync::Mutex;

use crate::tools::{own, swarm, swarm_of, tid};
use gosched::thread;

fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn set_errno(value: i32) {
    // SAFETY: the address of errno is good for as long as the thread, and written at once.
    unsafe { *libc::__errno_location() = value };
}

/// Fails in one of several ways; what errno must be then.
fn fail(which: usize) -> i32 {
    // SAFETY: calls that fail and touch nothing.
    unsafe {
        match which % 4 {
            0 => {
                assert_eq!(libc::close(-1), -1);
                libc::EBADF
            }
            1 => {
                assert_eq!(libc::open(c"/no/such/file".as_ptr(), libc::O_RDONLY), -1);
                libc::ENOENT
            }
            2 => {
                assert_eq!(libc::kill(libc::getpid(), 1_000), -1);
                libc::EINVAL
            }
            _ => {
                assert_eq!(libc::chdir(c"/dev/null".as_ptr()), -1);
                libc::ENOTDIR
            }
        }
    }
}

#[test]
fn errno_is_kept_over_switches() {
    swarm(|trip| {
        for turn in trip.turns() {
            let expected = fail(trip.number + turn);
            trip.step();
            trip.expect(errno() == expected);
            trip.step();
            trip.expect(errno() == expected);
        }
    });
}

/// Also over the ways of waiting that call the kernel.
#[test]
fn errno_is_kept_over_every_wait() {
    own(2).run(|| {
        thread::scope(|s| {
            for number in 0..32usize {
                s.spawn(move || {
                    for turn in 0..40 {
                        let expected = fail(number + turn);
                        match turn % 4 {
                            0 => thread::sleep(std::time::Duration::from_micros(30)),
                            1 => thread::park_timeout(std::time::Duration::from_micros(30)),
                            2 => {
                                let own = thread::current();
                                gosched::go(move || own.unpark());
                                thread::park();
                            }
                            _ => {
                                thread::spawn(|| fail(1)).join().unwrap();
                            }
                        }
                        assert_eq!(errno(), expected, "turn {turn}");
                    }
                });
            }
        });
    });
}

#[test]
fn a_goroutine_begins_without_an_error() {
    own(2).run(|| {
        for _ in 0..2_000 {
            let body = || {
                let first = errno();
                set_errno(libc::EXDEV);
                first
            };
            assert_eq!(thread::spawn(body).join().unwrap(), 0);
        }
    });
}

/// The character set of the locale in use.
fn codeset() -> String {
    // SAFETY: the text is valid until the locale changes; it is copied at once.
    let text = unsafe { CStr::from_ptr(libc::nl_langinfo(libc::CODESET)) };
    text.to_str().unwrap().to_owned()
}

/// Every other goroutine uses a locale of its own.
#[test]
fn the_locale_is_the_goroutines() {
    // SAFETY: makes a locale; never freed, the goroutines of two runtimes use it.
    let utf8 =
        unsafe { libc::newlocale(libc::LC_ALL_MASK, c"C.UTF-8".as_ptr(), std::ptr::null_mut()) };
    assert!(!utf8.is_null(), "no C.UTF-8: {}", Error::last_os_error());
    let utf8 = utf8.expose_provenance();
    let plain = codeset();
    assert_ne!(plain, "UTF-8", "the test's own locale");
    swarm(|trip| {
        // SAFETY: only asks.
        let first = unsafe { libc::uselocale(std::ptr::null_mut()) };
        trip.expect(first.addr() == usize::MAX); // LC_GLOBAL_LOCALE
        let expected = if trip.number.is_multiple_of(2) {
            // SAFETY: made above, never freed.
            unsafe { libc::uselocale(std::ptr::with_exposed_provenance_mut(utf8)) };
            "UTF-8"
        } else {
            &plain
        };
        // SAFETY: only asks.
        let own = unsafe { libc::uselocale(std::ptr::null_mut()) };
        for _ in trip.turns() {
            trip.step();
            trip.expect(codeset() == expected);
            // SAFETY: only asks.
            trip.expect(unsafe { libc::uselocale(std::ptr::null_mut()) } == own);
            ctype_works(|is_so| trip.expect(is_so));
        }
    });
}

/// The tables of `<ctype.h>` are found through thread-locals.
fn ctype_works(expect: impl Fn(bool)) {
    // SAFETY: pure functions of a number.
    unsafe {
        expect(libc::isalpha(i32::from(b'x')) != 0);
        expect(libc::isdigit(i32::from(b'x')) == 0);
        expect(libc::toupper(i32::from(b'x')) == i32::from(b'X'));
        expect(libc::strtod(c"2.5".as_ptr(), std::ptr::null_mut()) == 2.5);
        expect(libc::strtol(c" 77".as_ptr(), std::ptr::null_mut(), 10) == 77);
        expect(libc::strcasecmp(c"GoRoutine".as_ptr(), c"gorOUTINE".as_ptr()) == 0);
    }
}

#[test]
fn names_are_resolved() {
    swarm_of(16, |trip| {
        for turn in trip.turns() {
            if turn % 20 == 0 {
                let of_name: Vec<_> = ("localhost", 80).to_socket_addrs().unwrap().collect();
                trip.expect(of_name.iter().any(|addr| addr.ip().is_loopback()));
                let of_number: Vec<_> = ("127.0.0.1", 81).to_socket_addrs().unwrap().collect();
                trip.expect(of_number.len() == 1 && of_number[0].port() == 81);
                // A label of 64 bytes is refused before a name server is asked.
                let too_long = "x".repeat(64);
                trip.expect((too_long.as_str(), 1).to_socket_addrs().is_err());
            }
            trip.step();
        }
    });
}

/// What `strerror` says is in a buffer of the thread.
#[test]
fn strerrors_buffer_is_the_goroutines() {
    swarm(|trip| {
        // Numbers without a text are written into the buffer.
        let number = 5_000 + trip.number as i32;
        for _ in trip.turns() {
            // SAFETY: valid until the next call in this thread, which is this goroutine's.
            let text = unsafe { CStr::from_ptr(libc::strerror(number)) };
            trip.step();
            trip.expect(
                text.to_str()
                    .is_ok_and(|text| text.ends_with(&number.to_string())),
            );
        }
    });
}

/// To C a goroutine is a thread of its own as well.
#[test]
fn pthread_self_is_unique_and_stable() {
    let seen = Mutex::new(HashSet::new());
    own(4).run(|| {
        let gate = std::sync::atomic::AtomicUsize::new(0);
        thread::scope(|s| {
            for _ in 0..200 {
                s.spawn(|| {
                    // SAFETY: only asks.
                    let own = unsafe { libc::pthread_self() };
                    assert!(seen.lock().unwrap().insert(own), "all are alive at once");
                    gate.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    while gate.load(std::sync::atomic::Ordering::SeqCst) < 200 {
                        thread::yield_now();
                        // SAFETY: only asks.
                        assert_eq!(unsafe { libc::pthread_self() }, own);
                    }
                });
            }
        });
    });
}

/// The kernel's ids are the thread's, for the kernel knows of no others.
#[test]
fn the_kernels_ids_are_the_threads() {
    swarm(|trip| {
        for _ in trip.turns() {
            trip.step();
            let before = tid();
            // SAFETY: only asks.
            let (of_libc, pid) = unsafe { (libc::gettid(), libc::getpid()) };
            trip.expect(of_libc == before && pid == std::process::id() as i32);
        }
    });
}

#[test]
fn sched_getcpu_tells_the_cpu_one_is_on() {
    own(2).run(|| {
        thread::spawn(|| {
            gosched::lock_os_thread();
            // SAFETY: a set of CPUs may be all zero.
            let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            let size = size_of_val(&all);
            // SAFETY: asks for the mask of this thread.
            assert_eq!(unsafe { libc::sched_getaffinity(0, size, &mut all) }, 0);
            // SAFETY: looks into the set.
            let cpus = (0..1024).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &all) });
            for cpu in cpus.take(8).cycle().take(64) {
                // SAFETY: a zeroed set is valid. The call reads it and changes the mask of this
                // thread, which is locked to this goroutine and ends with it.
                let seen = unsafe {
                    let mut only: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(cpu, &mut only);
                    assert_eq!(libc::sched_setaffinity(0, size, &only), 0);
                    libc::sched_getcpu()
                };
                assert_eq!(seen, cpu as i32);
                thread::yield_now();
            }
        })
        .join()
        .unwrap();
    });
}

/// Backtraces are unwound by tables that are found through locks and caches of the thread.
#[test]
fn backtraces_work_inside() {
    unsafe extern "C" {
        fn backtrace(buffer: *mut *mut libc::c_void, size: i32) -> i32;
    }
    swarm_of(16, |trip| {
        for turn in trip.turns() {
            if turn % 50 == 0 {
                let text = std::backtrace::Backtrace::force_capture().to_string();
                trip.expect(text.contains("libc_inside"));
                let mut frames = [std::ptr::null_mut(); 64];
                // SAFETY: writes at most 64 addresses.
                let len = unsafe { backtrace(frames.as_mut_ptr(), 64) };
                trip.expect((2..64).contains(&len));
            }
            trip.step();
        }
    });
}

/// Environment, time zones and formatted time have buffers and locks in libc.
#[test]
fn time_of_day_is_formatted() {
    swarm_of(16, |trip| {
        let format = CString::new("%Y-%m-%d").unwrap();
        for _ in trip.turns() {
            let mut text = [0u8; 32];
            // SAFETY: plain C with buffers of our own.
            let len = unsafe {
                let mut parts: libc::tm = std::mem::zeroed();
                libc::gmtime_r(&86_400, &mut parts);
                libc::strftime(
                    text.as_mut_ptr().cast(),
                    text.len(),
                    format.as_ptr(),
                    &parts,
                )
            };
            trip.step();
            trip.expect(&text[..len] == b"1970-01-02");
        }
    });
}
