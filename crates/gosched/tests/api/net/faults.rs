//! What the system refuses.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use gosched::net::{TcpListener, TcpStream};
use gosched::{testing, thread};

use super::common;

/// The poller cannot register another socket: a call that would wait returns an error, and succeeds
/// when there is room again.
#[test]
fn a_socket_that_the_poller_cannot_take() {
    let output = common::child("faults::a_socket_that_the_poller_cannot_take", || {
        super::everywhere("refused by the poller", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            testing::fail_epoll_after(0);
            let error = listener.accept().map(drop).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
            // What need not wait works all the same.
            let mut client = std::net::TcpStream::connect(address).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let error = server.read(&mut [0]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
            client.write_all(b"x").unwrap();
            let mut byte = [0];
            while server.read(&mut byte).is_err() {}
            assert_eq!(&byte, b"x");
            testing::fail_epoll_after(-1);
            let writer = std::thread::spawn(move || client.write_all(b"y").unwrap());
            server.read_exact(&mut byte).unwrap();
            assert_eq!(&byte, b"y");
            writer.join().unwrap();
        });
    });
    output.succeeded();
}

/// Refusals come and go while connections do: calls return errors, and none hangs.
#[test]
fn refusals_at_random() {
    let output = common::child("faults::refusals_at_random", || {
        super::run(2, "refusals at random", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let is_over = Arc::new(AtomicBool::new(false));
            let ends = Arc::clone(&is_over);
            let server = thread::spawn(move || {
                while !ends.load(SeqCst) {
                    let Ok((stream, _)) = listener.accept() else {
                        continue;
                    };
                    gosched::go(move || {
                        let mut byte = [0];
                        while (&stream).read(&mut byte).is_err() {}
                        _ = (&stream).write_all(&byte);
                    });
                }
            });
            for n in 0..200u8 {
                testing::fail_epoll_after(i64::from(n % 3));
                // A connection that could not be waited for is not there: its server sees the end.
                let stream = loop {
                    match TcpStream::connect(address) {
                        Ok(stream) => break stream,
                        Err(_) => testing::fail_epoll_after(1),
                    }
                };
                (&stream).write_all(&[n]).unwrap();
                let mut byte = [0];
                while (&stream).read_exact(&mut byte).is_err() {
                    testing::fail_epoll_after(i64::from(n % 2) * 2 - 1);
                }
                assert_eq!(byte, [n]);
            }
            testing::fail_epoll_after(-1);
            is_over.store(true, SeqCst);
            drop(TcpStream::connect(address).unwrap()); // the server sees the flag
            server.join().unwrap();
        });
    });
    output.succeeded();
}
