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

use std::ffi::c_void;
use std::marker::PhantomPinned;
use std::ptr;
use std::sync::atomic::AtomicU64;

use crate::base::note::Note;
use crate::sched::model::current::current_g;
use crate::sched::model::g::WaitReason;
use crate::sched::model::ptr::Gp;
use crate::sched::park::{Entered, WaitArg, WaitOps, enter, park_in};
use crate::sched::waiting::sleeper::Sleeper;
use crate::sched::waiting::timed::{arm, wait_timed_in};
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
    /// Link of a [`WakeList`].
    pub(crate) next: Cell<*const Waiter>,
    /// The sleeper that the list wakes, or that sleeps late.
    pub(crate) asleep: Cell<Option<Sleeper>>,
    /// The node by which the wait was claimed.
    by: Cell<*const WaitNode>,
    /// What it waits on, for dumps.
    pub(crate) on: Cell<On>,
    _pin: PhantomPinned,
}

/// What a waiter waits on. Dumps and the leak check read it while the waiter is held asleep.
#[derive(Clone, Copy)]
pub(crate) struct On {
    /// The channel, lock or group; 0: none is known, or a select has them.
    pub(crate) object: usize,
    /// The word with the goroutine that holds it (`sync::owner`); null: there is none.
    pub(crate) holder: *const AtomicU64,
    /// The cases of a select. Or the socket and its home of a wait for the network (`netpoll`). Or
    /// the condvar of a waiter that locks its mutex again.
    pub(crate) cases_at: *const c_void,
    /// How many cases. A single operation has one, even on a channel that does not exist (`never`).
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
            asleep: Cell::new(None),
            by: Cell::new(ptr::null()),
            on: Cell::new(On::NOTHING),
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
            self.park(rt, &kind.untimed);
        } else {
            self.wait_otherwise(rt, kind, deadline_ns);
        }
        self.outcome(kind)
    }

    /// Parks the calling goroutine; `ops` is one of a [`WaitKind`].
    #[inline]
    fn park(&self, rt: Entered, ops: &'static WaitOps) {
        // SAFETY: PK, the functions of a `WaitKind` take a Waiter, and `self` is borrowed for the
        // whole wait.
        unsafe { park_in(rt, ops, (&raw const *self).cast()) };
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
            return self.park(enter(), &kind.late);
        }
        self.asleep.set(Some(self.thread()));
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
    /// For a wait that the end of the runtime does not end: another thread has the node and is
    /// about to write to it.
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

/// Passes on what was given to a waiter that never runs again. The node is the one that ended its
/// wait; None: the drop of its runtime ended it. Inside the runtime, without locks, once for each
/// wait.
///
/// # Safety
/// The waiter, its nodes and what it waits on stay: they belong to a goroutine that was abandoned
/// (D2).
pub(crate) type PassOn = unsafe fn(&Waiter, Option<&WaitNode>);

/// The goroutine that waits by `ops` never runs again. Its wait has ended, or is about to be ended
/// by a caller that passes on as well.
///
/// # Safety
/// `arg` belongs to `ops`, whose goroutine does not run any more (D2).
pub(crate) unsafe fn pass_on_given(ops: &WaitOps, arg: *const c_void) {
    if let Some(pass_on) = ops.pass_on {
        let waiter = waiter_of(&arg);
        if let Some(case) = waiter.word.revoke(REVOKED) {
            let by = match case < REVOKED {
                true => waiter.by.get(),
                // Timed out or cancelled: it got nothing, and may have had something.
                false => ptr::null(),
            };
            // SAFETY: G4, the wait was ended by a claim, which stored its node; both are on the
            // stack of the abandoned goroutine, which is never freed (D2).
            unsafe { pass_on(waiter, by.as_ref()) };
        }
    }
}

/// The drop of its runtime has withdrawn the goroutine that waits by `ops`.
///
/// # Safety
/// As for [`pass_on_given`].
pub(crate) unsafe fn pass_on_withdrawn(ops: &WaitOps, arg: *const c_void) {
    if let Some(pass_on) = ops.pass_on {
        // SAFETY: D2, the goroutine was abandoned, so its waiter stays.
        unsafe { pass_on(waiter_of(&arg), None) };
    }
}

fn waiter_of(arg: &*const c_void) -> &Waiter {
    // SAFETY: PK, G6: the argument of a park through `WaitKind` is a Waiter on the stack of a
    // goroutine that waits.
    unsafe { &*arg.cast::<Waiter>() }
}

fn commit_g(g: Gp, waiter: *const c_void) -> bool {
    let word = &waiter_of(&waiter).word;
    word.commit(Sleeper::goroutine(g)).is_ok()
}

unsafe fn commit(g: Gp, waiter: *const c_void) -> bool {
    commit_g(g, waiter)
}

unsafe fn commit_late(g: Gp, waiter: *const c_void) -> bool {
    let waiter = waiter_of(&waiter);
    waiter.asleep.set(Some(Sleeper::goroutine(g)));
    waiter.word.commit_late()
}

/// The goroutine's time has come. True: its wake-up is the caller's.
unsafe fn time_out(g: Gp) -> bool {
    let found = waiter_of(&g.wait_arg.get()).give_up(TIMED_OUT);
    matches!(found, ClaimResult::Asleep(_))
}

/// Ends the wait of a goroutine that is to unwind. One that is Waiting but not committed is refused
/// by its word and runs on by itself: only the wake-up of one that sleeps is the caller's.
unsafe fn withdraw(_: Gp, waiter: *const c_void) -> bool {
    let found = waiter_of(&waiter).give_up(CANCELLED);
    matches!(found, ClaimResult::Asleep(_))
}

/// A link of a queue: to a node that is in the queue, or to none.
///
/// Following one is safe (G4), for these reasons:
/// - Links to a node are made by [`WaitQueue::push`] alone. Its caller promises that neither the
///   node nor its waiter moves or ends before the node is out of the queue.
/// - [`WaitQueue::remove`] replaces every link to the node: in the queue and in the node's
///   neighbours.
/// - Links are read through a borrow of the queue, so under the lock that guards it (D9). The links
///   of a node that is in no queue are not read.
#[derive(Clone, Copy)]
struct Link(*const WaitNode);

impl Link {
    const NONE: Link = Link(ptr::null());

    /// The node, which outlives the caller's use of it: until the lock is dropped if it stays in
    /// the queue, until its claim is finished if it was popped.
    #[inline]
    fn get<'a>(self) -> Option<&'a WaitNode> {
        // SAFETY: G4, a linked node is alive; see the type.
        unsafe { self.0.as_ref() }
    }
}

/// A waiter's place in one queue. Does not move while it is in.
pub(crate) struct WaitNode {
    next: Cell<Link>,
    prev: Cell<Link>,
    is_queued: Cell<bool>,
    waiter: *const Waiter,
    /// The waiter's outcome if this node ends its wait.
    case: usize,
    /// For the owner of the queue: where the value lies or goes.
    pub(crate) elem: Cell<*mut u8>,
    /// For the owner of the queue: what the waiter asked for, then what it got.
    pub(crate) word: Cell<usize>,
    /// When a receiver that waits for the clock looks by itself (`chan::timer`).
    pub(crate) due: Cell<u64>,
    _pin: PhantomPinned,
}

impl WaitNode {
    /// The waiter outlives the node's time in queues.
    #[inline]
    pub(crate) fn new(waiter: &Waiter, case: usize) -> WaitNode {
        debug_assert!(case < CANCELLED);
        WaitNode {
            next: Cell::new(Link::NONE),
            prev: Cell::new(Link::NONE),
            is_queued: Cell::new(false),
            waiter,
            case,
            elem: Cell::new(ptr::null_mut()),
            word: Cell::new(0),
            due: Cell::new(u64::MAX),
            _pin: PhantomPinned,
        }
    }

    /// The waiter's outcome if this node ends its wait.
    pub(crate) fn case(&self) -> usize {
        self.case
    }

    /// Whether it is in its queue. Under the queue's lock.
    pub(crate) fn is_queued(&self) -> bool {
        self.is_queued.get()
    }

    #[inline]
    fn waiter(&self) -> &Waiter {
        // SAFETY: G4, the waiter outlives the node's time in queues (`new`, `push`). This is asked
        // of nodes that are in a queue or were just popped, and by `claim`, whose caller knows that
        // the waiter still waits.
        unsafe { &*self.waiter }
    }

    /// Ends the wait of a node that is in no queue, if no other event has. The waiter keeps the
    /// node alive until then.
    ///
    /// A drop of its runtime may be under way: the waiter relies on this claim, and what it is
    /// given is passed on.
    pub(crate) fn claim(&self) -> Option<ClaimedWaiter> {
        self.claimed(self.waiter().word.claim(self.case))
    }

    /// Ends the wait of a node that was in a queue, if no other event has. Under the queue's lock.
    #[inline]
    fn claim_popped(&self) -> Option<ClaimedWaiter> {
        let word = &self.waiter().word;
        self.claimed(word.claim_unless(self.case, is_gone))
    }

    #[inline]
    fn claimed(&self, found: ClaimResult) -> Option<ClaimedWaiter> {
        let asleep = match found {
            ClaimResult::Lost => return None,
            ClaimResult::Awake => None,
            ClaimResult::Asleep(sleeper) => Some(sleeper),
        };
        self.waiter().by.set(self);
        Some(ClaimedWaiter {
            waiter: self.waiter,
            case: self.case,
            asleep,
        })
    }

    /// Whether the wait is not over. It may be at once. Under the queue's lock.
    fn is_waiting(&self) -> bool {
        let word = &self.waiter().word;
        !word.is_claimed() && !word.has_sleeper(is_gone)
    }

    /// A claim of this node, made again from what [`ClaimedWaiter::asleep`] returned.
    ///
    /// # Safety
    /// The claim is not finished, and only the returned one will be.
    pub(crate) unsafe fn claim_again(&self, asleep: usize) -> ClaimedWaiter {
        ClaimedWaiter {
            waiter: self.waiter,
            case: self.case,
            // SAFETY: `asleep` is the word of the claim's sleeper, which that claim does not use.
            asleep: unsafe { Sleeper::from_word(asleep) },
        }
    }
}

/// Whether the sleeper is a goroutine whose runtime is being dropped. Under the lock of a queue
/// that its node was in.
#[inline]
fn is_gone(sleeper: &Sleeper) -> bool {
    // SAFETY: the sleeper's node was in a queue whose lock is held. Its goroutine takes that lock
    // before it leaves its wait, so it has not ended.
    unsafe { sleeper.peek_goroutine() }.is_some_and(|g| g.sched().is_dead())
}

/// A claimed waiter: what it waited for is handed over now.
#[must_use = "a claim must be finished"]
pub(crate) struct ClaimedWaiter {
    waiter: *const Waiter,
    case: usize,
    asleep: Option<Sleeper>,
}

impl ClaimedWaiter {
    /// The word of the sleeper that was claimed; 0: the waiter was awake.
    pub(crate) fn asleep(&self) -> usize {
        self.asleep.as_ref().map_or(0, Sleeper::word)
    }

    /// What the waiter waited for is there; the list wakes it.
    #[inline]
    pub(crate) fn finish(self, wake: &mut WakeList) {
        // SAFETY: G4, the waiter leaves its wait only when it is finished, or woken if it sleeps.
        let (waiter, case) = (unsafe { &*self.waiter }, self.case);
        if let Some(sleeper) = self.asleep {
            waiter.word.finish_asleep(case);
            wake.push(waiter, sleeper);
        } else if waiter.word.finish_awake(case)
            && let Some(sleeper) = waiter.asleep.replace(None)
        {
            wake.push(waiter, sleeper);
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
            head: Link::NONE,
            tail: Link::NONE,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.0.is_null()
    }

    /// Puts a node in.
    ///
    /// # Safety
    /// The node is in no queue, and neither it nor its waiter moves or ends before it is out of
    /// this one.
    #[inline]
    pub(crate) unsafe fn push(&mut self, node: &WaitNode, at: QueueEnd) {
        debug_assert!(!node.is_queued.get(), "G4: a node in two queues");
        let (prev, next) = match at {
            QueueEnd::Back => (self.tail, Link::NONE),
            QueueEnd::Front => (Link::NONE, self.head),
        };
        node.is_queued.set(true);
        self.join(prev, Link(node));
        self.join(Link(node), next);
    }

    /// Takes a node out; false if it is out already.
    #[inline]
    pub(crate) fn remove(&mut self, node: &WaitNode) -> bool {
        if !node.is_queued.replace(false) {
            return false;
        }
        self.join(node.prev.get(), node.next.get());
        true
    }

    /// Makes the two neighbours. None stands for the end of the queue.
    #[inline]
    fn join(&mut self, left: Link, right: Link) {
        match left.get() {
            Some(left) => left.next.set(right),
            None => self.head = right,
        }
        match right.get() {
            Some(right) => right.prev.set(left),
            None => self.tail = left,
        }
    }

    /// Takes the first node out as it is: its wait is over, or not to be ended.
    pub(crate) fn take_first<'a>(&mut self) -> Option<&'a WaitNode> {
        let node = self.head.get()?;
        self.remove(node);
        Some(node)
    }

    /// Claims the first waiter whose wait is not over and takes its node out. Takes out as well,
    /// before it, the nodes of waits that are over and of goroutines whose runtime is being
    /// dropped.
    ///
    /// The node is good until the claim is finished (and, if the waiter sleeps, until it is woken).
    #[inline]
    pub(crate) fn pop<'a>(&mut self) -> Option<(&'a WaitNode, ClaimedWaiter)> {
        while let Some(node) = self.head.get() {
            self.remove(node);
            if let Some(claim) = node.claim_popped() {
                return Some((node, claim));
            }
        }
        None
    }

    /// Whether a wait is not over whose node is wanted. It may be over at once.
    pub(crate) fn has(&self, wanted: impl Fn(&WaitNode) -> bool) -> bool {
        self.iter().any(|node| wanted(node) && node.is_waiting())
    }

    /// The node that [`WaitQueue::pop`] would take; it stays. Takes out those before it, as `pop`
    /// does. Its wait may be over at once.
    pub(crate) fn first(&mut self) -> Option<&WaitNode> {
        while let Some(node) = self.head.get() {
            if node.is_waiting() {
                return Some(node);
            }
            self.remove(node);
        }
        None
    }

    /// The last node, be its wait over or not.
    pub(crate) fn last(&self) -> Option<&WaitNode> {
        self.tail.get()
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// The nodes, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &WaitNode> {
        std::iter::successors(self.head.get(), |node| node.next.get().get())
    }
}
