//! The descriptors of one run.

use std::ffi::{CString, c_int, c_void};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Numbers that are never open unless a call opens them.
const CLOSED: c_int = 700;
const HUGE: c_int = 1_000_000;

/// A descriptor of a run, by its place.
pub type Place = usize;

/// What is at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Tcp,
    UnixStream,
    Datagram,
    SeqPacket,
    Udp,
    PipeRead,
    PipeWrite,
    Event,
    Timer,
    Terminal,
    File,
    Null,
    Epoll,
    TcpListener,
    UnixListener,
    Unconnected,
    Other,
    Closed,
}

#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub fd: c_int,
    pub kind: Kind,
    /// The place of the other end.
    pub peer: Option<Place>,
}

const NONE: Descriptor = Descriptor {
    fd: CLOSED,
    kind: Kind::Closed,
    peer: None,
};

/// How many places there are. The last ones are for what calls open.
pub const PLACES: usize = 48;
const FREE: usize = 40;

pub struct World {
    places: [Descriptor; PLACES],
    next_free: Place,
    pub child: Option<Child>,
    folder: std::path::PathBuf,
    scale: u32,
}

fn check(fd: c_int) -> c_int {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    fd
}

/// The address 127.0.0.1 with a port.
pub fn loopback(port_be: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port_be,
        sin_addr: libc::in_addr {
            s_addr: u32::from_be_bytes([127, 0, 0, 1]).to_be(),
        },
        sin_zero: [0; 8],
    }
}

/// A socket's calls wait for so long at most: no partner ends some of them.
pub fn limit(fd: c_int, ms: u32) {
    let time = libc::timeval {
        tv_sec: i64::from(ms / 1_000),
        tv_usec: i64::from(ms % 1_000 * 1_000),
    };
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let at = (&raw const time).cast();
        // SAFETY: the time is read.
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, at, size_of_val(&time) as u32) };
    }
}

/// Binds to a free port.
fn bind(fd: c_int) -> libc::sockaddr_in {
    let mut addr = loopback(0);
    let mut len = size_of_val(&addr) as u32;
    // SAFETY: the address of this frame is read and written.
    unsafe {
        check(libc::bind(fd, (&raw const addr).cast(), len));
        check(libc::getsockname(fd, (&raw mut addr).cast(), &mut len));
    }
    addr
}

fn connect(fd: c_int, addr: &libc::sockaddr_in) {
    // SAFETY: the address is read.
    check(unsafe { libc::connect(fd, (&raw const *addr).cast(), size_of_val(addr) as u32) });
}

fn unix_pair(kind: c_int) -> [c_int; 2] {
    let mut pair = [0; 2];
    // SAFETY: the pair is written.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) });
    pair
}

impl World {
    pub fn new(scale: u32) -> World {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("gosched-fuzz-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let mut world = World {
            places: [NONE; PLACES],
            next_free: FREE,
            child: None,
            folder,
            scale,
        };
        world.fill();
        world.places.iter().for_each(|d| limit(d.fd, 100 * scale));
        world
    }

    fn fill(&mut self) {
        let mut all: Vec<Descriptor> = Vec::new();
        let mut pair = |fds: [c_int; 2], kinds: [Kind; 2]| {
            for n in 0..2 {
                let peer = Some(all.len() - n + 1 - n);
                all.push(Descriptor {
                    fd: fds[n],
                    kind: kinds[n],
                    peer,
                });
            }
        };
        // SAFETY: calls on descriptors that this function makes, with memory of this frame.
        unsafe {
            let listener = check(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0));
            let addr = bind(listener);
            check(libc::listen(listener, 8));
            for _ in 0..2 {
                let tcp = check(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0));
                connect(tcp, &addr);
                let accepted = libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut());
                pair([tcp, check(accepted)], [Kind::Tcp; 2]);
            }
            for _ in 0..2 {
                pair(unix_pair(libc::SOCK_STREAM), [Kind::UnixStream; 2]);
            }
            pair(unix_pair(libc::SOCK_DGRAM), [Kind::Datagram; 2]);
            pair(unix_pair(libc::SOCK_SEQPACKET), [Kind::SeqPacket; 2]);
            let udp = [0; 2].map(|_| check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)));
            let addrs = udp.map(bind);
            connect(udp[0], &addrs[1]);
            connect(udp[1], &addrs[0]);
            pair(udp, [Kind::Udp; 2]);
            for _ in 0..2 {
                let mut pipe = [0; 2];
                check(libc::pipe(pipe.as_mut_ptr()));
                pair(pipe, [Kind::PipeRead, Kind::PipeWrite]);
            }
            let fifo = self.name("fifo");
            check(libc::mkfifo(fifo.as_ptr(), 0o600));
            let read = check(libc::open(fifo.as_ptr(), libc::O_RDONLY | libc::O_NONBLOCK));
            let write = check(libc::open(fifo.as_ptr(), libc::O_WRONLY));
            check(libc::fcntl(read, libc::F_SETFL, 0));
            pair([read, write], [Kind::PipeRead, Kind::PipeWrite]);
            let (mut master, mut slave) = (0, 0);
            let null = std::ptr::null_mut();
            check(libc::openpty(
                &mut master,
                &mut slave,
                null,
                std::ptr::null(),
                std::ptr::null(),
            ));
            let mut raw: libc::termios = std::mem::zeroed();
            libc::cfmakeraw(&mut raw);
            raw.c_cflag |= libc::CREAD | libc::CS8;
            raw.c_cc[libc::VMIN] = 1;
            check(libc::tcsetattr(slave, libc::TCSANOW, &raw));
            pair([master, slave], [Kind::Terminal; 2]);
            let mut single = |fd: c_int, kind| {
                all.push(Descriptor {
                    fd,
                    kind,
                    peer: None,
                })
            };
            single(listener, Kind::TcpListener);
            single(self.unix_listener(), Kind::UnixListener);
            single(check(libc::eventfd(0, 0)), Kind::Event);
            single(
                check(libc::timerfd_create(libc::CLOCK_MONOTONIC, 0)),
                Kind::Timer,
            );
            let path = self.name("file");
            let flags = libc::O_RDWR | libc::O_CREAT;
            let file = check(libc::open(path.as_ptr(), flags, 0o600));
            check(libc::write(file, [b'f'; 9_000].as_ptr().cast(), 9_000) as c_int);
            libc::lseek(file, 0, libc::SEEK_SET);
            single(file, Kind::File);
            single(
                check(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR)),
                Kind::Null,
            );
            single(check(libc::epoll_create1(0)), Kind::Epoll);
            let tcp = check(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0));
            single(tcp, Kind::Unconnected);
            let udp = check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0));
            single(udp, Kind::Unconnected);
            let unix = check(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0));
            single(unix, Kind::Unconnected);
            single(
                check(libc::open(c"/".as_ptr(), libc::O_RDONLY)),
                Kind::Other,
            );
            single(check(libc::inotify_init1(libc::IN_NONBLOCK)), Kind::Other);
            single(-1, Kind::Closed);
            single(HUGE, Kind::Closed);
            single(c_int::MAX, Kind::Closed);
            single(CLOSED, Kind::Closed);
        }
        assert!(all.len() <= FREE, "{}", all.len());
        self.places[..all.len()].copy_from_slice(&all);
        // The epoll has a stream and a pipe.
        let epoll = self.of_kind(Kind::Epoll);
        for (data, kind) in [(1, Kind::UnixStream), (2, Kind::PipeRead)] {
            let events = libc::EPOLLIN as u32;
            let mut event = libc::epoll_event { events, u64: data };
            let fd = self.of_kind(kind);
            // SAFETY: the event is read.
            check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) });
        }
    }

    fn of_kind(&self, kind: Kind) -> c_int {
        let found = self.places.iter().find(|d| d.kind == kind);
        found.map_or(-1, |d| d.fd)
    }

    fn name(&self, name: &str) -> CString {
        CString::new(self.folder.join(name).into_os_string().into_encoded_bytes()).unwrap()
    }

    /// The address of the Unix listener.
    pub fn unix_addr(&self) -> libc::sockaddr_un {
        let mut addr = libc::sockaddr_un {
            sun_family: libc::AF_UNIX as u16,
            sun_path: [0; 108],
        };
        let name = self.name("socket");
        for (to, from) in addr.sun_path.iter_mut().zip(name.as_bytes()) {
            *to = *from as _;
        }
        addr
    }

    fn unix_listener(&self) -> c_int {
        let addr = self.unix_addr();
        // SAFETY: the address is read.
        unsafe {
            let fd = check(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0));
            check(libc::bind(
                fd,
                (&raw const addr).cast(),
                size_of_val(&addr) as u32,
            ));
            check(libc::listen(fd, 8));
            fd
        }
    }

    pub fn at(&self, place: Place) -> Descriptor {
        self.places[place]
    }

    pub fn fd(&self, place: Place) -> c_int {
        self.places[place].fd
    }

    /// A call has opened `fd`. Its number differs between the runs, so it is not compared.
    pub fn opened(&mut self, fd: c_int, like: Place) {
        let place = self.next_free;
        self.next_free = match place + 1 {
            PLACES => FREE,
            next => next,
        };
        self.close(place);
        let peer = self.at(like).peer;
        let kind = self.at(like).kind;
        self.places[place] = Descriptor { fd, kind, peer };
    }

    /// A descriptor without a partner at its other end.
    pub fn accepted(&mut self, fd: c_int) {
        let place = self.next_free;
        self.opened(fd, place);
        limit(fd, 100 * self.scale);
        self.places[place] = Descriptor {
            fd,
            kind: Kind::Unconnected,
            peer: None,
        };
    }

    pub fn replace(&mut self, place: Place, like: Place) {
        let (fd, other) = (self.fd(place), self.at(like));
        self.places[place] = Descriptor { fd, ..other };
    }

    /// The number is free from now on, and the system may use it for anything.
    pub fn forget(&mut self, place: Place) {
        self.places[place] = NONE;
    }

    pub fn closed_by_partner(&mut self, places: &[Place]) {
        places.iter().for_each(|place| self.forget(*place));
    }

    fn close(&mut self, place: Place) {
        let fd = self.fd(place);
        if (0..HUGE).contains(&fd) {
            // SAFETY: a number of this run.
            unsafe { libc::close(fd) };
        }
        self.forget(place);
    }

    pub fn start_child(&mut self) -> c_int {
        if self.child.is_none() {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            self.child = command.spawn().ok();
        }
        self.child.as_ref().map_or(1, |child| child.id() as c_int)
    }

    /// The end of the pipe that ends the child when it is closed.
    pub fn childs_pipe(&mut self) -> Option<std::process::ChildStdin> {
        self.child.as_mut()?.stdin.take()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        (0..PLACES).for_each(|place| self.close(place));
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
            _ = child.wait();
        }
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Addresses that calls get instead of a buffer.
pub struct Memory {
    /// Room for data.
    pub room: *mut c_void,
    pub read_only: *mut c_void,
    pub unmapped: *mut c_void,
}

pub const ROOM: usize = 1 << 20;
const LESS: usize = 1 << 17;

impl Memory {
    /// Fresh room, so that no data of an earlier call is in it.
    pub fn new() -> Memory {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let map = |protection, size| {
            // SAFETY: a new mapping.
            unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) }
        };
        Memory {
            room: map(libc::PROT_READ | libc::PROT_WRITE, ROOM),
            read_only: map(libc::PROT_READ, LESS),
            unmapped: map(libc::PROT_NONE, LESS),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mappings of `new`.
        unsafe {
            libc::munmap(self.room, ROOM);
            libc::munmap(self.read_only, LESS);
            libc::munmap(self.unmapped, LESS);
        }
    }
}
