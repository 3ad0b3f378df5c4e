//! Lists every G once, with the places in which the check has found it.
//!
//! A G must be in exactly the place that its status names; this is how the check finds out. Gs are
//! listed in the order of their addresses, so that the member of a queue is found by bisection. The
//! list lies in pages of its own (D9). The world is stopped meanwhile.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use super::check::Report;
use crate::sched::Sched;
use crate::sched::model::g::{G, WaitReason};
use crate::sched::model::global_queue::GlobalQueue;
use crate::sched::model::gstatus::Status;
use crate::sched::model::p::{GFREE_MAX, HeldP};
use crate::sched::model::ptr::{Gp, Mp, Pp};
use crate::sched::model::timer::heap::Heap;
use crate::sched::model::wait_reason::WaitClass;
use crate::shim::RING;
use crate::sys::PageVec;

/// One G, and how often it was found where.
#[derive(Clone, Copy)]
struct Tally {
    g: Gp,
    status: Status,
    /// Times it was found as a P's next, in a ring, on the global queue, on a free list.
    next: u32,
    ring: u32,
    global: u32,
    free: u32,
    /// Times it was found in a timer heap.
    timers: u32,
}

impl Tally {
    fn queued(&self) -> u32 {
        self.next + self.ring + self.global
    }
}

/// All Gs.
pub(super) struct Census {
    tallies: PageVec<Tally>,
}

impl Census {
    pub(super) const fn new() -> Census {
        Census {
            tallies: PageVec::new(),
        }
    }

    /// Allocates the pages beforehand, so that the stopped world does not wait for them.
    pub(super) fn reserve(&mut self, n: usize) {
        // If this fails, `take` tries again and reports it.
        let _ = self.tallies.reserve(n + n / 8);
    }

    pub(super) fn len(&self) -> usize {
        self.tallies.len()
    }

    /// How many Gs have a status for which `pick` returns true.
    pub(super) fn count(&self, pick: impl Fn(Status) -> bool) -> usize {
        self.tallies
            .as_slice()
            .iter()
            .filter(|tally| pick(tally.status))
            .count()
    }

    /// How many Gs wait for a timer to start them.
    pub(super) fn dormant(&self) -> usize {
        let tallies = self.tallies.as_slice().iter();
        tallies
            .filter(|tally| tally.status == Status::Dead && tally.timers > 0)
            .count()
    }

    /// How many Gs have a stack.
    pub(super) fn stacks(&self) -> usize {
        let tallies = self.tallies.as_slice().iter();
        tallies.filter(|tally| tally.g.stack().is_some()).count()
    }

    /// Lists every G that was handed out by its block.
    pub(super) fn take(&mut self, sched: &Sched, report: &mut Report) {
        self.tallies.clear();
        let tallies = &mut self.tallies;
        let mut is_full = false;
        sched.blocks.for_each(|g| {
            let tally = Tally {
                g,
                status: g.status.get(),
                next: 0,
                ring: 0,
                global: 0,
                free: 0,
                timers: 0,
            };
            is_full |= tallies.push(tally).is_err();
        });
        tallies
            .as_mut_slice()
            .sort_unstable_by_key(|tally| tally.g.as_ptr() as usize);
        report.expect(
            !is_full,
            "GF",
            format_args!("no memory to list the goroutines"),
        );
    }

    fn find(&mut self, g: NonNull<G>, place: &str, report: &mut Report) -> Option<&mut Tally> {
        let key = g.as_ptr() as usize;
        let found = self
            .tallies
            .as_slice()
            .binary_search_by_key(&key, |tally| tally.g.as_ptr() as usize);
        if found.is_err() {
            report.add(
                "G3",
                format_args!("{place} holds {key:#x}, which is no goroutine"),
            );
        }
        self.tallies.get_mut(found.ok()?)
    }

    /// Counts what a P holds: its next, its ring and its free list.
    pub(super) fn visit_p(&mut self, p: Pp, report: &mut Report) {
        // SAFETY: R2, only the P's holder may put and get. All Ps of a stopped world belong to its
        // leader, which is the caller.
        let queue = unsafe { HeldP::new(&p) }.queue();
        // Empties the ring and fills it again, in order. The array has room for one G more than the
        // ring, so that too many are noticed.
        let mut ring = [None; RING + 1];
        let mut len = 0;
        let mut next = None;
        while len < ring.len()
            && let Some((g, is_next)) = queue.get()
        {
            if is_next {
                next = Some(g);
            } else {
                ring[len] = Some(g);
                len += 1;
            }
        }
        report.expect(
            len <= RING,
            "R1",
            format_args!("P{}'s ring holds more than {RING}", p.id),
        );
        for g in ring[..len.min(RING)].iter().flatten() {
            let is_back = queue.put(*g).is_ok();
            report.expect(
                is_back,
                "R1",
                format_args!("P{}'s ring does not take back what it held", p.id),
            );
            if let Some(tally) = self.find(*g, "a ring", report) {
                tally.ring += 1;
            }
        }
        if let Some(g) = next {
            let displaced = queue.put_next(g);
            report.expect(
                displaced.is_none(),
                "R5",
                format_args!("P{}'s next was set twice", p.id),
            );
            if let Some(tally) = self.find(g, "a P's next", report) {
                tally.next += 1;
            }
        }
        // SAFETY: PL, only the P's holder may use its caches. All Ps of a stopped world belong to
        // its leader, which is the caller. The caller has no other reference to them.
        let gfree = &unsafe { HeldP::new(&p) }.local().gfree;
        for g in gfree.iter().take(GFREE_MAX + 1) {
            if let Some(tally) = self.find(g.non_null(), "a free list", report) {
                tally.free += 1;
            }
        }
    }

    /// Counts the members of a P's timer heap, whose lock the caller holds.
    pub(super) fn visit_heap(&mut self, p: Pp, heap: &Heap, report: &mut Report) {
        for g in heap.iter() {
            if let Some(tally) = self.find(g.non_null(), "a timer heap", report) {
                tally.timers += 1;
                report.expect(
                    g.timer_p.load(Relaxed) == p.id,
                    "PL",
                    format_args!(
                        "goroutine {} is in P{}'s timers, its own field names another P",
                        g.id(),
                        p.id
                    ),
                );
            }
        }
    }

    /// Counts the members of the global queue; returns how many there are.
    pub(super) fn visit_global(&mut self, queue: &GlobalQueue, report: &mut Report) -> usize {
        let mut count = 0;
        // In a cycle this counts one member too many.
        for g in queue.iter().take(queue.len() + 1) {
            count += 1;
            if let Some(tally) = self.find(g.non_null(), "the global queue", report) {
                tally.global += 1;
            }
        }
        count
    }

    /// Reports every G that is not where its status requires it to be.
    pub(super) fn judge(&self, sched: &Sched, leader: Option<Mp>, report: &mut Report) {
        for tally in self.tallies.as_slice() {
            judge_place(tally, report);
            judge_timer(tally, report);
            judge_thread(tally, leader, report);
            judge_bonds(tally, sched, report);
        }
    }
}

/// G3, G4, R5, I2: the queues.
fn judge_place(tally: &Tally, report: &mut Report) {
    let (id, status, queued) = (tally.g.id(), tally.status, tally.queued());
    if tally.next > 0 && tally.ring > 0 {
        report.add(
            "R5",
            format_args!("goroutine {id} is next on a P and in a ring"),
        );
    }
    if queued > 1 {
        report.add(
            "G3",
            format_args!("goroutine {id} is on {queued} run queues"),
        );
    }
    match status {
        Status::Runnable => {
            report.expect(
                queued > 0,
                "G3",
                format_args!("goroutine {id} is runnable but on no queue"),
            );
        }
        _ => {
            let name = status.name();
            report.expect(
                queued == 0,
                "I2",
                format_args!("goroutine {id} is {name} but on a run queue"),
            );
        }
    }
    let free = u32::from(status == Status::Dead && tally.timers == 0);
    report.expect(
        tally.free == free,
        "GF",
        format_args!(
            "G {id} is {} and on {} free lists",
            status.name(),
            tally.free
        ),
    );
    report.expect(
        status != Status::Idle,
        "G0",
        format_args!("a G was handed out idle"),
    );
    if matches!(status, Status::Waiting | Status::Leaked) {
        let g = tally.g;
        let has_way = g.has_wait() && g.wait_reason() != WaitReason::None;
        report.expect(
            has_way,
            "G4",
            format_args!("goroutine {id} waits on nothing"),
        );
        let sleeps = g.wait_reason().class() == WaitClass::Clock;
        report.expect(
            !sleeps || g.has_timer(),
            "G4",
            format_args!("goroutine {id} sleeps without a timer"),
        );
    }
}

/// PL, G4: the timers. The caller holds the locks of all heaps, so no G is being added or removed.
fn judge_timer(tally: &Tally, report: &mut Report) {
    let (g, id) = (tally.g, tally.g.id());
    let claimed = u32::from(g.has_timer());
    report.expect(
        tally.timers == claimed,
        "PL",
        format_args!(
            "goroutine {id} is in {} timer heaps, its own field stands for {claimed}",
            tally.timers
        ),
    );
}

/// G2, M4: a G that has an M, and that M, agree.
fn judge_thread(tally: &Tally, leader: Option<Mp>, report: &mut Report) {
    let (g, id) = (tally.g, tally.g.id());
    let m = g.m.load(Relaxed);
    match tally.status {
        Status::Running => {
            let is_leader = m.is_some() && m == leader;
            report.expect(
                is_leader,
                "P4",
                format_args!("goroutine {id} runs in a stopped world"),
            );
            let is_mutual = m.is_some_and(|m| m.curg() == Some(g) && m.p.load(Relaxed).is_some());
            report.expect(
                is_mutual,
                "G2",
                format_args!("goroutine {id} runs on an M that does not run it"),
            );
        }
        Status::Syscall => {
            let is_mutual = m.is_some_and(|m| {
                m.curg() == Some(g) && m.p.load(Relaxed).is_none() && m.claim.is_away()
            });
            report.expect(
                is_mutual,
                "M4",
                format_args!("goroutine {id} is in a call on an M that is not, or has a P"),
            );
        }
        Status::Runnable => {
            let is_mutual = m.is_none_or(|m| m.bound.load(Relaxed) == Some(g));
            report.expect(
                is_mutual,
                "G2",
                format_args!("goroutine {id} waits on the thread of an M that is not bound to it"),
            );
        }
        status => {
            let name = status.name();
            report.expect(
                m.is_none(),
                "G2",
                format_args!("goroutine {id} is {name} but has an M"),
            );
        }
    }
}

/// G6, M6, GF, D3: the M it is locked to, its Scan bit, its runtime, its stack.
fn judge_bonds(tally: &Tally, sched: &Sched, report: &mut Report) {
    let (g, id) = (tally.g, tally.g.id());
    if let Some(m) = g.lockedm.load(Relaxed) {
        let is_mutual = m.lockedg.load(Relaxed) == Some(g);
        report.expect(
            is_mutual,
            "M6",
            format_args!("goroutine {id} is locked to an M that is not locked to it"),
        );
    }
    report.expect(
        !g.status.is_scanned(),
        "G6",
        format_args!("goroutine {id} has its Scan bit left set"),
    );
    report.expect(
        std::ptr::eq(g.sched(), sched),
        "GF",
        format_args!("goroutine {id} belongs to another runtime"),
    );
    let has_stack = g.stack().is_some();
    let has_run = matches!(
        tally.status,
        Status::Running | Status::Waiting | Status::Leaked | Status::Syscall
    );
    let needs_stack = has_run || g.m.load(Relaxed).is_some();
    let is_dead = tally.status == Status::Dead;
    report.expect(
        has_stack || !needs_stack,
        "D3",
        format_args!("goroutine {id} has run but has no stack"),
    );
    report.expect(
        !has_stack || !is_dead,
        "D3",
        format_args!("dead G {id} keeps its stack"),
    );
}
