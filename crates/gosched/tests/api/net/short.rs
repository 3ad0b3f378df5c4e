//! Reads that end short of their buffer though there is more: the next read must find it.
//!
//! One P, so that a reader which waits runs only when all that belongs together is there: the
//! kernel reports it as one change.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use gosched::net::{TcpListener, TcpStream, UdpSocket};
use gosched::os::unix::net::UnixStream;
use gosched::thread;

use super::{LONG, common, everywhere, kind, ms, tcp_pair};

const ROUNDS: usize = 30;

fn socketpair(kind: libc::c_int) -> (OwnedFd, OwnedFd) {
    let mut fds = [0; 2];
    // SAFETY: the kernel writes two numbers into this frame.
    let answer = unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            kind | libc::SOCK_CLOEXEC,
            0,
            fds.as_mut_ptr(),
        )
    };
    assert_eq!(answer, 0);
    // SAFETY: two new descriptors, of which these values are the only owners.
    fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into()
}

fn send(fd: RawFd, bytes: &[u8], flags: libc::c_int) {
    // SAFETY: the kernel reads the bytes.
    let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
    assert_eq!(sent, bytes.len() as isize);
}

/// Reads what `put` brings in one go, `reads` times in all, by a goroutine that waits each time.
/// Returns what came, by read.
fn rounds<R: Send + 'static>(
    mut reader: R,
    reads: usize,
    read: impl Fn(&mut R) -> Vec<u8> + Send + 'static,
    put: impl Fn() + Send,
) -> Vec<Vec<u8>> {
    // Without preemption: the reader runs when all is there.
    let runtime = gosched::Runtime::builder().procs(1).preemption(false);
    let runtime = runtime.build().unwrap();
    let whole = move || {
        let (give, took) = gosched::chan::bounded(0);
        let server = thread::spawn(move || {
            let mut all = Vec::new();
            for _ in 0..ROUNDS {
                all = (0..reads).map(|_| read(&mut reader)).collect();
                give.send(()).unwrap();
            }
            all
        });
        for _ in 0..ROUNDS {
            thread::yield_now(); // it waits
            put();
            took.recv().unwrap();
        }
        server.join().unwrap()
    };
    let came = common::within(LONG, "short reads", || runtime.run(whole));
    runtime.check().unwrap();
    assert_eq!(runtime.metrics().rescues, 0, "WK: a wake-up was lost");
    came
}

fn read_64(mut from: impl Read) -> Vec<u8> {
    let mut buffer = [0; 64];
    let n = from.read(&mut buffer).unwrap();
    buffer[..n].to_vec()
}

/// Sockets that keep the boundaries of messages, behind the type for streams.
#[test]
fn messages_in_a_stream() {
    for kind in [libc::SOCK_SEQPACKET, libc::SOCK_DGRAM] {
        let (here, there) = socketpair(kind);
        let put = move || (1..4).for_each(|n| send(there.as_raw_fd(), &vec![n; n as usize], 0));
        let came = rounds(TcpStream::from(here), 3, |from| read_64(from), put);
        assert_eq!(came, [vec![1; 1], vec![2; 2], vec![3; 3]]);

        let (here, there) = socketpair(kind);
        let put = move || (1..4).for_each(|n| send(there.as_raw_fd(), &vec![n; n as usize], 0));
        let came = rounds(UnixStream::from(here), 3, |from| read_64(from), put);
        assert_eq!(came, [vec![1; 1], vec![2; 2], vec![3; 3]]);
    }
}

/// The kernel takes 1,024 buffers at a time.
#[test]
fn more_buffers_than_the_kernel_takes() {
    let (client, server) = tcp_pair();
    let read = |from: &mut TcpStream| {
        let mut bytes = [0; 1500];
        let mut bufs: Vec<_> = bytes.chunks_mut(1).map(IoSliceMut::new).collect();
        let n = from.read_vectored(&mut bufs).unwrap();
        bytes[..n].to_vec()
    };
    let came = rounds(server, 2, read, move || {
        (&client).write_all(&[7; 1200]).unwrap()
    });
    assert_eq!(came, [vec![7; 1024], vec![7; 1200 - 1024]]);
}

/// More empty buffers than the kernel takes come first: there is room behind them, and nothing read
/// or written would be taken for an end.
#[test]
fn empty_buffers_before_others() {
    fn exchange<S: Send + 'static>(client: S, server: S)
    where
        for<'a> &'a S: Read + Write,
    {
        super::run(1, "empty buffers", move || {
            let mut out = vec![IoSlice::new(&[]); 1500];
            out.push(IoSlice::new(b"text"));
            assert_eq!((&client).write_vectored(&out).unwrap(), 4);
            let mut text = [0; 4];
            let mut bufs: Vec<_> = (0..1500).map(|_| IoSliceMut::new(&mut [])).collect();
            bufs.push(IoSliceMut::new(&mut text));
            assert_eq!((&server).read_vectored(&mut bufs).unwrap(), 4);
            assert_eq!(&text, b"text");
        });
    }
    let (client, server) = tcp_pair();
    exchange(client, server);
    let (client, server) = UnixStream::pair().unwrap();
    exchange(client, server);
}

/// A read ends at the urgent mark.
#[test]
fn urgent_data_in_between() {
    let (client, server) = tcp_pair();
    let put = move || {
        let fd = client.as_raw_fd();
        send(fd, b"before", 0);
        send(fd, b"!", libc::MSG_OOB);
        send(fd, b"after", 0);
    };
    let came = rounds(server, 2, |from| read_64(from), put);
    assert_eq!(came, [b"before".to_vec(), b"after".to_vec()]);
}

/// A program that converts a socket may keep a duplicate descriptor and read the urgent data with
/// it. Then the poller only reports that there is data.
#[test]
fn urgent_data_that_is_taken_elsewhere() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let other = server.try_clone().unwrap();
    let put = move || {
        let fd = client.as_raw_fd();
        send(fd, b"before", 0);
        send(fd, b"!", libc::MSG_OOB);
        send(fd, b"after", 0);
        let mut urgent = 0u8;
        // SAFETY: the kernel writes one byte into this frame.
        let take = || unsafe {
            libc::recv(
                other.as_raw_fd(),
                (&raw mut urgent).cast(),
                1,
                libc::MSG_OOB,
            )
        };
        std::iter::repeat_with(take).find(|taken| *taken == 1);
    };
    let came = rounds(TcpStream::from(server), 2, |from| read_64(from), put);
    assert_eq!(came, [b"before".to_vec(), b"after".to_vec()]);
}

/// Turns the kernel's TLS on, with a key that both sides have; false: this kernel has none.
fn set_tls(fd: RawFd, direction: libc::c_int) -> bool {
    const SOL_TLS: libc::c_int = 282;
    // struct tls12_crypto_info_aes_gcm_128, version 1.2, cipher 51
    let mut info = [0u8; 40];
    info[..2].copy_from_slice(&0x0303u16.to_ne_bytes());
    info[2..4].copy_from_slice(&51u16.to_ne_bytes());
    // SAFETY: the kernel reads the options, which live in this frame.
    unsafe {
        let ulp = libc::setsockopt(fd, libc::SOL_TCP, libc::TCP_ULP, c"tls".as_ptr().cast(), 3);
        if ulp != 0 {
            return false;
        }
        let len = info.len() as libc::socklen_t;
        libc::setsockopt(fd, SOL_TLS, direction, info.as_ptr().cast(), len) == 0
    }
}

/// Kernel TLS may return a record at a time.
#[test]
fn tls_in_the_kernel() {
    let (client, server) = tcp_pair();
    let (transmit, receive) = (1, 2);
    if !set_tls(client.as_raw_fd(), transmit) || !set_tls(server.as_raw_fd(), receive) {
        println!("skipped: this kernel has no TLS");
        return;
    }
    let came = rounds(
        server,
        1,
        |from| {
            let mut all = [0; 12];
            from.read_exact(&mut all).unwrap();
            all.to_vec()
        },
        move || (0..3).for_each(|_| send(client.as_raw_fd(), b"four", 0)),
    );
    assert_eq!(came, [b"fourfourfour".to_vec()]);
}

/// A listener that comes from outside may be for something else than TCP.
#[test]
fn accepted_by_a_listener_from_outside() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    super::run(1, "a listener from outside", || {
        let listener = TcpListener::from(listener);
        let mut client = TcpStream::connect(addr).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        for _ in 0..ROUNDS {
            let echo = thread::spawn(move || {
                let came = read_64(&mut server);
                server.write_all(&came).unwrap();
                server
            });
            client.write_all(b"ping").unwrap();
            assert_eq!(read_64(&mut client), b"ping");
            server = echo.join().unwrap();
        }
    });
}

/// A read into an empty buffer has nothing to wait for. A datagram is consumed all the same, as by
/// std.
#[test]
fn an_empty_buffer() {
    everywhere("an empty buffer", || {
        let (mut tcp, _peer) = tcp_pair();
        let (mut unix, _other) = UnixStream::pair().unwrap();
        let mut none = [];
        for turn in 0..3 {
            assert_eq!(tcp.read(&mut []).unwrap(), 0);
            assert_eq!(tcp.peek(&mut []).unwrap(), 0);
            assert_eq!(unix.read(&mut []).unwrap(), 0);
            assert_eq!(tcp.read_vectored(&mut []).unwrap(), 0);
            let mut bufs = [IoSliceMut::new(&mut none)];
            assert_eq!(unix.read_vectored(&mut bufs).unwrap(), 0);
            assert_eq!(tcp.read_vectored(&mut bufs).unwrap(), 0);
            tcp.set_nonblocking(turn == 0).unwrap();
            unix.set_nonblocking(turn == 0).unwrap();
            // Past the deadline, too, as in Go.
            let deadline = (turn > 0).then(Instant::now);
            tcp.set_deadline(deadline).unwrap();
            unix.set_deadline(deadline).unwrap();
        }

        let [a, b] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        b.set_read_timeout(Some(ms(1))).unwrap();
        assert_eq!(kind(b.recv(&mut [])), ErrorKind::WouldBlock);
        b.set_read_timeout(None).unwrap();
        for text in [&b"first"[..], b"second"] {
            a.send_to(text, b.local_addr().unwrap()).unwrap();
        }
        assert_eq!(b.recv(&mut []).unwrap(), 0);
        assert_eq!(b.recv(&mut [0; 8]).unwrap(), 6);
    });
}
