//! Clients that are slow, or never read, or come in floods: others do not notice, and memory is
//! bounded.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::net::{TcpListener, TcpStream};
use gosched::sync::WaitGroup;
use gosched::thread;

use super::common;

/// Sends back what comes, a goroutine for each connection, until the listener's deadline.
fn serve(listener: TcpListener) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let clients = WaitGroup::new();
        while let Ok((mut stream, _)) = listener.accept() {
            clients.go(move || {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..n]).is_err() {
                        return;
                    }
                }
            });
        }
        clients.wait();
    })
}

fn ping(stream: &mut TcpStream, n: u32) {
    stream.write_all(&n.to_ne_bytes()).unwrap();
    let mut back = [0; 4];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, n.to_ne_bytes());
}

/// A client that sends and does not read fills two buffers of the kernel and then waits, and so
/// does its server. No other goroutine does.
#[test]
fn clients_that_never_read() {
    let output = common::child("slow::clients_that_never_read", || {
        super::run(2, "clients that never read", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (door, address) = (
                listener.try_clone().unwrap(),
                listener.local_addr().unwrap(),
            );
            let server = serve(listener);
            let stop = Arc::new(AtomicBool::new(false));
            let deaf: Vec<_> = (0..50)
                .map(|_| {
                    let stop = Arc::clone(&stop);
                    thread::spawn(move || {
                        let stream = TcpStream::connect(address).unwrap();
                        stream
                            .set_write_timeout(Some(Duration::from_millis(50)))
                            .unwrap();
                        let mut sent = 0;
                        while !stop.load(SeqCst) {
                            sent += (&stream).write(&[1; 4096]).unwrap_or(0);
                        }
                        sent
                    })
                })
                .collect();
            let mut good = TcpStream::connect(address).unwrap();
            for n in 0..2000 {
                ping(&mut good, n);
            }
            let before = common::rss_kib();
            thread::sleep(Duration::from_millis(300));
            for n in 0..2000 {
                ping(&mut good, n);
            }
            let more = common::rss_kib().saturating_sub(before);
            assert!(more < 20_000, "{more} KiB more, for nothing");
            stop.store(true, SeqCst);
            let sent: usize = deaf.into_iter().map(|one| one.join().unwrap()).sum();
            assert!(sent > 0);
            drop(good);
            door.set_deadline(Some(Instant::now())).unwrap();
            server.join().unwrap();
        });
    });
    output.succeeded();
}

/// A byte at a time, with pauses: a goroutine's wait costs the others nothing.
#[test]
fn clients_that_take_their_time() {
    super::run(2, "clients that take their time", || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (door, address) = (
            listener.try_clone().unwrap(),
            listener.local_addr().unwrap(),
        );
        let server = serve(listener);
        let slow: Vec<_> = (0..100u8)
            .map(|n| {
                thread::spawn(move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    let mut byte = [0];
                    for turn in 0..10 {
                        stream.write_all(&[n ^ turn]).unwrap();
                        thread::sleep(Duration::from_millis(u64::from(n % 7)));
                        stream.read_exact(&mut byte).unwrap();
                        assert_eq!(byte, [n ^ turn]);
                    }
                })
            })
            .collect();
        slow.into_iter().for_each(|one| one.join().unwrap());
        door.set_deadline(Some(Instant::now())).unwrap();
        server.join().unwrap();
    });
}

/// More at once than the listener's queue takes, each for a moment.
#[test]
fn a_flood_of_connects() {
    super::run(2, "a flood of connects", || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (door, address) = (
            listener.try_clone().unwrap(),
            listener.local_addr().unwrap(),
        );
        let server = serve(listener);
        let mut good = TcpStream::connect(address).unwrap();
        let flood: Vec<_> = (0..1000)
            .map(|_| {
                thread::spawn(move || {
                    let stream = TcpStream::connect(address).unwrap();
                    stream.set_linger(Some(Duration::ZERO)).unwrap();
                })
            })
            .collect();
        for n in 0..1000 {
            ping(&mut good, n);
        }
        flood.into_iter().for_each(|one| one.join().unwrap());
        ping(&mut good, 7);
        drop(good);
        door.set_deadline(Some(Instant::now())).unwrap();
        server.join().unwrap();
    });
}
