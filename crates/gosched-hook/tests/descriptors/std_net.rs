//! std's documentation of `std::net` and `std::os::unix::net`.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{WHILE, both, both_without_restarts, spawn};

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let (listener, addr) = listener();
    let client = TcpStream::connect(addr).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn a_peek_takes_nothing() {
    both(|| {
        let (mut a, mut b) = tcp_pair();
        let writer = spawn(move || {
            std::thread::sleep(WHILE);
            a.write_all(b"ab").unwrap();
            a
        });
        let mut bytes = [0; 10];
        assert!(b.peek(&mut bytes).unwrap() >= 1);
        let a = writer.join();
        assert_eq!(b.peek(&mut bytes).unwrap(), 2);
        assert_eq!(b.read(&mut bytes).unwrap(), 2);
        b.set_nonblocking(true).unwrap();
        assert_eq!(
            b.peek(&mut bytes).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        b.set_nonblocking(false).unwrap();
        drop(a);
        assert_eq!(b.peek(&mut bytes).unwrap(), 0);
    });
}

#[test]
fn a_shutdown_ends_reads_of_others() {
    both(|| {
        let (a, _b) = tcp_pair();
        let clone = a.try_clone().unwrap();
        let reader = spawn(move || (&clone).read(&mut [0]).unwrap());
        crate::until_reading(&[&reader]);
        a.shutdown(Shutdown::Read).unwrap();
        assert_eq!(reader.join(), 0);
        a.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&a).write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        let (a, _b) = UnixStream::pair().unwrap();
        let clone = a.try_clone().unwrap();
        let reader = spawn(move || (&clone).read(&mut [0]).unwrap());
        crate::until_reading(&[&reader]);
        a.shutdown(Shutdown::Both).unwrap();
        assert_eq!(reader.join(), 0);
    });
}

#[test]
fn a_shutdown_ends_receives_of_datagrams() {
    both(|| {
        let (a, _b) = UnixDatagram::pair().unwrap();
        let clone = a.try_clone().unwrap();
        let reader = spawn(move || clone.recv(&mut [0]).unwrap());
        crate::until_reading(&[&reader]);
        a.shutdown(Shutdown::Read).unwrap();
        assert_eq!(reader.join(), 0);
    });
}

#[test]
fn a_clone_reads_while_the_other_writes() {
    both(|| {
        let (a, b) = tcp_pair();
        let echo = spawn(move || {
            let (mut from, mut to) = (b.try_clone().unwrap(), b);
            std::io::copy(&mut from, &mut to).unwrap()
        });
        let mut reader = a.try_clone().unwrap();
        let reads = spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
        (&a).write_all(&bytes).unwrap();
        a.shutdown(Shutdown::Write).unwrap();
        assert!(reads.join() == bytes);
        assert_eq!(echo.join(), bytes.len() as u64);
    });
}

#[test]
fn vectored_reads_and_writes() {
    both(|| {
        let (mut a, mut b) = tcp_pair();
        let writer = spawn(move || {
            std::thread::sleep(WHILE);
            let parts = [&b"ab"[..], b"", b"cde"].map(IoSlice::new);
            assert_eq!(a.write_vectored(&parts).unwrap(), 5);
            a
        });
        let (mut first, mut second) = ([0; 3], [0; 9]);
        let mut parts = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(b.read_vectored(&mut parts).unwrap(), 5);
        assert_eq!((&first, &second[..2]), (b"abc", &b"de"[..]));
        assert_eq!(b.read_vectored(&mut [IoSliceMut::new(&mut [])]).unwrap(), 0);
        drop(writer.join());
    });
}

#[test]
fn a_long_vectored_write_is_completed() {
    both(|| {
        let (a, mut b) = UnixStream::pair().unwrap();
        let parts: Vec<Vec<u8>> = (0..300u32).map(|n| vec![n as u8; 5_000]).collect();
        let whole = parts.concat();
        let writer = spawn(move || {
            let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            (&a).write_vectored(&slices).unwrap()
        });
        let mut got = Vec::new();
        b.read_to_end(&mut got).unwrap();
        assert_eq!(writer.join(), whole.len());
        assert!(got == whole);
    });
}

#[test]
fn settings_are_returned() {
    both(|| {
        let (listener, addr) = listener();
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        assert!(stream.nodelay().unwrap());
        stream.set_ttl(70).unwrap();
        assert_eq!(stream.ttl().unwrap(), 70);
        assert!(stream.take_error().unwrap().is_none());
        assert_eq!(
            TcpListener::bind(addr).unwrap_err().kind(),
            ErrorKind::AddrInUse
        );
        for time in [None, Some(Duration::from_millis(1_500))] {
            stream.set_read_timeout(time).unwrap();
            stream.set_write_timeout(time).unwrap();
            assert_eq!(
                (
                    stream.read_timeout().unwrap(),
                    stream.write_timeout().unwrap()
                ),
                (time, time)
            );
        }
        let zero = stream.set_read_timeout(Some(Duration::ZERO));
        assert_eq!(zero.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(stream.peer_addr().unwrap(), addr);
        drop(listener);
    });
}

#[test]
fn a_reset_is_an_error_of_the_read() {
    both(|| {
        let (a, mut b) = tcp_pair();
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        let (at, len) = ((&raw const linger).cast(), size_of_val(&linger) as u32);
        let (level, option) = (libc::SOL_SOCKET, libc::SO_LINGER);
        // SAFETY: the option is read.
        let set = unsafe { libc::setsockopt(a.as_raw_fd(), level, option, at, len) };
        assert_eq!(set, 0);
        let reader = spawn(move || {
            let error = b.read(&mut [0]).unwrap_err().kind();
            (error, b.read(&mut [0]).unwrap())
        });
        crate::until_reading(&[&reader]);
        drop(a);
        assert_eq!(reader.join(), (ErrorKind::ConnectionReset, 0));
    });
}

#[test]
fn several_accept_from_one_listener() {
    both(|| {
        let (listener, addr) = listener();
        let listener = Arc::new(listener);
        let servers: Vec<_> = (0..8)
            .map(|_| {
                let listener = listener.clone();
                spawn(move || {
                    for _ in 0..5 {
                        listener.accept().unwrap().0.write_all(b"x").unwrap();
                    }
                })
            })
            .collect();
        let clients: Vec<_> = (0..40)
            .map(|_| spawn(move || TcpStream::connect(addr).unwrap().read(&mut [0]).unwrap()))
            .collect();
        assert!(clients.into_iter().all(|client| client.join() == 1));
        servers.into_iter().for_each(|server| server.join());
    });
}

#[test]
fn non_blocking_is_the_users_choice() {
    both(|| {
        let (listener, addr) = listener();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        listener.set_nonblocking(false).unwrap();
        let client = spawn(move || {
            std::thread::sleep(WHILE);
            TcpStream::connect(addr).unwrap()
        });
        let (mut stream, _) = listener.accept().unwrap();
        let client = client.join();
        stream.set_nonblocking(true).unwrap();
        assert_eq!(
            stream.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        let wrote = loop {
            if let Err(error) = stream.write_all(&[0; 100_000]) {
                break error.kind();
            }
        };
        assert_eq!(wrote, ErrorKind::WouldBlock);
        drop(client);
    });
}

#[test]
fn timeouts_end_reads_writes_and_accepts() {
    both_without_restarts(|| {
        let short = Duration::from_millis(40);
        let (mut a, _b) = tcp_pair();
        a.set_read_timeout(Some(short)).unwrap();
        a.set_write_timeout(Some(short)).unwrap();
        let begun = Instant::now();
        assert_eq!(a.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(begun.elapsed() >= short);
        let (mut written, bytes) = (0, vec![0; 1 << 20]);
        let error = loop {
            match a.write(&bytes) {
                Ok(n) => written += n,
                Err(error) => break error.kind(),
            }
        };
        assert_eq!(error, ErrorKind::WouldBlock);
        assert!(written > 0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let time = libc::timeval {
            tv_sec: 0,
            tv_usec: 40_000,
        };
        let (at, len) = ((&raw const time).cast(), size_of_val(&time) as u32);
        let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
        // SAFETY: the option is read.
        let set = unsafe { libc::setsockopt(listener.as_raw_fd(), level, option, at, len) };
        assert_eq!(set, 0);
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn a_connection_can_time_out() {
    both(|| {
        let (listener, addr) = listener();
        // SAFETY: the listener's own number. Its queue is short from now on.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let mut streams = Vec::new();
        let error = loop {
            match TcpStream::connect_timeout(&addr, Duration::from_millis(100)) {
                Ok(stream) => streams.push(stream),
                Err(error) => break error.kind(),
            }
            assert!(streams.len() < 100);
        };
        assert_eq!(error, ErrorKind::TimedOut);
        let zero = TcpStream::connect_timeout(&addr, Duration::ZERO);
        assert_eq!(zero.unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_refused_socket_connects_again() {
    both(|| {
        let (bound, addr) = crate::bound();
        let SocketAddr::V4(v4) = addr else {
            unreachable!()
        };
        let to = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: v4.port().to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from(*v4.ip()).to_be(),
            },
            sin_zero: [0; 8],
        };
        // SAFETY: a socket of this test; the address is read.
        let (fd, connect) = unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
            let at = &raw const to;
            (fd, move || {
                libc::connect(fd, at.cast(), size_of::<libc::sockaddr_in>() as u32)
            })
        };
        assert_eq!(crate::errno(connect()), libc::ECONNREFUSED);
        assert_eq!(crate::errno(connect()), libc::ECONNREFUSED);
        // SAFETY: the number of this test.
        assert_eq!(unsafe { libc::listen(bound.as_raw_fd(), 8) }, 0);
        assert_eq!(connect(), 0);
        assert_eq!(crate::errno(connect()), libc::EISCONN);
        // SAFETY: the number of this test.
        unsafe { libc::close(fd) };
    });
}

#[test]
fn datagrams_keep_their_boundaries() {
    both_without_restarts(|| {
        let a = UdpSocket::bind("127.0.0.1:0").unwrap();
        let b = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (from, to) = (a.local_addr().unwrap(), b.local_addr().unwrap());
        let writer = spawn(move || {
            std::thread::sleep(WHILE);
            for text in ["first", "", "third"] {
                a.send_to(text.as_bytes(), to).unwrap();
            }
            a
        });
        let mut bytes = [0; 3];
        assert_eq!(b.peek_from(&mut bytes).unwrap(), (3, from));
        assert_eq!(b.recv_from(&mut bytes).unwrap(), (3, from));
        assert_eq!(b.recv_from(&mut bytes).unwrap(), (0, from));
        b.connect(from).unwrap();
        assert_eq!(b.recv(&mut bytes).unwrap(), 3);
        let a = writer.join();
        drop(a);
        b.set_read_timeout(Some(WHILE)).unwrap();
        assert_eq!(
            b.recv(&mut bytes).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        // The answer to a datagram is that no socket has the port. A child of another test may have it
        // for a moment.
        let refused = || {
            _ = b.send(b"x");
            b.recv(&mut [0])
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        assert!(crate::common::eventually(refused));
    });
}

#[test]
fn a_full_datagram_socket_lets_its_senders_wait() {
    both(|| {
        let folder = std::env::temp_dir();
        let kind = gosched::hook::can_park();
        let name = folder.join(format!(
            "gosched-hook-datagrams-{}-{kind}",
            std::process::id()
        ));
        let receiver = UnixDatagram::bind(&name).unwrap();
        let senders: Vec<_> = (0..4)
            .map(|_| {
                let name = name.clone();
                spawn(move || {
                    let sender = UnixDatagram::unbound().unwrap();
                    (0..50).for_each(|n| assert_eq!(sender.send_to(&[n], &name).unwrap(), 1));
                })
            })
            .collect();
        std::thread::sleep(WHILE);
        for _ in 0..200 {
            assert_eq!(receiver.recv(&mut [0]).unwrap(), 1);
        }
        senders.into_iter().for_each(|sender| sender.join());
        std::fs::remove_file(name).unwrap();
    });
}
