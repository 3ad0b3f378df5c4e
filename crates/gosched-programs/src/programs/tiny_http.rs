//! tiny_http with a goroutine for each request.
//!
//! tiny_http reads each connection on a thread of its own. Those are real threads unless the
//! feature `thread` is on, so without it there are few connections. Each has many requests under
//! way at once: the client sends all of them before it reads an answer.
//!
//! Clients connect one after the other. tiny_http counts its idle threads, and two connections at
//! once may both be given to the same one. The second then waits until the first is closed.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use tiny_http::{Method, Request, Response, Server};

use crate::crowd::{Gate, all_wait, join_all, until};

pub(super) const CONNECTIONS: usize = if cfg!(feature = "thread") { 100 } else { 8 };
pub(super) const NEEDS: &[&str] = if cfg!(feature = "thread") {
    &["accept4", "recv", "send", "syscall", "pthread_create"]
} else {
    &["accept4", "recv", "send", "syscall"]
};

/// Requests on each connection.
const PIPELINED: usize = 25;

pub(super) fn run(connections: usize) {
    let server = Server::http("127.0.0.1:0").unwrap();
    let address = server.server_addr().to_ip().unwrap();
    let gate = Arc::new(Gate::new());
    let all = connections * PIPELINED;
    let arrived = Arc::new(AtomicUsize::new(0));
    let dispatcher = gosched::thread::spawn({
        let (gate, arrived) = (gate.clone(), arrived.clone());
        move || {
            let requests = (0..all).map(|_| {
                let request = server.recv().unwrap();
                arrived.fetch_add(1, Relaxed);
                let gate = gate.clone();
                gosched::thread::spawn(move || answer(request, &gate))
            });
            let requests = requests.collect::<Vec<_>>();
            join_all(requests).into_iter().sum::<usize>()
        }
    });
    let clients = (0..connections).map(|i| {
        let client = gosched::thread::spawn(move || client(i, address));
        let arrive = (i + 1) * PIPELINED;
        until("the requests arrive", || arrived.load(Relaxed) == arrive);
        client
    });
    let clients = clients.collect::<Vec<_>>();
    // Clients, requests, and the dispatcher, which joins.
    all_wait(connections + all + 1);
    gate.open();
    let received: usize = join_all(clients).into_iter().sum();
    let sent = dispatcher.join().unwrap();
    assert_eq!(received, sent);
    println!("{all} requests on {connections} connections, {sent} bytes of bodies");
}

/// Answers with the path and the body. Returns the length of the answer's body.
fn answer(mut request: Request, gate: &Gate) -> usize {
    assert_eq!(*request.method(), Method::Get);
    let mut body = request.url().to_owned();
    request.as_reader().read_to_string(&mut body).unwrap();
    gate.wait();
    let length = body.len();
    request.respond(Response::from_string(body)).unwrap();
    length
}

fn client(i: usize, address: SocketAddr) -> usize {
    let mut stream = TcpStream::connect(address).unwrap();
    for k in 0..PIPELINED {
        write!(stream, "GET /{i}/{k} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    let mut reader = BufReader::new(stream);
    let mut bytes = 0;
    for k in 0..PIPELINED {
        let body = read_answer(&mut reader);
        assert_eq!(body, format!("/{i}/{k}"));
        bytes += body.len();
    }
    bytes
}

fn read_answer(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 200 OK\r\n");
    let mut length = 0;
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}
