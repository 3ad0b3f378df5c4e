//! Servers with blocking calls: a task for each connection.

use std::io::{self, Read, Write};
use std::time::Instant;

use super::Tasks;
use crate::common::{Figures, MESSAGE, Offer, echo_figures, own_cpu, rounds, talkers};
use crate::http;

pub trait Listener: Sized + Send + 'static {
    type Stream: Read + Write + Send + 'static;

    /// Listens on loopback, at any port; returns the port.
    fn bind() -> io::Result<(Self, u16)>;
    /// Accepts the next connection.
    fn next(&self) -> io::Result<Self::Stream>;
    /// Connects to a listener on loopback.
    fn connect(port: u16) -> io::Result<Self::Stream>;
    /// Sends small answers at once.
    fn set_nodelay(stream: &Self::Stream) -> io::Result<()>;
}

/// An echo server.
pub fn echo<T: Tasks>() -> Result<Offer, String> {
    start_echo::<T>().map(Offer::Server)
}

fn start_echo<T: Tasks>() -> Result<u16, String> {
    serve::<T>(|mut stream| {
        let mut buffer = [0; 1024];
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..n]).is_err() {
                return;
            }
        }
    })
}

/// An echo server and its clients, all in this process.
pub fn echo_with_clients<T: Tasks>(echoes: usize) -> Result<Offer, String> {
    let port = start_echo::<T>()?;
    Ok(rounds(move || talk_to_all::<T>(port, echoes)))
}

/// A round of `std_echo`: a task for each client. The connections are made before the clock starts.
fn talk_to_all<T: Tasks>(port: u16, echoes: usize) -> Figures {
    let (talkers, times) = talkers(echoes);
    T::run(move || {
        let streams = (0..talkers).map(|_| T::Listener::connect(port));
        let streams: Vec<_> = streams.collect::<io::Result<_>>().map_err(text)?;
        let (start, cpu) = (Instant::now(), own_cpu());
        let spawn = |stream| T::spawn(move || talk(stream, times));
        let clients: Vec<_> = streams.into_iter().map(spawn).collect();
        for client in clients {
            T::join(client).map_err(text)?;
        }
        echo_figures(talkers * times, start.elapsed(), own_cpu() - cpu)
    })
}

/// A client: its messages come back one after the other.
fn talk(mut stream: impl Read + Write, times: usize) -> io::Result<()> {
    for time in 0..times {
        let message = [time as u8; MESSAGE];
        let mut answer = [0; MESSAGE];
        stream.write_all(&message)?;
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, message, "the answer is another message");
    }
    Ok(())
}

fn text(error: io::Error) -> String {
    error.to_string()
}

/// An HTTP server. A client's error ends its connection.
pub fn http<T: Tasks>() -> Result<Offer, String> {
    serve::<T>(|stream| _ = answer_all::<T::Listener>(stream)).map(Offer::Server)
}

/// Starts a server, and returns its port.
fn serve<T: Tasks>(talk: fn(<T::Listener as Listener>::Stream)) -> Result<u16, String> {
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
    Ok(port)
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
