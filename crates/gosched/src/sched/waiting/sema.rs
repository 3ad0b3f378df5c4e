//! The parking table: where goroutines and plain threads wait on an address (Go's semaphore table;
//! a futex for both).
//!
//! A lock is a word or two. A goroutine or thread that has to wait for it waits here, under the
//! word's address as the *key*. So a lock needs neither memory of its own for waiters nor a
//! destructor, and can be made in a constant. What a waiter needs lies on its stack.
//!
//! The rules for waiting and waking:
//!
//! 1. *Queueing* is decided under the table's lock. [`KeyWait::park`] takes the lock and checks in
//!    the object's word whether it is still time to wait. The word is then marked: it has waiters.
//!    The waiter goes into the queue of its key.
//! 2. *Waking* is decided under the same lock: [`lock`] the key, [`pop`](LockedBucket::pop)
//!    waiters, change the word, then [finish](ClaimedWaiter::finish) the popped ones. The change of
//!    the word is the last touch of the object that is waited on: the object may be gone as soon as
//!    another thread can have it. So no waiter is woken by an earlier owner of that memory.
//! 3. The table's lock is dropped, then the popped waiters are woken.
//!
//! One key may have many waiters, and many keys share one bucket; neither makes the other slow. The
//! first waiter of each key holds the key's queue. These first waiters form a tree: one step down
//! for every bit of the key's hash. The tree does not depend on which of two keys is above the
//! other, so any leaf below replaces a waiter that leaves. Hashes of different keys differ, so the
//! tree is never deeper than a hash has bits. Its depth is about the logarithm of its size as a
//! rule.
//!
//! ```text
//!  bucket ─► place of key a ── queue ─► 1st waiter of a (this place), 2nd, 3rd …
//!               │0      │1
//!           key b ─…   key c ─…
//! ```
//!
//! The keys of one object are its word's address and the numbers behind it, below the next multiple
//! of eight. They share a bucket, so one lock covers them. A waiter that was abandoned with its
//! runtime stays in its queue, claimed, until a pop removes it (D2). At most, a word counts one
//! waiter too many because of it.

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomPinned;
use std::ptr;

use crate::base::lock::{Held, Lock, Rank};
use crate::sched::model::current::current_g;
use crate::sched::park::{Entered, enter};
use crate::sched::waiting::waitq::{
    ClaimedWaiter, On, Outcome, QueueEnd, WaitKind, WaitNode, WaitQueue, Waiter, WakeList,
};

const BUCKET_BITS: u32 = 10;
const BUCKETS: usize = 1 << BUCKET_BITS;
/// An odd number near 2^64 divided by the golden ratio. Multiplying by it is one to one and mixes
/// the bits upwards.
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;

/// One waiter's place in the table.
struct ParkedWaiter {
    node: WaitNode,
    key: usize,
    /// While it is the first of its key: the two trees below it, and the key's queue.
    below: [Cell<*const ParkedWaiter>; 2],
    queue: Cell<WaitQueue>,
    _pin: PhantomPinned,
}

fn place(waiter: &Waiter, key: usize) -> ParkedWaiter {
    ParkedWaiter {
        node: WaitNode::new(waiter, 0),
        key,
        below: [const { Cell::new(ptr::null()) }; 2],
        queue: Cell::new(WaitQueue::new()),
        _pin: PhantomPinned,
    }
}

/// The top of a bucket's tree.
struct Bucket {
    top: Cell<*const ParkedWaiter>,
}

// SAFETY: G4, D9: places are reached only under the bucket's lock, and stay until they are taken
// out.
unsafe impl Send for Bucket {}

#[repr(align(64))]
struct BucketLine(Lock<Bucket>);

static TABLE: [BucketLine; BUCKETS] = [const {
    BucketLine(Lock::new(
        Rank::Sema,
        Bucket {
            top: Cell::new(ptr::null()),
        },
    ))
}; BUCKETS];

/// The lock of a key's bucket. User code does not run meanwhile.
pub(crate) struct LockedBucket {
    // In this order: the lock is dropped inside the runtime.
    bucket: Held<'static, Bucket>,
    _rt: Entered,
}

/// Locks everything that has to do with the object of `key`.
pub(crate) fn lock(key: usize) -> LockedBucket {
    let rt = enter();
    let hash = ((key & !7) as u64).wrapping_mul(MIX);
    let line = &TABLE[(hash >> (u64::BITS - BUCKET_BITS)) as usize];
    LockedBucket {
        bucket: line.0.lock(),
        _rt: rt,
    }
}

/// The way down the tree: one bit per step, the highest first.
fn path_of(key: usize) -> u64 {
    (key as u64).wrapping_mul(MIX).rotate_left(BUCKET_BITS)
}

/// A waiter that was popped: claimed, and still in its wait.
pub(crate) struct Popped {
    node: &'static WaitNode,
    claim: ClaimedWaiter,
}

impl Popped {
    /// Ends its wait; [`park`] returns `token`. It is woken with the list.
    pub(crate) fn finish(self, token: usize, wake: &mut WakeList) {
        self.node.word.set(token);
        self.claim.finish(wake);
    }
}

impl LockedBucket {
    /// The link to the first place of `key`, or the link where it belongs.
    fn slot(&self, key: usize) -> &Cell<*const ParkedWaiter> {
        let mut slot = &self.bucket.top;
        let mut path = path_of(key);
        // SAFETY: G4, a place in the tree is alive, and the bucket's lock is held.
        while let Some(place) = unsafe { slot.get().as_ref() }
            && place.key != key
        {
            slot = &place.below[(path >> (u64::BITS - 1)) as usize];
            path <<= 1;
        }
        slot
    }

    /// Works on the queue of the key whose first place is linked at `slot`, then links the place
    /// that is first afterwards.
    fn with_queue<R>(
        slot: &Cell<*const ParkedWaiter>,
        work: impl FnOnce(&mut WaitQueue) -> R,
    ) -> R {
        // SAFETY: G4, a place in the tree is alive. One that leaves its queue in `work` stays until
        // the lock is dropped.
        let old = unsafe { &*slot.get() };
        let mut queue = old.queue.replace(WaitQueue::new());
        let result = work(&mut queue);
        let first = queue.iter().next().map(|node| node.elem.get().cast_const());
        let Some(first) = first.map(<*const u8>::cast::<ParkedWaiter>) else {
            unhang(slot, old);
            return result;
        };
        // SAFETY: G4, the place is in the queue. `elem` of its node is the place that the node is
        // in.
        let first = unsafe { &*first };
        if !ptr::eq(first, old) {
            first.below[0].set(old.below[0].get());
            first.below[1].set(old.below[1].get());
            slot.set(first);
        }
        first.queue.set(queue);
        result
    }

    /// Puts a place into the queue of its key.
    ///
    /// # Safety
    /// The place is in no queue, and neither it nor its waiter moves or ends before it is out
    /// again.
    unsafe fn push(&mut self, place: &ParkedWaiter, at: QueueEnd) {
        place.node.elem.set(ptr::from_ref(place).cast_mut().cast());
        let slot = self.slot(place.key);
        if slot.get().is_null() {
            place.below[0].set(ptr::null());
            place.below[1].set(ptr::null());
            slot.set(place);
        }
        Self::with_queue(slot, |queue| {
            // SAFETY: the place is in no queue, and stays until it is out again, as the caller
            // promises.
            unsafe { queue.push(&place.node, at) };
        });
    }

    /// Claims the first waiter of `key` and takes it out. The caller changes the word before it
    /// finishes the popped waiter.
    pub(crate) fn pop(&mut self, key: usize) -> Option<Popped> {
        let slot = self.slot(key);
        if slot.get().is_null() {
            return None;
        }
        let (node, claim) = Self::with_queue(slot, WaitQueue::pop)?;
        Some(Popped { node, claim })
    }

    /// Ends the waits of all waiters that are queued on `key`, in order. Calls `admit` before each,
    /// so that the object counts the waiter in.
    pub(crate) fn pop_all(&mut self, key: usize, mut admit: impl FnMut(), wake: &mut WakeList) {
        let slot = self.slot(key);
        // SAFETY: G4, a place in the tree is alive, and the bucket's lock is held.
        let Some(first) = (unsafe { slot.get().as_ref() }) else {
            return;
        };
        let mut queue = first.queue.replace(WaitQueue::new());
        unhang(slot, first);
        while let Some((node, claim)) = queue.pop() {
            admit();
            Popped { node, claim }.finish(0, wake);
        }
    }

    /// Whether a waiter is queued on `key`.
    pub(crate) fn has(&self, key: usize) -> bool {
        !self.slot(key).get().is_null()
    }

    /// Takes a place out. False: it is out already, removed by a pop.
    fn remove(&mut self, place: &ParkedWaiter) -> bool {
        place.node.is_queued() && {
            let slot = self.slot(place.key);
            Self::with_queue(slot, |queue| queue.remove(&place.node))
        }
    }
}

/// Takes the place at `slot` out of the tree; a leaf below it takes its position.
fn unhang(slot: &Cell<*const ParkedWaiter>, place: &ParkedWaiter) {
    let mut leaf_slot = slot;
    let mut leaf = place;
    loop {
        let lower = leaf.below.iter().find(|below| !below.get().is_null());
        let Some(lower) = lower else { break };
        leaf_slot = lower;
        // SAFETY: G4, a place in the tree is alive, and the bucket's lock is held.
        leaf = unsafe { &*lower.get() };
    }
    leaf_slot.set(ptr::null());
    if !ptr::eq(leaf, place) {
        leaf.below[0].set(place.below[0].get());
        leaf.below[1].set(place.below[1].get());
        slot.set(leaf);
    }
}

/// How a park ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ParkResult {
    /// It was not time to wait.
    Refused,
    /// A pop ended the wait, with this token.
    Got(usize),
    TimedOut,
    /// The runtime asks the goroutine to unwind. When all is in order it calls `check_cancelled`,
    /// which unwinds or returns.
    Cancelled,
}

/// The state of the queue that a waiter finds if its wait ended without a waker.
pub(crate) struct QueueLeft {
    /// The waiter was still queued. False: a pop has passed over it and removed it.
    pub(crate) was_in: bool,
    /// Other waiters are queued.
    pub(crate) are_more: bool,
}

/// One way to wait on a key.
pub(crate) struct KeyWait<'a> {
    pub(crate) key: usize,
    pub(crate) kind: &'static WaitKind,
    pub(crate) deadline_ns: u64,
    /// First in the queue instead of last.
    pub(crate) at: QueueEnd,
    /// The word with the owner, where there is one (`owner`).
    pub(crate) owner: Option<&'a super::owner::Owner>,
    /// Something else that the kind's way to pass on needs; null: nothing.
    pub(crate) beside: *const c_void,
}

impl KeyWait<'_> {
    pub(crate) fn new(key: usize, kind: &'static WaitKind) -> KeyWait<'static> {
        KeyWait {
            key,
            kind,
            deadline_ns: NEVER,
            at: QueueEnd::Back,
            owner: None,
            beside: ptr::null(),
        }
    }

    /// Waits on the key. Blocks the goroutine, or the plain thread it is called on.
    ///
    /// Three callbacks take part:
    /// - `queue_up` runs under the table's lock. It decides whether it is time to wait, and marks
    ///   the word.
    /// - `before_sleep` runs inside the runtime, after the waiter was queued and the lock was
    ///   dropped.
    /// - `left` runs under the table's lock if the wait ended without a waker. It gets the state of
    ///   the queue.
    pub(crate) fn park(
        self,
        queue_up: impl FnOnce(&mut LockedBucket) -> bool,
        before_sleep: impl FnOnce(),
        left: impl FnOnce(QueueLeft),
    ) -> ParkResult {
        let waiter = Waiter::new();
        waiter.on.set(On {
            object: self.key & !3,
            holder: self.owner.map_or(ptr::null(), |owner| owner.word()),
            cases_at: self.beside,
            ..On::NOTHING
        });
        let place = place(&waiter, self.key);
        let rt = enter(); // until it sleeps: a pop relies on it (`waitq`)
        {
            let mut table = lock(self.key);
            if !queue_up(&mut table) {
                return ParkResult::Refused;
            }
            // SAFETY: G4, the place and the waiter do not move. Both stay until the wait has ended
            // by a pop or by the removal below.
            unsafe { table.push(&place, self.at) };
        }
        before_sleep();
        let outcome = waiter.wait_in(rt, self.kind, self.deadline_ns);
        if let Outcome::Case(_) = outcome {
            return ParkResult::Got(place.node.word.get());
        }
        let mut table = lock(self.key);
        left(QueueLeft {
            was_in: table.remove(&place),
            are_more: table.has(self.key),
        });
        match outcome {
            Outcome::TimedOut => ParkResult::TimedOut,
            _ => ParkResult::Cancelled,
        }
    }
}

/// Wakes all waiters that are queued on `key`. `update` changes the word, under the table's lock.
pub(crate) fn wake_all(key: usize, update: impl FnOnce()) {
    let mut wake = WakeList::new();
    let rt = enter(); // until they are woken: popped waiters rely on it
    {
        let mut table = lock(key);
        update();
        table.pop_all(key, || {}, &mut wake);
    }
    wake.wake_in(&rt);
}

/// Whether [`check_cancelled`](crate::thread::check_cancelled) would unwind. Before it waits, a
/// goroutine that must end passes on what it was given.
pub(crate) fn must_unwind() -> bool {
    cfg!(panic = "unwind")
        && current_g().is_some_and(|g| g.must_unwind())
        && !std::thread::panicking()
}

/// The word that `waiter` waits on. For a `WaitKind` that passes on, with a waiter that never runs
/// again.
///
/// # Safety
/// [`KeyWait::park`] parked `waiter` on a key of a `T`'s word, and the goroutine was abandoned: the
/// `T` stays (D2).
pub(crate) unsafe fn word_of<T>(waiter: &Waiter) -> &T {
    let object = ptr::with_exposed_provenance::<T>(waiter.on.get().object);
    // SAFETY: `KeyWait::park` stored the word's address as the object of `On`. The `T` stays, as
    // the caller promises.
    unsafe { &*object }
}

/// An object's key: the address of its word.
pub(crate) fn key_of<T>(word: &T) -> usize {
    ptr::from_ref(word).expose_provenance()
}

#[cfg(test)]
mod tests;
