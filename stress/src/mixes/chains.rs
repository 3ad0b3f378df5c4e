//! Goroutines that run from `next` and never leave it to others: chains of spawns, and pairs that
//! wake each other (U2, U4).
//!
//! They would take all turns if waiting were not bounded. The mix `heart` beside them counts
//! decisions.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use gosched::chan::{self, Sender};
use gosched::thread::{self, Thread};

use crate::env::{Actor, TURN};

pub fn root(a: &mut Actor) {
    while !a.over() {
        let handles = (0..a.rng.few(3))
            .map(|_| match a.rng.one_in(2) {
                true => a.spawn(chain),
                false => a.spawn(pair),
            })
            .collect();
        a.join_all(handles);
        thread::sleep(a.rng.micros(2000));
    }
}

/// Each goroutine starts its successor and ends; the last one reports the end.
fn chain(a: &mut Actor) {
    let links = 1 << a.rng.within(4, 17);
    let (ended, end) = chan::bounded(1);
    link(a, links, ended);
    // The sender is dropped with the last goroutine, wherever it ends.
    while let Err(chan::RecvTimeoutError::Timeout) = end.recv_timeout(TURN) {
        if a.over() {
            return;
        }
    }
}

fn link(a: &mut Actor, left: u64, ended: Sender<()>) {
    a.op();
    if left == 0 || a.over() {
        return drop(ended);
    }
    drop(a.spawn(move |a| link(a, left - 1, ended)));
}

/// Two goroutines take turns.
fn pair(a: &mut Actor) {
    let turns = 1 << a.rng.within(4, 17);
    let turn = Arc::new(AtomicU64::new(0));
    let (own, others) = (thread::current(), Arc::clone(&turn));
    let Some(other) = a.spawn(move |a| play(a, 1, turns, &others, &own)) else {
        return;
    };
    play(a, 0, turns, &turn, other.thread());
    a.join(other);
}

fn play(a: &Actor, own: u64, turns: u64, turn: &AtomicU64, other: &Thread) {
    loop {
        let now = turn.load(SeqCst);
        if now >= turns || a.over() {
            break;
        }
        if now % 2 != own {
            // The partner may have been abandoned.
            thread::park_timeout(TURN);
            continue;
        }
        a.op();
        turn.store(now + 1, SeqCst);
        other.unpark();
    }
    other.unpark();
}
