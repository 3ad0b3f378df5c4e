//! Timers: none is early, a stopped one does not come, a reset one comes once.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::chan::{after, at, select, tick};
use gosched::thread;
use gosched::time::{Ticker, Timer, after_func, sleep_until};

use crate::env::Actor;
use crate::ledger::TIMER;

pub fn root(a: &mut Actor) {
    while !a.over() {
        let mut handles = Vec::new();
        for _ in 0..a.rng.few(60) {
            handles.push(a.spawn(|a| {
                for _ in 0..4 {
                    step(a);
                    a.op();
                    if a.over() {
                        break;
                    }
                }
            }));
        }
        a.join_all(handles);
        thread::sleep(a.rng.micros(500));
    }
}

fn step(a: &mut Actor) {
    let time = a.rng.micros(3000);
    let began = Instant::now();
    match a.rng.below(10) {
        0..=1 => thread::sleep(time),
        2 => sleep_until(began + time),
        3 => {
            let due = after(time).recv();
            a.expect(due.is_ok_and(|due| due >= began + time), "after is early");
        }
        4 => drop(at(began + time).recv()),
        5 => return ticks(a, time),
        6 => return resets(a, time),
        7 => return calls(a, time),
        8 => return gives_up(a, time),
        _ => return parks(a, time),
    }
    let took = began.elapsed();
    a.expect(took >= time, "woken early");
    a.env.ledger.took(TIMER, took.saturating_sub(time));
}

fn ticks(a: &mut Actor, time: Duration) {
    let period = time.max(Duration::from_micros(50)) / 4;
    let began = Instant::now();
    let ticker = Ticker::new(period);
    let plain = tick(period);
    let many = a.rng.few(5) as u32;
    for n in 1..=many {
        let due = if a.rng.one_in(2) {
            ticker.chan().recv()
        } else {
            let other = ticker.chan();
            select! {
                recv(other) -> due => due,
                recv(gosched::chan::never::<()>()) -> _ => return,
            }
        };
        a.expect(due.is_ok(), "a ticker ended");
        a.expect(began.elapsed() >= period * n, "a tick is early");
    }
    a.expect(plain.recv().is_ok(), "a tick channel ended");
    ticker.stop();
    a.expect(
        ticker.chan().try_recv().is_err(),
        "a ticker ticks that was stopped",
    );
}

fn resets(a: &mut Actor, time: Duration) {
    let timer = Timer::new(time);
    for _ in 0..a.rng.few(6) {
        match a.rng.below(3) {
            0 => {
                timer.stop();
                a.expect(
                    timer.chan().try_recv().is_err(),
                    "a timer comes that was stopped",
                );
                timer.reset(time / 2);
            }
            1 => drop(timer.reset(a.rng.micros(2000))),
            _ => a.nap(),
        }
    }
    let (began, last) = (Instant::now(), a.rng.micros(2000));
    timer.reset(last);
    let due = timer.chan().recv();
    a.expect(due.is_ok(), "a timer's channel ended");
    a.expect(began.elapsed() >= last, "a timer that was reset is early");
    a.expect(!timer.stop(), "a timer that was received could be stopped");
    if a.rng.one_in(2) {
        timer.reset(Duration::from_secs(3600));
        a.expect(
            timer.stop(),
            "a timer that is far away could not be stopped",
        );
    }
}

/// The function is called once for each time that it was armed and not stopped.
fn calls(a: &mut Actor, time: Duration) {
    let (count, token) = (Arc::new(AtomicU64::new(0)), a.token());
    let counts = Arc::clone(&count);
    let timer = after_func(time, move || {
        token.check();
        counts.fetch_add(1, SeqCst);
    });
    let mut armed = 1;
    for _ in 0..a.rng.below(4) {
        a.nap();
        if a.rng.one_in(2) {
            armed -= u64::from(timer.stop());
        } else {
            armed += u64::from(!timer.reset(a.rng.micros(1500)));
        }
    }
    while count.load(SeqCst) < armed {
        thread::sleep(Duration::from_micros(200));
    }
    a.expect(
        count.load(SeqCst) == armed,
        "a function was called too often",
    );
    a.expect(!timer.stop(), "a timer that has fired could be stopped");
}

/// Timers that never come cost nothing and need not be stopped.
fn gives_up(a: &mut Actor, time: Duration) {
    let (far, near) = (after(Duration::from_secs(3600)), after(time));
    let timer = Timer::new(Duration::from_secs(3600));
    select! {
        recv(far) -> _ => a.complain("an hour has passed"),
        recv(timer.chan()) -> _ => a.complain("an hour has passed"),
        recv(near) -> _ => {}
    }
}

/// A park times out in time, and a token ends it earlier.
fn parks(a: &mut Actor, time: Duration) {
    let began = Instant::now();
    if a.rng.one_in(2) {
        let me = thread::current();
        let other = a.spawn(move |a| {
            a.nap();
            me.unpark();
        });
        if let Some(other) = other {
            thread::park_timeout(Duration::from_secs(3600));
            a.join(other);
        }
        let hour = Duration::from_secs(3600);
        a.expect(began.elapsed() < hour, "a token was lost");
    } else {
        // A token from another actor may be there.
        thread::park_timeout(time);
    }
}
