//! What every port of `ureq_4000` shares: a server in the same process, and a request by ureq.
//!
//! The server is one plain thread with std's sockets, the same for all ports. It answers nothing
//! until every request has come, so that all are in flight at once. Its own CPU time is known, so
//! that only the clients are measured.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::Duration;

const BODY: &str = "here you are";
/// Looks at the number of threads while connections arrive and while they are answered, of each.
const LOOKS: usize = 16;

/// A server for this many requests.
pub struct Server {
    address: SocketAddr,
    thread: JoinHandle<io::Result<Served>>,
}

/// What the server has seen.
pub struct Served {
    /// The most threads of the process in any look.
    pub threads: usize,
    /// The server's own CPU time.
    pub cpu: Duration,
    /// They stay open until the clients have ended, so that closing them is not measured.
    _streams: Vec<TcpStream>,
}

impl Server {
    pub fn start(requests: usize) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        // SAFETY: the call takes numbers and touches no memory. The descriptor is open.
        if unsafe { libc::listen(listener.as_raw_fd(), requests as libc::c_int) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Server {
            address: listener.local_addr()?,
            thread: std::thread::spawn(move || serve(&listener, requests)),
        })
    }

    /// Call it once all clients have their answers.
    pub fn finish(self) -> Result<Served, String> {
        let served = self.thread.join().expect("the server does not panic");
        served.map_err(|error| format!("the server: {error}"))
    }
}

fn serve(listener: &TcpListener, requests: usize) -> io::Result<Served> {
    let between = (requests / LOOKS).max(1);
    let mut threads = 0;
    let mut streams = Vec::with_capacity(requests);
    for nth in 0..requests {
        if nth % between == 0 {
            threads = threads.max(own_threads()?);
        }
        let (mut stream, _) = listener.accept()?;
        read_head(&mut stream)?;
        streams.push(stream);
    }
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{BODY}",
        BODY.len()
    );
    for (nth, stream) in streams.iter_mut().enumerate() {
        if nth % between == 0 {
            threads = threads.max(own_threads()?);
        }
        stream.write_all(answer.as_bytes())?;
    }
    Ok(Served {
        threads,
        cpu: own_thread_cpu()?,
        _streams: streams,
    })
}

/// Reads a request without a body.
fn read_head(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&piece[..n]),
        }
    }
    Ok(())
}

/// An agent of ureq, which all requests of a round share.
#[derive(Clone)]
pub struct Client {
    agent: ureq::Agent,
    url: String,
}

impl Client {
    pub fn of(server: &Server) -> Client {
        // A proxy of the environment is for other addresses.
        let config = ureq::Agent::config_builder().proxy(None).build();
        Client {
            agent: config.into(),
            url: format!("http://{}/", server.address),
        }
    }

    /// A request, from its connection to its checked answer.
    pub fn fetch(&self) -> Result<(), String> {
        let text = |error: ureq::Error| format!("ureq: {error}");
        let mut response = self.agent.get(&self.url).call().map_err(text)?;
        match response.body_mut().read_to_string().map_err(text)? {
            body if body == BODY => Ok(()),
            body => Err(format!("the server's answer is `{body}`")),
        }
    }
}

/// The number of threads of this process.
fn own_threads() -> io::Result<usize> {
    let status = fs::read_to_string("/proc/self/status")?;
    let rest = status.split("Threads:").nth(1);
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    let number = word.and_then(|word| word.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The CPU time of the calling thread.
fn own_thread_cpu() -> io::Result<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec` in this frame.
    match unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_when_all_requests_are_there() {
        let server = Server::start(3).expect("a server");
        let fetches = [(); 3].map(|()| {
            let client = Client::of(&server);
            std::thread::spawn(move || client.fetch())
        });
        for fetch in fetches {
            fetch.join().expect("no panic").expect("an answer");
        }
        let served = server.finish().expect("all were served");
        // The server's own, and those of the three requests, which all wait at its last look.
        assert!(served.threads >= 4, "{}", served.threads);
    }
}
