//! What sockets need beyond std: connecting without waiting, accepting in one call, reading a
//! descriptor's state.
//!
//! std has none of these. All of it is CONTEXT: user unless noted: libc calls with `errno`, made
//! for the calling goroutine or plain thread.

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net as unix;
use std::time::Duration;

use crate::sys::linux::syscall::{check, syscall6};

/// Splits libc's return value into result and error.
fn cvt(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

/// An address in the kernel's form.
enum RawAddr {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl RawAddr {
    fn new(addr: &SocketAddr) -> RawAddr {
        match addr {
            SocketAddr::V4(v4) => RawAddr::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => RawAddr::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    /// Its address in memory, and its length.
    fn parts(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        match self {
            RawAddr::V4(v4) => ((&raw const *v4).cast(), size_of_val(v4) as libc::socklen_t),
            RawAddr::V6(v6) => ((&raw const *v6).cast(), size_of_val(v6) as libc::socklen_t),
        }
    }
}

/// Converts an address that the kernel has written; an unknown family is an error, as in std.
fn socket_addr(raw: &libc::sockaddr_storage, len: libc::socklen_t) -> io::Result<SocketAddr> {
    let len = len as usize;
    match i32::from(raw.ss_family) {
        libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: `ss_family` and `len` show that the kernel has written a `sockaddr_in`. The
            // storage is larger and aligned for every address, and all fields are plain numbers.
            let v4 = unsafe { &*(&raw const *raw).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: `ss_family` and `len` show that the kernel has written a `sockaddr_in6`. The
            // storage is larger and aligned for every address, and all fields are plain numbers.
            let v6 = unsafe { &*(&raw const *raw).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "invalid argument",
        )),
    }
}

/// A TCP socket of the address's family, non-blocking; CONTEXT: user.
pub(crate) fn tcp_socket(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call touches no memory of ours. The descriptor it returns is new, so no other
    // value owns it (D10).
    unsafe { cvt(libc::socket(family, kind, 0)).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Gives a socket that is not connected yet its local address; CONTEXT: user.
pub(crate) fn tcp_bind(fd: BorrowedFd<'_>, addr: &SocketAddr) -> io::Result<()> {
    let raw = RawAddr::new(addr);
    let (at, len) = raw.parts();
    // SAFETY: `at` and `len` are those of an address in this frame, which the kernel only reads.
    cvt(unsafe { libc::bind(fd.as_raw_fd(), at, len) }).map(drop)
}

/// Begins to connect a non-blocking socket. Returns true if it is connected, false if the kernel is
/// still connecting; CONTEXT: user.
pub(crate) fn connect_begin(fd: BorrowedFd<'_>, addr: &SocketAddr) -> io::Result<bool> {
    let raw = RawAddr::new(addr);
    let (at, len) = raw.parts();
    // SAFETY: `at` and `len` are those of an address in this frame, which the kernel only reads.
    match cvt(unsafe { libc::connect(fd.as_raw_fd(), at, len) }) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EISCONN) => Ok(true),
            Some(libc::EINPROGRESS | libc::EALREADY | libc::EINTR) => Ok(false),
            _ => Err(error),
        },
    }
}

/// A non-blocking stream socket of the Unix domain; CONTEXT: user.
pub(crate) fn unix_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call touches no memory of ours. The descriptor it returns is new, so no other
    // value owns it (D10).
    unsafe { cvt(libc::socket(libc::AF_UNIX, kind, 0)).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Connects a non-blocking socket of the Unix domain. Returns `WouldBlock` if the accept queue is
/// full; the kernel sends no event when that changes. CONTEXT: user.
pub(crate) fn unix_connect(fd: BorrowedFd<'_>, addr: &unix::SocketAddr) -> io::Result<()> {
    let (raw, len) = unix_addr(addr);
    // SAFETY: address and length are those of a value in this frame, which the kernel only reads.
    cvt(unsafe { libc::connect(fd.as_raw_fd(), (&raw const raw).cast(), len) }).map(drop)
}

/// An address in the kernel's form, and its length.
fn unix_addr(addr: &unix::SocketAddr) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all fields are plain numbers, for which zero is valid.
    let mut raw: libc::sockaddr_un = unsafe { mem::zeroed() };
    raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // A path ends with a zero byte, an abstract name begins with one. std has checked that both
    // fit.
    let (at, bytes, len) = match (addr.as_pathname(), addr.as_abstract_name()) {
        (Some(path), _) => {
            let bytes = path.as_os_str().as_bytes();
            (0, bytes, bytes.len() + 1)
        }
        (None, Some(name)) => (1, name, name.len() + 1),
        (None, None) => (0, &[][..], 0),
    };
    for (to, from) in raw.sun_path[at..].iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let len = mem::offset_of!(libc::sockaddr_un, sun_path) + len;
    (raw, len as libc::socklen_t)
}

/// Reads from a socket by a bare call: libc's `recv` is a cancellation point, which costs more than
/// it seems; CONTEXT: any.
#[inline]
pub(crate) fn recv(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most the buffer's length into it (D9: bare call).
    let answer = unsafe {
        syscall6(
            libc::SYS_recvfrom,
            fd.as_raw_fd() as usize,
            buf.as_mut_ptr() as usize,
            buf.len(),
            0,
            0,
            0,
        )
    };
    Ok(check(answer)?)
}

/// Writes to a socket, without SIGPIPE, as std does; CONTEXT: any.
#[inline]
pub(crate) fn send(fd: BorrowedFd<'_>, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads the buffer (D9: bare call).
    let answer = unsafe {
        syscall6(
            libc::SYS_sendto,
            fd.as_raw_fd() as usize,
            buf.as_ptr() as usize,
            buf.len(),
            libc::MSG_NOSIGNAL as usize,
            0,
            0,
        )
    };
    Ok(check(answer)?)
}

/// The most buffers that one read or write takes (`UIO_MAXIOV`).
pub(crate) const IOV_MAX: usize = 1024;
/// The most bytes that one read or write takes (`MAX_RW_COUNT`).
pub(crate) const RW_MAX: usize = 0x7fff_f000;

/// Whether the socket listens for TCP connections without another protocol on top (an *upper layer
/// protocol*, such as kernel TLS); CONTEXT: user.
pub(crate) fn is_plain_listener(fd: BorrowedFd<'_>) -> bool {
    let option = |name| get_option(fd, libc::SOL_SOCKET, name, -1).ok();
    let is_listener = option(libc::SO_ACCEPTCONN) == Some(1);
    is_listener
        && matches!(
            option(libc::SO_DOMAIN),
            Some(libc::AF_INET | libc::AF_INET6)
        )
        && option(libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
        && matches!(
            get_option(fd, libc::IPPROTO_TCP, libc::TCP_ULP, [0u8; 16]),
            Ok([0, ..])
        )
}

/// Whether a write, or the end of a connect, would not block now, with or without an error.
/// CONTEXT: user.
pub(crate) fn is_writable(fd: BorrowedFd<'_>) -> bool {
    poll_now(fd, libc::POLLOUT) != 0
}

/// Whether a read would not block now, with or without an error; CONTEXT: user.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll_now(fd, libc::POLLIN) != 0
}

/// Whether the socket has an error that was not reported yet; CONTEXT: user.
pub(crate) fn has_error(fd: BorrowedFd<'_>) -> bool {
    poll_now(fd, 0) & libc::POLLERR != 0
}

fn poll_now(fd: BorrowedFd<'_>, events: libc::c_short) -> libc::c_short {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one entry, in this frame; the call returns at once.
    match unsafe { libc::poll(&mut poll, 1, 0) } {
        1 => poll.revents,
        _ => 0,
    }
}

/// Accepts a waiting connection, non-blocking from the start; CONTEXT: user.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, SocketAddr)> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    loop {
        let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let at = storage.as_mut_ptr().cast();
        // SAFETY: the kernel writes at most `len` bytes at `at`, which is this frame's own storage.
        let answer = cvt(unsafe { libc::accept4(listener.as_raw_fd(), at, &mut len, flags) });
        match answer {
            Ok(fd) => {
                // SAFETY: `accept4` returned a new descriptor, so no other value owns it (D10).
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                // SAFETY: the storage was zeroed, which is a valid address of no family, and the
                // kernel has written an address over it.
                let storage = unsafe { storage.assume_init_ref() };
                return Ok((fd, socket_addr(storage, len)?));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Lets as many connections wait for `accept` as the system allows; CONTEXT: user.
pub(crate) fn listen_longest(fd: BorrowedFd<'_>) {
    // SAFETY: the call touches no memory. For a socket that already listens it changes only the
    // length of the queue, which the kernel cuts to its own limit. After an error the length is as
    // before.
    unsafe { libc::listen(fd.as_raw_fd(), libc::c_int::MAX) };
}

/// Whether reads and writes of the open file return `WouldBlock`, through any descriptor; CONTEXT:
/// user.
pub(crate) fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: the call reads the flags of an open file and touches no memory.
    let flags = cvt(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    Ok(flags & libc::O_NONBLOCK != 0)
}

/// Sets whether they do; CONTEXT: user.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>, yes: bool) -> io::Result<()> {
    let mut yes = libc::c_int::from(yes);
    // SAFETY: the kernel reads one number of this frame.
    cvt(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONBIO, &mut yes) }).map(drop)
}

fn get_option<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to a value of plain numbers in this frame.
    let answer = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &mut len,
        )
    };
    cvt(answer).map(|_| value)
}

fn set_option<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, value: T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of a value in this frame.
    let answer =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    cvt(answer).map(drop)
}

/// How long closing the socket may wait for its data to be sent; CONTEXT: user.
pub(crate) fn linger(fd: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
    let none = libc::linger {
        l_onoff: 0,
        l_linger: 0,
    };
    let set = get_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, none)?;
    Ok((set.l_onoff != 0).then(|| Duration::from_secs(set.l_linger as u64)))
}

/// Sets the linger time, in whole seconds; CONTEXT: user.
pub(crate) fn set_linger(fd: BorrowedFd<'_>, linger: Option<Duration>) -> io::Result<()> {
    let value = libc::linger {
        l_onoff: libc::c_int::from(linger.is_some()),
        l_linger: linger.unwrap_or_default().as_secs() as libc::c_int,
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, value)
}

/// Selects one of the kernel's two timeouts of a socket.
#[derive(Copy, Clone)]
pub(crate) enum SocketTimeout {
    Receive = libc::SO_RCVTIMEO as isize,
    Send = libc::SO_SNDTIMEO as isize,
}

/// The timeout that the kernel keeps for threads that block in it; CONTEXT: user.
pub(crate) fn socket_timeout(fd: BorrowedFd<'_>, which: SocketTimeout) -> Option<Duration> {
    // SAFETY: a timeval is two numbers, for which zero is valid.
    let zero: libc::timeval = unsafe { mem::zeroed() };
    let set = get_option(fd, libc::SOL_SOCKET, which as i32, zero).ok()?;
    let set = Duration::new(set.tv_sec as u64, set.tv_usec as u32 * 1000);
    (!set.is_zero()).then_some(set)
}

/// Sets that timeout, up to the kernel's limit; ignores descriptors without one. CONTEXT: user.
pub(crate) fn set_socket_timeout(
    fd: BorrowedFd<'_>,
    which: SocketTimeout,
    timeout: Option<Duration>,
) {
    let mut value = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    if let Some(timeout) = timeout {
        value.tv_sec = timeout.as_secs().min(i64::MAX as u64) as libc::time_t;
        value.tv_usec = libc::suseconds_t::from(timeout.subsec_micros());
        if value.tv_sec == 0 && value.tv_usec == 0 {
            value.tv_usec = 1; // zero would mean no timeout
        }
    }
    let _ = set_option(fd, libc::SOL_SOCKET, which as i32, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn there_and_back(addr: &str) {
        let addr: SocketAddr = addr.parse().expect("an address");
        let raw = RawAddr::new(&addr);
        let (at, len) = raw.parts();
        let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        // SAFETY: `at` points to `len` bytes. The storage is large enough for any address, and was
        // zeroed, so all of it is initialised.
        let storage = unsafe {
            let to = storage.as_mut_ptr().cast::<u8>();
            to.copy_from_nonoverlapping(at.cast(), len as usize);
            storage.assume_init_ref()
        };
        assert_eq!(socket_addr(storage, len).expect("its family"), addr);
        assert!(
            socket_addr(storage, 2).is_err(),
            "an address that was cut off"
        );
    }

    #[test]
    fn addresses_survive_the_way_through_the_kernels_form() {
        there_and_back("127.0.0.1:80");
        there_and_back("1.2.3.4:65535");
        there_and_back("[::1]:1");
        let full = SocketAddrV6::new(Ipv6Addr::new(1, 2, 3, 4, 5, 6, 7, 8), 9, 10, 11);
        let RawAddr::V6(raw) = RawAddr::new(&full.into()) else {
            panic!("V6");
        };
        assert_eq!((raw.sin6_flowinfo, raw.sin6_scope_id), (10, 11));
    }

    #[test]
    fn addresses_of_the_unix_domain_are_those_of_std() {
        let name = format!("gosched-net-unit-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let longest = format!("{name:x<107}");
        for addr in [
            unix::SocketAddr::from_pathname(&path).expect("a path"),
            unix::SocketAddr::from_abstract_name(&name).expect("a name"),
            unix::SocketAddr::from_abstract_name(longest).expect("the longest name"),
        ] {
            let listener = unix::UnixListener::bind_addr(&addr).expect("bind");
            let client = unix_socket().expect("a socket");
            unix_connect(client.as_fd(), &addr).expect("connect");
            listener.accept().expect("accept");
        }
        let longest = unix::SocketAddr::from_pathname("x".repeat(107)).expect("a path");
        let (raw, len) = unix_addr(&longest);
        assert_eq!((raw.sun_path[107], len), (0, 110));
        std::fs::remove_file(&path).expect("the file");
    }

    #[test]
    fn an_unknown_family_is_an_error() {
        // SAFETY: all fields are plain numbers; all zeros is an address of no family.
        let storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let error = socket_addr(&storage, 128).expect_err("no family");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn timeouts_are_those_that_std_sees() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let fd = socket.as_fd();
        for timeout in [None, Some(Duration::from_secs(3)), Some(Duration::MAX)] {
            set_socket_timeout(fd, SocketTimeout::Receive, timeout);
            assert_eq!(
                socket_timeout(fd, SocketTimeout::Receive),
                socket.read_timeout().expect("read")
            );
        }
        set_socket_timeout(fd, SocketTimeout::Send, Some(Duration::from_nanos(1)));
        assert!(socket.write_timeout().expect("read").is_some());
        assert_eq!(
            socket_timeout(fd, SocketTimeout::Send),
            socket.write_timeout().expect("read")
        );
    }

    #[test]
    fn the_nonblocking_flag_is_that_of_the_open_file() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for yes in [true, false, true] {
            set_nonblocking(socket.as_fd(), yes).expect("set");
            assert_eq!(is_nonblocking(socket.as_fd()).expect("read"), yes);
        }
        let mut buf = [0];
        let error = socket.recv(&mut buf).expect_err("nothing came");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn lingering_is_counted_in_seconds() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let fd = listener.as_fd();
        assert_eq!(linger(fd).expect("read"), None);
        set_linger(fd, Some(Duration::from_millis(2500))).expect("set");
        assert_eq!(linger(fd).expect("read"), Some(Duration::from_secs(2)));
        set_linger(fd, None).expect("set");
        assert_eq!(linger(fd).expect("read"), None);
    }
}
