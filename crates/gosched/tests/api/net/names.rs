//! Names and how many are looked up at a time; addresses, which need no lookup; connections that
//! wait without a thread.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use gosched::net::{TcpListener, TcpStream, UdpSocket};
use gosched::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use gosched::{Runtime, thread};

use super::{LONG, TempPath, common, listens_to_few, ms};

/// A name whose lookup blocks its thread until it is released.
struct Name {
    server: Arc<Server>,
}

struct Server {
    addr: SocketAddr,
    asked: AtomicUsize,
    at_a_time: AtomicUsize,
    most: AtomicUsize,
    go_on: (Sender<()>, Mutex<Receiver<()>>),
}

impl Server {
    fn new() -> Arc<Server> {
        let (sender, receiver) = channel();
        Arc::new(Server {
            addr: (Ipv4Addr::LOCALHOST, 1).into(),
            asked: AtomicUsize::new(0),
            at_a_time: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            go_on: (sender, Mutex::new(receiver)),
        })
    }

    fn name(self: &Arc<Server>) -> Name {
        Name {
            server: Arc::clone(self),
        }
    }

    fn receiver(&self) -> MutexGuard<'_, Receiver<()>> {
        self.go_on.1.lock().unwrap()
    }

    /// Releases so many lookups.
    fn answer(&self, n: usize) {
        (0..n).for_each(|_| self.go_on.0.send(()).unwrap());
    }
}

impl ToSocketAddrs for Name {
    type Iter = std::vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        let server = &self.server;
        let now = server.at_a_time.fetch_add(1, SeqCst) + 1;
        server.most.fetch_max(now, SeqCst);
        server.asked.fetch_add(1, SeqCst);
        server.receiver().recv().unwrap();
        server.at_a_time.fetch_sub(1, SeqCst);
        Ok(vec![server.addr].into_iter())
    }
}

/// `n` goroutines that look the name up; each sends a datagram afterwards.
fn look_up(server: &Arc<Server>, n: usize) -> Vec<thread::JoinHandle<()>> {
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
    let one = |_| {
        let (socket, name) = (Arc::clone(&socket), server.name());
        thread::spawn(move || assert_eq!(socket.send_to(b"x", name).unwrap(), 1))
    };
    (0..n).map(one).collect()
}

fn ceiling(runtime: Runtime, n: usize, ceiling: usize) {
    common::within(LONG, "lookups", || {
        runtime.run(|| {
            let server = Server::new();
            let all = look_up(&server, n);
            while server.asked.load(SeqCst) < ceiling {
                thread::sleep(ms(1));
            }
            thread::sleep(ms(30)); // the others have the time to do what they must not
            assert_eq!(server.asked.load(SeqCst), ceiling);
            // Each lookup under way holds a thread. The runtime has a few more, and may still be
            // making some. A thread for each of the waiters would be many more.
            let threads = common::thread_count();
            let bound = ceiling + (n - ceiling) / 2;
            assert!(threads <= bound, "{threads} threads: waiters hold none");
            let leaks = gosched::debug::leaks();
            assert_eq!(leaks.goroutines().len(), 0, "they are served in the end");
            server.answer(n);
            all.into_iter().for_each(|one| one.join().unwrap());
            assert_eq!(server.asked.load(SeqCst), n);
            assert_eq!(server.most.load(SeqCst), ceiling);
        });
    });
}

/// So many at a time as was said; the others wait in order, without a thread.
#[test]
fn lookups_have_a_ceiling() {
    let output = common::child("names::lookups_have_a_ceiling", || {
        let builder = Runtime::builder().procs(2);
        ceiling(builder.max_lookups(5).build().unwrap(), 100, 5);
    });
    output.succeeded();
}

/// Without a word 500, as in Go.
#[test]
fn five_hundred_lookups() {
    let output = common::child("names::five_hundred_lookups", || {
        ceiling(Runtime::builder().procs(2).build().unwrap(), 600, 500);
    });
    output.succeeded();
}

/// Few threads: lookups leave some to others, and are no reason to end when others take those, too.
#[test]
fn lookups_where_threads_are_few() {
    let output = common::child("names::lookups_where_threads_are_few", || {
        let builder = Runtime::builder().procs(2).max_threads(10);
        ceiling(builder.build().unwrap(), 100, 4);
        let runtime = Runtime::builder().procs(2).max_threads(10).build().unwrap();
        common::within(LONG, "lookups and calls", || {
            runtime.run(|| {
                let server = Server::new();
                let all = look_up(&server, 50);
                while server.asked.load(SeqCst) < 4 {
                    thread::sleep(ms(1));
                }
                // With these, every thread is in a call: progress depends on a lookup that ends.
                let calls: [_; 6] = std::array::from_fn(|_| {
                    thread::spawn(|| gosched::blocking(|| std::thread::sleep(ms(500))))
                });
                let helper = {
                    let server = Arc::clone(&server);
                    std::thread::spawn(move || {
                        std::thread::sleep(ms(100));
                        server.answer(50);
                    })
                };
                all.into_iter().for_each(|one| one.join().unwrap());
                calls.into_iter().for_each(|one| one.join().unwrap());
                helper.join().unwrap();
            });
        });
    });
    output.succeeded();
}

/// None cannot be.
#[test]
fn no_lookups_are_refused() {
    let error = Runtime::builder().max_lookups(0).build().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let text = "max_lookups is 0: give a number from 1 to 2147483647";
    assert_eq!(error.to_string(), text);
}

/// Calls of `blocking` that `f` makes.
fn marked_calls(f: impl FnOnce() + Send) -> u64 {
    let runtime = super::runtime(1);
    common::within(LONG, "literal addresses", || runtime.run(f));
    runtime.metrics().syscalls
}

/// An address needs no lookup, in any notation; nor do sockets of the Unix domain.
#[test]
#[allow(clippy::needless_borrows_for_generic_args)] // references are types of their own here
fn addresses_need_no_marked_call() {
    let calls = marked_calls(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let text = addr.to_string();
        let host = ("127.0.0.1".to_owned(), addr.port());
        TcpStream::connect(addr).unwrap();
        TcpStream::connect(&addr).unwrap();
        TcpStream::connect(&[addr][..]).unwrap();
        TcpStream::connect(text.as_str()).unwrap();
        TcpStream::connect(&text).unwrap();
        TcpStream::connect(text).unwrap();
        TcpStream::connect(("127.0.0.1", addr.port())).unwrap();
        TcpStream::connect(&host).unwrap();
        TcpStream::connect(host).unwrap();
        TcpStream::connect_timeout(&addr, LONG).unwrap();
        _ = TcpListener::bind("[::1]:0");
        let [a, b] = [(); 2].map(|()| UdpSocket::bind(("127.0.0.1", 0)).unwrap());
        for _ in 0..100 {
            a.send_to(b"x", b.local_addr().unwrap()).unwrap();
        }
        a.connect(b.local_addr().unwrap()).unwrap();

        let (path, other) = (TempPath::new(), TempPath::new());
        let listener = UnixListener::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        UnixStream::connect_addr(&listener.local_addr().unwrap()).unwrap();
        let datagram = UnixDatagram::bind(&other).unwrap();
        datagram.connect(&other).unwrap();
    });
    assert_eq!(calls, 0);
    let calls = marked_calls(|| drop(UdpSocket::bind("localhost:0")));
    assert_eq!(calls, 1, "a name does");
}

/// Far more connects to a listener that does not accept than there may be threads.
#[test]
fn unix_connects_wait_without_a_thread() {
    let output = common::child("names::unix_connects_wait_without_a_thread", || {
        let builder = Runtime::builder().procs(2).max_threads(8);
        let runtime = builder.build().unwrap();
        common::within(LONG, "connects", || {
            runtime.run(|| {
                let path = TempPath::new();
                let listener = UnixListener::bind(&path).unwrap();
                listens_to_few(&listener);
                let clients: Vec<_> = (0..100)
                    .map(|_| {
                        let path = path.0.clone();
                        thread::spawn(move || drop(UnixStream::connect(path).unwrap()))
                    })
                    .collect();
                thread::sleep(ms(50));
                assert!(clients.iter().filter(|c| !c.is_finished()).count() > 50);
                (0..100).for_each(|_| drop(listener.accept().unwrap()));
                clients.into_iter().for_each(|c| c.join().unwrap());
            });
        });
    });
    output.succeeded();
}

/// A connect that waits gets an error when the listener is gone, and is unwound by a shutdown.
#[test]
fn unix_connects_end() {
    let output = common::child("names::unix_connects_end", || {
        let runtime = super::runtime(2);
        let path = TempPath::new();
        let listener = UnixListener::bind(&path).unwrap();
        listens_to_few(&listener);
        let fill = |path: std::path::PathBuf| move || while UnixStream::connect(&path).is_ok() {};
        let told = runtime.spawn(fill(path.0.clone()));
        std::thread::sleep(ms(50));
        assert!(!told.is_finished());
        drop(listener);
        told.join().unwrap();

        let other = TempPath::new();
        let listener = UnixListener::bind(&other).unwrap();
        listens_to_few(&listener);
        runtime.go(fill(other.0.clone()));
        std::thread::sleep(ms(50));
        runtime.shutdown(Duration::from_secs(20));
        drop(listener);
    });
    output.succeeded();
}
