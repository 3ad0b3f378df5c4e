//! `lookup_host` and `Dialer`: names, several addresses of which some do not answer, limits.
//!
//! An address that does not answer is a listener whose queue is full: the kernel drops each further
//! attempt. Names are those of the machine itself.

use std::io;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use gosched::context::{Context, ContextError};
use gosched::net::{
    Dialer, TcpListener, TcpStream, lookup_host, lookup_host_in, lookup_host_timeout,
};

use super::{LONG, common, everywhere, kind, listens_to_few, ms};
use crate::common::HOUR;

/// A listener that answers no further connection.
struct Hole {
    listener: std::net::TcpListener,
    _queue: Vec<std::net::TcpStream>,
}

impl Hole {
    fn new() -> Hole {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listens_to_few(&listener);
        let addr = listener.local_addr().unwrap();
        let fill = || std::net::TcpStream::connect_timeout(&addr, ms(200)).ok();
        let queue: Vec<_> = std::iter::from_fn(fill).take(20).collect();
        assert!(queue.len() < 20, "the queue does not fill");
        Hole {
            listener,
            _queue: queue,
        }
    }

    fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }
}

/// A listener that has room for many connections, and its address.
fn good() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// An address that refuses. Its socket is bound, so no other test gets the port.
fn closed() -> (TcpListener, SocketAddr) {
    let (listener, addr) = good();
    refuse_from_now_on(&listener);
    (listener, addr)
}

/// The listener keeps its address, and refuses.
fn refuse_from_now_on(listener: impl AsFd) {
    // SAFETY: touches no memory.
    let answer = unsafe { libc::shutdown(listener.as_fd().as_raw_fd(), libc::SHUT_RDWR) };
    assert_eq!(answer, 0);
}

#[test]
fn a_name_of_the_machine_itself() {
    everywhere("localhost", || {
        let (listener, addr) = good();
        let name = ("localhost", addr.port());
        let found: Vec<_> = lookup_host(name).unwrap().collect();
        let stds: Vec<_> = name.to_socket_addrs().unwrap().collect();
        assert_eq!(found, stds);
        assert_eq!(
            lookup_host_timeout(name, LONG).unwrap().collect::<Vec<_>>(),
            stds
        );
        assert_eq!(
            lookup_host_timeout(name, Duration::MAX)
                .unwrap()
                .collect::<Vec<_>>(),
            stds
        );
        let ctx = Context::background();
        assert_eq!(
            lookup_host_in(&ctx, name).unwrap().collect::<Vec<_>>(),
            stds
        );
        let ctx = ctx.with_timeout(LONG);
        let text = format!("localhost:{}", addr.port());
        assert_eq!(
            lookup_host_in(&ctx, &text).unwrap().collect::<Vec<_>>(),
            stds
        );
        if !stds.contains(&addr) {
            return; // the name is only IPv6's here
        }
        let dialer = Dialer::new().timeout(LONG);
        let streams = [
            TcpStream::connect(name),
            TcpStream::connect(&text),
            dialer.connect(name),
            dialer.connect(text.as_str()),
            dialer.connect(addr),
            dialer.connect_in(&ctx, ("localhost".to_owned(), addr.port())),
        ];
        for stream in streams {
            let (stream, (server, _)) = (stream.unwrap(), listener.accept().unwrap());
            assert_eq!(stream.peer_addr().unwrap(), addr);
            assert_eq!(stream.local_addr().unwrap(), server.peer_addr().unwrap());
            assert_eq!(stream.write_timeout().unwrap(), None);
        }
    });
}

/// Names that do not exist, and texts that are no names, fail as in std.
#[test]
fn what_is_no_name() {
    everywhere("no names", || {
        for text in ["", "localhost", "localhost:http", "127.0.0.1:99999"] {
            let stds = text.to_socket_addrs().unwrap_err();
            let ctx = Context::background().with_cancel();
            for error in [
                lookup_host(text).unwrap_err(),
                lookup_host_timeout(text, LONG).unwrap_err(),
                lookup_host_in(&ctx, text).unwrap_err(),
                Dialer::new().connect(text).unwrap_err(),
                Dialer::new().timeout(LONG).connect(text).unwrap_err(),
            ] {
                assert_eq!(error.to_string(), stds.to_string(), "{text:?}");
                assert_eq!(error.kind(), stds.kind(), "{text:?}");
            }
        }
    });
}

/// A literal address is no lookup, so no limit ends it. A dial has a limit all the same.
#[test]
fn literal_addresses_under_a_limit() {
    everywhere("literal addresses", || {
        let ctx = Context::background().with_cancel();
        ctx.cancel();
        let addr = (Ipv4Addr::LOCALHOST, 7).into();
        for found in [
            lookup_host_timeout("127.0.0.1:7", Duration::ZERO),
            lookup_host_timeout(("127.0.0.1".to_owned(), 7), Duration::ZERO),
            lookup_host_in(&ctx, "127.0.0.1:7"),
            lookup_host_in(&ctx, addr),
        ] {
            assert_eq!(found.unwrap().collect::<Vec<_>>(), [addr]);
        }
        assert_eq!(
            kind(lookup_host_timeout("localhost:7", Duration::ZERO)),
            ErrorKind::TimedOut
        );
        let (_listener, addr) = good();
        let error = Dialer::new().connect_in(&ctx, addr).unwrap_err();
        assert_eq!(
            error.downcast::<ContextError>().unwrap(),
            ContextError::Canceled
        );
        let late = Dialer::new().deadline(Instant::now());
        assert_eq!(kind(late.connect(addr)), ErrorKind::TimedOut);
        let zero = Dialer::new()
            .timeout(Duration::ZERO)
            .connect(addr)
            .unwrap_err();
        let stds = std::net::TcpStream::connect_timeout(&addr, Duration::ZERO).unwrap_err();
        assert_eq!(
            (zero.kind(), zero.to_string()),
            (stds.kind(), stds.to_string())
        );
    });
}

/// A type of the program runs on the caller, and its time counts.
#[test]
fn types_of_users_are_looked_up_in_place() {
    struct Slow(SocketAddr);
    impl ToSocketAddrs for Slow {
        type Iter = std::option::IntoIter<SocketAddr>;

        fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
            std::thread::sleep(ms(30));
            Ok(Some(self.0).into_iter())
        }
    }
    everywhere("a slow type", || {
        let (_listener, addr) = good();
        assert_eq!(
            kind(lookup_host_timeout(Slow(addr), ms(10))),
            ErrorKind::TimedOut
        );
        assert_eq!(
            lookup_host_timeout(Slow(addr), LONG).unwrap().next(),
            Some(addr)
        );
        assert_eq!(
            kind(Dialer::new().timeout(ms(10)).connect(Slow(addr))),
            ErrorKind::TimedOut
        );
        Dialer::new().timeout(LONG).connect(Slow(addr)).unwrap();
        TcpStream::connect(Slow(addr)).unwrap();
    });
}

/// The second address is tried after the delay, and wins.
#[test]
fn an_address_that_does_not_answer_costs_the_delay() {
    let hole = Hole::new();
    everywhere("a black hole", || {
        let (_listener, addr) = good();
        let addrs = [hole.addr(), addr];
        for (dialer, least) in [
            (Dialer::new(), ms(250)),
            (Dialer::new().attempt_delay(ms(20)), ms(20)),
            (Dialer::new().attempt_delay(Duration::ZERO), Duration::ZERO),
        ] {
            let began = Instant::now();
            let stream = dialer.connect(&addrs[..]).unwrap();
            let took = began.elapsed();
            assert_eq!(stream.peer_addr().unwrap(), addr);
            // Linux gives up an attempt after two minutes at least.
            assert!(least <= took && took < LONG / 2, "{took:?}");
        }
        let ctx = Context::background().with_cancel();
        let stream = Dialer::new().connect_in(&ctx, &addrs[..]).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addr);
        assert_eq!(ctx.err(), None);
    });
}

/// An attempt that fails is followed at once, whatever the delay.
#[test]
fn an_address_that_refuses_costs_nothing() {
    let hole = Hole::new();
    everywhere("refusals", || {
        let ((_closed, refuses), (_listener, addr)) = (closed(), good());
        let patient = Dialer::new().attempt_delay(HOUR);
        let stream = patient.connect(&[refuses, refuses, addr][..]).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addr);
        // Beside an attempt under way, too.
        let dialer = Dialer::new().attempt_delay(ms(10));
        let addrs = [hole.addr(), refuses, refuses, addr];
        let stream = dialer.connect(&addrs[..]).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addr);
        // An address of a family that the machine may not have.
        let unknown = SocketAddr::new("::1".parse().unwrap(), refuses.port());
        let stream = patient.connect(&[unknown, addr][..]).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addr);
    });
}

/// An attempt under way fails: the kernel sends its next packet, and is refused. The next attempt
/// starts then.
#[test]
fn an_attempt_under_way_is_refused() {
    everywhere("a late refusal", || {
        let (_listener, addr) = good();
        for last in [Some(addr), None] {
            let hole = Hole::new();
            let addrs: Vec<_> = std::iter::once(hole.addr()).chain(last).collect();
            let refuses = std::thread::spawn(move || {
                std::thread::sleep(ms(30)); // the attempt is under way by now, as a rule
                refuse_from_now_on(&hole.listener);
                hole
            });
            let dialer = Dialer::new().attempt_delay(HOUR).timeout(HOUR);
            match dialer.connect(&addrs[..]) {
                Ok(stream) => assert_eq!(Some(stream.peer_addr().unwrap()), last),
                Err(error) => {
                    assert_eq!((error.kind(), last), (ErrorKind::ConnectionRefused, None))
                }
            }
            refuses.join().unwrap();
        }
    });
}

#[test]
fn where_all_addresses_refuse() {
    everywhere("refusals only", || {
        let ((_one, one), (_other, other)) = (closed(), closed());
        let addrs = &[one, other][..];
        let ctx = Context::background().with_cancel();
        let refused = ErrorKind::ConnectionRefused;
        assert_eq!(kind(Dialer::new().connect(addrs)), refused);
        assert_eq!(
            kind(Dialer::new().attempt_delay(Duration::ZERO).connect(addrs)),
            refused
        );
        assert_eq!(
            kind(Dialer::new().timeout(LONG).connect_in(&ctx, addrs)),
            refused
        );
        assert_eq!(kind(TcpStream::connect(addrs)), refused);
        assert_eq!(kind(TcpStream::connect(("localhost", one.port()))), refused);
        let none = Dialer::new().connect(&[][..]).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::InvalidInput);
    });
}

/// The timeout and the deadline are for all attempts together.
#[test]
fn limits_of_a_dial() {
    let [hole, other] = [Hole::new(), Hole::new()];
    everywhere("limits", || {
        let addrs = &[hole.addr(), other.addr(), hole.addr()][..];
        let stds = std::net::TcpStream::connect_timeout(&hole.addr(), ms(10)).unwrap_err();
        for dialer in [
            Dialer::new().timeout(ms(40)).attempt_delay(ms(10)),
            Dialer::new()
                .deadline(Instant::now() + ms(40))
                .attempt_delay(ms(10)),
            Dialer::new()
                .timeout(HOUR)
                .deadline(Instant::now() + ms(40)),
            Dialer::new()
                .timeout(ms(40))
                .deadline(Instant::now() + HOUR),
        ] {
            let began = Instant::now();
            let error = dialer.connect(addrs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            assert_eq!(error.to_string(), stds.to_string());
            assert!(began.elapsed() < LONG / 2);
        }
        let began = Instant::now();
        let ctx = Context::background().with_timeout(ms(40));
        let error = Dialer::new().connect_in(&ctx, addrs).unwrap_err();
        assert!(began.elapsed() >= ms(40));
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let reason = error.downcast::<ContextError>().unwrap();
        assert_eq!(reason, ContextError::DeadlineExceeded);
    });
}

/// A cancelled context ends the attempts under way, of one address or several.
#[test]
fn a_cancelled_context_ends_a_dial() {
    let [hole, other] = [Hole::new(), Hole::new()];
    everywhere("a cancelled context", || {
        for addrs in [&[hole.addr()][..], &[hole.addr(), other.addr()]] {
            let ctx = Context::background().with_cancel();
            let canceller = {
                let ctx = ctx.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(ms(30)); // it waits by now, as a rule
                    ctx.cancel();
                })
            };
            let dialer = Dialer::new().attempt_delay(ms(5)).timeout(HOUR);
            let error = dialer.connect_in(&ctx, addrs).unwrap_err();
            assert_eq!(
                error.downcast::<ContextError>().unwrap(),
                ContextError::Canceled
            );
            canceller.join().unwrap();
        }
    });
}

/// How many sockets and epolls this process has open.
fn descriptors() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links
        .filter(|to| {
            let to = to.to_string_lossy();
            to.starts_with("socket:") || to.contains("[eventpoll]")
        })
        .count()
}

/// When a dial returns, its losers are closed: only the winner's descriptor is left.
#[test]
fn losers_are_closed() {
    let output = common::child("dial::losers_are_closed", || {
        let [hole, other] = [Hole::new(), Hole::new()];
        everywhere("200 dials", || {
            let (listener, addr) = good();
            let (_closed, refuses) = closed();
            let ctx = Context::background().with_cancel();
            let at_once = Dialer::new().attempt_delay(Duration::ZERO);
            let waits = Dialer::new().attempt_delay(ms(1));
            let short = Dialer::new().attempt_delay(ms(1)).timeout(ms(5));
            let won = &[hole.addr(), refuses, other.addr(), addr][..];
            let lost = &[hole.addr(), other.addr(), refuses][..];
            // The first wait of a runtime or a thread makes an epoll that stays.
            assert_eq!(kind(short.connect(lost)), ErrorKind::TimedOut);
            let before = descriptors();
            for n in 0..200 {
                let stream = match n % 4 {
                    0 => at_once.connect(won),
                    1 => at_once.connect_in(&ctx, won),
                    2 => waits.connect(won),
                    _ => waits.connect_in(&ctx, won),
                };
                assert_eq!(descriptors(), before + 1, "the winner, after {n} dials");
                drop(stream.unwrap());
                drop(listener.accept().unwrap());
                if n % 10 == 0 {
                    assert_eq!(kind(short.connect(lost)), ErrorKind::TimedOut);
                }
                assert_eq!(descriptors(), before, "after {n} dials");
            }
        });
    });
    output.succeeded();
}

/// The goroutines that watch contexts end with their dials.
#[test]
fn helpers_end() {
    let hole = Hole::new();
    super::run(2, "helpers", || {
        let (_listener, addr) = good();
        let ctx = Context::background().with_cancel();
        let dialer = Dialer::new().attempt_delay(ms(1));
        for _ in 0..20 {
            let stream = dialer.connect_in(&ctx, &[hole.addr(), addr][..]);
            assert_eq!(stream.unwrap().peer_addr().unwrap(), addr);
            lookup_host_in(&ctx, "localhost:1").unwrap();
        }
        common::until(|| gosched::num_goroutines() == 1);
    });
}

#[test]
fn a_local_address() {
    everywhere("local addresses", || {
        let (_listener, addr) = good();
        let local = SocketAddr::from(([127, 0, 0, 3], 0));
        let dialer = Dialer::new().local_addr(local);
        let v6 = "[::1]:1".parse().unwrap();
        let stream = dialer.connect(&[v6, addr][..]).unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), local.ip());
        assert_eq!(stream.peer_addr().unwrap(), addr);
        assert_eq!(kind(dialer.connect(v6)), ErrorKind::InvalidInput);
        // A port that is taken.
        let taken = Dialer::new().local_addr(stream.local_addr().unwrap());
        assert_eq!(kind(taken.connect(addr)), ErrorKind::AddrInUse);
    });
}

/// With a port of its own a dial tries one address at a time.
#[test]
fn a_local_port() {
    everywhere("a local port", || {
        let ((_closed, refuses), (_listener, addr)) = (closed(), good());
        let free = std::net::TcpListener::bind("127.0.0.4:0").unwrap();
        let local = free.local_addr().unwrap();
        drop(free);
        let dialer = Dialer::new()
            .local_addr(local)
            .attempt_delay(Duration::ZERO);
        let stream = dialer.connect(&[refuses, addr][..]).unwrap();
        assert_eq!(stream.local_addr().unwrap(), local);
        assert_eq!(stream.peer_addr().unwrap(), addr);
        super::will_reset(&stream); // the port is free again
    });
}

/// Goroutines that share a dialer wait without threads.
#[test]
fn many_dials_at_a_time() {
    let output = common::child("dial::many_dials_at_a_time", || {
        let hole = Hole::new();
        super::run(2, "many dials", || {
            let (_listener, addr) = good();
            let dialer = std::sync::Arc::new(Dialer::new().attempt_delay(ms(500)));
            let addrs = [hole.addr(), addr];
            let dials: Vec<_> = (0..200)
                .map(|_| {
                    let dialer = std::sync::Arc::clone(&dialer);
                    gosched::thread::spawn(move || dialer.connect(&addrs[..]))
                })
                .collect();
            common::until(|| gosched::debug::metrics().waiting >= 200);
            let threads = common::thread_count();
            assert!(threads <= 32, "{threads} threads");
            for dial in dials {
                let stream = dial.join().unwrap().unwrap();
                assert_eq!(stream.peer_addr().unwrap(), addr);
            }
        });
    });
    output.succeeded();
}

/// A shutdown unwinds a goroutine that dials, with or without a context.
#[test]
fn a_shutdown_ends_a_dial() {
    let hole = Hole::new();
    let runtime = super::runtime(2);
    let addr = hole.addr();
    let ctx = Context::background().with_cancel();
    let one = runtime.spawn(move || drop(Dialer::new().connect(addr)));
    let other = runtime.spawn(move || drop(Dialer::new().connect_in(&ctx, addr)));
    // The third watches the context.
    common::until(|| runtime.metrics().waiting >= 3);
    runtime.shutdown(Duration::from_secs(20));
    assert!(one.join().is_err() && other.join().is_err());
}
