//! WebSockets by tungstenite over std's sockets: an echo server and its clients.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use tungstenite::{Error, Message};

use crate::crowd::{Gate, all_wait, join_all};

pub(super) fn run(clients: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let gate = Arc::new(Gate::new());
    let acceptor = gosched::thread::spawn({
        let gate = gate.clone();
        move || {
            let connections = (0..clients).map(|_| {
                let (stream, _) = listener.accept().unwrap();
                let gate = gate.clone();
                gosched::thread::spawn(move || serve(stream, &gate))
            });
            let connections = connections.collect::<Vec<_>>();
            join_all(connections).into_iter().sum::<usize>()
        }
    });
    let goroutines = (0..clients)
        .map(|i| gosched::thread::spawn(move || client(i, TcpStream::connect(address).unwrap())));
    let goroutines = goroutines.collect::<Vec<_>>();
    all_wait(2 * clients + 1);
    gate.open();
    let bytes: usize = join_all(goroutines).into_iter().sum();
    let messages = acceptor.join().unwrap();
    println!("{clients} clients, {messages} messages, {bytes} bytes came back");
}

/// Returns the number of messages.
fn serve(stream: TcpStream, gate: &Gate) -> usize {
    let mut socket = tungstenite::accept(stream).unwrap();
    let mut messages = 0;
    loop {
        match socket.read() {
            Ok(message) if message.is_text() || message.is_binary() => {
                gate.wait();
                messages += 1;
                socket.send(message).unwrap();
            }
            Ok(_) => {}
            Err(Error::ConnectionClosed) => return messages,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the number of bytes that came back.
fn client(i: usize, stream: TcpStream) -> usize {
    let (mut socket, _) = tungstenite::client("ws://localhost/", stream).unwrap();
    let mut bytes = 0;
    for k in 0..4 {
        let text = Message::text(format!("{i}/{k} ").repeat(k * 500 + 1));
        let binary = Message::binary(vec![(i + k) as u8; k * 10_000]);
        for message in [text, binary] {
            socket.send(message.clone()).unwrap();
            let back = socket.read().unwrap();
            assert!(
                back == message,
                "client {i} has another message than it sent"
            );
            bytes += back.len();
        }
    }
    socket.close(None).unwrap();
    loop {
        match socket.read() {
            Ok(_) => {}
            Err(Error::ConnectionClosed) => return bytes,
            Err(error) => panic!("{error}"),
        }
    }
}
