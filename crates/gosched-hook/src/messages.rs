//! `sendmsg`, `recvmsg` and their forms for several messages.

use std::ffi::{c_int, c_uint};
use std::time::Duration;

use gosched::hook::{Deadline, Direction};

use crate::fd::{Stop, Wait, answer, attempt, has_error};
use crate::memory::is_readable;
use crate::table;
use crate::vectors::{MOST, Rest};

/// A call that does not wait, or that waits for something else than data.
const OTHER: c_int = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE | libc::MSG_OOB;
const OTHER_SEND: c_int = OTHER | libc::MSG_FASTOPEN;

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
        if flags & OTHER_SEND != 0
            || !table::sendmsg.applies()
            || !is_readable(message, size_of::<libc::msghdr>())
        {
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, message, flags) };
        }
        // SAFETY: the caller's message, which can be read, and its buffers.
        let (whole, rest) = unsafe {
            let whole = *message;
            (whole, Rest::new(whole.msg_iov, whole.msg_iovlen))
        };
        let Some((rest, len)) = rest.and_then(|rest| rest.len().map(|len| (rest, len))) else {
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
            |sent| sent >= len,
            |at, more| attempt(send(at, flags | more | libc::MSG_DONTWAIT)),
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
        // The kernel has the right errno for a wrong pointer.
        let is_wrong = || {
            !timeout.is_null() && !is_readable(timeout, size_of::<libc::timespec>())
                || !is_readable(messages, size_of::<libc::mmsghdr>())
        };
        let is_other = flags & (OTHER | libc::MSG_WAITALL) != 0;
        if is_other || count == 0 || !table::recvmmsg.applies() || is_wrong() {
            if table::recvmmsg.applies() && flags & libc::MSG_WAITALL != 0 {
                table::recvmmsg.count_left();
            }
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, messages, count, flags, timeout) };
        }
        let count = count.min(MOST as c_uint);
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
            let op = || {
                let mut rest = in_time(limit.remaining());
                let time = match timeout.is_null() {
                    true => std::ptr::null_mut(),
                    false => &raw mut rest,
                };
                match got {
                    // The error is left to the next call.
                    1.. if has_error(fd) => Err(libc::EIO),
                    _ => attempt(part(got, once, time) as isize),
                }
            };
            match wait.until_done(op) {
                Ok(n) => got += n as c_uint,
                Err(Stop::Libc) if got > 0 => {
                    table::recvmmsg.count_left();
                    let n = part(got, flags, timeout);
                    return got as c_int + n.max(0);
                }
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
        if !timeout.is_null() {
            // SAFETY: the caller's timespec. As the kernel does, the rest of the time is returned.
            unsafe { *timeout = in_time(limit.remaining()) };
        }
        got as c_int
    };

    fn sendmmsg(
        fd: c_int,
        messages: *mut libc::mmsghdr,
        count: c_uint,
        flags: c_int,
    ) -> c_int = |real| {
        if flags & OTHER_SEND != 0 || count < 1 || !table::sendmmsg.applies() {
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, messages, count, flags) };
        }
        let mut sent = 0;
        // Without waiting, as long as that goes.
        let mut wait = Wait::new(fd, Direction::Write);
        let count = count.min(MOST as c_uint);
        while sent < count {
            // SAFETY: messages from `sent` on, of which there are `count - sent`.
            let at = unsafe { messages.add(sent as usize) };
            // SAFETY: the arguments are the caller's; with another flag, too.
            let op = || attempt(unsafe { real(fd, at, 1, flags | libc::MSG_DONTWAIT) } as isize);
            match wait.until_done(op) {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) if sent > 0 => break,
                stop => {
                    drop(wait);
                    return answer(&table::sendmmsg, stop, || {
                        // SAFETY: the arguments are the caller's.
                        unsafe { real(fd, messages, count, flags) as isize }
                    }) as c_int;
                }
            }
            sent += 1;
            // SAFETY: the kernel has read and written this message.
            let message = unsafe { &mut *at };
            // SAFETY: the caller's message, and its buffers.
            let rest = unsafe { Rest::new(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) };
            let Some((rest, len)) = rest.and_then(|rest| rest.len().map(|len| (rest, len))) else {
                continue;
            };
            if (message.msg_len as usize) < len {
                message.msg_len += send_rest(fd, &rest, message, flags);
            }
            if (message.msg_len as usize) < len {
                break; // as the kernel does
            }
        }
        sent as c_int
    };
}

/// Sends what a message has left. Returns how many bytes more have gone.
fn send_rest(fd: c_int, rest: &Rest, message: &libc::mmsghdr, flags: c_int) -> c_uint {
    let done = message.msg_len as usize;
    // What goes with the message has gone with its first part.
    let mut part = message.msg_hdr;
    part.msg_control = std::ptr::null_mut();
    part.msg_controllen = 0;
    let Some(len) = rest.len() else { return 0 };
    let mut sent = 0;
    while done + sent < len {
        let n = rest.with(done + sent, |iov, count| {
            part.msg_iov = iov.cast_mut();
            part.msg_iovlen = count as _;
            // SAFETY: the buffers are the rest of the caller's. This is the hook above.
            unsafe { sendmsg(fd, &part, flags | libc::MSG_NOSIGNAL) }
        });
        match n {
            1.. => sent += n as usize,
            _ => break,
        }
    }
    sent as c_uint
}

fn in_time(length: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(length.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: length.subsec_nanos().into(),
    }
}
