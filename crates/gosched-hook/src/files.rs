//! `read` and `write` of any descriptor, and what opens, closes and changes descriptors.
//!
//! What a goroutine does depends on the kind of file:
//!
//! | kind | how it tries |
//! |---|---|
//! | socket | `recvmsg`, `sendmsg` with MSG_DONTWAIT |
//! | pipe | `preadv2`, `pwritev2` with RWF_NOWAIT; before Linux 6.4 it asks `poll` first |
//! | terminal, eventfd, … | it asks `poll` first |
//! | regular file, directory, disk | libc's call: such a file never waits for another program |

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_ulong, c_void};

use gosched::hook::Direction;
use libc::iovec;

use crate::errno;
use crate::fd::{self, Kind, Wait, answer, attempt, is_ready_now};
use crate::sockets::send_all;
use crate::table::{self, Function};
use crate::vectors::{MOST_BYTES, Rest};

table::hook! {
    fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize = |real| {
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { real(fd, buf, len) };
        if !table::read.applies() {
            return call();
        }
        let buffer = iovec { iov_base: buf, iov_len: len };
        reading(&table::read, fd, &Rest::of(&[buffer]), call)
    };

    fn readv(fd: c_int, list: *const iovec, count: c_int) -> isize = |real| {
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { real(fd, list, count) };
        if count < 1 || !table::readv.applies() {
            return call();
        }
        // SAFETY: the caller's list.
        match unsafe { Rest::new(list, count as usize) } {
            Some(list) if list.len().is_some_and(|len| len > 0) => {
                reading(&table::readv, fd, &list, call)
            }
            _ => call(),
        }
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
        writing(&table::write, fd, len.min(MOST_BYTES), with, call)
    };

    fn writev(fd: c_int, list: *const iovec, count: c_int) -> isize = |real| {
        if count < 1 || !table::writev.applies() {
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, list, count) };
        }
        // SAFETY: the caller's list.
        let rest = unsafe { Rest::new(list, count as usize) };
        let rest = rest.and_then(|rest| rest.len().map(|len| (rest, len)));
        let Some((rest, len)) = rest.filter(|(_, len)| *len > 0) else {
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, list, count) };
        };
        let call = |at: usize| {
            // SAFETY: the list has so many of the caller's buffers.
            rest.with(at, |list, count| unsafe { real(fd, list, count as c_int) })
        };
        let with = |at: usize, f: &mut dyn FnMut(*const iovec, usize) -> isize| rest.with(at, f);
        writing(&table::writev, fd, len, with, call)
    };

    fn close(fd: c_int) -> c_int = |real| {
        // SAFETY: the call is the caller's.
        let call = || unsafe { real(fd) };
        if table::close.is_off() {
            return call();
        }
        fd::closing(fd);
        let result = call();
        errno::keep(|| fd::closed(fd));
        result
    };

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = |real| {
        const CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
        // SAFETY: the call is the caller's.
        let call = || unsafe { real(first, last, flags) };
        if flags & CLOEXEC != 0 || first > last || table::close_range.is_off() {
            return call();
        }
        let [first, last] = [first, last].map(|fd| fd.min(c_int::MAX as c_uint) as c_int);
        fd::closing_range(first, last);
        let result = call();
        errno::keep(|| fd::closed_range(first, last));
        result
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
        replaced(&table::dup2, fd, new, 0, || unsafe { real(fd, new) })
    };

    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int = |real| {
        // SAFETY: the call is the caller's.
        replaced(&table::dup3, fd, new, flags, || unsafe { real(fd, new, flags) })
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
fn replaced(
    function: &Function,
    fd: c_int,
    new: c_int,
    flags: c_int,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // A call that fails leaves `new` as it is.
    let is_right = fd != new && flags & !libc::O_CLOEXEC == 0;
    if is_right && !function.is_off() && is_open(fd) {
        fd::closing(new);
    }
    let result = call();
    if result >= 0 && fd != new && !function.is_off() {
        fd::duplicated(fd, new);
    }
    result
}

fn is_open(fd: c_int) -> bool {
    type Fcntl = unsafe extern "C" fn(c_int, c_int, usize) -> c_int;
    // SAFETY: libc's fcntl takes its third argument as a word on the platforms of this crate.
    unsafe { table::fcntl.real.get::<Fcntl>()(fd, libc::F_GETFD, 0) >= 0 }
}

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
        Kind::Pipe => Some(Way::NoWait),
        Kind::Other => Some(Way::Poll),
    }
}

/// The way has failed with an errno that shows another kind of file, or that the file does not know
/// RWF_NOWAIT. Returns the way that fits; None: the errno is the answer.
#[cold]
fn other_way(fd: c_int, way: Way, errno: c_int) -> Option<Way> {
    let is_wrong = match way {
        Way::Message => errno == libc::ENOTSOCK,
        Way::NoWait => matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS),
        Way::Poll => false,
    };
    if is_wrong && let Some(entry) = fd::entry(fd) {
        entry.check_kind(fd);
    }
    // Asking `poll` first fits every file.
    is_wrong.then_some(Way::Poll)
}

/// Reads once. `call` is libc's function.
fn reading(function: &Function, fd: c_int, list: &Rest, call: impl Fn() -> isize) -> isize {
    let Some(mut way) = way(fd) else {
        return call();
    };
    // A read of nothing returns at once, with data or an error.
    if list.len() == Some(0) {
        return call();
    }
    let no_wait = || {
        list.with(0, |list, count| {
            // SAFETY: the buffers are the caller's.
            attempt(unsafe { libc::preadv2(fd, list, count as c_int, -1, libc::RWF_NOWAIT) })
        })
    };
    let mut wait = Wait::new(fd, Direction::Read);
    let read = wait.until_done(|| {
        let done = match way {
            Way::Message => attempt(list.with(0, |list, count| receive(fd, list, count))),
            Way::NoWait => no_wait(),
            Way::Poll => return ask_first(fd, libc::POLLIN, &call, no_wait),
        };
        match done {
            Err(errno) if let Some(other) = other_way(fd, way, errno) => way = other,
            done => return done,
        }
        ask_first(fd, libc::POLLIN, &call, no_wait)
    });
    drop(wait);
    answer(function, read, call)
}

/// Calls libc's function if `poll` says that it does not wait. Otherwise `no_wait` finds out
/// whether it would: some files cannot be read or written at all, and are never ready.
fn ask_first(
    fd: c_int,
    events: libc::c_short,
    call: impl Fn() -> isize,
    no_wait: impl Fn() -> Result<usize, c_int>,
) -> Result<usize, c_int> {
    if is_ready_now(fd, events) {
        return attempt(call());
    }
    match no_wait() {
        // The file knows no such flag, or the kernel does not.
        Err(libc::EOPNOTSUPP | libc::ENOSYS) => Err(libc::EAGAIN),
        done => done,
    }
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

fn transmit(fd: c_int, list: *const iovec, count: usize, flags: c_int) -> isize {
    type Sendmsg = unsafe extern "C" fn(c_int, *const libc::msghdr, c_int) -> isize;
    // SAFETY: all bits zero are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = list.cast_mut();
    message.msg_iovlen = count as _;
    // SAFETY: libc's sendmsg has this type, and the buffers are the caller's.
    unsafe { table::sendmsg.real.get::<Sendmsg>()(fd, &message, flags | libc::MSG_DONTWAIT) }
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
    let no_wait = |at: usize| {
        // SAFETY: the buffers are the caller's.
        let n = with(at, &mut |list, count| unsafe {
            libc::pwritev2(fd, list, count as c_int, -1, libc::RWF_NOWAIT)
        });
        attempt(n)
    };
    // libc's call decides how much it writes: an eventfd takes 8 bytes of more.
    let is_whole = Cell::new(false);
    let whole = |at: usize| {
        let done = ask_first(fd, libc::POLLOUT, || call(at), || no_wait(at));
        is_whole.set(done.is_ok());
        done
    };
    let part = |at: usize, flags: c_int| {
        let done = match way {
            Way::Message => attempt(with(at, &mut |list, count| {
                transmit(fd, list, count, flags)
            })),
            Way::NoWait => no_wait(at),
            Way::Poll => return whole(at),
        };
        match done {
            Err(errno) if let Some(other) = other_way(fd, way, errno) => way = other,
            done => return done,
        }
        whole(at)
    };
    let is_all = |sent| sent >= len || is_whole.get();
    send_all(function, fd, is_all, part, &call)
}
