//! `poll`, `select`, `epoll_wait`, and a tokio runtime on a goroutine.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::common::process_cpu_time;
use crate::{WHILE, both, spawn};

#[test]
fn a_poll_of_two_hundred() {
    both(|| {
        let pairs: Vec<_> = (0..200).map(|_| UnixStream::pair().unwrap()).collect();
        let mut polls: Vec<_> = pairs
            .iter()
            .map(|(a, _)| libc::pollfd {
                fd: a.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        polls.push(polls[7]);
        polls.push(libc::pollfd {
            fd: -1,
            events: libc::POLLIN,
            revents: 0,
        });
        let waiter = spawn(move || {
            // SAFETY: the structs of this frame are written.
            let n = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, -1) };
            let ready = polls
                .iter()
                .enumerate()
                .filter(|(_, poll)| poll.revents != 0);
            (n, ready.map(|(n, _)| n).collect::<Vec<_>>())
        });
        std::thread::sleep(WHILE);
        (&pairs[7].1).write_all(b"x").unwrap();
        assert_eq!(waiter.join(), (2, vec![7, 200]));
        let mut none = libc::pollfd {
            fd: pairs[0].0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let begun = Instant::now();
        // SAFETY: the struct of this frame is written.
        assert_eq!(unsafe { libc::poll(&mut none, 1, 30) }, 0);
        assert!(begun.elapsed() >= Duration::from_millis(30));
    });
}

#[test]
fn a_select_with_several_sets() {
    both(|| {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let full = spawn(move || {
            // SAFETY: all bits zero are empty sets; the numbers are below 1024, and open.
            unsafe {
                let (mut read, mut write): (libc::fd_set, libc::fd_set) = std::mem::zeroed();
                let flags = libc::fcntl(writer.as_raw_fd(), libc::F_GETFL);
                libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK);
                while (&writer).write(&[0; 4096]).is_ok() {}
                libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags);
                let (r, w) = (a.as_raw_fd(), writer.as_raw_fd());
                libc::FD_SET(r, &mut read);
                libc::FD_SET(w, &mut write);
                let most = r.max(w) + 1;
                let mut time = libc::timeval {
                    tv_sec: 60,
                    tv_usec: 0,
                };
                let null = std::ptr::null_mut();
                let n = libc::select(most, &mut read, &mut write, null, &mut time);
                let sets = (libc::FD_ISSET(r, &read), libc::FD_ISSET(w, &write));
                (n, sets, time.tv_sec < 60, a, writer)
            }
        });
        std::thread::sleep(WHILE);
        std::thread::sleep(WHILE);
        let mut all = vec![0; 1 << 16];
        assert_eq!(reader.read(&mut all).unwrap(), 1 << 16);
        let (n, sets, has_passed, ..) = full.join();
        assert_eq!((n, sets, has_passed), (1, (false, true), true));
        drop(b);
    });
}

#[test]
fn an_epoll_in_an_epoll() {
    both(|| {
        let (a, b) = UnixStream::pair().unwrap();
        // SAFETY: descriptors of this test; the events of this frame are read and written.
        unsafe {
            let (outer, inner) = (
                libc::epoll_create1(libc::EPOLL_CLOEXEC),
                libc::epoll_create1(libc::EPOLL_CLOEXEC),
            );
            let mut event = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 5,
            };
            let add = libc::EPOLL_CTL_ADD;
            assert_eq!(libc::epoll_ctl(inner, add, a.as_raw_fd(), &mut event), 0);
            event.u64 = 6;
            assert_eq!(libc::epoll_ctl(outer, add, inner, &mut event), 0);
            let wait = move |epoll, time| {
                let mut events: [libc::epoll_event; 4] = std::mem::zeroed();
                let n = libc::epoll_wait(epoll, events.as_mut_ptr(), 4, time);
                (n, events[0].u64)
            };
            assert_eq!(wait(outer, 20).0, 0);
            let waiter = spawn(move || (wait(outer, -1), wait(inner, -1)));
            std::thread::sleep(WHILE);
            (&b).write_all(b"x").unwrap();
            assert_eq!(waiter.join(), ((1, 6), (1, 5)));
            libc::close(outer);
            libc::close(inner);
        }
    });
}

/// Data that the caller does not ask for is no reason to look again and again.
#[test]
fn a_wait_for_other_events_does_not_spin() {
    crate::common::child("a_wait_for_other_events_does_not_spin", || {
        gosched::run(|| {
            let (a, b) = UnixStream::pair().unwrap();
            (&b).write_all(b"unread").unwrap();
            let waiter = gosched::thread::spawn(move || {
                let events = libc::POLLPRI | libc::POLLRDHUP;
                let mut poll = libc::pollfd {
                    fd: a.as_raw_fd(),
                    events,
                    revents: 0,
                };
                // SAFETY: the struct of this frame is written.
                (unsafe { libc::poll(&mut poll, 1, -1) }, poll.revents)
            });
            gosched::thread::sleep(Duration::from_millis(50));
            let before = process_cpu_time();
            gosched::thread::sleep(Duration::from_secs(1));
            let used = process_cpu_time() - before;
            assert!(used < Duration::from_millis(500), "{used:?}");
            drop(b);
            let (n, events) = waiter.join().unwrap();
            assert!(n == 1 && events & libc::POLLRDHUP != 0);
        });
    })
    .succeeded();
}

#[test]
fn a_tokio_runtime_on_each_of_many_goroutines() {
    both(|| {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let all: Vec<_> = (0..20u8)
            .map(|n| {
                spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build();
                    runtime.unwrap().block_on(async move {
                        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                        let addr = listener.local_addr().unwrap();
                        let server = tokio::spawn(async move {
                            let (mut stream, _) = listener.accept().await.unwrap();
                            let mut bytes = [0; 4];
                            stream.read_exact(&mut bytes).await.unwrap();
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            stream.write_all(&bytes).await.unwrap();
                        });
                        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
                        stream.write_all(&[n; 4]).await.unwrap();
                        let mut bytes = Vec::new();
                        stream.read_to_end(&mut bytes).await.unwrap();
                        assert_eq!(bytes, [n; 4]);
                        server.await.unwrap();
                    });
                })
            })
            .collect();
        all.into_iter().for_each(|one| one.join());
    });
}
