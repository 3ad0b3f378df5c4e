//! An HTTP/1.1 server: `httparse` parses requests, and each connection is a goroutine with blocking
//! reads and writes.
//!
//! ```text
//! cargo run --release --example http -- 127.0.0.1:8080
//! curl -i http://127.0.0.1:8080/hello
//! ```
//!
//! It keeps connections open and answers pipelined requests in order. It limits what a client can
//! use: the size of a request's head and body, the time for each, and how long a connection may be
//! idle. Ctrl-C ends it: it accepts no new connections, finishes current requests, and closes idle
//! connections.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use gosched::chan::{after, select};
use gosched::context::Context;
use gosched::net::{TcpListener, TcpStream};
use gosched::sync::WaitGroup;

/// Limits for a client.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Bytes of a request's head, its headers included.
    pub head: usize,
    /// Number of headers of a request.
    pub headers: usize,
    /// Bytes of a request's body.
    pub body: usize,
    /// From the first byte of a request to its last.
    pub request: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// For the last requests, at the end.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head: 16 << 10,
            headers: 64,
            body: 1 << 20,
            request: Duration::from_secs(10),
            idle: Duration::from_secs(30),
            grace: Duration::from_secs(5),
        }
    }
}

/// A complete request.
pub struct Request {
    /// As it was sent: `GET`.
    pub method: String,
    /// The path and the query.
    pub path: String,
    /// Empty if there is none.
    pub body: Vec<u8>,
    keeps_alive: bool,
}

/// An answer: status, reason, body.
pub struct Response(pub u16, pub &'static str, pub Vec<u8>);

#[gosched::main]
fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let listener = TcpListener::bind(&address)?;
    println!("http: listening on {}", listener.local_addr()?);
    let ctx = Context::background().with_cancel();
    let interrupts = gosched::signal::notify(&[2, 15]);
    let stop = ctx.clone();
    gosched::go(move || {
        _ = interrupts.recv();
        println!("http: ending");
        stop.cancel();
    });
    serve(listener, &ctx, Limits::default(), answer)
}

/// The answer to a request.
pub fn answer(request: &Request) -> Response {
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/" | "/hello") => Response(200, "OK", b"Hello, world!\n".to_vec()),
        ("POST", "/echo") => Response(200, "OK", request.body.clone()),
        ("GET" | "POST", _) => Response(404, "Not Found", b"nothing here\n".to_vec()),
        _ => Response(405, "Method Not Allowed", b"GET or POST\n".to_vec()),
    }
}

/// Serves until the context ends.
pub fn serve(
    listener: TcpListener,
    ctx: &Context,
    limits: Limits,
    answer: fn(&Request) -> Response,
) -> io::Result<()> {
    let (door, done) = (listener.try_clone()?, ctx.done().clone());
    gosched::go(move || {
        _ = done.recv();
        _ = door.set_deadline(Some(Instant::now()));
    });
    let connections = WaitGroup::new();
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => {
                let ctx = ctx.clone();
                connections.go(move || _ = Connection::new(stream, limits).run(&ctx, answer));
            }
            Err(_) if ctx.err().is_some() => break,
            Err(error) => eprintln!("http: {error}"),
        }
    }
    // Current requests have some time left.
    let all_gone = gosched::thread::spawn(move || connections.wait());
    let (gone, wait) = gosched::chan::bounded::<()>(0);
    gosched::go(move || {
        _ = all_gone.join();
        drop(gone);
    });
    select! {
        recv(wait) -> _ => {}
        recv(after(limits.grace)) -> _ => eprintln!("http: some connections were left open"),
    }
    Ok(())
}

/// Why a request was not read.
enum Refusal {
    /// The client has gone, or sends nothing.
    End,
    /// The client gets this answer, and the connection is closed.
    Told(Response),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        match error.kind() {
            io::ErrorKind::TimedOut => Refusal::Told(Response(408, "Request Timeout", vec![])),
            _ => Refusal::End,
        }
    }
}

struct Connection {
    stream: TcpStream,
    limits: Limits,
    /// Received bytes that are not used yet.
    buffer: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream, limits: Limits) -> Connection {
        Connection {
            stream,
            limits,
            buffer: Vec::new(),
        }
    }

    /// Answers requests until there are no more, or the server ends.
    fn run(mut self, ctx: &Context, answer: fn(&Request) -> Response) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        // The end of the server wakes an idle connection: its deadline becomes now.
        let idle = self.stream.try_clone()?;
        let (over, is_over) = gosched::chan::bounded::<()>(0);
        let done = ctx.done().clone();
        gosched::go(move || {
            select! {
                recv(done) -> _ => _ = idle.set_read_deadline(Some(Instant::now())),
                recv(is_over) -> _ => {}
            }
        });
        let result = loop {
            let request = match self.next_request(ctx) {
                Ok(request) => request,
                Err(Refusal::End) => break Ok(()),
                Err(Refusal::Told(response)) => break self.write(response, false),
            };
            let keeps_alive = request.keeps_alive && ctx.err().is_none();
            let response = answer(&request);
            if let Err(error) = self.write(response, keeps_alive) {
                break Err(error);
            }
            if !keeps_alive {
                break Ok(());
            }
        };
        drop(over);
        result
    }

    fn next_request(&mut self, ctx: &Context) -> Result<Request, Refusal> {
        if self.buffer.is_empty() {
            self.wait_for_more(ctx)?;
        }
        let until = Instant::now() + self.limits.request;
        self.stream.set_read_deadline(Some(until))?;
        let (mut request, head, body) = loop {
            if let Some(parsed) = self.parse_head()? {
                break parsed;
            }
            if self.buffer.len() >= self.limits.head {
                let reason = "Request Header Fields Too Large";
                return Err(Refusal::Told(Response(431, reason, vec![])));
            }
            self.fill()?;
        };
        if body > self.limits.body {
            return Err(Refusal::Told(Response(413, "Content Too Large", vec![])));
        }
        while self.buffer.len() < head + body {
            self.fill()?;
        }
        let rest = self.buffer.split_off(head + body);
        request.body = std::mem::replace(&mut self.buffer, rest).split_off(head);
        Ok(request)
    }

    /// Waits between two requests: the client may be slow, and the server may end.
    fn wait_for_more(&mut self, ctx: &Context) -> Result<(), Refusal> {
        let until = Instant::now() + self.limits.idle;
        self.stream.set_read_deadline(Some(until))?;
        if ctx.err().is_some() {
            // this call may have overwritten the deadline that the server's end has set
            return Err(Refusal::End);
        }
        self.fill().map_err(|_| Refusal::End)
    }

    /// Reads more bytes.
    fn fill(&mut self) -> io::Result<()> {
        let used = self.buffer.len();
        self.buffer.resize(used + 4096, 0);
        let result = (&self.stream).read(&mut self.buffer[used..]);
        self.buffer
            .truncate(used + result.as_ref().map_or(0, |n| *n));
        match result? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// A request without its body, the length of its head, and of its body; None: it is incomplete.
    fn parse_head(&self) -> Result<Option<(Request, usize, usize)>, Refusal> {
        let told = |status, reason| Err(Refusal::Told(Response(status, reason, vec![])));
        let mut headers = vec![httparse::EMPTY_HEADER; self.limits.headers];
        let mut parsed = httparse::Request::new(&mut headers);
        let head = match parsed.parse(&self.buffer) {
            Ok(httparse::Status::Complete(n)) if n <= self.limits.head => n,
            Ok(httparse::Status::Partial) => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                return told(431, "Request Header Fields Too Large");
            }
            Err(_) => return told(400, "Bad Request"),
        };
        let mut keeps_alive = parsed.version == Some(1);
        let mut body = None;
        for header in parsed.headers.iter() {
            let value = str::from_utf8(header.value).unwrap_or("").trim();
            match header.name.to_ascii_lowercase().as_str() {
                "content-length" => match value.parse::<usize>() {
                    Ok(n) if body.is_none_or(|body| body == n) => body = Some(n),
                    _ => return told(400, "Bad Request"),
                },
                "transfer-encoding" => return told(501, "Not Implemented"),
                "connection" if value.eq_ignore_ascii_case("close") => keeps_alive = false,
                "connection" if value.eq_ignore_ascii_case("keep-alive") => keeps_alive = true,
                _ => {}
            }
        }
        let request = Request {
            method: parsed.method.unwrap_or("").to_owned(),
            path: parsed.path.unwrap_or("").to_owned(),
            body: vec![],
            keeps_alive,
        };
        Ok(Some((request, head, body.unwrap_or(0))))
    }

    fn write(&mut self, response: Response, keeps_alive: bool) -> io::Result<()> {
        let Response(status, reason, body) = response;
        let connection = if keeps_alive { "keep-alive" } else { "close" };
        let mut bytes = Vec::with_capacity(128 + body.len());
        write!(
            bytes,
            "HTTP/1.1 {status} {reason}\r\nContent-Length: {}\r\nContent-Type: text/plain\r\nConnection: {connection}\r\n\r\n",
            body.len()
        )?;
        bytes.extend_from_slice(&body);
        self.stream.set_write_timeout(Some(self.limits.request))?;
        self.stream.write_all(&bytes)
    }
}
