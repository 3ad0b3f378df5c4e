//! The calls of a run.

mod structs;

use std::ffi::{c_int, c_void};
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use libc::iovec;

use self::structs::message;
use crate::partner::{Act, Step};
use crate::world::{Kind, Memory, PLACES, Place, ROOM, World, limit, loopback};

/// Random numbers (splitmix64).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        // Neighbouring seeds give unlike lists.
        let mut rng = Rng(seed.wrapping_mul(0xd134_2543_de82_ef95));
        Rng(rng.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Where a call's data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Buffer {
    Room,
    Null,
    ReadOnly,
    Unmapped,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Recv,
    RecvFrom,
    RecvMsg,
    RecvMmsg,
    Read,
    Readv,
    Send,
    SendTo,
    SendMsg,
    SendRights,
    SendMmsg,
    Write,
    Writev,
    Sendfile,
    Splice,
    Poll,
    Ppoll,
    Select,
    EpollWait,
    EpollCtl,
    Accept,
    Accept4,
    Connect,
    ConnectUnix,
    Dup,
    Dup2,
    Dup3,
    SetNonblocking,
    Fionbio,
    GetFlags,
    Timeout,
    LowWater,
    Shutdown,
    Close,
    SocketError,
    Seek,
    StartChild,
    WaitPid,
    WaitId,
}

const OPS: [(Op, usize); 39] = {
    use Op::*;
    [
        (Recv, 8),
        (RecvFrom, 4),
        (RecvMsg, 5),
        (RecvMmsg, 4),
        (Read, 10),
        (Readv, 6),
        (Send, 8),
        (SendTo, 4),
        (SendMsg, 4),
        (SendRights, 2),
        (SendMmsg, 3),
        (Write, 10),
        (Writev, 6),
        (Sendfile, 4),
        (Splice, 4),
        (Poll, 5),
        (Ppoll, 3),
        (Select, 3),
        (EpollWait, 4),
        (EpollCtl, 3),
        (Accept, 3),
        (Accept4, 3),
        (Connect, 3),
        (ConnectUnix, 2),
        (Dup, 2),
        (Dup2, 1),
        (Dup3, 1),
        (SetNonblocking, 4),
        (Fionbio, 2),
        (GetFlags, 1),
        (Timeout, 3),
        (LowWater, 0),
        (Shutdown, 2),
        (Close, 1),
        (SocketError, 2),
        (Seek, 1),
        (StartChild, 1),
        (WaitPid, 1),
        (WaitId, 1),
    ]
};

/// A call with its arguments, by places.
#[derive(Clone, Debug)]
pub struct Call {
    op: Op,
    number: usize,
    place: Place,
    other: Place,
    third: Place,
    buffer: Buffer,
    len: usize,
    flags: c_int,
    /// For lists: how many.
    count: usize,
    is_list_wrong: bool,
    choice: usize,
}

/// What a call has returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    result: i64,
    errno: c_int,
    data: u64,
    more: Vec<i64>,
}

const LENGTHS: [usize; 12] = [0, 1, 2, 7, 8, 16, 100, 1_000, 4_096, 5_000, 20_000, 70_000];

impl Call {
    pub fn random(rng: &mut Rng, number: usize) -> Call {
        let total: usize = OPS.iter().map(|(_, weight)| weight).sum();
        let mut at = rng.below(total);
        let op = OPS
            .iter()
            .find(|(_, weight)| match at.checked_sub(*weight) {
                Some(rest) => {
                    at = rest;
                    false
                }
                None => true,
            });
        let buffer = match rng.below(24) {
            0 => Buffer::Null,
            1 => Buffer::ReadOnly,
            2 => Buffer::Unmapped,
            _ => Buffer::Room,
        };
        let flags = match rng.below(10) {
            0 => libc::MSG_PEEK,
            1 => libc::MSG_WAITALL,
            2 => libc::MSG_DONTWAIT,
            3 => libc::MSG_TRUNC,
            4 => libc::MSG_WAITFORONE,
            5 => rng.of(&[
                libc::MSG_OOB,
                libc::MSG_ERRQUEUE,
                libc::MSG_EOR,
                libc::MSG_NOSIGNAL,
            ]),
            _ => 0,
        };
        let mut call = Call {
            op: op.expect("a weight").0,
            number,
            place: rng.below(PLACES),
            other: rng.below(PLACES),
            third: rng.below(PLACES),
            buffer,
            len: rng.of(&LENGTHS),
            flags,
            count: rng.of(&[0, 1, 2, 3, 5, 1_025]),
            is_list_wrong: rng.one_in(24),
            choice: rng.below(1 << 20),
        };
        call.make_likely(rng);
        call
    }

    /// Most calls get a descriptor of the right kind.
    fn make_likely(&mut self, rng: &mut Rng) {
        if rng.one_in(8) {
            return;
        }
        // The order of places is that of `World::fill`.
        let sockets: Vec<Place> = (0..14).collect();
        let streams: Vec<Place> = (0..29).collect();
        self.place = match self.op {
            Op::Recv
            | Op::RecvFrom
            | Op::RecvMsg
            | Op::RecvMmsg
            | Op::Send
            | Op::SendTo
            | Op::SendMsg
            | Op::SendMmsg
            | Op::Timeout
            | Op::LowWater
            | Op::Shutdown => rng.of(&sockets),
            Op::SendRights => rng.of(&[4, 5, 6, 7, 8, 9, 10, 11]),
            Op::Read | Op::Readv | Op::Write | Op::Writev => rng.of(&streams),
            Op::Accept | Op::Accept4 => rng.of(&[22, 23]),
            Op::Connect => rng.of(&[29, 30]),
            Op::ConnectUnix => 30 + 1,
            Op::EpollWait | Op::EpollCtl => 28,
            _ => self.place,
        };
        match self.op {
            Op::Connect => self.other = 22,
            Op::Sendfile => self.other = 26,
            Op::Splice => {
                let ends = [
                    (14, 17),
                    (16, 19),
                    (14, 0),
                    (14, 4),
                    (0, 15),
                    (4, 15),
                    (14, 15),
                ];
                (self.place, self.other) = rng.of(&ends);
            }
            _ => {}
        }
    }

    fn reads(&self) -> bool {
        use Op::*;
        matches!(self.op, Recv | RecvFrom | RecvMsg | RecvMmsg | Read | Readv)
    }

    fn writes(&self) -> bool {
        use Op::*;
        matches!(
            self.op,
            Send | SendTo | SendMsg | SendRights | SendMmsg | Write | Writev
        )
    }

    /// Whether the call would wait for ever, because no partner can end it.
    fn must_not_be_made(&self, world: &World) -> bool {
        let is_alone = |place| {
            let it = world.at(place);
            let needs_peer = matches!(it.kind, Kind::PipeRead | Kind::PipeWrite | Kind::Terminal);
            needs_peer
                && it
                    .peer
                    .is_none_or(|peer| world.at(peer).kind == Kind::Closed)
        };
        match self.op {
            // TCP waits once for a message of no bytes, and returns 0 even if nothing has come.
            Op::RecvMsg | Op::RecvMmsg if self.len == 0 || self.count == 0 => true,
            _ if self.reads() || self.writes() => is_alone(self.place),
            Op::Splice | Op::Sendfile => is_alone(self.place) || is_alone(self.other),
            // What is connected to this listener stays there.
            Op::Close => matches!(
                world.at(self.place).kind,
                Kind::TcpListener | Kind::UnixListener
            ),
            // A number that the partner uses, too, or that is not of this run.
            Op::Dup2 | Op::Dup3 => !(0..1_000).contains(&world.fd(self.other)),
            _ => false,
        }
    }

    /// What the partner does.
    pub fn steps(&self, world: &mut World, scale: u32) -> Vec<Step> {
        if self.must_not_be_made(world) {
            return Vec::new();
        }
        let (soon, late) = (
            Duration::from_millis(3) * scale,
            Duration::from_millis(20) * scale,
        );
        let it = world.at(self.place);
        let peer = it.peer.map(|place| (world.fd(place), place));
        let write = |(fd, _): (c_int, Place)| Act::Write(fd, 1 + self.choice % 300);
        let mut steps: Vec<Step> = Vec::new();
        match self.op {
            _ if self.reads() => match (it.kind, peer) {
                (Kind::Event, _) => steps.push((soon, Act::Event(it.fd))),
                (Kind::Timer, _) => steps.push((soon, Act::Timer(it.fd))),
                (Kind::PipeRead | Kind::PipeWrite | Kind::Terminal, Some(peer)) => {
                    steps.push((soon, write(peer)));
                    if self.choice.is_multiple_of(7) {
                        steps.push((late, Act::Close(peer.0, peer.1)));
                    }
                }
                (_, Some(peer)) => match self.choice % 8 {
                    0 => {}
                    1 => steps.push((soon, Act::Shutdown(peer.0))),
                    2 => steps.push((soon, Act::Close(peer.0, peer.1))),
                    _ => {
                        steps.push((soon, write(peer)));
                        steps.push((late, write(peer)));
                    }
                },
                _ => {}
            },
            _ if self.writes() => {
                if let Some((fd, _)) = peer {
                    steps.push((soon, Act::Drain(fd)));
                }
            }
            Op::Splice | Op::Sendfile => {
                if let (Op::Splice, Some(peer)) = (self.op, peer) {
                    steps.push((soon, write(peer)));
                }
                let out = match self.op {
                    Op::Splice => world.at(self.other).peer,
                    _ => it.peer,
                };
                if let Some(out) = out {
                    steps.push((late, Act::Drain(world.fd(out))));
                }
            }
            Op::Poll | Op::Ppoll | Op::Select => {
                if let Some(peer) = peer {
                    steps.push((soon, write(peer)));
                }
            }
            Op::EpollWait => steps.push((soon, Act::Write(world.fd(5), 3))),
            Op::Accept | Op::Accept4 => match it.kind {
                Kind::TcpListener => steps.push((soon, Act::ConnectTcp(it.fd))),
                _ => steps.push((soon, Act::ConnectUnix(Box::new(world.unix_addr())))),
            },
            Op::WaitPid | Op::WaitId if !self.choice.is_multiple_of(3) => {
                steps.extend(
                    world
                        .childs_pipe()
                        .map(|stdin| (soon, Act::EndChild(stdin))),
                );
            }
            _ => {}
        }
        steps
    }

    pub fn make(&self, world: &mut World, scale: u32) -> Outcome {
        if self.must_not_be_made(world) {
            return Outcome {
                result: 0,
                errno: 0,
                data: 0,
                more: vec![-77],
            };
        }
        let is_terminal = world.at(self.place).kind == Kind::Terminal;
        if is_terminal {
            settle(world.fd(self.place), scale);
        }
        let memory = Memory::new();
        let mut more = Vec::new();
        let result = self.perform(world, scale, &memory, &mut more);
        let errno = match result {
            // SAFETY: the errno of this thread or goroutine.
            -1 => unsafe { *libc::__errno_location() },
            _ => 0,
        };
        let mut hasher = DefaultHasher::new();
        if !self.writes() {
            // SAFETY: the mapping has that size.
            hasher.write(unsafe { std::slice::from_raw_parts(memory.room.cast(), 100_000) });
        }
        let mut outcome = Outcome {
            result,
            errno,
            data: hasher.finish(),
            more,
        };
        if is_terminal && self.reads() {
            settle(world.fd(self.place), scale);
            // How much comes at once is up to a thread of the kernel.
            (outcome.result, outcome.data) = (result.min(1), 0);
        }
        outcome
    }

    fn buffer(&self, memory: &Memory) -> *mut c_void {
        match self.buffer {
            Buffer::Room => memory.room,
            Buffer::Null => std::ptr::null_mut(),
            Buffer::ReadOnly => memory.read_only,
            Buffer::Unmapped => memory.unmapped,
        }
    }

    /// Fills the room with what the call writes.
    fn fill(&self, world: &World, memory: &Memory) {
        // SAFETY: the mapping has that size.
        let room = unsafe { std::slice::from_raw_parts_mut(memory.room.cast::<u8>(), ROOM / 2) };
        if world.at(self.place).kind == Kind::Event {
            room[0] = 3; // the count stays small
            room[8] = 2;
        } else {
            for (n, byte) in room[..80_000].iter_mut().enumerate() {
                *byte = (n + self.number) as u8;
            }
        }
    }

    /// The length in so many buffers.
    fn list(&self, memory: &Memory) -> Vec<iovec> {
        let count = self.count.max(1);
        let part = self.len / count;
        let begin = self.buffer(memory);
        let buffer = |n: usize| iovec {
            iov_base: begin.wrapping_byte_add(n * part),
            iov_len: if n + 1 == count {
                self.len - n * part
            } else {
                part
            },
        };
        (0..count).map(buffer).collect()
    }

    fn list_at(&self, list: &mut [iovec], memory: &Memory) -> *mut iovec {
        match self.is_list_wrong {
            true => self.of_wrong(memory),
            false => list.as_mut_ptr(),
        }
    }

    fn of_wrong<T>(&self, memory: &Memory) -> *mut T {
        match self.choice % 2 {
            0 => memory.unmapped.cast(),
            _ => std::ptr::null_mut(),
        }
    }

    fn perform(&self, world: &mut World, scale: u32, memory: &Memory, more: &mut Vec<i64>) -> i64 {
        let fd = world.fd(self.place);
        let other = world.fd(self.other);
        let buf = self.buffer(memory);
        let len = self.len;
        if self.writes() {
            self.fill(world, memory);
        }
        let mut list = self.list(memory);
        // SAFETY: calls on numbers of this run. The memory is that of this frame, of `memory`, or
        // none at all.
        unsafe {
            match self.op {
                Op::Recv => libc::recv(fd, buf, len, self.flags) as i64,
                Op::RecvFrom => {
                    let mut from: libc::sockaddr_storage = std::mem::zeroed();
                    let mut from_len = self.choice as u32 % 150;
                    let at = (&raw mut from).cast();
                    let n = libc::recvfrom(fd, buf, len, self.flags, at, &mut from_len);
                    more.push(from_len.into());
                    n as i64
                }
                Op::RecvMsg => self.recvmsg(fd, &mut list, memory, world, more),
                Op::RecvMmsg => self.recvmmsg(fd, memory, scale, more),
                Op::Read => libc::read(fd, buf, len) as i64,
                Op::Readv => {
                    let at = self.list_at(&mut list, memory);
                    libc::readv(fd, at, self.count as c_int) as i64
                }
                Op::Send => libc::send(fd, buf, len, self.flags) as i64,
                Op::SendTo => {
                    let to = loopback(9u16.to_be());
                    let (at, to_len) = match self.choice % 3 {
                        0 => ((&raw const to).cast(), size_of_val(&to) as u32),
                        1 => (memory.unmapped.cast_const().cast(), 16),
                        _ => (std::ptr::null(), 0),
                    };
                    libc::sendto(fd, buf, len, self.flags, at, to_len) as i64
                }
                Op::SendMsg | Op::SendRights => self.sendmsg(fd, other, &mut list, memory),
                Op::SendMmsg => {
                    let mut messages: Vec<libc::mmsghdr> =
                        (0..self.count.max(1)).map(|_| message(&mut list)).collect();
                    let at = match self.is_list_wrong {
                        true => self.of_wrong(memory),
                        false => messages.as_mut_ptr(),
                    };
                    let count = self.count.min(5) as u32;
                    let n = libc::sendmmsg(fd, at, count, self.flags);
                    more.extend(messages.iter().take(5).map(|m| i64::from(m.msg_len)));
                    n.into()
                }
                Op::Write => libc::write(fd, buf, len) as i64,
                Op::Writev => {
                    let at = self.list_at(&mut list, memory);
                    libc::writev(fd, at, self.count as c_int) as i64
                }
                Op::Sendfile => {
                    let null = std::ptr::null_mut();
                    libc::sendfile(fd, other, null, len.min(4_000)) as i64
                }
                Op::Splice => {
                    let null = std::ptr::null_mut();
                    let flags = if self.choice.is_multiple_of(4) {
                        libc::SPLICE_F_NONBLOCK
                    } else {
                        0
                    };
                    libc::splice(fd, null, other, null, len.min(4_000), flags) as i64
                }
                Op::Poll | Op::Ppoll => self.poll(world, scale, memory, more),
                Op::Select => self.select(world, scale, memory, more),
                Op::EpollWait => {
                    let mut events: [libc::epoll_event; 5] = std::mem::zeroed();
                    let at = match self.buffer {
                        Buffer::Room => events.as_mut_ptr(),
                        _ => buf.cast(),
                    };
                    // Which of several events comes first is not specified.
                    let most = if self.count == 0 { 0 } else { 5 };
                    let n = libc::epoll_wait(fd, at, most, self.time(scale));
                    // Their order is not specified.
                    more.extend(
                        events.map(|event| event.u64 as i64 * 100_000 + event.events as i64),
                    );
                    more.sort_unstable();
                    n.into()
                }
                Op::EpollCtl => {
                    let command = [
                        libc::EPOLL_CTL_ADD,
                        libc::EPOLL_CTL_MOD,
                        libc::EPOLL_CTL_DEL,
                    ];
                    let events = [libc::EPOLLIN, libc::EPOLLOUT, libc::EPOLLET | libc::EPOLLIN];
                    let mut event = libc::epoll_event {
                        events: events[self.choice % 3] as u32,
                        u64: self.other as u64,
                    };
                    libc::epoll_ctl(fd, command[self.choice / 3 % 3], other, &mut event).into()
                }
                Op::Accept | Op::Accept4 => {
                    let mut from: libc::sockaddr_storage = std::mem::zeroed();
                    let mut len = size_of_val(&from) as u32;
                    let at = (&raw mut from).cast();
                    let new = match self.op {
                        Op::Accept => libc::accept(fd, at, &mut len),
                        _ => libc::accept4(fd, at, &mut len, self.choice as c_int % 2 * 0o4000),
                    };
                    more.push(len.into());
                    if new >= 0 {
                        world.accepted(new);
                    }
                    new.min(0).into()
                }
                Op::Connect => {
                    let mut to = loopback(0);
                    let mut to_len = size_of_val(&to) as u32;
                    libc::getsockname(other, (&raw mut to).cast(), &mut to_len);
                    let at = match self.is_list_wrong {
                        true => self.of_wrong(memory),
                        false => &raw const to,
                    };
                    libc::connect(fd, at.cast(), size_of_val(&to) as u32).into()
                }
                Op::ConnectUnix => {
                    let to = world.unix_addr();
                    libc::connect(fd, (&raw const to).cast(), size_of_val(&to) as u32).into()
                }
                Op::Dup => {
                    let new = match self.choice % 2 {
                        0 => libc::dup(fd),
                        _ => libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3),
                    };
                    if new >= 0 {
                        world.opened(new, self.place);
                    }
                    new.min(0).into()
                }
                Op::Dup2 | Op::Dup3 => {
                    let new = match self.op {
                        Op::Dup2 => libc::dup2(fd, other),
                        _ => libc::dup3(fd, other, self.flags),
                    };
                    if new >= 0 && self.place != self.other {
                        world.replace(self.other, self.place);
                    }
                    new.min(0).into()
                }
                Op::SetNonblocking => {
                    let flags = libc::fcntl(fd, libc::F_GETFL);
                    // Most are made blocking again.
                    let flags = match self.choice % 3 {
                        0 => flags | libc::O_NONBLOCK,
                        _ => flags & !libc::O_NONBLOCK,
                    };
                    libc::fcntl(fd, libc::F_SETFL, flags).into()
                }
                Op::Fionbio => {
                    let yes = c_int::from(self.choice.is_multiple_of(3));
                    libc::ioctl(fd, libc::FIONBIO, &yes).into()
                }
                Op::GetFlags => libc::fcntl(fd, libc::F_GETFL).into(),
                Op::Timeout => {
                    limit(fd, [30, 100][self.choice % 2] * scale);
                    0
                }
                Op::LowWater => {
                    let bytes: c_int = [1, 50][self.choice % 2];
                    let at = (&raw const bytes).cast();
                    libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, at, 4).into()
                }
                Op::Shutdown => libc::shutdown(fd, self.choice as c_int % 4).into(),
                Op::Close => {
                    let result = libc::close(fd);
                    world.forget(self.place);
                    result.into()
                }
                Op::SocketError => {
                    let mut len = 4;
                    let options = [libc::SO_ERROR, libc::SO_TYPE, libc::SO_ACCEPTCONN];
                    let option = options[self.choice % 3];
                    libc::getsockopt(fd, libc::SOL_SOCKET, option, buf, &mut len).into()
                }
                Op::Seek => libc::lseek(fd, 0, libc::SEEK_SET),
                Op::StartChild => {
                    world.start_child();
                    0
                }
                Op::WaitPid | Op::WaitId => self.wait(world, more),
            }
        }
    }
}

/// Data takes its time from one end of a terminal to the other. Drops what has come.
fn settle(terminal: c_int, scale: u32) {
    std::thread::sleep(Duration::from_millis(2) * scale);
    // SAFETY: no memory is passed.
    unsafe { libc::tcflush(terminal, libc::TCIFLUSH) };
}
