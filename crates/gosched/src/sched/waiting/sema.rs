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
use std::marker::{PhantomData, PhantomPinned};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicUsize};

use crate::base::lock::{Held, Lock, Rank};
use crate::sched::model::current::current_g;
use crate::sched::model::g::WaitReason;
use crate::sched::park::{Entered, enter};
use crate::sched::waiting::futex_counts::FutexCounts;
use crate::sched::waiting::on::On;
use crate::sched::waiting::pinned::Pinned;
use crate::sched::waiting::waitq::{
    ClaimedWaiter, Outcome, QueueEnd, WaitKind, WaitNode, WaitQueue, Waiter, WakeList,
};

const BUCKET_BITS: u32 = 10;
const BUCKETS: usize = 1 << BUCKET_BITS;
/// An odd number near 2^64 divided by the golden ratio. Multiplying by it is one to one and mixes
/// the bits upwards.
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;

/// One waiter's place in the table.
struct ParkedWaiter<'w> {
    node: WaitNode<'w>,
    key: usize,
    /// While it is the first of its key: the two trees below it, and the key's queue.
    below: [Cell<Link>; 2],
    queue: Cell<WaitQueue>,
    _pin: PhantomPinned,
}

/// A place that stays where it is while this pointer is in use (G4). [`KeyWait::park`] makes it and
/// leaves only after the place is out of the tree. Pointers are read under the bucket's lock (D9).
type PlacePtr = Pinned<ParkedWaiter<'static>>;

/// A link of the tree.
type Link = Option<PlacePtr>;

fn place(waiter: &Waiter, key: usize) -> ParkedWaiter<'_> {
    ParkedWaiter {
        node: WaitNode::new(waiter, 0),
        key,
        below: [const { Cell::new(None) }; 2],
        queue: Cell::new(WaitQueue::new()),
        _pin: PhantomPinned,
    }
}

/// The top of a bucket's tree.
struct Bucket {
    top: Cell<Link>,
}

/// Where a link is: at the top, or below a place on one of its two sides.
#[derive(Clone, Copy)]
enum LinkAt {
    Top,
    Below(PlacePtr, usize),
}

impl Bucket {
    fn get(&self, at: LinkAt) -> Link {
        match at {
            LinkAt::Top => self.top.get(),
            LinkAt::Below(place, side) => place.below[side].get(),
        }
    }

    fn set(&self, at: LinkAt, link: Link) {
        match at {
            LinkAt::Top => self.top.set(link),
            LinkAt::Below(place, side) => place.below[side].set(link),
        }
    }

    /// Takes the place that is linked at `at` out of the tree; a leaf below it takes its position.
    fn unhang(&self, at: LinkAt, place: PlacePtr) {
        let (mut leaf_at, mut leaf) = (at, place);
        while let Some(side) = leaf.below.iter().position(|below| below.get().is_some())
            && let Some(lower) = leaf.below[side].get()
        {
            (leaf_at, leaf) = (LinkAt::Below(leaf, side), lower);
        }
        self.set(leaf_at, None);
        if leaf != place {
            self.replace(at, place, leaf);
        }
    }

    /// Puts `new` where `old` is linked, with the trees below it.
    fn replace(&self, at: LinkAt, old: PlacePtr, new: PlacePtr) {
        new.below[0].set(old.below[0].get());
        new.below[1].set(old.below[1].get());
        self.set(at, Some(new));
    }
}

// SAFETY: G4, D9: places are reached only under the bucket's lock, and stay until they are taken
// out.
unsafe impl Send for Bucket {}

/// A bucket, and what the words of hooked futexes need of it (`futex`).
#[repr(align(64))]
struct BucketLine {
    bucket: Lock<Bucket>,
    counts: FutexCounts,
    /// A wake-up that a signal handler has left to another thread (`futex_late`).
    owed: AtomicUsize,
}

static TABLE: [BucketLine; BUCKETS] = [const {
    BucketLine {
        bucket: Lock::new(
            Rank::Sema,
            Bucket {
                top: Cell::new(None),
            },
        ),
        counts: FutexCounts {
            goroutines: AtomicU32::new(0),
            kernel: AtomicU32::new(0),
            coin: AtomicU32::new(0),
        },
        owed: AtomicUsize::new(0),
    }
}; BUCKETS];

/// The bit that the key of a futex has and no other key: addresses of user space do not have it. A
/// program may wake any address, also one at which a lock of `sync` lies now.
pub(super) const FUTEX: usize = 1 << (usize::BITS - 1);

/// The line of the key's bucket.
#[inline]
fn line_of(key: usize) -> &'static BucketLine {
    let hash = ((key & !7) as u64).wrapping_mul(MIX);
    &TABLE[(hash >> (u64::BITS - BUCKET_BITS)) as usize]
}

/// The counts of the key's bucket.
#[inline]
pub(super) fn counts_of(key: usize) -> &'static FutexCounts {
    &line_of(key).counts
}

/// The wake-up that is owed in the key's bucket.
pub(super) fn owed_of(key: usize) -> &'static AtomicUsize {
    &line_of(key).owed
}

/// The wake-ups that are owed, by bucket.
pub(super) fn all_owed() -> impl Iterator<Item = &'static AtomicUsize> {
    TABLE.iter().map(|line| &line.owed)
}

/// The lock of a key's bucket. User code does not run meanwhile.
pub(crate) struct LockedBucket {
    // In this order: the lock is dropped inside the runtime.
    bucket: Held<'static, Bucket>,
    _rt: Option<Entered>,
}

/// Locks everything that has to do with the object of `key`.
pub(crate) fn lock(key: usize) -> LockedBucket {
    let rt = enter();
    LockedBucket {
        bucket: line_of(key).bucket.lock(),
        _rt: Some(rt),
    }
}

/// As [`lock`], for a thread that must not wait for the lock: code that this thread has interrupted
/// may hold it. The caller is no M, or inside the runtime. None: it is held.
pub(super) fn try_lock(key: usize) -> Option<LockedBucket> {
    let bucket = line_of(key).bucket.try_lock()?;
    Some(LockedBucket { bucket, _rt: None })
}

/// The way down the tree: one bit per step, the highest first.
fn path_of(key: usize) -> u64 {
    (key as u64).wrapping_mul(MIX).rotate_left(BUCKET_BITS)
}

/// A waiter that was popped: claimed, and still in its wait.
pub(crate) struct Popped(ClaimedWaiter);

impl Popped {
    /// Ends its wait; [`park`] returns `token`. It is woken with the list.
    pub(crate) fn finish(self, token: usize, wake: &mut WakeList) {
        self.0.word.set(token);
        self.0.finish(wake);
    }
}

impl LockedBucket {
    /// Where the first place of `key` is linked, or belongs.
    fn find(&self, key: usize) -> LinkAt {
        let (mut at, mut path) = (LinkAt::Top, path_of(key));
        while let Some(place) = self.bucket.get(at)
            && place.key != key
        {
            at = LinkAt::Below(place, (path >> (u64::BITS - 1)) as usize);
            path <<= 1;
        }
        at
    }

    /// Works on the queue of the key whose first place is linked at `at`, then links the place that
    /// is first afterwards. None: the key has no queue.
    fn with_queue<R>(&mut self, at: LinkAt, work: impl FnOnce(&mut WaitQueue) -> R) -> Option<R> {
        let old = self.bucket.get(at)?;
        let mut queue = old.queue.replace(WaitQueue::new());
        let result = work(&mut queue);
        let first = queue.head().and_then(|node| {
            // SAFETY: G4, the node is in the queue, so its place stays. `push` stored the place's
            // address as the `elem` of its node.
            unsafe { PlacePtr::from_raw(node.elem.get().cast()) }
        });
        let Some(first) = first else {
            self.bucket.unhang(at, old);
            return Some(result);
        };
        if first != old {
            self.bucket.replace(at, old, first);
        }
        first.queue.set(queue);
        Some(result)
    }

    /// Puts a place into the queue of its key. The place is in no queue.
    fn push(&mut self, place: PlacePtr, end: QueueEnd) {
        assert!(!place.node.is_queued(), "G4: a place in two queues");
        place.node.elem.set(place.as_ptr().cast());
        let at = self.find(place.key);
        if self.bucket.get(at).is_none() {
            place.below[0].set(None);
            place.below[1].set(None);
            self.bucket.set(at, Some(place));
        }
        self.with_queue(at, |queue| {
            // SAFETY: the node is in no queue, and is a part of the place, which stays until it is
            // out again (`PlacePtr`).
            unsafe { queue.push(&place.node, end) };
        });
    }

    /// Claims the first waiter of `key` and takes it out. The caller changes the word before it
    /// finishes the popped waiter.
    pub(crate) fn pop(&mut self, key: usize) -> Option<Popped> {
        self.pop_counting(key, &mut 0)
    }

    /// As [`LockedBucket::pop`]. Adds to `out` how many waiters left the queue, those included
    /// whose wait was over and those that were abandoned.
    pub(super) fn pop_counting(&mut self, key: usize, out: &mut u32) -> Option<Popped> {
        let at = self.find(key);
        let pop = |queue: &mut WaitQueue| queue.pop_counting(out);
        self.with_queue(at, pop)?.map(Popped)
    }

    /// Ends the waits of all waiters that are queued on `key`, in order. Calls `admit` before each,
    /// so that the object counts the waiter in.
    pub(crate) fn pop_all(&mut self, key: usize, mut admit: impl FnMut(), wake: &mut WakeList) {
        let at = self.find(key);
        let Some(first) = self.bucket.get(at) else {
            return;
        };
        let mut queue = first.queue.replace(WaitQueue::new());
        self.bucket.unhang(at, first);
        while let Some(claim) = queue.pop() {
            admit();
            Popped(claim).finish(0, wake);
        }
    }

    /// Whether a waiter is queued on `key`.
    pub(crate) fn has(&self, key: usize) -> bool {
        self.bucket.get(self.find(key)).is_some()
    }

    /// A key of this bucket that belongs to a futex and has a queue.
    pub(super) fn futex_key(&self) -> Option<usize> {
        // Each step goes one level down and leaves one sibling behind.
        let mut left: [Link; u64::BITS as usize + 1] = [None; u64::BITS as usize + 1];
        let (mut at, mut len) = (self.bucket.top.get(), 0);
        while let Some(place) = at {
            if place.key & FUTEX != 0 {
                return Some(place.key);
            }
            left[len] = place.below[1].get();
            len += 1;
            at = place.below[0].get();
            while at.is_none() && len > 0 {
                len -= 1;
                at = left[len];
            }
        }
        None
    }

    /// Takes a place out. False: it is out already, removed by a pop.
    fn remove(&mut self, place: &ParkedWaiter<'_>) -> bool {
        place.node.is_queued() && {
            let at = self.find(place.key);
            let removed = self.with_queue(at, |queue| queue.remove(&place.node));
            removed == Some(true)
        }
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

/// What the waiters of one kind are given, and how it is passed on if a waiter never runs again.
pub(crate) trait Grant {
    /// The word that they wait on.
    type Word: Sync + 'static;

    /// Passes on what a waiter was given that was abandoned with its runtime (D2). A pop has ended
    /// its wait with this token; None: the drop of the runtime has ended it. `beside` is
    /// [`KeyWait::beside`]. Inside the runtime, without locks.
    fn pass_on(word: &Self::Word, token: Option<usize>, beside: Option<&AtomicU32>);
}

/// A kind of wait on the keys of a `W`.
pub(crate) struct KeyKind<W: 'static>(WaitKind, PhantomData<&'static W>);

impl<W: Sync + 'static> KeyKind<W> {
    pub(crate) const fn granting<G: Grant<Word = W>>(reason: WaitReason) -> KeyKind<W> {
        let kind = WaitKind::new(reason).passing_on(|waiter, by| {
            let on = waiter.on.get();
            let object = ptr::with_exposed_provenance::<W>(on.object);
            let beside = on.cases_at.cast::<AtomicU32>();
            // SAFETY: only a `KeyWait` made by `on` waits with this kind. The object is the W that
            // it has borrowed for the wait, and `cases_at` its `beside`. The goroutine was
            // abandoned in this wait, so both stay (D2).
            let (word, beside) = unsafe { (&*object, beside.as_ref()) };
            G::pass_on(word, by.map(|node| node.word.get()), beside);
        });
        KeyKind(kind, PhantomData)
    }
}

/// A key and the kind of wait on it.
pub(crate) struct KeyTarget<'a> {
    key: usize,
    kind: &'static WaitKind,
    word: PhantomData<&'a ()>,
}

/// One way to wait on a key.
pub(crate) struct KeyWait<'a> {
    pub(crate) target: KeyTarget<'a>,
    pub(crate) deadline_ns: u64,
    /// First in the queue instead of last.
    pub(crate) at: QueueEnd,
    /// The word with the owner, where there is one (`owner`).
    pub(crate) owner: Option<&'a super::owner::Owner>,
    /// Something else that the kind's way to pass on needs: the condvar of a waiter that locks its
    /// mutex again.
    pub(crate) beside: Option<&'a AtomicU32>,
}

impl<'a> KeyTarget<'a> {
    fn plainly(self) -> KeyWait<'a> {
        KeyWait {
            target: self,
            deadline_ns: NEVER,
            at: QueueEnd::Back,
            owner: None,
            beside: None,
        }
    }
}

impl<'a> KeyWait<'a> {
    /// With a kind of wait in which nothing is given.
    pub(crate) fn new(key: usize, kind: &'static WaitKind) -> KeyWait<'static> {
        let word = PhantomData;
        KeyTarget { key, kind, word }.plainly()
    }

    /// On the key of `word` with this number, below 4.
    pub(crate) fn on<W: Sync>(word: &'a W, number: usize, kind: &'static KeyKind<W>) -> Self {
        const { assert!(align_of::<W>() >= 4) }; // `park` finds the word by its key
        assert!(number < 4);
        let target = KeyTarget {
            key: key_of(word) + number,
            kind: &kind.0,
            word: PhantomData,
        };
        target.plainly()
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
        let KeyTarget { key, kind, .. } = self.target;
        let waiter = Waiter::new();
        waiter.on.set(On {
            object: key & !(FUTEX | 3),
            holder: self.owner.map_or(ptr::null(), |owner| owner.word()),
            cases_at: self
                .beside
                .map_or(ptr::null(), |beside| ptr::from_ref(beside).cast()),
            ..On::NOTHING
        });
        let place = place(&waiter, key);
        let rt = enter(); // until it sleeps: a pop relies on it (`waitq`)
        {
            let mut table = lock(key);
            if !queue_up(&mut table) {
                return ParkResult::Refused;
            }
            // SAFETY: G4, the place and the waiter do not move. Both stay until the wait has ended
            // by a pop or by the removal below.
            let place: PlacePtr = unsafe { Pinned::new(NonNull::from(&place).cast()) };
            table.push(place, self.at);
        }
        before_sleep();
        let outcome = waiter.wait_in(rt, kind, self.deadline_ns);
        if let Outcome::Case(_) = outcome {
            return ParkResult::Got(place.node.word.get());
        }
        let mut table = lock(key);
        left(QueueLeft {
            was_in: table.remove(&place),
            are_more: table.has(key),
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

/// An object's key: the address of its word.
pub(crate) fn key_of<T>(word: &T) -> usize {
    ptr::from_ref(word).expose_provenance()
}

#[cfg(test)]
mod tests;
