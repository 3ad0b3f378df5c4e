//! Goroutines use a crate with an async API only, without another runtime.
//!
//! The crate is a pool of connections, deadpool. `get` is async, and waits if all connections are
//! in use. With `future::block_on` a goroutine waits for it. In the other direction the pool calls
//! our async functions to connect. Connecting blocks, so a goroutine does it, and its handle is
//! awaited.
//!
//! Run with `cargo run --example async_pool`.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use deadpool::managed::{Manager, Metrics, Pool, RecycleResult};
use gosched::net::{TcpListener, TcpStream};
use gosched::{future, thread};

const CONNECTIONS: usize = 4;
const CLIENTS: u64 = 100;

/// What the pool needs to know to connect.
struct Server(SocketAddr);

impl Manager for Server {
    type Type = TcpStream;
    type Error = io::Error;

    async fn create(&self) -> io::Result<TcpStream> {
        let address = self.0;
        let connecting = thread::spawn(move || TcpStream::connect(address));
        connecting.await.expect("no panic")
    }

    async fn recycle(&self, _: &mut TcpStream, _: &Metrics) -> RecycleResult<io::Error> {
        Ok(())
    }
}

/// Answers every number with its square.
fn serve(mut client: TcpStream) -> io::Result<()> {
    let mut number = [0; 8];
    loop {
        client.read_exact(&mut number)?;
        let number = u64::from_le_bytes(number);
        client.write_all(&(number * number).to_le_bytes())?;
    }
}

/// Asks the server; blocks until the answer is there.
fn square(pool: &Pool<Server>, number: u64) -> io::Result<u64> {
    let mut connection = future::block_on(pool.get()).map_err(io::Error::other)?;
    connection.write_all(&number.to_le_bytes())?;
    let mut answer = [0; 8];
    connection.read_exact(&mut answer)?;
    Ok(u64::from_le_bytes(answer))
}

/// All clients at once, with four connections.
#[gosched::main]
pub fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = Server(listener.local_addr()?);
    gosched::go(move || {
        for client in listener.incoming().flatten() {
            gosched::go(move || _ = serve(client)); // until the client disconnects
        }
    });
    let pool = Pool::builder(server).max_size(CONNECTIONS);
    let pool: Pool<Server> = pool.build().expect("a pool");
    let client = |number| {
        let pool = pool.clone();
        thread::spawn(move || square(&pool, number))
    };
    let clients: Vec<_> = (0..CLIENTS).map(client).collect();
    for (number, client) in (0..).zip(clients) {
        assert_eq!(client.join().expect("no panic")?, number * number);
    }
    let connections = pool.status().size;
    assert!(connections <= CONNECTIONS);
    println!("{CLIENTS} clients were served by {connections} connections");
    Ok(())
}
