//! All runtimes of the process, the threads that are theirs, and the pool of M structs.
//!
//! The deadlock check needs it: a thread in `/proc/self/task` is a runtime's own, or foreign, and a
//! foreign thread may still wake a goroutine (D11).

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::base::lock::{Held, Lock, Rank};
use crate::sched::Sched;
use crate::sched::model::m::M;
use crate::sched::model::ptr::{AtomicRef, Mp, Ptr};
use crate::sched::park::enter;
use crate::sched::waiting::wait_slot::WaitSlot;
use crate::sys;
use crate::sys::PageVec;

const SNAPSHOT_MAX: usize = 256;

/// A thread that is not foreign.
#[derive(Clone, Copy)]
struct Thread {
    tid: i32,
    /// Null: the thread is a runtime's own. Otherwise a caller of `run`, blocked until this slot is
    /// done.
    waits_on: *const WaitSlot,
}

// SAFETY: a slot may be used by any thread. `while_blocked` removes the entry, under the lock,
// before the slot is freed.
unsafe impl Send for Thread {}

/// A runtime, in the list of runtimes.
pub(crate) struct Entry {
    sched: Arc<Sched>,
    next: Option<Box<Entry>>,
}

pub(crate) struct Registry {
    /// Newest first.
    runtimes: Option<Box<Entry>>,
    /// Sorted by id: a lookup takes a few steps among thousands.
    threads: PageVec<Thread>,
    free_ms: Option<Mp>,
}

static REGISTRY: Lock<Registry> = Lock::new(
    Rank::Registry,
    Registry {
        runtimes: None,
        threads: PageVec::new(),
        free_ms: None,
    },
);

/// The number of runtimes, for the child of a fork, in which the lock may be held for ever.
static RUNTIMES: AtomicU32 = AtomicU32::new(0);

/// Whether there is any runtime; without the lock.
pub(crate) fn has_runtimes() -> bool {
    RUNTIMES.load(Relaxed) != 0
}

pub(crate) fn lock() -> Held<'static, Registry> {
    REGISTRY.lock()
}

/// Adds a runtime. In user context, because it allocates.
pub(crate) fn add(sched: &Arc<Sched>) {
    let mut entry = Box::new(Entry {
        sched: Arc::clone(sched),
        next: None,
    });
    let _rt = enter();
    let mut registry = REGISTRY.lock();
    entry.next = registry.runtimes.take();
    registry.runtimes = Some(entry);
    RUNTIMES.fetch_add(1, Relaxed);
}

/// Removes a runtime; afterwards no check looks at it. Inside the runtime. The caller drops the
/// entry in user context: its memory is malloc's (D9).
#[must_use = "the entry is dropped in user context"]
pub(crate) fn remove(sched: &Sched) -> Option<Box<Entry>> {
    let mut registry = REGISTRY.lock();
    RUNTIMES.fetch_sub(1, Relaxed);
    let mut link = &mut registry.runtimes;
    while link.as_ref().is_some_and(|e| !ptr::eq(&*e.sched, sched)) {
        link = &mut link.as_mut()?.next;
    }
    let mut entry = link.take()?;
    *link = entry.next.take();
    Some(entry)
}

/// The calling thread is a runtime's own.
pub(crate) fn add_thread() {
    insert(ptr::null());
}

/// The calling thread ends, or is foreign again.
pub(crate) fn remove_thread() {
    disown(sys::gettid());
}

/// The thread is foreign from now on: its runtime is gone, but it may still wake a goroutine.
pub(crate) fn disown(tid: i32) {
    let mut registry = REGISTRY.lock();
    let at = registry.place_of(tid);
    if registry
        .threads
        .as_slice()
        .get(at)
        .is_some_and(|t| t.tid == tid)
    {
        registry.threads.remove(at);
    }
}

/// Calls `wait`. Meanwhile the calling thread counts as blocked in `run`, until `slot` is done.
pub(crate) fn while_blocked(slot: &WaitSlot, wait: impl FnOnce()) {
    struct Blocked;
    impl Drop for Blocked {
        fn drop(&mut self) {
            remove_thread(); // also if `wait` panics: the slot goes
        }
    }
    insert(slot);
    let _blocked = Blocked;
    wait();
}

fn insert(waits_on: *const WaitSlot) {
    let tid = sys::gettid();
    let mut registry = REGISTRY.lock();
    let at = registry.place_of(tid);
    // Without memory for the entry the thread counts as foreign: a report may be missed, never
    // false.
    let _ = registry.threads.insert(at, Thread { tid, waits_on });
}

impl Registry {
    pub(crate) fn runtimes(&self) -> impl Iterator<Item = &Arc<Sched>> + '_ {
        let entries = std::iter::successors(self.runtimes.as_deref(), |e| e.next.as_deref());
        entries.map(|entry| &entry.sched)
    }

    /// The index of the thread, or where to insert it.
    fn place_of(&self, tid: i32) -> usize {
        self.threads.as_slice().partition_point(|t| t.tid < tid)
    }

    /// Whether the thread may wake a goroutine: it is no runtime's, or its `run` has been answered.
    pub(crate) fn is_foreign(&self, tid: i32) -> bool {
        let found = self.threads.as_slice().get(self.place_of(tid));
        match found.filter(|t| t.tid == tid) {
            None => true,
            // SAFETY: D11, `while_blocked` removes the entry before the slot is freed.
            Some(thread) => unsafe { thread.waits_on.as_ref() }.is_some_and(WaitSlot::is_done),
        }
    }
}

/// Every runtime, kept alive by the references in the list. In user context.
pub(crate) fn snapshot() -> Vec<Arc<Sched>> {
    let mut found = Vec::with_capacity(SNAPSHOT_MAX);
    let _rt = enter();
    let registry = REGISTRY.lock();
    found.extend(registry.runtimes().take(SNAPSHOT_MAX).map(Arc::clone));
    found
}

/// Takes an M struct from the pool, or a new one. They are never freed. In user context, because it
/// may allocate.
pub(crate) fn take_m() -> Mp {
    let mut registry = REGISTRY.lock();
    if let Some(m) = registry.free_ms {
        registry.free_ms = m.freelink.take();
        m.park.clear();
        return m;
    }
    drop(registry);
    let m = Ptr::leak(Box::new(M::new()));
    let _registry = REGISTRY.lock();
    m.everylink.store(EVERY_M.load(Relaxed), Relaxed);
    // ORDER: Release; pairs with the Acquire in `every_m`.
    EVERY_M.store(Some(m), Release);
    m
}

/// All Ms that ever were, newest first. The list only grows, under the lock.
static EVERY_M: AtomicRef<M> = AtomicRef::none();

/// All Ms that ever were, also those in the pool. Without a lock, and not to be called under one:
/// there may be thousands.
pub(crate) fn every_m() -> impl Iterator<Item = Mp> {
    // ORDER: Acquire; pairs with the Release in `take_m`.
    std::iter::successors(EVERY_M.load(Acquire), |m| m.everylink.load(Acquire))
}

pub(crate) fn give_m(m: Mp) {
    m.home.set(ptr::null());
    m.tid.store(0, Relaxed);
    m.asked.store(0, Relaxed);
    m.claim.reset(0);
    m.bound.store(None, Relaxed);
    m.oldp.store(None, Relaxed);
    m.signalled.store(false, Relaxed);
    m.lockedg.store(None, Relaxed);
    m.curg.store(None, Relaxed);
    m.nextp.store(None, Relaxed);
    m.spinning.put(None);
    m.blocked.store(false, Relaxed);
    let mut registry = REGISTRY.lock();
    m.freelink.set(registry.free_ms);
    registry.free_ms = Some(m);
}
