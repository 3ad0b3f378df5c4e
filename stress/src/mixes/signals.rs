//! Signals: each receiver gets the signal it asked for, however many come. Storms of the runtime's
//! own signal have no effect.

use std::sync::OnceLock;
use std::time::Duration;

use gosched::chan::Receiver;
use gosched::{signal, thread};

use crate::env::Actor;

/// One receiver exists at all times: otherwise the signals would end the process.
static ALWAYS: OnceLock<Receiver<i32>> = OnceLock::new();

const SIGNALS: [i32; 2] = [libc::SIGUSR1, libc::SIGUSR2];

/// Before the first round.
pub fn prepare() {
    ALWAYS.get_or_init(|| signal::notify(&SIGNALS));
}

fn send(signal: i32) {
    // SAFETY: the call takes numbers and touches no memory. The process has a handler for the
    // signal.
    unsafe { libc::kill(libc::getpid(), signal) };
}

pub fn root(a: &mut Actor) {
    while !a.over() {
        match a.rng.below(4) {
            0 => storm(a),
            _ => told(a),
        }
        a.op();
        thread::sleep(Duration::from_millis(1 + a.rng.below(10)));
    }
}

fn told(a: &mut Actor) {
    let which = SIGNALS[a.rng.below(2) as usize];
    let mut receiver = signal::notify(&[which]);
    if a.rng.one_in(2) {
        receiver = receiver.clone();
    }
    for _ in 0..a.rng.few(4) {
        for _ in 0..a.rng.few(4) {
            send(which);
        }
        let told = receiver.recv_timeout(Duration::from_secs(20));
        a.expect(told == Ok(which), format_args!("signal {which}: {told:?}"));
        a.expect(
            receiver.len() <= 1,
            "more than one value waits for one signal",
        );
    }
}

fn storm(a: &mut Actor) {
    for _ in 0..a.rng.few(64) {
        send(libc::SIGURG);
        if a.rng.one_in(8) {
            thread::yield_now();
        }
    }
}
