//! The heartbeat: a goroutine that sleeps a millisecond and one that yields must not starve (U2, U4, L2).

use std::time::{Duration, Instant};

use gosched::thread;

use crate::env::Actor;
use crate::ledger::{HEARTBEAT, SPAWN, YIELD};

const BEAT: Duration = Duration::from_millis(1);

pub fn root(a: &mut Actor) {
    let yields = a.spawn(|a| {
        while !a.over() {
            a.env.ledger.beat(YIELD);
            let began = Instant::now();
            thread::yield_now();
            a.env.ledger.took(YIELD, began.elapsed());
            a.op();
            thread::sleep(Duration::from_micros(500));
        }
    });
    while !a.over() {
        a.env.ledger.beat(HEARTBEAT);
        let began = Instant::now();
        thread::sleep(BEAT);
        let took = began.elapsed();
        a.expect(took >= BEAT, "a sleep was too short");
        a.env.ledger.took(HEARTBEAT, took - BEAT.min(took));
        let began = Instant::now();
        if let Some(child) = a.spawn(|_| 7) {
            a.join(child);
            a.env.ledger.took(SPAWN, began.elapsed());
        }
        a.op();
    }
    a.join_all(vec![yields]);
}
