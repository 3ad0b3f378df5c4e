//! Waiting in queues: a [`Waiter`] is one wait of one goroutine or plain thread, a [`Node`] its place in one queue (Go's sudog).
//!
//! Both lie on the waiter's own stack, so waiting allocates nothing and has no limit. What they are for:
//!
//! 1. Under the lock of the thing it waits on, the waiter finds that it must wait and puts a node into the thing's queue; a
//!    select puts one into several, with all their locks held.
//! 2. It drops the lock and calls [`Waiter::wait`].
//! 3. Whoever has something for it takes the lock, pops a node ([`WaitQueue::pop`] claims its waiter and skips those whose wait
//!    is over), hands the thing over, and [finishes](Claim::finish) into a [`WakeList`].
//! 4. It drops the lock, then wakes the list. No thread is woken to find a lock held.
//! 5. The waiter takes the nodes that were not popped out again, under the locks.
//!
//! The timeout and the end of the runtime claim the waiter without knowing its queues: its nodes stay in them until the waiter
//! takes them out. Those of a goroutine whose runtime was dropped stay in, claimed, on a stack that is never freed (D2);
//! a pop throws them out. A pop also skips a goroutine that sleeps while its runtime is being dropped. A goroutine that was
//! given something before the drop and never runs has it taken back: its [`WaitKind`] passes it on.
//!
//! From the moment its node is in a queue until its commit a goroutine stays inside the runtime. So a drop finds no goroutine
//! that is queued, neither asleep nor running.

use std::ffi::c_void;
use std::marker::PhantomPinned;
use std::ptr;
use std::sync::atomic::AtomicU64;

use super::park::{Entered, WaitArg, WaitOps, enter, park, park_in};
pub(crate) use super::wakelist::WakeList;
use crate::base::note::Note;
use crate::sched::model::current::current_g;
use crate::sched::model::g::{G, WaitReason};
use crate::sched::model::ptr::{Gp, Ptr};
use crate::sched::model::sudog::{CASE_SHIFT, Found, WaitWord};
use crate::sched::waiting::timed::{arm, wait_timed_in};
use crate::shim::{Cell, LATE_TURNS};

/// Marks a waiter that is a thread's note; a G's address has the bit clear.
pub(super) const THREAD: usize = 2;

/// Cases that no queue uses.
const TIMED_OUT: usize = usize::MAX >> CASE_SHIFT;
const CANCELLED: usize = TIMED_OUT - 1;
/// What it was given was taken back.
const REVOKED: usize = TIMED_OUT - 2;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// A queue's owner ended it; the node's case.
    Case(usize),
    /// The deadline has passed.
    TimedOut,
    /// The runtime asks the goroutine to unwind: after its nodes are out of their queues, `check_cancelled` does that, or
    /// returns where nothing can unwind; then the goroutine waits again.
    Cancelled,
}

/// One wait. Does not move while any node of it is in a queue.
pub(crate) struct Waiter {
    word: WaitWord,
    note: Note,
    /// Link of a [`WakeList`], and who is woken.
    pub(super) next: Cell<*const Waiter>,
    pub(super) asleep: Cell<usize>,
    /// The node by which the wait was claimed.
    by: Cell<*const Node>,
    /// What it waits on, for dumps.
    pub(crate) on: Cell<On>,
    _pin: PhantomPinned,
}

/// What a waiter says of what it waits on; read while it is held asleep.
#[derive(Clone, Copy)]
pub(crate) struct On {
    /// The channel, lock or group; 0: none is told, or a select has them.
    pub(crate) object: usize,
    /// The word with the goroutine that holds it (`sync::owner`), where there is one; null otherwise.
    pub(crate) holder: *const AtomicU64,
    /// The cases of a select; the socket and its home of a wait for the network (`netpoll`); the condvar of a waiter that locks
    /// its mutex again.
    pub(crate) cases_at: *const c_void,
    /// How many; of a single operation there is one, even on a channel that does not exist (`never`).
    pub(crate) cases: u32,
}

impl On {
    pub(crate) const NOTHING: On = On {
        object: 0,
        holder: ptr::null(),
        cases_at: ptr::null(),
        cases: 0,
    };

    /// The wait on a channel on which nothing ever happens.
    pub(crate) const NEVER: On = On {
        cases: 1,
        ..On::NOTHING
    };
}

impl Waiter {
    #[inline]
    pub(crate) fn new() -> Waiter {
        Waiter {
            word: WaitWord::new(),
            note: Note::new(),
            next: Cell::new(ptr::null()),
            asleep: Cell::new(0),
            by: Cell::new(ptr::null()),
            on: Cell::new(On::NOTHING),
            _pin: PhantomPinned,
        }
    }

    /// Whether somebody ends the wait: the waiter is about to be woken.
    pub(crate) fn is_claimed(&self) -> bool {
        self.word.is_claimed()
    }

    /// Waits until a node's owner ends it or the deadline (monotonic ns, `u64::MAX` for none) passes. Blocks the goroutine, or
    /// the thread if this is none. From outside the runtime, without locks.
    pub(crate) fn wait(&self, kind: &'static WaitKind, deadline_ns: u64) -> Outcome {
        self.wait_in(enter(), kind, deadline_ns)
    }

    /// As [`Waiter::wait`], from inside the runtime: who has just queued itself goes to sleep without leaving first.
    #[inline]
    pub(crate) fn wait_in(
        &self,
        rt: Entered,
        kind: &'static WaitKind,
        deadline_ns: u64,
    ) -> Outcome {
        if deadline_ns == u64::MAX && rt.g().is_some() {
            // SAFETY: PK, the kind's functions take a Waiter, and `self` is borrowed for the whole wait.
            unsafe { park_in(rt, &kind.untimed, (&raw const *self).cast()) };
        } else {
            self.wait_otherwise(rt, kind, deadline_ns);
        }
        self.outcome(kind)
    }

    /// With a deadline, or on a plain thread.
    #[inline(never)]
    fn wait_otherwise(&self, rt: Entered, kind: &'static WaitKind, deadline_ns: u64) {
        if rt.g().is_none() {
            drop(rt);
            self.wait_thread(deadline_ns);
        } else if !wait_timed_in(rt, &kind.timed, (&raw const *self).cast(), deadline_ns) {
            crate::sched::waiting::timed::yield_until(deadline_ns, || self.word.is_claimed());
            self.give_up(TIMED_OUT);
        }
    }

    fn wait_thread(&self, deadline_ns: u64) {
        if !self.word.commit(&raw const self.note as usize | THREAD) {
            return;
        }
        let woken = match deadline_ns {
            u64::MAX => {
                self.note.sleep();
                true
            }
            until => self.note.sleep_until(until),
        };
        if !woken && self.give_up(TIMED_OUT) == Found::Over {
            self.note.sleep(); // somebody has us and will touch the note
        }
    }

    /// Ends the wait with nothing, if nobody else has ended it: by the waiter itself, or by whom it must be woken then.
    fn give_up(&self, case: usize) -> Found {
        let found = self.word.claim(case);
        match found {
            Found::Over => {}
            Found::Asleep(_) => self.word.finish_asleep(case),
            // It is on its way to sleep, perhaps in a commit, which is refused; it cannot have slept late in between.
            Found::Awake => _ = self.word.finish_awake(case),
        }
        found
    }

    /// What became of it. The claimer may be in the middle of handing over.
    #[inline]
    fn outcome(&self, kind: &'static WaitKind) -> Outcome {
        let mut turns = 0;
        loop {
            match self.word.outcome() {
                Some(TIMED_OUT) => return Outcome::TimedOut,
                Some(CANCELLED) => return Outcome::Cancelled,
                Some(case) => return Outcome::Case(case),
                None if turns < LATE_TURNS => {
                    turns += 1;
                    crate::shim::spin_hint();
                }
                None => self.sleep_late(kind),
            }
        }
    }

    /// Sleeps until the claimer is done. It runs user code before that: a select's sender.
    #[cold]
    fn sleep_late(&self, kind: &'static WaitKind) {
        if current_g().is_some() {
            // SAFETY: PK, as in `wait_in`.
            return unsafe { park(&kind.late, (&raw const *self).cast()) };
        }
        self.asleep.set(&raw const self.note as usize | THREAD);
        if self.word.commit_late() {
            self.note.sleep();
        }
    }
}

/// A reason to wait in queues.
pub(crate) struct WaitKind {
    untimed: WaitOps,
    timed: WaitOps,
    /// Claimed already.
    late: WaitOps,
}

impl WaitKind {
    /// For a wait that the end of the runtime does not end: somebody has the node and is about to write to it.
    pub(crate) const fn always(reason: WaitReason) -> WaitKind {
        let mut kind = WaitKind::new(reason);
        kind.untimed.is_open = false;
        kind.untimed.withdraw = |_, _| false;
        kind.timed.withdraw = |_, _| false;
        kind
    }

    /// With a way to pass on what a goroutine was given that never goes on.
    pub(crate) const fn passing_on(mut self, pass_on: PassOn) -> WaitKind {
        self.untimed.pass_on = Some(pass_on);
        self.timed.pass_on = Some(pass_on);
        self.late.pass_on = Some(pass_on);
        self
    }

    /// For a wait that something outside the program may end at any time.
    pub(crate) const fn expecting(reason: WaitReason) -> WaitKind {
        let mut kind = WaitKind::new(reason);
        kind.untimed.is_open = false;
        kind
    }

    pub(crate) const fn new(reason: WaitReason) -> WaitKind {
        WaitKind {
            untimed: WaitOps {
                reason,
                arg: WaitArg::Waiter,
                is_open: true,
                commit,
                withdraw,
                pass_on: None,
            },
            timed: WaitOps {
                reason,
                arg: WaitArg::Waiter,
                is_open: false,
                commit: |g, waiter| arm(g, time_out, || commit_g(g, waiter)),
                withdraw,
                pass_on: None,
            },
            late: WaitOps {
                reason,
                arg: WaitArg::Waiter,
                is_open: false,
                commit: commit_late,
                withdraw: |_, _| false,
                pass_on: None,
            },
        }
    }
}

/// Passes on what a waiter was given that never goes on: the node by which its wait was ended, or None if the drop of its runtime
/// ended it. Inside the runtime, without locks, once for each wait.
///
/// # Safety
/// The waiter, its nodes and what it waits on stay: they belong to a goroutine that was abandoned (D2).
pub(crate) type PassOn = unsafe fn(&Waiter, Option<&Node>);

/// The goroutine that waits so never goes on. Its wait has ended, or is about to be ended by a caller that passes on, too.
///
/// # Safety
/// `arg` belongs to `ops`, whose goroutine does not run any more (D2).
pub(crate) unsafe fn pass_on_given(ops: &WaitOps, arg: *const c_void) {
    if let Some(pass_on) = ops.pass_on {
        let waiter = waiter_of(&arg);
        if let Some(case) = waiter.word.revoke(REVOKED) {
            let by = match case < REVOKED {
                true => waiter.by.get(),
                false => ptr::null(), // its time was over, or it was to unwind: it got nothing, and may have had something
            };
            // SAFETY: G4, the wait was ended by a claim, which stored its node; both are on the abandoned stack.
            unsafe { pass_on(waiter, by.as_ref()) };
        }
    }
}

/// The drop of its runtime has withdrawn the goroutine that waits so.
///
/// # Safety
/// As for [`pass_on_given`].
pub(crate) unsafe fn pass_on_withdrawn(ops: &WaitOps, arg: *const c_void) {
    if let Some(pass_on) = ops.pass_on {
        // SAFETY: by the caller's promise.
        unsafe { pass_on(waiter_of(&arg), None) };
    }
}

fn waiter_of(arg: &*const c_void) -> &Waiter {
    // SAFETY: PK, G6: the argument of a park through `WaitKind` is a Waiter on the stack of a goroutine that waits.
    unsafe { &*arg.cast::<Waiter>() }
}

fn commit_g(g: Gp, waiter: *const c_void) -> bool {
    waiter_of(&waiter).word.commit(g.as_ptr() as usize)
}

unsafe fn commit(g: Gp, waiter: *const c_void) -> bool {
    commit_g(g, waiter)
}

unsafe fn commit_late(g: Gp, waiter: *const c_void) -> bool {
    let waiter = waiter_of(&waiter);
    waiter.asleep.set(g.as_ptr() as usize);
    waiter.word.commit_late()
}

/// The goroutine's time has come; true: its wake-up is the caller's.
unsafe fn time_out(g: Gp) -> bool {
    matches!(
        waiter_of(&g.wait_arg.get()).give_up(TIMED_OUT),
        Found::Asleep(_)
    )
}

/// A goroutine that is Waiting but has not been committed yet is refused now and goes on by itself: only the wake-up of one that
/// sleeps is the caller's.
unsafe fn withdraw(_: Gp, waiter: *const c_void) -> bool {
    matches!(waiter_of(&waiter).give_up(CANCELLED), Found::Asleep(_))
}

/// A waiter's place in one queue. Does not move while it is in.
pub(crate) struct Node {
    next: Cell<*const Node>,
    prev: Cell<*const Node>,
    is_queued: Cell<bool>,
    waiter: *const Waiter,
    /// What the waiter is told when this node ends its wait.
    case: usize,
    /// The owner's: where the value lies or goes, how it went, what the waiter asked for.
    pub(crate) elem: Cell<*mut u8>,
    pub(crate) word: Cell<usize>,
    /// When a receiver that waits for the clock looks by itself (`chan::timer`).
    pub(crate) due: Cell<u64>,
    _pin: PhantomPinned,
}

impl Node {
    /// The waiter outlives the node's time in queues.
    #[inline]
    pub(crate) fn new(waiter: &Waiter, case: usize) -> Node {
        debug_assert!(case < CANCELLED);
        Node {
            next: Cell::new(ptr::null()),
            prev: Cell::new(ptr::null()),
            is_queued: Cell::new(false),
            waiter,
            case,
            elem: Cell::new(ptr::null_mut()),
            word: Cell::new(0),
            due: Cell::new(u64::MAX),
            _pin: PhantomPinned,
        }
    }

    /// What the waiter is told when this node ends its wait.
    pub(crate) fn case(&self) -> usize {
        self.case
    }

    /// Whether it is in its queue. Under the queue's lock.
    pub(crate) fn is_queued(&self) -> bool {
        self.is_queued.get()
    }

    /// Ends the wait of a node that is in no queue, if nobody else has. The waiter keeps the node alive until then.
    ///
    /// Its runtime may be in the middle of a drop: the waiter relies on this claim, and what it is given is passed on.
    pub(crate) fn claim(&self) -> Option<Claim> {
        // SAFETY: G4, by the caller's promise the waiter is there.
        claimed(self, unsafe { &*self.waiter }.word.claim(self.case))
    }

    /// A claim of this node, made anew of what [`Claim::asleep`] said.
    ///
    /// # Safety
    /// The claim is not finished, and nobody else will finish it.
    pub(crate) unsafe fn claim_again(&self, asleep: usize) -> Claim {
        Claim {
            waiter: self.waiter,
            case: self.case,
            asleep,
        }
    }
}

/// A claimed waiter: what it waited for is handed over now.
#[must_use = "who claims must finish"]
pub(crate) struct Claim {
    waiter: *const Waiter,
    case: usize,
    asleep: usize,
}

impl Claim {
    /// Who slept when it was claimed; 0: nobody.
    pub(crate) fn asleep(&self) -> usize {
        self.asleep
    }

    /// What the waiter waited for is there; it is woken with the list.
    #[inline]
    pub(crate) fn finish(self, wake: &mut WakeList) {
        // SAFETY: G4, the waiter leaves its wait only when it is finished, or woken if it sleeps.
        let (waiter, case) = (unsafe { &*self.waiter }, self.case);
        if self.asleep != 0 {
            waiter.word.finish_asleep(case);
            wake.push(waiter, self.asleep);
        } else if waiter.word.finish_awake(case) {
            wake.push(waiter, waiter.asleep.get());
        }
    }
}

/// First in, first out. Guarded by the lock of whatever is waited on.
pub(crate) struct WaitQueue {
    head: *const Node,
    tail: *const Node,
}

// SAFETY: G4, D9: nodes are reached only under the lock that guards the queue, and stay until they are taken out.
unsafe impl Send for WaitQueue {}

impl WaitQueue {
    pub(crate) const fn new() -> WaitQueue {
        WaitQueue {
            head: ptr::null(),
            tail: ptr::null(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    /// Puts a node at the end.
    ///
    /// # Safety
    /// The node is in no queue, and neither it nor its waiter moves or ends before it is out of this one.
    #[inline]
    pub(crate) unsafe fn push_back(&mut self, node: &Node) {
        // SAFETY: by the caller's promise.
        unsafe { self.link(self.tail, node, ptr::null()) };
    }

    /// Puts a node first.
    ///
    /// # Safety
    /// As for [`WaitQueue::push_back`].
    #[inline]
    pub(crate) unsafe fn push_front(&mut self, node: &Node) {
        // SAFETY: by the caller's promise.
        unsafe { self.link(ptr::null(), node, self.head) };
    }

    /// Puts a node first, or at the end.
    ///
    /// # Safety
    /// As for [`WaitQueue::push_back`].
    #[inline]
    pub(crate) unsafe fn push(&mut self, node: &Node, is_first: bool) {
        // SAFETY: by the caller's promise.
        unsafe {
            if is_first {
                self.push_front(node);
            } else {
                self.push_back(node);
            }
        }
    }

    /// # Safety
    /// As for [`WaitQueue::push_back`]; `prev` and `next` are neighbours in this queue.
    #[inline]
    unsafe fn link(&mut self, prev: *const Node, node: &Node, next: *const Node) {
        debug_assert!(!node.is_queued.get(), "G4: a node in two queues");
        node.is_queued.set(true);
        node.prev.set(prev);
        node.next.set(next);
        // SAFETY: G4, neighbours are in the queue, so they are alive.
        match unsafe { prev.as_ref() } {
            Some(prev) => prev.next.set(node),
            None => self.head = node,
        }
        // SAFETY: as above.
        match unsafe { next.as_ref() } {
            Some(next) => next.prev.set(node),
            None => self.tail = node,
        }
    }

    /// Takes a node out; false if it is out already.
    #[inline]
    pub(crate) fn remove(&mut self, node: &Node) -> bool {
        if !node.is_queued.replace(false) {
            return false;
        }
        let (prev, next) = (node.prev.get(), node.next.get());
        // SAFETY: G4, neighbours are in the queue, so they are alive.
        match unsafe { prev.as_ref() } {
            Some(prev) => prev.next.set(next),
            None => self.head = next,
        }
        // SAFETY: as above.
        match unsafe { next.as_ref() } {
            Some(next) => next.prev.set(prev),
            None => self.tail = prev,
        }
        true
    }

    /// Takes the first node out as it is: its wait is over, or not to be ended.
    pub(crate) fn take_first<'a>(&mut self) -> Option<&'a Node> {
        // SAFETY: G4, a node in the queue is alive.
        let node = unsafe { self.head.as_ref() }?;
        self.remove(node);
        Some(node)
    }

    /// Claims the first waiter whose wait is not over and takes its node out. Nodes of waits that are over go, too, and those
    /// of goroutines whose runtime is being dropped.
    ///
    /// The node is good until the claim is finished (and, if the waiter sleeps, until it is woken).
    #[inline]
    pub(crate) fn pop<'a>(&mut self) -> Option<(&'a Node, Claim)> {
        // SAFETY: G4, a node in the queue is alive, and so is its waiter.
        while let Some(node) = unsafe { self.head.as_ref() } {
            self.remove(node);
            if let Some(claim) = claim(node) {
                return Some((node, claim));
            }
        }
        None
    }

    /// Whether somebody waits here still whose node is wanted. A look: the wait may be over at once.
    pub(crate) fn has(&self, wanted: impl Fn(&Node) -> bool) -> bool {
        self.iter().any(|node| wanted(node) && is_waiting(node))
    }

    /// The node that [`WaitQueue::pop`] would take; it stays. Those before it go, as there. A look:
    /// its wait may be over at once.
    pub(crate) fn first(&mut self) -> Option<&Node> {
        // SAFETY: G4, as in `pop`.
        while let Some(node) = unsafe { self.head.as_ref() } {
            if is_waiting(node) {
                return Some(node);
            }
            self.remove(node);
        }
        None
    }

    /// The last node, be its wait over or not.
    pub(crate) fn last(&self) -> Option<&Node> {
        // SAFETY: G4, a node in the queue is alive.
        unsafe { self.tail.as_ref() }
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// The nodes, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Node> {
        // SAFETY: G4, nodes in the queue are alive.
        std::iter::successors(unsafe { self.head.as_ref() }, |node| unsafe {
            node.next.get().as_ref()
        })
    }
}

/// Whether the wait of a node in a queue is not over. A look: it may be at once.
fn is_waiting(node: &Node) -> bool {
    // SAFETY: G4, as in `pop`.
    let word = &unsafe { &*node.waiter }.word;
    !word.is_claimed() && !word.waiter().is_some_and(is_gone)
}

#[inline]
fn claim(node: &Node) -> Option<Claim> {
    // SAFETY: G4, the node was in a queue, so its waiter is there; nobody but the claimer lets it go.
    let word = &unsafe { &*node.waiter }.word;
    claimed(node, word.claim_unless(node.case, is_gone))
}

#[inline]
fn claimed(node: &Node, found: Found) -> Option<Claim> {
    let asleep = match found {
        Found::Over => return None,
        Found::Awake => 0,
        Found::Asleep(who) => who,
    };
    // SAFETY: G4, the waiter stays until its claim is finished.
    unsafe { &*node.waiter }.by.set(node);
    Some(Claim {
        waiter: node.waiter,
        case: node.case,
        asleep,
    })
}

/// Whether it is a goroutine whose runtime is being dropped. The waiter sleeps, and its node was in a queue whose lock is held:
/// it cannot go on and end before that lock is free.
#[inline]
fn is_gone(who: usize) -> bool {
    // SAFETY: GF, see above: the G of a goroutine that has not ended.
    who & THREAD == 0
        && unsafe { Ptr::<G>::from_raw(who as *mut G) }.is_some_and(|g| g.sched().is_dead())
}
