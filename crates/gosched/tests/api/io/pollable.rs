//! `Pollable` of every kind of descriptor: events, deadlines, levels, flags, and two for one.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::time::Instant;

use gosched::io::Pollable;
use gosched::os::unix::net::UnixStream as OwnStream;
use gosched::thread;

use super::{after, arm, eventfd, everywhere, inotify, is_nonblocking, kind, pty, timerfd};
use crate::common::{self, HOUR, ms};

/// Nothing comes: the deadline ends the wait. Then `happens` ends one, and `read` reads.
#[track_caller]
fn waits_for<T: AsFd + Sync + Send>(
    what: T,
    happens: impl FnOnce() + Send,
    read: impl FnMut(&T) -> std::io::Result<usize>,
) -> usize {
    let pollable = Pollable::new(what).unwrap();
    assert!(is_nonblocking(&pollable));
    pollable.set_deadline(after(ms(10))).unwrap();
    assert_eq!(kind(pollable.wait_readable()), ErrorKind::TimedOut);
    assert_eq!(
        kind(pollable.read_with(|_| Ok(()))),
        ErrorKind::TimedOut,
        "past"
    );
    pollable.set_deadline(after(HOUR)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(ms(5));
            happens();
        });
        pollable.wait_readable().unwrap();
    });
    for _ in 0..3 {
        pollable.wait_readable().unwrap(); // it still is
    }
    let n = pollable.read_with(read).unwrap();
    pollable.set_deadline(after(ms(5))).unwrap();
    assert_eq!(kind(pollable.wait_readable()), ErrorKind::TimedOut, "empty");
    n
}

#[test]
fn timerfd_wakes() {
    everywhere("timerfd", || {
        let timer = timerfd();
        let other = timer.try_clone().unwrap();
        let n = waits_for(
            timer,
            move || arm(&other, ms(1)),
            |mut timer| timer.read(&mut [0; 8]),
        );
        assert_eq!(n, 8);
    });
}

#[test]
fn eventfd_wakes() {
    everywhere("eventfd", || {
        let event = eventfd();
        let mut other = event.try_clone().unwrap();
        let mut buf = [0; 8];
        let happens = move || other.write_all(&7u64.to_ne_bytes()).unwrap();
        waits_for(event, happens, |mut event| event.read(&mut buf));
        assert_eq!(u64::from_ne_bytes(buf), 7);
    });
}

#[test]
fn inotify_wakes() {
    everywhere("inotify", || {
        let name = format!(
            "gosched-inotify-{}-{:?}",
            std::process::id(),
            Instant::now()
        );
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let mut buf = [0; 4096];
        let happens = || drop(File::create(folder.join("new.txt")).unwrap());
        let n = waits_for(inotify(&folder), happens, |mut file| file.read(&mut buf));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(buf[..n].windows(7).any(|part| part == b"new.txt"));
    });
}

#[test]
fn a_terminal_wakes_both_sides() {
    everywhere("a terminal", || {
        let (mut master, slave) = pty();
        let mut buf = [0; 64];
        let happens = {
            let mut master = master.try_clone().unwrap();
            move || master.write_all(b"typed\n").unwrap()
        };
        let answering = slave.try_clone().unwrap();
        let n = waits_for(slave, happens, |mut slave| slave.read(&mut buf));
        assert_eq!(&buf[..n], b"typed\n");
        let mut echo = [0; 7];
        master.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"typed\r\n");
        let happens = || (&answering).write_all(b"ok").unwrap();
        let n = waits_for(master, happens, |mut master| master.read(&mut buf));
        assert_eq!(&buf[..n], b"ok");
    });
}

/// A descriptor that became ready, was waited for and was not read stays ready. One that was
/// drained outside is waited for again.
#[test]
fn readiness_is_a_level() {
    everywhere("levels", || {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = Pollable::new(reader).unwrap();
        for round in 0..50 {
            std::thread::scope(|scope| {
                scope.spawn(|| writer.write_all(b"ab").unwrap());
                reader.wait_readable().unwrap();
            });
            reader.wait_readable().unwrap();
            assert_eq!(reader.get_ref().read(&mut [0]).unwrap(), 1);
            reader.wait_readable().unwrap();
            assert_eq!((&reader).read(&mut [0; 8]).unwrap(), 1, "round {round}");
        }
        drop(writer);
        for _ in 0..3 {
            reader.wait_readable().unwrap(); // the end
            assert_eq!((&reader).read(&mut [0]).unwrap(), 0);
        }
    });
}

/// A writer waits for room, and a closed other side is no reason to wait.
#[test]
fn room_is_waited_for() {
    everywhere("room", || {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let writer = Pollable::new(writer).unwrap();
        let mut filled = 0;
        while let Ok(n) = writer.get_ref().write(&[7; 4096]) {
            filled += n;
        }
        writer.set_write_deadline(after(ms(5))).unwrap();
        assert_eq!(kind(writer.wait_writable()), ErrorKind::TimedOut);
        writer.set_write_deadline(None).unwrap();
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all.len()
        });
        writer.wait_writable().unwrap();
        let more = vec![8; 1 << 20];
        (&writer).write_all(&more).unwrap();
        drop(writer);
        assert_eq!(reading.join().unwrap(), filled + more.len());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let writer = Pollable::new(writer).unwrap();
        writer.wait_writable().unwrap();
        assert_eq!(kind((&writer).write(b"x")), ErrorKind::BrokenPipe);
    });
}

/// Datagrams keep their ends: operations are the user's.
#[test]
fn operations_are_those_of_the_value() {
    everywhere("datagrams", || {
        let (here, there) = UnixDatagram::pair().unwrap();
        let (here, there) = (Pollable::new(here).unwrap(), Pollable::new(there).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..2000u32 {
                    let sent = here.write_with(|socket| socket.send(&n.to_ne_bytes()));
                    assert_eq!(sent.unwrap(), 4);
                }
            });
            let mut buf = [0; 16];
            for n in 0..2000u32 {
                let got = there.read_with(|socket| socket.recv(&mut buf)).unwrap();
                assert_eq!(buf[..got], n.to_ne_bytes());
            }
        });
        let refused = there.read_with(|_| -> std::io::Result<()> { Err(ErrorKind::Other.into()) });
        assert_eq!(kind(refused), ErrorKind::Other);
    });
}

/// What is always ready is refused with a reason.
#[test]
fn files_are_refused() {
    let folder = env!("CARGO_MANIFEST_DIR");
    for path in [
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        folder,
        "/dev/null",
    ] {
        let error = Pollable::new(File::open(path).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{path}");
        assert!(error.to_string().contains("always ready"), "{error}");
    }
}

/// The flag is set back where it was not set, by `into_inner` and by the drop.
#[test]
fn the_flag_is_set_back() {
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(!is_nonblocking(&reader));
    drop(Pollable::new(&reader).unwrap());
    assert!(!is_nonblocking(&reader));
    let pollable = Pollable::new(&reader).unwrap();
    assert!(is_nonblocking(&reader));
    pollable.into_inner();
    assert!(!is_nonblocking(&reader));
    drop(Pollable::with_flags_unchanged(&reader).unwrap());
    let (here, _there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    let here = Pollable::new(here).unwrap().into_inner();
    assert!(is_nonblocking(&here), "it was set before");
}

/// Two for one descriptor, in both orders of their first waits: an event wakes both.
#[test]
fn two_for_one_descriptor() {
    everywhere("two", || {
        for _ in 0..20 {
            let (reader, writer) = std::io::pipe().unwrap();
            let one = Pollable::new(&reader).unwrap();
            let two = Pollable::new(&reader).unwrap();
            // Both are registered, one after the other.
            for pollable in [&one, &two] {
                pollable.set_deadline(after(ms(1))).unwrap();
                assert_eq!(kind(pollable.wait_readable()), ErrorKind::TimedOut);
                pollable.set_deadline(None).unwrap();
            }
            std::thread::scope(|scope| {
                scope.spawn(|| two.wait_readable().unwrap());
                scope.spawn(|| {
                    std::thread::sleep(ms(1));
                    (&writer).write_all(b"x").unwrap();
                });
                one.wait_readable().unwrap();
            });
            assert_eq!((&two).read(&mut [0; 8]).unwrap(), 1);
            drop(two);
            std::thread::scope(|scope| {
                scope.spawn(|| (&writer).write_all(b"y").unwrap());
                one.wait_readable().unwrap();
            });
        }
    });
}

/// A socket of the library and a borrow of it, whichever waits first.
#[test]
fn a_borrow_of_a_socket() {
    everywhere("a borrow", || {
        for socket_first in [true, false] {
            let (mut here, mut there) = OwnStream::pair().unwrap();
            let borrowed = Arc::new(Pollable::new(here.as_fd().try_clone_to_owned().unwrap()));
            drop(borrowed); // its number is free again, and the file is open
            let touch = |stream: &mut OwnStream| {
                stream.set_read_deadline(after(ms(1))).unwrap();
                assert_eq!(kind(stream.read(&mut [0])), ErrorKind::TimedOut);
                stream.set_read_deadline(None).unwrap();
            };
            if socket_first {
                touch(&mut here);
            }
            let other = here.try_clone().unwrap();
            let pollable = Pollable::new(here.as_fd()).unwrap();
            pollable.set_deadline(after(ms(1))).unwrap();
            assert_eq!(kind(pollable.wait_readable()), ErrorKind::TimedOut);
            pollable.set_deadline(None).unwrap();
            let mut other = other;
            touch(&mut other);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(ms(1));
                    there.write_all(b"x").unwrap();
                });
                pollable.wait_readable().unwrap();
            });
            drop(pollable);
            assert_eq!(other.read(&mut [0; 8]).unwrap(), 1);
            std::thread::scope(|scope| {
                scope.spawn(|| there.write_all(b"y").unwrap());
                assert_eq!(here.read(&mut [0; 8]).unwrap(), 1);
            });
        }
    });
}

/// A new deadline reaches waits that have begun, and those that wait are seen in a dump.
#[test]
fn a_deadline_comes_while_others_wait() {
    common::run(2, "a deadline", || {
        let event = Arc::new(Pollable::new(eventfd()).unwrap());
        let waiters: Vec<_> = (0..10)
            .map(|_| {
                let event = Arc::clone(&event);
                thread::spawn(move || event.wait_readable())
            })
            .collect();
        common::until_waiting(10, "IO wait, read");
        event.set_read_deadline(Some(Instant::now())).unwrap();
        for waiter in waiters {
            assert_eq!(kind(waiter.join().unwrap()), ErrorKind::TimedOut);
        }
    });
}

/// Many goroutines wait for one event, and none of them consumes it.
#[test]
fn one_event_wakes_all_waiters() {
    common::run(2, "many waiters", || {
        let event = Arc::new(Pollable::new(eventfd()).unwrap());
        let waiters: Vec<_> = (0..50)
            .map(|_| {
                let event = Arc::clone(&event);
                thread::spawn(move || event.wait_readable())
            })
            .collect();
        common::until_waiting(50, "IO wait, read");
        (&*event).write_all(&1u64.to_ne_bytes()).unwrap();
        waiters.into_iter().for_each(|w| w.join().unwrap().unwrap());
    });
}

/// The runtime by which two of one descriptor are registered ends; another one goes on with both.
#[test]
fn a_runtime_ends_and_another_waits() {
    common::within(common::LONG, "runtimes", || {
        for _ in 0..10 {
            let event = Arc::new(eventfd());
            let one = Arc::new(Pollable::new(Arc::clone(&event)).unwrap());
            let two = Arc::new(Pollable::new(Arc::clone(&event)).unwrap());
            let first = common::runtime(1);
            for pollable in [&one, &two] {
                let pollable = Arc::clone(pollable);
                first.go(move || drop(pollable.wait_readable()));
            }
            common::until_waiting_in(&first.handle(), 2, &["IO wait, read"]);
            drop(first);
            let second = common::runtime(1);
            let waits = [one, two].map(|pollable| second.spawn(move || pollable.wait_readable()));
            common::until_waiting_in(&second.handle(), 2, &["IO wait, read"]);
            (&*event).write_all(&1u64.to_ne_bytes()).unwrap();
            for wait in waits {
                wait.join().unwrap().unwrap();
            }
            second.check().unwrap();
        }
    });
}

/// One that a past runtime had registered comes second in another runtime: the first keeps its
/// events.
#[test]
fn a_registration_is_not_taken_over() {
    common::within(common::LONG, "registrations", || {
        let event = Arc::new(eventfd());
        let [old, new] = [(); 2].map(|()| Arc::new(Pollable::new(Arc::clone(&event)).unwrap()));
        let first = common::runtime(1);
        first.go({
            let old = Arc::clone(&old);
            move || drop(old.wait_readable())
        });
        common::until_waiting_in(&first.handle(), 1, &["IO wait, read"]);
        drop(first);
        let second = common::runtime(1);
        let mut waits = Vec::new();
        for (n, pollable) in [new, old].into_iter().enumerate() {
            waits.push(second.spawn(move || pollable.wait_readable()));
            common::until_waiting_in(&second.handle(), n + 1, &["IO wait, read"]);
        }
        (&*event).write_all(&1u64.to_ne_bytes()).unwrap();
        for wait in waits {
            wait.join().unwrap().unwrap();
        }
    });
}
