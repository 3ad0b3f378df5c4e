//! Calls that block the thread: sleeps, std's locks and channels, files, processes; marked and not.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use gosched::thread;

use crate::env::{Actor, Place};
use crate::ledger::lock;

pub fn root(a: &mut Actor) {
    while !a.over() {
        match a.rng.below(16) {
            0..=4 => sleeps(a),
            5..=7 => mutex(a),
            8..=9 => channel(a),
            10..=11 => condvar(a),
            12..=14 => files(a),
            _ => process(a),
        }
        a.nap();
    }
}

/// Calls `f`, marked or not.
fn maybe_marked<T>(is_marked: bool, f: impl FnOnce() -> T) -> T {
    if is_marked { gosched::blocking(f) } else { f() }
}

fn sleeps(a: &mut Actor) {
    let mut handles = Vec::new();
    for _ in 0..a.rng.few(12) {
        handles.push(a.spawn(|a| {
            for _ in 0..3 {
                let (time, is_marked) = (a.rng.micros(6000), a.rng.one_in(2));
                let began = Instant::now();
                maybe_marked(is_marked, || std::thread::sleep(time));
                a.expect(began.elapsed() >= time, "std's sleep was too short");
                if a.rng.one_in(3) {
                    // Computes, perhaps back from the call without a P.
                    (0..20_000).for_each(|_| std::hint::spin_loop());
                }
                a.op();
                if a.over() {
                    break;
                }
            }
        }));
    }
    a.join_all(handles);
}

/// A std mutex, held over sleeps of the thread and of the goroutine. If goroutines may be
/// abandoned, it is not held over calls of gosched: it would stay locked.
fn mutex(a: &mut Actor) {
    let shared = Arc::new((Mutex::new(0u64), AtomicU64::new(0)));
    let mut handles = Vec::new();
    for _ in 0..a.rng.few(8) {
        let shared = Arc::clone(&shared);
        let place = if a.rng.one_in(4) {
            Place::Thread
        } else {
            Place::Same
        };
        handles.push(a.start(place, move |a| {
            for _ in 0..5 {
                let mut count = lock(&shared.0);
                let before = *count;
                match a.rng.below(4) {
                    0 => std::thread::sleep(a.rng.micros(300)),
                    1 if !a.may_hang() && a.env.plan.own => thread::yield_now(),
                    _ => {}
                }
                a.expect(*count == before, "a std mutex had two holders");
                *count += 1;
                shared.1.fetch_add(1, SeqCst);
                drop(count);
                a.op();
            }
        }));
    }
    // Plain threads are not joined, and may still be running.
    let joined = handles.into_iter().flatten();
    let ended = joined.filter_map(|handle| a.join(handle)).count() as u64;
    let count = lock(&shared.0);
    let counted = shared.1.load(SeqCst);
    a.expect(
        *count == counted && counted >= 5 * ended,
        format_args!("a std mutex lost counts: {count} of {counted}, {ended} have ended"),
    );
}

/// std's channels, rendezvous and buffered.
fn channel(a: &mut Actor) {
    let (s, r) = mpsc::sync_channel(a.rng.below(4) as usize);
    let many = a.rng.few(100) as u64;
    let place = if a.rng.one_in(2) {
        Place::Thread
    } else {
        Place::Same
    };
    let sender = a.start(place, move |a| {
        for n in 1..=many {
            if !send(a, &s, (n, a.token())) {
                break;
            }
            if a.rng.one_in(16) {
                thread::yield_now();
            }
        }
    });
    let (mut sum, is_marked) = (0, a.rng.one_in(2));
    loop {
        // An abandoned sender keeps its end open.
        let received = maybe_marked(is_marked, || r.recv_timeout(Duration::from_millis(50)));
        match received {
            Ok((n, token)) => {
                token.check();
                sum += n;
                a.op();
            }
            Err(mpsc::RecvTimeoutError::Timeout) if !a.over() || !a.may_hang() => {}
            Err(_) => break,
        }
    }
    let is_calm = !a.env.is_ending.load(SeqCst) && !a.env.plan.inject.map && !a.may_hang();
    if is_calm && (sender.is_some() || place == Place::Thread) {
        a.expect(sum == many * (many + 1) / 2, "std's channel lost a value");
    }
    a.join_all(vec![sender]);
}

/// Sends a value. An abandoned receiver keeps its end open, so the send must not wait for ever.
fn send<T>(a: &Actor, s: &mpsc::SyncSender<T>, mut value: T) -> bool {
    if !a.may_hang() {
        return s.send(value).is_ok();
    }
    loop {
        value = match s.try_send(value) {
            Ok(()) => return true,
            Err(mpsc::TrySendError::Full(value)) if !a.over() => value,
            Err(_) => return false,
        };
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn condvar(a: &mut Actor) {
    let pair = Arc::new((Mutex::new(false), Condvar::new()));
    let sets = Arc::clone(&pair);
    let place = if a.rng.one_in(2) {
        Place::Thread
    } else {
        Place::Same
    };
    let setter = a.start(place, move |a| {
        a.nap();
        *lock(&sets.0) = true;
        sets.1.notify_all();
    });
    let is_marked = a.rng.one_in(2);
    maybe_marked(is_marked, || {
        let mut is_set = lock(&pair.0);
        while !*is_set {
            let waited = pair.1.wait_timeout(is_set, Duration::from_millis(20));
            is_set = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            let is_refused = setter.is_none() && place == Place::Same;
            if is_refused || a.env.is_ending.load(SeqCst) {
                break;
            }
        }
    });
    a.join_all(vec![setter]);
    a.op();
}

fn files(a: &mut Actor) {
    let is_marked = a.rng.one_in(2);
    let token = a.file();
    let opened = std::fs::File::open("/proc/self/status");
    let text = maybe_marked(is_marked, || {
        let mut text = String::new();
        opened.and_then(|mut file| file.read_to_string(&mut text))?;
        Ok::<_, std::io::Error>(text)
    });
    drop(token);
    a.expect(
        text.is_ok_and(|text| text.starts_with("Name:")),
        "a file was misread",
    );
    a.op();
}

/// A process, now and then.
fn process(a: &mut Actor) {
    if !a.rng.one_in(4) || !a.env.plan.own {
        return;
    }
    let mut command = Command::new("true");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status();
    a.expect(
        status.is_ok_and(|status| status.success()),
        "a process failed",
    );
    a.op();
}
