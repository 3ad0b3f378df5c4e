//! Measures the cost of a server: echo over TCP, with a goroutine or thread for each connection.
//!
//! The server is a child process, so that its CPU time is measured apart. The client (see `client`)
//! is this process, the same for every port. Server and client share the machine's CPUs in every
//! port.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::child::Role;
use crate::client::{self, Client, Exchange, Load};
use crate::limits;
use crate::port::{self, Mode};
use crate::proc;
use crate::rounds::{Round, Sample, micros, quantile};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, When, Workload};

pub const TCP_ECHO: Workload = Workload {
    name: "tcp_echo",
    about: "n requests of 64 bytes over 256 busy connections",
    n: 200_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &[
        Port::gosched(Mode::Own, start_echo),
        Port::gosched(Mode::Shared, start_echo),
    ],
    compared: &["time"],
    goals: &[
        Goal::new("gosched", "cpu", 7.5, "us"),
        Goal::new("gosched", "p99", 6.0, "ms"),
    ],
    child: Some(echo_child),
};

pub const TCP_IDLE: Workload = Workload {
    name: "tcp_idle",
    about: "n requests over 64 busy connections among 5,000 idle ones",
    n: 200_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &[
        Port::gosched(Mode::Own, start_idle),
        Port::gosched(Mode::Shared, start_idle),
    ],
    compared: &["time"],
    goals: &[],
    child: Some(echo_child),
};

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

pub const ACCEPT_BURST: Workload = Workload {
    name: "accept_burst",
    about: "n connections in waves of 2,000, one request each; a wave is open all at once",
    n: 10_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &[
        Port::gosched(Mode::Own, start_waves),
        Port::gosched(Mode::Shared, start_waves),
    ],
    compared: &["time"],
    goals: &[
        Goal::new("own/peers", "time", 1.0, "x").when(When::First),
        Goal::new("own/peers", "time", 1.0, "x"),
    ],
    child: Some(echo_child),
};

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
/// Threads of the connecting client.
const CONNECTORS: usize = 4;
/// Connections that arrive at once in `accept_burst`.
const WAVE: usize = 2_000;
/// The backlog of every server of every runtime. A whole wave has room in it.
const BACKLOG: libc::c_int = 2_048;

#[path = "../../crates/gosched/examples/http.rs"]
#[allow(dead_code, reason = "its main")]
mod http;

/// Whether the workload's child is a server, which prints `port P` and serves.
pub fn is_server(workload: &str) -> bool {
    let servers = [
        TCP_ECHO,
        TCP_IDLE,
        TCP_ACCEPT,
        ACCEPT_BURST,
        TCP_HOGS,
        HTTP_HELLO,
    ];
    servers.iter().any(|server| server.name == workload)
}

fn start_echo(params: &Params, mode: Mode) -> io::Result<Round> {
    start(TCP_ECHO.name, params, mode)
}

fn start_idle(params: &Params, mode: Mode) -> io::Result<Round> {
    start(TCP_IDLE.name, params, mode)
}

fn start_accept(params: &Params, mode: Mode) -> io::Result<Round> {
    start(TCP_ACCEPT.name, params, mode)
}

fn start_waves(params: &Params, mode: Mode) -> io::Result<Round> {
    start(ACCEPT_BURST.name, params, mode)
}

fn start_hogs(params: &Params, mode: Mode) -> io::Result<Round> {
    start(TCP_HOGS.name, params, mode)
}

fn start_http(params: &Params, mode: Mode) -> io::Result<Round> {
    start(HTTP_HELLO.name, params, mode)
}

/// Starts the server of a workload and its client.
fn start(workload: &str, params: &Params, mode: Mode) -> io::Result<Round> {
    let mut role = Role::start(workload, params, mode)?;
    let line = role.line()?;
    let port = line
        .strip_prefix("port ")
        .and_then(|port| port.parse().ok());
    let port: u16 =
        port.ok_or_else(|| io::Error::other(format!("its child process printed `{line}`")))?;
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let mut client = client(workload, params.n, address, role.pid())?;
    Ok(Box::new(move || {
        // The server ends when its rounds are dropped.
        let _server = &role;
        client()
    }))
}

/// The client of a workload, for the server at this address, of any runtime.
pub fn client(workload: &str, requests: usize, address: SocketAddr, pid: u32) -> io::Result<Round> {
    let (active, idle) = match workload {
        "tcp_accept" => return Ok(connecting(requests, address, pid)),
        "accept_burst" => return arriving(requests, address, pid),
        "tcp_hogs" => (8, 0),
        "tcp_idle" => (64, 5_000),
        "http_hello" => (64, 0),
        _ => (256, 0),
    };
    let exchange = match workload {
        "http_hello" => Exchange::http(address, "/hello")?,
        _ => Exchange::echo(),
    };
    // The server needs as many.
    limits::need_files(active + idle)?;
    let mut client = Client::connect(address, exchange, active, idle)?;
    Ok(Box::new(move || {
        let before = proc::cpu_of(pid)?;
        let load = client.load(requests)?;
        let cpu = proc::cpu_of(pid)? - before;
        Ok(samples(load, cpu))
    }))
}

/// The samples of a load.
pub fn samples(load: Load, cpu: Duration) -> Vec<Sample> {
    let Load {
        elapsed,
        mut latencies,
    } = load;
    let n = latencies.len() as f64;
    latencies.sort_by(f64::total_cmp);
    vec![
        Sample::most("rate", n / elapsed.as_secs_f64(), "req/s"),
        Sample::best("time", micros(elapsed) / n, "us"),
        Sample::best("cpu", micros(cpu) / n, "us"),
        Sample::best("p50", quantile(&latencies, 0.5) / 1e6, "ms"),
        Sample::best("p99", quantile(&latencies, 0.99) / 1e6, "ms"),
    ]
}

/// The client that makes a connection for every request.
fn connecting(connections: usize, address: SocketAddr, pid: u32) -> Round {
    Box::new(move || {
        let before = proc::cpu_of(pid)?;
        let times = connections.div_ceil(CONNECTORS);
        let elapsed = client::connect_each(address, CONNECTORS, times)?;
        let cpu = proc::cpu_of(pid)? - before;
        Ok(connected_samples(times * CONNECTORS, elapsed, cpu))
    })
}

/// The client whose connections arrive in waves.
fn arriving(connections: usize, address: SocketAddr, pid: u32) -> io::Result<Round> {
    need_backlog(&fs::read_to_string(SOMAXCONN)?)?;
    // A server may still hold the last wave when the next one comes.
    limits::need_files(2 * WAVE)?;
    Ok(Box::new(move || {
        let before = proc::cpu_of(pid)?;
        let elapsed = client::connect_in_waves(address, connections, WAVE)?;
        let cpu = proc::cpu_of(pid)? - before;
        Ok(connected_samples(connections, elapsed, cpu))
    }))
}

/// Where the kernel has its limit of every backlog.
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";

/// Checks that the kernel does not shorten the backlog.
fn need_backlog(somaxconn: &str) -> io::Result<()> {
    match somaxconn.trim().parse::<libc::c_int>() {
        Ok(BACKLOG..) => Ok(()),
        _ => Err(io::Error::other(format!(
            "it needs a backlog of {BACKLOG}, and {SOMAXCONN} is {}",
            somaxconn.trim()
        ))),
    }
}

/// The samples of this many connections.
pub fn connected_samples(connections: usize, elapsed: Duration, cpu: Duration) -> Vec<Sample> {
    let n = connections as f64;
    vec![
        Sample::most("rate", n / elapsed.as_secs_f64(), "conn/s"),
        Sample::best("time", micros(elapsed) / n, "us"),
        Sample::best("cpu", micros(cpu) / n, "us"),
    ]
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

/// Serves until the process is ended.
fn echo_child(params: &Params, mode: Mode) -> io::Result<()> {
    port::runtime(mode, params.procs)?.run(serve_echo)
}

/// Prints its port, and serves.
fn serve_echo() -> io::Result<()> {
    let listener = listener()?;
    crate::print(&format!("port {}\n", listener.local_addr()?.port()))?;
    echo_all(&listener)
}

/// Serves for good, with a goroutine for each connection.
pub fn echo_all(listener: &gosched::net::TcpListener) -> ! {
    loop {
        match listener.accept() {
            Ok((stream, _)) => gosched::go(move || echo(stream)),
            Err(error) => crate::complain(&format!("tcp_echo: {error}")),
        }
    }
}

/// A listener on loopback, at any port, with the backlog of all servers.
pub fn listener() -> io::Result<gosched::net::TcpListener> {
    let listener = gosched::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // SAFETY: the call takes numbers and touches no memory. The descriptor is open.
    match unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } {
        0 => Ok(listener),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Prints its port and serves the example until the process is ended.
fn http_child(params: &Params, mode: Mode) -> io::Result<()> {
    port::runtime(mode, params.procs)?.run(|| {
        let listener = listener()?;
        crate::print(&format!("port {}\n", listener.local_addr()?.port()))?;
        let forever = gosched::context::Context::background();
        // Connections stay open while the others have their turns, which may take minutes.
        let limits = http::Limits {
            idle: Duration::from_secs(3600),
            ..http::Limits::default()
        };
        http::serve(listener, &forever, limits, http::answer)
    })
}

/// A connection's goroutine. It ends with its client.
fn echo(mut stream: gosched::net::TcpStream) {
    let mut buffer = [0; 1024];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_backlog_is_refused() {
        assert!(need_backlog("4096\n").is_ok() && need_backlog("2048\n").is_ok());
        let complaint = need_backlog("128\n").expect_err("too short").to_string();
        assert!(complaint.contains("somaxconn is 128"), "{complaint}");
        assert!(need_backlog("").is_err());
    }
}
