//! `sendfile` and `splice`: the goroutine waits until both ends are ready, then the kernel moves
//! data.
//!
//! The kernel has no flag by which these calls do not wait. So a call moves only a part of what the
//! receiving end has room for. Where that was too much after all, the call holds its thread for a
//! moment.

use std::ffi::{c_int, c_uint};

use gosched::hook::Direction;
use libc::off64_t;

use crate::errno;
use crate::fd::{self, Kind, Stop, Wait, is_ready_now};
use crate::sockets::{is_listening, socket_option};
use crate::table::{self, Function};

/// What a socket surely takes when it reports room.
const LEAST: usize = 4096;
/// What a pipe surely takes when it reports room.
const PIPE_ROOM: usize = 4096;

table::hook! {
    fn sendfile(out: c_int, from: c_int, offset: *mut libc::off_t, count: usize) -> isize = |real| {
        // SAFETY: the arguments are the caller's.
        moved(&table::sendfile, out, from, count, |n| unsafe { real(out, from, offset, n) })
    };

    fn sendfile64(out: c_int, from: c_int, offset: *mut off64_t, count: usize) -> isize = |real| {
        // SAFETY: the arguments are the caller's.
        moved(&table::sendfile64, out, from, count, |n| unsafe { real(out, from, offset, n) })
    };

    fn splice(
        from: c_int,
        from_offset: *mut off64_t,
        out: c_int,
        out_offset: *mut off64_t,
        count: usize,
        flags: c_uint,
    ) -> isize = |real| {
        // SAFETY: the arguments are the caller's.
        let call = |n| unsafe { real(from, from_offset, out, out_offset, n, flags) };
        if flags & libc::SPLICE_F_NONBLOCK != 0 || count == 0 || !table::splice.applies() {
            return call(count);
        }
        if !is_from_pipe_or_into_one(from, out) || !from_offset.is_null() || !out_offset.is_null() {
            // To or from a file, which does not wait; or the kernel refuses it.
            return call(count);
        }
        for (fd, direction) in [(from, Direction::Read), (out, Direction::Write)] {
            match until_ready(fd, direction) {
                Ok(()) => {}
                Err(Stop::Fail(errno)) => return errno::fail(errno),
                Err(Stop::Libc) => {
                    table::splice.count_left();
                    return call(count);
                }
            }
        }
        call(count.min(room(out)))
    };
}

/// Moves all of `count` from a file, in parts.
fn moved(
    function: &Function,
    out: c_int,
    from: c_int,
    count: usize,
    call: impl Fn(usize) -> isize,
) -> isize {
    if count == 0 || !function.applies() || kind(out) == Some(Kind::File) {
        return call(count);
    }
    if kind(from) != Some(Kind::File) || !may(from, Direction::Read) || !takes_data(out) {
        // The kernel refuses it, or it is seldom enough.
        function.count_left();
        return call(count);
    }
    let mut done = 0;
    while done < count {
        let stop = match until_ready(out, Direction::Write) {
            Ok(()) => match call((count - done).min(room(out))) {
                0 => break,
                n if n > 0 => {
                    done += n as usize;
                    continue;
                }
                _ => Stop::Fail(errno::get()),
            },
            Err(stop) => stop,
        };
        match stop {
            _ if done > 0 => break,
            Stop::Fail(errno) => return errno::fail(errno),
            Stop::Libc => {
                function.count_left();
                return call(count);
            }
        }
    }
    done as isize
}

/// Whether the kernel moves data between the two, one of which may let the other wait: a pipe and a
/// socket, or two pipes.
fn is_from_pipe_or_into_one(from: c_int, out: c_int) -> bool {
    let is_one_of = |fd| matches!(kind(fd), Some(Kind::Pipe | Kind::Socket));
    let has_pipe = [from, out].iter().any(|fd| kind(*fd) == Some(Kind::Pipe));
    has_pipe
        && is_one_of(from)
        && is_one_of(out)
        && may(from, Direction::Read)
        && !is_listening(from)
        && takes_data(out)
        && inode(from) != inode(out)
        // O_NONBLOCK of one end concerns both.
        && (flags(from) | flags(out)) & libc::O_NONBLOCK == 0
}

/// Whether a write may wait for room.
fn takes_data(out: c_int) -> bool {
    let is_right = matches!(kind(out), Some(Kind::Pipe | Kind::Socket));
    is_right && may(out, Direction::Write) && !is_listening(out)
}

/// The descriptor's flags; negative: it is not open.
fn flags(fd: c_int) -> c_int {
    type Fcntl = unsafe extern "C" fn(c_int, c_int, usize) -> c_int;
    // SAFETY: libc's fcntl takes its third argument as a word on the platforms of this crate.
    unsafe { table::fcntl.real.get::<Fcntl>()(fd, libc::F_GETFL, 0) }
}

/// Whether the descriptor is open for this direction.
fn may(fd: c_int, direction: Direction) -> bool {
    let flags = flags(fd);
    let other = match direction {
        Direction::Read => libc::O_WRONLY,
        Direction::Write => libc::O_RDONLY,
    };
    flags >= 0 && flags & (libc::O_ACCMODE | libc::O_PATH) != other
}

/// The two ends of one pipe have the same.
fn inode(fd: c_int) -> (libc::dev_t, libc::ino_t) {
    // SAFETY: all bits zero are a stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: libc writes the stat.
    unsafe { libc::fstat(fd, &mut stat) };
    (stat.st_dev, stat.st_ino)
}

fn kind(fd: c_int) -> Option<Kind> {
    fd::entry(fd)?.kind(fd)
}

/// Waits until the descriptor is ready. A file always is.
fn until_ready(fd: c_int, direction: Direction) -> Result<(), Stop> {
    let events = match direction {
        Direction::Read => libc::POLLIN,
        Direction::Write => libc::POLLOUT,
    };
    let has_room = || direction == Direction::Write && is_unix_with_room(fd);
    let ready =
        Wait::new(fd, direction).until_done(|| match is_ready_now(fd, events) || has_room() {
            true => Ok(0),
            false => Err(libc::EAGAIN),
        });
    ready.map(drop)
}

/// Whether a Unix socket takes a little more. It reports room when three quarters are free.
fn is_unix_with_room(fd: c_int) -> bool {
    type Ioctl = unsafe extern "C" fn(c_int, libc::c_ulong, usize) -> c_int;
    if socket_option(fd, libc::SO_DOMAIN) != Some(libc::AF_UNIX) {
        return false;
    }
    let mut queued: c_int = 0;
    let at = (&raw mut queued).expose_provenance();
    // SAFETY: libc's ioctl takes its third argument as a word on the platforms of this crate. The
    // kernel writes an int.
    let answer = unsafe { table::ioctl.real.get::<Ioctl>()(fd, libc::TIOCOUTQ, at) };
    let size = socket_option(fd, libc::SO_SNDBUF).unwrap_or(0);
    answer == 0 && queued < size
}

/// How much a descriptor that reports room takes, as a rule: a socket reports room when a third of
/// its buffer is free.
fn room(out: c_int) -> usize {
    match kind(out) {
        Some(Kind::Socket) if !is_ready_now(out, libc::POLLOUT) => LEAST,
        Some(Kind::Socket) => {
            let size = socket_option(out, libc::SO_SNDBUF).unwrap_or(0);
            (size.max(0) as usize / 4).max(LEAST)
        }
        Some(Kind::File) => usize::MAX,
        _ => PIPE_ROOM,
    }
}
