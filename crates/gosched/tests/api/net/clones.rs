//! Several at one socket: clones and references, readers and writers, acceptors.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use gosched::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use gosched::os::unix::net::UnixStream;
use gosched::{chan, thread};

use super::{LONG, common, ms, run, tcp_pair};

fn byte(i: usize) -> u8 {
    (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

fn send_all(mut to: impl Write, len: usize) {
    let data: Vec<u8> = (0..len).map(byte).collect();
    data.chunks(70_001)
        .for_each(|part| to.write_all(part).unwrap());
}

fn expect_all(mut from: impl Read, len: usize) {
    let mut buf = vec![0; 40_009];
    let mut at = 0;
    while at < len {
        let n = from.read(&mut buf).unwrap();
        assert_ne!(n, 0, "the end, after {at}");
        (0..n).for_each(|i| assert_eq!(buf[i], byte(at + i), "at {}", at + i));
        at += n;
    }
    assert_eq!(at, len);
}

/// A reader and a writer at each end, all at the same time, through clones and through references.
#[test]
fn reading_and_writing_at_the_same_time() {
    const LEN: usize = 3 << 20;
    for procs in [1, 2, 4] {
        run(procs, "four at one connection", || {
            let (client, server) = tcp_pair();
            let clone = client.try_clone().unwrap();
            let server = Arc::new(server);
            let other = Arc::clone(&server);
            let handles = [
                thread::spawn(move || send_all(client, LEN)),
                thread::spawn(move || expect_all(clone, LEN)),
                thread::spawn(move || send_all(&*server, LEN)),
                thread::spawn(move || expect_all(&*other, LEN)),
            ];
            handles
                .into_iter()
                .for_each(|handle| handle.join().unwrap());
        });
    }
}

/// The same between a plain thread and a goroutine, at both ends of both directions.
#[test]
fn a_thread_and_a_goroutine_at_one_socket() {
    const LEN: usize = 2 << 20;
    run(2, "threads and goroutines", || {
        let (a, b) = UnixStream::pair().unwrap();
        let (a2, b2) = (a.try_clone().unwrap(), b.try_clone().unwrap());
        let threads = [
            std::thread::spawn(move || send_all(a, LEN)),
            std::thread::spawn(move || expect_all(b2, LEN)),
        ];
        let goroutines = [
            thread::spawn(move || expect_all(a2, LEN)),
            thread::spawn(move || send_all(b, LEN)),
        ];
        goroutines
            .into_iter()
            .for_each(|handle| handle.join().unwrap());
        threads
            .into_iter()
            .for_each(|handle| handle.join().unwrap());
    });
}

/// Several read one connection: every byte comes to one of them, and at the end all see the end.
#[test]
fn several_readers() {
    const LEN: usize = 1 << 20;
    for procs in [1, 2] {
        run(procs, "several readers", || {
            let (client, server) = tcp_pair();
            let readers: Vec<_> = (0..6)
                .map(|_| {
                    let mut server = server.try_clone().unwrap();
                    thread::spawn(move || {
                        let mut buf = vec![0; 1 + 997];
                        let mut sum = 0;
                        loop {
                            match server.read(&mut buf).unwrap() {
                                0 => return sum,
                                n => sum += n,
                            }
                        }
                    })
                })
                .collect();
            drop(server);
            let data = vec![1; 3_001];
            let mut left = LEN;
            while left > 0 {
                let n = left.min(data.len());
                (&client).write_all(&data[..n]).unwrap();
                left -= n;
            }
            drop(client);
            let sums = readers.into_iter().map(|handle| handle.join().unwrap());
            assert_eq!(sums.sum::<usize>(), LEN);
        });
    }
}

/// Several write one connection: whole messages, if they are written at once and there is room.
#[test]
fn several_writers() {
    run(2, "several writers", || {
        let (client, mut server) = tcp_pair();
        let writers: Vec<_> = (0..6u8)
            .map(|id| {
                let mut client = client.try_clone().unwrap();
                thread::spawn(move || (0..200).for_each(|_| client.write_all(&[id; 5000]).unwrap()))
            })
            .collect();
        drop(client);
        let mut counts = [0; 6];
        let mut buf = vec![0; 1 << 16];
        loop {
            let n = server.read(&mut buf).unwrap();
            if n == 0 {
                break;
            }
            buf[..n].iter().for_each(|&id| counts[id as usize] += 1);
        }
        writers
            .into_iter()
            .for_each(|handle| handle.join().unwrap());
        assert_eq!(counts, [200 * 5000; 6]);
    });
}

/// Acceptors on clones of a listener, goroutines and threads: each connection is accepted once, and
/// none waits for ever.
#[test]
fn several_acceptors() {
    const CONNECTIONS: usize = 300;
    for procs in [1, 2] {
        run(procs, "several acceptors", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            let (send, accepted) = chan::unbounded::<SocketAddr>();
            let acceptor = || {
                let (listener, send) = (listener.try_clone().unwrap(), send.clone());
                move || {
                    while let Ok((stream, from)) = listener.accept() {
                        if from.ip().is_loopback() && send.send(from).is_err() {
                            return;
                        }
                        drop(stream);
                    }
                }
            };
            let goroutines: Vec<_> = (0..6).map(|_| thread::spawn(acceptor())).collect();
            let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(acceptor())).collect();
            let clients: Vec<_> = (0..4)
                .map(|_| {
                    thread::spawn(move || {
                        let connect = |_| TcpStream::connect(addr).unwrap();
                        (0..CONNECTIONS / 4).map(connect).collect::<Vec<_>>()
                    })
                })
                .collect();
            let mine: HashSet<_> = clients
                .into_iter()
                .flat_map(|handle| handle.join().unwrap())
                .map(|stream| stream.local_addr().unwrap())
                .collect();
            let theirs: HashSet<_> = (0..CONNECTIONS).map(|_| accepted.recv().unwrap()).collect();
            assert_eq!(mine, theirs);
            assert_eq!(mine.len(), CONNECTIONS);
            // The end of all, at once.
            listener
                .set_deadline(Some(std::time::Instant::now()))
                .unwrap();
            goroutines
                .into_iter()
                .for_each(|handle| handle.join().unwrap());
            threads
                .into_iter()
                .for_each(|handle| handle.join().unwrap());
        });
    }
}

/// The handle by which a socket was registered with the poller is dropped. A waiter on a clone is
/// woken nevertheless.
#[test]
fn the_first_handle_goes_while_another_waits() {
    super::everywhere("a clone waits", || {
        let (client, server) = tcp_pair();
        let mut clone = client.try_clone().unwrap();
        client.set_read_timeout(Some(ms(1))).unwrap();
        (&client).read(&mut [0]).unwrap_err(); // it has waited
        client.set_read_timeout(None).unwrap();
        let reader = std::thread::spawn(move || clone.read(&mut [0; 8]).unwrap());
        std::thread::sleep(ms(20));
        drop(client);
        // Its number is used again, for sockets that are woken too.
        let (a, mut b) = tcp_pair();
        let other = std::thread::spawn(move || b.read(&mut [0; 8]).unwrap());
        (&server).write_all(b"four").unwrap();
        assert_eq!(reader.join().unwrap(), 4);
        (&a).write_all(b"six   ").unwrap();
        assert_eq!(other.join().unwrap(), 6);
    });
}

/// A clone leaves for std while another handle waits, or is about to.
#[test]
fn a_clone_leaves_while_another_waits() {
    run(2, "a clone leaves", || {
        for (leaves_first, knows) in [(true, true), (false, true), (true, false), (false, false)] {
            let (client, server) = tcp_pair();
            if knows {
                client.set_read_timeout(Some(ms(1))).unwrap();
                (&client).read(&mut [0]).unwrap_err(); // the poller knows it by this handle
                client.set_read_timeout(None).unwrap();
            }
            let mut clone = client.try_clone().unwrap();
            let reader = thread::spawn(move || {
                let mut buf = [0; 4];
                clone.read_exact(&mut buf[..2]).unwrap();
                clone.read_exact(&mut buf[2..]).unwrap();
                buf
            });
            thread::sleep(ms(10));
            (&server).write_all(b"ab").unwrap();
            if leaves_first {
                thread::sleep(ms(10));
            }
            let client = std::net::TcpStream::from(client);
            (&server).write_all(b"cd").unwrap();
            assert_eq!(&reader.join().unwrap(), b"abcd");
            drop(client);
        }
    });
}

/// Reading ends for all waiters when the peer closes, resets or shuts down.
#[test]
fn the_end_wakes_all_who_wait() {
    for resets in [false, true] {
        run(2, "the end wakes all", || {
            let (client, server) = tcp_pair();
            let server = Arc::new(server);
            let readers: Vec<_> = (0..8)
                .map(|_| {
                    let server = Arc::clone(&server);
                    thread::spawn(move || (&*server).read(&mut [0; 8]))
                })
                .collect();
            thread::sleep(ms(20));
            if resets {
                super::will_reset(&client);
            } else {
                client.shutdown(Shutdown::Write).unwrap();
            }
            drop(client);
            let ends = readers.into_iter().map(|handle| handle.join().unwrap());
            // One of them gets the error of a reset.
            let errors = ends.filter(|end| *end.as_ref().unwrap_or(&7) != 0).count();
            assert_eq!(errors, usize::from(resets));
        });
    }
}

/// Datagrams to a socket with several receivers: each goes to one.
#[test]
fn several_receivers_of_datagrams() {
    run(2, "several receivers", || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let (send, received) = chan::unbounded();
        for _ in 0..4 {
            let (socket, send) = (socket.try_clone().unwrap(), send.clone());
            gosched::go(move || {
                let mut buf = [0; 4];
                while let Ok(4) = socket.recv(&mut buf) {
                    send.send(u32::from_le_bytes(buf)).unwrap();
                }
            });
        }
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        for round in 0..200u32 {
            // Few at a time: the kernel drops what does not fit.
            let numbers = [round * 2, round * 2 + 1];
            for n in numbers {
                from.send_to(&n.to_le_bytes(), to).unwrap();
            }
            let mut got = [(); 2].map(|()| received.recv_timeout(LONG).unwrap());
            got.sort_unstable();
            assert_eq!(got, numbers);
        }
    });
}

/// A hundred connections, each with a goroutine at both ends, on one P and on several.
#[test]
fn a_goroutine_per_connection() {
    for procs in [1, 3] {
        run(procs, "echo", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            gosched::go(move || {
                for stream in listener.incoming() {
                    let stream = stream.unwrap();
                    gosched::go(move || {
                        std::io::copy(&mut &stream, &mut &stream).unwrap();
                    });
                }
            });
            let clients: Vec<_> = (0..100)
                .map(|i| {
                    thread::spawn(move || {
                        let mut rng = common::Rng::new(i);
                        let mut stream = TcpStream::connect(addr).unwrap();
                        for _ in 0..50 {
                            let len = 1 + rng.below(300) as usize;
                            let data: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
                            stream.write_all(&data).unwrap();
                            let mut back = vec![0; len];
                            stream.read_exact(&mut back).unwrap();
                            assert_eq!(data, back);
                        }
                    })
                })
                .collect();
            clients
                .into_iter()
                .for_each(|handle| handle.join().unwrap());
        });
    }
}
