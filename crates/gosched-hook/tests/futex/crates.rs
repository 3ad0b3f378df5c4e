//! Crates that know nothing of goroutines.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use event_listener::{Event, Listener};

use crate::Kind;
use crate::common::{LONG, ms, within};

const ROUNDS: usize = 1_000;

/// Runs `body` with each pair of kinds, on a runtime.
fn pairs(what: &str, body: impl Fn(Kind, Kind) + Send + 'static) {
    within(LONG, what, || {
        gosched::run(move || Kind::PAIRS.iter().for_each(|pair| body(pair.0, pair.1)));
    });
}

#[test]
fn parking_lot_locks() {
    pairs("parking_lot", |one, other| {
        let turn = Arc::new((parking_lot::Mutex::new(0usize), parking_lot::Condvar::new()));
        let shared = Arc::new(parking_lot::RwLock::new(0usize));
        let play = |kind: Kind, mine: usize| {
            let (turn, shared) = (Arc::clone(&turn), Arc::clone(&shared));
            kind.start(move || {
                for _ in 0..ROUNDS {
                    let mut at = turn.0.lock();
                    turn.1.wait_while(&mut at, |at| *at % 2 != mine);
                    *at += 1;
                    turn.1.notify_all();
                    drop(at);
                    *shared.write() += 1;
                    assert!(*shared.read() > 0);
                }
                let mut at = turn.0.lock();
                assert!(turn.1.wait_for(&mut at, ms(1)).timed_out() || *at <= 2 * ROUNDS);
            })
        };
        [play(one, 0), play(other, 1)]
            .into_iter()
            .for_each(|party| party.join());
        assert_eq!((*turn.0.lock(), *shared.read()), (2 * ROUNDS, 2 * ROUNDS));
    });
}

#[test]
fn crossbeam_channels_and_select() {
    pairs("crossbeam-channel", |one, other| {
        for bound in [0, 1, 16] {
            let (s, r) = crossbeam_channel::bounded(bound);
            let (quit, end) = crossbeam_channel::unbounded::<()>();
            let sender = one.start(move || {
                (0..ROUNDS).for_each(|n| s.send(n).unwrap());
                drop(quit);
            });
            let receiver = other.start(move || {
                let mut sum = 0;
                loop {
                    crossbeam_channel::select! {
                        recv(r) -> n => match n {
                            Ok(n) => sum += n,
                            Err(_) => return sum,
                        },
                        recv(end) -> _ => return sum + r.iter().sum::<usize>(),
                        default(LONG) => panic!("nothing came"),
                    }
                }
            });
            sender.join();
            assert_eq!(receiver.join(), (0..ROUNDS).sum());
        }
    });
}

#[test]
fn flume_channels() {
    pairs("flume", |one, other| {
        for bound in [Some(0), Some(4), None] {
            let (s, r) = bound.map_or_else(flume::unbounded, flume::bounded);
            let sender = one.start(move || (0..ROUNDS).for_each(|n| s.send(n).unwrap()));
            let receiver = other.start(move || {
                let got: Vec<_> = r.iter().collect();
                assert_eq!(
                    r.recv_timeout(ms(1)),
                    Err(flume::RecvTimeoutError::Disconnected)
                );
                got
            });
            sender.join();
            assert!(receiver.join().into_iter().eq(0..ROUNDS));
        }
    });
}

#[test]
fn event_listeners() {
    pairs("event-listener", |one, other| {
        let state = Arc::new((AtomicUsize::new(0), Event::new()));
        let play = |kind: Kind, mine: usize| {
            let state = Arc::clone(&state);
            kind.start(move || {
                for _ in 0..ROUNDS {
                    while state.0.load(SeqCst) % 2 != mine {
                        let listener = state.1.listen();
                        if state.0.load(SeqCst) % 2 != mine {
                            assert!(listener.wait_timeout(LONG).is_some());
                        }
                    }
                    state.0.fetch_add(1, SeqCst);
                    state.1.notify(usize::MAX);
                }
            })
        };
        [play(one, 0), play(other, 1)]
            .into_iter()
            .for_each(|party| party.join());
    });
}
