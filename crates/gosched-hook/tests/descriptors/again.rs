//! The tests of this binary once more, in another setting.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use crate::common::child;

/// Runs the tests of both kinds again.
#[track_caller]
fn with(name: &str, value: &str) {
    if std::env::var_os(ONCE).is_some() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--test-threads=4", "--skip", "again::"]);
    let output = command.env(name, value).env(ONCE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

const ONCE: &str = "GOSCHED_HOOK_TEST_ONCE";

#[test]
fn with_disorder() {
    with("GOSCHED_DEBUG", "chaos=7");
}

#[test]
fn with_preemption_after_a_millisecond() {
    with("GOSCHED_DEBUG", "slicems=1");
}

#[test]
fn with_signals_that_restart_calls() {
    with(crate::TIMER, "1");
}

/// A parked goroutine is not interrupted, and a call that the signal meets in the kernel is std's to
/// repeat.
#[test]
fn with_signals_that_interrupt_calls() {
    child("with_signals_that_interrupt_calls", || {
        crate::start_timer(0);
        gosched::run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            let servers = gosched::thread::spawn(move || {
                for stream in listener.incoming().take(20) {
                    let mut stream = stream.unwrap();
                    gosched::thread::spawn(move || {
                        let mut bytes = [0; 10_000];
                        stream.read_exact(&mut bytes).unwrap();
                        gosched::thread::sleep(crate::WHILE);
                        stream.write_all(&bytes).unwrap();
                    });
                }
            });
            let clients = (0..20u8).map(|n| {
                gosched::thread::spawn(move || {
                    let mut stream = TcpStream::connect(addr).unwrap();
                    stream.write_all(&[n; 10_000]).unwrap();
                    let mut bytes = Vec::new();
                    stream.read_to_end(&mut bytes).unwrap();
                    assert_eq!(bytes, [n; 10_000]);
                })
            });
            let clients: Vec<_> = clients.collect();
            clients
                .into_iter()
                .for_each(|client| client.join().unwrap());
            servers.join().unwrap();
        });
    })
    .succeeded();
}
