//! HTTP requests by ureq: each goroutine has an agent of its own.

use std::time::Duration;

use ureq::Agent;

use crate::crowd::{all_wait, join_all};
use crate::http_server::Server;

/// Never reached; reads and writes with a timeout take another way through std.
const LONG: Duration = Duration::from_secs(60);

pub(super) fn run(clients: usize) {
    let server = Server::start();
    let base = format!("http://{}", server.address);
    let goroutines = (0..clients).map(|i| {
        let base = base.clone();
        gosched::thread::spawn(move || client(i, &base))
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    // Each client waits for an answer, each goroutine of the server for the gate.
    all_wait(2 * clients);
    server.gate.open();
    let bytes: usize = join_all(goroutines).into_iter().sum();
    times_out(&base);
    println!("{clients} clients had {bytes} bytes of bodies");
    println!("the server had {} requests", server.stop());
}

/// Three requests on one connection. Returns the length of all bodies.
fn client(i: usize, base: &str) -> usize {
    let config = Agent::config_builder().http_status_as_error(true);
    let agent = match i % 2 {
        0 => config.build().new_agent(),
        _ => config
            .timeout_connect(Some(LONG))
            .timeout_send_body(Some(LONG))
            .timeout_recv_response(Some(LONG))
            .build()
            .new_agent(),
    };
    let held = agent.get(format!("{base}/held/client-{i}")).call().unwrap();
    let held = held.into_body().read_to_string().unwrap();
    assert_eq!(held, format!("client-{i}"));

    let sent: Vec<u8> = (0..20_000 + i).map(|k| (k * i) as u8).collect();
    let echo = agent.post(format!("{base}/echo")).send(&sent[..]).unwrap();
    let received = echo.into_body().read_to_vec().unwrap();
    assert!(received == sent, "client {i} has another body than it sent");

    let missing = agent.get(format!("{base}/missing")).call();
    assert!(
        matches!(missing, Err(ureq::Error::StatusCode(404))),
        "{missing:?}"
    );
    held.len() + received.len()
}

/// The server does not answer.
fn times_out(base: &str) {
    let agent = Agent::config_builder().timeout_recv_response(Some(Duration::from_millis(50)));
    let agent = agent.build().new_agent();
    let answer = agent.get(format!("{base}/never")).call();
    assert!(matches!(answer, Err(ureq::Error::Timeout(_))), "{answer:?}");
    println!("{}", answer.unwrap_err());
}
