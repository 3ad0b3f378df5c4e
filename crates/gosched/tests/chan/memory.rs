//! Nothing is left behind: not by selects, not by timeouts, not by values. Each runs in a process
//! of its own, where all allocations are counted.

use gosched::chan::{Select, bounded, select, unbounded};

use super::*;
use crate::common::{allocated_bytes, child, rss_kib};

/// Selects of one test; in a debug build fewer.
const MANY: usize = if cfg!(debug_assertions) {
    200_000
} else {
    1_000_000
};

/// Runs `f` once to warm up, then again. After that as much is allocated as before, and resident
/// memory grows at most by the scheduler's caches.
#[track_caller]
fn assert_flat(f: impl Fn(usize)) {
    f(1000);
    let before = (allocated_bytes(), rss_kib());
    f(MANY);
    let after = (allocated_bytes(), rss_kib());
    let (bytes, kib) = (after.0 - before.0, after.1.saturating_sub(before.1));
    assert!(bytes.abs() < 16 << 10, "{bytes} bytes are left");
    assert!(kib < 4 << 10, "{kib} KiB more");
}

/// Selects that find something at once, that do not, that wait in vain, and that are served while
/// they wait: all on the same channels, whose queues are empty afterwards.
#[test]
fn selects_leave_nothing_behind() {
    child("memory::selects_leave_nothing_behind", || {
        run(1, "many selects", || {
            let (zero, one, any) = (bounded(0), bounded(1), unbounded());
            assert_flat(|n| {
                for _ in 0..n / 4 {
                    select! {
                        recv(zero.1) -> _ => panic!("nobody sends"),
                        send(one.0, 1) -> sent => sent.unwrap(),
                        recv(any.1) -> _ => panic!("nothing is there"),
                    }
                    select! {
                        send(zero.0, 1) -> _ => panic!("nobody receives"),
                        recv(one.1) -> msg => assert_eq!(msg, Ok(1)),
                        recv(any.1) -> _ => panic!("nothing is there"),
                        default => panic!("there is one"),
                    }
                    select! {
                        recv(zero.1) -> _ => panic!("nobody sends"),
                        send(zero.0, 1) -> _ => panic!("nobody receives"),
                        recv(one.1) -> _ => panic!("nothing is there"),
                        recv(any.1) -> _ => panic!("nothing is there"),
                        default => {}
                    }
                    any.0.send(2).unwrap();
                    let mut sel = Select::new();
                    sel.recv(&zero.1);
                    sel.send(&zero.0);
                    sel.recv(&any.1);
                    let operation = sel.select();
                    assert_eq!(operation.recv(&any.1), Ok(2));
                }
                assert!(zero.0.try_send(1).is_err() && zero.1.try_recv().is_err());
            });
        });
    })
    .succeeded();
}

/// Two goroutines meet in selects over several channels, of which one brings something: the nodes
/// in the others come out again.
#[test]
fn selects_that_waited_leave_nothing_behind() {
    child("memory::selects_that_waited_leave_nothing_behind", || {
        run(2, "many selects that wait", || {
            let (quiet, deaf, busy, back) =
                (bounded::<()>(0), bounded::<()>(0), bounded(0), bounded(0));
            assert_flat(|n| {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        for k in 0..n / 2 {
                            select! {
                                recv(quiet.1) -> _ => panic!("nobody sends"),
                                recv(busy.1) -> msg => assert_eq!(msg, Ok(k)),
                                send(deaf.0, ()) -> _ => panic!("nobody receives"),
                            }
                            back.0.send(k).unwrap();
                        }
                    });
                    for k in 0..n / 2 {
                        busy.0.send(k).unwrap();
                        select! {
                            recv(quiet.1) -> _ => panic!("nobody sends"),
                            recv(back.1) -> msg => assert_eq!(msg, Ok(k)),
                        }
                    }
                });
                assert!(quiet.0.try_send(()).is_err(), "nobody is left in the queue");
                assert!(deaf.1.try_recv().is_err(), "nobody is left in the queue");
            });
        });
    })
    .succeeded();
}

/// Waits that time out, on goroutines and on a plain thread, leave no node in the queue: the next
/// waiter is alone in it.
#[test]
fn timeouts_leave_nothing_behind() {
    child("memory::timeouts_leave_nothing_behind", || {
        run(2, "many timeouts", || {
            let (zero, one) = (bounded(0), bounded(1));
            one.0.send(0).unwrap();
            let time_out = |n: usize, who: usize| {
                for k in 0..n / 20 {
                    let soon = Duration::from_nanos((k * 37 % 1000) as u64);
                    match (k + who) % 3 {
                        0 => assert!(zero.1.recv_timeout(soon).is_err()),
                        1 => assert!(one.0.send_timeout(1, soon).is_err()),
                        _ => select! {
                            recv(zero.1) -> _ => panic!("nobody sends"),
                            send(one.0, 1) -> _ => panic!("there is no room"),
                            default(soon) => {}
                        },
                    }
                }
            };
            assert_flat(|n| {
                thread::scope(|scope| {
                    (0..8).for_each(|who| _ = scope.spawn(move || time_out(n, who)));
                });
                std::thread::scope(|scope| _ = scope.spawn(|| time_out(n / 10, 1)));
                assert!(zero.0.try_send(1).is_err(), "nobody is left in the queue");
                assert_eq!(one.1.recv(), Ok(0));
                assert!(one.1.try_recv().is_err(), "nobody is left in the queue");
                one.0.send(0).unwrap();
            });
        });
    })
    .succeeded();
}

/// An operation after 100,000 timeouts on its channel takes no longer than before them.
#[test]
fn an_operation_after_many_timeouts_is_as_fast_as_before() {
    child(
        "memory::an_operation_after_many_timeouts_is_as_fast_as_before",
        || {
            run(1, "after many timeouts", || {
                let (s, r) = bounded(0);
                let meet = || {
                    let times = (0..200).map(|_| {
                        let r = r.clone();
                        let receiver = thread::spawn(move || r.recv().unwrap());
                        gosched::yield_now();
                        let began = Instant::now();
                        s.send(1).unwrap();
                        let took = began.elapsed();
                        receiver.join().unwrap();
                        took
                    });
                    times.min().unwrap()
                };
                let before = meet();
                for _ in 0..100_000 {
                    assert!(r.recv_timeout(Duration::ZERO).is_err());
                }
                let after = meet();
                assert!(
                    after < before * 20 + Duration::from_micros(20),
                    "{before:?}, then {after:?}"
                );
            });
        },
    )
    .succeeded();
}

/// Blocks of an unbounded channel are freed when they are empty, whichever receiver emptied them.
#[test]
fn unbounded_channels_give_memory_back() {
    child("memory::unbounded_channels_give_memory_back", || {
        run(2, "many values", || {
            let (s, r) = unbounded();
            assert_flat(|n| {
                for _ in 0..4 {
                    (0..n / 8).for_each(|k| s.send([k; 4]).unwrap());
                    assert_eq!(r.try_iter().count(), n / 8);
                }
                // One by one, to a waiting receiver.
                thread::scope(|scope| {
                    let r = &r;
                    scope.spawn(move || assert_eq!(r.iter().take(n / 8).count(), n / 8));
                    for k in 0..n / 8 {
                        s.send([k; 4]).unwrap();
                        if k % 16 == 0 {
                            gosched::yield_now();
                        }
                    }
                });
            });
        });
    })
    .succeeded();
}

/// Channels that are made, used and dropped.
#[test]
fn channels_come_and_go() {
    child("memory::channels_come_and_go", || {
        run(2, "many channels", || {
            assert_flat(|n| {
                for k in 0..n / 20 {
                    let (s, r) = match k % 4 {
                        0 => bounded(0),
                        1 => bounded(1),
                        2 => bounded(100),
                        _ => unbounded(),
                    };
                    let other = (s.clone(), r.clone());
                    if k % 4 != 0 {
                        s.send(Box::new(k)).unwrap();
                    } else {
                        gosched::go(move || _ = other.0.send(Box::new(k)));
                        assert_eq!(r.recv().as_deref(), Ok(&k));
                    }
                    if k % 3 == 0 {
                        drop((r, s));
                    } else {
                        drop(s);
                        drop(r.try_recv());
                    }
                }
            });
        });
    })
    .succeeded();
}
