//! The client of all servers: one process, one thread, one epoll.
//!
//! It is the same for every server, so that only the servers differ. A connection sends a request,
//! waits until the whole answer has come, and sends the next at once. Both are so short that they
//! usually come in one piece. If not, the client waits for the rest.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The length of an echo's message.
pub const MESSAGE: usize = 64;
/// The longest answer.
const ANSWER_MAX: usize = 4096;
/// A server that sends nothing for this long never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// The number of connections that any server's accept queue has room for. If more come at once, the
/// kernel delays them for a second. So the client pauses after this many.
const QUEUE: usize = 64;
const PAUSE: Duration = Duration::from_millis(5);

/// The result of a load.
pub struct Load {
    /// From the first message to the last answer.
    pub elapsed: Duration,
    /// Of every request in ns, unsorted.
    pub latencies: Vec<f64>,
}

/// One connection under load.
struct Talk {
    stream: TcpStream,
    sent: Instant,
    /// How many bytes of the answer are still missing.
    missing: usize,
}

/// The request and its answer.
#[derive(Clone)]
pub struct Exchange {
    pub request: Vec<u8>,
    /// The length of the answer, which is always the same.
    pub answer: usize,
}

impl Exchange {
    /// An echo: the answer is the request.
    pub fn echo() -> Exchange {
        Exchange {
            request: vec![7; MESSAGE],
            answer: MESSAGE,
        }
    }

    /// A GET request. Requests once to learn the length of the answer.
    pub fn http(server: SocketAddr, path: &str) -> io::Result<Exchange> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n\r\n");
        let mut stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0] as char);
        }
        let lower = head.to_ascii_lowercase();
        let length = lower.split("content-length:").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.trim().parse().ok());
        let body: usize = length.ok_or_else(|| io::Error::other("an answer without a length"))?;
        Ok(Exchange {
            request: request.into_bytes(),
            answer: head.len() + body,
        })
    }
}

/// Connections that have been made and wait for their first request.
pub struct Client {
    exchange: Exchange,
    talks: Vec<Talk>,
    /// Connections that never send anything.
    _idle: Vec<TcpStream>,
    epoll: Epoll,
}

impl Client {
    /// Makes `active` connections that will be used and `idle` that will not.
    pub fn connect(
        to: SocketAddr,
        exchange: Exchange,
        active: usize,
        idle: usize,
    ) -> io::Result<Client> {
        assert!(exchange.answer <= ANSWER_MAX);
        let idle = (0..idle).map(|number| {
            if number % QUEUE == QUEUE - 1 {
                std::thread::sleep(PAUSE);
            }
            TcpStream::connect(to)
        });
        let idle = idle.collect::<io::Result<Vec<_>>>()?;
        let epoll = Epoll::new()?;
        let mut talks = Vec::with_capacity(active);
        for number in 0..active {
            let stream = TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll.add(&stream, number as u64)?;
            talks.push(Talk {
                stream,
                sent: Instant::now(),
                missing: 0,
            });
        }
        Ok(Client {
            exchange,
            talks,
            _idle: idle,
            epoll,
        })
    }

    /// Makes `requests` requests over all connections together.
    pub fn load(&mut self, requests: usize) -> io::Result<Load> {
        want_little_at_once();
        let mut latencies = Vec::with_capacity(requests);
        let mut to_send = requests;
        let start = Instant::now();
        for talk in &mut self.talks {
            if to_send > 0 {
                to_send -= 1;
                talk.send(&self.exchange)?;
            }
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 256];
        while latencies.len() < requests {
            let ready = self.epoll.wait(&mut events)?;
            if ready.is_empty() {
                return Err(io::Error::other("stalled: the server does not answer"));
            }
            for event in ready {
                let talk = &mut self.talks[event.u64 as usize];
                if let Some(latency) = talk.receive()? {
                    latencies.push(latency.as_nanos() as f64);
                    if to_send > 0 {
                        to_send -= 1;
                        talk.send(&self.exchange)?;
                    }
                }
            }
        }
        Ok(Load {
            elapsed: start.elapsed(),
            latencies,
        })
    }
}

impl Talk {
    fn send(&mut self, exchange: &Exchange) -> io::Result<()> {
        self.sent = Instant::now();
        self.missing = exchange.answer;
        // An idle socket always has room for so few bytes.
        self.stream.write_all(&exchange.request)
    }

    /// Reads what has come; returns the latency once the answer is complete.
    fn receive(&mut self) -> io::Result<Option<Duration>> {
        let mut buffer = [0; ANSWER_MAX];
        while self.missing > 0 {
            match self.stream.read(&mut buffer[..self.missing]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.missing -= n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if self.missing == 0 {
                return Ok(Some(self.sent.elapsed()));
            }
        }
        Ok(None)
    }
}

/// Asks the kernel for short slices, which come sooner. Otherwise the client's wait for a CPU would
/// count as the server's latency. Kernels that do not know this ignore it. Servers that are started
/// later do not inherit it.
fn want_little_at_once() {
    const SLICE_NS: u64 = 100_000;
    const RESET_ON_FORK: u64 = 1;
    // SAFETY: the call takes numbers and touches no memory.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // struct sched_attr: size and policy, flags, nice and priority, runtime, ...
    let attributes: [u64; 6] = [48, RESET_ON_FORK, u64::from(nice as u32), SLICE_NS, 0, 0];
    // SAFETY: the kernel reads 48 bytes of this frame.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Connects, makes one request and resets the connection, `times` times on each of `threads`
/// threads. The reset leaves no port in TIME_WAIT, where it would be unusable for a minute.
pub fn connect_each(to: SocketAddr, threads: usize, times: usize) -> io::Result<Duration> {
    let start = Instant::now();
    let one = move || -> io::Result<()> {
        for _ in 0..times {
            let mut stream = TcpStream::connect(to)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            reset_at_close(&stream)?;
            stream.write_all(&[7; MESSAGE])?;
            stream.read_exact(&mut [0; MESSAGE])?;
        }
        Ok(())
    };
    let running: Vec<_> = (0..threads).map(|_| std::thread::spawn(one)).collect();
    for thread in running {
        thread.join().expect("it does not panic")?;
    }
    Ok(start.elapsed())
}

/// Makes `connections` connections that arrive in waves of `size`, and returns the time for all.
/// Each connection makes one request. All of a wave are open when their answers come, and are then
/// reset together. The next wave follows at once.
pub fn connect_in_waves(to: SocketAddr, connections: usize, size: usize) -> io::Result<Duration> {
    want_little_at_once();
    let start = Instant::now();
    for done in (0..connections).step_by(size) {
        wave(to, size.min(connections - done))?;
    }
    Ok(start.elapsed())
}

/// One wave. Nothing is read before the last connection has been made.
fn wave(to: SocketAddr, size: usize) -> io::Result<()> {
    let mut streams = Vec::with_capacity(size);
    for _ in 0..size {
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        reset_at_close(&stream)?;
        stream.write_all(&[7; MESSAGE])?;
        streams.push(stream);
    }
    for stream in &mut streams {
        let mut answer = [0; MESSAGE];
        stream.read_exact(&mut answer).map_err(stalled)?;
        if answer != [7; MESSAGE] {
            return Err(io::Error::other("the answer is not the request"));
        }
    }
    Ok(())
}

/// A read that timed out means that the server stalls.
fn stalled(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other("stalled: the server does not answer"),
        _ => error,
    }
}

fn reset_at_close(stream: &TcpStream) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the kernel reads a `linger` of that size in this frame.
    let answer = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

struct Epoll(i32);

impl Epoll {
    fn new() -> io::Result<Epoll> {
        // SAFETY: the call makes a descriptor and touches no memory.
        match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(Epoll(fd)),
        }
    }

    fn add(&self, stream: &TcpStream, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: data,
        };
        // SAFETY: the kernel reads the event in this frame; both descriptors are open.
        let answer =
            unsafe { libc::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &mut event) };
        match answer {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns readable descriptors; none after a long silence.
    fn wait<'e>(&self, events: &'e mut [libc::epoll_event]) -> io::Result<&'e [libc::epoll_event]> {
        let patience = PATIENCE.as_millis() as i32;
        // SAFETY: the kernel writes at most `events.len()` entries to the slice.
        let n =
            unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), events.len() as i32, patience) };
        match n {
            -1 => Err(io::Error::last_os_error()),
            n => Ok(&events[..n as usize]),
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to this value, and this drop is its last use.
        unsafe { libc::close(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Serves `times` connections one after the other, with an answer that `change` may change.
    fn serve(times: usize, change: fn(&mut [u8])) -> (SocketAddr, std::thread::JoinHandle<usize>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let server = std::thread::spawn(move || {
            let mut held = Vec::new();
            for _ in 0..times {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut message = [0; MESSAGE];
                stream.read_exact(&mut message).expect("a message");
                change(&mut message);
                stream.write_all(&message).expect("a reader");
                held.push(stream);
            }
            held.len()
        });
        (address, server)
    }

    #[test]
    fn a_wave_is_open_all_at_once_and_the_last_one_may_be_smaller() {
        let (address, server) = serve(7, |_| ());
        connect_in_waves(address, 7, 3).expect("three waves");
        assert_eq!(server.join().expect("a server"), 7);
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let (address, server) = serve(1, |message| message[63] = 8);
        let error = connect_in_waves(address, 1, 1).expect_err("a wrong answer");
        assert!(error.to_string().contains("not the request"), "{error}");
        server.join().expect("a server");
    }
}
