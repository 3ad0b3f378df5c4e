//! Decides what a server costs: echo over TCP, a goroutine (or thread) for each
//! connection.
//!
//! The server is a child process, so that its CPU time is its own; the client
//! (see `client`) is this process, for every port the same. Server and client
//! share the machine's CPUs, as they do for every port.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

use crate::child::Role;
use crate::client::{self, Client, Exchange, Load};
use crate::port::{self, Mode};
use crate::proc::Activity;
use crate::rounds::{Round, Sample, quantile};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, Workload};

/// `tcp_echo`.
pub const TCP_ECHO: Workload = Workload {
    name: "tcp_echo",
    about: "n requests of 64 bytes over 256 connections that are always busy",
    n: 200_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &[
        Port::gosched(Mode::Own, start_echo::<256, 0>),
        Port::gosched(Mode::Shared, start_echo::<256, 0>),
    ],
    compared: &["time"],
    goals: &[
        Goal::new("gosched", "cpu", 7.5, "us"),
        Goal::new("gosched", "p99", 6.0, "ms"),
    ],
    child: Some(echo_child),
};

/// `tcp_idle`.
pub const TCP_IDLE: Workload = Workload {
    name: "tcp_idle",
    about: "n requests over 64 busy connections among 5,000 that say nothing",
    n: 200_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &[
        Port::gosched(Mode::Own, start_echo::<64, 5_000>),
        Port::gosched(Mode::Shared, start_echo::<64, 5_000>),
    ],
    compared: &["time"],
    goals: &[],
    child: Some(echo_child),
};

/// `tcp_accept`.
pub const TCP_ACCEPT: Workload = Workload {
    name: "tcp_accept",
    about: "n connections, one after the other on 4 threads, with one request each",
    n: 20_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &[
        Port::gosched(Mode::Own, start_accept),
        Port::gosched(Mode::Shared, start_accept),
    ],
    compared: &["time"],
    goals: &[],
    child: Some(echo_child),
};

/// `tcp_hogs`.
pub const TCP_HOGS: Workload = Workload {
    name: "tcp_hogs",
    about: "n requests over 8 connections to a server whose Ps are all busy with 4 loops",
    n: 2_000,
    rounds: 3,
    has_warm_up: true,
    ports: &[
        Port::gosched(Mode::Own, start_hogs),
        Port::gosched(Mode::Shared, start_hogs),
    ],
    compared: &["p99"],
    goals: &[Goal::new("gosched", "p99", 10.0, "ms")],
    child: Some(hogs_child),
};

/// `http_hello`.
pub const HTTP_HELLO: Workload = Workload {
    name: "http_hello",
    about: "n GET requests over 64 kept connections to the example `http`",
    n: 200_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &[
        Port::gosched(Mode::Own, start_http),
        Port::gosched(Mode::Shared, start_http),
    ],
    compared: &["time"],
    goals: &[],
    child: Some(http_child),
};

/// Loops beside the server.
const HOGS: usize = 4;
/// Threads of the client that connects.
const CONNECTORS: usize = 4;

#[path = "../../crates/gosched/examples/http.rs"]
#[allow(dead_code, reason = "its main")]
mod http;

/// A server process and its address.
pub struct Server {
    role: Role,
    address: SocketAddr,
}

impl Server {
    fn start(workload: &str, params: &Params, mode: Mode) -> io::Result<Server> {
        let mut role = Role::start(workload, params, mode)?;
        let line = role.line()?;
        let port = line
            .parse()
            .map_err(|_| io::Error::other(format!("its child process said `{line}`")))?;
        Ok(Server {
            role,
            address: (Ipv4Addr::LOCALHOST, port).into(),
        })
    }
}

fn start_echo<const ACTIVE: usize, const IDLE: usize>(
    params: &Params,
    mode: Mode,
) -> io::Result<Round> {
    let server = Server::start(TCP_ECHO.name, params, mode)?;
    let client = Client::connect(server.address, Exchange::echo(), ACTIVE, IDLE)?;
    Ok(rounds(params.n, server, client))
}

fn start_hogs(params: &Params, mode: Mode) -> io::Result<Round> {
    let server = Server::start(TCP_HOGS.name, params, mode)?;
    let client = Client::connect(server.address, Exchange::echo(), 8, 0)?;
    Ok(rounds(params.n, server, client))
}

fn start_http(params: &Params, mode: Mode) -> io::Result<Round> {
    let server = Server::start(HTTP_HELLO.name, params, mode)?;
    let exchange = Exchange::http(server.address, "/hello")?;
    let client = Client::connect(server.address, exchange, 64, 0)?;
    Ok(rounds(params.n, server, client))
}

/// Rounds of a client that loads a server.
fn rounds(requests: usize, server: Server, mut client: Client) -> Round {
    Box::new(move || {
        let before = Activity::of(server.role.pid())?;
        let load = client.load(requests)?;
        let cpu_ns = Activity::of(server.role.pid())?.since(&before).cpu_ns;
        Ok(samples(load, cpu_ns))
    })
}

fn samples(load: Load, cpu_ns: u64) -> Vec<Sample> {
    let Load {
        elapsed,
        mut latencies,
    } = load;
    let n = latencies.len() as f64;
    latencies.sort_by(f64::total_cmp);
    vec![
        Sample::most("rate", n / elapsed.as_secs_f64(), "req/s"),
        Sample::best("time", elapsed.as_nanos() as f64 / n / 1e3, "us"),
        Sample::best("cpu", cpu_ns as f64 / n / 1e3, "us"),
        Sample::best("p50", quantile(&latencies, 0.5) / 1e6, "ms"),
        Sample::best("p99", quantile(&latencies, 0.99) / 1e6, "ms"),
    ]
}

fn start_accept(params: &Params, mode: Mode) -> io::Result<Round> {
    let params = *params;
    let server = Server::start(TCP_ECHO.name, &params, mode)?;
    Ok(Box::new(move || {
        let before = Activity::of(server.role.pid())?;
        let times = params.n.div_ceil(CONNECTORS);
        let elapsed = client::connect_each(server.address, CONNECTORS, times)?;
        let cpu_ns = Activity::of(server.role.pid())?.since(&before).cpu_ns;
        let n = (times * CONNECTORS) as f64;
        Ok(vec![
            Sample::most("rate", n / elapsed.as_secs_f64(), "conn/s"),
            Sample::best("time", elapsed.as_nanos() as f64 / n / 1e3, "us"),
            Sample::best("cpu", cpu_ns as f64 / n / 1e3, "us"),
        ])
    }))
}

/// Serves beside loops that never call anything.
fn hogs_child(params: &Params, mode: Mode) -> io::Result<()> {
    let runtime = port::runtime(mode, params.procs)?;
    for _ in 0..HOGS {
        runtime.go(|| {
            loop {
                std::hint::black_box(());
            }
        });
    }
    runtime.run(serve_echo)
}

/// Serves until it is ended.
fn echo_child(params: &Params, mode: Mode) -> io::Result<()> {
    port::runtime(mode, params.procs)?.run(serve_echo)
}

/// Says its port, and serves.
fn serve_echo() -> io::Result<()> {
    let listener = gosched::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    crate::print(&format!("{}\n", listener.local_addr()?.port()))?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => gosched::go(move || echo(stream)),
            Err(error) => eprintln!("tcp_echo: {error}"),
        }
    }
}

/// Serves the example until it is ended. Says its port first.
fn http_child(params: &Params, mode: Mode) -> io::Result<()> {
    port::runtime(mode, params.procs)?.run(|| {
        let listener = gosched::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        crate::print(&format!("{}\n", listener.local_addr()?.port()))?;
        let forever = gosched::context::Context::background();
        http::serve(listener, &forever, http::Limits::default(), http::answer)
    })
}

/// A connection's goroutine. It ends with its client, however that ends.
fn echo(mut stream: gosched::net::TcpStream) {
    let mut buffer = [0; 1024];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}
