//! The words of the locks, with a parking table that is one lock and a few queues (U10). Exclusion
//! holds, a holder sees what the last one did, and no waiter is forgotten. Loom reports a lost
//! wake-up as a deadlock.
//!
//! The library's code between the words' steps (`sync::raw`, `rwlock`, `waitgroup`, `semaphore`) is
//! repeated here, without spinning and clocks: the story decides which waiter starves, and which
//! spins.

use std::collections::VecDeque;
use std::sync::Arc;

use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use super::{Plain, explore};
use crate::mutex_word::{LOCKED, LockWord, Locker};
use crate::rwlock_word::READERS_WAIT;
use crate::semaphore_word::SemaphoreWord;
use crate::shim::{AtomicUsize, Relaxed};
use crate::waitgroup_word::{Done, GroupWord};

/// Queues of a word.
const OWN: usize = 0;
const READERS: usize = 1;
const DRAIN: usize = 2;

const COMPETE: usize = 0;
const HANDED_OVER: usize = 1;

/// What the table's lock guards: tickets in queues, and tokens for popped ones.
struct Queues {
    waiting: [VecDeque<usize>; 3],
    tokens: Vec<(usize, usize)>,
    tickets: usize,
}

struct Table {
    queues: Mutex<Queues>,
    woken: Condvar,
}

impl Table {
    fn new() -> Table {
        Table {
            queues: Mutex::new(Queues {
                waiting: Default::default(),
                tokens: Vec::new(),
                tickets: 0,
            }),
            woken: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap()
    }

    /// None: the waiter did not have to wait.
    fn park(&self, queue: usize, at_front: bool, queue_up: impl FnOnce() -> bool) -> Option<usize> {
        let mut queues = self.lock();
        if !queue_up() {
            return None;
        }
        let ticket = queues.tickets;
        queues.tickets += 1;
        match at_front {
            true => queues.waiting[queue].push_front(ticket),
            false => queues.waiting[queue].push_back(ticket),
        }
        loop {
            queues = self.woken.wait(queues).unwrap();
            if let Some(at) = queues.tokens.iter().position(|(of, _)| *of == ticket) {
                return Some(queues.tokens.remove(at).1);
            }
        }
    }

    fn finish(&self, queues: &mut Queues, ticket: usize, token: usize) {
        queues.tokens.push((ticket, token));
        self.woken.notify_all();
    }
}

/// A lock, its table, and what it guards.
struct Lock {
    word: LockWord,
    table: Table,
    count: Plain,
}

impl Lock {
    fn new() -> Arc<Lock> {
        Arc::new(Lock {
            word: LockWord(AtomicUsize::new(0)),
            table: Table::new(),
            count: Plain::new(0),
        })
    }

    /// `lock_slow`. A waiter that `starves` has waited too long whenever it wakes; one that `spins`
    /// sets WOKEN once. Returns false if it gave up: it `leaves` instead of waiting a second time.
    fn lock_as(&self, starves: bool, spins: bool, leaves: bool) -> bool {
        if self.word.lock_fast() {
            return true;
        }
        let mut me = Locker::default();
        let mut has_waited = false;
        if spins {
            me.is_woken = self.word.announce();
        }
        loop {
            if self.word.acquire(LOCKED, me).is_ok() {
                return true;
            }
            if leaves && has_waited {
                if me.is_woken {
                    self.pass_on();
                }
                return false;
            }
            match self.table.park(OWN, has_waited, || self.word.queue_up(me)) {
                Some(HANDED_OVER) => {
                    if !starves {
                        self.word.calm_down();
                    }
                    return true;
                }
                Some(_) => {
                    me.is_woken = true;
                    me.is_starving = starves;
                    has_waited = true;
                }
                None => {}
            }
        }
    }

    fn lock(&self) {
        self.lock_as(false, false, false);
    }

    fn pass_on(&self) {
        let mut queues = self.table.lock();
        let popped = queues.waiting[OWN].pop_front();
        let are_more = !queues.waiting[OWN].is_empty();
        self.word.passed_on(popped.is_some(), are_more);
        if let Some(ticket) = popped {
            self.table.finish(&mut queues, ticket, COMPETE);
        }
    }

    /// `unlock_slow`, also for a RwLock's writer.
    fn unlock(&self) {
        if self.word.unlock_fast() || self.word.unlock(READERS_WAIT) {
            return;
        }
        let mut queues = self.table.lock();
        while let Some(ticket) = queues.waiting[READERS].pop_front() {
            self.word.admit();
            self.table.finish(&mut queues, ticket, COMPETE);
        }
        let popped = match self.word.wants_waiter() {
            true => queues.waiting[OWN].pop_front(),
            false => None,
        };
        let are_more = !queues.waiting[OWN].is_empty();
        let is_handed_over = self.word.release(popped.is_some(), are_more, READERS_WAIT);
        if let Some(ticket) = popped {
            let token = if is_handed_over { HANDED_OVER } else { COMPETE };
            self.table.finish(&mut queues, ticket, token);
        }
    }

    fn use_once(&self, starves: bool, spins: bool) {
        self.lock_as(starves, spins, false);
        self.count.add(1);
        self.unlock();
    }

    /// The lock is free, and nothing is left over.
    fn assert_at_rest(&self) {
        assert_eq!(self.word.0.load(Relaxed), 0);
    }

    fn write(&self) {
        self.lock();
        while self.word.has_readers() {
            self.table.park(DRAIN, false, || self.word.queue_drain());
        }
    }

    fn read(&self) {
        while self.word.read().is_err() {
            if self
                .table
                .park(READERS, false, || self.word.queue_reader())
                .is_some()
            {
                return;
            }
        }
    }

    fn unread(&self) {
        if self.word.unread() {
            return;
        }
        let mut queues = self.table.lock();
        if self.word.unread_last()
            && let Some(ticket) = queues.waiting[DRAIN].pop_front()
        {
            self.table.finish(&mut queues, ticket, COMPETE);
        }
    }
}

/// Runs each of the parts in a thread of its own, the last one here.
fn together<T: Send + Sync + 'static>(shared: &Arc<T>, parts: &[fn(&T)]) {
    let (last, others) = parts.split_last().unwrap();
    let threads: Vec<_> = others
        .iter()
        .map(|part| {
            let (shared, part) = (Arc::clone(shared), *part);
            thread::spawn(move || part(&shared))
        })
        .collect();
    last(shared);
    threads.into_iter().for_each(|one| one.join().unwrap());
}

/// Two threads that lock twice each, one of them spinning. Fails if a release does not publish, if
/// WOKEN outlives the waiter it was set for, or if a queue is forgotten.
#[test]
fn u10_a_mutex_in_normal_mode() {
    explore(Some(4), || {
        let lock = Lock::new();
        together(
            &lock,
            &[
                |lock| {
                    lock.use_once(false, false);
                    lock.use_once(false, false);
                },
                |lock| {
                    lock.use_once(false, true);
                    lock.use_once(false, true);
                },
            ],
        );
        assert_eq!(lock.count.get(), 4);
        lock.assert_at_rest();
    });
}

#[test]
fn u10_a_mutex_of_three() {
    explore(Some(3), || {
        let lock = Lock::new();
        together(
            &lock,
            &[
                |lock| lock.use_once(false, false),
                |lock| lock.use_once(false, true),
                |lock| lock.use_once(false, false),
            ],
        );
        assert_eq!(lock.count.get(), 3);
        lock.assert_at_rest();
    });
}

/// One waiter starves as soon as it has lost, and is handed the lock; the others come after it.
/// Fails if the hand-off loses a waiter, or if the starving mode outlives the last one.
#[test]
fn u10_a_mutex_that_is_handed_over() {
    explore(Some(3), || {
        let lock = Lock::new();
        together(
            &lock,
            &[
                |lock| {
                    lock.use_once(true, false);
                },
                |lock| {
                    lock.use_once(false, false);
                    lock.use_once(false, true);
                },
            ],
        );
        assert_eq!(lock.count.get(), 3);
        lock.assert_at_rest();
    });
    explore(Some(2), || {
        let lock = Lock::new();
        together(
            &lock,
            &[
                |lock| lock.use_once(true, false),
                |lock| lock.use_once(true, false),
                |lock| {
                    lock.use_once(false, false);
                    lock.use_once(false, false);
                },
            ],
        );
        assert_eq!(lock.count.get(), 4);
        lock.assert_at_rest();
    });
}

/// A woken waiter leaves: another one is woken in its place. Fails if it just leaves.
#[test]
fn u10_a_waiter_that_leaves_passes_the_wake_up_on() {
    explore(Some(3), || {
        let lock = Lock::new();
        together(
            &lock,
            &[
                |lock| {
                    if lock.lock_as(false, false, true) {
                        lock.count.add(1);
                        lock.unlock();
                    }
                },
                |lock| lock.use_once(false, false),
                |lock| {
                    lock.use_once(false, false);
                    lock.use_once(false, false);
                },
            ],
        );
        assert!(lock.count.get() >= 3);
        lock.assert_at_rest();
    });
}

/// Writers and readers: none reads while one writes. Fails if a leaving reader does not publish, or
/// if the last one forgets the writer or the queued readers.
#[test]
fn u10_a_rwlock() {
    let write: fn(&Lock) = |lock| {
        lock.write();
        lock.count.add(1);
        lock.unlock();
    };
    let read: fn(&Lock) = |lock| {
        lock.read();
        assert!(lock.count.get() <= 2);
        lock.unread();
    };
    explore(Some(3), move || {
        let lock = Lock::new();
        together(&lock, &[write, read, read]);
        assert_eq!(lock.count.get(), 1);
        lock.assert_at_rest();
    });
    explore(Some(3), move || {
        let lock = Lock::new();
        together(&lock, &[write, read, write]);
        assert_eq!(lock.count.get(), 2);
        lock.assert_at_rest();
    });
    explore(Some(3), move || {
        let lock = Lock::new();
        together(
            &lock,
            &[write, |lock| {
                // A writer becomes a reader.
                lock.write();
                lock.count.add(1);
                lock.word.admit();
                lock.unlock();
                assert!(lock.count.get() >= 1);
                lock.unread();
            }],
        );
        assert_eq!(lock.count.get(), 2);
        lock.assert_at_rest();
    });
}

struct Group {
    word: GroupWord,
    table: Table,
    parts: [Plain; 2],
}

impl Group {
    fn done(&self) {
        match self.word.done() {
            Done::Counted => {}
            Done::Negative => panic!("below zero"),
            Done::Last => {
                let mut queues = self.table.lock();
                if self.word.done_last() == Done::Last {
                    while let Some(ticket) = queues.waiting[OWN].pop_front() {
                        self.table.finish(&mut queues, ticket, COMPETE);
                    }
                }
            }
        }
    }

    fn wait(&self) {
        while self.word.count() > 0 {
            if self
                .table
                .park(OWN, false, || self.word.queue_up())
                .is_some()
            {
                break;
            }
        }
        assert_eq!(
            self.parts[0].get() + self.parts[1].get(),
            2,
            "all have come"
        );
    }
}

/// Two threads that finish, and one or two that wait for both and see what they did. Fails if a
/// `done` does not pass on what the one before it published, or if the last one misses a waiter.
#[test]
fn u10_a_wait_group() {
    for waiters in [1, 2] {
        explore(Some(3), move || {
            let group = Arc::new(Group {
                word: GroupWord(AtomicUsize::new(0)),
                table: Table::new(),
                parts: [Plain::new(0), Plain::new(0)],
            });
            assert!(group.word.add(2));
            let come = |part: usize| {
                let group = Arc::clone(&group);
                thread::spawn(move || {
                    group.parts[part].add(1);
                    group.done();
                })
            };
            let threads = [come(0), come(1)];
            let other = (waiters == 2).then(|| {
                let group = Arc::clone(&group);
                thread::spawn(move || group.wait())
            });
            group.wait();
            threads
                .into_iter()
                .chain(other)
                .for_each(|one| one.join().unwrap());
        });
    }
}

struct Permits {
    word: SemaphoreWord,
    table: Table,
    count: Plain,
}

/// A semaphore of one permit is a mutex. Fails if a release does not publish, or if a permit is
/// lost on its way to a waiter.
#[test]
fn u10_a_semaphore() {
    let uses: fn(&Permits) = |permits| {
        while !permits.word.acquire() {
            if permits
                .table
                .park(OWN, false, || permits.word.queue_up())
                .is_some()
            {
                break;
            }
        }
        permits.count.add(1);
        if permits.word.release() {
            return;
        }
        let mut queues = permits.table.lock();
        let popped = queues.waiting[OWN].pop_front();
        permits
            .word
            .release_to(popped.is_some(), !queues.waiting[OWN].is_empty());
        if let Some(ticket) = popped {
            permits.table.finish(&mut queues, ticket, COMPETE);
        }
    };
    explore(Some(3), move || {
        let permits = Arc::new(Permits {
            word: SemaphoreWord(AtomicUsize::new(SemaphoreWord::of(1))),
            table: Table::new(),
            count: Plain::new(0),
        });
        together(&permits, &[uses, uses, uses]);
        assert_eq!((permits.count.get(), permits.word.free()), (3, 1));
    });
}
