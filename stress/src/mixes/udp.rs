//! UDP: numbered questions, each repeated until its answer comes. Datagrams may be lost, but not
//! changed.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gosched::net::UdpSocket;

use crate::env::Actor;
use crate::mixes::tcp::{complain_of, is_timeout};

pub fn root(a: &mut Actor) {
    while !a.over() {
        if let Err(error) = bout(a) {
            complain_of(a, "udp", &error);
        }
        a.nap();
    }
}

fn bout(a: &mut Actor) -> io::Result<()> {
    let token = a.file();
    let server = Arc::new((UdpSocket::bind("127.0.0.1:0")?, token));
    let address = server.0.local_addr()?;
    let serves = Arc::clone(&server);
    let answers = a.spawn(move |a| {
        let mut bytes = [0; 2000];
        loop {
            match serves.0.recv_from(&mut bytes) {
                Ok((n, from)) => drop(serves.0.send_to(&bytes[..n], from)),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return,
                Err(error) => {
                    complain_of(a, "a udp server", &error);
                    a.nap();
                }
            }
        }
    });
    if answers.is_none() {
        return Ok(());
    }
    let mut clients = Vec::new();
    for _ in 0..a.rng.few(8) {
        clients.push(a.spawn(move |a| {
            if let Err(error) = ask(a, address) {
                complain_of(a, "a udp client", &error);
            }
        }));
    }
    a.join_all(clients);
    server.0.set_deadline(Some(Instant::now()))?;
    a.join_all(vec![answers]);
    Ok(())
}

fn ask(a: &mut Actor, address: std::net::SocketAddr) -> io::Result<()> {
    let token = a.file();
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(30)))?;
    // Its own: the port may have been another client's, to which a late answer is still on its way.
    let tag = a.rng.next();
    for n in 0..a.rng.few(40) as u64 {
        let size = a.rng.within(16, 1400);
        let mut question = vec![n as u8; size];
        question[..8].copy_from_slice(&n.to_le_bytes());
        question[8..16].copy_from_slice(&tag.to_le_bytes());
        let mut answer = [0; 2000];
        while !a.over() {
            socket.send(&question)?;
            match socket.recv(&mut answer) {
                // An answer to a question that was sent twice, or to another client's.
                Ok(len) if answer[..16] != question[..16] => a.expect(len >= 16, "a short answer"),
                Ok(len) => {
                    a.expect(
                        answer[..len] == question,
                        "an answer differs from the question",
                    );
                    break;
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
        a.op();
    }
    drop(socket);
    drop(token);
    Ok(())
}
