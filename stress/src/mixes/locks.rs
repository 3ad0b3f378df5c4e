//! Locks: the data they protect is always whole, or a goroutine was unwound in the middle and the
//! lock is poisoned.
//!
//! All goroutines that wait for one lock are in one runtime. Plain threads wait only if no holder
//! can be abandoned.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use gosched::sync::{
    Barrier, Condvar, LazyLock, Mutex, Once, OnceLock, PoisonError, RwLock, Semaphore, WaitGroup,
};
use gosched::thread;

use crate::env::{Actor, Place};
use crate::ledger::Token;

pub fn root(a: &mut Actor) {
    while !a.over() {
        match a.rng.below(8) {
            0..=1 => mutex(a),
            2 => rwlock(a),
            3 => condvar(a),
            4 => barrier(a),
            5 => once(a),
            6 => semaphore(a),
            _ => wait_group(a),
        }
        a.nap();
    }
}

/// Two equal numbers, changed together.
#[derive(Default)]
struct Pair {
    left: u64,
    right: u64,
    /// A goroutine was unwound between the two changes.
    is_torn: bool,
}

impl Pair {
    /// Changes both sides, with a pause between. A goroutine that is unwound there leaves the pair
    /// torn, and marked so.
    fn change(&mut self, a: &mut Actor) {
        let is_whole = self.left == self.right || self.is_torn;
        a.expect(is_whole, "a mutex had two holders");
        if self.is_torn {
            self.right = self.left;
        }
        self.is_torn = true;
        self.left += 1;
        if a.rng.one_in(8) {
            a.nap();
        }
        self.right += 1;
        self.is_torn = false;
    }
}

struct Changes {
    pair: Mutex<Pair>,
    count: AtomicUsize,
}

fn verify_pair(changes: &Changes, a: &Actor, is_whole: bool) {
    let pair = changes.pair.lock().unwrap_or_else(PoisonError::into_inner);
    if is_whole {
        let count = changes.count.load(SeqCst) as u64;
        a.expect(
            pair.left == count && pair.right == count,
            "a change was lost",
        );
    }
}

fn mutex(a: &mut Actor) {
    let group = a.group(
        Changes {
            pair: Mutex::default(),
            count: AtomicUsize::new(0),
        },
        verify_pair,
    );
    let (many, each) = (a.rng.few(24), a.rng.few(100));
    let mut handles = Vec::new();
    for _ in 0..many {
        let (member, is_thread) = (group.member(), a.rng.one_in(8));
        let place = if is_thread {
            Place::Thread
        } else {
            Place::Same
        };
        handles.push(a.start(place, move |a| {
            let mut left = each;
            while left > 0 {
                let pair = if is_thread && a.may_hang() || a.rng.one_in(8) {
                    member.pair.try_lock().ok()
                } else {
                    Some(member.pair.lock().unwrap_or_else(PoisonError::into_inner))
                };
                match pair {
                    Some(mut pair) => {
                        pair.change(a);
                        member.count.fetch_add(1, SeqCst);
                        left -= 1;
                    }
                    // A poisoned lock cannot be taken by trying.
                    None if a.over() => return,
                    None => a.nap(),
                }
                a.op();
                if a.rng.one_in(16) {
                    a.nap();
                }
            }
            member.done();
        }));
    }
    a.join_all(handles);
}

fn rwlock(a: &mut Actor) {
    let group = a.group((RwLock::new([0u64; 16]), AtomicUsize::new(0)), |_, _, _| {});
    let mut handles = Vec::new();
    for _ in 0..a.rng.few(24) {
        let member = group.member();
        let each = a.rng.few(60);
        handles.push(a.spawn(move |a| {
            let (lock, inside) = &*member;
            for _ in 0..each {
                if a.rng.one_in(4) {
                    let mut words = lock.write().unwrap_or_else(PoisonError::into_inner);
                    a.expect(inside.load(SeqCst) == 0, "a writer among readers");
                    let next = words[0] + 1;
                    words.fill(next); // no wait here: the data is always whole
                    if a.rng.one_in(4) {
                        let words = gosched::sync::RwLockWriteGuard::downgrade(words);
                        a.expect(words.iter().all(|w| *w == next), "changed by a downgrade");
                    }
                } else {
                    let words = lock.read().unwrap_or_else(PoisonError::into_inner);
                    inside.fetch_add(1, SeqCst);
                    let first = words[0];
                    let reader = Inside(inside);
                    if a.rng.one_in(8) {
                        a.nap();
                    }
                    a.expect(words.iter().all(|w| *w == first), "changed under a reader");
                    drop(reader);
                }
                a.op();
            }
            member.done();
        }));
    }
    a.join_all(handles);
}

/// Counts an actor as inside, until dropped.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A bounded queue made of a mutex and two condition variables.
struct Queue {
    items: Mutex<(Vec<Token>, usize)>,
    has_room: Condvar,
    has_items: Condvar,
}

fn condvar(a: &mut Actor) {
    let most = a.rng.few(5);
    let group = a.group(
        Queue {
            items: Mutex::default(),
            has_room: Condvar::new(),
            has_items: Condvar::new(),
        },
        |queue, a, is_whole| {
            let items = queue.items.lock().unwrap_or_else(PoisonError::into_inner);
            a.expect(items.0.is_empty() || !is_whole, "a queue is not empty");
        },
    );
    let (producers, each) = (a.rng.few(6), a.rng.few(60));
    let mut handles = Vec::new();
    for _ in 0..producers {
        let member = group.member();
        handles.push(a.spawn(move |a| {
            for _ in 0..each {
                let token = a.token();
                let items = member.items.lock().unwrap_or_else(PoisonError::into_inner);
                let is_full = |items: &mut (Vec<Token>, usize)| items.0.len() >= most;
                let waited = member.has_room.wait_while(items, is_full);
                let mut items = waited.unwrap_or_else(PoisonError::into_inner);
                a.expect(items.0.len() < most, "a condvar returned too soon");
                items.0.push(token);
                drop(items);
                member.has_items.notify_one();
                a.op();
            }
            member.done();
        }));
    }
    // Refused producers bring nothing.
    let total = handles.iter().flatten().count() * each;
    for _ in 0..a.rng.few(6) {
        let member = group.member();
        handles.push(a.spawn(move |a| consume(a, member, total)));
    }
    // Consumers may have been refused: the root consumes as well.
    let member = group.member();
    consume(a, member, total);
    a.join_all(handles);
}

fn consume(a: &mut Actor, member: crate::env::Member<Queue>, total: usize) {
    loop {
        let mut items = member.items.lock().unwrap_or_else(PoisonError::into_inner);
        while items.0.is_empty() && items.1 < total {
            items = if a.rng.one_in(4) {
                let time = a.rng.micros(500);
                let waited = member.has_items.wait_timeout(items, time);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                let waited = member.has_items.wait(items);
                waited.unwrap_or_else(PoisonError::into_inner)
            };
        }
        let Some(token) = items.0.pop() else {
            drop(items);
            member.has_items.notify_all();
            return member.done();
        };
        items.1 += 1;
        let is_last = items.1 == total;
        drop(items);
        token.check();
        member.has_room.notify_one();
        if is_last {
            member.has_items.notify_all();
        }
        a.op();
    }
}

/// No goroutine is a phase ahead of the others.
fn barrier(a: &mut Actor) {
    struct Phases {
        barrier: Barrier,
        phase: AtomicUsize,
        leaders: AtomicUsize,
    }
    let (many, phases) = (a.rng.few(12), a.rng.few(20));
    // All or none: a barrier that lacks one never opens.
    let is_go = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
    let group = a.group(
        Phases {
            barrier: Barrier::new(many),
            phase: AtomicUsize::new(0),
            leaders: AtomicUsize::new(0),
        },
        |_, _, _| {},
    );
    let mut handles = Vec::new();
    for _ in 0..many {
        let (member, is_go) = (group.member(), Arc::clone(&is_go));
        handles.push(a.spawn(move |a| {
            while !is_go.0.load(SeqCst) {
                thread::sleep(Duration::from_micros(100));
            }
            if !is_go.1.load(SeqCst) {
                return;
            }
            for phase in 0..phases {
                member.phase.fetch_add(1, SeqCst);
                if member.barrier.wait().is_leader() {
                    member.leaders.fetch_add(1, SeqCst);
                }
                let reached = member.phase.load(SeqCst);
                a.expect(reached >= many * (phase + 1), "a barrier opened early");
                a.op();
            }
            member.done();
        }));
    }
    let is_complete = handles.iter().flatten().count() == many;
    is_go.1.store(is_complete, SeqCst);
    is_go.0.store(true, SeqCst);
    a.join_all(handles);
    if is_complete && !a.env.is_ending.load(SeqCst) {
        let leaders = group.leaders.load(SeqCst);
        a.expect(
            leaders == phases,
            format_args!("{leaders} leaders in {phases} phases"),
        );
    }
}

fn once(a: &mut Actor) {
    struct Things {
        once: Once,
        cell: OnceLock<Token>,
        lazy: LazyLock<u64, Box<dyn FnOnce() -> u64 + Send>>,
        runs: AtomicUsize,
    }
    // No wait inside: a goroutine that is unwound there would poison it for all.
    let lazy: Box<dyn FnOnce() -> u64 + Send> = Box::new(|| 42);
    let group = a.group(
        Things {
            once: Once::new(),
            cell: OnceLock::new(),
            lazy: LazyLock::new(lazy),
            runs: AtomicUsize::new(0),
        },
        |things, a, is_whole| {
            let runs = things.runs.load(SeqCst);
            a.expect(
                !is_whole || runs == 1,
                format_args!("a once ran {runs} times"),
            );
        },
    );
    let mut handles = Vec::new();
    for _ in 0..a.rng.few(20) {
        let member = group.member();
        handles.push(a.spawn(move |a| {
            if a.rng.one_in(4) {
                member.cell.get_or_init(|| a.token()).check();
                a.expect(*member.lazy == 42, "a lazy value is wrong");
            }
            member.once.call_once_force(|_| {
                a.nap();
                member.runs.fetch_add(1, SeqCst);
            });
            a.expect(
                member.once.is_completed(),
                "a once is not complete after its call",
            );
            a.expect(
                member.runs.load(SeqCst) == 1,
                "a once ran several times, or never",
            );
            a.op();
            member.done();
        }));
    }
    a.join_all(handles);
}

fn semaphore(a: &mut Actor) {
    let permits = a.rng.few(5);
    let group = a.group((Semaphore::new(permits), AtomicUsize::new(0)), |_, _, _| {});
    let mut handles = Vec::new();
    for _ in 0..a.rng.few(30) {
        let member = group.member();
        let each = a.rng.few(40);
        handles.push(a.spawn(move |a| {
            let (semaphore, inside) = &*member;
            for _ in 0..each {
                let permit = match a.rng.below(6) {
                    0 => semaphore.try_acquire(),
                    1 => semaphore.acquire_timeout(a.rng.micros(300)),
                    _ => Some(semaphore.acquire()),
                };
                if let Some(permit) = permit {
                    let now = inside.fetch_add(1, SeqCst) + 1;
                    let one = Inside(inside);
                    a.expect(now <= permits, "more inside than permits");
                    if a.rng.one_in(4) {
                        a.nap();
                    }
                    drop(one);
                    drop(permit);
                }
                a.op();
            }
            member.done();
        }));
    }
    a.join_all(handles);
    let is_calm = !a.env.is_ending.load(SeqCst);
    let free = group.0.available_permits();
    a.expect(!is_calm || free == permits, "a permit was lost");
}

fn wait_group(a: &mut Actor) {
    let (group, count) = (WaitGroup::new(), Arc::new(AtomicUsize::new(0)));
    let (many, mut expected) = (a.rng.few(40), 0);
    for _ in 0..many {
        let counts = Arc::clone(&count);
        let body = a.goroutine(move |a| {
            a.nap();
            counts.fetch_add(1, SeqCst);
            a.op();
        });
        if let Some(body) = body {
            group.go(body); // if it is refused, this goroutine ends as well
            expected += 1;
        }
    }
    if a.rng.one_in(4) {
        group.add(1);
        let others = group.clone();
        a.thread(move |_| others.done());
    }
    group.wait();
    let is_calm = !a.env.is_ending.load(SeqCst);
    let count = count.load(SeqCst);
    a.expect(!is_calm || count == expected, "a wait group did not wait");
}
