//! Name lookups by std: many goroutines ask for names of this machine at once.

use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;

use crate::crowd::{Gate, all_wait, join_all};

pub(super) fn run(lookups: usize) {
    let gate = Arc::new(Gate::new());
    let goroutines = (0..lookups).map(|i| {
        let gate = gate.clone();
        gosched::thread::spawn(move || {
            gate.wait();
            look_up(i)
        })
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    all_wait(lookups);
    gate.open();
    let found: usize = join_all(goroutines).into_iter().sum();
    println!("{found} of {lookups} names have loopback addresses");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let stream = TcpStream::connect(("localhost", port)).unwrap();
    println!("connected to {}", stream.peer_addr().unwrap().ip());
}

/// Whether all addresses of a name are this machine's, with the port that was asked for.
fn look_up(i: usize) -> usize {
    let port = 1_000 + i as u16;
    let mut addresses = match i % 3 {
        0 => ("localhost", port).to_socket_addrs(),
        1 => format!("localhost:{port}").to_socket_addrs(),
        _ => ("LOCALHOST", port).to_socket_addrs(),
    }
    .unwrap();
    let is_right = addresses.all(|a| a.ip().is_loopback() && a.port() == port);
    assert!(is_right);
    1
}
