//! A small HTTP server on `std::net`, with a goroutine for each connection.
//!
//! | request | answer |
//! |---|---|
//! | `/held/NAME` | NAME, once the gate is open |
//! | `/echo` | the request's body |
//! | `/never` | none; the server reads until the client closes the connection |
//! | any other | status 404 |

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use gosched::thread::JoinHandle;

use crate::crowd::{Gate, join_all};

/// A running server.
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Opens the way for answers to `/held/NAME`.
    pub(crate) gate: Arc<Gate>,
    ends: Arc<AtomicBool>,
    acceptor: JoinHandle<usize>,
}

impl Server {
    pub(crate) fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let gate = Arc::new(Gate::new());
        let ends = Arc::new(AtomicBool::new(false));
        let acceptor = gosched::thread::spawn({
            let (gate, ends) = (gate.clone(), ends.clone());
            move || accept(&listener, &gate, &ends)
        });
        Server {
            address,
            gate,
            ends,
            acceptor,
        }
    }

    /// Ends the server. All clients have closed their connections, or will. Returns the number of
    /// requests.
    pub(crate) fn stop(self) -> usize {
        self.ends.store(true, Relaxed);
        drop(TcpStream::connect(self.address).unwrap());
        self.acceptor.join().unwrap()
    }
}

fn accept(listener: &TcpListener, gate: &Arc<Gate>, ends: &AtomicBool) -> usize {
    let mut connections = Vec::new();
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        if ends.load(Relaxed) {
            break;
        }
        let gate = gate.clone();
        connections.push(gosched::thread::spawn(move || serve(stream, &gate)));
    }
    join_all(connections).into_iter().sum()
}

/// Answers requests until the client closes. Returns their number.
fn serve(stream: TcpStream, gate: &Gate) -> usize {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut requests = 0;
    // An error is a client that has gone away.
    while let Ok(Some(request)) = read_request(&mut reader, &stream) {
        requests += 1;
        let (status, body) = match &*request.path {
            "/echo" => ("200 OK", request.body),
            "/never" => {
                _ = reader.read(&mut [0]);
                break;
            }
            path => match path.strip_prefix("/held/") {
                Some(name) => {
                    gate.wait();
                    ("200 OK", name.as_bytes().to_vec())
                }
                None => ("404 Not Found", b"no such page".to_vec()),
            },
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if (&stream)
            .write_all(&[head.as_bytes(), &body].concat())
            .is_err()
        {
            break;
        }
    }
    requests
}

struct Request {
    path: String,
    body: Vec<u8>,
}

/// None: the client has closed.
fn read_request(reader: &mut impl BufRead, mut stream: &TcpStream) -> Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let header = line.trim().to_ascii_lowercase();
        match header.split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().unwrap(),
            Some(("expect", _)) => stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Request { path, body }))
}
