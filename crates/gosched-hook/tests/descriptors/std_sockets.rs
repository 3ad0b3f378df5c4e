//! std's sockets on goroutines.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use gosched::thread;

/// The threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn serve(listener: TcpListener, connections: usize) {
    for _ in 0..connections {
        let (mut stream, _) = listener.accept().unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 512];
            loop {
                match stream.read(&mut buffer).unwrap() {
                    0 => break,
                    n => stream.write_all(&buffer[..n]).unwrap(),
                }
            }
        });
    }
}

#[test]
fn a_thousand_connections_hold_no_threads() {
    gosched_hook::install().unwrap();
    const CONNECTIONS: usize = 1_000;
    // A preempted goroutine keeps a thread, which is not what is counted here.
    let runtime = gosched::Runtime::builder()
        .preemption(false)
        .build()
        .unwrap();
    let most = runtime.run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = thread::spawn(move || serve(listener, CONNECTIONS));
        let all = std::sync::Arc::new(gosched::sync::Barrier::new(CONNECTIONS + 1));
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|n| {
                let all = all.clone();
                thread::spawn(move || {
                    let mut stream = TcpStream::connect(addr).unwrap();
                    for round in 0..5 {
                        let text = format!("{n} {round}");
                        stream.write_all(text.as_bytes()).unwrap();
                        let mut got = vec![0; text.len()];
                        stream.read_exact(&mut got).unwrap();
                        assert_eq!(got, text.as_bytes());
                    }
                    all.wait();
                    all.wait();
                })
            })
            .collect();
        all.wait();
        let most = threads();
        all.wait();
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
        server.join().unwrap();
        most
    });
    assert!(most < 32, "{most} threads");
}

#[test]
fn a_large_write_is_completed() {
    gosched::run(|| {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let data: Vec<u8> = (0..5_000_000u32).map(|n| n as u8).collect();
        let sent = data.clone();
        let writer = thread::spawn(move || a.write(&sent).unwrap());
        let mut got = vec![0; data.len()];
        b.read_exact(&mut got).unwrap();
        assert_eq!(writer.join().unwrap(), data.len());
        assert!(got == data);
    });
}

#[test]
fn timeouts_are_the_users() {
    gosched::run(|| {
        let (mut a, _b) = UnixStream::pair().unwrap();
        a.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let begun = Instant::now();
        assert_eq!(a.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(begun.elapsed() >= Duration::from_millis(50));
        a.set_nonblocking(true).unwrap();
        assert_eq!(a.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        assert_eq!(
            udp.recv_from(&mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    });
}

#[test]
fn connections_are_refused_and_accepted() {
    gosched::run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        assert!(TcpStream::connect_timeout(&addr, Duration::from_secs(9)).is_ok());
        let (_bound, addr) = crate::bound();
        assert_eq!(
            TcpStream::connect(addr).unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        let timed = TcpStream::connect_timeout(&addr, Duration::from_secs(9));
        assert_eq!(timed.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let name = std::env::temp_dir().join(format!("gosched-hook-{}", std::process::id()));
        let listener = UnixListener::bind(&name).unwrap();
        let client = thread::spawn({
            let name = name.clone();
            move || UnixStream::connect(name).unwrap().read(&mut [0]).unwrap()
        });
        drop(listener.accept().unwrap());
        assert_eq!(client.join().unwrap(), 0);
        std::fs::remove_file(name).unwrap();
    });
}

#[test]
fn a_number_that_libc_closes_inside_is_used_again() {
    gosched::run(|| {
        for round in 0..20 {
            let (a, mut b) = UnixStream::pair().unwrap();
            let reader = thread::spawn(move || {
                let mut a = a;
                let got = a.read(&mut [0]).unwrap();
                (a, got)
            });
            thread::sleep(Duration::from_millis(1));
            b.write_all(b"x").unwrap();
            let (a, got) = reader.join().unwrap();
            assert_eq!(got, 1);
            // stdio closes the number without a call of `close`.
            let fd = std::os::fd::IntoRawFd::into_raw_fd(a);
            // SAFETY: the number is open, and the stream closes it.
            unsafe { libc::fclose(libc::fdopen(fd, c"r".as_ptr())) };
            let (mut reader, mut writer) = std::io::pipe().unwrap();
            let got = thread::spawn(move || {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).unwrap();
                got
            });
            thread::sleep(Duration::from_millis(1));
            writer.write_all(format!("{round}").as_bytes()).unwrap();
            drop(writer);
            assert_eq!(got.join().unwrap(), format!("{round}").as_bytes());
        }
    });
}

#[test]
fn commands_pipes_and_children() {
    gosched::run(|| {
        let all: Vec<_> = (0..50)
            .map(|n| {
                thread::spawn(move || {
                    let mut command = std::process::Command::new("sh");
                    let script = format!("read line; echo $line {n}; echo no >&2; exit 3");
                    command.args(["-c", &script]);
                    command.stdin(std::process::Stdio::piped());
                    command.stdout(std::process::Stdio::piped());
                    command.stderr(std::process::Stdio::piped());
                    let mut child = command.spawn().unwrap();
                    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
                    let output = child.wait_with_output().unwrap();
                    assert_eq!(output.status.code(), Some(3));
                    assert_eq!(output.stdout, format!("hello {n}\n").into_bytes());
                    assert_eq!(output.stderr, b"no\n");
                })
            })
            .collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
}
