//! A server with a thread for each connection, and its clients, on nothing but std.
//!
//! With the feature `thread` of gosched-hook its threads are goroutines. Several ports: a client's
//! address has only 28,000 ports towards each of them.

use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};

use crate::peak;

/// Connections to one port, at most.
const PER_PORT: usize = 10_000;

pub(super) fn run(connections: usize) {
    let ports = connections.div_ceil(PER_PORT).max(2);
    // All clients, and this thread.
    let all_there = Arc::new(Barrier::new(connections + 1));
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for port in 0..ports {
        let share = (port..connections).step_by(ports);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let count = share.clone().count();
        servers.push(thread::spawn(move || serve_port(&listener, count)));
        for i in share {
            let all_there = all_there.clone();
            clients.push(thread::spawn(move || client(i, address, &all_there)));
        }
    }
    // Each connection has been served once, and both its threads live.
    all_there.wait();
    peak::record();
    all_there.wait();
    let received: usize = join(clients).into_iter().map(|r| r.unwrap()).sum();
    let sent: usize = join(servers).into_iter().sum();
    assert_eq!(received, sent);
    println!("{connections} connections on {ports} ports, {sent} bytes each way");
}

fn join<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

/// Accepts so many connections. Returns the number of bytes on all of them.
fn serve_port(listener: &TcpListener, connections: usize) -> usize {
    let threads = (0..connections).map(|_| {
        let (stream, _) = listener.accept().unwrap();
        thread::spawn(move || echo(stream).unwrap())
    });
    let threads = threads.collect();
    join(threads).into_iter().sum()
}

/// Sends everything back, until the client closes.
fn echo(mut stream: TcpStream) -> Result<usize> {
    let mut bytes = 0;
    let mut block = [0; 1024];
    loop {
        match stream.read(&mut block)? {
            0 => return Ok(bytes),
            n => {
                stream.write_all(&block[..n])?;
                bytes += n;
            }
        }
    }
}

/// Talks to the server before and after all clients are connected.
fn client(i: usize, address: SocketAddr, all_there: &Barrier) -> Result<usize> {
    let mut stream = TcpStream::connect(address)?;
    let mut bytes = say(&mut stream, &format!("hello from {i}"))?;
    all_there.wait();
    all_there.wait();
    for round in 0..3 {
        bytes += say(&mut stream, &format!("{i} again: {round}"))?;
    }
    Ok(bytes)
}

/// Sends a text, and expects it back.
fn say(stream: &mut TcpStream, text: &str) -> Result<usize> {
    stream.write_all(text.as_bytes())?;
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back)?;
    assert_eq!(back, text.as_bytes());
    Ok(back.len())
}
