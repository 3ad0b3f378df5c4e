//! Loops without a call: they are interrupted anywhere, and must not notice (D7, U5). Other
//! goroutines run beside them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gosched::thread;

use crate::env::Actor;
use crate::plan::Refusal;

/// Loops that run until the round is over, where threads are refused: more than there are threads.
const ENDLESS: usize = 30;

pub fn root(a: &mut Actor) {
    if a.env.plan.refusal != Refusal::No {
        return endless(a);
    }
    while !a.over() {
        let mut handles = Vec::new();
        for _ in 0..a.rng.few(4) {
            handles.push(a.spawn(|a| {
                let rounds = 1 + a.rng.below(40);
                match a.rng.below(3) {
                    0 => integers(a, rounds),
                    1 => floats(a, rounds),
                    _ => spin(a),
                }
                a.op();
            }));
        }
        a.join_all(handles);
        thread::sleep(a.rng.micros(8000));
    }
}

fn endless(a: &mut Actor) {
    let mut handles = Vec::new();
    for _ in 0..ENDLESS {
        handles.push(a.spawn(|a| {
            while !a.over() {
                for _ in 0..1000 {
                    std::hint::spin_loop();
                }
            }
            a.op();
        }));
    }
    a.join_all(handles);
}

/// Known sums over many registers.
fn integers(a: &mut Actor, rounds: u64) {
    for round in 0..rounds {
        let seed = black_box(round);
        let (mut w, mut x, mut y, mut z) = (seed, seed + 1, seed + 2, seed + 3);
        for n in 0..100_000u64 {
            w = w.wrapping_add(n);
            x = x.wrapping_add(w ^ n);
            y = y.wrapping_add(x.rotate_left(7));
            z = z.wrapping_add(y ^ w);
        }
        let (mut w2, mut x2, mut y2, mut z2) = (seed, seed + 1, seed + 2, seed + 3);
        for n in 0..black_box(100_000u64) {
            w2 = w2.wrapping_add(n);
            x2 = x2.wrapping_add(w2 ^ n);
            y2 = y2.wrapping_add(x2.rotate_left(7));
            z2 = z2.wrapping_add(y2 ^ w2);
        }
        a.expect((w, x, y, z) == (w2, x2, y2, z2), "registers changed");
        if a.over() {
            return;
        }
    }
}

fn floats(a: &mut Actor, rounds: u64) {
    for round in 0..rounds {
        let mut lanes = [black_box(round as f64); 8];
        let mut again = lanes;
        for n in 0..20_000 {
            for (at, lane) in lanes.iter_mut().enumerate() {
                *lane = *lane * 0.5 + (n + at) as f64;
            }
        }
        for n in 0..black_box(20_000) {
            for (at, lane) in again.iter_mut().enumerate() {
                *lane = *lane * 0.5 + (n + at) as f64;
            }
        }
        a.expect(lanes == again, "floating point registers changed");
        if a.over() {
            return;
        }
    }
}

/// Spins for a while.
fn spin(a: &mut Actor) {
    let (began, time) = (Instant::now(), Duration::from_millis(a.rng.below(40)));
    while began.elapsed() < time && !a.over() {
        for _ in 0..1000 {
            std::hint::spin_loop();
        }
    }
}
