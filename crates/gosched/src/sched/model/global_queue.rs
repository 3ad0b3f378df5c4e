//! The goroutines on the global run queue, in lists that need no search.
//!
//! The scheduler lock guards them, and a signal handler takes that lock. So every operation takes
//! constant time, whatever the number of goroutines (`global` has the scheduler's operations).
//!
//! ```text
//!  fresh   woken   have begun, did not leave by themselves, any M may run them
//!          free    have yielded, any M may run them
//!          owned   one M alone may run them: locked to it, or interrupted on it (bound)
//!          new     have not begun
//!  spent   free    had to leave at the end of their slice, any M may run them
//!          owned   the same, interrupted (bound)
//! ```
//!
//! A woken goroutine comes before the other fresh ones. So sleepers are less late in a burst of
//! spawns. At most 15 in a row come so while another fresh one waits.
//!
//! The others of a half are first in, first out. A member of `owned` or `new` has a *stamp*. It
//! counts the goroutines that had left `free` or were in it when the member came. The member's turn
//! comes once that many have left `free`. `free` itself needs no stamps, so a goroutine that yields
//! pays nothing. The stamp of a goroutine that has not begun is in its `stack_lo`, which is unused
//! until then. That of an owned goroutine is in its M (`M::queued_at`). An owned goroutine has a
//! second stamp, which counts `new` in the same way (`M::queued_behind_new`). The second stamp
//! decides between `new` and `fresh.owned`.
//!
//! Bounds, in calls of [`GlobalQueue::pop`]. At most 122 of the other half come between two of one
//! half. Fresh ones always may; spent ones may when they are *urgent*. With k before it in its
//! order
//!
//! - a spent goroutine is taken by call 123 (k + 1) at the latest,
//! - a woken one by call 123 (k + k / 15 + 2),
//! - another fresh one by call 123 · 16 (k + 1); `new` is exempt while `may_begin` is false.

use std::sync::atomic::Ordering::Relaxed;

use crate::sched::model::g::{GQueue, Senior};
use crate::sched::model::p::FAIR_EVERY;
use crate::sched::model::ptr::{Gp, Mp};

/// So many of one half in a row may be taken while the other half waits.
const STREAK_MAX: u32 = 2 * FAIR_EVERY;

/// So many woken members may be taken in a row while another fresh one waits.
const WOKEN_MAX: u32 = 15;

/// The first value of `Line::left` and `new_left`. A member put at the head lowers them.
const ORIGIN: u64 = 1 << 40;

/// One order in two lists. Members with a thread of their own can be taken out of turn.
struct Line {
    free: GQueue,
    owned: GQueue,
    /// Members that have left `free`, less those that were put at its head.
    left: u64,
}

impl Line {
    const fn new() -> Line {
        Line {
            free: GQueue::new(),
            owned: GQueue::new(),
            left: ORIGIN,
        }
    }

    fn len(&self) -> usize {
        self.free.len() + self.owned.len()
    }

    /// The stamp of a member that comes now, as the last one.
    fn stamp(&self) -> u64 {
        self.left + self.free.len() as u64
    }

    fn push_owned(&mut self, g: Gp, owner: Mp) {
        owner.queued_at.set(self.stamp());
        self.owned.push_back(g);
    }

    #[inline]
    fn pop_free(&mut self) -> Option<Gp> {
        let g = self.free.pop_front()?;
        self.left += 1;
        Some(g)
    }

    /// The stamp of the first owned member. A drop of the runtime releases bound goroutines while
    /// they are queued: a member without an owner is due.
    fn owned_stamp(&self) -> Option<u64> {
        let g = self.owned.front()?;
        Some(g.owner().map_or(0, |owner| owner.queued_at.get()))
    }

    fn is_owned_first(&self) -> bool {
        self.owned_stamp().is_some_and(|stamp| stamp <= self.left)
    }

    fn pop(&mut self) -> Option<Gp> {
        match self.is_owned_first() {
            true => self.owned.pop_front(),
            false => self.pop_free(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = Gp> + '_ {
        self.owned.iter().chain(self.free.iter())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Woken,
    Free,
    Owned,
    New,
}

pub(crate) struct GlobalQueue {
    woken: GQueue,
    fresh: Line,
    /// Fresh members that have not begun. Their stamps count the same `free` as those of
    /// `fresh.owned`.
    new: GQueue,
    /// Members that have left `new`, less those that were put at its head.
    new_left: u64,
    spent: Line,
    /// Members that are not in `fresh.free`.
    others: usize,
    /// How many spent members come before the fresh ones.
    urgent: usize,
    /// Fresh members taken in a row while a spent one waited, and urgent ones while a fresh one
    /// waited.
    fresh_in_a_row: u32,
    urgent_in_a_row: u32,
    /// Woken members taken in a row while another fresh one waited.
    woken_in_a_row: u32,
    /// The next `pop_in_turn` takes a fresh member.
    is_fresh_next: bool,
    /// The last `pop_owned` preferred the spent half.
    preferred_spent_owned: bool,
}

impl GlobalQueue {
    pub(crate) const fn new() -> GlobalQueue {
        GlobalQueue {
            woken: GQueue::new(),
            fresh: Line::new(),
            new: GQueue::new(),
            new_left: ORIGIN,
            spent: Line::new(),
            others: 0,
            urgent: 0,
            fresh_in_a_row: 0,
            urgent_in_a_row: 0,
            woken_in_a_row: 0,
            is_fresh_next: false,
            preferred_spent_owned: true,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.fresh.free.len() + self.others
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a fresh or an urgent goroutine waits. Those that have not begun count if
    /// `may_begin`.
    pub(crate) fn is_pressing(&self, may_begin: bool) -> bool {
        self.urgent > 0 || self.has_fresh(may_begin)
    }

    fn has_fresh(&self, may_begin: bool) -> bool {
        let not_now = if may_begin { 0 } else { self.new.len() };
        self.len() > self.spent.len() + not_now
    }

    /// Whether a goroutine waits that has begun and is on no thread.
    pub(crate) fn has_begun_and_unbound(&self) -> bool {
        let free = [&self.woken, &self.fresh.free, &self.spent.free];
        free.into_iter().any(|list| !list.is_empty())
    }

    /// The members, for checks; each list in its order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Gp> + '_ {
        let fresh = self.fresh.iter().chain(self.new.iter());
        let fresh = self.woken.iter().chain(fresh);
        fresh.chain(self.spent.iter())
    }

    /// Puts `g` at the tail of its order in the fresh half.
    #[inline(never)]
    pub(crate) fn push(&mut self, g: Gp) {
        if g.has_started() && g.owner().is_none() {
            self.others += 1;
            self.woken.push_back(g);
        } else {
            self.push_other(g);
        }
    }

    /// The same for a goroutine that has begun, is on no thread and has left by itself.
    #[inline]
    pub(crate) fn push_left(&mut self, g: Gp) {
        debug_assert!(g.has_started() && g.boundm().is_none());
        if g.lockedm.load(Relaxed).is_none() {
            self.fresh.free.push_back(g);
        } else {
            self.push_other(g);
        }
    }

    #[inline(never)]
    fn push_other(&mut self, g: Gp) {
        self.others += 1;
        match g.owner() {
            Some(owner) => {
                let behind = self.new_left + self.new.len() as u64;
                owner.queued_behind_new.set(behind);
                self.fresh.push_owned(g, owner);
            }
            None => {
                g.stack_lo.set(self.fresh.stamp() as usize);
                self.new.push_back(g);
            }
        }
    }

    /// Puts a senior goroutine back, before all others of its order.
    pub(crate) fn push_first(&mut self, g: Gp, was: Senior) {
        if was == Senior::Yielded && g.owner().is_none() {
            self.fresh.left -= 1;
            return self.fresh.free.push_front(g);
        }
        self.others += 1;
        match g.owner() {
            None if g.has_started() => self.woken.push_front(g),
            Some(owner) => {
                owner.queued_at.set(self.fresh.left);
                owner.queued_behind_new.set(self.new_left);
                self.fresh.owned.push_front(g);
            }
            None => {
                g.stack_lo.set(self.fresh.left as usize);
                self.new.push_front(g);
                self.new_left -= 1;
            }
        }
    }

    /// Puts a goroutine whose slice is over at the tail of the spent half.
    pub(crate) fn push_spent(&mut self, g: Gp) {
        self.others += 1;
        match g.owner() {
            Some(owner) => self.spent.push_owned(g, owner),
            None => self.spent.free.push_back(g),
        }
    }

    /// Takes the next goroutine. Unless `may_begin`, those that have not begun come after all
    /// others.
    #[inline]
    pub(crate) fn pop(&mut self, may_begin: bool) -> Option<Gp> {
        if self.others == 0 {
            return self.fresh.pop_free();
        }
        self.pop_slow(may_begin)
    }

    #[inline(never)]
    fn pop_slow(&mut self, may_begin: bool) -> Option<Gp> {
        let takes_urgent = self.urgent > 0 && self.urgent_in_a_row < STREAK_MAX;
        if (takes_urgent || self.fresh_in_a_row >= STREAK_MAX)
            && let Some(g) = self.pop_spent()
        {
            self.urgent_in_a_row += u32::from(takes_urgent && self.has_fresh(may_begin));
            return Some(g);
        }
        if let Some(g) = self.pop_fresh(may_begin) {
            self.urgent_in_a_row = 0;
            self.fresh_in_a_row += u32::from(self.spent.len() > 0);
            return Some(g);
        }
        self.urgent_in_a_row = 0;
        self.pop_spent().or_else(|| self.pop_new())
    }

    /// Takes a fresh and a spent goroutine in turns, for fairness.
    pub(crate) fn pop_in_turn(&mut self, may_begin: bool) -> Option<Gp> {
        self.is_fresh_next = !self.is_fresh_next;
        match self.is_fresh_next {
            true => self.pop_spent().or_else(|| self.pop(may_begin)),
            false => self.pop_fresh(may_begin).or_else(|| self.pop(may_begin)),
        }
    }

    /// Takes the next goroutine that may lie in a P's ring: fresh, and of no M's own. In the ring
    /// it is senior.
    #[inline]
    pub(crate) fn pop_for_ring(&mut self) -> Option<Gp> {
        if self.others > 0 {
            return self.pop_for_ring_slow();
        }
        let g = self.fresh.pop_free()?;
        g.senior.set(Senior::Yielded);
        Some(g)
    }

    #[inline(never)]
    fn pop_for_ring_slow(&mut self) -> Option<Gp> {
        if self.urgent > 0 || self.fresh_in_a_row >= STREAK_MAX {
            return None;
        }
        let (first, senior) = match self.first_fresh(true) {
            First::Owned => return None,
            First::Free => (First::Free, Senior::Yielded),
            first => (first, Senior::Other),
        };
        let g = self.pop_as(first, true)?;
        g.senior.set(senior);
        Some(g)
    }

    /// Takes the first goroutine that has a thread of its own.
    pub(crate) fn pop_owned(&mut self) -> Option<(Gp, Mp)> {
        // The halves alternate, because one of them may get new members without end. Urgent ones
        // come first, for a limited time.
        self.preferred_spent_owned = !self.preferred_spent_owned;
        let takes_urgent = self.urgent > 0 && self.urgent_in_a_row < STREAK_MAX;
        let is_spent_first = takes_urgent || self.preferred_spent_owned;
        let is_spent =
            !self.spent.owned.is_empty() && (is_spent_first || self.fresh.owned.is_empty());
        let g = match is_spent {
            true => self.spent.owned.pop_front()?,
            false => self.fresh.owned.pop_front()?,
        };
        self.others -= 1;
        if is_spent {
            self.urgent_in_a_row += u32::from(takes_urgent && !self.fresh.owned.is_empty());
            self.urgent = self.urgent.saturating_sub(1);
            self.trim_urgent();
        }
        Some((g, g.owner()?))
    }

    /// Takes the next goroutine if it is spent and has a thread of its own.
    pub(crate) fn pop_if_owned(&mut self) -> Option<(Gp, Mp)> {
        let takes_urgent = self.urgent > 0 && self.urgent_in_a_row < STREAK_MAX;
        let has_fresh = self.has_fresh(true);
        let is_next = (takes_urgent || !has_fresh) && self.spent.is_owned_first();
        let owner = is_next.then(|| self.spent.owned.front()?.owner())??;
        let g = self.pop_spent()?;
        self.urgent_in_a_row += u32::from(has_fresh);
        Some((g, owner))
    }

    /// Makes the spent goroutines that wait now urgent: one of them may hold a lock that others
    /// wait for.
    pub(crate) fn hurry_spent(&mut self) {
        self.urgent = self.spent.len();
    }

    fn pop_spent(&mut self) -> Option<Gp> {
        self.fresh_in_a_row = 0;
        let g = self.spent.pop()?;
        self.others -= 1;
        self.urgent = self.urgent.saturating_sub(1);
        self.trim_urgent();
        Some(g)
    }

    fn trim_urgent(&mut self) {
        self.urgent = self.urgent.min(self.spent.len());
    }

    fn pop_new(&mut self) -> Option<Gp> {
        let g = self.new.pop_front()?;
        g.stack_lo.set(0);
        self.others -= 1;
        self.new_left += 1;
        Some(g)
    }

    fn pop_fresh(&mut self, may_begin: bool) -> Option<Gp> {
        self.pop_as(self.first_fresh(may_begin), may_begin)
    }

    #[inline(always)]
    fn pop_as(&mut self, first: First, may_begin: bool) -> Option<Gp> {
        if first == First::Woken {
            self.others -= 1;
            self.woken_in_a_row += u32::from(self.has_behind_woken(may_begin));
            return self.woken.pop_front();
        }
        self.woken_in_a_row = 0;
        match first {
            First::New => self.pop_new(),
            First::Owned => {
                self.others -= 1;
                self.fresh.owned.pop_front()
            }
            First::Woken | First::Free => self.fresh.pop_free(),
        }
    }

    /// Whether a fresh goroutine waits that was not woken.
    fn has_behind_woken(&self, may_begin: bool) -> bool {
        self.fresh.len() > 0 || may_begin && !self.new.is_empty()
    }

    fn first_fresh(&self, may_begin: bool) -> First {
        let is_turn_of_others =
            self.woken_in_a_row >= WOKEN_MAX && self.has_behind_woken(may_begin);
        if !self.woken.is_empty() && !is_turn_of_others {
            return First::Woken;
        }
        let owned = self.fresh.owned_stamp();
        let new = self.new.front().filter(|_| may_begin);
        let new = new.map(|g| g.stack_lo.get() as u64);
        let (stamp, first) = match (owned, new) {
            (None, None) => return First::Free,
            (Some(owned), None) => (owned, First::Owned),
            (None, Some(new)) => (new, First::New),
            (Some(_), Some(new)) if self.is_new_before_owned() => (new, First::New),
            (Some(owned), Some(_)) => (owned, First::Owned),
        };
        match stamp <= self.fresh.left {
            true => first,
            false => First::Free,
        }
    }

    fn is_new_before_owned(&self) -> bool {
        let owner = self.fresh.owned.front().and_then(|g| g.owner());
        owner.is_some_and(|owner| self.new_left < owner.queued_behind_new.get())
    }

    /// Whether counts and stamps agree. For checks: it visits every member.
    pub(crate) fn is_sound(&self) -> bool {
        let others = self.woken.len() + self.fresh.owned.len() + self.new.len() + self.spent.len();
        let last = self.fresh.stamp();
        let is_stamped = |g: Gp| g.stack_lo.get() as u64 <= last;
        others == self.others
            && self.urgent <= self.spent.len()
            && self.new.iter().all(|g| !g.has_started() && is_stamped(g))
            && self
                .woken
                .iter()
                .all(|g| g.has_started() && g.owner().is_none())
            && self.fresh.free.iter().all(|g| g.owner().is_none())
    }
}
