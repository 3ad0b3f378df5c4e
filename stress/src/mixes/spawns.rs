//! Trees of goroutines. Each returns its number to its joiner; some are not joined, some are joined
//! by plain threads.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use gosched::thread::{self, Exited, JoinHandle};

use crate::env::{Actor, Place, Planned};

pub fn root(a: &mut Actor) {
    while !a.over() {
        let depth = a.rng.below(5) as u32;
        live(a, depth);
        a.op();
        thread::sleep(a.rng.micros(500));
    }
}

/// The planned end of a goroutine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Returns,
    Panics,
    Exits,
}

struct Child {
    handle: JoinHandle<u64>,
    number: u64,
    fate: Fate,
}

impl Child {
    fn join(self, a: &Actor) {
        let is_ending = || a.env.is_ending.load(SeqCst);
        let is_right = match (self.handle.join(), self.fate) {
            (Ok(number), Fate::Returns) => number == self.number,
            (Err(payload), Fate::Panics) if payload.is::<Planned>() => true,
            (Err(payload), Fate::Exits) if payload.is::<Exited>() => true,
            (Err(payload), _) if payload.is::<Exited>() => is_ending(),
            // Something was refused to it; if that had no reason, the hook has complained.
            (Err(_), _) => a.env.may_refuse(),
            (Ok(_), _) => false,
        };
        a.expect(is_right, "a goroutine ended in another way than planned");
        a.op();
    }
}

/// A goroutine's life: starts children in every way, and waits between them.
fn live(a: &mut Actor, depth: u32) {
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..a.rng.few(8) {
        match a.rng.below(12) {
            0..=4 if depth > 0 => children.extend(spawn(a, depth)),
            5 => go(a),
            6 => scope(a),
            7 => joined_outside(a),
            8 => drop(children.pop()),
            9 => {
                if let Some(child) = children.pop() {
                    let _ = child.handle.is_finished();
                    child.join(a);
                }
            }
            _ => a.nap(),
        }
        if a.over() {
            break;
        }
    }
    children.into_iter().for_each(|child| child.join(a));
}

fn spawn(a: &mut Actor, depth: u32) -> Option<Child> {
    let number = a.rng.next();
    let fate = match a.rng.below(16) {
        0 => Fate::Panics,
        1 => Fate::Exits,
        _ => Fate::Returns,
    };
    let (token, place) = (a.token(), a.place());
    let body = move |a: &mut Actor| {
        live(a, depth - 1);
        token.check();
        match fate {
            Fate::Returns => number,
            Fate::Panics => std::panic::panic_any(Planned),
            Fate::Exits => gosched::goexit(),
        }
    };
    let handle = match place {
        Place::Here | Place::There => a.start(place, body)?,
        _ => {
            let mut builder = thread::Builder::new();
            if a.rng.one_in(4) {
                builder = builder.name(format!("number {number}"));
            }
            if a.rng.one_in(6) {
                builder = builder.stack_size(128 << a.rng.within(10, 13));
            }
            let body = a.goroutine(body)?;
            a.accept(builder.spawn(body))?
        }
    };
    Some(Child {
        handle,
        number,
        fate,
    })
}

/// A goroutine that is not joined.
fn go(a: &mut Actor) {
    let token = a.token();
    let body = a.goroutine(move |a| {
        a.nap();
        token.check();
        a.op();
    });
    if let Some(body) = body {
        gosched::go(body); // if it is refused, this goroutine ends too, by a panic with that text
    }
}

/// Goroutines that borrow.
fn scope(a: &mut Actor) {
    let (sum, mut expected) = (AtomicU64::new(0), 0);
    let many = a.rng.few(6) as u64;
    let mut missing = false;
    thread::scope(|s| {
        for n in 0..many {
            let sum = &sum;
            let body = a.goroutine(move |a: &mut Actor| {
                a.nap();
                sum.fetch_add(n + 1, SeqCst);
            });
            let Some(body) = body else { continue };
            match a.accept(thread::Builder::new().spawn_scoped(s, body)) {
                Some(handle) => {
                    expected += n + 1;
                    if n % 3 == 0 {
                        missing |= handle.join().is_err();
                    }
                }
                None => missing = true,
            }
        }
    });
    let is_right = sum.load(SeqCst) == expected || missing || a.env.is_ending.load(SeqCst);
    a.expect(is_right, "a scope ended before its goroutines");
    a.op();
}

/// A plain thread starts goroutines and joins them. Joins are answered even if the runtime is
/// dropped.
fn joined_outside(a: &mut Actor) {
    if !a.rng.one_in(3) {
        return;
    }
    let many = a.rng.few(5);
    a.thread(move |a| {
        let count = Arc::new(AtomicU64::new(0));
        let mut handles = Vec::new();
        for _ in 0..many {
            let (count, place) = (Arc::clone(&count), a.place());
            let place = if place == Place::There {
                place
            } else {
                Place::Here
            };
            let handle = a.start(place, move |a| {
                a.nap();
                count.fetch_add(1, SeqCst)
            });
            handles.push(handle);
        }
        a.nap();
        a.join_all(handles);
        a.op();
    });
}
