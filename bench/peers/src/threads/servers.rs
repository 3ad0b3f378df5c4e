//! Servers with blocking calls: a task for each connection.

use std::io::{self, Read, Write};

use super::Tasks;
use crate::common::Offer;
use crate::http;

pub trait Listener: Sized + Send + 'static {
    type Stream: Read + Write + Send + 'static;

    /// Listens on loopback, at any port; returns the port.
    fn bind() -> io::Result<(Self, u16)>;
    /// Accepts the next connection.
    fn next(&self) -> io::Result<Self::Stream>;
    /// Sends small answers at once.
    fn set_nodelay(stream: &Self::Stream) -> io::Result<()>;
}

/// An echo server.
pub fn echo<T: Tasks>() -> Result<Offer, String> {
    serve::<T>(|mut stream| {
        let mut buffer = [0; 1024];
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..n]).is_err() {
                return;
            }
        }
    })
}

/// An HTTP server. A client's error ends its connection.
pub fn http<T: Tasks>() -> Result<Offer, String> {
    serve::<T>(|stream| _ = answer_all::<T::Listener>(stream))
}

fn serve<T: Tasks>(talk: fn(<T::Listener as Listener>::Stream)) -> Result<Offer, String> {
    let bound = T::run(T::Listener::bind);
    let (listener, port) = bound.map_err(|error| error.to_string())?;
    drop(T::spawn(move || {
        loop {
            match listener.next() {
                Ok(stream) => drop(T::spawn(move || talk(stream))),
                Err(error) => eprintln!("accept: {error}"),
            }
        }
    }));
    Ok(Offer::Server(port))
}

fn answer_all<L: Listener>(mut stream: L::Stream) -> io::Result<()> {
    L::set_nodelay(&stream)?;
    let mut buffer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match http::step(&mut buffer) {
            http::Step::More => match stream.read(&mut piece)? {
                0 => return Ok(()),
                n => buffer.extend_from_slice(&piece[..n]),
            },
            http::Step::Answer(answer, keeps_alive) => {
                stream.write_all(&answer)?;
                if !keeps_alive {
                    return Ok(());
                }
            }
        }
    }
}
