//! A thread that sleeps in the kernel is not signalled: preemption does not interrupt the system
//! calls of user code.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use super::*;

/// What the goroutines of this test share.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    /// Calls that waited, and those of them that returned EINTR.
    calls: AtomicU64,
    cut_short: AtomicU64,
}

impl Seen {
    fn goes_on(&self) -> bool {
        !self.stop.load(SeqCst)
    }

    /// A call's answer, -1 with `errno` or not.
    fn call(&self, name: &str, answer: isize) {
        let error = std::io::Error::last_os_error().raw_os_error();
        self.calls.fetch_add(1, SeqCst);
        if answer == -1 && error == Some(libc::EINTR) {
            println!("EINTR from {name}");
            self.cut_short.fetch_add(1, SeqCst);
        }
    }
}

/// Computes for about a slice of wake-preemption, so that what follows is met by a signal if
/// anything is.
fn compute(rng: &mut common::Rng) {
    spin(rng.below(2_000_000));
}

fn nanosleeps(seen: &Seen, rng: &mut common::Rng) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 50_000 + rng.below(3_000_000) as libc::c_long,
    };
    // SAFETY: the time is ours.
    seen.call(
        "nanosleep",
        unsafe { libc::nanosleep(&time, std::ptr::null_mut()) } as isize,
    );
}

/// Nothing ever comes: the timeout ends it.
fn polls(seen: &Seen, _: &mut common::Rng) {
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut fd = libc::pollfd {
        fd: reader.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, which is open.
    seen.call("poll", unsafe { libc::poll(&mut fd, 1, 2) } as isize);
}

/// A socket whose timeout ends the wait; such a call is never restarted by the kernel.
fn receives(seen: &Seen, _: &mut common::Rng) {
    let (socket, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(2)))
        .unwrap();
    let fd = OwnedFd::from(socket);
    let mut byte = 0u8;
    // SAFETY: one byte of room, a descriptor that is open.
    seen.call("recv", unsafe {
        libc::recv(fd.as_raw_fd(), (&raw mut byte).cast(), 1, 0)
    });
}

/// A plain thread writes after a while.
fn reads(seen: &Seen, rng: &mut common::Rng) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let pause = Duration::from_micros(rng.below(3000));
    let writes = std::thread::spawn(move || {
        std::thread::sleep(pause);
        writer.write_all(b"x").unwrap();
    });
    let mut byte = 0u8;
    // SAFETY: one byte of room, a descriptor that is open.
    seen.call("read", unsafe {
        libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1)
    });
    writes.join().unwrap();
}

/// What std promises: sleeps are not short, reads and writes do not fail.
fn uses_std(seen: &Seen, rng: &mut common::Rng) {
    let time = Duration::from_micros(rng.below(3000));
    let began = Instant::now();
    std::thread::sleep(time);
    assert!(began.elapsed() >= time);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let writes = std::thread::spawn(move || {
        std::thread::sleep(time);
        writer.write_all(&[7; 100_000]).unwrap();
    });
    let (mut bytes, mut len) = ([0; 4096], 0);
    loop {
        match reader.read(&mut bytes) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
                seen.cut_short.fetch_add(1, SeqCst);
            }
        }
        seen.calls.fetch_add(1, SeqCst);
    }
    assert_eq!(len, 100_000);
    writes.join().unwrap();
}

/// All kinds at once for a while, under hogs and sleepers, so that all preempt each other.
fn wait_and_compute(seen: &Arc<Seen>) {
    let kinds = [nanosleeps, polls, receives, reads, uses_std];
    let waits = |at: usize| {
        let seen = Arc::clone(seen);
        thread::spawn(move || {
            let mut rng = common::Rng::new(at as u64);
            while seen.goes_on() {
                compute(&mut rng);
                kinds[at % kinds.len()](&seen, &mut rng);
            }
        })
    };
    let waiters: Vec<_> = (0..2 * kinds.len()).map(waits).collect();
    let ticks = |_| {
        let seen = Arc::clone(seen);
        thread::spawn(move || {
            while seen.goes_on() {
                thread::sleep(Duration::from_micros(300));
            }
        })
    };
    let sleepers: Vec<_> = (0..3).map(ticks).collect();
    let hogs = Hogs::new(3);
    thread::sleep(Duration::from_secs(4));
    seen.stop.store(true, SeqCst);
    waiters
        .into_iter()
        .chain(sleepers)
        .for_each(|h| h.join().unwrap());
    hogs.end();
}

/// From 2.41 on glibc hides the numbers of its calls.
fn can_put_calls_back() -> bool {
    // SAFETY: a text that lives for ever.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    let version = version.to_str().unwrap().split('.').map(|n| n.parse());
    version.collect::<Result<Vec<u32>, _>>().unwrap() < vec![2, 41]
}

#[test]
fn d8_a_thread_that_waits_is_not_signalled() {
    let _turn = beside();
    let seen = Arc::new(Seen::default());
    let runtime = runtime(2);
    within(LONG, "those who wait", || {
        checked(&runtime, || wait_and_compute(&seen));
    });
    let metrics = runtime.metrics();
    let (calls, cut_short) = (seen.calls.load(SeqCst), seen.cut_short.load(SeqCst));
    println!(
        "{calls} calls, {} signals, {cut_short} EINTR, {} put back",
        metrics.signals, metrics.restarted
    );
    assert!(
        calls > 20 && metrics.signals > 10,
        "{calls} calls, {metrics:?}"
    );
    let allowed = match can_put_calls_back() {
        true => 1 + metrics.signals / 100_000,
        false => metrics.signals / 10,
    };
    assert!(
        cut_short <= allowed && metrics.interrupted <= allowed,
        "{cut_short}: {metrics:?}"
    );
    // These compute between their calls, so that many are met at the edge of one; but that is the
    // exception.
    assert!(metrics.restarted <= 10 + metrics.signals / 4, "{metrics:?}");
}

/// The flag comes first: a goroutine that calls often yields there, and on a quiet machine is
/// hardly ever interrupted. A thread that has just lost its CPU looks like a hog. So on a busy
/// machine more goroutines must yield by the flag than by the signal, in one of three tries.
#[test]
fn d7_who_calls_is_asked_and_not_signalled() {
    let _turn = alone();
    let mut tries = Vec::new();
    for _ in 0..3 {
        let runtime = runtime(2);
        let work = within(LONG, "those who call", || {
            checked(&runtime, || {
                let hogs = Hogs::with(6, || (), |_| gosched::blocking(|| ()));
                thread::sleep(Duration::from_secs(1));
                hogs.all_begin();
                hogs.end()
            })
        });
        let metrics = runtime.metrics();
        assert!(work.iter().all(|work| *work > 0), "starved: {work:?}");
        assert!(metrics.preempts > 0, "{metrics:?}");
        println!(
            "{} signals, {} requests heeded",
            metrics.signals, metrics.preempts
        );
        if metrics.signals <= metrics.preempts {
            return;
        }
        tries.push((metrics.signals, metrics.preempts));
    }
    panic!("signals and requests heeded: {tries:?}");
}
