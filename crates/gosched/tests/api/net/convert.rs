//! Descriptors and std's types, in and out.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::{Duration, Instant};

use gosched::net::{TcpListener, TcpStream, UdpSocket};
use gosched::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use super::{TempPath, everywhere, is_nonblocking, kind, ms, tcp_pair};

/// What leaves blocks in the kernel again, and what comes back waits as before.
#[test]
fn there_and_back() {
    everywhere("there and back", || {
        let (client, mut server) = tcp_pair();
        assert!(is_nonblocking(&client));
        let mut client = std::net::TcpStream::from(client);
        assert!(!is_nonblocking(&client));
        let (has_read, go_on) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(ms(20));
            server.write_all(b"to std").unwrap();
            go_on.recv().unwrap(); // one read would take both
            std::thread::sleep(ms(20));
            server.write_all(b"to gosched").unwrap();
            server
        });
        let mut buf = [0; 16];
        assert_eq!(
            client.read(&mut buf).unwrap(),
            6,
            "std's waits in the kernel"
        );
        has_read.send(()).unwrap();
        let mut client = TcpStream::from(client);
        assert!(is_nonblocking(&client));
        assert_eq!(client.read(&mut buf).unwrap(), 10);
        drop(writer.join().unwrap());
        assert_eq!(client.read(&mut buf).unwrap(), 0);
    });
}

/// The flag that its user has set goes with the socket, in both directions.
#[test]
fn the_nonblocking_flag_goes_along() {
    everywhere("the flag", || {
        let (client, _server) = tcp_pair();
        client.set_nonblocking(true).unwrap();
        let client = std::net::TcpStream::from(client);
        assert!(is_nonblocking(&client));
        assert_eq!(kind((&client).read(&mut [0])), ErrorKind::WouldBlock);
        let client = TcpStream::from(client);
        assert_eq!(kind((&client).read(&mut [0])), ErrorKind::WouldBlock);
        client.set_nonblocking(false).unwrap();
        assert!(is_nonblocking(&client), "to the kernel it always is");
        assert!(!is_nonblocking(OwnedFd::from(client)));
    });
}

/// Timeouts go along; deadlines end where the socket leaves.
#[test]
fn timeouts_go_along() {
    everywhere("timeouts", || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(3)))
            .unwrap();
        let socket = UdpSocket::from(socket);
        assert_eq!(socket.read_timeout().unwrap(), Some(Duration::from_secs(3)));
        assert_eq!(socket.write_timeout().unwrap(), None);
        socket.set_read_timeout(Some(ms(20))).unwrap();
        socket
            .set_write_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        socket.set_deadline(Some(Instant::now())).unwrap();
        assert_eq!(kind(socket.recv(&mut [0])), ErrorKind::TimedOut);
        let socket = std::net::UdpSocket::from(socket);
        assert_eq!(
            socket.write_timeout().unwrap(),
            Some(Duration::from_secs(5))
        );
        assert_eq!(kind(socket.recv(&mut [0])), ErrorKind::WouldBlock);
        let socket = UdpSocket::from(socket);
        assert_eq!(kind(socket.recv(&mut [0])), ErrorKind::WouldBlock);
        socket.set_read_timeout(None).unwrap();
        let socket = std::net::UdpSocket::from(socket);
        assert_eq!(socket.read_timeout().unwrap(), None);
    });
}

/// The number stays the same, and the socket open.
#[test]
fn raw_descriptors() {
    everywhere("raw descriptors", || {
        let (client, mut server) = tcp_pair();
        let number = client.as_raw_fd();
        assert_eq!(client.as_fd().as_raw_fd(), number);
        let raw = client.into_raw_fd();
        assert_eq!(raw, number);
        // SAFETY: `into_raw_fd` gave the descriptor up, so this value is its only owner.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        assert!(!is_nonblocking(&fd));
        let raw = fd.into_raw_fd();
        // SAFETY: `into_raw_fd` gave the descriptor up, so this value is its only owner.
        let mut client = unsafe { TcpStream::from_raw_fd(raw) };
        assert!(is_nonblocking(&client));
        server.write_all(b"x").unwrap();
        assert_eq!(client.read(&mut [0; 4]).unwrap(), 1);
    });
}

#[test]
fn all_types_convert() {
    everywhere("all types", || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let listener = TcpListener::from(OwnedFd::from(listener));
        let client = std::thread::spawn(move || std::net::TcpStream::connect(addr).unwrap());
        let (server, _) = listener.accept().unwrap();
        assert_eq!(
            server.peer_addr().unwrap(),
            client.join().unwrap().local_addr().unwrap()
        );
        assert!(!is_nonblocking(std::net::TcpListener::from(listener)));

        let (path, other) = (TempPath::new(), TempPath::new());
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let listener = UnixListener::from(listener);
        let client = UnixStream::connect(&path).unwrap();
        let server = std::os::unix::net::UnixStream::from(listener.accept().unwrap().0);
        assert!(!is_nonblocking(&server));
        (&client).write_all(b"x").unwrap();
        assert_eq!((&server).read(&mut [0; 4]).unwrap(), 1);
        let datagram = std::os::unix::net::UnixDatagram::bind(&other).unwrap();
        let datagram = UnixDatagram::from(datagram);
        assert!(is_nonblocking(&datagram));
        assert!(!is_nonblocking(std::os::unix::net::UnixDatagram::from(
            datagram
        )));
    });
}

/// Accepted and connected sockets are closed on exec, as std's are.
#[test]
fn descriptors_are_not_inherited() {
    everywhere("close on exec", || {
        let (client, server) = tcp_pair();
        let path = TempPath::new();
        let listener = UnixListener::bind(&path).unwrap();
        let unix = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let clone = client.try_clone().unwrap();
        for fd in [
            &client as &dyn AsRawFd,
            &server,
            &listener,
            &unix,
            &accepted,
            &clone,
        ] {
            // SAFETY: reads a flag, touches no memory.
            let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
            assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        }
    });
}

/// What is no socket, or one of another kind, is taken, and gives the errors that std gives.
#[test]
fn what_is_no_socket() {
    fn pipe() -> (OwnedFd, OwnedFd) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader.into(), writer.into())
    }
    everywhere("no socket", || {
        let (reader, _writer) = pipe();
        let std = std::net::TcpStream::from(reader.try_clone().unwrap());
        let expected = kind((&std).read(&mut [0]));
        let ours = TcpStream::from(reader);
        assert_eq!(kind((&ours).read(&mut [0])), expected);
        assert!(ours.peer_addr().is_err());
        let back = OwnedFd::from(ours);
        assert!(!is_nonblocking(&back), "it is as it was");

        let file = File::open("/proc/self/status").unwrap();
        let socket = UdpSocket::from(OwnedFd::from(file));
        assert!(socket.recv(&mut [0]).is_err());
        assert!(socket.set_read_timeout(Some(ms(1))).is_ok());
        let mut text = String::new();
        File::from(OwnedFd::from(socket))
            .read_to_string(&mut text)
            .unwrap();
        assert!(text.contains("Name:"));

        // A Unix socket among the TCP listeners: std's error, and nothing else.
        let path = TempPath::new();
        let unix = UnixListener::bind(&path).unwrap();
        let odd = TcpListener::from(OwnedFd::from(unix));
        let _client = UnixStream::connect(&path).unwrap();
        assert_eq!(kind(odd.accept()), ErrorKind::InvalidInput);
        // A descriptor that works as a stream is one, whatever its type says.
        let (a, mut b) = UnixStream::pair().unwrap();
        let a = TcpStream::from(OwnedFd::from(a));
        b.write_all(b"y").unwrap();
        assert_eq!((&a).read(&mut [0; 4]).unwrap(), 1);
    });
}
