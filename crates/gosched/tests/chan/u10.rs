//! What is seen after a channel operation (U10): plain memory, written by one side and read by the
//! other with nothing but the channel between them.
//!
//! ```text
//!  a send                              before the receive of its value returns
//!  a receive without capacity          before the send of its value returns
//!  the k-th receive, capacity C        before the (k + C)-th send returns
//!  a close                             before a receive that finds the end returns
//! ```

use std::cell::UnsafeCell;

use gosched::chan::{Receiver, Select, Sender, bounded, select, unbounded};

use super::*;

/// Some words of plain memory that several hands use in turn.
struct Plain(UnsafeCell<[u64; 8]>);

// SAFETY: U10 is what is tested: the channel keeps the hands apart.
unsafe impl Sync for Plain {}

impl Plain {
    fn new() -> Plain {
        Plain(UnsafeCell::new([0; 8]))
    }

    /// Writes all words, from the last to the first.
    fn write(&self, value: u64) {
        for at in (0..8).rev() {
            // SAFETY: the test hands the memory to one user at a time, through the channel.
            // Volatile, so that the write happens here and not earlier or later.
            unsafe { (&raw mut (*self.0.get())[at]).write_volatile(value) };
        }
    }

    /// The value, which all words have.
    #[track_caller]
    fn read(&self) -> u64 {
        // SAFETY: the test hands the memory to one user at a time, through the channel.
        let words = unsafe { self.0.get().read() };
        assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
        words[0]
    }
}

const CAPS: [Option<usize>; 6] = [Some(0), Some(1), Some(2), Some(7), Some(100), None];
const N: u64 = 3000;

fn send(s: &Sender<u64>, way: u64, n: u64) {
    match way % 4 {
        0 => s.send(n).unwrap(),
        1 => s.send_timeout(n, LONG).unwrap(),
        2 => {
            select! { send(s, n) -> sent => sent.unwrap(), recv(gosched::chan::never::<()>()) -> _ => {} }
        }
        _ => {
            while s.try_send(n).is_err() {
                thread::yield_now();
            }
        }
    }
}

fn recv(r: &Receiver<u64>, way: u64) -> u64 {
    match way % 4 {
        0 => r.recv().unwrap(),
        1 => r.recv_timeout(LONG).unwrap(),
        2 => {
            let mut sel = Select::new();
            sel.recv(r);
            sel.select().recv(r).unwrap()
        }
        _ => loop {
            match r.try_recv() {
                Ok(n) => return n,
                Err(_) => thread::yield_now(),
            }
        },
    }
}

/// Two ways that cannot meet: both only try, on a channel where one side must wait.
fn never_meet(cap: Option<usize>, sends: u64, receives: u64) -> bool {
    cap == Some(0) && sends % 4 == 3 && receives % 4 == 3
}

/// Runs both as goroutines of one runtime, as plain threads, and one as each.
fn in_all_places(a: impl Fn() + Sync, b: impl Fn() + Sync) {
    for place in 0..4 {
        within(LONG, "both sides of a channel", || {
            let (one, other) = (runtime(2), runtime(1));
            std::thread::scope(|scope| match place {
                0 => one.run(|| {
                    thread::scope(|scope| {
                        scope.spawn(&a);
                        scope.spawn(&b);
                    });
                }),
                1 => {
                    scope.spawn(&a);
                    scope.spawn(&b);
                }
                2 => {
                    scope.spawn(|| one.run(&a));
                    scope.spawn(&b);
                }
                _ => {
                    scope.spawn(|| one.run(&a));
                    scope.spawn(|| other.run(&b));
                }
            });
        });
    }
}

#[test]
fn u10_a_send_comes_before_its_receive() {
    for cap in CAPS {
        for way in 0..4 {
            let other_way = way / 2 + 1;
            let (s, r) = cap.map_or_else(unbounded, bounded);
            let slots: Vec<_> = (0..N).map(|_| Plain::new()).collect();
            in_all_places(
                || {
                    for n in 0..N {
                        slots[n as usize].write(n + 1);
                        send(&s, way, n);
                    }
                },
                || {
                    for n in 0..N {
                        let got = recv(&r, other_way);
                        assert_eq!((got, slots[n as usize].read()), (n, n + 1));
                        slots[n as usize].write(0);
                    }
                },
            );
        }
    }
}

/// A channel of capacity C as a ring of C buffers, or of one without capacity: the sender uses a
/// buffer again once the send that comes C later has returned.
#[test]
fn u10_a_receive_comes_before_the_send_that_it_makes_room_for() {
    for cap in [0, 1, 2, 7] {
        for way in 0..4 {
            let other_way = 3 - way;
            if never_meet(Some(cap), way, other_way) {
                continue;
            }
            let (s, r) = bounded(cap);
            let buffer = Plain::new();
            // The k-th message is followed by C others; when the last of them is sent, the k-th has
            // been received.
            in_all_places(
                || {
                    for n in 0..N / 4 {
                        send(&s, way, 2 * n);
                        (0..cap).for_each(|_| send(&s, way, 2 * n + 1));
                        assert_eq!(buffer.read(), n + 1);
                        buffer.write(0);
                        (0..=cap).for_each(|_| send(&s, way, 2 * n + 1));
                    }
                },
                || {
                    for n in 0..N / 4 {
                        // Before the receive, not after it.
                        assert_eq!(buffer.read(), 0);
                        buffer.write(n + 1);
                        assert_eq!(recv(&r, other_way), 2 * n);
                        (0..2 * cap + 1).for_each(|_| _ = recv(&r, other_way));
                    }
                },
            );
        }
    }
}

#[test]
fn u10_a_close_comes_before_the_receive_that_finds_the_end() {
    for cap in CAPS {
        for way in 0..3 {
            for _ in 0..50 {
                let (s, r) = cap.map_or_else(unbounded::<u64>, bounded);
                let (s, plain) = (std::sync::Mutex::new(Some(s)), Plain::new());
                in_two_places(
                    way,
                    || {
                        plain.write(7);
                        let s = s.lock().unwrap().take().unwrap();
                        if way == 0 {
                            drop(s);
                        } else {
                            s.close();
                        }
                    },
                    || {
                        match way {
                            0 => assert!(r.recv().is_err()),
                            1 => while r.try_recv() == Err(gosched::chan::TryRecvError::Empty) {},
                            _ => {
                                select! { recv(r) -> end => assert!(end.is_err()), default(LONG) => {} }
                            }
                        }
                        assert_eq!(plain.read(), 7);
                    },
                );
            }
        }
    }
}

/// On two plain threads, or a goroutine and a plain thread.
fn in_two_places(way: u64, a: impl Fn() + Sync, b: impl Fn() + Sync + Send) {
    std::thread::scope(|scope| {
        scope.spawn(&a);
        if way == 1 { b() } else { gosched::run(&b) }
    });
}

/// A channel as a lock around plain memory: no increment is lost, whichever goroutine takes it.
#[test]
fn u10_a_channel_as_a_lock() {
    for cap in [0, 1] {
        let (s, r) = bounded(1);
        let (hand, taken) = bounded(cap);
        let count = Plain::new();
        let work = |n: u64| {
            for turn in 0..n {
                send(&s, turn, 0);
                count.write(count.read() + 1);
                recv(&r, turn / 2);
            }
        };
        within(LONG, "a channel as a lock", || {
            let (one, other) = (runtime(2), runtime(1));
            let goroutines = || {
                thread::scope(|scope| (0..8).for_each(|_| _ = scope.spawn(|| work(200))));
                hand.send(()).unwrap();
            };
            std::thread::scope(|scope| {
                scope.spawn(|| one.run(goroutines));
                scope.spawn(|| other.run(goroutines));
                scope.spawn(|| work(200));
                taken.iter().take(2).count();
            });
        });
        assert_eq!(count.read(), 17 * 200);
    }
}
