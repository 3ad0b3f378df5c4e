//! Decides which goroutines can never be woken: the heart of the leak check.
//!
//! It runs in a stopped world, with pages of its own (D9). A goroutine that waits without a
//! deadline is a *suspect*. For some suspects the runtime knows what can wake them:
//!
//! ```text
//!  waits in                  is woken by                   is stuck
//!  park                      a handle to the goroutine     if there is no handle, or only that
//!                                                          of a joiner that is stuck
//!  join                      the end of a goroutine        if that goroutine is stuck
//!  scope                     the end of every goroutine    if one of these is stuck
//!                            in the scope
//!  a lock                    the holder of the lock        if the holder is stuck, or has ended
//!                                                          without unlocking
//!  select (no cases), never  nothing                       always
//!  select                    a send, a receive or a close  if every handle of these channels is
//!                            of one of its channels        used by selects that are stuck
//!  anything else             unknown                       never
//! ```
//!
//! The result is the largest set of suspects that is consistent. At first all suspects are stuck. A
//! suspect that can be woken is *cleared*, and so is every suspect that was stuck because of it.
//! Nothing of this changes during the analysis: only other sleeping goroutines could wake a
//! suspect.
//!
//! Handles of a channel may be shared by reference. So a handle identifies its owner only if it
//! lives on the waiter's own stack and nothing can have borrowed from that stack. That holds if the
//! goroutine has no scope open and no foreign thread is alive: such a thread might be in a scope of
//! std's.

use std::fmt;
use std::ops::Range;
use std::ptr;

use crate::chan::snapshot;
use crate::chan::snapshot::Operation;
use crate::sched::Sched;
use crate::sched::life::deadlock;
use crate::sched::model::gstatus::Status;
use crate::sched::model::ptr::Gp;
use crate::sched::model::wait_reason::{WaitClass, WaitReason};
use crate::sched::waiting::handle::{Inner, InnerRef};
use crate::sched::waiting::on::On;
use crate::sched::waiting::owner;
use crate::sched::waiting::wait_ops::{Asleep, WaitView};
use crate::sched::waiting::wait_slot::WaitSlot;
use crate::sched::waiting::waitq::Waiter;
use crate::sys::PageVec;

/// The name of main goroutines. They may wait for ever: programs do so to stay alive.
const MAIN: &str = "main";

/// Why a goroutine can never be woken, with the ids of goroutines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    Parked,
    /// The only handle is the joiner's.
    ParkedAndJoined {
        by: u64,
    },
    NoCases,
    Never,
    Holds {
        itself: bool,
        holder: u64,
    },
    HolderEnded(u64),
    Joins(u64),
    Scope(u64),
    Select,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Parked => f.write_str("nobody has a handle to unpark it with"),
            Why::ParkedAndJoined { by } => {
                write!(
                    f,
                    "goroutine {by} waits for its end with the only handle to it"
                )
            }
            Why::NoCases => f.write_str("a select without cases waits for nothing"),
            Why::Never => f.write_str("nothing ever comes from where it receives"),
            Why::Holds { itself: true, .. } => f.write_str("it holds the lock itself"),
            Why::Holds { holder, .. } => {
                write!(
                    f,
                    "goroutine {holder} holds the lock and can never be woken either"
                )
            }
            Why::HolderEnded(holder) => {
                write!(
                    f,
                    "goroutine {holder} has ended without giving the lock back"
                )
            }
            Why::Joins(id) => write!(f, "goroutine {id} can never be woken either"),
            Why::Scope(id) => {
                write!(f, "goroutine {id} in its scope can never be woken either")
            }
            Why::Select => f.write_str(
                "nobody can use its channels but goroutines that can never be woken either",
            ),
        }
    }
}

/// What it would take to wake a goroutine.
#[derive(Clone, Copy)]
enum Ties {
    /// It is awake, or may be woken in ways that the runtime does not know.
    Free,
    /// Nothing wakes it.
    Nothing(Why),
    /// An unpark through one of so many handles.
    Handles(usize),
    /// An unpark through the only handle, which its joiner has: the joiner's index in `live`.
    Joiner(u32),
    /// The holder of a lock, by id.
    Holder(u64),
    /// The end of the goroutine with this `Inner`.
    End(usize),
    /// The ends of all goroutines in the scope with this slot.
    Scope(usize),
    /// An operation on one of its channels. These are in `ends`.
    Channels,
}

/// A goroutine that is alive.
#[derive(Clone, Copy)]
struct LiveG {
    id: u64,
    g: Gp,
    ties: Ties,
}

/// One end of a channel in a select.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ChannelEnd {
    channel: usize,
    /// The address of the handle; 0: other goroutines may use it, too.
    handle: usize,
    /// The goroutine that selects: its index in `live`.
    of: u32,
    /// How many handles the channel has.
    handles: usize,
}

/// All goroutines that are alive, and what they wait for.
pub(super) struct Survey {
    /// In the order of the ids.
    live: PageVec<LiveG>,
    /// Indices in `live`, by the address of the goroutine's `Inner` and by the address of its
    /// scope's slot.
    by_inner: PageVec<(usize, u32)>,
    in_scope: PageVec<(usize, u32)>,
    ends: PageVec<ChannelEnd>,
    /// (cause, effect): when the cause is cleared, one tie of the effect is gone. Goroutines have
    /// their indices in `live`; the numbers of channels follow.
    edges: PageVec<(u32, u32)>,
    /// How many causes must be cleared until this goroutine or channel is; 0: it is cleared.
    left: PageVec<u32>,
    cleared: PageVec<u32>,
    /// There was not enough memory, so no goroutine is marked.
    is_incomplete: bool,
}

impl Survey {
    pub(super) const fn new() -> Survey {
        Survey {
            live: PageVec::new(),
            by_inner: PageVec::new(),
            in_scope: PageVec::new(),
            ends: PageVec::new(),
            edges: PageVec::new(),
            left: PageVec::new(),
            cleared: PageVec::new(),
            is_incomplete: false,
        }
    }

    /// Allocates pages beforehand, so that the stopped world does not wait for them. If this fails,
    /// the arrays grow when they must.
    pub(super) fn reserve(&mut self, n: usize) {
        let n = n + n / 8;
        let _ = self.live.reserve(n);
        let _ = self.by_inner.reserve(n);
        let _ = self.edges.reserve(n);
        let _ = self.left.reserve(n);
        let _ = self.cleared.reserve(n);
    }

    /// Marks the goroutines that can never be woken, and calls `report` for each.
    pub(super) fn judge(&mut self, sched: &Sched, mut report: impl FnMut(u64, Why)) {
        self.take(sched);
        if !self.is_incomplete {
            self.tie();
            self.tie_channels();
        }
        if !self.is_incomplete {
            self.clear_all();
        }
        if self.is_incomplete {
            return;
        }
        for at in 0..self.live.len() {
            let entry = self.live.as_slice()[at];
            // A goroutine that was woken meanwhile is not leaked.
            if self.is_stuck(at as u32) && entry.g.status.mark_leaked() {
                report(entry.id, self.why(at as u32));
            }
        }
    }

    /// Lists the goroutines that are alive. Those that the last check has marked are Waiting again.
    fn take(&mut self, sched: &Sched) {
        let (live, is_incomplete) = (&mut self.live, &mut self.is_incomplete);
        sched.blocks.for_each(|g| {
            if !matches!(g.status.get(), Status::Dead | Status::Idle) {
                let entry = LiveG {
                    id: g.id(),
                    g,
                    ties: Ties::Free,
                };
                *is_incomplete |= live.push(entry).is_err();
            }
        });
        self.live
            .as_mut_slice()
            .sort_unstable_by_key(|entry| entry.id);
        for at in 0..self.live.len() {
            let g = self.live.as_slice()[at].g;
            g.status.restore();
            if let Some(inner) = g.inner() {
                let key = (inner.as_ptr() as usize, at as u32);
                self.is_incomplete |= self.by_inner.push(key).is_err();
                // SAFETY: D3, a G holds a reference to its `Inner` until it ends, and no goroutine
                // ends in a stopped world.
                let scope = unsafe { InnerRef::borrowed(inner) }.scope() as usize;
                if scope != 0 {
                    self.is_incomplete |= self.in_scope.push((scope, at as u32)).is_err();
                }
            }
            if let Some(asleep) = Asleep::hold(g) {
                let ties = self.ties(sched, g, &asleep, at as u32);
                drop(asleep);
                self.live.as_mut_slice()[at].ties = ties;
            }
        }
        self.by_inner.as_mut_slice().sort_unstable();
        self.in_scope.as_mut_slice().sort_unstable();
        self.ends.as_mut_slice().sort_unstable();
    }

    /// What would wake `g`, which is held by its Scan bit.
    fn ties(&mut self, sched: &Sched, g: Gp, asleep: &Asleep, at: u32) -> Ties {
        let Some(wait) = asleep.wait().filter(|wait| wait.is_open()) else {
            return Ties::Free;
        };
        if g.is_cancelled() {
            return Ties::Free; // `g` is about to unwind
        }
        let is_main = g.name() == Some(MAIN);
        match wait.view() {
            WaitView::Inner(inner) if !is_main => Ties::Handles(inner.refs() - 1),
            WaitView::Slot(slot) => slot_ties(wait.reason(), slot),
            WaitView::Waiter(waiter) => match self.queue_ties(sched, g, waiter, at) {
                Ties::Nothing(_) if is_main => Ties::Free,
                ties => ties,
            },
            _ => Ties::Free,
        }
    }

    /// What would wake `g`, which waits in queues and is held by its Scan bit.
    fn queue_ties(&mut self, sched: &Sched, g: Gp, waiter: &Waiter, at: u32) -> Ties {
        if waiter.is_claimed() {
            return Ties::Free;
        }
        let on = waiter.on.get();
        match g.wait_reason().class() {
            WaitClass::Never => Ties::Nothing(Why::NoCases),
            WaitClass::Receive if on.cases == 1 && on.object == 0 => Ties::Nothing(Why::Never),
            WaitClass::Select => self.add_ends(g, &on, at),
            // SAFETY: G6, the Scan bit keeps `g` asleep, and a waiter keeps alive what it waits on.
            _ => match unsafe { owner::named_in(on.holder) } {
                Some((runtime, id)) if runtime == sched.id => Ties::Holder(id),
                _ => Ties::Free,
            },
        }
    }

    /// Adds the channels of a select to `ends`. `on` is what its waiter waits on.
    fn add_ends(&mut self, g: Gp, on: &On, at: u32) -> Ties {
        let own = g.stack_lo.get()..g.stack_hi.get();
        // SAFETY: D3, a G holds a reference to its `Inner` until it ends, and no goroutine ends in
        // a stopped world.
        let inner = g.inner().map(|inner| unsafe { inner.as_ref() });
        let is_lent = inner.is_some_and(Inner::is_stack_lent);
        let (ends, is_incomplete) = (&mut self.ends, &mut self.is_incomplete);
        let mut ties = Ties::Nothing(Why::Never);
        let add = |operation: Operation| {
            if let Some(channel) = operation.channel {
                ties = Ties::Channels;
                let is_own = own.contains(&operation.handle) && !is_lent;
                let end = ChannelEnd {
                    channel: channel.address,
                    handle: if is_own { operation.handle } else { 0 },
                    of: at,
                    handles: channel.senders + channel.receivers,
                };
                *is_incomplete |= ends.push(end).is_err();
            }
        };
        // SAFETY: G6, the Scan bit over Waiting keeps `g` asleep until the caller clears it, and
        // `on` is its waiter's.
        unsafe { snapshot::each_operation(WaitReason::Select, on, add) };
        ties
    }
}

/// What would wake a goroutine that waits on `slot`.
fn slot_ties(reason: WaitReason, slot: &WaitSlot) -> Ties {
    if slot.is_done() {
        return Ties::Free; // the event has happened, and the goroutine is being woken
    }
    let at = ptr::from_ref(slot).addr();
    match reason.class() {
        // The slot is in the packet, right behind the `Inner`.
        WaitClass::End => Ties::End(at.wrapping_sub(size_of::<Inner>())),
        WaitClass::Scope => Ties::Scope(at),
        _ => Ties::Free,
    }
}

impl Survey {
    fn is_stuck(&self, at: u32) -> bool {
        self.left.as_slice()[at as usize] > 0
    }

    fn edge(&mut self, cause: u32, effect: u32) {
        self.is_incomplete |= self.edges.push((cause, effect)).is_err();
    }

    fn with_id(&self, id: u64) -> Option<u32> {
        let live = self.live.as_slice();
        let found = live.binary_search_by_key(&id, |entry| entry.id);
        found.ok().map(|at| at as u32)
    }

    fn with_inner(&self, inner: usize) -> Option<u32> {
        let all = self.by_inner.as_slice();
        let found = all.binary_search_by_key(&inner, |entry| entry.0);
        found.ok().map(|at| all[at].1)
    }

    /// The part of `in_scope` with the goroutines of the scope with this slot.
    fn members(&self, slot: usize) -> Range<usize> {
        let all = self.in_scope.as_slice();
        all.partition_point(|entry| entry.0 < slot)..all.partition_point(|entry| entry.0 <= slot)
    }

    /// Adds the edges and counts of all goroutines, except those of channels.
    fn tie(&mut self) {
        for at in 0..self.live.len() {
            let effect = at as u32;
            let left = match self.live.as_slice()[at].ties {
                Ties::Free => 0,
                Ties::Nothing(_) | Ties::Channels | Ties::Joiner(_) => 1,
                Ties::Handles(handles) => u32::from(handles == 0), // `tie_joined` may change this
                Ties::Holder(id) => {
                    if let Some(holder) = self.with_id(id) {
                        self.edge(holder, effect);
                    }
                    1
                }
                Ties::End(inner) => match self.with_inner(inner) {
                    Some(target) => {
                        self.edge(target, effect);
                        1
                    }
                    None => 0, // a goroutine of another runtime, or one that has just ended
                },
                Ties::Scope(slot) => {
                    let members = self.members(slot);
                    for member in members.clone() {
                        self.edge(self.in_scope.as_slice()[member].1, effect);
                    }
                    members.len() as u32
                }
            };
            self.is_incomplete |= self.left.push(left).is_err();
        }
        if !self.is_incomplete {
            self.tie_joined();
        }
    }

    /// A joiner does not use its handle for anything else until it is woken. So a parked goroutine
    /// whose only handle is its joiner's is cleared with the joiner.
    fn tie_joined(&mut self) {
        for at in 0..self.live.len() {
            if let Ties::End(inner) = self.live.as_slice()[at].ties
                && let Some(target) = self.with_inner(inner)
                && let Ties::Handles(1) = self.live.as_slice()[target as usize].ties
            {
                self.live.as_mut_slice()[target as usize].ties = Ties::Joiner(at as u32);
                self.left.as_mut_slice()[target as usize] = 1;
                self.edge(at as u32, target);
            }
        }
    }

    /// Adds the edges and counts of the channels.
    fn tie_channels(&mut self) {
        let mut has_foreign = None;
        let mut from = 0;
        while let Some(first) = self.ends.as_slice().get(from).copied() {
            let number = self.left.len() as u32;
            let (mut handles, mut lent, mut last) = (0, 0, 0);
            while let Some(end) = self.ends.as_slice().get(from).copied()
                && end.channel == first.channel
            {
                self.edge(number, end.of);
                if end.handle != 0 {
                    self.edge(end.of, number);
                    lent += usize::from(end.handle != last);
                }
                last = end.handle;
                handles = end.handles.max(handles);
                from += 1;
            }
            let is_stuck =
                lent == handles && !*has_foreign.get_or_insert_with(deadlock::has_foreign_thread);
            self.is_incomplete |= self.left.push(is_stuck.into()).is_err();
        }
    }

    /// Clears all goroutines that can be woken, and those that these can wake.
    fn clear_all(&mut self) {
        self.edges.as_mut_slice().sort_unstable();
        self.is_incomplete |= self.cleared.reserve(self.left.len()).is_err();
        for at in 0..self.left.len() as u32 {
            if !self.is_stuck(at) {
                let _ = self.cleared.push(at); // there is room: each is cleared at most once
            }
        }
        while let Some(cause) = self.cleared.pop() {
            let edges = self.edges.as_slice();
            let from = edges.partition_point(|edge| edge.0 < cause);
            for &(_, effect) in edges[from..].iter().take_while(|edge| edge.0 == cause) {
                let left = &mut self.left.as_mut_slice()[effect as usize];
                if *left == 0 {
                    continue;
                }
                *left -= 1;
                if *left == 0 {
                    let _ = self.cleared.push(effect);
                }
            }
        }
    }

    /// Why a stuck goroutine is stuck.
    fn why(&self, at: u32) -> Why {
        let live = self.live.as_slice();
        let entry = live[at as usize];
        let id_of = |at: Option<u32>| at.map_or(0, |at| live[at as usize].id);
        match entry.ties {
            Ties::Free => unreachable!("whoever may be awake is not stuck"),
            Ties::Nothing(why) => why,
            Ties::Handles(_) => Why::Parked,
            Ties::Joiner(by) => Why::ParkedAndJoined {
                by: live[by as usize].id,
            },
            Ties::Holder(id) if self.with_id(id).is_none() => Why::HolderEnded(id),
            Ties::Holder(holder) => Why::Holds {
                itself: holder == entry.id,
                holder,
            },
            Ties::End(inner) => Why::Joins(id_of(self.with_inner(inner))),
            Ties::Scope(slot) => {
                let members = &self.in_scope.as_slice()[self.members(slot)];
                let stuck = members.iter().find(|member| self.is_stuck(member.1));
                Why::Scope(id_of(stuck.map(|member| member.1)))
            }
            Ties::Channels => Why::Select,
        }
    }
}
