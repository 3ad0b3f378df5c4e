//! A crowd: connections with a goroutine at both ends, which come, talk, half close, break off and
//! come again. Nothing is lost, and nothing is left at the end.
//!
//! `GOSCHED_NET_CONNECTIONS=9000 GOSCHED_NET_SECS=60` make it a long one; `GOSCHED_STRESS_SEED`
//! repeats one.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use gosched::net::{SocketAddr, TcpListener, TcpStream};
use gosched::sync::{Semaphore, WaitGroup};
use gosched::thread;

use crate::common::{self, Rng};

struct Tally {
    /// Connections, messages and bytes that came back as they went.
    connections: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
    /// What the servers sent back.
    echoed: AtomicU64,
    stop: AtomicBool,
}

#[test]
fn a_crowd_comes_and_goes() {
    let seed = common::env("GOSCHED_STRESS_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_nanos() as u64
    });
    let crowd: usize = common::env("GOSCHED_NET_CONNECTIONS").unwrap_or(300);
    let secs: u64 = common::env("GOSCHED_NET_SECS").unwrap_or(4);
    let output = common::child("crowd::a_crowd_comes_and_goes", || {
        println!(
            "GOSCHED_STRESS_SEED={seed} GOSCHED_NET_CONNECTIONS={crowd} GOSCHED_NET_SECS={secs}"
        );
        let runtime = super::runtime(2);
        // What stays: the poller, and what the runtime opens to look at its threads.
        runtime.run(|| play(seed, 50, Duration::from_millis(100)));
        let (fds, memory) = (common::fd_count(), common::rss_kib());
        runtime.run(|| play(seed, crowd, Duration::from_secs(secs)));
        assert!(
            common::eventually(|| common::fd_count() <= fds + 10),
            "{} descriptors, {fds} before",
            common::fd_count()
        );
        assert_eq!(runtime.metrics().rescues, 0, "WK: a wake-up was lost");
        runtime.check().unwrap();
        // A goroutine that has counted itself off may still be about to end.
        let is_empty = || runtime.dump().goroutines().is_empty();
        assert!(common::eventually(is_empty), "goroutines are left");
        println!(
            "memory: {memory} KiB before, {} KiB after",
            common::rss_kib()
        );
    });
    print!("{}", output.stdout);
    output.succeeded();
}

/// How long each client talks.
fn play(seed: u64, crowd: usize, time: Duration) {
    let tally = Arc::new(Tally {
        connections: AtomicU64::new(0),
        messages: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        echoed: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (servers, clients) = (WaitGroup::new(), WaitGroup::new());
    let door = listener.try_clone().unwrap();
    let acceptor = thread::spawn({
        let (servers, tally) = (servers.clone(), Arc::clone(&tally));
        move || {
            for stream in door.incoming() {
                match stream {
                    Ok(stream) => {
                        let tally = Arc::clone(&tally);
                        servers.go(move || echo(stream, &tally));
                    }
                    Err(_) if tally.stop.load(SeqCst) => return,
                    Err(error) => panic!("accept: {error}"),
                }
            }
        }
    });
    // As many connects under way as the listener's queue takes.
    let turns = Arc::new(Semaphore::new(100));
    for n in 0..crowd {
        let (tally, turns) = (Arc::clone(&tally), Arc::clone(&turns));
        let mut rng = Rng::new(seed ^ (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        clients.go(move || {
            loop {
                visit(address, &mut rng, &tally, &turns);
                if tally.stop.load(Relaxed) {
                    return;
                }
            }
        });
    }
    let end = Instant::now() + time;
    thread::sleep(end.saturating_duration_since(Instant::now()));
    tally.stop.store(true, SeqCst);
    clients.wait();
    listener.set_deadline(Some(Instant::now())).unwrap();
    acceptor.join().unwrap();
    servers.wait();
    let [connections, messages, bytes, echoed] = [
        &tally.connections,
        &tally.messages,
        &tally.bytes,
        &tally.echoed,
    ]
    .map(|count| count.load(SeqCst));
    println!(
        "{connections} connections, {messages} messages, {bytes} of {echoed} bytes taken back"
    );
    assert!(connections >= crowd as u64 && bytes <= echoed);
}

/// A server's goroutine: sends back what comes, until the client has no more, or is gone.
fn echo(mut stream: TcpStream, tally: &Tally) {
    let mut buffer = [0; 2048];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        tally.echoed.fetch_add(n as u64, Relaxed);
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}

/// One connection, from its client's side.
fn visit(address: SocketAddr, rng: &mut Rng, tally: &Tally, turns: &Semaphore) {
    let turn = turns.acquire();
    let mut stream = TcpStream::connect(address).unwrap();
    drop(turn);
    tally.connections.fetch_add(1, Relaxed);
    let mut buffer = [0; 2000];
    for _ in 0..rng.below(30) {
        let message: Vec<u8> = (0..1 + rng.below(2000)).map(|_| rng.next() as u8).collect();
        stream.write_all(&message).unwrap();
        if rng.one_in(40) {
            return; // with an answer under way, which resets the connection
        }
        let back = &mut buffer[..message.len()];
        stream.read_exact(back).unwrap();
        assert!(back == message, "a message came back as another");
        tally.messages.fetch_add(1, Relaxed);
        tally.bytes.fetch_add(message.len() as u64, Relaxed);
        if rng.one_in(8) {
            thread::sleep(Duration::from_millis(rng.below(5)));
        }
    }
    if rng.one_in(2) {
        // The other side sees the end, sends what it has, and ends.
        stream.write_all(b"last words").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"last words");
        tally.bytes.fetch_add(rest.len() as u64, Relaxed);
    }
}
