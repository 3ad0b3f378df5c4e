//! `gosched::net` and `gosched::os::unix::net`: std's results, from goroutines and plain threads,
//! and Go's deadlines.
//!
//! Each event that is waited for here is caused by another goroutine or thread. A lost wake-up
//! hangs, and the watchdog reports where.

mod api;
mod clones;
mod convert;
mod crowd;
mod deadline;
mod dial;
mod faults;
mod full;
mod homes;
mod names;
mod no_false_deadlock;
mod same;
mod short;
mod slow;
mod storm;

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crate::common::{self, LONG, ms, run, runtime};
use gosched::net::{TcpListener, TcpStream};

/// Runs `f` as a goroutine, and again on a plain thread.
fn everywhere(what: &str, f: impl Fn() + Sync) {
    run(2, what, &f);
    common::within(LONG, what, f);
}

/// Two ends of a connection over loopback.
fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, from) = listener.accept().unwrap();
    assert_eq!(from, client.local_addr().unwrap());
    (client, server)
}

/// What came of it, without what differs from run to run.
fn say<T: Debug>(result: io::Result<T>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}: {error}", error.kind()),
    }
}

#[track_caller]
fn kind<T: Debug>(result: io::Result<T>) -> io::ErrorKind {
    result.expect_err("an error was due").kind()
}

/// A fresh path for a socket; dropping the value removes it.
struct TempPath(PathBuf);

impl TempPath {
    fn new() -> TempPath {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "gosched-net-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, SeqCst)
        );
        let path = std::env::temp_dir().join(name);
        // Of an earlier process with this number, which was killed.
        let _ = std::fs::remove_file(&path);
        TempPath(path)
    }
}

impl AsRef<std::path::Path> for TempPath {
    fn as_ref(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Closing `socket` resets its connection.
fn will_reset(socket: impl AsFd) {
    let value = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the kernel reads one value of this frame.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    assert_eq!(answer, 0);
}

/// Makes the backlog of a listener as short as possible.
fn listens_to_few(socket: impl AsFd) {
    // SAFETY: touches no memory.
    assert_eq!(unsafe { libc::listen(socket.as_fd().as_raw_fd(), 0) }, 0);
}

fn is_nonblocking(socket: impl AsFd) -> bool {
    // SAFETY: reads a flag, touches no memory.
    let flags = unsafe { libc::fcntl(socket.as_fd().as_raw_fd(), libc::F_GETFL) };
    assert!(flags >= 0);
    flags & libc::O_NONBLOCK != 0
}
