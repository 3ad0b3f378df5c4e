//! A runtime's timers: a 4-ary heap of sleeping goroutines, and the M that watches it.
//!
//! A goroutine has at most one timer, so the heap holds goroutines and each G knows its place: taking one out
//! from the middle is a matter of the heap's depth. A goroutine is put in by its park's commit, when it is
//! already Waiting, and taken out by whoever claims its wake-up: the expiry, or an `unpark` that came first.
//!
//! Protocol. All under one lock. `next` mirrors the earliest deadline for readers without it. One M at a
//! time *watches*: it publishes until when it sleeps, then looks at `next` again; who puts in an earlier timer
//! stores `next` and then looks at the watcher. With a barrier on both sides one of them sees the other.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use crate::os::{Errno, PageVec};
use crate::sched::g::GQueue;
use crate::sched::gstatus::Status;
use crate::sched::lock::{Held, Lock, Rank};
use crate::sched::note::Note;
use crate::sched::ptr::Gp;

const ARITY: usize = 4;
/// "Not in the heap".
const NOWHERE: u32 = u32::MAX;
/// Timers run in one hold of the lock.
const EXPIRE_MAX: usize = 128;

/// Claims the wake-up of a goroutine whose time has come; false: somebody else has.
pub(crate) type Claim = unsafe fn(Gp) -> bool;

#[derive(Clone, Copy)]
struct Entry {
    when: u64,
    g: Gp,
    claim: Claim,
}

pub(crate) struct Heap {
    entries: PageVec<Entry>,
    /// Places promised to goroutines on their way into a wait, where nothing may fail.
    promised: usize,
}

/// The timers of one runtime.
pub(crate) struct Timers {
    heap: Lock<Heap>,
    next: AtomicU64,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers {
            heap: Lock::new(
                Rank::Timers,
                Heap {
                    entries: PageVec::new(),
                    promised: 0,
                },
            ),
            next: AtomicU64::new(u64::MAX),
        }
    }

    /// The earliest deadline; `u64::MAX` when there is none.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Pending timers.
    pub(crate) fn len(&self) -> usize {
        self.heap.lock().entries.len()
    }

    /// Promises a place, so that the commit that follows cannot fail.
    pub(crate) fn promise(&self) -> Result<(), Errno> {
        let mut heap = self.heap.lock();
        let wanted = heap.entries.len() + heap.promised + 1;
        let missing = wanted - heap.entries.len();
        heap.entries.reserve(missing)?;
        heap.promised += 1;
        Ok(())
    }

    /// Gives a promised place back unused.
    pub(crate) fn unpromise(&self) {
        self.heap.lock().promised -= 1;
    }

    /// The lock, for a commit that must publish the goroutine elsewhere in the same step.
    pub(crate) fn lock(&self) -> Held<'_, Heap> {
        self.heap.lock()
    }

    /// Puts a Waiting goroutine in, with a place promised; true if it is the earliest now.
    pub(crate) fn insert(&self, heap: &mut Held<'_, Heap>, g: Gp, when: u64, claim: Claim) -> bool {
        heap.promised -= 1;
        let at = heap.entries.len();
        if heap.entries.push(Entry { when, g, claim }).is_err() {
            crate::sched::fatal::throw("a promised timer had no place");
        }
        g.timer_when.set(when);
        heap.place(at);
        heap.up(at);
        self.publish(heap);
        g.timer_index.get() == 0
    }

    /// Takes a goroutine's timer out, if it is still in.
    pub(crate) fn remove(&self, g: Gp) -> bool {
        let mut heap = self.heap.lock();
        let removed = heap.remove(g);
        if removed {
            self.publish(&heap);
        }
        removed
    }

    /// Takes out what is due and makes it Runnable; the caller queues the goroutines. At most a batch.
    pub(crate) fn expire(&self, now: u64) -> GQueue {
        let mut due = GQueue::new();
        if self.next_ns() > now {
            return due;
        }
        self.take_due(now, &mut due);
        // Without the lock: who holds the Scan bit of one of them may be waiting for it, to take the timer out.
        for g in due.iter() {
            g.status.transition(Status::Waiting, Status::Runnable);
        }
        due
    }

    fn take_due(&self, now: u64, due: &mut GQueue) {
        let mut heap = self.heap.lock();
        while due.len() < EXPIRE_MAX
            && let Some(&first) = heap.entries.as_slice().first()
            && first.when <= now
        {
            heap.remove(first.g);
            // SAFETY: G4, the goroutine is Waiting and in this heap; under the lock it cannot be gone.
            if unsafe { (first.claim)(first.g) } {
                due.push_back(first.g);
            }
        }
        self.publish(&heap);
    }

    fn publish(&self, heap: &Heap) {
        let next = heap.entries.as_slice().first().map_or(u64::MAX, |e| e.when);
        // ORDER: SeqCst; the barrier for the watcher is in `Poller::kick`.
        self.next.store(next, SeqCst);
    }
}

impl Heap {
    fn place(&mut self, at: usize) {
        self.entries.as_slice()[at].g.timer_index.set(at as u32);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.as_mut_slice().swap(a, b);
        self.place(a);
        self.place(b);
    }

    fn when(&self, at: usize) -> u64 {
        self.entries.as_slice()[at].when
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.when(parent) <= self.when(at) {
                return;
            }
            self.swap(parent, at);
            at = parent;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let first = at * ARITY + 1;
            let children = first..(first + ARITY).min(self.entries.len());
            let Some(least) = children.min_by_key(|child| self.when(*child)) else {
                return;
            };
            if self.when(at) <= self.when(least) {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn remove(&mut self, g: Gp) -> bool {
        let at = g.timer_index.replace(NOWHERE);
        if at == NOWHERE {
            return false;
        }
        let at = at as usize;
        self.entries.swap_remove(at);
        if at < self.entries.len() {
            self.place(at);
            self.up(at);
            let at = self.entries.as_slice()[at].g.timer_index.get() as usize;
            self.down(at);
        }
        true
    }

    /// The heap order and every G's place, for checks.
    pub(crate) fn is_sound(&self) -> bool {
        let entries = self.entries.as_slice();
        entries.iter().enumerate().all(|(at, e)| {
            e.g.timer_index.get() as usize == at
                && (at == 0 || entries[(at - 1) / ARITY].when <= e.when)
        })
    }
}

const NOBODY: u64 = 0;
/// Somebody is about to watch.
const COMING: u64 = 1;

/// Who waits for the next timer, without a P.
pub(crate) struct Poller {
    /// Until when the watcher sleeps (ns), or one of the words above.
    until: AtomicU64,
    note: Note,
}

impl Poller {
    pub(crate) fn new() -> Poller {
        Poller {
            until: AtomicU64::new(NOBODY),
            note: Note::new(),
        }
    }

    pub(crate) fn is_watching(&self) -> bool {
        self.until.load(Relaxed) != NOBODY
    }

    /// Becomes the watcher, if there is a timer and nobody watches; true: `sleep` must follow. Under the scheduler lock, so
    /// that who queues a P for the next free M sees either that M or a watcher to wake.
    #[must_use = "the watcher must sleep"]
    pub(crate) fn begin(&self, timers: &Timers) -> bool {
        timers.next_ns() != u64::MAX
            && self
                .until
                .compare_exchange(NOBODY, COMING, SeqCst, Relaxed)
                .is_ok()
    }

    /// The watcher sleeps until the next timer is due or somebody kicks.
    pub(crate) fn sleep(&self, timers: &Timers) {
        loop {
            let until = timers.next_ns();
            if until == u64::MAX {
                break;
            }
            self.until.store(until.max(COMING), SeqCst);
            // FENCE: timer/2 — the announcement before the second look at `next`; meets timer/1 in `kick`.
            fence(SeqCst);
            if timers.next_ns() >= until {
                self.note.sleep_until(until);
                break;
            }
        }
        // Cleared before the next watcher can come, never after: a wake meant for that one must stay. One meant for us
        // that comes late costs the next a needless turn.
        self.note.clear();
        self.until.store(NOBODY, SeqCst);
    }

    /// A timer for `when` was put in as the earliest: the watcher must not oversleep. False: nobody watches.
    pub(crate) fn kick(&self, when: u64) -> bool {
        // FENCE: timer/1 — `next` before the look at the watcher; meets timer/2 in `sleep`.
        fence(SeqCst);
        let until = self.until.load(SeqCst);
        if until > when {
            self.note.wakeup();
        }
        until != NOBODY
    }

    /// Ends any wait: the runtime is being dropped.
    pub(crate) fn wake(&self) {
        self.note.wakeup();
    }
}
