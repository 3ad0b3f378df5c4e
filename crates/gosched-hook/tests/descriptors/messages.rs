//! Messages with data beside them, and flags of receives.

use std::ffi::c_int;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

use crate::{WHILE, both, errno, spawn};

/// Sends one byte with a descriptor.
fn send_with(socket: c_int, fd: c_int) {
    let mut control = [0u64; 4];
    let mut list = libc::iovec {
        iov_base: [7u8].as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: the message and what it names are of this frame; the control data has room for one
    // descriptor.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut list;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let head = libc::CMSG_FIRSTHDR(&message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(head).cast::<c_int>().write_unaligned(fd);
        assert_eq!(libc::sendmsg(socket, &message, 0), 1);
    }
}

/// Receives one byte, and the type and first int of what is beside it.
fn receive_with(socket: c_int) -> (c_int, c_int) {
    let mut control = [0u64; 8];
    let mut byte = [0u8];
    let mut list = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: the message and what it names are of this frame.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut list;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        assert_eq!(libc::recvmsg(socket, &mut message, 0), 1);
        let head = libc::CMSG_FIRSTHDR(&message);
        assert!(!head.is_null());
        (
            (*head).cmsg_type,
            libc::CMSG_DATA(head).cast::<c_int>().read_unaligned(),
        )
    }
}

#[test]
fn descriptors_come_with_messages() {
    both(|| {
        for _ in 0..20 {
            let (a, b) = UnixStream::pair().unwrap();
            let receiver = spawn(move || {
                let (kind, fd) = receive_with(b.as_raw_fd());
                assert_eq!(kind, libc::SCM_RIGHTS);
                // SAFETY: the message has brought this number.
                let mut stream = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
                let mut text = String::new();
                stream.read_to_string(&mut text).unwrap();
                text
            });
            std::thread::sleep(WHILE / 30);
            let (reader, mut writer) = std::io::pipe().unwrap();
            send_with(a.as_raw_fd(), reader.as_raw_fd());
            drop(reader);
            std::thread::sleep(WHILE / 30);
            writer.write_all(b"hello").unwrap();
            drop(writer);
            assert_eq!(receiver.join(), "hello");
        }
    });
}

#[test]
fn credentials_come_with_messages() {
    both(|| {
        let (mut a, b) = UnixStream::pair().unwrap();
        let yes: c_int = 1;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PASSCRED);
        // SAFETY: the option is read.
        let set =
            unsafe { libc::setsockopt(b.as_raw_fd(), level, option, (&raw const yes).cast(), 4) };
        assert_eq!(set, 0);
        let receiver = spawn(move || receive_with(b.as_raw_fd()));
        std::thread::sleep(WHILE);
        a.write_all(b"x").unwrap();
        let pid = std::process::id() as c_int;
        assert_eq!(receiver.join(), (libc::SCM_CREDENTIALS, pid));
    });
}

fn recv(fd: &impl AsRawFd, len: usize, flags: c_int) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: the buffer has this length.
    let n = unsafe { libc::recv(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), len, flags) };
    assert!(n >= 0, "{}", std::io::Error::last_os_error());
    bytes.truncate(n as usize);
    bytes
}

#[test]
fn a_receive_of_all_waits_for_all() {
    both(|| {
        let (mut a, b) = UnixStream::pair().unwrap();
        let reader = spawn(move || {
            let peeked = recv(&b, 5, libc::MSG_PEEK | libc::MSG_WAITALL);
            let all = recv(&b, 5, libc::MSG_WAITALL);
            (peeked, all, recv(&b, 5, libc::MSG_WAITALL))
        });
        for part in ["a", "bc", "de", "fg"] {
            std::thread::sleep(WHILE);
            a.write_all(part.as_bytes()).unwrap();
        }
        drop(a);
        let (peeked, all, rest) = reader.join();
        assert!(!peeked.is_empty());
        assert_eq!((&all[..], &rest[..]), (&b"abcde"[..], &b"fg"[..]));
    });
}

#[test]
fn the_true_length_of_a_datagram() {
    both(|| {
        let (a, b) = UnixDatagram::pair().unwrap();
        let reader = spawn(move || {
            let mut bytes = [0u8; 2];
            // SAFETY: the buffer has this length.
            unsafe { libc::recv(b.as_raw_fd(), bytes.as_mut_ptr().cast(), 2, libc::MSG_TRUNC) }
        });
        std::thread::sleep(WHILE);
        a.send(b"abcdef").unwrap();
        assert_eq!(reader.join(), 6);
    });
}

#[test]
fn wrong_pointers_and_numbers_fail_as_in_libc() {
    both(|| {
        let (a, _b) = UnixStream::pair().unwrap();
        let fd = a.as_raw_fd();
        let wrong = std::ptr::without_provenance_mut::<libc::c_void>(8);
        // SAFETY: the kernel refuses the pointers and the numbers.
        unsafe {
            assert_eq!(
                errno(libc::writev(fd, wrong.cast(), 2) as i64),
                libc::EFAULT
            );
            assert_eq!(errno(libc::readv(fd, wrong.cast(), 2) as i64), libc::EFAULT);
            assert_eq!(
                errno(libc::sendmsg(fd, wrong.cast(), 0) as i64),
                libc::EFAULT
            );
            assert_eq!(
                errno(libc::recvmsg(fd, wrong.cast(), 0) as i64),
                libc::EFAULT
            );
            assert_eq!(errno(libc::sendmmsg(fd, wrong.cast(), 2, 0)), libc::EFAULT);
            assert_eq!(errno(libc::write(fd, wrong, 9) as i64), libc::EFAULT);
            assert_eq!(errno(libc::connect(fd, wrong.cast(), 16)), libc::EFAULT);
            assert_eq!(errno(libc::poll(wrong.cast(), 1, 10)), libc::EFAULT);
            let null = std::ptr::null_mut();
            assert_eq!(
                errno(libc::select(9, wrong.cast(), null, null, null.cast())),
                libc::EFAULT
            );
            for number in [-1, 900, 1_000_000, c_int::MAX] {
                let mut byte = [0u8];
                let at = byte.as_mut_ptr().cast();
                assert_eq!(errno(libc::read(number, at, 1) as i64), libc::EBADF);
                assert_eq!(errno(libc::write(number, at, 1) as i64), libc::EBADF);
                assert_eq!(
                    errno(libc::recv(number, at, 0, libc::MSG_WAITALL) as i64),
                    libc::EBADF
                );
                assert_eq!(
                    errno(libc::accept(number, null.cast(), null.cast())),
                    libc::EBADF
                );
                let mut event: libc::epoll_event = std::mem::zeroed();
                assert_eq!(
                    errno(libc::epoll_wait(number, &mut event, 1, 10)),
                    libc::EBADF
                );
            }
            // Files that are never ready, and calls that fail at once all the same.
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            assert_eq!(
                errno(libc::read(epoll, [0u8].as_mut_ptr().cast(), 1) as i64),
                libc::EINVAL
            );
            assert_eq!(
                errno(libc::accept(fd, null.cast(), null.cast())),
                libc::EINVAL
            );
            assert_eq!(
                errno(libc::accept(epoll, null.cast(), null.cast())),
                libc::ENOTSOCK
            );
            libc::close(epoll);
        }
    });
}

#[test]
fn several_messages_at_once() {
    both(|| {
        let (a, b) = UnixDatagram::pair().unwrap();
        let reader = spawn(move || {
            let mut bytes = [[0u8; 4]; 3];
            let mut lists = bytes.each_mut().map(|bytes| libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: 4,
            });
            // SAFETY: the messages and their buffers are of this frame.
            unsafe {
                let mut messages: [libc::mmsghdr; 3] = std::mem::zeroed();
                for (message, list) in messages.iter_mut().zip(&mut lists) {
                    message.msg_hdr.msg_iov = list;
                    message.msg_hdr.msg_iovlen = 1;
                }
                let null = std::ptr::null_mut();
                let n = libc::recvmmsg(b.as_raw_fd(), messages.as_mut_ptr(), 3, 0, null);
                (n, messages.map(|message| message.msg_len))
            }
        });
        for text in ["a", "bcd", "ef"] {
            std::thread::sleep(WHILE);
            a.send(text.as_bytes()).unwrap();
        }
        assert_eq!(reader.join(), (3, [1, 3, 2]));
    });
}
