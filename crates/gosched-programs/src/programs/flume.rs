//! flume: fan-in, work sharing, rendezvous, `Selector`, timeouts and disconnection.

use std::time::Duration;

use flume::select::SelectError;
use flume::{RecvTimeoutError, Selector, bounded, unbounded};

use crate::crowd::{all_wait, join_all};

pub(super) fn run(goroutines: usize) {
    workers(goroutines);
    rendezvous(goroutines);
    collect(goroutines);
    selectors(goroutines);
    ends();
}

/// Workers share one receiver; each answers into the channel that came with the question.
fn workers(workers: usize) {
    let (ask, questions) = bounded::<(u64, flume::Sender<u64>)>(8);
    let goroutines = (0..workers).map(|_| {
        let questions = questions.clone();
        gosched::thread::spawn(move || {
            questions
                .iter()
                .for_each(|(n, answer)| answer.send(n + 1).unwrap());
        })
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    all_wait(workers);
    let clients = (0..20).map(|c| {
        let ask = ask.clone();
        gosched::thread::spawn(move || {
            let (answer, answers) = bounded(1);
            for n in c * 50..(c + 1) * 50 {
                ask.send((n, answer.clone())).unwrap();
                assert_eq!(answers.recv(), Ok(n + 1));
            }
            50
        })
    });
    let clients = clients.collect::<Vec<_>>();
    let answers: u64 = join_all(clients).into_iter().sum();
    drop(ask);
    join_all(goroutines);
    println!("workers: {answers} answers");
}

/// Pairs play ping-pong on channels without room.
fn rendezvous(goroutines: usize) {
    const ROUNDS: usize = 10;
    let mut firsts = Vec::new();
    let mut pairs = Vec::new();
    for _ in 0..goroutines / 2 {
        let (ping, pings) = bounded::<usize>(0);
        let (pong, pongs) = bounded::<usize>(0);
        firsts.push(ping.clone());
        pairs.push(gosched::thread::spawn(move || {
            pings
                .iter()
                .take(ROUNDS)
                .for_each(|n| pong.send(n).unwrap());
            0
        }));
        pairs.push(gosched::thread::spawn(move || {
            for n in 1..=ROUNDS {
                let back = pongs.recv().unwrap();
                assert_eq!(back, n - 1);
                if n < ROUNDS {
                    ping.send(n).unwrap();
                }
            }
            ROUNDS
        }));
    }
    all_wait(pairs.len());
    firsts.iter().for_each(|ping| ping.send(0).unwrap());
    let rounds: usize = join_all(pairs).into_iter().sum();
    println!("rendezvous: {rounds} rounds");
}

/// Many senders wait for room in one small channel.
fn collect(senders: usize) {
    let (send, receive) = bounded(0);
    let goroutines = (0..senders).map(|i| {
        let send = send.clone();
        gosched::thread::spawn(move || send.send(i).unwrap())
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    drop(send);
    all_wait(senders);
    let mut values: Vec<usize> = receive.into_iter().collect();
    values.sort_unstable();
    assert!(values.into_iter().eq(0..senders));
    join_all(goroutines);
    println!("collect: {senders} senders");
}

/// Each goroutine waits for its own channel and for the end, which comes once all are served.
fn selectors(goroutines: usize) {
    enum Event {
        Value(usize),
        End,
    }
    let (end, ended) = unbounded::<()>();
    let (done, all_done) = unbounded();
    let mut senders = Vec::new();
    let mut waiters = Vec::new();
    for _ in 0..goroutines {
        let (send, own) = unbounded();
        senders.push(send);
        let (ended, done) = (ended.clone(), done.clone());
        waiters.push(gosched::thread::spawn(move || {
            let mut sum = 0;
            loop {
                let event = Selector::new()
                    .recv(&own, |value| Event::Value(value.unwrap()))
                    .recv(&ended, |_| Event::End)
                    .wait();
                match event {
                    Event::Value(value) => {
                        sum += value;
                        done.send(()).unwrap();
                    }
                    Event::End => return sum,
                }
            }
        }));
    }
    all_wait(goroutines);
    for (i, send) in senders.iter().enumerate() {
        send.send(i).unwrap();
    }
    assert_eq!(all_done.iter().take(goroutines).count(), goroutines);
    drop(end);
    let sums = join_all(waiters);
    assert!(sums.iter().copied().eq(0..goroutines));
    println!("selectors: sum {}", sums.iter().sum::<usize>());
}

fn ends() {
    let (send, receive) = unbounded::<u8>();
    let timeout = receive.recv_timeout(Duration::from_millis(20));
    assert_eq!(timeout, Err(RecvTimeoutError::Timeout));
    let selected = Selector::new()
        .recv(&receive, |_| unreachable!())
        .wait_timeout(Duration::from_millis(20));
    assert_eq!(selected, Err(SelectError::Timeout));
    send.send(1).unwrap();
    drop(send);
    assert_eq!(receive.recv(), Ok(1));
    let closed = receive.recv_timeout(Duration::from_secs(60));
    assert_eq!(closed, Err(RecvTimeoutError::Disconnected));
    println!("ends: {}", closed.unwrap_err());
}
