//! Sockets: a goroutine that would wait in one of these calls parks.
//!
//! Data moves with MSG_DONTWAIT, which concerns one call and not the socket. For `accept` and
//! `connect` there is no such flag. `accept` asks `poll` first; if another thread takes the
//! connection in between, the call only holds its thread. `connect` makes the socket non-blocking
//! until the connection has begun.

use std::ffi::{c_int, c_ulong, c_void};

use gosched::hook::Direction;

use crate::errno;
use crate::fd::{self, Kind, Stop, Wait, answer, attempt, has_failed, is_ready_now, last_look};
use crate::memory::is_readable;
use crate::table::{self, Function};
use crate::vectors::MOST_BYTES;

/// Flags with which a receive does not wait, or waits for something else than data.
const OTHER_RECEIVE: c_int = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE | libc::MSG_OOB;
/// The same for a send.
const OTHER_SEND: c_int = libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_FASTOPEN;

table::hook! {
    fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize = |real| {
        // SAFETY: the arguments are the caller's; with another flag, too.
        let call = |flags| unsafe { real(fd, buf, len, flags) };
        if flags & OTHER_RECEIVE != 0 || !table::recv.applies() {
            return call(flags);
        }
        if flags & libc::MSG_WAITALL != 0 && len > 0 {
            // SAFETY: the buffer is the caller's.
            return unsafe { receive_all(&table::recv, fd, buf, len, flags) };
        }
        let received = receive(fd, len, flags, || call(flags | libc::MSG_DONTWAIT));
        answer(&table::recv, received, || call(flags))
    };

    fn recvfrom(
        fd: c_int,
        buf: *mut c_void,
        len: usize,
        flags: c_int,
        from: *mut libc::sockaddr,
        from_len: *mut libc::socklen_t,
    ) -> isize = |real| {
        // SAFETY: the arguments are the caller's; with another flag, too.
        let call = |flags| unsafe { real(fd, buf, len, flags, from, from_len) };
        if flags & OTHER_RECEIVE != 0 || !table::recvfrom.applies() {
            return call(flags);
        }
        if flags & libc::MSG_WAITALL != 0 && len > 0 {
            if !from.is_null() {
                table::recvfrom.count_left();
                return call(flags);
            }
            // SAFETY: the buffer is the caller's.
            return unsafe { receive_all(&table::recvfrom, fd, buf, len, flags) };
        }
        let received = receive(fd, len, flags, || call(flags | libc::MSG_DONTWAIT));
        answer(&table::recvfrom, received, || call(flags))
    };

    fn send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize = |real| {
        if flags & OTHER_SEND != 0 || !table::send.applies() {
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, buf, len, flags) };
        }
        // SAFETY: the buffer is the caller's, and `at` is not above its length.
        let part = |at: usize, flags| unsafe { real(fd, buf.byte_add(at), len - at, flags) };
        let now = |at, more| attempt(part(at, flags | more | libc::MSG_DONTWAIT));
        let is_all = |sent| sent >= len.min(MOST_BYTES);
        send_all(&table::send, fd, is_all, now, |at| part(at, flags))
    };

    fn sendto(
        fd: c_int,
        buf: *const c_void,
        len: usize,
        flags: c_int,
        to: *const libc::sockaddr,
        to_len: libc::socklen_t,
    ) -> isize = |real| {
        if flags & OTHER_SEND != 0 || !table::sendto.applies() {
            // SAFETY: the arguments are the caller's.
            return unsafe { real(fd, buf, len, flags, to, to_len) };
        }
        // SAFETY: the buffer and the address are the caller's, and `at` is not above the length.
        let part = |at: usize, flags| unsafe {
            real(fd, buf.byte_add(at), len - at, flags, to, to_len)
        };
        let now = |at, more| attempt(part(at, flags | more | libc::MSG_DONTWAIT));
        let is_all = |sent| sent >= len.min(MOST_BYTES);
        send_all(&table::sendto, fd, is_all, now, |at| part(at, flags))
    };

    fn accept(fd: c_int, addr: *mut libc::sockaddr, len: *mut libc::socklen_t) -> c_int = |real| {
        // SAFETY: the arguments are the caller's.
        accepted(&table::accept, fd, || unsafe { real(fd, addr, len) })
    };

    fn accept4(
        fd: c_int,
        addr: *mut libc::sockaddr,
        len: *mut libc::socklen_t,
        flags: c_int,
    ) -> c_int = |real| {
        // SAFETY: the arguments are the caller's.
        accepted(&table::accept4, fd, || unsafe { real(fd, addr, len, flags) })
    };

    fn connect(fd: c_int, addr: *const libc::sockaddr, len: libc::socklen_t) -> c_int = |real| {
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { real(fd, addr, len) };
        // SAFETY: the address is the caller's.
        if !table::connect.applies() || !unsafe { can_connect_without_waiting(addr, len) } {
            return call();
        }
        answer(&table::connect, connect_in_steps(fd, &call), || call() as isize) as c_int
    };

    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = |real| {
        // SAFETY: the call has no condition.
        let fd = unsafe { real(domain, kind, protocol) };
        if fd >= 0 && !table::socket.is_off() {
            fd::opened(fd);
            let is_stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
            let is_tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
                && matches!(protocol, 0 | libc::IPPROTO_TCP);
            if is_stream && is_tcp && let Some(entry) = fd::existing(fd) {
                entry.set_plain_stream(true);
            }
        }
        fd
    };

    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int = |real| {
        // SAFETY: the arguments are the caller's.
        let result = unsafe { real(domain, kind, protocol, pair) };
        if result == 0 && !table::socketpair.is_off() {
            // SAFETY: libc has written both numbers.
            let pair = unsafe { [*pair, *pair.add(1)] };
            pair.into_iter().for_each(fd::opened);
        }
        result
    };

    fn setsockopt(
        fd: c_int,
        level: c_int,
        option: c_int,
        value: *const c_void,
        len: libc::socklen_t,
    ) -> c_int = |real| {
        // SAFETY: the arguments are the caller's.
        let result = unsafe { real(fd, level, option, value, len) };
        match (level, option) {
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | RCVTIMEO_NEW | SNDTIMEO_NEW) => {
                fd::forget_settings(fd);
            }
            (libc::SOL_TCP, libc::TCP_ULP) => {
                // From now on a read may end where a record of the protocol ends.
                if let Some(entry) = fd::existing(fd) {
                    entry.set_plain_stream(false);
                }
            }
            _ => {}
        }
        result
    };
}

/// The options with times of 64 bits, by which 32-bit programs set timeouts.
const RCVTIMEO_NEW: c_int = 66;
const SNDTIMEO_NEW: c_int = 67;

/// Receives once, waiting for data. `len`: the size of the buffers.
fn receive(
    fd: c_int,
    len: usize,
    flags: c_int,
    mut op: impl FnMut() -> isize,
) -> Result<usize, Stop> {
    let mut wait = Wait::new(fd, Direction::Read);
    loop {
        let ticket = wait.ticket();
        if len > 0 && wait.is_drained(ticket) {
            wait.wait(ticket)?;
            continue;
        }
        match attempt(op()) {
            Ok(n) => {
                if 0 < n && n < len && flags & libc::MSG_PEEK == 0 {
                    wait.was_short(ticket);
                }
                return Ok(n);
            }
            // TCP waits once, and then returns 0 whatever has come.
            Err(libc::EAGAIN) if len == 0 && is_stream(fd) => return Err(Stop::Libc),
            Err(libc::EAGAIN) if wait.is_ready_in_vain() => return last_look(attempt(op())),
            Err(libc::EAGAIN) => wait.wait(ticket)?,
            Err(errno) => return Err(Stop::Fail(errno)),
        }
    }
}

/// Receives until the buffer is full (MSG_WAITALL), the peer has ended, or the call fails. A socket
/// that keeps the boundaries of messages receives one message.
///
/// # Safety
/// The buffer is writable.
unsafe fn receive_all(
    function: &Function,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    type Recv = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
    // SAFETY: libc's recv has this type.
    let recv = unsafe { table::recv.real.get::<Recv>() };
    if socket_option(fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX) {
        // The kernel ends such a receive where a message ends that brought descriptors.
        function.count_left();
        // SAFETY: the buffer is the caller's.
        return unsafe { recv(fd, buf, len, flags) };
    }
    if flags & libc::MSG_PEEK != 0 || !is_stream(fd) {
        let once = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
        let is_peek = flags & libc::MSG_PEEK != 0 && is_stream(fd);
        let received = match is_peek {
            true => Err(Stop::Libc),
            // SAFETY: the buffer is the caller's.
            false => receive(fd, len, flags, || unsafe { recv(fd, buf, len, once) }),
        };
        // SAFETY: the buffer is the caller's.
        return answer(function, received, || unsafe { recv(fd, buf, len, flags) });
    }
    let mut got = 0;
    let once = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let mut wait = Wait::new(fd, Direction::Read);
    while got < len.min(MOST_BYTES) {
        // SAFETY: the rest of the caller's buffer.
        let part = |flags| unsafe { recv(fd, buf.byte_add(got), len - got, flags) };
        let done = wait.until_done(|| match got {
            0 => attempt(part(once)),
            // The error is left to the next call.
            _ if leaves_error(fd) => Err(libc::EPIPE),
            _ => attempt(part(once)),
        });
        match done {
            Ok(0) => break,
            Ok(n) => {
                got += n;
                // Urgent data ends a receive.
                if got < len && is_at_mark(fd) {
                    break;
                }
            }
            Err(_) if got > 0 => break,
            stop => return answer(function, stop, || part(flags)),
        }
    }
    got as isize
}

fn is_at_mark(fd: c_int) -> bool {
    type Ioctl = unsafe extern "C" fn(c_int, c_ulong, usize) -> c_int;
    const SIOCATMARK: c_ulong = 0x8905;
    let mut mark: c_int = 0;
    // SAFETY: libc's ioctl takes its third argument as a word on the platforms of this crate. The
    // kernel writes an int.
    let answer = unsafe {
        table::ioctl.real.get::<Ioctl>()(fd, SIOCATMARK, (&raw mut mark).expose_provenance())
    };
    answer == 0 && mark != 0
}

fn is_stream(fd: c_int) -> bool {
    socket_option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// Whether the connection has failed, so that a call that has moved data leaves the error to the
/// next call. A Unix socket drops it.
fn leaves_error(fd: c_int) -> bool {
    has_failed(fd) && socket_option(fd, libc::SO_DOMAIN) != Some(libc::AF_UNIX)
}

/// Whether the descriptor is a socket that accepts connections.
pub(crate) fn is_listening(fd: c_int) -> bool {
    socket_option(fd, libc::SO_ACCEPTCONN) == Some(1)
}

/// An option of a socket whose value is an int.
pub(crate) fn socket_option(fd: c_int, option: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as libc::socklen_t);
    let at = (&raw mut value).cast();
    // SAFETY: libc writes at most `len` bytes to `value`.
    let answer = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, at, &mut len) };
    (answer == 0).then_some(value)
}

/// Sends until `is_all`: a blocking send returns when all bytes are on their way. `part` sends what
/// begins at an offset, without waiting, with flags; `last` does so in libc.
///
/// As in the kernel, an error after the first part is left to the next call, and raises no SIGPIPE.
pub(crate) fn send_all(
    function: &Function,
    fd: c_int,
    is_all: impl Fn(usize) -> bool,
    mut part: impl FnMut(usize, c_int) -> Result<usize, c_int>,
    last: impl FnOnce(usize) -> isize,
) -> isize {
    let mut wait = Wait::new(fd, Direction::Write);
    let mut sent = 0;
    let stop = loop {
        let done = wait.until_done(|| match sent {
            0 => part(0, 0),
            _ if leaves_error(fd) => Err(libc::EPIPE),
            _ => part(sent, libc::MSG_NOSIGNAL),
        });
        match done {
            Ok(n) => {
                sent += n;
                // An empty message, or a file that takes no more.
                if n == 0 || is_all(sent) {
                    return sent as isize;
                }
            }
            Err(stop) => break stop,
        }
    };
    match stop {
        Stop::Fail(_) if sent > 0 => sent as isize,
        Stop::Fail(errno) => errno::fail(errno),
        Stop::Libc => {
            function.count_left();
            match last(sent) {
                n if n >= 0 => sent as isize + n,
                _ if sent > 0 => sent as isize,
                failed => failed,
            }
        }
    }
}

fn accepted(function: &Function, fd: c_int, call: impl Fn() -> c_int) -> c_int {
    let new = if function.applies() {
        let accepted = Wait::new(fd, Direction::Read).until_done(|| {
            // The kernel has the right errno for what does not listen.
            match is_ready_now(fd, libc::POLLIN) || !is_listening(fd) {
                true => attempt(call() as isize),
                false => Err(libc::EAGAIN),
            }
        });
        answer(function, accepted, || call() as isize) as c_int
    } else {
        call()
    };
    if new >= 0 && !function.is_off() {
        let is_plain = fd::existing(fd).is_some_and(|listener| listener.is_plain_stream());
        fd::opened(new);
        if is_plain && let Some(entry) = fd::existing(new) {
            entry.set_plain_stream(true);
        }
    }
    new
}

/// Whether a connection to this address may begin without waiting, and then be waited for.
///
/// # Safety
/// As for `connect`.
unsafe fn can_connect_without_waiting(addr: *const libc::sockaddr, len: libc::socklen_t) -> bool {
    const FAMILY: usize = size_of::<libc::sa_family_t>();
    if (len as usize) < FAMILY || !is_readable(addr.cast::<u8>(), FAMILY) {
        return false;
    }
    // SAFETY: the caller's address begins with its family, and may have any alignment.
    let family = unsafe { (&raw const (*addr).sa_family).read_unaligned() };
    matches!(
        c_int::from(family),
        libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX
    )
}

/// Connects: non-blocking, then waits until the kernel knows how it went.
fn connect_in_steps(fd: c_int, call: &impl Fn() -> c_int) -> Result<usize, Stop> {
    type Fcntl = unsafe extern "C" fn(c_int, c_int, usize) -> c_int;
    // SAFETY: libc's fcntl takes its third argument as a word on the platforms of this crate.
    let fcntl = unsafe { table::fcntl.real.get::<Fcntl>() };
    // SAFETY: no memory is passed.
    let flags = unsafe { fcntl(fd, libc::F_GETFL, 0) };
    let is_socket = fd::entry(fd).is_some_and(|entry| entry.kind(fd) == Some(Kind::Socket));
    if flags < 0 || flags & libc::O_NONBLOCK != 0 || !is_socket {
        return attempt(call() as isize).map_err(Stop::Fail);
    }
    let mut wait = Wait::new(fd, Direction::Write);
    // SAFETY: no memory is passed.
    let set = |flags: c_int| unsafe { fcntl(fd, libc::F_SETFL, flags as usize) };
    set(flags | libc::O_NONBLOCK);
    let begun = attempt(call() as isize);
    set(flags);
    // Another goroutine may have asked for the settings in between.
    fd::forget_settings(fd);
    match begun {
        // The socket connects already, or does from now on.
        Err(libc::EINPROGRESS | libc::EALREADY) => {}
        // The listener's queue is full, which no event ends.
        Err(libc::EAGAIN) => return Err(Stop::Libc),
        done => return done.map_err(Stop::Fail),
    }
    let done = wait.until_done(|| match is_ready_now(fd, libc::POLLOUT) {
        true => Ok(0),
        false => Err(libc::EAGAIN),
    });
    match done {
        // The kernel says how it went, without waiting. If it failed, the socket may connect again.
        Ok(_) => attempt(call() as isize).map_err(Stop::Fail),
        // The socket's timeout for sends has passed.
        Err(Stop::Fail(libc::EAGAIN)) => Err(Stop::Fail(libc::EINPROGRESS)),
        Err(stop) => Err(stop),
    }
}
