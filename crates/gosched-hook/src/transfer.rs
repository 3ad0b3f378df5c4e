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
    if count == 0 || !function.applies() || kind(out).is_none_or(|kind| kind == Kind::File) {
        return call(count);
    }
    // Something that the other end may let wait: it is read as far as it goes.
    let is_file = kind(from) == Some(Kind::File);
    let mut done = 0;
    while done < count {
        let ready = match is_file {
            true => Ok(()),
            false => until_ready(from, Direction::Read),
        };
        let stop = match ready.and_then(|()| until_ready(out, Direction::Write)) {
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

fn kind(fd: c_int) -> Option<Kind> {
    fd::entry(fd)?.kind(fd)
}

/// Waits until the descriptor is ready. A file always is.
fn until_ready(fd: c_int, direction: Direction) -> Result<(), Stop> {
    let events = match direction {
        Direction::Read => libc::POLLIN,
        Direction::Write => libc::POLLOUT,
    };
    let ready = Wait::new(fd, direction).until_done(|| match is_ready_now(fd, events) {
        true => Ok(0),
        false => Err(libc::EAGAIN),
    });
    ready.map(drop)
}

/// How much a descriptor that reports room takes, as a rule: a socket reports room when a third of
/// its buffer is free.
fn room(out: c_int) -> usize {
    match kind(out) {
        Some(Kind::Socket) => {
            let (mut size, mut len) = (0, size_of::<c_int>() as libc::socklen_t);
            let at = (&raw mut size).cast();
            // SAFETY: libc writes at most `len` bytes to `size`.
            unsafe { libc::getsockopt(out, libc::SOL_SOCKET, libc::SO_SNDBUF, at, &mut len) };
            (size.max(0) as usize / 4).max(LEAST)
        }
        Some(Kind::File) => usize::MAX,
        _ => PIPE_ROOM,
    }
}
