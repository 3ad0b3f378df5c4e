//! Select: waiting for the first of several sends and receives.
//!
//! 1. Each case is tried, in random order (or in the order given). The first case that can proceed
//!    is chosen.
//! 2. Otherwise all the channels are locked, by address, each once, and all cases are tried again.
//!    The result is true of one moment, which a `default` needs. Buffers are used without
//!    the lock, so their positions are compared before and after.
//! 3. Otherwise a node of one [`Waiter`] goes into every channel's queue, the locks are dropped and
//!    the goroutine parks. The thread that claims the waiter decides the case and hands its value
//!    over.
//! 4. The other nodes come out of their queues, each in O(1).
//!
//! A receive has its value when the select returns, in the room of its caller. A send's message is
//! evaluated afterwards. So its case has a *promise* by then: a place in the buffer, or a receiver
//! that waits.

use std::ptr;

use crate::chan::RecvError;
use crate::chan::core::{HANDSHAKE, word};
use crate::chan::open::{Open, SpareRecord};
use crate::chan::returned;
use crate::chan::ring::{No, ReservedPlace};
use crate::chan::select_case::{Case, SelectWait};
use crate::chan::select_handle::{Polled, Promise, SelectHandle};
use crate::chan::select_locks::{CaseRoom, LockAll, below, number, with_room};
use crate::sched::model::g::WaitReason;
use crate::sched::model::m::PreemptOff;
use crate::sched::park::{Entered, NoPreempt, enter, no_preempt};
use crate::sched::waiting::on::On;
use crate::sched::waiting::waitq::{Outcome, QueueEnd, WaitKind, WaitNode, Waiter, WakeList};
use crate::thread::park::check_cancelled;

static SELECT: WaitKind = WaitKind::new(WaitReason::Select).passing_on(returned::pass_on_selected);
static NO_CASES: WaitKind = WaitKind::new(WaitReason::SelectNoCases);

/// The case to be tried first, by itself: each with the same chance. If it fails all cases are
/// tried, and the ready ones still have equal chances.
#[inline]
pub(super) fn pick(cases: &[Case<'_>], is_biased: bool) -> usize {
    match is_biased {
        true => 0,
        false => below(cases.len()),
    }
}

/// Tries a receive. None: it would have to wait.
///
/// # Safety
/// `room` has room for a value of the case, which receives.
#[inline]
pub(super) unsafe fn try_recv(case: &Case<'_>, room: *mut u8) -> Option<Result<(), RecvError>> {
    // SAFETY: there is room for the value, as the caller promises.
    match unsafe { case.chan?.poll_recv(room) } {
        Ok(()) => Some(Ok(())),
        Err(No::Closed) => Some(Err(RecvError)),
        Err(No::NotNow) => None,
    }
}

/// One select under way.
pub(super) struct SelectRun<'c, 'a> {
    cases: &'c [Case<'a>],
    is_biased: bool,
    /// Only to know which case would not have to wait.
    wants_ready: bool,
    /// Where the value of a receive goes.
    value: *mut u8,
}

impl<'c, 'a> SelectRun<'c, 'a> {
    /// # Safety
    /// `value` is room for the value of every receive, and stays while the select runs.
    pub(super) unsafe fn new(
        cases: &'c [Case<'a>],
        is_biased: bool,
        value: *mut u8,
    ) -> SelectRun<'c, 'a> {
        SelectRun {
            cases,
            is_biased,
            wants_ready: false,
            value,
        }
    }

    /// A select that receives and sends nothing.
    fn for_ready(cases: &'c [Case<'a>], is_biased: bool) -> SelectRun<'c, 'a> {
        SelectRun {
            cases,
            is_biased,
            wants_ready: true,
            value: ptr::null_mut(),
        }
    }

    /// Runs the select, in room on the stack for `N` cases. The case that was picked is tried
    /// first, unless it was tried already. None: no case could proceed in time.
    #[inline]
    pub(super) fn run<const N: usize>(
        &self,
        picked: Option<usize>,
        wait: SelectWait,
    ) -> Option<ChosenCase> {
        let mut got = None;
        let picked = picked.filter(|picked| *picked < self.cases.len());
        let is_done = picked.is_some_and(|picked| self.poll(&[picked as u32], &mut got));
        if !is_done {
            self.run_all::<N>(wait, &mut got);
        }
        got
    }

    /// As [`SelectRun::run`]. Apart, so that the first try needs no room for the nodes.
    #[inline(never)]
    fn run_all<const N: usize>(&self, wait: SelectWait, got: &mut Option<ChosenCase>) {
        with_room::<N, _>(self.cases.len(), |mut room| {
            self.run_in(&mut room, wait, got);
        });
    }

    /// As [`SelectRun::run`], for any number of cases.
    pub(super) fn run_any(&self, picked: Option<usize>, wait: SelectWait) -> Option<ChosenCase> {
        match self.cases.len() {
            0..=4 => self.run::<4>(picked, wait),
            _ => self.run::<16>(picked, wait),
        }
    }

    /// The result goes to `got`, here and below: a copy in each frame would take more stack.
    #[inline(never)]
    fn run_in(&self, room: &mut CaseRoom<'_>, wait: SelectWait, got: &mut Option<ChosenCase>) {
        let is_default = matches!(wait, SelectWait::Not);
        let deadline_ns = wait.deadline();
        if self.cases.is_empty() && !is_default {
            return no_cases(deadline_ns);
        }
        let mut told = Told {
            cases: self.cases,
            is_told: false,
        };
        loop {
            self.shuffle(room.order);
            if self.poll(room.order, got) || is_default && self.cases.len() < 2 {
                return;
            }
            if !is_default {
                check_cancelled(); // a goroutine that was asked once is not asked again
            }
            match self.under_locks(room, is_default, told.is_told, deadline_ns, got) {
                LockedOutcome::Done => return,
                LockedOutcome::Again => told.is_told = true,
                LockedOutcome::Cancelled => {}
            }
        }
    }

    /// A uniformly random order: every ready case has the same chance.
    fn shuffle(&self, order: &mut [u32]) {
        number(order);
        if self.is_biased {
            return;
        }
        for n in (1..order.len()).rev() {
            order.swap(n, below(n + 1));
        }
    }

    /// Tries each case by itself. Returns whether one could proceed.
    #[inline(never)]
    fn poll(&self, order: &[u32], chosen: &mut Option<ChosenCase>) -> bool {
        for at in order.iter().map(|at| *at as usize) {
            let case = self.cases[at];
            let Some(chan) = case.chan else { continue };
            let mut open = None;
            let got = if self.wants_ready {
                chan.is_ready(case.is_send).then_some(Promise::Ready)
            } else if case.is_send {
                let mut spare = SpareRecord::new();
                let rt = enter(); // until it is known what was promised
                let promise = chan.poll_send(&rt);
                open = promise
                    .as_ref()
                    .and_then(|promise| spare.open(&rt, chan.header(), promise));
                promise
            } else {
                // SAFETY: there is room for every receive's value (see `new`).
                match unsafe { chan.poll_recv(self.value) } {
                    Ok(()) => Some(Promise::Value),
                    Err(No::Closed) => Some(Promise::Closed),
                    Err(No::NotNow) => None,
                }
            };
            if let Some(promise) = got {
                *chosen = Some(ChosenCase { at, promise, open });
                return true;
            }
        }
        false
    }
}

/// The index of a case that would not have to wait; None: there was none in time.
pub(super) fn run_ready(cases: &[Case<'_>], is_biased: bool, wait: SelectWait) -> Option<usize> {
    let got = SelectRun::for_ready(cases, is_biased).run_any(None, wait)?;
    Some(got.at) // nothing is to be completed
}

/// A case that was chosen.
pub(super) struct ChosenCase {
    pub(super) at: usize,
    pub(super) promise: Promise,
    /// The record of a send that was promised something.
    pub(super) open: Option<Open>,
}

impl ChosenCase {
    /// With a promise that never has to be refused.
    fn new(at: usize, promise: Promise) -> ChosenCase {
        let open = None;
        ChosenCase { at, promise, open }
    }
}

/// How a try under all locks ended, or the wait after it.
enum LockedOutcome {
    /// A case was chosen, or none could proceed: at one moment, or in time.
    Done,
    Again,
    Cancelled,
}

/// The steps are not in line: the frame in which a select sleeps has room only for what it needs
/// after that.
impl SelectRun<'_, '_> {
    /// Tries all cases under their locks, then waits. `is_told`: the select was woken to look
    /// again. Apart, so that the tries before it run without the frame for this.
    #[inline(never)]
    fn under_locks(
        &self,
        room: &mut CaseRoom<'_>,
        is_default: bool,
        is_told: bool,
        deadline_ns: u64,
        got: &mut Option<ChosenCase>,
    ) -> LockedOutcome {
        let waiter = Waiter::new();
        let mut wake = WakeList::new();
        let mut spare = (self.cases.iter().any(|case| case.is_send)).then(SpareRecord::new);
        let (order, sorted, nodes) = room.parts(&waiter, self.value);
        let mut due = self.next_due();
        let rt = enter(); // until it sleeps: a claimer relies on it (`waitq`)
        let locks = LockAll::new(self.cases, sorted);
        let found = self.look(order, nodes, is_default, &mut wake);
        if found.is_none() && !is_default {
            if self.next_due() != due {
                return LockedOutcome::Again;
            }
            if due != u64::MAX {
                due = self.turns(nodes);
            }
            self.queue(order, nodes, is_told, &mut wake);
        }
        drop(locks);
        wake.wake_in(&rt);
        match found {
            Some((at, Polled::Now(promise))) => {
                *got = Some(self.open(&rt, at, promise, &mut spare));
                LockedOutcome::Done
            }
            Some((at, Polled::Promised)) => self.shake_hands(rt, &waiter, &nodes[at], got),
            None if is_default => LockedOutcome::Done,
            None => {
                let until = deadline_ns.min(due);
                waiter.on.set(self.on());
                let outcome = waiter.wait_in(rt, &SELECT, until);
                // Until it is known what a send was promised: a goroutine that is preempted into a
                // queue could be abandoned with the promise (D2).
                let whole = spare.is_some().then(|| no_preempt(PreemptOff::HalfDone));
                let is_due = outcome == Outcome::TimedOut && due <= deadline_ns;
                let in_turn = match is_due && !self.wants_ready {
                    true => self.take_due(nodes),
                    false => None,
                };
                self.unqueue(nodes, outcome);
                if let Some(at) = in_turn {
                    *got = Some(ChosenCase::new(at, Promise::Value));
                    return LockedOutcome::Done;
                }
                self.after_wait(outcome, nodes, due < deadline_ns, whole, &mut spare, got)
            }
        }
    }

    /// A case was chosen. If it is a send, a drop of the runtime refuses what it was promised.
    /// Called without locks, before the goroutine leaves the runtime in which it got the promise.
    #[inline(never)]
    fn open(
        &self,
        rt: &Entered,
        at: usize,
        promise: Promise,
        spare: &mut Option<SpareRecord>,
    ) -> ChosenCase {
        let open = match (spare, self.cases[at].chan) {
            (Some(spare), Some(chan)) => spare.open(rt, chan.header(), &promise),
            _ => None,
        };
        ChosenCase { at, promise, open }
    }

    /// Waits for the value of a sender that has yet to evaluate it. No node of the select is in a
    /// queue: the sender has the node of the case.
    #[cold]
    #[inline(never)]
    fn shake_hands(
        &self,
        rt: Entered,
        waiter: &Waiter,
        node: &WaitNode<'_>,
        got: &mut Option<ChosenCase>,
    ) -> LockedOutcome {
        let at = node.case();
        if let Some(chan) = self.cases[at].chan {
            waiter.on.set(chan.header().on());
        }
        let outcome = waiter.wait_in(rt, &HANDSHAKE, u64::MAX);
        debug_assert_eq!(outcome, Outcome::Case(at));
        match node.word.get() {
            word::MOVED => {
                *got = Some(ChosenCase::new(at, Promise::Value));
                LockedOutcome::Done
            }
            _ => LockedOutcome::Again,
        }
    }

    /// Tries every case with all locks held: what is found is true of one moment.
    #[inline(never)]
    fn look(
        &self,
        order: &[u32],
        nodes: &[WaitNode<'_>],
        is_default: bool,
        wake: &mut WakeList,
    ) -> Option<(usize, Polled)> {
        let versions = || {
            let of = |case: &Case<'_>| case.chan.map_or((0, 0), SelectHandle::version);
            self.cases.iter().map(of).fold((0usize, 0usize), |sum, v| {
                (sum.0.wrapping_add(v.0), sum.1.wrapping_add(v.1))
            })
        };
        loop {
            let before = is_default.then(versions);
            for at in order.iter().map(|at| *at as usize) {
                let case = self.cases[at];
                let Some(chan) = case.chan else { continue };
                // SAFETY: `LockAll` holds the locks. There is room for the value (see `new`), and
                // it is the `elem` of each node (`CaseRoom::parts`). No node is in a queue: `queue`
                // comes later. The first `Promised` is returned, so no other case is tried then.
                let got = unsafe {
                    if self.wants_ready {
                        let is_ready = chan.is_ready_locked(case.is_send);
                        is_ready.then_some(Polled::Now(Promise::Ready))
                    } else if case.is_send {
                        chan.poll_send_locked(wake).map(Polled::Now)
                    } else {
                        chan.poll_recv_locked(self.value, &nodes[at], wake)
                    }
                };
                if let Some(polled) = got {
                    return Some((at, polled));
                }
            }
            // Positions only grow, so equal sums are equal positions.
            if before.is_none_or(|before| versions() == before) {
                return None;
            }
        }
    }

    fn next_due(&self) -> u64 {
        let due = |case: &Case<'_>| match case.chan {
            Some(chan) if !case.is_send => chan.next_due(),
            _ => u64::MAX,
        };
        self.cases.iter().map(due).min().unwrap_or(u64::MAX)
    }

    /// Until when the select may sleep for the sake of channels that have something by themselves.
    /// With all locks held, before [`SelectRun::queue`].
    #[inline(never)]
    fn turns(&self, nodes: &[WaitNode<'_>]) -> u64 {
        let turn = |(case, node): (&Case<'_>, &WaitNode<'_>)| match case.chan {
            Some(chan) if !case.is_send => {
                // SAFETY: `LockAll` holds the lock of every case.
                chan.turn(unsafe { chan.header().queues.get_held() }, node)
            }
            _ => u64::MAX,
        };
        self.cases
            .iter()
            .zip(nodes)
            .map(turn)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Puts the nodes into the queues, with all locks held.
    #[inline(never)]
    fn queue(&self, order: &[u32], nodes: &[WaitNode<'_>], is_told: bool, wake: &mut WakeList) {
        // In the order of the tries: of several cases on one channel, none is always the first in
        // its queue.
        for at in order.iter().map(|at| *at as usize) {
            let (case, node) = (&self.cases[at], &nodes[at]);
            let Some(chan) = case.chan else { continue };
            node.word.set(match (self.wants_ready, case.is_send) {
                (true, _) => word::READY,
                (false, true) => word::PLACE,
                (false, false) => word::VALUE,
            });
            // SAFETY: `LockAll` holds the lock of every case. `under_locks` keeps the nodes until
            // `unqueue` has taken them out.
            unsafe {
                let q = chan.header().queues.get_held();
                if case.is_send {
                    q.sendq.push(node, QueueEnd::Back);
                } else {
                    // A select woken with `AGAIN` that sleeps until the next tick is queued first.
                    let due = node.due.get();
                    let is_first = is_told && due != u64::MAX && due <= chan.next_due();
                    q.recvq.push(node, QueueEnd::front_if(is_first));
                }
            }
        }
        // Settled when all nodes are in: a claim by one channel must not find a case that is not
        // queued yet.
        for chan in self.cases.iter().filter_map(|case| case.chan) {
            // SAFETY: `LockAll` holds the lock of every case.
            chan.settle_queued(unsafe { chan.header().queues.get_held() }, wake);
        }
    }

    /// What a waiter stores of the select.
    fn on(&self) -> On {
        On {
            cases_at: self.cases.as_ptr().cast(),
            cases: self.cases.len() as u32,
            ..On::NOTHING
        }
    }

    /// What a wait has brought, when the nodes are out of their queues. `is_early`: a timeout comes
    /// before the deadline, for the sake of a channel. Apart, so that the select sleeps without the
    /// frame for this.
    #[inline(never)]
    fn after_wait(
        &self,
        outcome: Outcome,
        nodes: &[WaitNode<'_>],
        is_early: bool,
        whole: Option<NoPreempt>,
        spare: &mut Option<SpareRecord>,
        got: &mut Option<ChosenCase>,
    ) -> LockedOutcome {
        match outcome {
            Outcome::Case(at) => {
                let promise = match nodes[at].word.get() {
                    word::MOVED => Promise::Value,
                    word::CLOSED => Promise::Closed,
                    word::READY => Promise::Ready,
                    word::AGAIN => return LockedOutcome::Again,
                    word::PEER => Promise::Receiver(nodes[at].elem.get().cast()),
                    place => Promise::Place(ReservedPlace(place - word::RESERVED)),
                };
                *got = Some(match whole {
                    None => ChosenCase::new(at, promise),
                    Some(whole) => {
                        let rt = enter();
                        drop(whole);
                        self.open(&rt, at, promise, spare)
                    }
                });
                LockedOutcome::Done
            }
            Outcome::TimedOut if is_early => LockedOutcome::Again,
            Outcome::TimedOut => LockedOutcome::Done,
            Outcome::Cancelled => LockedOutcome::Cancelled,
        }
    }

    /// Receives from the channel whose time came first.
    #[inline(never)]
    fn take_due(&self, nodes: &[WaitNode<'_>]) -> Option<usize> {
        let receives = (0..self.cases.len()).filter(|at| !self.cases[*at].is_send);
        let at = receives.min_by_key(|at| {
            self.cases[*at]
                .chan
                .map_or(u64::MAX, SelectHandle::next_due)
        })?;
        // SAFETY: there is room for every receive's value (see `new`). The node waited in its
        // channel until now.
        let got = unsafe { self.cases[at].chan?.recv_in_turn(&nodes[at], self.value) };
        got.then_some(at)
    }

    /// Takes out every node that its channel has not popped.
    #[inline(never)]
    fn unqueue(&self, nodes: &[WaitNode<'_>], outcome: Outcome) {
        let mut wake = WakeList::new();
        let rt = enter();
        for (at, (case, node)) in self.cases.iter().zip(nodes).enumerate() {
            let Some(chan) = case.chan else { continue };
            if outcome == Outcome::Case(at) {
                continue; // popped by the claim
            }
            let header = chan.header();
            let mut q = header.queues.lock();
            if case.is_send {
                q.sendq.remove(node);
            } else {
                q.recvq.remove(node);
                if node.due.get() != u64::MAX {
                    chan.look_after(&mut q, &mut wake);
                }
            }
            header.note_queues(&q);
        }
        wake.wake_in(&rt);
    }
}

/// A select that was woken with `AGAIN`. When it returns or unwinds, the next receiver takes over
/// its tick (`chan/timer.rs`).
struct Told<'c, 'a> {
    cases: &'c [Case<'a>],
    is_told: bool,
}

impl Drop for Told<'_, '_> {
    fn drop(&mut self) {
        if self.is_told {
            look_after_leaving(self.cases);
        }
    }
}

#[cold]
#[inline(never)]
fn look_after_leaving(cases: &[Case<'_>]) {
    let receives = cases.iter().filter(|case| !case.is_send);
    receives
        .filter_map(|case| case.chan)
        .for_each(SelectHandle::look_after_leaving);
}

/// Waits for nothing.
fn no_cases(deadline_ns: u64) {
    loop {
        check_cancelled();
        if Waiter::new().wait(&NO_CASES, deadline_ns) == Outcome::TimedOut {
            return;
        }
    }
}
