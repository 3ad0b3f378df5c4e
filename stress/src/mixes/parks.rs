//! park and unpark: a waiter is taken out of a list and woken; unexpected tokens come at all times.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use gosched::thread::{self, Thread};

use crate::env::{Actor, Group, Place};
use crate::ledger::lock;

#[derive(Default)]
struct Lists {
    /// Parked until another actor takes them out of here.
    waiting: Mutex<Vec<(Thread, Arc<AtomicBool>)>>,
    /// Goroutines that get unexpected tokens.
    known: Mutex<Vec<Thread>>,
}

impl Lists {
    fn wake(&self, n: usize) {
        for _ in 0..n {
            let Some((thread, is_wanted)) = lock(&self.waiting).pop() else {
                return;
            };
            is_wanted.store(true, SeqCst);
            thread.unpark();
        }
    }

    fn stray(&self, a: &mut Actor) {
        let known = lock(&self.known);
        if known.is_empty() {
            return;
        }
        let thread = known[a.rng.below(known.len() as u64) as usize].clone();
        drop(known);
        thread.unpark();
    }
}

pub fn root(a: &mut Actor) {
    while !a.over() {
        let group = a.group(Lists::default(), |_, _, _| {});
        let many = a.rng.few(40);
        let mut handles = Vec::new();
        for _ in 0..many {
            let group = Arc::clone(&group);
            handles.push(a.spawn(move |a| live(a, &group)));
        }
        if a.rng.one_in(3) {
            let group = Arc::clone(&group);
            a.start(Place::Thread, move |a| {
                for _ in 0..200 {
                    group.stray(a);
                    group.wake(1);
                    std::thread::sleep(a.rng.micros(100));
                }
            });
        }
        // Only the root can wake the last waiters. Those that were unwound are finished as well.
        let is_left = |handles: &[Option<thread::JoinHandle<()>>]| {
            handles.iter().flatten().any(|handle| !handle.is_finished())
        };
        while is_left(&handles) {
            group.wake(4);
            thread::sleep(a.rng.micros(200));
        }
        a.join_all(handles);
    }
}

fn live(a: &mut Actor, group: &Arc<Group<Lists>>) {
    lock(&group.known).push(thread::current());
    for _ in 0..a.rng.few(12) {
        match a.rng.below(8) {
            0..=2 => wait(a, group),
            3..=4 => group.wake(a.rng.few(3)),
            5 => group.stray(a),
            _ => a.nap(),
        }
        a.op();
    }
}

fn wait(a: &mut Actor, group: &Arc<Group<Lists>>) {
    let is_wanted = Arc::new(AtomicBool::new(false));
    lock(&group.waiting).push((thread::current(), Arc::clone(&is_wanted)));
    let is_timed = a.rng.one_in(3);
    while !is_wanted.load(SeqCst) {
        if is_timed {
            thread::park_timeout(a.rng.micros(500));
        } else {
            thread::park();
        }
    }
}
