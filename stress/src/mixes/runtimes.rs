//! Runtimes that come and go within the others, made by goroutines and by plain threads. They are
//! drained or shut down. If the round may abandon goroutines, they are also dropped with goroutines
//! in every state.

use std::time::Duration;

use gosched::chan::bounded;
use gosched::{Runtime, thread};

use crate::env::{Actor, small_runtime};
use crate::ledger::DROP;

pub fn root(a: &mut Actor) {
    while !a.over() {
        // A runtime on the stack of an abandoned goroutine would live for ever. A runtime of an
        // unwound goroutine would abandon its own goroutines.
        if !a.env.plan.is_calm() || a.rng.one_in(3) {
            a.thread(one);
        } else {
            one(a);
        }
        thread::sleep(Duration::from_millis(2 + a.rng.below(20)));
    }
}

fn one(a: &mut Actor) {
    let Some(runtime) = small_runtime(a) else {
        return;
    };
    match a.rng.below(4) {
        0 => drop(runtime), // at once
        1 => drained(a, runtime),
        2 => shut_down(a, runtime),
        _ if a.may_hang() => dropped(a, runtime),
        _ => drained(a, runtime),
    }
    a.op();
}

fn drained(a: &mut Actor, runtime: Runtime) {
    let many = a.rng.few(20) as u64;
    let (s, r) = bounded(a.rng.below(3) as usize);
    let mut expected = 0;
    for n in 1..=many {
        let s = s.clone();
        if let Some(body) = a.goroutine(move |a| {
            a.nap();
            drop(s.send((n, a.token())));
        }) && a.accept(runtime.handle().try_spawn(body)).is_some()
        {
            expected += n;
        }
    }
    drop(s);
    let sum: u64 = r.iter().map(|(n, _)| n).sum();
    a.expect(
        sum == expected,
        format_args!("{sum} came, {expected} was sent"),
    );
    let value = runtime.run(|| thread::spawn(|| 42).join().unwrap_or(0));
    a.expect(value == 42, "a main goroutine's value is wrong");
    // The last goroutines may be about to end.
    while runtime.metrics().goroutines > 0 {
        thread::sleep(Duration::from_micros(200));
    }
    let metrics = runtime.metrics();
    a.expect(
        metrics.rescues == 0,
        format_args!("WK: wake-ups were lost: {metrics}"),
    );
    if let Err(violations) = runtime.check() {
        a.complain(violations);
    }
}

fn shut_down(a: &mut Actor, runtime: Runtime) {
    let mut handles = Vec::new();
    for n in 0..a.rng.few(20) {
        let token = a.token();
        let body = a.goroutine(move |_| {
            token.check();
            match n % 3 {
                0 => thread::park(),
                1 => thread::sleep(Duration::from_secs(3600)),
                _ => thread::yield_now(),
            }
        });
        if let Some(body) = body {
            handles.extend(a.accept(runtime.handle().try_spawn(body)));
        }
    }
    a.nap();
    runtime.shutdown(Duration::from_secs(20));
    for handle in handles {
        let answer = handle.join();
        let is_right = answer.is_ok() || answer.is_err_and(|e| e.is::<thread::Exited>());
        a.expect(is_right, "a shut-down goroutine ended in another way");
    }
}

/// Drops a runtime with goroutines that wait, yield, sleep in calls and have not begun. They have
/// no ledger entries: their fate is not decided.
fn dropped(a: &mut Actor, runtime: Runtime) {
    let mut handles = Vec::new();
    for n in 0..a.rng.few(12) {
        handles.push(runtime.spawn(move || match n % 5 {
            0 => thread::park(),
            1 => thread::sleep(Duration::from_secs(3600)),
            2 => (0..50).for_each(|_| thread::yield_now()),
            3 => std::thread::sleep(Duration::from_millis(2)),
            _ => {}
        }));
    }
    a.nap();
    let began = std::time::Instant::now();
    drop(runtime);
    a.env.ledger.took(DROP, began.elapsed());
    for handle in handles {
        let answer = handle.join();
        let is_right = answer.is_ok() || answer.is_err_and(|e| e.is::<thread::Exited>());
        a.expect(is_right, "a dropped goroutine ended in another way");
    }
}
