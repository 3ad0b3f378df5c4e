//! An echo server: a goroutine for each connection, and blocking reads and writes.
//!
//! ```text
//! cargo run --release --example echo -- 127.0.0.1:7777
//! ```

use std::io;
use std::time::Instant;

use gosched::context::Context;
use gosched::net::{TcpListener, TcpStream};
use gosched::sync::WaitGroup;

#[gosched::main]
fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7777".into());
    let listener = TcpListener::bind(&address)?;
    println!("echo: listening on {}", listener.local_addr()?);
    let ctx = Context::background().with_cancel();
    let interrupts = gosched::signal::notify(&[2]);
    let stop = ctx.clone();
    gosched::go(move || {
        _ = interrupts.recv();
        stop.cancel();
    });
    serve(listener, &ctx)
}

/// Serves until the context ends, and then until every client has ended.
pub fn serve(listener: TcpListener, ctx: &Context) -> io::Result<()> {
    // Afterwards `accept` fails, so no client is accepted any more.
    let (door, done) = (listener.try_clone()?, ctx.done().clone());
    gosched::go(move || {
        _ = done.recv();
        _ = door.set_deadline(Some(Instant::now()));
    });
    let clients = WaitGroup::new();
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => clients.go(move || _ = echo(&stream)),
            Err(_) if ctx.err().is_some() => break,
            Err(error) => eprintln!("echo: {error}"),
        }
    }
    clients.wait();
    Ok(())
}

/// Sends back all data until there is no more; returns how much.
fn echo(stream: &TcpStream) -> io::Result<u64> {
    io::copy(&mut &*stream, &mut &*stream)
}
