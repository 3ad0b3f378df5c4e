//! `read` and `write` of any descriptor, and what opens, closes and changes descriptors.
//!
//! What a goroutine does depends on the kind of file:
//!
//! | kind | how it tries |
//! |---|---|
//! | socket | `recvmsg`, `sendmsg` with MSG_DONTWAIT |
//! | pipe | `preadv2`, `pwritev2` with RWF_NOWAIT; before Linux 5.6 it asks `poll` first |
//! | terminal, eventfd, … | it asks `poll` first |
//! | regular file, directory, disk | libc's call: such a file never waits for another program |

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use gosched::hook::Direction;
use libc::iovec;

use crate::fd::{self, Kind, Wait, answer, attempt, is_ready_now};
use crate::sockets::send_all;
use crate::table::{self, Function};
use crate::vectors::Rest;

table::hook! {
    fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize = |real| {
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { real(fd, buf, len) };
        if !table::read.applies() {
            return call();
        }
        let buffer = iovec { iov_base: buf, iov_len: len };
        reading(&table::read, fd, &buffer, 1, call)
    };

    fn readv(fd: c_int, list: *const iovec, count: c_int) -> isize = |real| {
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { real(fd, list, count) };
        if count < 1 || !table::readv.applies() {
            return call();
        }
        reading(&table::readv, fd, list, count as usize, call)
    };

    fn write(fd: c_int, buf: *const c_void, len: usize) -> isize = |real| {
        if !table::write.applies() {
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, buf, len) };
        }
        // SAFETY: the buffer is the caller's, and `at` is not above its length.
        let call = |at: usize| unsafe { real(fd, buf.byte_add(at), len - at) };
        let with = |at: usize, f: &mut dyn FnMut(*const iovec, usize) -> isize| {
            let rest = iovec {
                iov_base: buf.wrapping_byte_add(at).cast_mut(),
                iov_len: len - at,
            };
            f(&rest, 1)
        };
        writing(&table::write, fd, len, with, call)
    };

    fn writev(fd: c_int, list: *const iovec, count: c_int) -> isize = |real| {
        // SAFETY: the caller's list.
        let rest = unsafe { Rest::new(list, count.max(0) as usize) };
        let len = match rest.len() {
            Some(len) if count > 0 && table::writev.applies() => len,
            // SAFETY: the arguments are the caller's.
            _ => return unsafe { real(fd, list, count) },
        };
        // SAFETY: the list has so many of the caller's buffers.
        let call = |at: usize| rest.with(at, |list, count| unsafe { real(fd, list, count as c_int) });
        let with = |at: usize, f: &mut dyn FnMut(*const iovec, usize) -> isize| rest.with(at, f);
        writing(&table::writev, fd, len, with, call)
    };

    fn close(fd: c_int) -> c_int = |real| {
        if !table::close.is_off() {
            fd::closing(fd);
        }
        // SAFETY: the call is the caller's.
        unsafe { real(fd) }
    };

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = |real| {
        const CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
        if flags & CLOEXEC == 0 && first <= last && !table::close_range.is_off() {
            let most = c_int::MAX as c_uint;
            fd::closing_range(first.min(most) as c_int, last.min(most) as c_int);
        }
        // SAFETY: the call is the caller's.
        unsafe { real(first, last, flags) }
    };

    fn dup(fd: c_int) -> c_int = |real| {
        // SAFETY: the call is the caller's.
        let new = unsafe { real(fd) };
        if new >= 0 && !table::dup.is_off() {
            fd::duplicated(fd, new);
        }
        new
    };

    fn dup2(fd: c_int, new: c_int) -> c_int = |real| {
        // SAFETY: the call is the caller's.
        replaced(&table::dup2, fd, new, || unsafe { real(fd, new) })
    };

    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int = |real| {
        // SAFETY: the call is the caller's.
        replaced(&table::dup3, fd, new, || unsafe { real(fd, new, flags) })
    };

    fn pipe(pair: *mut c_int) -> c_int = |real| {
        // SAFETY: the arguments are the caller's.
        let result = unsafe { real(pair) };
        // SAFETY: libc has written both numbers if it returns 0.
        unsafe { opened_pair(&table::pipe, result, pair) };
        result
    };

    fn pipe2(pair: *mut c_int, flags: c_int) -> c_int = |real| {
        // SAFETY: the arguments are the caller's.
        let result = unsafe { real(pair, flags) };
        // SAFETY: libc has written both numbers if it returns 0.
        unsafe { opened_pair(&table::pipe2, result, pair) };
        result
    };

    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = |real| {
        // SAFETY: the call is the caller's. On the platforms of this crate a third argument that
        // is not fixed is passed as a word, and libc ignores it if the command has none.
        let result = unsafe { real(fd, command, argument) };
        changed(&table::fcntl, fd, command, result);
        result
    };

    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int = |real| {
        // SAFETY: as in `fcntl`.
        let result = unsafe { real(fd, command, argument) };
        changed(&table::fcntl64, fd, command, result);
        result
    };

    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int = |real| {
        // SAFETY: as in `fcntl`.
        let result = unsafe { real(fd, request, argument) };
        if request == libc::FIONBIO && !table::ioctl.is_off() {
            fd::forget_settings(fd);
        }
        result
    };
}

fn changed(function: &Function, fd: c_int, command: c_int, result: c_int) {
    if result < 0 || function.is_off() {
        return;
    }
    match command {
        libc::F_SETFL => fd::forget_settings(fd),
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => fd::duplicated(fd, result),
        _ => {}
    }
}

/// # Safety
/// `pair` has two numbers if `result` is 0.
unsafe fn opened_pair(function: &Function, result: c_int, pair: *const c_int) {
    if result == 0 && !function.is_off() {
        // SAFETY: as the caller promises.
        let pair = unsafe { [*pair, *pair.add(1)] };
        pair.into_iter().for_each(fd::opened);
    }
}

/// `call` makes `new` a number of the file of `fd`, and closes what it was.
fn replaced(function: &Function, fd: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if !function.is_off() && fd != new {
        fd::closing(new);
    }
    let result = call();
    if result >= 0 && fd != new && !function.is_off() {
        fd::duplicated(fd, new);
    }
    result
}

/// The kernel or the file does not know RWF_NOWAIT for pipes.
static HAS_NO_NOWAIT: AtomicBool = AtomicBool::new(false);

/// How a descriptor is tried without waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Message,
    NoWait,
    Poll,
}

/// None: libc's call never waits.
fn way(fd: c_int) -> Option<Way> {
    match fd::entry(fd)?.kind(fd)? {
        Kind::File => None,
        Kind::Socket => Some(Way::Message),
        Kind::Pipe if !HAS_NO_NOWAIT.load(Relaxed) => Some(Way::NoWait),
        Kind::Pipe | Kind::Other => Some(Way::Poll),
    }
}

/// Reads once. `call` is libc's function.
fn reading(
    function: &Function,
    fd: c_int,
    list: *const iovec,
    count: usize,
    call: impl Fn() -> isize,
) -> isize {
    let Some(mut way) = way(fd) else {
        return call();
    };
    // SAFETY: the caller's list.
    let list_len = unsafe { Rest::new(list, count) }.len();
    // A read of nothing from a socket returns at once.
    if way == Way::Message && list_len.is_none_or(|len| len == 0) {
        return call();
    }
    let mut wait = Wait::new(fd, Direction::Read);
    let read = wait.until_done(|| {
        if way == Way::NoWait {
            // SAFETY: the buffers are the caller's.
            let n = unsafe { libc::preadv2(fd, list, count as c_int, -1, libc::RWF_NOWAIT) };
            match attempt(n) {
                Err(libc::EOPNOTSUPP | libc::ENOSYS) => {
                    HAS_NO_NOWAIT.store(true, Relaxed);
                    way = Way::Poll;
                }
                done => return done,
            }
        }
        match way {
            Way::Message => attempt(receive(fd, list, count)),
            _ if is_ready_now(fd, libc::POLLIN) => attempt(call()),
            _ => Err(libc::EAGAIN),
        }
    });
    drop(wait);
    answer(function, read, call)
}

fn receive(fd: c_int, list: *const iovec, count: usize) -> isize {
    type Recvmsg = unsafe extern "C" fn(c_int, *mut libc::msghdr, c_int) -> isize;
    // SAFETY: all bits zero are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = list.cast_mut();
    message.msg_iovlen = count as _;
    // SAFETY: libc's recvmsg has this type, and the buffers are the caller's.
    unsafe { table::recvmsg.real.get::<Recvmsg>()(fd, &mut message, libc::MSG_DONTWAIT) }
}

fn transmit(fd: c_int, list: *const iovec, count: usize) -> isize {
    type Sendmsg = unsafe extern "C" fn(c_int, *const libc::msghdr, c_int) -> isize;
    // SAFETY: all bits zero are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = list.cast_mut();
    message.msg_iovlen = count as _;
    // SAFETY: libc's sendmsg has this type, and the buffers are the caller's.
    unsafe { table::sendmsg.real.get::<Sendmsg>()(fd, &message, libc::MSG_DONTWAIT) }
}

/// Writes `len` bytes. `with` lends the buffers that begin at an offset; `call` is libc's function
/// for them.
fn writing(
    function: &Function,
    fd: c_int,
    len: usize,
    with: impl Fn(usize, &mut dyn FnMut(*const iovec, usize) -> isize) -> isize,
    call: impl Fn(usize) -> isize,
) -> isize {
    let Some(mut way) = way(fd) else {
        return call(0);
    };
    if way == Way::Poll {
        let ready = Wait::new(fd, Direction::Write).until_done(|| poll_out(fd));
        return match ready {
            Ok(_) => call(0),
            stop => answer(function, stop, || call(0)),
        };
    }
    send_all(
        function,
        fd,
        len,
        |at| {
            if way == Way::NoWait {
                // SAFETY: the buffers are the caller's.
                let n = with(at, &mut |list, count| unsafe {
                    libc::pwritev2(fd, list, count as c_int, -1, libc::RWF_NOWAIT)
                });
                match attempt(n) {
                    Err(libc::EOPNOTSUPP | libc::ENOSYS) => {
                        HAS_NO_NOWAIT.store(true, Relaxed);
                        way = Way::Poll;
                    }
                    _ => return n,
                }
            }
            match way {
                Way::Message => with(at, &mut |list, count| transmit(fd, list, count)),
                _ => match poll_out(fd) {
                    Ok(_) => call(at),
                    Err(errno) => crate::errno::fail::<isize>(errno),
                },
            }
        },
        &call,
    )
}

fn poll_out(fd: c_int) -> Result<usize, c_int> {
    match is_ready_now(fd, libc::POLLOUT) {
        true => Ok(0),
        false => Err(libc::EAGAIN),
    }
}
