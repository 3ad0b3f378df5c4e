//! Where there is no descriptor left: errors that say so, no spinning, and everything works
//! afterwards. And what is left at the end.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use gosched::net::{TcpListener, TcpStream, UdpSocket};
use gosched::os::unix::net::{UnixListener, UnixStream};
use gosched::thread;

use super::{LONG, TempPath, common, kind, ms};

/// Opens files until no more can be opened.
fn take_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// How many sockets this process has open.
fn sockets() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links
        .filter(|to| to.to_string_lossy().starts_with("socket:"))
        .count()
}

fn limit_files(n: u64) {
    let limit = libc::rlimit {
        rlim_cur: n,
        rlim_max: n,
    };
    // SAFETY: a setting of this process, read from this frame.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

/// `accept` says so, not too often, and takes the connection that has waited when there is room
/// again.
#[test]
fn accept_without_a_descriptor() {
    let output = common::child("full::accept_without_a_descriptor", || {
        limit_files(200);
        let body = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let path = TempPath::new();
            let unix = UnixListener::bind(&path).unwrap();
            let _clients = (
                TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
                UnixStream::connect(&path).unwrap(),
            );
            let files = take_all();
            let begun = Instant::now();
            let mut errors = 0;
            while begun.elapsed() < ms(500) {
                let error = listener.accept().map(drop).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                errors += 1;
            }
            assert!(
                (1..=50).contains(&errors),
                "{errors} errors in half a second"
            );
            let error = unix.accept().map(drop).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
            // A socket that must not wait returns the error at once.
            listener.set_nonblocking(true).unwrap();
            // Were it late with each, a thousand would take ten seconds.
            let is_soon = || {
                let begun = Instant::now();
                for _ in 0..1000 {
                    listener.accept().map(drop).unwrap_err();
                }
                begun.elapsed() < Duration::from_secs(8)
            };
            assert!((0..3).any(|_| is_soon()));
            listener.set_nonblocking(false).unwrap();
            // So are all others.
            assert!(TcpStream::connect(listener.local_addr().unwrap()).is_err());
            assert!(UdpSocket::bind("127.0.0.1:0").is_err());
            assert!(unix.try_clone().is_err());
            drop(files);
            listener.accept().unwrap();
            unix.accept().unwrap();
        };
        gosched::run(body);
        body();
    });
    output.succeeded();
}

/// The first wait of all needs a descriptor too: without one it is an error, not a hang, and it
/// works later.
#[test]
fn the_first_wait_without_a_descriptor() {
    for place in ["goroutine", "thread"] {
        let output = common::child_of(
            "full::the_first_wait_without_a_descriptor",
            place,
            |place| {
                limit_files(100);
                let body = || {
                    let (client, server) = UnixStream::pair().unwrap();
                    client.set_read_timeout(Some(ms(1))).unwrap();
                    let files = take_all();
                    (&client).read(&mut [0]).unwrap_err();
                    drop(files);
                    assert_eq!(kind((&client).read(&mut [0])), ErrorKind::WouldBlock);
                    client.set_read_timeout(None).unwrap();
                    (&server).write_all(b"x").unwrap();
                    assert_eq!((&client).read(&mut [0; 4]).unwrap(), 1);
                };
                match place {
                    "goroutine" => gosched::run(body),
                    _ => body(),
                }
            },
        );
        output.succeeded();
    }
}

/// The memory of the poller grows while goroutines with the smallest stacks open sockets.
#[test]
fn sockets_on_small_stacks() {
    let output = common::child("full::sockets_on_small_stacks", || {
        super::run(2, "sockets on small stacks", || {
            // More than two blocks of the poller's slots, from many goroutines: each of them may be
            // the goroutine that makes a block.
            let openers: [_; 6] = std::array::from_fn(|_| {
                let small = thread::Builder::new().stack_size(32 << 10);
                let open = || {
                    let pairs = (0..50).map(|_| UnixStream::pair().unwrap());
                    pairs.collect::<Vec<_>>()
                };
                small.spawn(open).unwrap()
            });
            let pairs = openers.map(|opener| opener.join().unwrap());
            assert_eq!(pairs.iter().flatten().count(), 300);
        });
    });
    output.succeeded();
}

/// Thousands of connections come and go: no descriptor, no goroutine and no memory stays behind.
#[test]
fn nothing_is_left() {
    let output = common::child("full::nothing_is_left", || {
        let runtime = super::runtime(2);
        let round = |n: usize| {
            runtime.run(|| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let addr = listener.local_addr().unwrap();
                let server = thread::spawn(move || {
                    for _ in 0..n {
                        let (mut stream, _) = listener.accept().unwrap();
                        gosched::go(move || {
                            let mut buf = [0; 16];
                            while let Ok(len @ 1..) = stream.read(&mut buf) {
                                stream.write_all(&buf[..len]).unwrap();
                            }
                        });
                    }
                });
                for _ in 0..n / 50 {
                    let clients: [_; 50] = std::array::from_fn(|_| {
                        thread::spawn(move || {
                            let mut stream = TcpStream::connect(addr).unwrap();
                            stream.write_all(b"ping").unwrap();
                            stream.read_exact(&mut [0; 4]).unwrap();
                            super::will_reset(&stream); // no port is left waiting
                        })
                    });
                    clients
                        .into_iter()
                        .for_each(|handle| handle.join().unwrap());
                }
                server.join().unwrap();
                while gosched::num_goroutines() > 1 {
                    thread::sleep(ms(1));
                }
            });
        };
        common::within(LONG * 2, "connections", || {
            round(1000);
            let before = common::rss_kib();
            round(4000);
            assert_eq!(sockets(), 0);
            let grown = common::rss_kib().saturating_sub(before);
            assert!(grown < 8 << 10, "{grown} KiB more");
        });
        drop(runtime);
    });
    output.succeeded();
}
