//! TCP over loopback: many clients that connect, talk, half close, reset, time out, and share their
//! sockets by clones. A server has a goroutine for each connection. All data must come back as it
//! was sent.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gosched::net::{SocketAddr, TcpListener, TcpStream};
use gosched::sync::WaitGroup;
use gosched::thread;

use crate::env::{Actor, Place, TURN};
use crate::ledger::Token;

/// A connection and its ledger entry; closed before the entry is dropped.
struct Conn {
    stream: TcpStream,
    _token: Token,
}

/// Whether an error of a socket has a reason.
pub fn is_explained(a: &Actor) -> bool {
    a.env.plan.inject.epoll || a.env.may_refuse()
}

/// Complains of an error without a reason.
pub fn complain_of(a: &Actor, what: &str, error: &io::Error) {
    if a.env.plan.inject.epoll && error.raw_os_error() == Some(libc::ENOSPC) {
        a.env.ledger.refused_sockets.fetch_add(1, Relaxed);
    }
    a.expect(is_explained(a), format_args!("{what}: {error}"));
}

/// Whether the error is a timeout.
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Before the first round: a plain thread waits on a socket, which starts the poller's thread.
pub fn prepare() {
    if let Ok(listener) = TcpListener::bind("127.0.0.1:0") {
        let _ = listener.set_deadline(Some(Instant::now() + Duration::from_millis(1)));
        let _ = listener.accept();
    }
}

pub fn root(a: &mut Actor) {
    while !a.over() {
        let token = a.file();
        match TcpListener::bind("127.0.0.1:0") {
            Ok(listener) => bout(a, listener, token),
            Err(error) => complain_of(a, "bind", &error),
        }
        a.nap();
    }
}

fn bout(a: &mut Actor, listener: TcpListener, token: Token) {
    let Ok(address) = listener.local_addr() else {
        return a.complain("a listener without an address");
    };
    let shared = Arc::new((listener, token));
    let door = Arc::clone(&shared);
    let acceptor = a.spawn(move |a| accept(a, &door.0));
    if acceptor.is_none() {
        return;
    }
    let (threads, mut clients) = (WaitGroup::new(), Vec::new());
    for _ in 0..a.rng.few(20) {
        let place = a.place();
        let counted = (place == Place::Thread).then(|| {
            threads.add(1);
            Counted(threads.clone())
        });
        clients.push(a.start(place, move |a| {
            let _counted = counted;
            for _ in 0..a.rng.few(4) {
                if let Err(error) = visit(a, address) {
                    complain_of(a, "a client", &error);
                }
                if a.over() {
                    break;
                }
            }
        }));
    }
    a.join_all(clients);
    threads.wait();
    // The deadline ends `accept`.
    let told = shared.0.set_deadline(Some(Instant::now()));
    a.expect(told.is_ok() || is_explained(a), "a deadline was refused");
    a.join_all(vec![acceptor]);
}

/// A plain thread that the root waits for.
struct Counted(WaitGroup);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.done();
    }
}

fn accept(a: &mut Actor, listener: &TcpListener) {
    let mut servers = Vec::new();
    loop {
        let token = a.file();
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::TimedOut => break,
            Err(error) => {
                complain_of(a, "accept", &error);
                a.nap();
                continue;
            }
        };
        let conn = Conn {
            stream,
            _token: token,
        };
        // No client is turned away: without room it is served here.
        let Some(room) = a.room() else {
            echo(a, &conn.stream);
            continue;
        };
        let body = a.goroutine_in(room, move |a| {
            let conn = { conn }; // moves all of it
            echo(a, &conn.stream);
        });
        servers.push(a.accept(thread::Builder::new().spawn(body)));
    }
    a.join_all(servers);
}

/// Sends back all data until the client has no more, or is gone.
fn echo(a: &mut Actor, stream: &TcpStream) {
    if a.may_hang() && stream.set_read_timeout(Some(TURN)).is_err() {
        return;
    }
    let (mut from, mut to) = (stream, stream);
    let mut buffer = [0; 2048];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) if to.write_all(&buffer[..n]).is_err() && !is_explained(a) => return,
            Ok(_) => a.op(),
            // The poller refuses: try again, unless the client is gone.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => a.nap(),
            // An abandoned client sends nothing any more.
            Err(error) if is_timeout(&error) && a.may_hang() && !a.over() => {}
            Err(_) => return,
        }
    }
}

/// One connection, from the client's side.
fn visit(a: &mut Actor, address: SocketAddr) -> io::Result<()> {
    let token = a.file();
    let stream = if a.rng.one_in(4) {
        TcpStream::connect_timeout(&address, Duration::from_secs(20))?
    } else {
        TcpStream::connect(address)?
    };
    let conn = Conn {
        stream,
        _token: token,
    };
    if a.may_hang() {
        conn.stream.set_read_timeout(Some(TURN))?;
    }
    if a.rng.one_in(6) {
        return split(a, conn);
    }
    for _ in 0..a.rng.few(12) {
        if a.rng.one_in(10) {
            time_out(a, &conn.stream)?;
        }
        let many = a.rng.within(1, 2000);
        let message: Vec<u8> = (0..many).map(|_| a.rng.next() as u8).collect();
        (&conn.stream).write_all(&message)?;
        if a.rng.one_in(30) {
            if a.rng.one_in(2) {
                conn.stream.set_linger(Some(Duration::ZERO))?;
            }
            return Ok(()); // unread data resets the connection
        }
        let mut back = vec![0; many];
        if !read_exact(a, &conn.stream, &mut back)? {
            return Ok(());
        }
        a.expect(back == message, "a message came back changed");
        a.op();
        if a.over() {
            break;
        }
        a.nap();
    }
    half_close(a, &conn.stream)
}

/// Reads all of it; returns false if the round ended before.
fn read_exact(a: &mut Actor, mut stream: &TcpStream, mut into: &mut [u8]) -> io::Result<bool> {
    while !into.is_empty() {
        match stream.read(into) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => into = &mut into[n..],
            Err(error) if is_timeout(&error) && a.may_hang() => {
                if a.over() {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The other side sees the end, sends what it has, and ends.
fn half_close(a: &mut Actor, mut stream: &TcpStream) -> io::Result<()> {
    if a.rng.one_in(2) {
        return Ok(());
    }
    stream.write_all(b"last words")?;
    stream.shutdown(Shutdown::Write)?;
    let mut words = [0; 10];
    if read_exact(a, stream, &mut words)? {
        a.expect(&words == b"last words", "the last words are wrong");
    }
    Ok(())
}

/// A read with a deadline, while the other side is silent.
fn time_out(a: &mut Actor, mut stream: &TcpStream) -> io::Result<()> {
    let time = a.rng.micros(2000);
    let due = Instant::now() + time;
    stream.set_read_deadline(Some(due))?;
    let timeout = stream.read_timeout()?;
    stream.set_read_timeout(None)?;
    let read = stream.read(&mut [0; 8]);
    match read {
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            a.expect(Instant::now() >= due, "a deadline was early");
        }
        Err(error) => return Err(error),
        Ok(n) => a.expect(
            is_explained(a),
            format_args!("{n} bytes that were not sent"),
        ),
    }
    stream.set_read_deadline(None)?;
    stream.set_read_timeout(timeout)
}

/// One goroutine writes, another one reads through a clone.
fn split(a: &mut Actor, conn: Conn) -> io::Result<()> {
    let token = a.file();
    let clone = Conn {
        stream: conn.stream.try_clone()?,
        _token: token,
    };
    let many = a.rng.within(1, 40_000);
    let is_goroutine = thread::current().id().goroutine().is_some();
    let place = if is_goroutine {
        Place::Same
    } else {
        Place::Here
    };
    let writer = a.start(place, move |_| {
        let clone = { clone }; // moves all of it
        let bytes: Vec<u8> = (0..many).map(|n| n as u8).collect();
        let written = (&clone.stream).write_all(&bytes);
        written.and_then(|()| clone.stream.shutdown(Shutdown::Write))
    });
    let Some(writer) = writer else { return Ok(()) };
    let mut back = vec![0; many];
    let is_read = read_exact(a, &conn.stream, &mut back);
    drop(conn);
    let written = a.join(writer);
    if is_read? {
        let is_right = back.iter().enumerate().all(|(n, byte)| *byte == n as u8);
        a.expect(is_right, "a stream came back changed");
        written.unwrap_or(Ok(()))?;
    }
    Ok(())
}
