//! Timers: who is in which P's heap, and who takes out what is due (PL, FR, D10).
//!
//! A goroutine has at most one timer, so a timer *is* its goroutine: it waits, and a heap will end its wait if nobody else
//! does before. Or it has yet to begin, and the heap will start it (`dormant`). Each P has a heap, a lock around it, and `next`, the earliest time in it, for readers without the lock. A bit per P
//! in the runtime's mask says whether its heap holds anything, so that Ps without timers cost nobody a look.
//!
//! ```text
//!  who                                             may do what, under the heap's lock
//!  the M that parks a goroutine, on g0             put it into its own P's heap (`arm`)
//!  the goroutine, when it goes on; whoever         take it out (`disarm`)
//!    withdraws it
//!  P's own M, in find_runnable                     take out what is due: often while it is busy, always when its queue is empty
//!  a spinning M, in its fourth sweep               the same, for every P
//!  the watcher, an M without a P (`poller`)        the same, for every P, at the time of the first
//!  sysmon                                          the same, where it finds that nobody else does
//!  the leader of a stopped world                   give a removed P's timers to another P
//! ```
//!
//! Where a goroutine's timer is, `G::timer_p` says.
//!
//! ```text
//!  arm                                             end of a wait by somebody else (`disarm`)
//!  lock; timer_p = this P                          look at timer_p: nowhere: the timer is done with us
//!  publish the goroutine; refused: nowhere         lock that P's heap; still there: take it out;
//!  insert; unlock                                  moved meanwhile: again
//!
//!  expire
//!  lock; pop what is due; claim its wake-up; timer_p = nowhere; unlock
//!  Waiting → Runnable
//! ```
//!
//! Proof sketch. The mark is set before the goroutine can be seen, so whoever ends its wait early finds it and waits for the
//! lock until the timer is in. The expiry clears the mark after its claim, its last step with that goroutine if somebody else
//! had claimed it first: a goroutine that finds no mark has nothing to fear from a timer, and one that finds it waits for the lock. So no
//! timer outlives its wait, and a claim never meets a later wait of the same goroutine. The status changes without the lock: who
//! holds the Scan bit may be waiting for it, to take the timer out.
//!
//! Nobody oversleeps. Who puts in a timer that is the first of its heap stores `next` and the bit, then looks at the
//! watcher (timer/1). The watcher publishes until when it sleeps, then looks at every `next` again (timer/2). One of them sees
//! the other. Where nobody watches, sysmon is told in the same way (nap/1, nap/2). A P goes idle only through an M that then watches,
//! or finds that somebody does.
//!
//! A timer is never early: a goroutine is taken out only by who has read a clock that is past its time.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::arch;
use crate::base::lock::{Held, Lock, Rank};
use crate::sched::model::g::{G, GQueue};
use crate::sched::model::gstatus::Status;
use crate::sched::model::ptr::{Gp, Pp};
use crate::sched::sources::heap::Heap;
use crate::sched::{PROCS_MAX, Sched};

/// In `G::timer_p`: in no heap.
pub(crate) const NOWHERE: u32 = u32::MAX;
/// Timers run in one hold of a lock.
pub(crate) const EXPIRE_MAX: usize = 128;

/// Claims the wake-up of a goroutine whose time has come; false: somebody else has.
pub(crate) type Claim = unsafe fn(Gp) -> bool;

/// A goroutine's word for its timer: on its way into a wait the deadline, while it is in a heap how its wake-up is claimed.
#[derive(Clone, Copy)]
pub(crate) union TimerWord {
    when: u64,
    claim: Claim,
}

/// The runtime's part: whose heap holds anything.
pub(crate) struct Timers {
    mask: [AtomicU64; PROCS_MAX / 64],
    /// Words of the mask that have ever been used.
    words: AtomicU32,
}

/// A P's timers.
#[repr(align(128))]
pub(crate) struct PTimers {
    heap: Lock<Heap>,
    next: AtomicU64,
    /// When the P's own M last looked; for sysmon.
    looked_ns: AtomicU64,
}

/// How often a busy P looks at the clock for the sake of its timers; its holder's.
pub(crate) struct Pace {
    /// Turns until the next look, and from one look to the next.
    left: u32,
    turns: u32,
}

/// A busy P is to look after about so long; it counts turns, for they cost nothing.
const LOOK_MIN_NS: u64 = 4_000;
const LOOK_MAX_NS: u64 = 16_000;
const TURNS_MAX: u32 = 16;

impl Pace {
    pub(crate) const fn new() -> Pace {
        Pace { left: 0, turns: 1 }
    }

    /// One more turn of a busy P; true: it should look now.
    #[inline]
    pub(crate) fn is_time(&mut self) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                false
            }
            None => true,
        }
    }

    /// It has looked, `since_ns` after the last time.
    fn looked(&mut self, since_ns: u64) {
        if since_ns < LOOK_MIN_NS {
            self.turns = (self.turns * 2).min(TURNS_MAX);
        } else if since_ns > LOOK_MAX_NS {
            self.turns = (self.turns / 2).max(1);
        }
        self.left = self.turns - 1;
    }
}

/// How a timer was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Armed {
    /// What was waited for had happened.
    Refused,
    /// There is no memory for a timer.
    NoMemory,
    /// Set; the first of its heap, or not.
    Set { is_first: bool },
}

impl PTimers {
    pub(crate) fn new() -> PTimers {
        PTimers {
            heap: Lock::new(Rank::Timers, Heap::new()),
            next: AtomicU64::new(u64::MAX),
            looked_ns: AtomicU64::new(0),
        }
    }

    /// The earliest deadline; `u64::MAX` when there is none.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// When the P's own M last looked.
    pub(crate) fn looked_ns(&self) -> u64 {
        self.looked_ns.load(Relaxed)
    }

    /// Pending timers.
    pub(crate) fn len(&self) -> usize {
        self.heap.lock().len()
    }

    /// The P's own M has read the clock. Only the holder.
    pub(crate) fn note_look(&self, pace: &mut Pace, now: u64) {
        pace.looked(now.saturating_sub(self.looked_ns.load(Relaxed)));
        self.looked_ns.store(now, Relaxed);
    }
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

    /// Shows what p's heap holds to those without its lock. In the hold that changed it.
    #[inline]
    fn publish(&self, p: Pp, heap: &Heap) {
        let next = heap.next_ns();
        let old = p.timers.next.load(Relaxed);
        if next == old {
            return;
        }
        // ORDER: Relaxed; the release of the lock follows, and the barriers timer/1 and nap/1 of who must be sure.
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
    /// Says until when the wait that begins now may last.
    pub(crate) fn set_deadline(&self, when: u64) {
        self.timer.set(TimerWord { when });
    }

    pub(crate) fn deadline(&self) -> u64 {
        // SAFETY: PL, on its way into a wait the word is a number; and a claim read as one is still a number.
        unsafe { self.timer.get().when }
    }

    /// Whether a heap holds it. A look: it may change at once.
    #[inline]
    pub(crate) fn has_timer(&self) -> bool {
        // ORDER: Acquire; pairs with the Release in `take_due`: the expiry is done with the goroutine.
        self.timer_p.load(Acquire) != NOWHERE
    }
}

impl Sched {
    /// The earliest deadline of all; `u64::MAX` when there is none.
    pub(crate) fn next_timer(&self) -> u64 {
        let nexts = self.timers_holders().map(|p| p.timers.next_ns());
        nexts.min().unwrap_or(u64::MAX)
    }

    /// The Ps that have timers, one that is no longer in use among them perhaps.
    pub(crate) fn timers_holders(&self) -> impl Iterator<Item = Pp> + '_ {
        self.timers.holders().map(|id| self.p(id))
    }

    /// Whether any timer is set.
    pub(crate) fn has_timers(&self) -> bool {
        self.timers.holders().next().is_some()
    }

    /// Pending timers, those that never come among them.
    pub(crate) fn pending_timers(&self) -> usize {
        let ps = self.allp.iter().map_while(|p| p.load(Relaxed));
        ps.map(|p| p.timers.len()).sum()
    }

    /// Publishes a Waiting goroutine and puts its timer into p's heap, in one step. Inside the runtime.
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
        self.timers.publish(p, &heap);
        Armed::Set { is_first }
    }

    /// Takes a goroutine's timer out, if it is still in. Inside the runtime.
    pub(crate) fn disarm(&self, g: Gp) -> bool {
        self.disarm_if(g, || true)
    }

    /// As above, if `is_it` says, under the heap's lock, that it is the one that is meant.
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

    /// Sets a timer anew that is still in, where it is; None: it is not, or not the one that is meant. Otherwise: whether it
    /// is the first of its heap.
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
    fn lock_heap_of(&self, g: Gp) -> Option<(Pp, Held<'_, Heap>)> {
        loop {
            // ORDER: Acquire; as in `G::has_timer`.
            let id = g.timer_p.load(Acquire);
            if id == NOWHERE {
                return None;
            }
            let heap = self.heap_of(id).lock();
            if g.timer_p.load(Relaxed) == id {
                return Some((self.p(id), heap));
            }
        }
    }

    /// The heap of P number `id`.
    fn heap_of(&self, id: u32) -> &Lock<Heap> {
        // SAFETY: GF, Ps live as long as the runtime.
        unsafe { &(*self.p(id).as_ptr()).timers.heap }
    }

    /// Empties every heap, for a runtime that is gone.
    pub(crate) fn drain_timers(&self, mut each: impl FnMut(Gp)) {
        for p in self.allp.iter().map_while(|p| p.load(Relaxed)) {
            let mut heap = p.timers.heap.lock();
            while let Some((_, g)) = heap.take_any() {
                each(g);
                // ORDER: Release; as in `disarm_if`.
                g.timer_p.store(NOWHERE, Release);
            }
            self.timers.publish(p, &heap);
        }
    }

    /// Takes out of p's heap what is due, at most `max`, and makes it Runnable; the caller queues the goroutines.
    pub(crate) fn expire(&self, p: Pp, now: u64, max: usize, due: &mut GQueue) {
        if p.timers.next_ns() > now {
            return;
        }
        let mut mine = GQueue::new();
        self.take_due(p, now, max, &mut mine);
        for g in mine.iter() {
            if g.status.get() == Status::Dead {
                g.status.transition(Status::Dead, Status::Runnable); // its life begins (`dormant`)
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
            // SAFETY: PL, it was in this heap, so the word is the claim that `arm` stored.
            let claim = unsafe { g.timer.get().claim };
            // SAFETY: G4, the goroutine is Waiting, or has been woken and waits for this lock: it is not gone.
            if unsafe { claim(g) } {
                due.push_back(g);
            }
            // ORDER: Release; pairs with the Acquire in `disarm`.
            g.timer_p.store(NOWHERE, Release);
            if let Some(next) = heap.first() {
                prefetch_g(next);
            }
        }
        self.timers.publish(p, &heap);
    }

    /// As `expire`, for every P, a batch each. `leave` says which Ps to leave alone.
    pub(crate) fn expire_all(&self, now: u64, leave: impl Fn(Pp) -> bool) -> GQueue {
        let mut due = GQueue::new();
        for p in self.timers_holders() {
            if p.timers.next_ns() <= now && !leave(p) {
                self.expire(p, now, EXPIRE_MAX, &mut due);
            }
        }
        due
    }

    /// Gives the timers of a P that goes to another one, of a lower number. Without memory for them they stay where they are:
    /// whoever looks at all heaps finds them there.
    pub(crate) fn move_timers(&self, from: Pp, to: Pp) {
        debug_assert!(to.id < from.id);
        if !self.timers.has(from.id) {
            return;
        }
        let (into, out) = (&to.timers.heap, &from.timers.heap);
        into.lock_of_several(true);
        out.lock_of_several(false);
        // SAFETY: D9, both locks are ours, and these are the only references.
        self.pour(from, unsafe { out.get_held() }, to, unsafe {
            into.get_held()
        });
        // SAFETY: D9, as above; the first one last.
        unsafe {
            out.unlock_of_several(false);
            into.unlock_of_several(true);
        }
    }

    fn pour(&self, from: Pp, out: &mut Heap, to: Pp, into: &mut Heap) {
        if into.reserve(out.len()).is_err() {
            return;
        }
        while let Some((when, g)) = out.take_any() {
            into.insert(g, when);
            // ORDER: Relaxed; who finds the old number locks the old heap, finds the new one and looks again.
            g.timer_p.store(to.id, Relaxed);
        }
        self.timers.publish(from, out);
        self.timers.publish(to, into);
    }
}

/// The locks of all heaps, for checks; taken in the order of the Ps' numbers.
pub(crate) struct AllHeaps<'a> {
    sched: &'a Sched,
    len: u32,
}

impl<'a> AllHeaps<'a> {
    pub(crate) fn lock(sched: &'a Sched) -> AllHeaps<'a> {
        let ps = sched.allp.iter().map_while(|p| p.load(Relaxed));
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
            // SAFETY: D9, the lock is ours until `self` is dropped, and nobody changes what it guards.
            f(p, unsafe { p.timers.heap.get_held() });
        }
    }
}

impl Drop for AllHeaps<'_> {
    fn drop(&mut self) {
        for id in (0..self.len).rev() {
            // SAFETY: D9, taken in `lock`, the first one released last.
            unsafe { self.sched.p(id).timers.heap.unlock_of_several(id == 0) };
        }
    }
}

/// The lines of a G that its expiry touches.
#[inline]
fn prefetch_g(g: Gp) {
    let addr = g.as_ptr() as usize;
    arch::prefetch(addr);
    arch::prefetch(addr + std::mem::offset_of!(G, timer));
}
