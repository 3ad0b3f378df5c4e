//! Timers: one heap per P, and the threads that expire due timers (PL, FR, D10).
//!
//! A heap per P keeps a busy P's timers local, and the timers of a blocked P within reach of all
//! others.
//!
//! A goroutine has at most one timer, so a timer *is* its goroutine. The goroutine waits, and the
//! heap ends its wait unless another event does so first. Or it has yet to begin, and the heap
//! starts it (`timer_spawn`). Each P has a heap, a lock around it, and `next`, the earliest
//! deadline, for readers without the lock. The runtime's mask has one bit per P, set while its heap
//! holds anything. So Ps without timers cost no reads.
//!
//! ```text
//!  thread                                     what it may do, under the heap's lock
//!  the M that parks a goroutine, on g0        insert it into its own P's heap (`arm`)
//!  the goroutine, when it continues; the      remove it (`disarm`)
//!    thread that withdraws it
//!  the P's own M, in find_runnable            expire what is due: often while the P is busy,
//!                                             always when its queue is empty
//!  a spinning M, in its fourth sweep          the same, for every P
//!  the watcher, an M without a P (`poller`)   the same, for every P, at the earliest deadline
//!  sysmon                                     the same, if no other thread does
//!  the leader of a stopped world              move a removed P's timers to another P
//! ```
//!
//! `G::timer_p` is the P whose heap holds the goroutine.
//!
//! ```text
//!  arm                                      another event ends the wait (`disarm`)
//!  lock; timer_p = this P                   load timer_p; NOWHERE: the expiry is done with it
//!  publish the goroutine; refused: NOWHERE  lock that P's heap; still there: remove it;
//!  insert; unlock                           moved meanwhile: again
//!
//!  expire
//!  lock; pop what is due; claim its wake-up; timer_p = NOWHERE; unlock
//!  Waiting → Runnable
//! ```
//!
//! Proof sketch. `arm` sets `timer_p` before it publishes the goroutine. So a thread that ends the
//! wait early finds the mark, and waits for the lock until the timer is in. The expiry clears the
//! mark after its claim. If another thread had claimed the goroutine first, that is the expiry's
//! last step with it. So a goroutine that finds no mark needs to fear no timer, and one that finds
//! it waits for the lock. Hence no timer outlives its wait, and a claim never meets a later wait of
//! the same goroutine. The status changes without the lock: a thread that holds the Scan bit may be
//! waiting for the lock, to remove the timer.
//!
//! No thread oversleeps. A thread whose timer is the first of its heap stores `next` and the bit,
//! then loads the watcher's word (timer/1). The watcher publishes its wake-up time, then loads
//! every `next` again (timer/2). One of them sees the other. If no M watches, sysmon is notified in
//! the same way (nap/1, nap/2). A P goes idle only through an M that then watches, or that finds a
//! watcher.
//!
//! A timer is never early: a thread expires it only after reading a clock that is past its
//! deadline.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::arch;
use crate::base::fatal;
use crate::base::lock::Held;
use crate::base::once_box::OnceBox;
use crate::sched::model::g::{G, GQueue};
use crate::sched::model::gstatus::Status;
use crate::sched::model::p::P;
use crate::sched::model::ptr::{Gp, Pp};
pub(crate) use crate::sched::model::timer::Claim;
use crate::sched::model::timer::heap::Heap;
use crate::sched::model::timer::{NOWHERE, TimerWord};
use crate::sched::{PROCS_MAX, Sched};

/// How many timers expire in one hold of a lock.
pub(crate) const EXPIRE_MAX: usize = 128;

/// The runtime's part: which heaps hold anything.
pub(crate) struct Timers {
    mask: [AtomicU64; PROCS_MAX / 64],
    /// Words of the mask that have ever been used.
    words: AtomicU32,
}

/// The result of setting a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Armed {
    /// The awaited event had already happened.
    Refused,
    /// There is no memory for a timer.
    NoMemory,
    /// Set; `is_first`: it is the first of its heap.
    Set { is_first: bool },
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers {
            mask: std::array::from_fn(|_| AtomicU64::new(0)),
            words: AtomicU32::new(0),
        }
    }

    /// Ps up to number `n` exist.
    pub(crate) fn grow_to(&self, n: u32) {
        self.words.fetch_max(n.div_ceil(64), Relaxed);
    }

    /// Whether P number `id` has timers.
    #[inline]
    pub(crate) fn has(&self, id: u32) -> bool {
        self.mask[id as usize / 64].load(Relaxed) & (1 << (id % 64)) != 0
    }

    /// The numbers of the Ps that have timers.
    fn holders(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.words.load(Relaxed)).flat_map(|word| {
            let mut bits = self.mask[word as usize].load(Relaxed);
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
        })
    }

    /// Publishes what p's heap holds to readers without its lock. In the hold that changed it.
    #[inline]
    fn publish(&self, p: &P, heap: &Heap) {
        let next = heap.next_ns();
        let old = p.timers.next.load(Relaxed);
        if next == old {
            return;
        }
        // ORDER: Relaxed. The release of the lock follows, and a thread that must be seen adds the
        // barriers timer/1 and nap/1.
        p.timers.next.store(next, Relaxed);
        if old == u64::MAX || next == u64::MAX {
            let bit = 1 << (p.id % 64);
            let word = &self.mask[p.id as usize / 64];
            if next == u64::MAX {
                word.fetch_and(!bit, Relaxed);
            } else {
                word.fetch_or(bit, Relaxed);
            }
        }
    }
}

impl G {
    /// Sets the deadline of the wait that begins now.
    pub(crate) fn set_deadline(&self, when: u64) {
        self.timer.set(TimerWord { when });
    }

    pub(crate) fn deadline(&self) -> u64 {
        // SAFETY: PL. Every bit pattern is a valid u64, whether the word holds a deadline or a
        // claim. On the way into a wait it is the deadline.
        unsafe { self.timer.get().when }
    }

    /// Whether a heap holds the goroutine. The answer may be stale at once.
    #[inline]
    pub(crate) fn has_timer(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `take_due`: the expiry is done with the
        // goroutine.
        self.timer_p.load(Acquire) != NOWHERE
    }
}

impl Sched {
    /// The earliest deadline of all; `u64::MAX` if there is none.
    pub(crate) fn next_timer(&self) -> u64 {
        let nexts = self.timers_holders().map(|p| p.timers.next_ns());
        nexts.min().unwrap_or(u64::MAX)
    }

    /// The Ps that have timers, perhaps one that is no longer in use.
    pub(crate) fn timers_holders(&self) -> impl Iterator<Item = Pp> + '_ {
        self.timers.holders().map(|id| self.p(id))
    }

    /// Whether any timer is set.
    pub(crate) fn has_timers(&self) -> bool {
        self.timers.holders().next().is_some()
    }

    /// The number of pending timers, also those that never come.
    pub(crate) fn pending_timers(&self) -> usize {
        let ps = self.allp.iter().map_while(OnceBox::get);
        ps.map(|p| p.timers.len()).sum()
    }

    /// Publishes a Waiting goroutine and inserts its timer into p's heap, in one step. Inside the
    /// runtime.
    pub(crate) fn arm(&self, p: Pp, g: Gp, claim: Claim, publish: impl FnOnce() -> bool) -> Armed {
        let when = g.deadline();
        let mut heap = p.timers.heap.lock();
        if heap.reserve(1).is_err() {
            return Armed::NoMemory;
        }
        g.timer.set(TimerWord { claim });
        g.timer_p.store(p.id, Relaxed);
        if !publish() {
            g.timer_p.store(NOWHERE, Relaxed);
            return Armed::Refused;
        }
        let is_first = heap.insert(g, when);
        self.timers.publish(&p, &heap);
        Armed::Set { is_first }
    }

    /// Removes a goroutine's timer if it is still in a heap. Inside the runtime.
    pub(crate) fn disarm(&self, g: Gp) -> bool {
        self.disarm_if(g, || true)
    }

    /// As [`Sched::disarm`], if `is_it` returns true under the heap's lock: the G may be another
    /// goroutine by now.
    pub(crate) fn disarm_if(&self, g: Gp, is_it: impl Fn() -> bool) -> bool {
        let Some((p, mut heap)) = self.lock_heap_of(g) else {
            return false;
        };
        if !is_it() {
            return false;
        }
        heap.remove(g);
        // ORDER: Release; pairs with the Acquire in `lock_heap_of`.
        g.timer_p.store(NOWHERE, Release);
        self.timers.publish(p, &heap);
        true
    }

    /// Sets a new deadline for a timer that is still in a heap. Returns whether it is the first of
    /// that heap, or None if no heap holds it or `is_it` returns false.
    pub(crate) fn rearm_if(&self, g: Gp, when: u64, is_it: impl Fn() -> bool) -> Option<bool> {
        let (p, mut heap) = self.lock_heap_of(g)?;
        if !is_it() {
            return None;
        }
        heap.remove(g);
        let is_first = heap.insert(g, when);
        self.timers.publish(p, &heap);
        Some(is_first)
    }

    /// The heap that holds g, locked; None: none does.
    fn lock_heap_of(&self, g: Gp) -> Option<(&P, Held<'_, Heap>)> {
        loop {
            // ORDER: Acquire; pairs with the Release in `take_due` and `disarm_if`.
            let id = g.timer_p.load(Acquire);
            if id == NOWHERE {
                return None;
            }
            let Some(p) = self.allp[id as usize].get() else {
                fatal::throw("a timer in the heap of no P");
            };
            let heap = p.timers.heap.lock();
            if g.timer_p.load(Relaxed) == id {
                return Some((p, heap));
            }
        }
    }

    /// Empties every heap of a dead runtime.
    pub(crate) fn drain_timers(&self, mut each: impl FnMut(Gp)) {
        for p in self.allp.iter().map_while(OnceBox::get) {
            let mut heap = p.timers.heap.lock();
            while let Some((_, g)) = heap.take_any() {
                each(g);
                // ORDER: Release; pairs with the Acquire in `lock_heap_of`.
                g.timer_p.store(NOWHERE, Release);
            }
            self.timers.publish(p, &heap);
        }
    }

    /// Takes at most `max` due goroutines out of p's heap and makes them Runnable. The caller
    /// queues them.
    pub(crate) fn expire(&self, p: Pp, now: u64, max: usize, due: &mut GQueue) {
        if p.timers.next_ns() > now {
            return;
        }
        let mut mine = GQueue::new();
        self.take_due(p, now, max, &mut mine);
        for g in mine.iter() {
            if g.status.get() == Status::Dead {
                // its life begins (`timer_spawn`)
                g.status.transition(Status::Dead, Status::Runnable);
                continue;
            }
            self.tls.prefetch_frame(g.sp.get(), g.stack_hi.get());
            g.status.transition(Status::Waiting, Status::Runnable);
        }
        due.append(&mut mine);
    }

    fn take_due(&self, p: Pp, now: u64, max: usize, due: &mut GQueue) {
        let mut heap = p.timers.heap.lock();
        while due.len() < max
            && heap.next_ns() <= now
            && let Some(g) = heap.pop()
        {
            // SAFETY: PL/G4. The goroutine was in this heap, so the word is the claim that `arm`
            // stored under this lock. It is Waiting, or has been woken and waits for this lock in
            // `disarm`. So its G and its wait live, as the claim requires.
            if unsafe { (g.timer.get().claim)(g) } {
                due.push_back(g);
            }
            // ORDER: Release; pairs with the Acquire in `lock_heap_of` and `G::has_timer`.
            g.timer_p.store(NOWHERE, Release);
            if let Some(next) = heap.first() {
                prefetch_g(next);
            }
        }
        self.timers.publish(&p, &heap);
    }

    /// As `expire`, for every P for which `leave` returns false, one batch each.
    pub(crate) fn expire_all(&self, now: u64, leave: impl Fn(Pp) -> bool) -> GQueue {
        let mut due = GQueue::new();
        for p in self.timers_holders() {
            if p.timers.next_ns() <= now && !leave(p) {
                self.expire(p, now, EXPIRE_MAX, &mut due);
            }
        }
        due
    }

    /// Moves the timers of a P that is removed to another P with a lower number. Without memory
    /// they stay where they are: threads that check all heaps find them there.
    pub(crate) fn move_timers(&self, from: Pp, to: Pp) {
        debug_assert!(to.id < from.id);
        if !self.timers.has(from.id) {
            return;
        }
        // In the order of the Ps' numbers.
        let mut into = to.timers.heap.lock();
        let mut out = from.timers.heap.lock_beside(&into);
        self.pour(from, &mut out, to, &mut into);
    }

    pub(in crate::sched) fn pour(&self, from: Pp, out: &mut Heap, to: Pp, into: &mut Heap) {
        if into.reserve(out.len()).is_err() {
            return;
        }
        while let Some((when, g)) = out.take_any() {
            into.insert(g, when);
            // ORDER: Relaxed. A thread that loads the old number locks the old heap, finds the new
            // number and tries again.
            g.timer_p.store(to.id, Relaxed);
        }
        self.timers.publish(&from, out);
        self.timers.publish(&to, into);
    }
}

/// The locks of all heaps, for checks; taken in the order of the Ps' numbers.
pub(crate) struct AllHeaps<'a> {
    sched: &'a Sched,
    len: u32,
}

impl<'a> AllHeaps<'a> {
    pub(crate) fn lock(sched: &'a Sched) -> AllHeaps<'a> {
        let ps = sched.allp.iter().map_while(OnceBox::get);
        let mut len = 0;
        for p in ps {
            p.timers.heap.lock_of_several(len == 0);
            len += 1;
        }
        AllHeaps { sched, len }
    }

    pub(crate) fn for_each(&self, mut f: impl FnMut(Pp, &Heap)) {
        for id in 0..self.len {
            let p = self.sched.p(id);
            // SAFETY: D9. `lock` took this lock and it is held until `self` is dropped. The
            // reference is used for reading only.
            f(p, unsafe { p.timers.heap.get_held() });
        }
    }
}

impl Drop for AllHeaps<'_> {
    fn drop(&mut self) {
        for id in (0..self.len).rev() {
            // SAFETY: D9. `lock` took the lock on this thread; the first one taken is released
            // last.
            unsafe { self.sched.p(id).timers.heap.unlock_of_several(id == 0) };
        }
    }
}

/// Prefetches the cache lines of a G that its expiry touches.
#[inline]
fn prefetch_g(g: Gp) {
    let addr = g.as_ptr() as usize;
    arch::prefetch(addr);
    arch::prefetch(addr + std::mem::offset_of!(G, timer));
}
