//! Unix sockets: pairs, listeners on abstract names, datagrams. All actors of one bout are in one
//! runtime.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use crate::env::Actor;
use crate::ledger::Token;
use crate::mixes::tcp::{complain_of, is_explained, is_timeout};

pub fn root(a: &mut Actor) {
    while !a.over() {
        let done = match a.rng.below(3) {
            0 => pairs(a),
            1 => listens(a),
            _ => datagrams(a),
        };
        if let Err(error) = done {
            complain_of(a, "a unix socket", &error);
        }
        a.nap();
    }
}

/// Writes numbers, then half closes; the other side adds them up.
fn write_numbers(a: &mut Actor, mut stream: &UnixStream, many: u64) -> io::Result<()> {
    for n in 1..=many {
        stream.write_all(&n.to_le_bytes())?;
        a.op();
        if a.rng.one_in(32) {
            a.nap();
        }
    }
    stream.shutdown(Shutdown::Write)
}

fn read_numbers(a: &mut Actor, mut stream: &UnixStream) -> io::Result<u64> {
    let (mut last, mut bytes) = (0, [0; 8]);
    loop {
        match stream.read_exact(&mut bytes) {
            Ok(()) => {
                let n = u64::from_le_bytes(bytes);
                a.expect(n == last + 1, "numbers of a stream are out of order");
                last = n;
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(last),
            Err(error) => return Err(error),
        }
    }
}

fn pairs(a: &mut Actor) -> io::Result<()> {
    let tokens = [a.file(), a.file()];
    let (one, other) = UnixStream::pair()?;
    let [mine, yours] = tokens;
    let many = a.rng.few(3000) as u64;
    let writer = a.spawn(move |a| {
        let other = Owned(other, yours);
        write_numbers(a, &other.0, many)
    });
    let Some(writer) = writer else { return Ok(()) };
    let one = Owned(one, mine);
    let last = read_numbers(a, &one.0)?;
    match a.join(writer) {
        Some(written) => {
            written?;
            a.expect(last == many || is_explained(a), "a stream lost its end");
        }
        None => a.expect(is_explained(a), "a writer is lost"),
    }
    Ok(())
}

/// A socket, dropped before its ledger entry.
struct Owned<T>(T, #[expect(dead_code, reason = "dropped with it")] Token);

fn listens(a: &mut Actor) -> io::Result<()> {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let (process, number) = (std::process::id(), NAMES.fetch_add(1, SeqCst));
    let name = format!("gosched-stress-{process}-{number}");
    let address = SocketAddr::from_abstract_name(name)?;
    let token = a.file();
    let listener = Owned(UnixListener::bind_addr(&address)?, token);
    let many = a.rng.few(200) as u64;
    let mut clients = Vec::new();
    for _ in 0..a.rng.few(6) {
        let address = address.clone();
        clients.push(a.spawn(move |a| {
            let token = a.file();
            let stream = Owned(UnixStream::connect_addr(&address)?, token);
            write_numbers(a, &stream.0, many)
        }));
    }
    for _ in clients.iter().flatten() {
        let token = a.file();
        listener.0.set_deadline(Some(far(a)))?;
        let (stream, _) = listener.0.accept()?;
        let stream = Owned(stream, token);
        let last = read_numbers(a, &stream.0)?;
        a.expect(last == many || is_explained(a), "a connection lost its end");
    }
    drop(listener);
    for client in clients.into_iter().flatten() {
        a.join(client).unwrap_or(Ok(()))?;
    }
    Ok(())
}

/// The time after which nothing can come any more. It is short if the partner may have been
/// refused.
fn far(a: &Actor) -> Instant {
    Instant::now() + Duration::from_secs(if is_explained(a) { 3 } else { 30 })
}

fn datagrams(a: &mut Actor) -> io::Result<()> {
    let tokens = [a.file(), a.file()];
    let (one, other) = UnixDatagram::pair()?;
    let [mine, yours] = tokens;
    let many = a.rng.few(400) as u64;
    let sender = a.spawn(move |a| {
        let other = Owned(other, yours);
        for n in 0..many {
            other.0.send(&n.to_le_bytes())?;
            if a.rng.one_in(32) {
                a.nap();
            }
        }
        Ok::<_, io::Error>(())
    });
    let Some(sender) = sender else { return Ok(()) };
    let one = Owned(one, mine);
    one.0.set_read_deadline(Some(far(a)))?;
    let mut bytes = [0; 64];
    for n in 0..many {
        match one.0.recv(&mut bytes) {
            Ok(8) => {
                let is_next = bytes[..8] == n.to_le_bytes();
                a.expect(is_next, "a datagram is wrong");
                a.op();
            }
            Ok(len) => a.complain(format_args!("a datagram of {len} bytes")),
            Err(error) => {
                drop(one);
                let all_sent = matches!(a.join(sender), Some(Ok(())));
                let is_lost = all_sent && is_timeout(&error);
                a.expect(!is_lost, format_args!("datagram {n} of {many} is lost"));
                return Err(error);
            }
        }
    }
    a.join(sender).unwrap_or(Ok(()))
}
