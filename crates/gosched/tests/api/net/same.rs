//! The same body runs against std, against this crate in goroutines, and against this crate on
//! plain threads. The results are the same, including the texts of errors.

#![allow(unused_imports)] // every body uses some of it

/// A test whose body sees `TcpStream`, `UnixStream`, `thread` … of std or of this crate, and
/// returns what it has seen.
macro_rules! same {
    ($( $(#[$doc:meta])* fn $name:ident() -> Vec<String> $body:block )*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                mod of_std {
                    use super::imports::*;
                    use std::net::*;
                    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
                    use std::thread;
                    pub fn body() -> Vec<String> $body
                }
                mod goroutines {
                    use super::imports::*;
                    use gosched::net::*;
                    use gosched::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
                    use gosched::thread;
                    pub fn body() -> Vec<String> $body
                }
                mod plain_threads {
                    use super::imports::*;
                    use gosched::net::*;
                    use gosched::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
                    use std::thread;
                    pub fn body() -> Vec<String> $body
                }
                let what = stringify!($name);
                let expected = crate::common::within(crate::net::LONG, "std", of_std::body);
                for procs in [1, 2] {
                    assert_eq!(crate::net::run(procs, what, goroutines::body), expected, "goroutines");
                }
                let plain = crate::common::within(crate::net::LONG, what, plain_threads::body);
                assert_eq!(plain, expected, "plain threads");
            }
        )*
    };
}

mod imports {
    pub(in crate::net) use crate::net::{TempPath, kind, listens_to_few, ms, say, will_reset};
    pub use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
    pub use std::time::Duration;

    /// Two ends of a connection over loopback.
    macro_rules! connected {
        () => {{
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (client, listener.accept().unwrap().0)
        }};
    }
    pub(crate) use connected;

    /// The refusal. A process that a neighbour starts has a copy of what was closed until its exec.
    pub fn refusal<T: std::fmt::Debug>(mut ask: impl FnMut() -> io::Result<T>) -> String {
        let began = std::time::Instant::now();
        loop {
            match ask() {
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return say(io::Result::<T>::Err(error));
                }
                answer if began.elapsed() > crate::net::LONG / 4 => return say(answer),
                _ => std::thread::sleep(ms(1)),
            }
        }
    }

    /// Reads until the end or an error.
    pub fn drain(mut from: impl Read) -> String {
        let mut buf = vec![0; 1 << 16];
        loop {
            match from.read(&mut buf) {
                Ok(n) if n > 0 => {}
                end => return say(end),
            }
        }
    }

    /// Writes until it is refused.
    pub fn fill(mut to: impl Write) -> String {
        let buf = vec![0; 1 << 16];
        loop {
            match to.write(&buf) {
                Ok(n) if n > 0 => {}
                end => return say(end),
            }
        }
    }

    /// Without numbers, which are those of descriptors and ports.
    pub fn shape(what: impl std::fmt::Debug) -> String {
        format!("{what:?}").replace(|c: char| c.is_ascii_digit(), "")
    }
}

same! {
    /// A connection carries what is written, in both directions, in pieces of any size.
    fn tcp_echo() -> Vec<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            io::copy(&mut &stream, &mut &stream).unwrap()
        });
        let mut client = TcpStream::connect(addr).unwrap();
        let mut log = Vec::new();
        for size in [1, 2, 63, 64, 4096, 10_000] {
            let data: Vec<u8> = (0..size).map(|i| i as u8).collect();
            client.write_all(&data).unwrap();
            let mut back = vec![0; size];
            client.read_exact(&mut back).unwrap();
            assert_eq!(data, back);
            log.push(size.to_string());
        }
        drop(client);
        log.push(server.join().unwrap().to_string());
        log
    }

    /// One write takes all, however large: it waits for the reader as a write that blocks in the
    /// kernel.
    fn a_large_write_is_whole() -> Vec<String> {
        let (mut client, server) = connected!();
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            { server }.read_to_end(&mut all).unwrap();
            all.len()
        });
        let data = vec![7; 9 << 20];
        let one = client.write(&data);
        let parts = [IoSlice::new(&data[..5]), IoSlice::new(&[]), IoSlice::new(&data), IoSlice::new(&data[..3 << 20])];
        let many = client.write_vectored(&parts);
        drop(client);
        let (mut a, b) = UnixStream::pair().unwrap();
        let other = thread::spawn(move || drain(b));
        let unix = a.write(&data);
        drop(a);
        vec![say(one), say(many), reader.join().unwrap().to_string(), say(unix), other.join().unwrap()]
    }

    /// Several buffers at once, empty ones among them.
    fn vectored() -> Vec<String> {
        let (mut client, mut server) = connected!();
        let mut log = Vec::new();
        let wrote = client.write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")]);
        log.push(say(wrote));
        log.push(say(client.write_vectored(&[])));
        let (mut x, mut y, mut z) = ([0; 1], [0; 0], [0; 8]);
        let read = server.read_vectored(&mut [IoSliceMut::new(&mut x), IoSliceMut::new(&mut y), IoSliceMut::new(&mut z)]);
        log.push(say(read));
        log.push(format!("{x:?} {z:?}"));
        let (mut a, mut b) = UnixStream::pair().unwrap();
        log.push(say(a.write_vectored(&[IoSlice::new(b"1"), IoSlice::new(b"23")])));
        log.push(say(b.read_vectored(&mut [IoSliceMut::new(&mut x), IoSliceMut::new(&mut z)])));
        log.push(format!("{x:?} {z:?}"));
        log
    }

    /// Peeking leaves it there; it waits as a read does, and sees the end as a read does.
    fn peek() -> Vec<String> {
        let (mut client, server) = connected!();
        let writer = thread::spawn(move || {
            thread::sleep(ms(10));
            client.write_all(b"hello").unwrap();
            client
        });
        let mut buf = [0; 4];
        let mut log = vec![say(server.peek(&mut buf))];
        log.push(say(server.peek(&mut buf[..2])));
        drop(writer.join().unwrap());
        let mut all = String::new();
        log.push(say((&server).read_to_string(&mut all)));
        log.push(all);
        log.push(say(server.peek(&mut buf)));
        log
    }

    /// One direction ends, the other continues.
    fn half_close() -> Vec<String> {
        let (mut client, mut server) = connected!();
        let peer = thread::spawn(move || {
            let mut all = String::new();
            server.read_to_string(&mut all).unwrap();
            let again = server.read(&mut [0]);
            server.write_all(b"reply").unwrap();
            (all, say(again))
        });
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let late = client.write(b"late");
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        let (all, again) = peer.join().unwrap();
        vec![all, again, reply, say(late), say(client.shutdown(Shutdown::Read)), say(client.read(&mut [0]))]
    }

    /// Shutting down reading wakes readers. Shutting down both directions wakes readers and
    /// writers, also through a clone.
    fn shutdown_wakes() -> Vec<String> {
        let mut log = Vec::new();
        for how in [Shutdown::Read, Shutdown::Both] {
            let (client, _server) = connected!();
            let mut clone = client.try_clone().unwrap();
            let reader = thread::spawn(move || say(clone.read(&mut [0])));
            thread::sleep(ms(20));
            client.shutdown(how).unwrap();
            log.push(reader.join().unwrap());
        }
        let (client, _server) = connected!();
        let clone = client.try_clone().unwrap();
        let writer = thread::spawn(move || fill(clone));
        thread::sleep(ms(50));
        client.shutdown(Shutdown::Both).unwrap();
        log.push(writer.join().unwrap());
        let (a, b) = UnixStream::pair().unwrap();
        let reader = thread::spawn(move || drain(b));
        thread::sleep(ms(20));
        a.shutdown(Shutdown::Both).unwrap();
        log.push(reader.join().unwrap());
        log
    }

    /// A peer resets the connection: the waiter gets the error, once.
    fn reset_by_peer() -> Vec<String> {
        let mut log = Vec::new();
        for waits in [false, true] {
            let (client, mut server) = connected!();
            will_reset(&client);
            let reader = thread::spawn(move || {
                if !waits {
                    thread::sleep(ms(20));
                }
                let first = say(server.read(&mut [0]));
                let then = say(server.read(&mut [0]));
                let wrote = say(server.write(b"x"));
                vec![first, then, wrote, say(server.take_error().map(|e| e.is_none()))]
            });
            if waits {
                thread::sleep(ms(20));
            }
            drop(client);
            log.extend(reader.join().unwrap());
        }
        log
    }

    /// A peer that goes without having read what it was sent resets the connection.
    fn a_peer_that_leaves_data_unread() -> Vec<String> {
        let (mut client, server) = connected!();
        client.write_all(b"unread").unwrap();
        server.peek(&mut [0]).unwrap();
        drop(server);
        let read = client.read(&mut [0]);
        vec![say(read), say(client.write(b"x")), say(client.peer_addr().map(drop))]
    }

    /// A reset while a large write is under way: it tells how much is gone, and the reader still
    /// learns of the reset.
    fn reset_during_a_write() -> Vec<String> {
        let (client, server) = connected!();
        will_reset(&server);
        let writer = thread::spawn(move || {
            let part = { &client }.write(&vec![0; 64 << 20]).map(|n| n < 64 << 20);
            vec![say(part), say({ &client }.read(&mut [0])), say({ &client }.write(&[0]))]
        });
        server.peek(&mut [0]).unwrap();
        thread::sleep(ms(50));
        drop(server);
        writer.join().unwrap()
    }

    /// What was sent before the end is read before the end, and the end again and again.
    fn data_then_the_end() -> Vec<String> {
        let (mut client, mut server) = connected!();
        client.write_all(b"abc").unwrap();
        drop(client);
        thread::sleep(ms(20));
        let mut buf = [0; 64];
        let mut log: Vec<_> = (0..4).map(|_| say(server.read(&mut buf))).collect();
        let (mut a, mut b) = UnixStream::pair().unwrap();
        a.write_all(b"abcd").unwrap();
        drop(a);
        log.extend((0..3).map(|_| say(b.read(&mut buf))));
        log.push(say(b.write(b"x")));
        log
    }

    /// Nothing is something too.
    fn zero_length() -> Vec<String> {
        let (mut client, mut server) = connected!();
        let mut log = vec![say(client.write(b"")), say(client.flush())];
        client.write_all(b"x").unwrap();
        server.peek(&mut [0]).unwrap();
        log.push(say(server.read(&mut [])));
        log.push(say(server.read(&mut [0; 8])));
        log.push(say(server.read_vectored(&mut [])));
        let [a, b] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        log.push(say(a.send_to(b"", b.local_addr().unwrap())));
        log.push(say(b.recv(&mut [0; 8])));
        log.push(say(a.send_to(b"lost", b.local_addr().unwrap())));
        log.push(say(b.recv(&mut [])));
        let (mut a, mut b) = UnixStream::pair().unwrap();
        log.push(say(a.write(b"")));
        a.write_all(b"y").unwrap();
        log.push(say(b.read(&mut [])));
        log
    }

    /// No listener.
    fn refused() -> Vec<String> {
        // The listener is gone, and a connection keeps its port from others.
        let (_held, server) = connected!();
        let addr = server.local_addr().unwrap();
        let mut log = vec![refusal(|| TcpStream::connect(addr).map(drop))];
        log.push(refusal(|| TcpStream::connect_timeout(&addr, Duration::from_secs(30)).map(drop)));
        let path = TempPath::new();
        log.push(say(UnixStream::connect(&path).map(drop)));
        drop(UnixListener::bind(&path).unwrap());
        log.push(refusal(|| UnixStream::connect(&path).map(drop)));
        log.push(say(UnixListener::bind(&path).map(drop)));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.connect(gone).unwrap();
        log.push(say(socket.send(b"x")));
        socket.set_read_timeout(Some(ms(500))).unwrap();
        log.push(refusal(|| socket.recv(&mut [0]).inspect_err(|error| {
            if error.kind() == ErrorKind::WouldBlock {
                _ = socket.send(b"x");
            }
        })));
        log.push(say(socket.take_error().map(|e| e.is_none())));
        log
    }

    /// Each address is tried, and the last error is returned.
    fn several_addresses() -> Vec<String> {
        let (_held, server) = connected!();
        let nobody = server.local_addr().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        refusal(|| TcpStream::connect(nobody).map(drop));
        let found = TcpStream::connect(&[nobody, addr][..]).unwrap();
        assert_eq!(found.peer_addr().unwrap(), addr);
        let none: &[SocketAddr] = &[];
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        vec![
            say(TcpStream::connect(&[nobody, nobody][..]).map(drop)),
            say(TcpStream::connect(none).map(drop)),
            say(TcpListener::bind(none).map(drop)),
            say(UdpSocket::bind(none).map(drop)),
            say(socket.send_to(b"x", none)),
            say(socket.connect(none)),
            say(TcpStream::connect("no port").map(drop)),
            say(TcpStream::connect("127.0.0.1:99999").map(drop)),
            say(TcpListener::bind(addr).map(drop)),
            say(TcpStream::connect(("localhost", addr.port())).map(drop)),
        ]
    }

    /// IPv6, if this machine has it.
    fn version_six() -> Vec<String> {
        let Ok(listener) = TcpListener::bind("[::1]:0") else {
            return vec!["none".into()];
        };
        let addr = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(addr).unwrap();
        let (mut server, from) = listener.accept().unwrap();
        assert_eq!(from, client.local_addr().unwrap());
        assert_eq!(server.local_addr().unwrap(), client.peer_addr().unwrap());
        client.write_all(b"six").unwrap();
        let mut buf = [0; 3];
        server.read_exact(&mut buf).unwrap();
        vec![format!("{buf:?} {} {}", from.ip(), from.is_ipv6())]
    }

    /// Timeouts of reading and of writing; what they are; what they cannot be.
    fn timeouts() -> Vec<String> {
        let (mut client, server) = connected!();
        let mut log = vec![say(client.read_timeout()), say(client.write_timeout())];
        client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        log.push(say(client.read_timeout()));
        log.push(say(client.set_read_timeout(Some(Duration::ZERO))));
        log.push(say(client.set_write_timeout(Some(Duration::ZERO))));
        log.push(say(client.read_timeout()));
        client.set_read_timeout(Some(ms(20))).unwrap();
        client.set_write_timeout(Some(ms(20))).unwrap();
        let clone = client.try_clone().unwrap();
        log.push(say(clone.write_timeout().map(|t| t.is_some())));
        log.push(say(client.read(&mut [0])));
        log.push(say(client.peek(&mut [0])));
        log.push(fill(&client));
        client.set_read_timeout(None).unwrap();
        let writer = thread::spawn(move || {
            thread::sleep(ms(60));
            { &server }.write(b"late").unwrap()
        });
        log.push(say(client.read(&mut [0; 4])));
        writer.join().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(ms(20))).unwrap();
        log.push(say(socket.recv_from(&mut [0])));
        log.push(say(socket.peek(&mut [0])));
        let (a, b) = UnixDatagram::pair().unwrap();
        a.set_write_timeout(Some(ms(20))).unwrap();
        b.set_read_timeout(Some(ms(20))).unwrap();
        log.push(say(b.recv(&mut [0])));
        log.push(say(loop {
            if let Err(error) = a.send(&[0; 100]) {
                break io::Result::<()>::Err(error);
            }
        }));
        log
    }

    /// A socket that must not wait returns `WouldBlock`.
    fn nonblocking() -> Vec<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut log = vec![say(listener.accept().map(drop))];
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = loop {
            match listener.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(ms(1)),
                accepted => break accepted.unwrap(),
            }
        };
        client.set_nonblocking(true).unwrap();
        log.push(say({ &client }.read(&mut [0])));
        log.push(say(client.peek(&mut [0])));
        log.push(fill(&client));
        // The accepted stream blocks, and so does this one from now on.
        client.set_nonblocking(false).unwrap();
        let reader = thread::spawn(move || say({ &client }.read(&mut [0])));
        thread::sleep(ms(20));
        server.write_all(b"x").unwrap();
        log.push(reader.join().unwrap());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        log.push(say(socket.recv_from(&mut [0])));
        let path = TempPath::new();
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        log.push(say(listener.accept().map(drop)));
        let (a, _b) = UnixDatagram::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        log.push(say(a.recv(&mut [0])));
        log
    }

    /// The backlog is full: the next connect waits, and gives up at its timeout.
    fn a_full_backlog() -> Vec<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listens_to_few(&listener);
        let addr = listener.local_addr().unwrap();
        let mut connected = vec![TcpStream::connect(addr).unwrap()];
        let refused = loop {
            match TcpStream::connect_timeout(&addr, ms(300)) {
                Ok(stream) if connected.len() < 100 => connected.push(stream),
                end => break say(end.map(drop)),
            }
        };
        let left = say(connected[0].write_timeout()); // of the connecting nothing is left
        vec![refused, left, say(TcpStream::connect_timeout(&addr, Duration::ZERO).map(drop))]
    }

    /// Datagrams have ends, senders, and are cut off where they do not fit.
    fn udp() -> Vec<String> {
        let [a, b, c] = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let at = b.local_addr().unwrap();
        let mut buf = [0; 8];
        let mut log = vec![say(a.send_to(b"datagram too long", at)), say(b.peek_from(&mut buf).map(|(n, _)| n))];
        let (n, from) = b.recv_from(&mut buf).unwrap();
        assert_eq!(from, a.local_addr().unwrap());
        log.push(format!("{n} {buf:?}"));
        log.push(say(a.send(b"to whom?")));
        log.push(say(a.peer_addr()));
        b.connect(from).unwrap();
        c.send_to(b"not from a", at).unwrap();
        a.send_to(b"from a", at).unwrap();
        log.push(say(b.recv(&mut buf)));
        log.push(say(b.send(&[0; 70_000])));
        let receiver = thread::spawn(move || say(a.recv(&mut [0; 16])));
        thread::sleep(ms(20));
        log.push(say(b.send(b"woken")));
        log.push(receiver.join().unwrap());
        log
    }

    /// Datagrams of the Unix domain are not lost: a sender of too many waits.
    fn unix_datagrams() -> Vec<String> {
        let path = TempPath::new();
        let server = UnixDatagram::bind(&path).unwrap();
        let client = UnixDatagram::unbound().unwrap();
        let mut log = vec![say(client.send(b"to whom?")), say(client.peer_addr().map(drop))];
        let sender = thread::spawn({
            let path = path.0.clone();
            move || {
                (0..500u32).for_each(|i| assert_eq!(client.send_to(&i.to_le_bytes(), &path).unwrap(), 4));
                client.connect(&path).unwrap();
                (500..1000u32).for_each(|i| assert_eq!(client.send(&i.to_le_bytes()).unwrap(), 4));
            }
        });
        thread::sleep(ms(50));
        let mut buf = [0; 4];
        for i in 0..1000u32 {
            assert_eq!(server.recv(&mut buf).unwrap(), 4);
            assert_eq!(u32::from_le_bytes(buf), i);
        }
        sender.join().unwrap();
        let client = UnixDatagram::unbound().unwrap();
        client.set_write_timeout(Some(ms(30))).unwrap();
        log.push(loop {
            if let Err(error) = client.send_to(b"nobody reads", &path) {
                break say(io::Result::<()>::Err(error));
            }
        });
        log.push(say(client.send_to(b"x", "/nowhere/at/all")));
        drop(server);
        log.push(refusal(|| client.send_to(b"x", &path)));
        log
    }

    /// What they look like.
    fn shapes() -> Vec<String> {
        let path = TempPath::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let unix = UnixListener::bind(&path).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        let (datagram, other) = UnixDatagram::pair().unwrap();
        drop(other);
        vec![
            shape(&listener),
            shape(&client),
            shape(listener.incoming()),
            shape(UdpSocket::bind("127.0.0.1:0").unwrap()),
            shape(&unix).replace("gosched-net--", ""),
            shape(&stream).replace("gosched-net--", ""),
            shape(&datagram),
            format!("{:?} {:?}", listener.incoming().size_hint(), unix.incoming().size_hint()),
        ]
    }
}
