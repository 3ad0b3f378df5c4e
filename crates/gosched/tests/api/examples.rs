//! The servers among the examples, used as their clients would.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::common::LONG;
use gosched::Runtime;
use gosched::context::Context;
use gosched::net::TcpListener;

#[path = "../../examples/chat.rs"]
#[allow(dead_code, reason = "its main")]
mod chat;
#[path = "../../examples/echo.rs"]
#[allow(dead_code, reason = "its main")]
mod echo;
#[path = "../../examples/http.rs"]
#[allow(dead_code, reason = "its main")]
mod http;

/// Runs a server until `client`, a plain thread's, is done; it must end then.
fn serving(
    serve: impl FnOnce(TcpListener, &Context) -> std::io::Result<()> + Send,
    client: impl FnOnce(SocketAddr, &Context) + Send + 'static,
) {
    let runtime = Runtime::builder().procs(2).build().unwrap();
    let started = Instant::now();
    runtime.run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ctx = Context::background().with_cancel();
        let stop = ctx.clone();
        let client = std::thread::spawn(move || {
            let _stops = Stops(stop.clone()); // however it ends
            client(address, &stop);
        });
        serve(listener, &ctx).unwrap();
        client.join().unwrap();
    });
    assert!(started.elapsed() < LONG, "it ended by itself");
    runtime.check().unwrap();
}

/// Cancels when it goes.
struct Stops(Context);

impl Drop for Stops {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

#[test]
fn echo_sends_back_what_comes() {
    serving(echo::serve, |address, _| {
        let clients = (0..20u8).map(|n| {
            std::thread::spawn(move || {
                let mut stream = connect(address);
                let sent = vec![n; 100_000];
                let mut writing = stream.try_clone().unwrap();
                let copy = sent.clone();
                let writer = std::thread::spawn(move || {
                    writing.write_all(&copy).unwrap();
                    writing.shutdown(Shutdown::Write).unwrap();
                });
                let mut got = Vec::new();
                stream.read_to_end(&mut got).unwrap();
                assert!(got == sent);
                writer.join().unwrap();
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().for_each(|c| c.join().unwrap());
    });
}

struct Guest {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Guest {
    fn new(address: SocketAddr, name: &str) -> Guest {
        let stream = connect(address);
        let lines = BufReader::new(stream.try_clone().unwrap());
        let mut guest = Guest { stream, lines };
        assert_eq!(guest.hear(), "your name?");
        guest.say(name);
        assert_eq!(guest.hear(), format!("welcome, {name}"));
        guest
    }

    fn say(&mut self, line: &str) {
        self.stream
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

#[test]
fn chat_tells_everybody_else() {
    serving(chat::serve, |address, _| {
        let mut ann = Guest::new(address, "ann");
        let mut bob = Guest::new(address, "bob");
        assert_eq!(ann.hear(), "* bob is here");
        let mut eve = Guest::new(address, "eve");
        assert_eq!(ann.hear(), "* eve is here");
        assert_eq!(bob.hear(), "* eve is here");
        ann.say("hello");
        assert_eq!(bob.hear(), "ann: hello");
        assert_eq!(eve.hear(), "ann: hello");
        drop(bob);
        assert_eq!(ann.hear(), "* bob has left");
        assert_eq!(eve.hear(), "* bob has left");
        eve.say("bye");
        assert_eq!(ann.hear(), "eve: bye");
    });
}

/// A client that does not read does not delay the others, and is disconnected.
#[test]
fn chat_waits_for_nobody() {
    serving(chat::serve, |address, _| {
        let mut deaf = Guest::new(address, "deaf");
        let mut loud = Guest::new(address, "loud");
        assert_eq!(deaf.hear(), "* loud is here");
        let mut other = Guest::new(address, "other");
        assert_eq!(loud.hear(), "* other is here");
        let line = "x".repeat(2000);
        let mut rounds = 0;
        // Until the system's buffers and its queue are full.
        loop {
            loud.say(&line);
            match other.hear().as_str() {
                "* deaf has left" => break,
                heard => assert!(heard.ends_with(&line)),
            }
            rounds += 1;
            assert!(rounds < 100_000, "never shown the door");
        }
    });
}

/// Sends a request and returns the head and the body of the answer.
fn ask(stream: &mut TcpStream, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    read_answer(stream)
}

fn read_answer(stream: &mut TcpStream) -> (String, String) {
    let mut head = String::new();
    let mut byte = [0];
    while !head.ends_with("\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0] as char);
    }
    let length = head.split("Content-Length: ").nth(1).unwrap();
    let length = length.split("\r\n").next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

fn http(limits: http::Limits, client: impl FnOnce(SocketAddr, &Context) + Send + 'static) {
    let answer = |request: &http::Request| match request.path.as_str() {
        "/slow" => {
            gosched::thread::sleep(Duration::from_millis(100));
            http::Response(200, "OK", b"slow".to_vec())
        }
        "/echo" => http::Response(200, "OK", request.body.clone()),
        _ => http::Response(200, "OK", b"hello".to_vec()),
    };
    serving(
        move |listener, ctx| http::serve(listener, ctx, limits, answer),
        client,
    );
}

#[test]
fn http_keeps_connections_and_answers_in_order() {
    http(http::Limits::default(), |address, _| {
        let mut stream = connect(address);
        for _ in 0..3 {
            let (head, body) = ask(&mut stream, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("keep-alive"));
            assert_eq!(body, "hello");
        }
        let two = "POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
        stream.write_all(two.repeat(2).as_bytes()).unwrap();
        assert_eq!(read_answer(&mut stream).1, "abc");
        assert_eq!(read_answer(&mut stream).1, "abc");
        let (head, _) = ask(&mut stream, "GET / HTTP/1.0\r\n\r\n");
        assert!(head.contains("close"));
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "and it is");
    });
}

/// A byte at a time, as the worst network would.
#[test]
fn http_takes_requests_in_pieces() {
    http(http::Limits::default(), |address, _| {
        let mut stream = connect(address);
        stream.set_nodelay(true).unwrap();
        for byte in "POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345".bytes() {
            stream.write_all(&[byte]).unwrap();
        }
        assert_eq!(read_answer(&mut stream).1, "12345");
    });
}

#[test]
fn http_bounds_what_a_client_may_ask() {
    let limits = http::Limits {
        head: 1000,
        headers: 8,
        body: 100,
        request: Duration::from_millis(300),
        ..http::Limits::default()
    };
    http(limits, |address, _| {
        let status = |request: &str| {
            let mut stream = connect(address);
            let (head, _) = ask(&mut stream, request);
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "closed");
            head[9..12].to_owned()
        };
        let many = "GET / HTTP/1.1\r\n".to_owned() + &"A: b\r\n".repeat(9) + "\r\n";
        assert_eq!(status(&many), "431");
        let long = format!("GET / HTTP/1.1\r\nA: {}", "b".repeat(4000));
        assert_eq!(status(&long), "431");
        let large = "POST /echo HTTP/1.1\r\nContent-Length: 101\r\n\r\n";
        assert_eq!(status(large), "413");
        let smuggled = "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n";
        assert_eq!(status(smuggled), "400");
        assert_eq!(status("nonsense\r\n\r\n"), "400");
        assert_eq!(status("GET / HTTP/1.1\r\nHos"), "408", "too slow");
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(status(chunked), "501");
    });
}

#[test]
fn http_ends_after_the_requests_under_way() {
    http(http::Limits::default(), |address, ctx| {
        let mut idle = connect(address);
        assert_eq!(ask(&mut idle, "GET / HTTP/1.1\r\n\r\n").1, "hello");
        let mut busy = connect(address);
        busy.write_all(b"GET /slow HTTP/1.1\r\n\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(30));
        ctx.cancel();
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "an idle one is closed");
        // The request had been read, or not: then there is no answer.
        let mut answer = String::new();
        if let Err(error) = busy.read_to_string(&mut answer) {
            // A server that closes before it has read everything resets the connection.
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        assert!(answer.is_empty() || answer.ends_with("slow"), "{answer}");
    });
}
