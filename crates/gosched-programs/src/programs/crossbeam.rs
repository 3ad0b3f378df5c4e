//! crossbeam-channel: fan-in and fan-out, rendezvous, back-pressure, `select!`, timeouts.

use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, after, bounded, never, select, tick, unbounded};

use crate::crowd::{all_wait, join_all};

pub(super) fn run(goroutines: usize) {
    fan(goroutines);
    ring(goroutines);
    full(goroutines);
    selects(goroutines);
    times();
}

/// Workers take jobs from one channel and send results into another. Results and workers are
/// summed up in the same order in every run.
fn fan(workers: usize) {
    let (jobs, job) = bounded::<u64>(4);
    let (result, results) = unbounded();
    let goroutines = (0..workers).map(|_| {
        let (job, result) = (job.clone(), result.clone());
        gosched::thread::spawn(move || job.iter().for_each(|n| result.send(n * n).unwrap()))
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    drop(result);
    all_wait(workers);
    let senders = (0..10).map(|s| {
        let jobs = jobs.clone();
        gosched::thread::spawn(move || (0..100).for_each(|n| jobs.send(s * 100 + n).unwrap()))
    });
    let senders = senders.collect::<Vec<_>>();
    drop(jobs);
    let mut all: Vec<u64> = results.iter().collect();
    all.sort_unstable();
    assert!(all.iter().copied().eq((0..1_000).map(|n| n * n)));
    join_all(senders);
    join_all(goroutines);
    println!("fan: {workers} workers, {} results", all.len());
}

/// A token goes around a ring of channels without room: each send waits for its receiver.
fn ring(members: usize) {
    let (first, mut next) = bounded::<u64>(0);
    let mut goroutines = Vec::new();
    for _ in 0..members {
        let (send, receive) = bounded(0);
        let receiver = std::mem::replace(&mut next, receive);
        goroutines.push(gosched::thread::spawn(move || {
            receiver
                .iter()
                .for_each(|token| send.send(token + 1).unwrap());
        }));
    }
    all_wait(members);
    let mut token = 0;
    for _ in 0..5 {
        first.send(token).unwrap();
        token = next.recv().unwrap();
    }
    drop(first);
    assert!(
        next.recv().is_err(),
        "the ring ends when its first sender is dropped"
    );
    join_all(goroutines);
    println!("ring: {token} steps");
}

/// Senders wait for room; values arrive once each.
fn full(senders: usize) {
    let (send, receive) = bounded(1);
    send.send(usize::MAX).unwrap();
    let goroutines = (0..senders).map(|i| {
        let send: Sender<usize> = send.clone();
        gosched::thread::spawn(move || send.send(i).unwrap())
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    drop(send);
    all_wait(senders);
    let mut values: Vec<usize> = receive.iter().skip(1).collect();
    values.sort_unstable();
    assert!(values.into_iter().eq(0..senders));
    join_all(goroutines);
    println!("full: {senders} senders");
}

/// Each goroutine waits for its own channel, for the end and for a channel that is silent.
fn selects(goroutines: usize) {
    let (end, ended) = bounded::<()>(0);
    let (reply, replies) = unbounded();
    let mut senders = Vec::new();
    let mut waiters = Vec::new();
    for i in 0..goroutines {
        let (send, own) = bounded(2);
        senders.push(send);
        let (ended, reply) = (ended.clone(), reply.clone());
        waiters.push(gosched::thread::spawn(move || {
            let silent = never::<()>();
            let mut sum = 0;
            loop {
                select! {
                    recv(own) -> value => {
                        let value: usize = value.unwrap();
                        sum += value;
                        select! {
                            send(reply, i) -> sent => sent.unwrap(),
                            recv(silent) -> _ => unreachable!(),
                        }
                    }
                    recv(ended) -> _ => return sum,
                    recv(silent) -> _ => unreachable!(),
                }
            }
        }));
    }
    all_wait(goroutines);
    for round in 1..=3 {
        senders.iter().for_each(|s| s.send(round).unwrap());
        let mut who: Vec<_> = replies.iter().take(goroutines).collect();
        who.sort_unstable();
        assert!(who.into_iter().eq(0..goroutines));
    }
    drop(end);
    let sum: usize = join_all(waiters).into_iter().sum();
    assert_eq!(sum, 6 * goroutines);
    println!("select: {goroutines} goroutines, sum {sum}");
}

fn times() {
    let (_send, receive) = unbounded::<()>();
    let timeout = receive.recv_timeout(Duration::from_millis(20));
    assert_eq!(timeout, Err(RecvTimeoutError::Timeout));
    let ticks = tick(Duration::from_millis(2)).iter().take(5).count();
    after(Duration::from_millis(5)).recv().unwrap();
    select! {
        recv(receive) -> _ => unreachable!(),
        default(Duration::from_millis(5)) => {}
    }
    println!("times: {ticks} ticks");
}
