//! `sendmsg`, `recvmsg` and their forms for several messages.

use std::ffi::{c_int, c_uint};
use std::time::Duration;

use gosched::hook::{Deadline, Direction};

use crate::fd::{Wait, answer, attempt};
use crate::table;
use crate::vectors::Rest;

/// A call that does not wait, or that waits for something else than data.
const OTHER: c_int = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE | libc::MSG_OOB;

table::hook! {
    fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize = |real| {
        // SAFETY: the arguments are the caller's; with another flag, too.
        let call = |flags| unsafe { real(fd, message, flags) };
        if flags & OTHER != 0 || !table::recvmsg.applies() {
            return call(flags);
        }
        if flags & libc::MSG_WAITALL != 0 {
            table::recvmsg.count_left();
            return call(flags);
        }
        let mut wait = Wait::new(fd, Direction::Read);
        let received = wait.until_done(|| attempt(call(flags | libc::MSG_DONTWAIT)));
        drop(wait);
        answer(&table::recvmsg, received, || call(flags))
    };

    fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize = |real| {
        if flags & OTHER != 0 || !table::sendmsg.applies() || message.is_null() {
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, message, flags) };
        }
        // SAFETY: the caller's message, and its buffers.
        let (whole, rest) = unsafe {
            let whole = *message;
            (whole, Rest::new(whole.msg_iov, whole.msg_iovlen))
        };
        let Some(len) = rest.len() else {
            // SAFETY: the arguments are the caller's. The kernel says what is wrong with them.
            return unsafe { real(fd, message, flags) };
        };
        let send = |at: usize, flags| {
            if at == 0 {
                // SAFETY: the message is the caller's.
                return unsafe { real(fd, message, flags) };
            }
            // What goes with the message has gone with its first part.
            rest.with(at, |iov, count| {
                let mut part = whole;
                part.msg_iov = iov.cast_mut();
                part.msg_iovlen = count as _;
                part.msg_control = std::ptr::null_mut();
                part.msg_controllen = 0;
                // SAFETY: the buffers are the rest of the caller's.
                unsafe { real(fd, &part, flags) }
            })
        };
        let mut left_at = None;
        let sent = crate::sockets::send_all(
            &table::sendmsg,
            fd,
            len,
            |at| send(at, flags | libc::MSG_DONTWAIT),
            |at| {
                left_at = Some(at);
                0
            },
        );
        match left_at {
            None => sent,
            Some(at) => match send(at, flags) {
                n if n >= 0 => sent + n,
                _ if at > 0 => sent,
                failed => failed,
            },
        }
    };

    fn recvmmsg(
        fd: c_int,
        messages: *mut libc::mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut libc::timespec,
    ) -> c_int = |real| {
        if flags & OTHER != 0 || !table::recvmmsg.applies() {
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, messages, count, flags, timeout) };
        }
        // SAFETY: the caller passes a timespec or null.
        let limit = match unsafe { timeout.as_ref() } {
            None => Deadline::NEVER,
            Some(time) if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) => {
                // SAFETY: the arguments are the caller's. The kernel refuses the time.
                return unsafe { real(fd, messages, count, flags, timeout) };
            }
            Some(time) => Deadline::after(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        };
        // SAFETY: messages from `at` on, of which there are `count - at`.
        let part = |at: c_uint, flags, timeout| unsafe {
            real(fd, messages.add(at as usize), count - at, flags, timeout)
        };
        let once = flags & !libc::MSG_WAITFORONE | libc::MSG_DONTWAIT;
        let mut wait = Wait::new(fd, Direction::Read);
        let mut got = 0;
        while got < count {
            let op = || attempt(part(got, once, std::ptr::null_mut()) as isize);
            match wait.until_done(op) {
                Ok(n) => got += n as c_uint,
                Err(_) if got > 0 => break,
                stop => {
                    drop(wait);
                    return answer(&table::recvmmsg, stop, || part(0, flags, timeout) as isize)
                        as c_int;
                }
            }
            // The kernel, too, looks at the time after each message only.
            if flags & libc::MSG_WAITFORONE != 0 || limit.has_passed() {
                break;
            }
        }
        got as c_int
    };

    fn sendmmsg(
        fd: c_int,
        messages: *mut libc::mmsghdr,
        count: c_uint,
        flags: c_int,
    ) -> c_int = |real| {
        if flags & OTHER != 0 || !table::sendmmsg.applies() || messages.is_null() {
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, messages, count, flags) };
        }
        let mut sent = 0;
        while sent < count {
            // SAFETY: one of the caller's messages.
            let message = unsafe { &mut *messages.add(sent as usize) };
            // SAFETY: the message is the caller's. This is the hook above.
            match unsafe { sendmsg(fd, &message.msg_hdr, flags) } {
                n if n >= 0 => message.msg_len = n as c_uint,
                _ if sent > 0 => break,
                _ => return -1,
            }
            sent += 1;
        }
        sent as c_int
    };
}
