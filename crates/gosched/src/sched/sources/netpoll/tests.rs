mod closed;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::sched::sources::netpoll::*;
use crate::tests::eventually;
use crate::{Runtime, thread};

const LONG: Duration = Duration::from_secs(60);

/// A socket that uses this poller, made like the public ones.
struct Socket {
    stream: UnixStream,
    desc: Desc,
}

impl Socket {
    fn new(stream: UnixStream) -> Socket {
        stream.set_nonblocking(true).unwrap();
        let desc = Desc::new();
        desc.set_plain(); // no descriptors are passed through it
        Socket { stream, desc }
    }

    fn pair() -> (Socket, Socket) {
        let (a, b) = UnixStream::pair().unwrap();
        (Socket::new(a), Socket::new(b))
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let fd = self.stream.as_fd();
        self.desc
            .read_some(fd, buffer.len(), || (&self.stream).read(buffer))
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let fd = self.stream.as_fd();
        self.desc.write(fd, || (&self.stream).write(bytes))
    }

    fn read_byte(&self) -> io::Result<u8> {
        let mut byte = [0];
        match self.read(&mut byte)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(byte[0]),
        }
    }
}

fn on_goroutines(procs: usize, f: impl FnOnce() + Send) {
    let runtime = Runtime::builder().procs(procs).build().unwrap();
    runtime.run(f);
    runtime.check().unwrap();
    assert_eq!(runtime.metrics().rescues, 0, "WK: a wake-up was lost");
}

fn ping_pong(rounds: u32) {
    let (a, b) = Socket::pair();
    let echo = move || {
        let mut buffer = [0; 64];
        loop {
            match b.read(&mut buffer).unwrap() {
                0 => return,
                n => assert_eq!(b.write(&buffer[..n]).unwrap(), n),
            }
        }
    };
    let join: Box<dyn FnOnce()> = match crate::sched::model::current::current_g() {
        Some(_) => {
            let one = thread::spawn(echo);
            Box::new(|| one.join().unwrap())
        }
        None => {
            let one = std::thread::spawn(echo);
            Box::new(|| one.join().unwrap())
        }
    };
    for n in 0..rounds {
        let sent = n.to_ne_bytes();
        assert_eq!(a.write(&sent).unwrap(), 4);
        let mut got = [0; 64];
        assert_eq!(a.read(&mut got).unwrap(), 4);
        assert_eq!(got[..4], sent);
    }
    drop(a);
    join();
}

#[test]
fn who_would_block_waits_and_is_woken() {
    for procs in [1, 2, 4] {
        on_goroutines(procs, || ping_pong(2000));
    }
    ping_pong(500); // plain threads
}

#[test]
fn many_at_a_time() {
    on_goroutines(2, || {
        let all: Vec<_> = (0..200).map(|_| thread::spawn(|| ping_pong(20))).collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
}

/// The end of the other side is an event of its own, however short the reads before it.
#[test]
fn the_end_is_seen_after_a_short_read() {
    on_goroutines(2, || {
        for turn in 0..300 {
            let (a, b) = Socket::pair();
            let reader = thread::spawn(move || {
                let mut buffer = [0; 64];
                let mut all = 0;
                loop {
                    match a.read(&mut buffer).unwrap() {
                        0 => return all,
                        n => all += n,
                    }
                }
            });
            if turn % 2 == 0 {
                thread::yield_now();
            }
            b.write(b"1234").unwrap();
            if turn % 3 == 0 {
                thread::yield_now();
            }
            b.write(b"5678").unwrap();
            drop(b);
            assert_eq!(reader.join().unwrap(), 8);
        }
    });
}

/// An event is reported once; it may satisfy several waiters.
#[test]
fn who_is_done_wakes_the_next() {
    on_goroutines(4, || {
        let (a, b) = Socket::pair();
        let a = std::sync::Arc::new(a);
        let readers: Vec<_> = (0..50)
            .map(|_| {
                let a = std::sync::Arc::clone(&a);
                thread::spawn(move || a.read_byte().unwrap())
            })
            .collect();
        thread::sleep(Duration::from_millis(20)); // most of them wait by now; it matters little
        assert_eq!(b.write(&[7; 50]).unwrap(), 50);
        assert!(readers.into_iter().all(|r| r.join().unwrap() == 7));
    });
}

#[test]
fn deadlines_and_timeouts() {
    on_goroutines(2, || {
        let (a, b) = Socket::pair();
        b.write(b"x").unwrap();
        let past = Instant::now();
        a.desc.set_deadline(Side::Read, Some(past));
        assert_eq!(a.read_byte().unwrap_err().kind(), ErrorKind::TimedOut);
        a.desc.set_deadline(Side::Read, None);
        assert_eq!(a.read_byte().unwrap(), b'x');
        let soon = Instant::now() + Duration::from_millis(5);
        a.desc.set_deadline(Side::Read, Some(soon));
        assert_eq!(a.read_byte().unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(Instant::now() >= soon);
        a.desc.set_deadline(Side::Read, None);
        a.desc
            .set_timeout(Side::Read, Some(Duration::from_millis(5)))
            .unwrap();
        assert_eq!(a.read_byte().unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(
            a.desc
                .set_timeout(Side::Read, Some(Duration::ZERO))
                .is_err()
        );
        a.desc.set_timeout(Side::Read, None).unwrap();
        a.desc.set_nonblocking(true);
        assert_eq!(a.read_byte().unwrap_err().kind(), ErrorKind::WouldBlock);
        a.desc.set_nonblocking(false);
        b.write(b"y").unwrap();
        assert_eq!(a.read_byte().unwrap(), b'y');
    });
}

#[test]
fn a_deadline_may_change_during_a_wait() {
    on_goroutines(2, || {
        let (a, b) = Socket::pair();
        let a = std::sync::Arc::new(a);
        a.desc.set_deadline(Side::Read, Some(Instant::now() + LONG));
        let waiting = std::sync::Arc::clone(&a);
        let reader = thread::spawn(move || waiting.read_byte());
        a.desc
            .set_deadline(Side::Read, Some(Instant::now() + LONG * 2));
        thread::yield_now();
        a.desc.set_deadline(Side::Read, Some(Instant::now()));
        let error = reader.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(b);
    });
}

/// Sockets lose their home with the runtime; a thread that waits on one finds another.
#[test]
fn a_runtime_ends_while_a_stranger_waits() {
    let (a, b) = Socket::pair();
    let (a, b) = (std::sync::Arc::new(a), std::sync::Arc::new(b));
    let runtime = Runtime::builder().procs(1).build().unwrap();
    let (mine, other) = (std::sync::Arc::clone(&a), std::sync::Arc::clone(&b));
    runtime.run(move || {
        let writer = thread::spawn(move || other.write(b"1").unwrap());
        assert_eq!(mine.read_byte().unwrap(), b'1'); // the runtime is its home now
        writer.join().unwrap();
    });
    let waiting = std::sync::Arc::clone(&a);
    let thread =
        std::thread::spawn(move || (waiting.read_byte().unwrap(), waiting.read_byte().unwrap()));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(b.write(b"2").unwrap(), 1);
    std::thread::sleep(Duration::from_millis(5));
    drop(runtime);
    assert_eq!(b.write(b"3").unwrap(), 1);
    assert_eq!(thread.join().unwrap(), (b'2', b'3'));
}

/// A goroutine that drops its own runtime runs until it waits. It may use sockets, but not wait on
/// one.
#[test]
fn who_has_no_runtime_any_more_does_not_spin() {
    let runtime = Runtime::builder().procs(1).build().unwrap();
    let (give, own) = std::sync::mpsc::channel::<Runtime>();
    let (say, said) = std::sync::mpsc::channel();
    runtime.go(move || {
        let (a, b) = Socket::pair();
        let c = thread::spawn(move || b.write(b"1").map(|_| b));
        assert_eq!(a.read_byte().unwrap(), b'1');
        let b = c.join().unwrap().unwrap();
        drop(own.recv().unwrap());
        assert_eq!(b.write(b"2").unwrap(), 1);
        assert_eq!(a.read_byte().unwrap(), b'2');
        say.send(sys::gettid()).unwrap();
        _ = a.read_byte();
    });
    give.send(runtime).unwrap();
    let tid = said.recv_timeout(LONG).unwrap();
    // Its thread has nothing left to do, and ends.
    let gone = || std::fs::metadata(format!("/proc/self/task/{tid}")).is_err();
    let until = Instant::now() + LONG;
    while !gone() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(gone());
}

/// Slots are reused: an event of the last socket does not count for the next.
#[test]
fn a_stale_event_wakes_no_waiter() {
    let desc = Desc::new();
    let now = desc.0.data();
    let before = now.wrapping_sub(1 << 32);
    let mut wake = WakeList::new();
    slot::dispatch(before, sys::event::READ, &mut wake);
    assert_eq!(desc.0.flows[0].changes.seq(), 0, "another's");
    slot::dispatch(now, sys::event::READ, &mut wake);
    assert_ne!(desc.0.flows[0].changes.seq(), 0, "its own");
    let slot = desc.0;
    drop(desc);
    assert_ne!(slot.data(), now, "a new one is told apart");
    wake.wake();
}

/// The kernel may report an event that is out of date: the woken waiter tries, and waits again.
#[test]
fn an_event_for_nothing_is_harmless() {
    on_goroutines(2, || {
        let (a, b) = Socket::pair();
        let a = std::sync::Arc::new(a);
        let waiting = std::sync::Arc::clone(&a);
        let reader = thread::spawn(move || waiting.read_byte().unwrap());
        for what in [
            sys::event::READ,
            sys::event::WRITE,
            sys::event::END,
            u32::MAX,
        ] {
            for _ in 0..50 {
                let mut wake = WakeList::new();
                let rt = enter();
                slot::dispatch(a.desc.0.data(), what, &mut wake);
                wake.wake_in(&rt);
                drop(rt);
                thread::yield_now();
            }
        }
        b.write(b"q").unwrap();
        assert_eq!(reader.join().unwrap(), b'q');
    });
}

/// Loops that never call the runtime hold all Ps: goroutines that wait for the network are still
/// served (F5).
#[test]
fn f5_loops_do_not_keep_the_network_waiting() {
    on_goroutines(2, || {
        let stop = std::sync::Arc::new(AtomicUsize::new(0));
        let loops: Vec<_> = (0..4)
            .map(|_| {
                let stop = std::sync::Arc::clone(&stop);
                thread::spawn(move || while stop.load(Relaxed) == 0 {})
            })
            .collect();
        ping_pong(20);
        stop.store(1, Relaxed);
        loops.into_iter().for_each(|one| one.join().unwrap());
    });
}

/// A driver that only the test polls, as the home of a socket.
fn with_home(socket: &Socket) -> &'static Driver {
    let driver = Driver::new().unwrap();
    let _queues = socket.desc.0.queues.lock();
    driver
        .adopt(socket.desc.0, socket.stream.as_raw_fd())
        .unwrap();
    driver
}

/// The home may change between the load and the lock: a waiter is counted by the driver that will
/// wake it.
#[test]
fn a_waiter_is_counted_by_the_home_that_it_finds_under_the_lock() {
    let (a, b) = Socket::pair();
    let old = with_home(&a);
    let new = Driver::new().unwrap();
    std::thread::scope(|s| {
        let queues = a.desc.0.queues.lock();
        let read = s.spawn(|| a.read_byte());
        // The reader has found the old home, and waits for the lock. If it is later than that, the
        // test checks nothing.
        std::thread::sleep(Duration::from_millis(50));
        a.desc.0.set_home(Some(new));
        drop(queues);
        assert!(eventually(|| old.has_waiters() || new.has_waiters()));
        let counted = (old.has_waiters(), new.has_waiters());
        b.write(&[7]).unwrap();
        a.desc.0.wake_next(Side::Read);
        assert_eq!(read.join().unwrap().unwrap(), 7);
        assert_eq!(counted, (false, true));
        assert!(!new.has_waiters());
    });
}

/// A runtime is dropped whose goroutine waits, or was woken and never ran. The socket's home counts
/// it no more, and the next waiter is woken.
#[test]
fn d2_an_abandoned_waiter_leaves_its_home_and_wakes_the_next() {
    for is_woken in [false, true] {
        let (a, b) = Socket::pair();
        let a = Arc::new(a);
        let home = with_home(&a);
        let waiters = || home.waiters();
        let dropped = Runtime::builder()
            .procs(1)
            .preemption(false)
            .build()
            .unwrap();
        let read = Arc::clone(&a);
        dropped.go(move || drop(read.read_byte()));
        assert!(eventually(|| waiters() == 1));
        assert!(eventually(|| dropped.metrics().waiting == 1));
        let is_over = Arc::new(AtomicUsize::new(0));
        let (began, over) = (Arc::clone(&is_over), Arc::clone(&is_over));
        dropped.go(move || {
            began.store(1, SeqCst);
            while began.load(SeqCst) == 1 {
                std::hint::spin_loop();
            }
        });
        assert!(eventually(|| is_over.load(SeqCst) == 1));
        std::thread::scope(|s| {
            let second = s.spawn(|| a.read_byte());
            assert!(eventually(|| waiters() == 2));
            if is_woken {
                b.write(&[7]).unwrap();
                home.poll(0).wake(); // the first waiter is Runnable, and never runs
            }
            drop(dropped);
            if !is_woken {
                assert_eq!(waiters(), 1);
                b.write(&[7]).unwrap();
                home.poll(0).wake();
            }
            assert_eq!(second.join().unwrap().unwrap(), 7);
            assert_eq!(waiters(), 0);
        });
        over.store(2, SeqCst);
    }
}
