//! Goroutines that wait long give the unused pages of their stacks back (U8).
//!
//! A goroutine that once ran deep and now waits keeps its touched pages. The background work walks over all
//! goroutines, a few at a time, and returns the pages below the stack pointer of those that have waited for
//! a while. Meanwhile the goroutine is in state CopyStack, which a waker waits out: a microsecond.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::Sched;
use super::gstatus::Status;
use super::ptr::Gp;
use crate::context::stack::Arena;

/// How long a goroutine must have waited.
const WAIT_MS: u32 = 5_000;
/// Goroutines visited in one turn.
const STEP: usize = 256;

/// Where the walk goes on: the number of Gs visited in this round.
pub(crate) struct Shrinker {
    visited: AtomicUsize,
}

impl Shrinker {
    pub(crate) fn new() -> Shrinker {
        Shrinker {
            visited: AtomicUsize::new(0),
        }
    }
}

impl Sched {
    /// Visits some goroutines; true if the round is not over.
    pub(crate) fn shrink_parked(&self) -> bool {
        let mut found = [None::<Gp>; STEP];
        let (skip, now) = (self.shrinker.visited.load(Relaxed), self.coarse_ms());
        let seen = self.blocks.visit(skip, STEP, |at, g| {
            if is_due(g, now) {
                found[at] = Some(g);
            }
        });
        for g in found.into_iter().flatten() {
            shrink(g);
        }
        let next = if seen < STEP { 0 } else { skip + seen };
        self.shrinker.visited.store(next, Relaxed);
        next != 0
    }
}

fn is_due(g: Gp, now_ms: u32) -> bool {
    let since = g.wait_since.load(Relaxed);
    g.status.get() == Status::Waiting
        && now_ms.wrapping_sub(since) >= WAIT_MS
        && g.shrunk_at.load(Relaxed) != since.wrapping_add(1)
}

fn shrink(g: Gp) {
    if !g.status.begin_shrink() {
        return; // it was just woken
    }
    if let Some(stack) = g.stack() {
        // SAFETY: D4, the goroutine is off its stack and CopyStack keeps it there.
        unsafe { Arena::shrink_below(stack, g.sp.get()) };
        g.shrunk_at
            .store(g.wait_since.load(Relaxed).wrapping_add(1), Relaxed);
    }
    g.status.transition(Status::CopyStack, Status::Waiting);
}
