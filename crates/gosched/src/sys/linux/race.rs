//! Sockets that are connecting at the same time, and which of them is done.
//!
//! A caller that races connections must wait for the first of several sockets. A wait of the
//! network poller is for one descriptor. So the sockets go into an epoll, and that epoll is the one
//! descriptor: it is readable while it has something to report.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An epoll for sockets that are connecting; CONTEXT: user.
pub(crate) struct RaceSet(OwnedFd);

impl RaceSet {
    pub(crate) fn new() -> io::Result<RaceSet> {
        // SAFETY: the call touches no memory.
        match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the descriptor is new, so no other value owns it (D10).
            fd => Ok(RaceSet(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    /// Adds a socket that has begun to connect. The set reports it once. The socket leaves the set
    /// when it is closed.
    pub(crate) fn add(&self, socket: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLOUT | libc::EPOLLONESHOT) as u32,
            u64: number,
        };
        let (set, fd) = (self.0.as_raw_fd(), socket.as_raw_fd());
        // SAFETY: the kernel reads one event of this frame.
        match unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Returns the number of a socket that has connected or failed, `WouldBlock` if there is none.
    /// Never waits.
    pub(crate) fn next(&self) -> io::Result<u64> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        loop {
            // SAFETY: the kernel writes at most one event to this frame; the call returns at once.
            match unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, 0) } {
                1 => return Ok(event.u64),
                0 => return Err(io::ErrorKind::WouldBlock.into()),
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
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
