//! Descriptors of unmodified code: what std and libc document holds on goroutines as on threads.
//!
//! Most tests run twice, on a plain thread and on a goroutine (`both`). `again` runs the whole
//! binary with disorder from the runtime and with a timer's signal.

#[path = "../../../gosched/tests/common/mod.rs"]
mod common;

mod again;
mod changes;
mod children;
mod limits;
mod messages;
mod polling;
mod reuse;
mod std_net;
mod std_sockets;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Once;
use std::time::Duration;

use gosched_hook as _;

/// Set for a run of this binary with a timer's signal.
const TIMER: &str = "GOSCHED_HOOK_TEST_TIMER";

/// Long enough for another goroutine to wait in its call, as a rule.
const WHILE: Duration = Duration::from_millis(30);

/// Runs the body on a thread, where calls are libc's, and on a goroutine.
fn both(body: fn()) {
    timer();
    std::thread::spawn(body).join().expect("on a thread");
    gosched::run(body);
}

/// As `both`, for calls with a timeout, or whose settings change while they wait. On a thread a
/// signal ends such a call, or restarts it with the new settings. With a timer the body runs on a
/// goroutine alone.
fn both_without_restarts(body: fn()) {
    timer();
    if std::env::var_os(TIMER).is_none() {
        std::thread::spawn(body).join().expect("on a thread");
    }
    gosched::run(body);
}

/// A thread, or a goroutine if the caller is one.
fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Spawned<T> {
    if gosched::hook::can_park() {
        return Spawned::Goroutine(gosched::thread::spawn(f));
    }
    let (send, receive) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        send.send(common::tid()).expect("the caller waits");
        f()
    });
    Spawned::Thread(thread, receive.recv().expect("the thread begins"))
}

/// Waits until these threads or goroutines wait for descriptors.
fn until_reading<T>(all: &[&Spawned<T>]) {
    let mut waiting = 0;
    for one in all {
        match one {
            Spawned::Goroutine(_) => waiting += 1,
            Spawned::Thread(_, tid) => common::until(|| {
                let name = format!("/proc/self/task/{tid}/syscall");
                let call = std::fs::read_to_string(name).unwrap_or_default();
                let number = call
                    .split(' ')
                    .next()
                    .and_then(|number| number.parse().ok());
                const CALLS: [i64; 3] = [libc::SYS_read, libc::SYS_recvfrom, libc::SYS_poll];
                number.is_some_and(|number| CALLS.contains(&number))
            }),
        }
    }
    if waiting > 0 {
        common::until_waiting(waiting, "IO wait, read");
    }
}

enum Spawned<T> {
    /// With its thread id.
    Thread(std::thread::JoinHandle<T>, i32),
    Goroutine(gosched::thread::JoinHandle<T>),
}

impl<T> Spawned<T> {
    #[track_caller]
    fn join(self) -> T {
        match self {
            Spawned::Thread(thread, _) => thread.join().expect("no panic"),
            Spawned::Goroutine(goroutine) => goroutine.join().expect("no panic"),
        }
    }
}

/// Starts the timer if this run has one.
fn timer() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if std::env::var_os(TIMER).is_some() {
            start_timer(libc::SA_RESTART);
        }
    });
}

/// SIGALRM every millisecond.
fn start_timer(flags: i32) {
    extern "C" fn nothing(_: i32) {}
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: 1_000,
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: the handler does nothing. The structs of this frame are read.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()),
            0
        );
        assert_eq!(setitimer(0, &timer, std::ptr::null_mut()), 0);
    }
}

unsafe extern "C" {
    fn setitimer(which: i32, new: *const libc::itimerval, old: *mut libc::itimerval) -> i32;
}

/// A TCP socket that has a port and does not listen: connections are refused. A listener that is
/// closed may live on for a moment, in a child of another test.
fn bound() -> (OwnedFd, SocketAddr) {
    let mut addr = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be(),
        },
        sin_zero: [0; 8],
    };
    let mut len = size_of_val(&addr) as u32;
    // SAFETY: a new socket; the address of this frame is read and written.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert_eq!(libc::bind(fd, (&raw const addr).cast(), len), 0);
        assert_eq!(libc::getsockname(fd, (&raw mut addr).cast(), &mut len), 0);
        OwnedFd::from_raw_fd(fd)
    };
    (
        socket,
        (Ipv4Addr::LOCALHOST, u16::from_be(addr.sin_port)).into(),
    )
}

/// The errno of a call that has returned a negative number.
fn errno<T: Into<i64>>(result: T) -> i32 {
    assert_eq!(result.into(), -1);
    std::io::Error::last_os_error().raw_os_error().unwrap()
}
