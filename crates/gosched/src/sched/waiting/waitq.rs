//! Waiting in queues. A [`Waiter`] is one wait of one goroutine or plain thread, a [`WaitNode`] its
//! place in one queue (Go's sudog).
//!
//! Both lie on the waiter's own stack, so waiting allocates nothing and has no limit. A wait goes
//! so:
//!
//! 1. Under the lock of the object that it waits on, the waiter finds that it must wait. It puts a
//!    node into the object's queue. A select puts one into several queues, with all their locks
//!    held.
//! 2. The waiter drops the lock and calls [`Waiter::wait`].
//! 3. A thread that has something for the waiter takes the lock and pops a node. [`WaitQueue::pop`]
//!    claims the node's waiter, and skips waiters whose wait is over. The thread hands the thing
//!    over and [finishes](ClaimedWaiter::finish) the claim into a [`WakeList`].
//! 4. That thread drops the lock, then wakes the list. So no thread is woken to find a lock held.
//! 5. The waiter takes its other nodes out of their queues, under the locks.
//!
//! A timeout and the end of the runtime claim the waiter without knowing its queues: its nodes stay
//! in them until the waiter takes them out. The nodes of a goroutine whose runtime was dropped stay
//! in for good, claimed, on a stack that is never freed (D2). A pop removes them. A pop also skips
//! a goroutine that sleeps while its runtime is being dropped. A goroutine that was given something
//! before the drop and never runs again has it taken back: its [`WaitKind`] passes it on.
//!
//! From the moment its node is in a queue until its commit a goroutine stays inside the runtime. So
//! a drop of the runtime finds no goroutine that is in a queue and neither asleep nor running.

use std::marker::PhantomPinned;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use crate::base::note::Note;
use crate::sched::model::current::current_g;
use crate::sched::model::g::WaitReason;
use crate::sched::model::ptr::{Gp, Ptr};
use crate::sched::park::{Entered, enter, park_in};
use crate::sched::waiting::on::{On, OnCell};
use crate::sched::waiting::pinned::Pinned;
use crate::sched::waiting::sleeper::Sleeper;
use crate::sched::waiting::timed::{arm, wait_timed_in};
use crate::sched::waiting::wait_ops::{WaitOps, WaitView};
use crate::sched::waiting::wait_word::{CASE_SHIFT, ClaimResult, WaitWord};
pub(crate) use crate::sched::waiting::wakelist::WakeList;
use crate::shim::{Cell, LATE_TURNS};

/// Cases that no queue uses.
const TIMED_OUT: usize = usize::MAX >> CASE_SHIFT;
const CANCELLED: usize = TIMED_OUT - 1;
/// What the waiter was given was taken back.
const REVOKED: usize = TIMED_OUT - 2;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// A node ended it; the node's case.
    Case(usize),
    /// The deadline has passed.
    TimedOut,
    /// The runtime asks the goroutine to unwind. After its nodes are out of their queues it calls
    /// `check_cancelled`, which unwinds. That returns where nothing can unwind: then the goroutine
    /// waits again.
    Cancelled,
}

/// One wait. Does not move while any node of it is in a queue.
pub(crate) struct Waiter {
    word: WaitWord,
    note: Note,
    /// The sleeper that the list wakes, or that sleeps late. The owner of the waiter uses it until
    /// the owner sleeps, also late. The claimer uses it from the claim on if the claim found the
    /// owner asleep. Otherwise the claimer uses it once `finish_awake` has seen that the owner
    /// sleeps late. The owner uses it again after the finish or the wake-up.
    pub(super) asleep: Cell<Option<Sleeper>>,
    /// The node by which the wait was claimed. The claimer sets it, before the finish.
    by: Cell<Link>,
    /// What it waits on, for dumps.
    pub(crate) on: OnCell,
    _pin: PhantomPinned,
}

// SAFETY: G4, one thread at a time uses a `Cell` of a waiter, as the fields say. Only the owner
// calls `wait`, and only the room `waiting` uses the cells. The wait word orders the steps.
unsafe impl Sync for Waiter {}

impl Waiter {
    #[inline]
    pub(crate) fn new() -> Waiter {
        Waiter {
            word: WaitWord::new(),
            note: Note::new(),
            asleep: Cell::new(None),
            by: Cell::new(None),
            on: OnCell::new(On::NOTHING),
            _pin: PhantomPinned,
        }
    }

    /// Whether an event has claimed the wait: the waiter is about to be woken.
    pub(crate) fn is_claimed(&self) -> bool {
        self.word.is_claimed()
    }

    /// Waits until a node ends the wait or the deadline (monotonic ns, `u64::MAX` for none) passes.
    /// Blocks the goroutine, or the plain thread it is called on. From outside the runtime, without
    /// locks.
    pub(crate) fn wait(&self, kind: &'static WaitKind, deadline_ns: u64) -> Outcome {
        self.wait_in(enter(), kind, deadline_ns)
    }

    /// As [`Waiter::wait`], from inside the runtime: a goroutine that has just queued itself goes
    /// to sleep without leaving the runtime first.
    #[inline]
    pub(crate) fn wait_in(
        &self,
        rt: Entered,
        kind: &'static WaitKind,
        deadline_ns: u64,
    ) -> Outcome {
        if deadline_ns == u64::MAX && rt.g().is_some() {
            park_in(rt, &kind.untimed, self);
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
        } else if !wait_timed_in(rt, &kind.timed, self, deadline_ns) {
            crate::sched::waiting::timed::yield_until(deadline_ns, || self.word.is_claimed());
            self.give_up(TIMED_OUT);
        }
    }

    fn wait_thread(&self, deadline_ns: u64) {
        if self.word.commit(self.thread()).is_err() {
            return;
        }
        let woken = match deadline_ns {
            u64::MAX => {
                self.note.sleep();
                true
            }
            until => self.note.sleep_until(until),
        };
        if !woken && self.give_up(TIMED_OUT) == ClaimResult::Lost {
            self.note.sleep(); // the claimer has the sleeper and will touch the note
        }
    }

    /// The calling thread, as a sleeper on this waiter's note.
    fn thread(&self) -> Sleeper {
        // SAFETY: G4, the waiter does not move, and leaves its wait only when the word has refused
        // this sleeper, when it was woken, or when it has claimed the word itself.
        unsafe { Sleeper::thread(&self.note) }
    }

    /// Ends the wait with nothing, if no event has ended it. By the waiter itself, or by a thread
    /// that wakes it then.
    fn give_up(&self, case: usize) -> ClaimResult {
        let found = self.word.claim(case);
        match found {
            ClaimResult::Lost => {}
            ClaimResult::Asleep(_) => self.word.finish_asleep(case),
            // The waiter is on its way to sleep, perhaps in a commit, which is refused. It cannot
            // have slept late in between.
            ClaimResult::Awake => _ = self.word.finish_awake(case),
        }
        found
    }

    /// Ends the wait of a goroutine whose time has come, or that is to unwind. True: its wake-up is
    /// the caller's. A goroutine that is Waiting but not committed is refused by its word and runs
    /// on by itself.
    fn end_asleep(&self, case: usize) -> bool {
        matches!(self.give_up(case), ClaimResult::Asleep(_))
    }

    /// How the wait ended. The claimer may still be handing over.
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

    /// Sleeps until the claim is finished. The claimer runs user code before that: it is a select's
    /// sender.
    #[cold]
    fn sleep_late(&self, kind: &'static WaitKind) {
        if current_g().is_some() {
            return park_in(enter(), &kind.late, self);
        }
        self.asleep.set(Some(self.thread()));
        if self.word.commit_late() {
            self.note.sleep();
        }
    }
}

/// A reason to wait in queues.
pub(crate) struct WaitKind {
    untimed: WaitOps<Waiter>,
    timed: WaitOps<Waiter>,
    /// Claimed already.
    late: WaitOps<Waiter>,
}

impl WaitKind {
    /// For a wait that a request to unwind does not end. Another thread has the node and is about to
    /// write to it, or the caller cannot unwind.
    pub(crate) const fn always(reason: WaitReason) -> WaitKind {
        let mut kind = WaitKind::new(reason);
        kind.untimed.is_open = false;
        kind.untimed.withdraw = |_, _| false;
        kind.timed.withdraw = |_, _| false;
        kind
    }

    /// With a way to pass on what was given to a goroutine that never runs again.
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
                is_open: true,
                commit,
                withdraw: |_, waiter| waiter.end_asleep(CANCELLED),
                time_out: |_, waiter| waiter.end_asleep(TIMED_OUT),
                view: |waiter| WaitView::Waiter(waiter),
                pass_on: None,
            },
            timed: WaitOps {
                reason,
                is_open: false,
                commit: |g, waiter| arm(g, || commit(g, waiter)),
                withdraw: |_, waiter| waiter.end_asleep(CANCELLED),
                time_out: |_, waiter| waiter.end_asleep(TIMED_OUT),
                view: |waiter| WaitView::Waiter(waiter),
                pass_on: None,
            },
            late: WaitOps {
                reason,
                is_open: false,
                commit: commit_late,
                withdraw: |_, _| false,
                time_out: |_, _| false,
                view: |waiter| WaitView::Waiter(waiter),
                pass_on: None,
            },
        }
    }
}

/// Passes on what was given to a waiter that never runs again. The node is the one that ended its
/// wait; None: the drop of its runtime ended it. Inside the runtime, without locks, once for each
/// wait.
///
/// # Safety
/// The waiter, its nodes and what it waits on stay: they belong to a goroutine that was abandoned
/// (D2).
pub(crate) type PassOn = unsafe fn(&Waiter, Option<&WaitNode<'_>>);

/// How the wait of a goroutine that never runs again has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitEnd {
    /// By an event, which may have given something to the waiter. Or such an event is about to
    /// happen, and its thread passes on as well.
    Woken,
    /// The drop of the runtime has withdrawn the goroutine from its wait.
    Withdrawn,
}

/// The goroutine's wait has ended, and its runtime is being dropped: it never continues. What it
/// was given goes to the next waiter. The waker and the drop both call this, and the first of them
/// does it. Inside the runtime, without locks.
#[cold]
#[inline(never)]
pub(crate) fn pass_on(g: Gp, end: WaitEnd) {
    // SAFETY: D2, the goroutine is Waiting, or Runnable since its last wait, on a stack that is
    // never freed, and no M runs it.
    let Some(wait) = (unsafe { g.wait() }) else {
        return;
    };
    let Some(pass_on) = wait.way_to_pass_on() else {
        return;
    };
    let WaitView::Waiter(waiter) = wait.view() else {
        return;
    };
    let mut by = None;
    if end == WaitEnd::Woken {
        match waiter.word.revoke(REVOKED) {
            None => return,
            Some(case) if case < REVOKED => by = waiter.by.get(),
            Some(_) => {} // timed out or cancelled: it got nothing, and may have had something
        }
    }
    // SAFETY: G4, the wait was ended by a claim, which stored its node. The waiter and the node are
    // on the stack of the abandoned goroutine, which is never freed (D2).
    unsafe { pass_on(waiter, by.as_deref()) };
}

fn commit(g: Gp, waiter: &Waiter) -> bool {
    waiter.word.commit(Sleeper::goroutine(g)).is_ok()
}

fn commit_late(g: Gp, waiter: &Waiter) -> bool {
    waiter.asleep.set(Some(Sleeper::goroutine(g)));
    waiter.word.commit_late()
}

/// A node that stays where it is while this pointer is in use (G4), for these reasons:
/// - [`WaitQueue::push`] makes it. Its caller promises that neither the node nor its waiter moves
///   or ends before the node is out of the queue. A channel makes it again from an address, for a
///   node whose claim is not finished.
/// - [`WaitQueue::remove`] replaces every link to the node: in the queue and in the node's
///   neighbours.
/// - Links are read through a borrow of the queue, so under the lock that guards it (D9). A node
///   that was popped may be in a [`WakeList`], and the thread that has the list uses its link.
/// - A node that was popped stays until its claim is finished. If its waiter sleeps, the node stays
///   until the waiter is woken ([`ClaimedWaiter`], [`WakeList`]).
pub(crate) type NodePtr = Pinned<WaitNode<'static>>;

/// A link to a node, or to none.
pub(super) type Link = Option<NodePtr>;

/// A waiter's place in one queue. Does not move while it is in.
pub(crate) struct WaitNode<'w> {
    /// In a queue the next node, in a wake list the next node of that.
    pub(super) next: Cell<Link>,
    prev: Cell<Link>,
    is_queued: Cell<bool>,
    /// The waiter's outcome if this node ends its wait. In a half word: a select has a node per
    /// case on its stack.
    case: u32,
    waiter: &'w Waiter,
    /// For the owner of the queue: where the value lies or goes.
    pub(crate) elem: Cell<*mut u8>,
    /// For the owner of the queue: what the waiter asked for, then what it got.
    pub(crate) word: Cell<usize>,
    /// When a receiver that waits for the clock looks by itself (`chan::timer`).
    pub(crate) due: Cell<u64>,
    _pin: PhantomPinned,
}

impl<'w> WaitNode<'w> {
    #[inline]
    pub(crate) fn new(waiter: &'w Waiter, case: usize) -> WaitNode<'w> {
        debug_assert!(case <= u32::MAX as usize && case < CANCELLED);
        WaitNode {
            next: Cell::new(None),
            prev: Cell::new(None),
            is_queued: Cell::new(false),
            case: case as u32,
            waiter,
            elem: Cell::new(ptr::null_mut()),
            word: Cell::new(0),
            due: Cell::new(u64::MAX),
            _pin: PhantomPinned,
        }
    }

    /// Its waiter, for as long as the node is borrowed.
    #[inline]
    pub(super) fn waiter(&self) -> &Waiter {
        self.waiter
    }

    /// The waiter's outcome if this node ends its wait.
    #[inline]
    pub(crate) fn case(&self) -> usize {
        self.case as usize
    }

    /// Whether it is in its queue. Under the queue's lock.
    pub(crate) fn is_queued(&self) -> bool {
        self.is_queued.get()
    }

    /// Whether the wait is not over. It may be at once. Under the queue's lock.
    fn is_waiting(&self) -> bool {
        let word = &self.waiter.word;
        !word.is_claimed() && !word.has_sleeper(is_gone)
    }
}

/// Whether the sleeper is a goroutine whose runtime is being dropped. Under the lock of a queue
/// that its node was in.
#[inline]
fn is_gone(sleeper: &Sleeper) -> bool {
    sleeper.peek_goroutine().is_some_and(|g| {
        // SAFETY: GF, the sleeper's node was in a queue whose lock is held. Its goroutine takes
        // that lock before it leaves its wait, so it has not ended, and neither has its runtime.
        let g: Gp = unsafe { Ptr::new(g) };
        g.sched().is_dead()
    })
}

/// A node whose waiter is claimed: what it waited for is handed over now. The waiter keeps the node
/// until the claim is finished.
#[must_use = "a claim must be finished"]
pub(crate) struct ClaimedWaiter {
    node: NodePtr,
    asleep: Option<Sleeper>,
}

impl Deref for ClaimedWaiter {
    type Target = WaitNode<'static>;

    #[inline]
    fn deref(&self) -> &WaitNode<'static> {
        &self.node
    }
}

impl ClaimedWaiter {
    /// Ends the wait of a node that is in no queue, if no other event has.
    ///
    /// A drop of its runtime may be under way: the waiter relies on this claim, and what it is
    /// given is passed on.
    pub(crate) fn claim(node: NodePtr) -> Option<ClaimedWaiter> {
        ClaimedWaiter::found(node, node.waiter.word.claim(node.case()))
    }

    /// Ends the wait of a node that was in a queue, if no other event has. Under the queue's lock.
    #[inline]
    fn claim_popped(node: NodePtr) -> Option<ClaimedWaiter> {
        let word = &node.waiter.word;
        ClaimedWaiter::found(node, word.claim_unless(node.case(), is_gone))
    }

    #[inline]
    fn found(node: NodePtr, found: ClaimResult) -> Option<ClaimedWaiter> {
        let asleep = match found {
            ClaimResult::Lost => return None,
            ClaimResult::Awake => None,
            ClaimResult::Asleep(sleeper) => Some(sleeper),
        };
        node.waiter.by.set(Some(node));
        Some(ClaimedWaiter { node, asleep })
    }

    /// A claim of `node`, made again from what [`ClaimedWaiter::asleep`] returned.
    ///
    /// # Safety
    /// The claim is not finished, and only the returned one will be.
    pub(crate) unsafe fn again(node: NodePtr, asleep: usize) -> ClaimedWaiter {
        // SAFETY: `asleep` is the word of the claim's sleeper, which that claim does not use.
        let asleep = unsafe { Sleeper::from_word(asleep) };
        ClaimedWaiter { node, asleep }
    }

    /// The address of the node, for [`ClaimedWaiter::again`].
    pub(crate) fn node_at(&self) -> *mut WaitNode<'static> {
        self.node.as_ptr()
    }

    /// The word of the sleeper that was claimed; 0: the waiter was awake.
    pub(crate) fn asleep(&self) -> usize {
        self.asleep.as_ref().map_or(0, Sleeper::word)
    }

    /// What the waiter waited for is there; the list wakes it.
    #[inline]
    pub(crate) fn finish(self, wake: &mut WakeList) {
        let (waiter, case) = (self.node.waiter, self.node.case());
        if let Some(sleeper) = self.asleep {
            waiter.word.finish_asleep(case);
            wake.push(self.node, sleeper);
        } else if waiter.word.finish_awake(case)
            && let Some(sleeper) = waiter.asleep.replace(None)
        {
            wake.push(self.node, sleeper);
        }
    }
}

/// Where a node goes into a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueEnd {
    Front,
    Back,
}

impl QueueEnd {
    /// The front, for a waiter that has waited before.
    #[inline]
    pub(crate) fn front_if(has_waited: bool) -> QueueEnd {
        match has_waited {
            true => QueueEnd::Front,
            false => QueueEnd::Back,
        }
    }
}

/// First in, first out. Guarded by the lock of the object that is waited on.
pub(crate) struct WaitQueue {
    head: Link,
    tail: Link,
}

// SAFETY: G4, D9: nodes are reached only under the lock that guards the queue, and stay until they
// are taken out.
unsafe impl Send for WaitQueue {}

impl WaitQueue {
    pub(crate) const fn new() -> WaitQueue {
        WaitQueue {
            head: None,
            tail: None,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Puts a node in.
    ///
    /// # Safety
    /// The node is in no queue, and neither it nor its waiter moves or ends before it is out of
    /// this one. If a pop claims its waiter, neither does so before the claim is finished.
    #[inline]
    pub(crate) unsafe fn push(&mut self, node: &WaitNode<'_>, at: QueueEnd) {
        debug_assert!(!node.is_queued.get(), "G4: a node in two queues");
        let (prev, next) = match at {
            QueueEnd::Back => (self.tail, None),
            QueueEnd::Front => (None, self.head),
        };
        node.is_queued.set(true);
        // SAFETY: G4, the node stays while it is in the queue or claimed, as the caller promises;
        // see the type.
        let node: NodePtr = unsafe { Pinned::new(NonNull::from(node).cast()) };
        self.join(prev, Some(node));
        self.join(Some(node), next);
    }

    /// Takes a node out; false if it is out already.
    #[inline]
    pub(crate) fn remove(&mut self, node: &WaitNode<'_>) -> bool {
        if !node.is_queued.replace(false) {
            return false;
        }
        self.join(node.prev.get(), node.next.get());
        true
    }

    /// Makes the two neighbours. None stands for the end of the queue.
    #[inline]
    fn join(&mut self, left: Link, right: Link) {
        match left {
            Some(left) => left.next.set(right),
            None => self.head = right,
        }
        match right {
            Some(right) => right.prev.set(left),
            None => self.tail = left,
        }
    }

    /// Takes the first node out as it is: its wait is over, or not to be ended. Returns its `elem`.
    pub(crate) fn take_first(&mut self) -> Option<*mut u8> {
        let node = self.head?;
        self.remove(&node);
        Some(node.elem.get())
    }

    /// Claims the first waiter whose wait is not over and takes its node out. Takes out as well,
    /// before it, the nodes of waits that are over and of goroutines whose runtime is being
    /// dropped.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<ClaimedWaiter> {
        self.pop_counting(&mut 0)
    }

    /// As [`WaitQueue::pop`]. Adds to `out` how many nodes it takes out, the skipped ones included.
    #[inline(always)]
    pub(crate) fn pop_counting(&mut self, out: &mut u32) -> Option<ClaimedWaiter> {
        while let Some(node) = self.head {
            self.remove(&node);
            *out += 1;
            if let Some(claim) = ClaimedWaiter::claim_popped(node) {
                return Some(claim);
            }
        }
        None
    }

    /// Whether a wait is not over whose node is wanted. It may be over at once.
    pub(crate) fn has(&self, wanted: impl Fn(&WaitNode<'_>) -> bool) -> bool {
        self.nodes().any(|node| wanted(&node) && node.is_waiting())
    }

    /// The node that [`WaitQueue::pop`] would take; it stays. Takes out those before it, as `pop`
    /// does. Its wait may be over at once.
    pub(crate) fn first(&mut self) -> Option<&WaitNode<'_>> {
        while let Some(node) = self.head
            && !node.is_waiting()
        {
            self.remove(&node);
        }
        self.head()
    }

    /// The first node, be its wait over or not.
    pub(crate) fn head(&self) -> Option<&WaitNode<'_>> {
        self.head.as_deref()
    }

    /// The last node, be its wait over or not.
    pub(crate) fn last(&self) -> Option<&WaitNode<'_>> {
        self.tail.as_deref()
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes().count()
    }

    /// The nodes, in order.
    fn nodes(&self) -> impl Iterator<Item = NodePtr> {
        std::iter::successors(self.head, |node| node.next.get())
    }
}
