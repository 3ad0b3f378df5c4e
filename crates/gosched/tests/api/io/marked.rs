//! Waits inside `gosched::blocking`, where the goroutine has given up its processor.

use std::io::{Read, Write};
use std::time::Duration;

use gosched::context::Context;
use gosched::io::{Pollable, pipe};
use gosched::net::{Dialer, TcpListener, lookup_host_in, lookup_host_timeout};
use gosched::process::{Command, Stdio};
use gosched::sync::mpsc;
use gosched::thread;

use super::eventfd;
use crate::common;

#[test]
fn waits_in_marked_calls_end() {
    common::run(1, "marked calls", || {
        let users = (0..4).map(|_| thread::spawn(|| gosched::blocking(uses_all)));
        let users: Vec<_> = users.collect();
        users.into_iter().for_each(|user| user.join().unwrap());
    });
}

fn uses_all() {
    let (mut reader, mut writer) = pipe().unwrap();
    let writing = thread::spawn(move || writer.write_all(b"pipe").unwrap());
    let mut all = String::new();
    reader.read_to_string(&mut all).unwrap();
    writing.join().unwrap();
    assert_eq!(all, "pipe");

    let event = Pollable::new(eventfd()).unwrap();
    let other = event.get_ref().try_clone().unwrap();
    thread::spawn(move || (&other).write_all(&1u64.to_ne_bytes()).unwrap());
    event.wait_readable().unwrap();

    let both = "head -c 200000 /dev/zero; head -c 200000 /dev/zero >&2";
    let output = Command::new("sh").args(["-c", both]).output().unwrap();
    assert_eq!(
        (output.stdout.len(), output.stderr.len()),
        (200_000, 200_000)
    );
    let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    assert_eq!(
        cat.wait_timeout(Duration::MAX).unwrap().unwrap().code(),
        Some(0)
    );

    let context = Context::background().with_cancel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = ("localhost", listener.local_addr().unwrap().port());
    let dialer = Dialer::new()
        .timeout(Duration::MAX)
        .attempt_delay(Duration::ZERO);
    dialer.connect_in(&context, address).unwrap();
    assert!(lookup_host_timeout(address, Duration::MAX).unwrap().count() > 0);
    assert!(lookup_host_in(&context, address).unwrap().count() > 0);

    let (sender, receiver) = mpsc::sync_channel(0);
    let sending = thread::spawn(move || sender.send(7));
    assert_eq!(receiver.recv_timeout(Duration::MAX), Ok(7));
    sending.join().unwrap().unwrap();
    assert!(receiver.recv_timeout(Duration::ZERO).is_err());
}
