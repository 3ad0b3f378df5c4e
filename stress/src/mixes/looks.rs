//! Dumps, leaks, metrics and checks at random moments, from goroutines and from plain threads.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::{debug, thread};

use crate::env::Actor;
use crate::ledger::{CHECK, DUMP};

pub fn root(a: &mut Actor) {
    if a.rng.one_in(2) {
        a.thread(|a| {
            while !a.over() {
                let handle = match (&a.env.there, a.rng.one_in(2)) {
                    (Some(there), true) => there.clone(),
                    _ => a.env.here.clone(),
                };
                // The runtime may be gone.
                if a.rng.one_in(8) {
                    drop(handle.dump());
                } else {
                    drop(handle.metrics());
                }
                a.op();
                std::thread::sleep(Duration::from_millis(a.rng.below(30)));
            }
        });
    }
    while !a.over() {
        match a.rng.below(10) {
            0..=3 => check(a),
            4..=5 => leaks(a),
            6..=8 => {
                let metrics = debug::metrics();
                let resizes = a.env.plan.has("resize");
                let is_right = resizes || metrics.running <= metrics.procs;
                a.expect(is_right, "U3: more goroutines run than there are Ps");
                a.expect(
                    metrics.ends <= metrics.spawns,
                    "more goroutines ended than began",
                );
            }
            _ => dump(a),
        }
        a.op();
        thread::sleep(Duration::from_millis(1 + a.rng.below(20)));
    }
}

/// `debug::check` finds no violation.
fn check(a: &mut Actor) {
    let began = Instant::now();
    let found = debug::check().err().map(|found| found.to_string());
    a.env.ledger.took(CHECK, began.elapsed());
    a.expect(found.is_none(), found.unwrap_or_default());
}

/// Every goroutine of a round can be woken by another, so there is no leak.
fn leaks(a: &mut Actor) {
    let leaks = debug::leaks();
    let is_calm = !a.env.is_ending.load(SeqCst);
    a.expect(leaks.is_empty() || !is_calm, format_args!("leaks: {leaks}"));
}

fn dump(a: &mut Actor) {
    let began = Instant::now();
    let dump = debug::dump();
    a.env.ledger.took(DUMP, began.elapsed());
    let own = thread::current().id().goroutine();
    a.expect(own.is_some(), "a goroutine without an id");
    // A runtime that is being dropped has none any more.
    let is_calm = !a.env.is_ending.load(SeqCst);
    let is_empty = dump.goroutines().is_empty();
    a.expect(
        !is_calm || !is_empty,
        "a dump without the calling goroutine",
    );
    if a.rng.one_in(4) {
        let text = dump.to_string();
        a.expect(is_empty || text.contains("goroutine "), "an empty dump");
    }
}
