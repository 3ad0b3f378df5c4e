//! Go's rules for one channel. Waiters are served in order and directly, and a close wakes all.
//! Values come out before the end does. A destructor of a value may use the channel that the value
//! was in.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use gosched::chan::{
    Receiver, RecvError, RecvTimeoutError, SendError, SendTimeoutError, Sender, TryRecvError,
    TrySendError, bounded, select, unbounded,
};

use super::*;
use crate::common::{Alive, Planned, quiet_planned_panics};

/// Capacities at and around the corners; None: unbounded.
const CAPS: [Option<usize>; 6] = [Some(0), Some(1), Some(2), Some(3), Some(10), None];

fn channel<T>(cap: Option<usize>) -> (Sender<T>, Receiver<T>) {
    cap.map_or_else(unbounded, bounded)
}

/// How a goroutine receives, in turn: all of these wait in the same queue.
fn receive(r: &Receiver<usize>, way: usize) -> Option<usize> {
    match way % 4 {
        0 => r.recv().ok(),
        1 => r.recv_timeout(LONG).ok(),
        2 => r.iter().next(),
        _ => select! {
            recv(r) -> msg => msg.ok(),
            recv(gosched::chan::after(LONG)) -> _ => panic!("nothing came"),
        },
    }
}

/// How a goroutine sends, in turn.
fn transmit(s: &Sender<usize>, way: usize, n: usize) -> Result<(), usize> {
    match way % 3 {
        0 => s.send(n).map_err(|e| e.0),
        1 => s
            .send_timeout(n, LONG)
            .map_err(SendTimeoutError::into_inner),
        _ => select! {
            send(s, n) -> sent => sent.map_err(|e| e.0),
            default(LONG) => panic!("nobody came"),
        },
    }
}

/// The n-th goroutine that waits gets the n-th value.
#[test]
fn receivers_that_wait_are_served_in_order() {
    const N: usize = 12;
    for cap in CAPS {
        for procs in [1, 3] {
            run(procs, "receivers in order", move || {
                let (s, r) = channel(cap);
                let receivers: Vec<_> = (0..N)
                    .map(|n| {
                        let r = r.clone();
                        let one = thread::spawn(move || receive(&r, n));
                        until_waiting_in(&Handle::current(), n + 1, &CHAN_REASONS);
                        one
                    })
                    .collect();
                (0..N).for_each(|n| s.send(n).unwrap());
                for (n, one) in receivers.into_iter().enumerate() {
                    assert_eq!(one.join().unwrap(), Some(n), "capacity {cap:?}");
                }
            });
        }
    }
}

/// Values come out in the order in which their senders began to wait, after those in the buffer.
#[test]
fn senders_that_wait_are_served_in_order() {
    const N: usize = 12;
    for cap in 0..4 {
        for procs in [1, 3] {
            run(procs, "senders in order", move || {
                let (s, r) = bounded(cap);
                (0..cap).for_each(|n| s.send(n).unwrap());
                let senders: Vec<_> = (0..N)
                    .map(|n| {
                        let s = s.clone();
                        let one = thread::spawn(move || transmit(&s, n, cap + n));
                        until_waiting_in(&Handle::current(), n + 1, &CHAN_REASONS);
                        one
                    })
                    .collect();
                let got: Vec<_> = (0..cap + N).map(|way| receive(&r, way).unwrap()).collect();
                assert!(got.is_sorted() && got.len() == cap + N, "{got:?}");
                senders
                    .into_iter()
                    .for_each(|one| one.join().unwrap().unwrap());
            });
        }
    }
}

/// A waiter on its own channel, or one that has left, does not block the waiters behind it.
#[test]
fn who_has_left_the_queue_is_passed() {
    run(1, "leaving the queue", || {
        let (s, r) = bounded(0);
        let (leave, left) = bounded::<()>(0);
        let short = {
            let r = r.clone();
            thread::spawn(move || r.recv_timeout(ms(5)))
        };
        thread::yield_now(); // mostly it waits then
        let chooses = {
            let r = r.clone();
            thread::spawn(move || {
                select! {
                    recv(r) -> msg => msg.ok(),
                    recv(left) -> _ => None,
                }
            })
        };
        until_waiting(1, "select");
        let last = thread::spawn(move || r.recv());
        assert_eq!(short.join().unwrap(), Err(RecvTimeoutError::Timeout));
        drop(leave);
        assert_eq!(chooses.join().unwrap(), None);
        until_waiting(1, "chan receive");
        s.send(7).unwrap();
        assert_eq!(last.join().unwrap(), Ok(7));
    });
}

/// A hand-off to a waiter never touches the buffer: it has room for all of them afterwards.
#[test]
fn what_is_handed_over_leaves_the_room_free() {
    for procs in [1, 2] {
        run(procs, "handed over", || {
            let (s, r) = bounded(2);
            let receivers: Vec<_> = (0..4)
                .map(|_| {
                    thread::spawn({
                        let r = r.clone();
                        move || r.recv().unwrap()
                    })
                })
                .collect();
            until_waiting(4, "chan receive");
            for n in 0..6 {
                assert_eq!(s.try_send(n), Ok(()), "4 wait, 2 have room");
            }
            assert_eq!(s.try_send(6), Err(TrySendError::Full(6)));
            let mut got: Vec<_> = receivers
                .into_iter()
                .map(|one| one.join().unwrap())
                .collect();
            got.sort_unstable();
            assert_eq!(got, [0, 1, 2, 3]);
            assert_eq!(r.try_iter().collect::<Vec<_>>(), [4, 5]);
        });
    }
}

/// On a channel without capacity a try fails while no goroutine waits on the other side.
#[test]
fn trying_needs_somebody_who_waits() {
    run(1, "trying", || {
        let (s, r) = bounded(0);
        assert_eq!(s.try_send(1), Err(TrySendError::Full(1)));
        assert_eq!(r.try_recv(), Err(TryRecvError::Empty));
        let receiver = thread::spawn({
            let r = r.clone();
            move || r.recv()
        });
        until_waiting(1, "chan receive");
        assert_eq!(s.try_send(2), Ok(()));
        assert_eq!(s.try_send(3), Err(TrySendError::Full(3)));
        assert_eq!(receiver.join().unwrap(), Ok(2));
        let sender = thread::spawn({
            let s = s.clone();
            move || s.send(4)
        });
        until_waiting(1, "chan send");
        assert_eq!(r.try_recv(), Ok(4));
        assert_eq!(r.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(sender.join().unwrap(), Ok(()));
    });
}

/// A full buffer moves up by one when one is taken out, and the first sender that waits is in.
#[test]
fn a_receive_from_a_full_buffer_lets_the_first_sender_in() {
    run(2, "moving up", || {
        let (s, r) = bounded(3);
        (0..3).for_each(|n| s.send(n).unwrap());
        let senders: Vec<_> = (3..6)
            .map(|n| {
                let s = s.clone();
                let one = thread::spawn(move || s.send(n));
                until_waiting(n - 2, "chan send");
                one
            })
            .collect();
        for n in 0..3 {
            assert_eq!(r.recv(), Ok(n));
            assert_eq!(
                r.len(),
                3,
                "the next one is in by the time the receive returns"
            );
            assert!(r.is_full());
        }
        senders
            .into_iter()
            .for_each(|one| one.join().unwrap().unwrap());
        assert_eq!(r.try_iter().collect::<Vec<_>>(), [3, 4, 5]);
    });
}

/// How a channel ends.
fn end(way: usize, s: Sender<usize>, r: Receiver<usize>) -> Option<Receiver<usize>> {
    match way {
        0 => drop(s),
        1 => assert!(s.close() && !s.close() && !r.close()),
        2 => assert!(r.close() && !s.close()),
        _ => {
            drop(r);
            return None;
        }
    }
    Some(r)
}

#[test]
fn a_close_wakes_every_receiver() {
    for cap in CAPS {
        for way in 0..3 {
            run(2, "closed for receivers", move || {
                let (s, r) = channel(cap);
                let waits: Vec<_> = (0..40)
                    .map(|n| {
                        thread::spawn({
                            let r = r.clone();
                            move || receive(&r, n)
                        })
                    })
                    .collect();
                until_waiting_in(&Handle::current(), 40, &CHAN_REASONS);
                let r = end(way, s, r).unwrap();
                waits
                    .into_iter()
                    .for_each(|one| assert_eq!(one.join().unwrap(), None));
                assert_eq!(r.recv(), Err(RecvError));
                assert_eq!(r.try_recv(), Err(TryRecvError::Disconnected));
                assert_eq!(r.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
            });
        }
    }
}

/// Every sender gets its own value back; what is in the buffer comes out, then the end.
#[test]
fn a_close_wakes_every_sender_and_gives_its_value_back() {
    for cap in 0..4 {
        for way in 1..4 {
            run(2, "closed for senders", move || {
                let (s, r) = bounded(cap);
                (0..cap).for_each(|n| s.send(n).unwrap());
                let waits: Vec<_> = (0..40)
                    .map(|n| {
                        thread::spawn({
                            let s = s.clone();
                            move || transmit(&s, n, 100 + n)
                        })
                    })
                    .collect();
                until_waiting_in(&Handle::current(), 40, &CHAN_REASONS);
                let r = end(way, s.clone(), r);
                for (n, one) in waits.into_iter().enumerate() {
                    assert_eq!(one.join().unwrap(), Err(100 + n));
                }
                assert_eq!(s.send(9), Err(SendError(9)));
                assert_eq!(s.try_send(9), Err(TrySendError::Disconnected(9)));
                assert_eq!(
                    s.send_timeout(9, LONG),
                    Err(SendTimeoutError::Disconnected(9))
                );
                let left: Vec<_> = r.iter().flatten().collect();
                assert_eq!(left, (0..if way < 3 { cap } else { 0 }).collect::<Vec<_>>());
            });
        }
    }
}

/// A value whose destructor does something to the channel that it is in.
struct Meddles {
    s: Option<Sender<Meddles>>,
    r: Option<Receiver<Meddles>>,
    what: fn(&Sender<Meddles>),
    _alive: Alive,
}

impl Drop for Meddles {
    fn drop(&mut self) {
        if let Some(s) = &self.s {
            (self.what)(s);
        }
        if let Some(r) = &self.r {
            drop(r.try_recv());
            r.close();
        }
    }
}

struct Meddler(Arc<AtomicUsize>);

impl Meddler {
    fn value(&self, s: Option<&Sender<Meddles>>, what: fn(&Sender<Meddles>)) -> Meddles {
        Meddles {
            s: s.cloned(),
            r: None,
            what,
            _alive: Alive::new(&self.0),
        }
    }

    /// Every value is gone, and so is everything that they did.
    fn done(&self) {
        assert_eq!(self.0.load(SeqCst), 0, "values are left");
    }
}

/// What a destructor may do with a sender of its own channel.
const DEEDS: [fn(&Sender<Meddles>); 5] = [
    |_| {},
    |s| drop(s.clone()),
    |s| _ = s.close(),
    |s| _ = (s.len(), s.is_full(), s.capacity()),
    |s| {
        let plain = Meddles {
            s: None,
            r: None,
            what: |_| {},
            _alive: Alive::new(&Arc::default()),
        };
        assert!(s.try_send(plain).is_err(), "nobody can receive it");
    },
];

/// The last receiver goes and the values in the buffer go with it, each with its own sender, the
/// last one among them.
#[test]
fn a_destructor_uses_the_channel_that_is_being_dropped() {
    for cap in CAPS.into_iter().skip(1) {
        for what in DEEDS {
            run(2, "dropped with values", move || {
                let all = Meddler(Arc::default());
                let (s, r) = channel(cap);
                for _ in 0..cap.unwrap_or(100) {
                    s.send(all.value(Some(&s), what)).ok().unwrap();
                }
                drop(s); // the values hold the senders now
                drop(r);
                all.done();
            });
        }
    }
}

/// Senders that wait when the last receiver goes: their values come back and are dropped by them.
#[test]
fn a_destructor_uses_the_channel_that_refused_its_value() {
    for cap in 0..3 {
        for what in DEEDS {
            run(2, "refused", move || {
                let all = Meddler(Arc::default());
                let (s, r) = bounded(cap);
                let senders: Vec<_> = (0..cap + 5)
                    .map(|_| {
                        thread::spawn({
                            let (s, value) = (s.clone(), all.value(Some(&s), what));
                            move || drop(s.send(value))
                        })
                    })
                    .collect();
                until_waiting(5, "chan send");
                drop(s);
                drop(r);
                senders.into_iter().for_each(|one| one.join().unwrap());
                all.done();
            });
        }
    }
}

/// A destructor receives from the channel out of which its value came, and closes it.
#[test]
fn a_destructor_receives_from_its_own_channel() {
    for cap in CAPS.into_iter().skip(1) {
        run(2, "receiving destructors", move || {
            let all = Meddler(Arc::default());
            let (s, r) = channel(cap);
            for _ in 0..cap.unwrap_or(50) {
                s.send(all.value(None, |_| {})).ok().unwrap();
            }
            let mut first = r.recv().unwrap();
            first.r = Some(r.clone());
            drop(first);
            assert!(!s.close(), "the destructor has closed it");
            drop(r);
            all.done();
        });
    }
}

/// A destructor that panics while the channel is dropped is heard, and the others run nevertheless.
#[test]
fn a_destructor_that_panics_is_heard_and_the_others_run() {
    struct Panics(usize, Arc<AtomicUsize>);
    impl Drop for Panics {
        fn drop(&mut self) {
            self.1.fetch_add(1, SeqCst);
            if self.0 == 3 {
                std::panic::panic_any(Planned);
            }
        }
    }
    quiet_planned_panics();
    for cap in [Some(10), None] {
        let dropped = Arc::new(AtomicUsize::new(0));
        let joined = run(1, "a destructor panics", || {
            let (s, r) = channel(cap);
            (0..10).for_each(|n| s.send(Panics(n, Arc::clone(&dropped))).ok().unwrap());
            let joined = thread::spawn(move || drop(r)).join();
            assert!(s.send(Panics(0, Arc::default())).is_err());
            joined
        });
        assert!(joined.unwrap_err().is::<Planned>());
        assert_eq!(dropped.load(SeqCst), 10, "{cap:?}");
    }
}

/// A channel may carry itself: each link is the end of the previous one.
#[test]
fn channels_travel_through_channels() {
    struct Link(Receiver<Link>, usize);
    run(2, "a chain of channels", || {
        let (s, mut r) = bounded(0);
        gosched::go(move || {
            let mut s = s;
            for n in 0..1000 {
                let (next, end) = bounded(0);
                s.send(Link(end, n)).ok().unwrap();
                s = next;
            }
        });
        let mut sum = 0;
        while let Ok(Link(next, n)) = r.recv() {
            sum += n;
            r = next;
        }
        assert_eq!(sum, 499_500);
    });
}

/// A pipeline of as many goroutines as there are primes: each reads from the previous one.
#[test]
fn a_sieve_of_goroutines() {
    for cap in [0, 1, 7] {
        for procs in [1, 2, 4] {
            let primes = run(procs, "a sieve", move || {
                let (s, mut r) = bounded(cap);
                gosched::go(move || _ = (2..).try_for_each(|n: usize| s.send(n)));
                let mut primes = Vec::new();
                for _ in 0..100 {
                    let prime = r.recv().unwrap();
                    primes.push(prime);
                    let (next, filtered) = bounded(cap);
                    let from = std::mem::replace(&mut r, filtered);
                    gosched::go(move || {
                        let others = from.iter().filter(|n| n % prime != 0);
                        _ = { others }.try_for_each(|n| next.send(n));
                    });
                }
                primes
            });
            assert_eq!((primes.len(), primes[99]), (100, 541));
        }
    }
}

/// A channel as a lock: what it guards is never in two hands.
#[test]
fn a_channel_as_a_semaphore() {
    for cap in [1, 3] {
        run(3, "a semaphore", move || {
            let (s, r) = bounded(cap);
            let inside = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..20 {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            s.send(()).unwrap();
                            assert!(inside.fetch_add(1, SeqCst) < cap);
                            gosched::yield_now();
                            inside.fetch_sub(1, SeqCst);
                            r.recv().unwrap();
                        }
                    });
                }
            });
        });
    }
}
