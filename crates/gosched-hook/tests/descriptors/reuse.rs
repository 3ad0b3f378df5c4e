//! Numbers that are used again and again, and closes that no hook sees.

use std::ffi::CStr;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;

use gosched::thread;

use crate::common::child;

/// A pair that was waited for, from std.
fn by_std(n: u32) -> UnixStream {
    let (mut a, mut b) = UnixStream::pair().unwrap();
    let reader = thread::spawn(move || {
        let mut bytes = [0; 4];
        a.read_exact(&mut bytes).unwrap();
        (a, u32::from_ne_bytes(bytes))
    });
    gosched::yield_now();
    b.write_all(&n.to_ne_bytes()).unwrap();
    let (a, got) = reader.join().unwrap();
    assert_eq!(got, n);
    a
}

/// As `by_std`, closed inside libc.
fn by_stdio(n: u32) {
    let fd = by_std(n).into_raw_fd();
    close_inside_libc(fd);
}

fn close_inside_libc(fd: i32) {
    // SAFETY: the number is open, and the stream closes it.
    assert_eq!(unsafe { libc::fclose(libc::fdopen(fd, c"r".as_ptr())) }, 0);
}

/// An eventfd: no hooked function makes it. Its number is often that of a socket that `fclose` has
/// closed.
fn by_hand(n: u32) {
    // SAFETY: descriptors of this function, with memory of its frames.
    unsafe {
        let fd = libc::eventfd(0, 0);
        let reader = thread::spawn(move || {
            let mut count = 0u64;
            assert_eq!(libc::read(fd, (&raw mut count).cast(), 8), 8);
            count
        });
        gosched::yield_now();
        let count = u64::from(n) + 1;
        assert_eq!(libc::write(fd, (&raw const count).cast(), 8), 8);
        assert_eq!(reader.join().unwrap(), count);
        libc::close(fd);
    }
}

fn by_gosched(n: u32) {
    let (mut a, mut b) = gosched::os::unix::net::UnixStream::pair().unwrap();
    let reader = thread::spawn(move || {
        let mut bytes = [0; 4];
        a.read_exact(&mut bytes).unwrap();
        u32::from_ne_bytes(bytes)
    });
    gosched::yield_now();
    b.write_all(&n.to_ne_bytes()).unwrap();
    assert_eq!(reader.join().unwrap(), n);
}

fn by_popen(n: u32) {
    let command = std::ffi::CString::new(format!("echo {n}")).unwrap();
    let mut line = [0; 20];
    // SAFETY: the stream is this function's. The line has this length.
    let text = unsafe {
        let stream = libc::popen(command.as_ptr(), c"r".as_ptr());
        assert!(!stream.is_null());
        assert!(!libc::fgets(line.as_mut_ptr(), 20, stream).is_null());
        assert_eq!(libc::pclose(stream), 0);
        CStr::from_ptr(line.as_ptr())
    };
    assert_eq!(text.to_str().unwrap(), format!("{n}\n"));
}

#[test]
fn ten_thousand_times_by_libraries_in_turn() {
    child("ten_thousand_times_by_libraries_in_turn", || {
        gosched::run(|| {
            let all = (0..4).map(|one| {
                thread::spawn(move || {
                    for n in (one * 2_500)..((one + 1) * 2_500) {
                        match n % 4 {
                            0 => drop(by_std(n)),
                            1 => by_stdio(n),
                            2 => by_hand(n),
                            _ => by_gosched(n),
                        }
                        if n % 250 == 0 {
                            by_popen(n);
                        }
                    }
                })
            });
            let all: Vec<_> = all.collect();
            all.into_iter().for_each(|one| one.join().unwrap());
            // What is still open may be registered. Nothing of this test is.
            let registered = registered();
            assert!(registered.len() < 10, "{registered:?}");
        });
    })
    .succeeded();
}

/// The numbers that epolls of this process have registered, without those of the runtime itself.
fn registered() -> Vec<String> {
    let mut all = Vec::new();
    for file in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        all.extend(
            text.lines()
                .filter(|line| line.starts_with("tfd:") && !line.contains("data: fffffffffffffff"))
                .map(str::to_owned),
        );
    }
    all
}

/// A duplicate keeps the file open. Its registration ends with the number it was made for.
#[test]
fn a_closed_number_is_not_registered() {
    child("a_closed_number_is_not_registered", || {
        gosched::run(|| {
            let before = registered().len();
            let kept: Vec<_> = (0..100)
                .map(|n| {
                    let stream = by_std(n);
                    stream.try_clone().unwrap()
                })
                .collect();
            let after = registered();
            assert!(after.len() <= before + 1, "{after:?}");
            assert!(kept.iter().all(|stream| stream.as_raw_fd() >= 0));
        });
    })
    .succeeded();
}

/// sysmon and others take low numbers at any time.
const HIGH: i32 = 700;

/// Moves a descriptor to a high number.
fn move_up(fd: impl IntoRawFd) -> i32 {
    let low = fd.into_raw_fd();
    // SAFETY: a number of this test.
    unsafe {
        let high = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, HIGH);
        assert!(high >= HIGH);
        libc::close(low);
        high
    }
}

/// A pair of sockets that no hooked function has opened. One gets `number`, the other is returned.
fn unseen_pair(number: i32, flags: i32) -> i32 {
    let mut pair = [0; 2];
    // SAFETY: bare calls. The kernel writes both numbers; the first is moved to the high number.
    unsafe {
        let kind = libc::SOCK_STREAM | flags;
        let made = libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, &raw mut pair);
        assert_eq!(made, 0);
        let moved = libc::syscall(libc::SYS_fcntl, pair[0], libc::F_DUPFD, HIGH);
        assert_eq!(moved, i64::from(number));
        libc::syscall(libc::SYS_close, pair[0]);
    }
    pair[1]
}

/// Reads one byte. Negative: the errno.
fn read_one(fd: i32) -> i32 {
    let mut byte = [0u8];
    // SAFETY: the buffer has a byte.
    match unsafe { libc::read(fd, byte.as_mut_ptr().cast(), 1) } {
        -1 => -std::io::Error::last_os_error().raw_os_error().unwrap(),
        _ => byte[0].into(),
    }
}

/// Has a goroutine wait for this end of a pair, so that its settings are remembered.
fn waited_for(number: i32, other: &mut UnixStream) {
    let reader = thread::spawn(move || read_one(number));
    crate::common::until_waiting(1, "IO wait, read");
    other.write_all(&[9]).unwrap();
    assert_eq!(reader.join().unwrap(), 9);
}

/// A number whose flags are remembered. `fclose` closes it, and it gets a file with other flags.
#[test]
fn flags_are_those_of_the_present_file() {
    child("flags_are_those_of_the_present_file", || {
        gosched::run(|| {
            // It was non-blocking, and blocks now.
            let (a, _b) = UnixStream::pair().unwrap();
            a.set_nonblocking(true).unwrap();
            let number = move_up(a);
            for _ in 0..2 {
                assert_eq!(read_one(number), -libc::EAGAIN);
            }
            close_inside_libc(number);
            let other = unseen_pair(number, 0);
            let reader = thread::spawn(move || read_one(number));
            crate::common::until_waiting(1, "IO wait, read");
            // SAFETY: the buffer has a byte.
            assert_eq!(unsafe { libc::write(other, [7u8].as_ptr().cast(), 1) }, 1);
            assert_eq!(reader.join().unwrap(), 7);

            // It blocked, and is non-blocking now.
            let (a, mut b) = UnixStream::pair().unwrap();
            let number = move_up(a);
            waited_for(number, &mut b);
            close_inside_libc(number);
            let _other = unseen_pair(number, libc::SOCK_NONBLOCK);
            for _ in 0..2 {
                assert_eq!(read_one(number), -libc::EAGAIN);
            }
        });
    })
    .succeeded();
}
