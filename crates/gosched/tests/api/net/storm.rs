//! Descriptors are opened and closed as fast as possible, and their numbers are used again, while
//! others wait. No waiter is woken for another socket's data, and none is forgotten.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use gosched::net::{TcpListener, TcpStream, UdpSocket};
use gosched::os::unix::net::UnixStream;
use gosched::thread;

use super::{LONG, ms, run, tcp_pair};
use crate::common::{self, Rng};

/// A waiter with a timeout that leaves, in different ways.
fn brief(rng: &mut Rng) {
    let (a, mut b) = UnixStream::pair().unwrap();
    let mut buf = [0; 8];
    match rng.below(5) {
        0 => {
            b.write_all(b"x").unwrap();
            assert_eq!((&a).read(&mut buf).unwrap(), 1);
        }
        1 => {
            a.set_read_timeout(Some(Duration::from_micros(1 + rng.below(200))))
                .unwrap();
            assert_eq!(
                (&a).read(&mut buf).unwrap_err().kind(),
                ErrorKind::WouldBlock
            );
        }
        2 => {
            a.set_read_deadline(Some(Instant::now() + Duration::from_micros(rng.below(200))))
                .unwrap();
            assert_eq!((&a).read(&mut buf).unwrap_err().kind(), ErrorKind::TimedOut);
        }
        3 => {
            let clone = a.try_clone().unwrap();
            let reader = thread::spawn(move || (&clone).read(&mut [0; 8]).unwrap());
            drop(a);
            b.write_all(b"xyz").unwrap();
            assert_eq!(reader.join().unwrap(), 3);
        }
        _ => {
            let reader = thread::spawn(move || (&a).read(&mut [0; 8]).unwrap());
            drop(b);
            assert_eq!(reader.join().unwrap(), 0);
        }
    }
}

/// Waiters get their own numbers, in order, however the descriptors around them come and go.
#[test]
fn numbers_are_used_again_while_others_wait() {
    for procs in [1, 2, 4] {
        run(procs, "a storm of descriptors", || {
            let done = Arc::new(AtomicBool::new(false));
            let storms: Vec<_> = (0..4)
                .map(|seed| {
                    let done = Arc::clone(&done);
                    thread::spawn(move || {
                        let mut rng = Rng::new(seed);
                        let mut rounds = 0;
                        while !done.load(SeqCst) || rounds < 100 {
                            brief(&mut rng);
                            rounds += 1;
                        }
                    })
                })
                .collect();
            let waits: Vec<_> = (0..20u64)
                .map(|id| {
                    let (mut a, mut b) = tcp_pair();
                    let writer = thread::spawn(move || {
                        let mut rng = Rng::new(id + 100);
                        for i in 0..60u64 {
                            a.write_all(&(id << 32 | i).to_le_bytes()).unwrap();
                            thread::sleep(Duration::from_micros(rng.below(2000)));
                        }
                    });
                    thread::spawn(move || {
                        let mut buf = [0; 8];
                        for i in 0..60u64 {
                            b.read_exact(&mut buf).unwrap();
                            assert_eq!(u64::from_le_bytes(buf), id << 32 | i);
                        }
                        assert_eq!(b.read(&mut buf).unwrap(), 0);
                        writer.join().unwrap();
                    })
                })
                .collect();
            waits.into_iter().for_each(|handle| handle.join().unwrap());
            done.store(true, SeqCst);
            storms.into_iter().for_each(|handle| handle.join().unwrap());
        });
    }
}

/// Connections that are opened, reset, half-closed or dropped at any moment: the server sees std's
/// results and continues.
#[test]
fn peers_that_vanish() {
    run(2, "peers that vanish", || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&served);
        gosched::go(move || {
            for stream in listener.incoming() {
                let (stream, counts) = (stream.unwrap(), Arc::clone(&counts));
                gosched::go(move || {
                    match std::io::copy(&mut &stream, &mut &stream) {
                        Ok(_) => {}
                        Err(error) => assert!(
                            matches!(
                                error.kind(),
                                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                            ),
                            "{error}"
                        ),
                    }
                    counts.fetch_add(1, SeqCst);
                });
            }
        });
        let clients: Vec<_> = (0..8)
            .map(|seed| {
                thread::spawn(move || {
                    let mut rng = Rng::new(seed);
                    for _ in 0..50 {
                        let mut stream = TcpStream::connect(addr).unwrap();
                        let mut len = 1 + rng.below(20_000) as usize;
                        stream.write_all(&vec![1; len]).unwrap();
                        match rng.below(4) {
                            0 => super::will_reset(&stream),
                            1 => drop(stream),
                            2 => {
                                stream.shutdown(gosched::net::Shutdown::Write).unwrap();
                                let mut all = Vec::new();
                                stream.read_to_end(&mut all).unwrap();
                                assert_eq!(all.len(), len);
                            }
                            _ => {
                                let mut buf = [0; 4096];
                                while len > 0 {
                                    len -= stream.read(&mut buf).unwrap();
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        clients
            .into_iter()
            .for_each(|handle| handle.join().unwrap());
        while served.load(SeqCst) < 400 {
            thread::sleep(ms(1));
        }
    });
}

/// A client that never reads blocks its own server's goroutine and no other.
#[test]
fn a_client_that_never_reads() {
    run(1, "a client that never reads", || {
        let (_lazy, server) = tcp_pair();
        let stuck = Arc::new(server);
        let at = Arc::clone(&stuck);
        let writer = thread::spawn(move || (&*at).write_all(&vec![0; 64 << 20]));
        let (mut client, mut server) = tcp_pair();
        gosched::go(move || {
            let mut buf = [0; 4];
            while server.read_exact(&mut buf).is_ok() {
                server.write_all(&buf).unwrap();
            }
        });
        for _ in 0..1000 {
            client.write_all(b"ping").unwrap();
            client.read_exact(&mut [0; 4]).unwrap();
        }
        assert!(!writer.is_finished());
        stuck.shutdown(gosched::net::Shutdown::Both).unwrap();
        writer.join().unwrap().unwrap_err();
    });
}

/// Datagrams between many, each with its own socket.
#[test]
fn many_datagram_sockets() {
    run(2, "datagrams", || {
        let sockets: Vec<_> = (0..50)
            .map(|_| Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap()))
            .collect();
        let addrs: Vec<_> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        let handles: Vec<_> = sockets
            .iter()
            .enumerate()
            .map(|(i, socket)| {
                let (socket, next) = (Arc::clone(socket), addrs[(i + 1) % addrs.len()]);
                let from = addrs[(i + addrs.len() - 1) % addrs.len()];
                thread::spawn(move || {
                    let mut buf = [0; 4];
                    for n in 0..100u32 {
                        if i == 0 {
                            socket.send_to(&n.to_le_bytes(), next).unwrap();
                        }
                        assert_eq!(socket.recv_from(&mut buf).unwrap(), (4, from));
                        assert_eq!(u32::from_le_bytes(buf), n);
                        if i != 0 {
                            socket.send_to(&buf, next).unwrap();
                        }
                    }
                })
            })
            .collect();
        handles
            .into_iter()
            .for_each(|handle| handle.join().unwrap());
    });
}

/// A socket is closed while a duplicate of its descriptor stays open, so that the kernel still
/// reports its changes. They must not be taken for changes of the socket that uses its slot in the
/// poller now.
#[test]
fn changes_of_a_socket_that_is_gone() {
    let output = common::child("storm::changes_of_a_socket_that_is_gone", || {
        common::within(LONG, "changes of a socket that is gone", || {
            let runtime = super::runtime(1);
            let pair = || std::os::unix::net::UnixStream::pair().unwrap();
            let (old, mut old_peer) = pair();
            let duplicate = old.try_clone().unwrap();
            runtime.run(|| {
                let mut old = UnixStream::from(old);
                old.set_read_timeout(Some(ms(1))).unwrap();
                old.read(&mut [0]).unwrap_err(); // the poller knows it from now on
            });
            let (new, mut new_peer) = pair();
            let mut new = UnixStream::from(new);
            let reader = runtime.spawn(move || new.read(&mut [0; 8]).unwrap());
            std::thread::sleep(ms(50));
            let before = runtime.metrics().park_count;
            for _ in 0..200 {
                old_peer.write_all(b"x").unwrap();
                std::thread::sleep(ms(1));
            }
            let woken = runtime.metrics().park_count - before;
            assert!(
                woken < 20,
                "the reader of the new one was woken {woken} times"
            );
            new_peer.write_all(b"four").unwrap();
            assert_eq!(reader.join().unwrap(), 4);
            drop(duplicate);
        });
    });
    output.succeeded();
}
