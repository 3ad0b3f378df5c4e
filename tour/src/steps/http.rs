//! The example server `http` in this process, and its clients. All of it is blocking code, with a
//! goroutine for each connection and each client, over the loopback interface.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gosched::context::Context;
use gosched::net::{TcpListener, TcpStream};
use gosched::{Runtime, thread};

use crate::chart::{Timeline, levels};
use crate::stage::Stage;
use crate::text::{Ink, grouped, ms, paint, quantile, time};

#[path = "../../../crates/gosched/examples/http.rs"]
#[allow(dead_code, reason = "its main")]
mod server;

const CLIENTS: usize = 32;
const SPAN: Duration = Duration::from_millis(2_000);
const SPAN_QUICK: Duration = Duration::from_millis(200);
/// A server that sends nothing for this long never will.
const PATIENCE: Duration = Duration::from_secs(20);
const REQUEST: &str = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
const BODY: &str = "Hello, world!";
/// The end of an answer.
const TAIL: &str = "\r\n\r\nHello, world!\n";
/// The longest expected answer.
const ANSWER_MAX: usize = 1024;

struct Seen {
    took: Duration,
    /// Of every request, sorted.
    latencies: Vec<Duration>,
    /// The first line of an answer.
    status: String,
}

pub(super) fn run(stage: &mut Stage) -> io::Result<()> {
    let span = stage.size(SPAN, SPAN_QUICK);
    let runtime = Runtime::builder().name("http").build()?;
    let answers = Arc::new(AtomicU64::new(0));
    let for_clients = Arc::clone(&answers);
    let mut timeline = Timeline::new(Duration::from_millis(40));
    let seen = stage.watch(
        move || runtime.run(|| converse(span, &for_clients)),
        || {
            timeline.look(|| answers.load(Relaxed));
            let answers = grouped(answers.load(Relaxed));
            format!("{}{answers} answers\n", picture(&timeline, false))
        },
    )?;
    tell(stage, &timeline, seen);
    Ok(())
}

/// Serves and sends requests until the time is over and all goroutines have ended.
fn converse(span: Duration, answers: &Arc<AtomicU64>) -> io::Result<Seen> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let ctx = Context::background().with_cancel();
    let for_server = ctx.clone();
    let server = thread::spawn(move || {
        server::serve(
            listener,
            &for_server,
            server::Limits::default(),
            server::answer,
        )
    });
    let status = ask_once(address);
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let answers = Arc::clone(answers);
            thread::spawn(move || ask(address, span, &answers))
        })
        .collect();
    let mut latencies = Ok(Vec::new());
    for client in clients {
        match (
            client.join().unwrap_or_else(|_| Err(panicked())),
            &mut latencies,
        ) {
            (Ok(of_client), Ok(all)) => all.extend(of_client),
            (Err(error), Ok(_)) => latencies = Err(error),
            (_, Err(_)) => {}
        }
    }
    let took = start.elapsed();
    ctx.cancel();
    server.join().unwrap_or_else(|_| Err(panicked()))?;
    let mut latencies = latencies?;
    latencies.sort_unstable();
    Ok(Seen {
        took,
        latencies,
        status: status?,
    })
}

fn panicked() -> io::Error {
    io::Error::other("a goroutine panicked")
}

/// Requests once and returns the first line of the answer.
fn ask_once(address: SocketAddr) -> io::Result<String> {
    let mut stream = connect(address)?;
    stream.write_all(REQUEST.as_bytes())?;
    let answer = read_answer(&mut stream)?;
    Ok(answer.lines().next().unwrap_or_default().to_string())
}

/// A client: sends requests over one connection until the time is over, and returns their
/// latencies.
fn ask(address: SocketAddr, span: Duration, answers: &AtomicU64) -> io::Result<Vec<Duration>> {
    let mut stream = connect(address)?;
    let start = Instant::now();
    let mut latencies = Vec::new();
    while start.elapsed() < span {
        let sent = Instant::now();
        stream.write_all(REQUEST.as_bytes())?;
        read_answer(&mut stream)?;
        latencies.push(sent.elapsed());
        answers.fetch_add(1, Relaxed);
    }
    Ok(latencies)
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Reads until the body is complete, and checks it.
fn read_answer(stream: &mut TcpStream) -> io::Result<String> {
    let (mut buffer, mut used) = ([0; ANSWER_MAX], 0);
    loop {
        match stream.read(&mut buffer[used..])? {
            0 => return Err(io::Error::other("an answer was wrong or cut short")),
            n => used += n,
        }
        let text = std::str::from_utf8(&buffer[..used]).map_err(io::Error::other)?;
        if text.starts_with("HTTP/1.1 200 ") && text.ends_with(TAIL) {
            return Ok(text.to_string());
        }
    }
}

fn picture(timeline: &Timeline<u64>, is_over: bool) -> String {
    let rates = timeline.rates(|answers| *answers);
    let most = rates.iter().copied().max().unwrap_or(0);
    let line = paint(Ink::Good, &timeline.line(&levels(rates, most), is_over));
    format!("answers per s  │{line}│\n")
}

fn tell(stage: &mut Stage, timeline: &Timeline<u64>, seen: Seen) {
    let rate = seen.latencies.len() as f64 / seen.took.as_secs_f64();
    let quantile = |q| quantile(&seen.latencies, q);
    stage.say(&format!(
        "{}               │{}│\n\
         GET /hello answers {:?} and {:?}.\n\
         {} clients and the server in this process: {} requests per second,\n\
         half of them answered within {}, 99 % within {}.\n",
        picture(timeline, true),
        timeline.axis(),
        seen.status,
        BODY,
        CLIENTS,
        paint(Ink::Strong, &grouped(rate as u64)),
        paint(Ink::Strong, &time(quantile(0.5))),
        paint(Ink::Strong, &time(quantile(0.99))),
    ));
    stage.figure("requests", seen.latencies.len() as f64, "requests");
    stage.figure("rate", rate, "requests/s");
    stage.figure("p50", ms(quantile(0.5)), "ms");
    stage.figure("p99", ms(quantile(0.99)), "ms");
    stage.figure("clients", CLIENTS as f64, "connections");
    stage.check(!seen.latencies.is_empty(), || {
        "no request was answered".into()
    });
}
