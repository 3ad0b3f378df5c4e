//! `gosched::io`: any descriptor, pipes and standard input, from goroutines and plain threads.
//!
//! Each event that is waited for here is caused by another goroutine or thread. A lost wake-up
//! hangs, and the watchdog reports where.

mod marked;
mod pipes;
mod pollable;
mod reuse;
mod stdin;

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::common::{self, LONG};

/// Runs `f` as a goroutine, and again on a plain thread.
fn everywhere(what: &str, f: impl Fn() + Sync) {
    common::run(2, what, &f);
    common::within(LONG, what, f);
}

fn after(d: Duration) -> Option<Instant> {
    Some(Instant::now() + d)
}

/// What came of it, without what differs from run to run.
fn say<T: Debug>(result: io::Result<T>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}: {error}", error.kind()),
    }
}

#[track_caller]
fn kind<T: Debug>(result: io::Result<T>) -> ErrorKind {
    result.expect_err("an error was due").kind()
}

fn is_nonblocking(file: impl AsFd) -> bool {
    // SAFETY: reads a flag, touches no memory.
    let flags = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GETFL) };
    assert!(flags >= 0);
    flags & libc::O_NONBLOCK != 0
}

/// The new descriptor that a call has returned.
#[track_caller]
fn owned(fd: libc::c_int) -> OwnedFd {
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the callers pass what a call that makes descriptors has just returned.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn timerfd() -> File {
    // SAFETY: touches no memory.
    owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) }).into()
}

/// The timer expires after so long, once.
fn arm(timer: impl AsFd, time: Duration) {
    let zero = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let value = libc::itimerspec {
        it_interval: zero,
        it_value: libc::timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        },
    };
    let fd = timer.as_fd().as_raw_fd();
    // SAFETY: the kernel reads one value of this frame, and may write to none.
    let answer = unsafe { libc::timerfd_settime(fd, 0, &value, std::ptr::null_mut()) };
    assert_eq!(answer, 0);
}

fn eventfd() -> File {
    // SAFETY: touches no memory.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }).into()
}

/// An inotify that reports new files in `folder`.
fn inotify(folder: &std::path::Path) -> File {
    // SAFETY: touches no memory.
    let fd = owned(unsafe { libc::inotify_init1(libc::IN_CLOEXEC) });
    let path = std::ffi::CString::new(folder.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the kernel reads a text of this frame.
    let watch = unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), libc::IN_CREATE) };
    assert!(watch >= 0, "{}", io::Error::last_os_error());
    fd.into()
}

/// A terminal: the side of the screen and the keyboard, and the side of the program.
fn pty() -> (File, File) {
    let (mut master, mut slave) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: the call writes two numbers of this frame; the other arguments may be null.
    let answer = unsafe { libc::openpty(&mut master, &mut slave, none, none.cast(), none.cast()) };
    assert_eq!(answer, 0, "{}", io::Error::last_os_error());
    (owned(master).into(), owned(slave).into())
}
