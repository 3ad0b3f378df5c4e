//! Every name that std has is here, with its signature, its traits and its auto traits.

#![allow(clippy::type_complexity)] // the types are the point

use std::io::{self, Read, Write};
use std::iter::FusedIterator;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::Path;
use std::time::{Duration, Instant};

use gosched::net;
use gosched::os::unix::net as unix;

trait Auto: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe + std::fmt::Debug + 'static {}
impl<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe + std::fmt::Debug + 'static> Auto for T {}

fn is_socket<T, Std>()
where
    T: Auto + AsFd + AsRawFd + IntoRawFd + FromRawFd + From<OwnedFd> + From<Std>,
    OwnedFd: From<T>,
    Std: From<T>,
{
}

fn is_stream<T: Read + Write>()
where
    for<'a> &'a T: Read + Write,
{
}

fn iterates<I: FusedIterator<Item = io::Result<net::TcpStream>>>() {}

#[test]
fn all_have_stds_traits() {
    is_socket::<net::TcpListener, std::net::TcpListener>();
    is_socket::<net::TcpStream, std::net::TcpStream>();
    is_socket::<net::UdpSocket, std::net::UdpSocket>();
    is_socket::<unix::UnixListener, std::os::unix::net::UnixListener>();
    is_socket::<unix::UnixStream, std::os::unix::net::UnixStream>();
    is_socket::<unix::UnixDatagram, std::os::unix::net::UnixDatagram>();
    is_stream::<net::TcpStream>();
    is_stream::<unix::UnixStream>();
    iterates::<net::Incoming<'static>>();
    iterates::<net::IntoIncoming>();
    fn auto<T: Auto>() {}
    auto::<net::Incoming<'static>>();
    auto::<unix::Incoming<'static>>();
    let _: fn(&'static unix::UnixListener) -> unix::Incoming<'static> = IntoIterator::into_iter;
}

/// The types that hold only addresses are std's own, so that they fit everywhere.
#[test]
fn addresses_are_stds() {
    let _: std::net::SocketAddr = net::SocketAddr::from(([127, 0, 0, 1], 80));
    let _: std::net::IpAddr = net::IpAddr::V4(net::Ipv4Addr::LOCALHOST);
    let _: std::net::SocketAddrV4 = net::SocketAddrV4::new(net::Ipv4Addr::LOCALHOST, 1);
    let _: std::net::SocketAddrV6 = net::SocketAddrV6::new(net::Ipv6Addr::LOCALHOST, 1, 0, 0);
    let _: std::net::Shutdown = net::Shutdown::Both;
    let _: std::net::AddrParseError = "".parse::<net::IpAddr>().unwrap_err();
    fn takes(addr: impl net::ToSocketAddrs) -> bool {
        addr.to_socket_addrs().is_ok()
    }
    assert!(takes("127.0.0.1:1"));
    let _: std::os::unix::net::SocketAddr = unix::SocketAddr::from_pathname("/x").unwrap();
}

type R<T> = io::Result<T>;
type Get<S, T> = fn(&S) -> R<T>;
type Set<S, T> = fn(&S, T) -> R<()>;

/// Coercion to a function pointer is the check: what compiles is std's signature.
#[test]
fn tcp_signatures() {
    use net::{SocketAddr, TcpListener as L, TcpStream as S};
    let _: fn(&'static str) -> R<S> = S::connect::<&'static str>;
    let _: fn(&SocketAddr, Duration) -> R<S> = S::connect_timeout;
    let _: [Get<S, SocketAddr>; 2] = [S::peer_addr, S::local_addr];
    let _: Set<S, net::Shutdown> = S::shutdown;
    let _: Get<S, S> = S::try_clone;
    let _: [Set<S, Option<Duration>>; 3] =
        [S::set_read_timeout, S::set_write_timeout, S::set_linger];
    let _: [Get<S, Option<Duration>>; 3] = [S::read_timeout, S::write_timeout, S::linger];
    let _: fn(&S, &mut [u8]) -> R<usize> = S::peek;
    let _: [Set<S, bool>; 3] = [S::set_nodelay, S::set_nonblocking, S::set_quickack];
    let _: [Get<S, bool>; 2] = [S::nodelay, S::quickack];
    let _: (Set<S, u32>, Get<S, u32>) = (S::set_ttl, S::ttl);
    let _: Get<S, Option<io::Error>> = S::take_error;
    let _: [Set<S, Option<Instant>>; 3] =
        [S::set_deadline, S::set_read_deadline, S::set_write_deadline];

    let _: fn(SocketAddr) -> R<L> = L::bind::<SocketAddr>;
    let _: Get<L, SocketAddr> = L::local_addr;
    let _: Get<L, L> = L::try_clone;
    let _: Get<L, (S, SocketAddr)> = L::accept;
    let _: for<'a> fn(&'a L) -> net::Incoming<'a> = L::incoming;
    let _: fn(L) -> net::IntoIncoming = L::into_incoming;
    let _: (Set<L, u32>, Get<L, u32>) = (L::set_ttl, L::ttl);
    #[allow(deprecated)]
    let _: (Set<L, bool>, Get<L, bool>) = (L::set_only_v6, L::only_v6);
    let _: Get<L, Option<io::Error>> = L::take_error;
    let _: Set<L, bool> = L::set_nonblocking;
    let _: [Set<L, Option<Instant>>; 3] =
        [L::set_deadline, L::set_read_deadline, L::set_write_deadline];
}

#[test]
fn udp_signatures() {
    use net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as U};
    let _: fn(SocketAddr) -> R<U> = U::bind::<SocketAddr>;
    let _: [fn(&U, &mut [u8]) -> R<(usize, SocketAddr)>; 2] = [U::recv_from, U::peek_from];
    let _: fn(&U, &[u8], SocketAddr) -> R<usize> = U::send_to::<SocketAddr>;
    let _: [Get<U, SocketAddr>; 2] = [U::peer_addr, U::local_addr];
    let _: Get<U, U> = U::try_clone;
    let _: [Set<U, Option<Duration>>; 2] = [U::set_read_timeout, U::set_write_timeout];
    let _: [Get<U, Option<Duration>>; 2] = [U::read_timeout, U::write_timeout];
    let _: [Set<U, bool>; 4] = [
        U::set_broadcast,
        U::set_multicast_loop_v4,
        U::set_multicast_loop_v6,
        U::set_nonblocking,
    ];
    let _: [Get<U, bool>; 3] = [U::broadcast, U::multicast_loop_v4, U::multicast_loop_v6];
    let _: [Set<U, u32>; 2] = [U::set_multicast_ttl_v4, U::set_ttl];
    let _: [Get<U, u32>; 2] = [U::multicast_ttl_v4, U::ttl];
    let _: [fn(&U, &Ipv4Addr, &Ipv4Addr) -> R<()>; 2] =
        [U::join_multicast_v4, U::leave_multicast_v4];
    let _: [fn(&U, &Ipv6Addr, u32) -> R<()>; 2] = [U::join_multicast_v6, U::leave_multicast_v6];
    let _: Get<U, Option<io::Error>> = U::take_error;
    let _: Set<U, SocketAddr> = U::connect::<SocketAddr>;
    let _: fn(&U, &[u8]) -> R<usize> = U::send;
    let _: [fn(&U, &mut [u8]) -> R<usize>; 2] = [U::recv, U::peek];
    let _: [Set<U, Option<Instant>>; 3] =
        [U::set_deadline, U::set_read_deadline, U::set_write_deadline];
}

#[test]
fn unix_signatures() {
    use unix::{SocketAddr, UnixDatagram as D, UnixListener as L, UnixStream as S};
    let _: fn(&'static Path) -> R<S> = S::connect::<&'static Path>;
    let _: fn(&SocketAddr) -> R<S> = S::connect_addr;
    let _: fn() -> R<(S, S)> = S::pair;
    let _: Get<S, S> = S::try_clone;
    let _: [Get<S, SocketAddr>; 2] = [S::local_addr, S::peer_addr];
    let _: [Set<S, Option<Duration>>; 2] = [S::set_read_timeout, S::set_write_timeout];
    let _: [Get<S, Option<Duration>>; 2] = [S::read_timeout, S::write_timeout];
    let _: Set<S, bool> = S::set_nonblocking;
    let _: Get<S, Option<io::Error>> = S::take_error;
    let _: Set<S, net::Shutdown> = S::shutdown;
    let _: [Set<S, Option<Instant>>; 3] =
        [S::set_deadline, S::set_read_deadline, S::set_write_deadline];

    let _: fn(&'static str) -> R<L> = L::bind::<&'static str>;
    let _: fn(&SocketAddr) -> R<L> = L::bind_addr;
    let _: Get<L, (S, SocketAddr)> = L::accept;
    let _: Get<L, L> = L::try_clone;
    let _: Get<L, SocketAddr> = L::local_addr;
    let _: Set<L, bool> = L::set_nonblocking;
    let _: Get<L, Option<io::Error>> = L::take_error;
    let _: for<'a> fn(&'a L) -> unix::Incoming<'a> = L::incoming;
    let _: [Set<L, Option<Instant>>; 3] =
        [L::set_deadline, L::set_read_deadline, L::set_write_deadline];

    let _: fn(&'static str) -> R<D> = D::bind::<&'static str>;
    let _: fn(&SocketAddr) -> R<D> = D::bind_addr;
    let _: fn() -> R<D> = D::unbound;
    let _: fn() -> R<(D, D)> = D::pair;
    let _: Set<D, &'static str> = D::connect::<&'static str>;
    let _: fn(&D, &SocketAddr) -> R<()> = D::connect_addr;
    let _: Get<D, D> = D::try_clone;
    let _: [Get<D, SocketAddr>; 2] = [D::local_addr, D::peer_addr];
    let _: fn(&D, &mut [u8]) -> R<(usize, SocketAddr)> = D::recv_from;
    let _: fn(&D, &mut [u8]) -> R<usize> = D::recv;
    let _: fn(&D, &[u8], &'static str) -> R<usize> = D::send_to::<&'static str>;
    let _: fn(&D, &[u8], &SocketAddr) -> R<usize> = D::send_to_addr;
    let _: fn(&D, &[u8]) -> R<usize> = D::send;
    let _: [Set<D, Option<Duration>>; 2] = [D::set_read_timeout, D::set_write_timeout];
    let _: [Get<D, Option<Duration>>; 2] = [D::read_timeout, D::write_timeout];
    let _: Set<D, bool> = D::set_nonblocking;
    let _: Get<D, Option<io::Error>> = D::take_error;
    let _: Set<D, net::Shutdown> = D::shutdown;
    let _: [Set<D, Option<Instant>>; 3] =
        [D::set_deadline, D::set_read_deadline, D::set_write_deadline];
}

/// A program that says `use std::net::*` says `use gosched::net::*` instead.
#[test]
fn a_glob_import_replaces_stds() {
    mod before {
        use std::net::*;
        pub fn f() -> std::io::Result<u16> {
            let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
            let stream = TcpStream::connect(listener.local_addr()?)?;
            stream.shutdown(Shutdown::Both)?;
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.local_addr().map(|addr| addr.port())
        }
    }
    mod after {
        use gosched::net::*;
        pub fn f() -> std::io::Result<u16> {
            let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
            let stream = TcpStream::connect(listener.local_addr()?)?;
            stream.shutdown(Shutdown::Both)?;
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.local_addr().map(|addr| addr.port())
        }
    }
    assert_ne!(before::f().unwrap(), 0);
    assert_ne!(after::f().unwrap(), 0);
}

/// A look-up is the user's code: it may wait for other goroutines, and while it blocks its thread
/// others run.
#[test]
fn a_look_up_may_block() {
    struct Slow(net::SocketAddr, gosched::chan::Receiver<()>);
    impl ToSocketAddrs for Slow {
        type Iter = std::option::IntoIter<net::SocketAddr>;
        fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
            std::thread::sleep(Duration::from_millis(20));
            self.1.recv().unwrap();
            Ok(Some(self.0).into_iter())
        }
    }
    crate::net::run(1, "a look-up that waits for a goroutine", || {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (send, receive) = gosched::chan::bounded(0);
        gosched::go(move || {
            for _ in 0..4 {
                send.send(()).unwrap();
            }
        });
        let addr = listener.local_addr().unwrap();
        net::TcpStream::connect(Slow(addr, receive.clone())).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        net::TcpListener::bind(Slow(any, receive.clone())).unwrap();
        let socket = net::UdpSocket::bind(Slow(any, receive.clone())).unwrap();
        let to = socket.local_addr().unwrap();
        assert_eq!(socket.send_to(b"self", Slow(to, receive)).unwrap(), 4);
        assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 4);
    });
}
