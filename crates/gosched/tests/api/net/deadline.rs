//! Deadlines, as Go's net package has them: one moment for all users of a socket, which may change
//! at any time.

use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::net::{TcpListener, TcpStream, UdpSocket};
use gosched::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use gosched::thread;

use super::{LONG, TempPath, common, everywhere, kind, ms, run, tcp_pair};

fn past() -> Option<Instant> {
    Some(Instant::now() - ms(1))
}

fn after(d: Duration) -> Option<Instant> {
    Some(Instant::now() + d)
}

/// Past its deadline a socket does nothing, even if it could; cleared, it is as before.
#[test]
fn a_past_deadline_is_in_the_way_of_everything() {
    everywhere("a past deadline", || {
        let (client, server) = tcp_pair();
        (&server).write_all(b"ready").unwrap();
        client.peek(&mut [0]).unwrap();
        let mut buf = [0; 8];
        for past in [past(), Some(Instant::now())] {
            client.set_read_deadline(past).unwrap();
            for _ in 0..3 {
                assert_eq!(kind((&client).read(&mut buf)), ErrorKind::TimedOut);
                assert_eq!(kind(client.peek(&mut buf)), ErrorKind::TimedOut);
                let mut bufs = [IoSliceMut::new(&mut buf)];
                assert_eq!(
                    kind((&client).read_vectored(&mut bufs)),
                    ErrorKind::TimedOut
                );
            }
            assert_eq!((&client).write(b"x").unwrap(), 1, "writing has its own");
            client.set_write_deadline(past).unwrap();
            assert_eq!(kind((&client).write(b"x")), ErrorKind::TimedOut);
            client.set_deadline(None).unwrap();
        }
        assert_eq!((&client).read(&mut buf).unwrap(), 5);
        assert_eq!((&client).write(b"x").unwrap(), 1);
        client.set_deadline(past()).unwrap();
        assert_eq!(kind((&client).read(&mut buf)), ErrorKind::TimedOut);
        assert_eq!(kind((&client).write(b"x")), ErrorKind::TimedOut);
        client.set_deadline(after(LONG)).unwrap();
        assert_eq!((&client).write(b"x").unwrap(), 1);
    });
}

/// The same of listeners and datagrams.
#[test]
fn a_past_deadline_of_other_sockets() {
    everywhere("a past deadline", || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_deadline(past()).unwrap();
        assert_eq!(kind(listener.accept()), ErrorKind::TimedOut);
        assert_eq!(
            kind(listener.incoming().next().unwrap()),
            ErrorKind::TimedOut
        );
        listener.set_deadline(None).unwrap();
        let (server, _) = listener.accept().unwrap();
        (&client).write_all(b"x").unwrap();
        assert_eq!(
            (&server).read(&mut [0; 4]).unwrap(),
            1,
            "it has none of its own"
        );

        let [a, b] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        a.send_to(b"x", b.local_addr().unwrap()).unwrap();
        b.peek(&mut [0]).unwrap();
        b.set_deadline(past()).unwrap();
        assert_eq!(kind(b.recv_from(&mut [0])), ErrorKind::TimedOut);
        assert_eq!(kind(b.peek_from(&mut [0])), ErrorKind::TimedOut);
        assert_eq!(
            kind(b.send_to(b"x", b.local_addr().unwrap())),
            ErrorKind::TimedOut
        );
        b.set_deadline(None).unwrap();
        assert_eq!(b.recv(&mut [0]).unwrap(), 1);

        let path = TempPath::new();
        let listener = UnixListener::bind(&path).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        listener.set_deadline(past()).unwrap();
        assert_eq!(kind(listener.accept()), ErrorKind::TimedOut);
        listener.set_deadline(after(LONG)).unwrap();
        listener.accept().unwrap();
        let (a, b) = UnixDatagram::pair().unwrap();
        a.send(b"x").unwrap();
        b.set_read_deadline(past()).unwrap();
        assert_eq!(kind(b.recv(&mut [0])), ErrorKind::TimedOut);
        b.set_read_deadline(None).unwrap();
        assert_eq!(b.recv(&mut [0]).unwrap(), 1);
    });
}

/// From nanoseconds to a second: not early, and in the end.
#[test]
fn deadlines_of_all_sizes() {
    everywhere("all sizes", || {
        let (client, _server) = tcp_pair();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sizes = [
            1,
            2,
            5,
            50,
            100,
            500,
            1000,
            20_000,
            1_000_000,
            5_000_000,
            100_000_000,
            1_000_000_000,
        ];
        for ns in sizes {
            let d = Duration::from_nanos(ns);
            let until = Instant::now() + d;
            client.set_read_deadline(Some(until)).unwrap();
            assert_eq!(kind((&client).read(&mut [0])), ErrorKind::TimedOut, "{d:?}");
            assert!(Instant::now() >= until, "{d:?}: early");
            assert_eq!(
                kind((&client).read(&mut [0])),
                ErrorKind::TimedOut,
                "it stays"
            );
            if ns <= 5_000_000 {
                let until = Instant::now() + d;
                listener.set_deadline(Some(until)).unwrap();
                assert_eq!(kind(listener.accept()), ErrorKind::TimedOut, "{d:?}");
                assert!(Instant::now() >= until, "{d:?}: early");
            }
        }
    });
}

/// A writer whose peer does not read: the bytes written by the deadline count, and the next write
/// fails.
#[test]
fn deadlines_of_writing() {
    everywhere("writing", || {
        let (client, _server) = tcp_pair();
        let data = vec![0; 64 << 20];
        for d in [ms(1), ms(20), ms(200)] {
            client.set_write_deadline(after(d)).unwrap();
            let written = loop {
                match (&client).write(&data) {
                    Ok(n) => assert!(0 < n && n < data.len()),
                    Err(error) => break error.kind(),
                }
            };
            assert_eq!(written, ErrorKind::TimedOut);
        }
        client.set_write_deadline(None).unwrap();
        client.set_nonblocking(true).unwrap();
        let refused = loop {
            if let Err(error) = (&client).write(&data) {
                break error.kind();
            }
        };
        assert_eq!(refused, ErrorKind::WouldBlock);

        // A receiver with too many datagrams, which is asked again and again.
        let path = TempPath::new();
        let _server = UnixDatagram::bind(&path).unwrap();
        let client = UnixDatagram::unbound().unwrap();
        client.set_write_deadline(after(ms(50))).unwrap();
        let refused = loop {
            if let Err(error) = client.send_to(b"x", &path) {
                break error.kind();
            }
        };
        assert_eq!(refused, ErrorKind::TimedOut);
    });
}

/// A deadline that comes closer ends a wait that is under way, at any handle.
#[test]
fn a_deadline_is_set_while_somebody_waits() {
    everywhere("set while somebody waits", || {
        for before in [None, after(LONG * 60)] {
            for d in [None, Some(ms(1)), Some(ms(30))] {
                let (client, _server) = tcp_pair();
                client.set_read_deadline(before).unwrap();
                let clone = client.try_clone().unwrap();
                let reader = std::thread::spawn(move || kind((&clone).read(&mut [0])));
                std::thread::sleep(ms(5));
                client
                    .set_read_deadline(d.map_or_else(past, after))
                    .unwrap();
                assert_eq!(reader.join().unwrap(), ErrorKind::TimedOut);
            }
        }
    });
    run(2, "set while goroutines wait", || {
        let (client, _server) = tcp_pair();
        let client = Arc::new(client);
        let readers: Vec<_> = (0..5)
            .map(|_| {
                let client = Arc::clone(&client);
                thread::spawn(move || kind((&*client).read(&mut [0])))
            })
            .collect();
        thread::sleep(ms(20));
        client.set_read_deadline(past()).unwrap();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), ErrorKind::TimedOut);
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let clone = listener.try_clone().unwrap();
        let acceptor = thread::spawn(move || kind(clone.accept()));
        thread::sleep(ms(20));
        listener.set_deadline(past()).unwrap();
        assert_eq!(acceptor.join().unwrap(), ErrorKind::TimedOut);
    });
}

/// A deadline that is put off, or cleared, does not end a wait that began under it.
#[test]
fn a_deadline_is_put_off_while_somebody_waits() {
    everywhere("put off", || {
        let first = ms(2000);
        for then in [None, after(LONG * 60)] {
            let (client, server) = tcp_pair();
            let begun = Instant::now();
            client.set_read_deadline(Some(begun + first)).unwrap();
            let clone = client.try_clone().unwrap();
            let reader = std::thread::spawn(move || (&clone).read(&mut [0; 8]));
            std::thread::sleep(ms(10));
            client.set_read_deadline(then).unwrap();
            if begun.elapsed() >= first {
                continue; // too late: this machine has other things to do
            }
            std::thread::sleep((begun + first + ms(300)) - Instant::now());
            (&server).write_all(b"late").unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), 4);
        }
    });
}

/// Clones and references have the same deadline; the peer has its own.
#[test]
fn clones_share_their_deadline() {
    everywhere("clones", || {
        let (client, server) = tcp_pair();
        let clone = client.try_clone().unwrap();
        clone.set_read_deadline(past()).unwrap();
        assert_eq!(kind((&client).read(&mut [0])), ErrorKind::TimedOut);
        drop(clone);
        assert_eq!(kind((&client).read(&mut [0])), ErrorKind::TimedOut);
        let clone = client.try_clone().unwrap();
        assert_eq!(kind((&clone).read(&mut [0])), ErrorKind::TimedOut);
        (&client).write_all(b"x").unwrap();
        assert_eq!((&server).read(&mut [0; 2]).unwrap(), 1);
    });
}

/// A socket that takes the place of one with a deadline has none.
#[test]
fn a_new_socket_has_no_deadline() {
    everywhere("a new socket", || {
        for _ in 0..20 {
            let (client, server) = tcp_pair();
            (&server).write_all(b"x").unwrap();
            assert_eq!((&client).read(&mut [0; 2]).unwrap(), 1);
            client.set_deadline(past()).unwrap();
            client.set_nonblocking(true).unwrap();
            server.set_read_timeout(Some(ms(1))).unwrap();
            assert_eq!(kind((&server).read(&mut [0])), ErrorKind::WouldBlock);
        }
    });
}

/// The earlier of timeout and deadline ends the wait, with its own error.
#[test]
fn timeouts_and_deadlines() {
    everywhere("both", || {
        let (client, _server) = tcp_pair();
        client.set_read_timeout(Some(ms(10))).unwrap();
        client.set_read_deadline(after(LONG * 60)).unwrap();
        assert_eq!(kind((&client).read(&mut [0])), ErrorKind::WouldBlock);
        client.set_read_timeout(Some(LONG * 60)).unwrap();
        client.set_read_deadline(after(ms(10))).unwrap();
        assert_eq!(kind((&client).read(&mut [0])), ErrorKind::TimedOut);
        // To whom may not wait the deadline is the same.
        client.set_nonblocking(true).unwrap();
        assert_eq!(kind((&client).read(&mut [0])), ErrorKind::TimedOut);
        client.set_deadline(None).unwrap();
        assert_eq!(kind((&client).read(&mut [0])), ErrorKind::WouldBlock);
        // As far away as it can be named.
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(Duration::MAX)).unwrap();
        client
            .set_read_deadline(after(Duration::from_secs(1 << 33)))
            .unwrap();
        (&_server).write_all(b"x").unwrap();
        assert_eq!((&client).read(&mut [0; 2]).unwrap(), 1);
    });
}

/// Changes race with reads and with each other; nothing is lost, nothing hangs, and only the
/// deadline's error is seen.
#[test]
fn racing_changes() {
    const LEN: usize = 400_000;
    for procs in [1, 2, 4] {
        run(procs, "racing changes", || {
            let (client, server) = tcp_pair();
            let done = Arc::new(AtomicBool::new(false));
            let changers: Vec<_> = (0..3)
                .map(|seed| {
                    let (client, done) = (client.try_clone().unwrap(), Arc::clone(&done));
                    thread::spawn(move || {
                        let mut rng = common::Rng::new(seed);
                        while !done.load(SeqCst) {
                            let deadline = match rng.below(4) {
                                0 => None,
                                1 => past(),
                                2 => after(Duration::from_nanos(rng.below(2000))),
                                _ => after(Duration::from_micros(rng.below(2000))),
                            };
                            client.set_read_deadline(deadline).unwrap();
                            match rng.below(3) {
                                0 => thread::yield_now(),
                                1 => thread::sleep(Duration::from_micros(rng.below(300))),
                                _ => {}
                            }
                        }
                    })
                })
                .collect();
            let writer = thread::spawn(move || {
                let mut rng = common::Rng::new(9);
                let mut at = 0;
                while at < LEN {
                    let n = (1 + rng.below(999) as usize).min(LEN - at);
                    let data: Vec<u8> = (at..at + n).map(|i| i as u8).collect();
                    (&server).write_all(&data).unwrap();
                    at += n;
                    if rng.one_in(20) {
                        thread::sleep(Duration::from_micros(rng.below(2000)));
                    }
                }
                server
            });
            let mut buf = [0; 777];
            let (mut at, mut late) = (0, 0);
            while at < LEN {
                match (&client).read(&mut buf) {
                    Ok(0) => panic!("the end"),
                    Ok(n) => {
                        (0..n).for_each(|i| assert_eq!(buf[i], (at + i) as u8));
                        at += n;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::TimedOut);
                        late += 1;
                    }
                }
            }
            assert!(late > 0, "no deadline was met");
            done.store(true, SeqCst);
            changers
                .into_iter()
                .for_each(|handle| handle.join().unwrap());
            client.set_deadline(None).unwrap();
            let server = writer.join().unwrap();
            (&server).write_all(b"end").unwrap();
            assert_eq!((&client).read(&mut buf).unwrap(), 3);
        });
    }
}

/// Many wait under deadlines at once, goroutines and threads.
#[test]
fn many_deadlines() {
    run(2, "many deadlines", || {
        let pairs: Vec<_> = (0..60).map(|_| tcp_pair()).collect();
        let waits = |(i, (client, server)): (usize, (TcpStream, TcpStream))| {
            move || {
                let until = Instant::now() + Duration::from_micros(500 * (i as u64 % 40));
                client.set_read_deadline(Some(until)).unwrap();
                assert_eq!(kind((&client).read(&mut [0])), ErrorKind::TimedOut);
                assert!(Instant::now() >= until);
                drop(server);
            }
        };
        let mut goroutines = Vec::new();
        let mut threads = Vec::new();
        for pair in pairs.into_iter().enumerate() {
            match pair.0 % 6 {
                0 => threads.push(std::thread::spawn(waits(pair))),
                _ => goroutines.push(thread::spawn(waits(pair))),
            }
        }
        goroutines
            .into_iter()
            .for_each(|handle| handle.join().unwrap());
        threads
            .into_iter()
            .for_each(|handle| handle.join().unwrap());
    });
}
