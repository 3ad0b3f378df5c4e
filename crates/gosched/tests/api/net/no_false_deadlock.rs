//! A goroutine that waits for the network may be woken at any time: no deadlock, as long as it
//! waits (U6).

use std::sync::mpsc;
use std::time::Duration;

use gosched::net::{TcpListener, TcpStream};
use gosched::{Deadlock, Runtime, thread};

use super::LONG;
use crate::common::{child, until_waiting_in};

/// A busy runtime in the same process is hope, too, so this test runs in a child.
#[test]
fn u6_who_waits_for_the_network_has_hope() {
    let out = child("u6_who_waits_for_the_network_has_hope", || {
        let (report, reports) = mpsc::channel();
        let runtime = Runtime::builder()
            .procs(2)
            .deadlock(Deadlock::Closed)
            .on_deadlock(move |deadlock| _ = report.send(deadlock.to_string()))
            .build()
            .unwrap();
        let (say, address) = mpsc::channel();
        let waits = runtime.spawn(move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            say.send(listener.local_addr().unwrap()).unwrap();
            listener.accept().unwrap();
        });
        let parked = runtime.spawn(thread::park);
        let address = address.recv_timeout(LONG).unwrap();
        // A deadlock is reported when all has been quiet for a moment.
        let early = reports.recv_timeout(Duration::from_secs(2));
        assert!(early.is_err(), "a false alarm: {early:?}");
        until_waiting_in(&runtime.handle(), 1, &["IO wait, read"]);
        let dump = runtime.dump().to_string();
        assert!(dump.contains("[IO wait, read"), "{dump}");
        assert!(dump.contains("waits on descriptor "), "{dump}");
        let leaks = runtime.leaks();
        assert!(leaks.is_empty(), "it can be woken: {leaks}");
        TcpStream::connect(address).unwrap();
        waits.join().unwrap();
        // No goroutine waits for the network any more: now it is a deadlock.
        let text = reports.recv_timeout(LONG).unwrap();
        assert!(text.starts_with("all goroutines are asleep"), "{text}");
        parked.thread().unpark();
        parked.join().unwrap();
    });
    out.succeeded();
}
