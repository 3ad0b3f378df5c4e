//! One socket and several runtimes, and plain threads, and runtimes that end.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use gosched::net::{TcpListener, TcpStream};
use gosched::os::unix::net::UnixStream;
use gosched::{Runtime, thread};

use super::{LONG, common, ms, runtime, tcp_pair};

/// Two runtimes and a plain thread read and write the same sockets, in turn and at the same time.
#[test]
fn two_runtimes_share_a_socket() {
    common::within(LONG, "two runtimes", || {
        let (one, two) = (runtime(1), runtime(2));
        let (a, b) = tcp_pair();
        let (a, b) = (&a, &b);
        let ping = |runtime: &Runtime| {
            runtime.run(|| (&*a).write_all(b"ping").unwrap());
        };
        let pong = |runtime: &Runtime| {
            runtime.run(|| {
                let mut buf = [0; 4];
                (&*b).read_exact(&mut buf).unwrap();
                assert_eq!(&buf, b"ping");
            });
        };
        for _ in 0..20 {
            std::thread::scope(|scope| {
                scope.spawn(|| pong(&one));
                scope.spawn(|| pong(&two));
                scope.spawn(|| (&*b).read_exact(&mut [0; 4]).unwrap());
                std::thread::sleep(ms(2));
                ping(&two);
                ping(&one);
                (&*a).write_all(b"ping").unwrap();
            });
        }
        assert_eq!(one.metrics().rescues + two.metrics().rescues, 0);
    });
}

/// Goroutines of two runtimes at the two ends of a connection, forth and back.
#[test]
fn runtimes_talk_to_each_other() {
    common::within(LONG, "runtimes that talk", || {
        let (one, two) = (runtime(1), runtime(1));
        let (a, b) = UnixStream::pair().unwrap();
        let echo = |mut stream: UnixStream, first: bool| {
            move || {
                let mut buf = [0; 8];
                for i in 0..500u64 {
                    if first {
                        stream.write_all(&i.to_le_bytes()).unwrap();
                    }
                    stream.read_exact(&mut buf).unwrap();
                    assert_eq!(u64::from_le_bytes(buf), i);
                    if !first {
                        stream.write_all(&buf).unwrap();
                    }
                }
            }
        };
        let (one_does, two_does) = (one.spawn(echo(a, true)), two.spawn(echo(b, false)));
        one_does.join().unwrap();
        two_does.join().unwrap();
    });
}

/// The runtime that a socket was known to ends while others wait on that socket: a plain thread,
/// and another runtime's goroutine.
#[test]
fn a_runtime_ends_while_others_wait() {
    common::within(LONG, "a runtime ends", || {
        let other = runtime(1);
        for _ in 0..10 {
            let pairs = Arc::new([tcp_pair(), tcp_pair()]);
            let first = runtime(1);
            for (client, _) in pairs.iter() {
                first.run(|| {
                    client.set_read_timeout(Some(ms(1))).unwrap();
                    (&*client).read(&mut [0]).unwrap_err(); // known to this runtime from now on
                    client.set_read_timeout(None).unwrap();
                });
            }
            let at = Arc::clone(&pairs);
            let thread = std::thread::spawn(move || (&at[0].0).read(&mut [0; 8]).unwrap());
            let at = Arc::clone(&pairs);
            let goroutine = other.spawn(move || (&at[1].0).read(&mut [0; 8]).unwrap());
            std::thread::sleep(ms(5));
            drop(first);
            std::thread::sleep(ms(5));
            (&pairs[0].1).write_all(b"one").unwrap();
            (&pairs[1].1).write_all(b"three").unwrap();
            assert_eq!(thread.join().unwrap(), 3);
            assert_eq!(goroutine.join().unwrap(), 5);
        }
    });
}

/// A runtime is dropped with goroutines that wait; others use their sockets afterwards.
#[test]
fn a_runtime_ends_with_waiters() {
    common::within(LONG, "a runtime ends", || {
        let (a, b) = tcp_pair();
        let a = Arc::new(a);
        for _ in 0..10 {
            let runtime = runtime(2);
            for _ in 0..5 {
                let a = Arc::clone(&a);
                runtime.go(move || drop((&*a).read(&mut [0; 8])));
            }
            std::thread::sleep(ms(5));
            drop(runtime);
        }
        (&b).write_all(b"for me").unwrap();
        assert_eq!((&*a).read(&mut [0; 8]).unwrap(), 6);
    });
}

/// A shutdown unwinds goroutines that wait for the network, and their sockets are closed.
#[test]
fn a_shutdown_unwinds_who_waits() {
    common::within(LONG, "a shutdown", || {
        let runtime = runtime(2);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let mut peers = Vec::new();
        for _ in 0..5 {
            let (mine, theirs) = tcp_pair();
            runtime.go(move || drop((&theirs).read(&mut [0])));
            peers.push(mine);
        }
        // A connection keeps the port from other sockets until the end.
        let _held = (
            TcpStream::connect(addr).unwrap(),
            listener.accept().unwrap(),
        );
        runtime.go(move || drop(listener.accept()));
        let (full, _unread) = tcp_pair();
        runtime.go(move || drop((&full).write_all(&vec![0; 64 << 20])));
        std::thread::sleep(ms(50));
        runtime.shutdown(LONG);
        for peer in peers {
            assert_eq!(
                (&peer).read(&mut [0]).unwrap(),
                0,
                "the other end is closed"
            );
        }
        // A process that a neighbour starts has a copy of the listener until its exec.
        let is_refused = || TcpStream::connect(addr).is_err();
        assert!(common::eventually(is_refused), "nobody listens");
    });
}

/// A goroutine that waits for the network is no deadlock, whatever sends in the end.
#[test]
fn waiting_for_the_network_is_no_deadlock() {
    let output = common::child("homes::waiting_for_the_network_is_no_deadlock", || {
        let runtime = Runtime::builder()
            .deadlock(gosched::Deadlock::Closed)
            .build()
            .unwrap();
        let (a, b) = tcp_pair();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(ms(1500));
            (&b).write_all(b"at last").unwrap();
            b
        });
        assert_eq!(runtime.run(|| (&a).read(&mut [0; 16]).unwrap()), 7);
        drop(sender.join().unwrap());
    });
    output.succeeded();
}

/// The dump shows which goroutines wait for the network, and for what.
#[test]
fn dumps_say_who_waits() {
    super::run(2, "a dump", || {
        let (client, server) = tcp_pair();
        let client = Arc::new(client);
        let at = Arc::clone(&client);
        let reader = thread::spawn(move || (&*at).read(&mut [0; 1 << 16]));
        let at = Arc::clone(&client);
        let writer = thread::spawn(move || (&*at).write_all(&vec![0; 64 << 20]));
        for reason in ["IO wait, read", "IO wait, write"] {
            let waits = |g: &gosched::debug::Goroutine| g.wait_reason() == Some(reason);
            while !gosched::debug::dump().goroutines().iter().any(waits) {
                thread::sleep(ms(2));
            }
        }
        super::will_reset(&server);
        drop(server);
        let ends = [
            reader.join().unwrap().is_err(),
            writer.join().unwrap().is_err(),
        ];
        assert_ne!(ends, [false, false]);
    });
}

/// Several goroutines are the first to use the network at the same time: one poller is made for
/// all, and what the others made meanwhile goes.
#[test]
fn many_are_the_first() {
    let output = common::child("homes::many_are_the_first", || {
        let race = || {
            runtime(2).run(|| {
                let line = Arc::new(AtomicUsize::new(0));
                let racers = [(); 2].map(|()| {
                    let line = Arc::clone(&line);
                    thread::spawn(move || {
                        let (mut a, mut b) = UnixStream::pair().unwrap();
                        line.fetch_add(1, SeqCst);
                        while line.load(SeqCst) < 2 {
                            std::hint::spin_loop();
                        }
                        let echo = thread::spawn(move || b.read_exact(&mut [0; 1]).unwrap());
                        thread::yield_now();
                        a.write_all(b"x").unwrap();
                        echo.join().unwrap();
                    })
                });
                for racer in racers {
                    racer.join().unwrap();
                }
            });
        };
        race();
        let before = common::fd_count();
        (0..300).for_each(|_| race());
        let after = common::fd_count();
        assert!(after <= before + 2, "{before} files before, {after} after");
    });
    output.succeeded();
}
