//! Sockets that are connecting at the same time, and which of them is done.
//!
//! A caller that races connections must wait for the first of several sockets. A wait of the
//! network poller is for one descriptor. So the sockets go into an epoll, and that epoll is the one
//! descriptor: it is readable while it has something to report.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::sys::linux::epoll::{Event, event};
use crate::sys::linux::syscall::{Errno, check, syscall1, syscall4, syscall6};

/// An epoll for sockets that are connecting; CONTEXT: user.
///
/// Its calls are bare: none of them waits, so none is of interest to a hook of libc's functions.
pub(crate) struct RaceSet(OwnedFd);

impl RaceSet {
    pub(crate) fn new() -> io::Result<RaceSet> {
        // SAFETY: the call makes a descriptor and touches no memory (D9: bare call).
        let answer = unsafe { syscall1(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC as usize) };
        let fd = check(answer)? as i32;
        // SAFETY: the descriptor is new, so no other value owns it (D10).
        Ok(RaceSet(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a socket that has begun to connect. The set reports it once. The socket leaves the set
    /// when it is closed.
    pub(crate) fn add(&self, socket: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let event = Event {
            what: event::WRITE | libc::EPOLLONESHOT as u32,
            data: number,
        };
        // SAFETY: the kernel reads the event in this frame (D9: bare call).
        let answer = unsafe {
            syscall4(
                libc::SYS_epoll_ctl,
                self.0.as_raw_fd() as usize,
                libc::EPOLL_CTL_ADD as usize,
                socket.as_raw_fd() as usize,
                &raw const event as usize,
            )
        };
        Ok(check(answer).map(drop)?)
    }

    /// Returns the number of a socket that has connected or failed, `WouldBlock` if there is none.
    /// Never waits.
    pub(crate) fn next(&self) -> io::Result<u64> {
        let mut event = Event { what: 0, data: 0 };
        let at = &raw mut event as usize;
        let look = |call| {
            // SAFETY: the kernel writes at most one event at `at`, which is this frame's own (D9:
            // bare call). A null mask is allowed. The older call ignores the last two arguments.
            check(unsafe { syscall6(call, self.0.as_raw_fd() as usize, at, 1, 0, 0, 0) })
        };
        loop {
            // A filter may refuse the newer call, which the poller's epoll uses too.
            let answer = match look(libc::SYS_epoll_pwait) {
                Err(Errno(errno)) if errno != libc::EINTR => look(libc::SYS_epoll_wait),
                answer => answer,
            };
            match answer {
                Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(_) => return Ok(event.data),
                Err(Errno(libc::EINTR)) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for RaceSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn each_socket_is_reported_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let set = RaceSet::new().unwrap();
        assert_eq!(set.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let sockets = [TcpStream::connect(addr), TcpStream::connect(addr)].map(Result::unwrap);
        set.add(sockets[0].as_fd(), 7).unwrap();
        set.add(sockets[1].as_fd(), 8).unwrap();
        let mut seen = [set.next().unwrap(), set.next().unwrap()];
        seen.sort_unstable();
        assert_eq!(seen, [7, 8]);
        assert_eq!(set.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_closed_socket_has_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let set = RaceSet::new().unwrap();
        set.add(socket.as_fd(), 7).unwrap();
        drop(socket);
        assert_eq!(set.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
