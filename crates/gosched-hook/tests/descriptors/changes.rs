//! What happens to waits when descriptors change under them.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gosched::thread;

use crate::common::child;
use crate::{WHILE, both_without_restarts, errno, spawn};

#[test]
fn a_new_timeout_concerns_later_reads() {
    both_without_restarts(|| {
        let (a, mut b) = UnixStream::pair().unwrap();
        let clone = a.try_clone().unwrap();
        let reader = spawn(move || {
            let first = (&clone).read(&mut [0]).unwrap();
            let begun = Instant::now();
            let error = (&clone).read(&mut [0]).unwrap_err().kind();
            (first, error, begun.elapsed())
        });
        crate::until_reading(&[&reader]);
        a.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        std::thread::sleep(WHILE * 3);
        b.write_all(b"x").unwrap();
        let (first, error, took) = reader.join();
        assert_eq!((first, error), (1, ErrorKind::WouldBlock));
        assert!(took >= Duration::from_millis(20));
    });
}

#[test]
fn o_nonblock_through_a_duplicate_concerns_later_reads() {
    both_without_restarts(|| {
        let (a, mut b) = UnixStream::pair().unwrap();
        let (reader, duplicate) = (a.try_clone().unwrap(), a.try_clone().unwrap());
        let waiting = spawn(move || (&a).read(&mut [0]).unwrap());
        crate::until_reading(&[&waiting]);
        duplicate.set_nonblocking(true).unwrap();
        std::thread::sleep(WHILE * 20);
        let mut byte = [0];
        assert_eq!(
            (&reader).read(&mut byte).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        b.write_all(b"x").unwrap();
        assert_eq!(waiting.join(), 1);
        duplicate.set_nonblocking(false).unwrap();
        let waiting = spawn(move || (&reader).read(&mut [0]).unwrap());
        std::thread::sleep(WHILE);
        b.write_all(b"x").unwrap();
        assert_eq!(waiting.join(), 1);
    });
}

/// A thread would wait on: the kernel knows nothing of the close. The hooks end the wait.
#[test]
fn a_close_ends_waits() {
    // Another test, or sysmon, would use a low number at once.
    child("a_close_ends_waits", || {
        // A waiter may look between the first step of the close and the close itself.
        (0..20).for_each(|_| {
            gosched::run(|| {
                let (a, b) = UnixStream::pair().unwrap();
                // SAFETY: the number is this test's.
                let fd = unsafe { libc::fcntl(a.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 700) };
                assert!(fd >= 700);
                drop(a);
                let readers: Vec<_> = (0..3)
                    .map(|_| {
                        thread::spawn(move || {
                            let mut byte = [0u8];
                            // SAFETY: the buffer of this frame is written.
                            errno(unsafe { libc::read(fd, byte.as_mut_ptr().cast(), 1) } as i64)
                        })
                    })
                    .collect();
                let poller = spawn(move || {
                    let mut poll = libc::pollfd {
                        fd,
                        events: libc::POLLIN,
                        revents: 0,
                    };
                    // SAFETY: the struct of this frame is written.
                    (unsafe { libc::poll(&mut poll, 1, -1) }, poll.revents)
                });
                crate::common::until_waiting(4, "IO wait, read");
                // SAFETY: the number of this test.
                unsafe { libc::close(fd) };
                assert_eq!(poller.join(), (1, libc::POLLNVAL));
                assert!(
                    readers
                        .into_iter()
                        .all(|reader| reader.join().unwrap() == libc::EBADF)
                );
                drop(b);
            })
        });
    })
    .succeeded();
}

#[test]
fn dup2_ends_waits_for_what_it_replaces() {
    gosched::run(|| {
        let (a, mut b) = UnixStream::pair().unwrap();
        let (other, mut other_end) = UnixStream::pair().unwrap();
        let fd = a.into_raw_fd();
        let read = move || {
            let mut byte = [0u8];
            // SAFETY: the buffer of this frame is written.
            unsafe { libc::read(fd, byte.as_mut_ptr().cast(), 1) as i64 }
        };
        let reader = thread::spawn(read);
        crate::common::until_waiting(1, "IO wait, read");
        // A dup2 that fails changes nothing.
        // SAFETY: numbers of this test, and one that is not open.
        assert_eq!(errno(unsafe { libc::dup2(987, fd) }), libc::EBADF);
        b.write_all(b"x").unwrap();
        assert_eq!(reader.join().unwrap(), 1);
        let reader = thread::spawn(move || errno(read()));
        crate::common::until_waiting(1, "IO wait, read");
        // SAFETY: numbers of this test.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
        assert_eq!(reader.join().unwrap(), libc::EBADF);
        let reader = thread::spawn(read);
        std::thread::sleep(WHILE);
        other_end.write_all(b"y").unwrap();
        assert_eq!(reader.join().unwrap(), 1);
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    });
}

#[test]
fn two_runtimes_and_a_thread_wait_for_one_descriptor() {
    let (a, mut b) = UnixStream::pair().unwrap();
    let a = std::sync::Arc::new(a);
    let (send, receive) = mpsc::channel();
    let runtimes: Vec<_> = (0..2)
        .map(|_| gosched::Runtime::builder().build().unwrap())
        .collect();
    for runtime in &runtimes {
        for _ in 0..2 {
            let (a, send) = (a.clone(), send.clone());
            runtime.spawn(move || {
                while (&*a).read(&mut [0]).unwrap() == 1 {
                    send.send("goroutine").unwrap();
                }
            });
        }
    }
    let (clone, sender) = (a.clone(), send.clone());
    let thread = std::thread::spawn(move || {
        while (&*clone).read(&mut [0]).unwrap() == 1 {
            sender.send("thread").unwrap();
        }
    });
    drop(send);
    for _ in 0..300 {
        b.write_all(b"x").unwrap();
        receive.recv_timeout(crate::common::LONG).unwrap();
    }
    drop(b);
    assert!(receive.recv().is_err());
    thread.join().unwrap();
}

/// The second runtime's goroutines wait with the poller of the first.
#[test]
fn the_end_of_one_runtime_leaves_the_waits_of_another() {
    let (a, mut b) = UnixStream::pair().unwrap();
    let a = std::sync::Arc::new(a);
    let [first, second] = [0; 2].map(|_| gosched::Runtime::builder().build().unwrap());
    let (send, receive) = mpsc::channel();
    for (name, runtime) in [("first", &first), ("second", &second)] {
        let (a, send) = (a.clone(), send.clone());
        runtime.spawn(move || {
            let n = (&*a).read(&mut [0]).unwrap();
            _ = send.send((name, n));
        });
        std::thread::sleep(WHILE);
    }
    first.shutdown(WHILE);
    // The first runtime's goroutine may have been left to libc, and then takes a byte.
    b.write_all(b"xy").unwrap();
    let second_read = std::iter::from_fn(|| receive.recv_timeout(crate::common::LONG).ok());
    assert!(second_read.into_iter().any(|got| got == ("second", 1)));
    drop(b);
}
