//! Measures existing code: std's sockets, lock and channel, and a crate that blocks.
//!
//! In a comparison, goroutines with hooks run such code unmodified (see `bench/hooked`). This
//! program has no hooks. So its ports of `std_…` are the same work with gosched's own types. Its
//! port of `ureq_4000` shows goroutines that hold threads.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use gosched::Runtime;
use gosched::net::TcpStream;

use crate::port::{self, Mode};
use crate::rounds::{self, Round, Sample, micros};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, Workload};
use crate::{limits, locks, proc, servers};
use requests::{Client, Server};

pub const STD_ECHO: Workload = Workload {
    name: "std_echo",
    about: "n echoes of 64 bytes over 1,000 connections, server and clients in one process",
    n: 200_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_echo),
    compared: &["time", "cpu"],
    goals: &[Goal::new("hooked/own", "cpu", 1.15, "x")],
    child: None,
};

pub const STD_MUTEX: Workload = Workload {
    name: "std_mutex",
    goals: &[
        Goal::new("hooked/own", "time", 1.5, "x"),
        Goal::new("hooked-std", "uncontended_time", 1.0, "ns"),
    ],
    ..locks::MUTEX
};

pub const STD_MPSC: Workload = Workload {
    name: "std_mpsc",
    about: "2 tasks, n round trips over 2 unbounded channels; per round trip",
    n: 500_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_mpsc),
    compared: &["time", "cpu"],
    goals: &[Goal::new("hooked/own", "time", 1.5, "x")],
    child: None,
};

pub const UREQ_4000: Workload = Workload {
    name: "ureq_4000",
    about: "n requests at once by ureq, unmodified; most threads, and time per request",
    n: 4_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    // Code of a crate may keep thread-locals over a switch, so goroutines have their own.
    ports: &[Port::gosched(Mode::Own, start_ureq)],
    compared: &[],
    goals: &[Goal::new("gosched-hooked", "threads", 32.0, "count")],
    child: None,
};

/// Connections of `std_echo`, with a goroutine at each end.
const TALKERS: usize = 1_000;

#[path = "../peers/src/requests.rs"]
mod requests;

/// The server runs from the first round to the last.
fn start_echo(params: &Params, mode: Mode) -> io::Result<Round> {
    let talkers = TALKERS.min(params.n);
    let times = params.n.div_ceil(talkers);
    limits::need_files(2 * talkers)?;
    let runtime = port::runtime(mode, params.procs)?;
    let listener = runtime.run(servers::listener)?;
    let port = listener.local_addr()?.port();
    runtime.go(move || servers::echo_all(&listener));
    Ok(Box::new(move || {
        let (time, cpu) = runtime.run(|| talk_to_all(port, talkers, times))?;
        let echoes = (talkers * times) as f64;
        Ok(vec![
            Sample::best("time", micros(time) / echoes, "us"),
            Sample::best("cpu", micros(cpu) / echoes, "us"),
        ])
    }))
}

/// A goroutine for each client. The connections are made before the clock starts.
fn talk_to_all(port: u16, talkers: usize, times: usize) -> io::Result<(Duration, Duration)> {
    let streams = (0..talkers).map(|_| TcpStream::connect(("127.0.0.1", port)));
    let streams: Vec<_> = streams.collect::<io::Result<_>>()?;
    let (start, cpu) = (Instant::now(), proc::own_cpu()?);
    let spawn = |stream| gosched::thread::spawn(move || talk(stream, times));
    let clients: Vec<_> = streams.into_iter().map(spawn).collect();
    for client in clients {
        client.join().expect("a client does not panic")?;
    }
    Ok((start.elapsed(), proc::own_cpu()? - cpu))
}

/// A client: its messages come back one after the other.
fn talk(mut stream: TcpStream, times: usize) -> io::Result<()> {
    for time in 0..times {
        let message = [time as u8; 64];
        let mut answer = [0; 64];
        stream.write_all(&message)?;
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, message, "the answer is another message");
    }
    Ok(())
}

fn start_mpsc(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || runtime.run(|| round_trips(n))))
}

/// As `pingpong_2w`, over unbounded channels.
fn round_trips(trips: usize) -> io::Result<Vec<Sample>> {
    let (ping, pings) = gosched::chan::unbounded();
    let (pong, pongs) = gosched::chan::unbounded();
    let echo = gosched::thread::spawn(move || {
        for ball in pings {
            pong.send(ball).expect("the answer has a receiver");
        }
    });
    let (start, cpu) = (Instant::now(), proc::own_cpu()?);
    for trip in 0..trips {
        ping.send(trip).expect("the other one is there");
        assert_eq!(pongs.recv(), Ok(trip));
    }
    let each_ns = rounds::ns_each(start, trips);
    let cpu = proc::own_cpu()? - cpu;
    drop(ping);
    echo.join().expect("an echo does not panic");
    Ok(vec![
        Sample::best("time", each_ns, "ns"),
        Sample::best("cpu", cpu.as_nanos() as f64 / trips as f64, "ns"),
    ])
}

fn start_ureq(params: &Params, mode: Mode) -> io::Result<Round> {
    let n = params.n;
    limits::need_files(2 * n)?;
    let runtime = port::runtime(mode, params.procs)?;
    Ok(Box::new(move || requests_at_once(&runtime, n)))
}

/// A goroutine for each request. The server answers when all requests have come.
fn requests_at_once(runtime: &Runtime, n: usize) -> io::Result<Vec<Sample>> {
    let server = Server::start(n)?;
    let client = Client::of(&server);
    let (start, cpu) = (Instant::now(), proc::own_cpu()?);
    let fetched: Result<(), String> = runtime.run(|| {
        let spawn = |_| {
            let client = client.clone();
            gosched::thread::spawn(move || client.fetch())
        };
        let tasks: Vec<_> = (0..n).map(spawn).collect();
        let mut results = tasks.into_iter().map(|task| task.join());
        results.try_for_each(|result| result.expect("a request does not panic"))
    });
    fetched.map_err(io::Error::other)?;
    let (time, cpu) = (start.elapsed(), proc::own_cpu()? - cpu);
    let served = server.finish().map_err(io::Error::other)?;
    let each = |span: Duration| micros(span) / n as f64;
    Ok(vec![
        Sample::worst("threads", served.threads as f64, "count"),
        Sample::best("time", each(time), "us"),
        Sample::best("cpu", each(cpu.saturating_sub(served.cpu)), "us"),
    ])
}
