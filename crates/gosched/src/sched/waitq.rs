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
//! a pop throws them out.

use std::ffi::c_void;
use std::marker::PhantomPinned;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::Sched;
use super::g::{G, GQueue, WaitReason};
use super::gstatus::Status;
use super::note::Note;
use super::park::{Entered, WaitArg, WaitOps, enter, park, park_in, ready_in};
use super::ptr::{Gp, Ptr};
use super::sudog::{CASE_SHIFT, Found, WaitWord};
use crate::context::current_g;
use crate::shim::{Cell, LATE_TURNS};
use crate::thread::park::{arm, wait_timed};

/// Marks a waiter that is a thread's note; a G's address has the bit clear.
const THREAD: usize = 2;

/// Cases that no queue uses.
const TIMED_OUT: usize = usize::MAX >> CASE_SHIFT;
const CANCELLED: usize = TIMED_OUT - 1;

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
    next: Cell<*const Waiter>,
    asleep: Cell<usize>,
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
    /// The cases of a select.
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
        let is_g = rt.g().is_some();
        drop(rt);
        if !is_g {
            self.wait_thread(deadline_ns);
        } else if !wait_timed(&kind.timed, (&raw const *self).cast(), deadline_ns) {
            crate::thread::park::yield_until(deadline_ns, || self.word.is_claimed());
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
            },
            timed: WaitOps {
                reason,
                arg: WaitArg::Waiter,
                is_open: false,
                commit: |g, waiter| arm(g, time_out, || commit_g(g, waiter)),
                withdraw,
            },
            late: WaitOps {
                reason,
                arg: WaitArg::Waiter,
                is_open: false,
                commit: commit_late,
                withdraw: |_, _| false,
            },
        }
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
            _pin: PhantomPinned,
        }
    }

    /// Whether it is in its queue. Under the queue's lock.
    pub(crate) fn is_queued(&self) -> bool {
        self.is_queued.get()
    }

    /// Ends the wait of a node that is in no queue, if nobody else has. The waiter keeps the node alive until then.
    pub(crate) fn claim(&self) -> Option<Claim> {
        claim(self)
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
    /// What the waiter waited for is there; it is woken with the list.
    #[inline]
    pub(crate) fn finish(self, wake: &mut WakeList) {
        // SAFETY: G4, the waiter leaves its wait only when it is finished, or woken if it sleeps.
        let waiter = unsafe { &*self.waiter };
        if self.asleep != 0 {
            waiter.next.set(ptr::null());
            waiter.word.finish_asleep(self.case);
            wake.push(waiter, self.asleep);
        } else if waiter.word.finish_awake(self.case) {
            waiter.next.set(ptr::null());
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

    /// Claims the first waiter whose wait is not over and takes its node out. Nodes of waits that are over go, too.
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
        self.iter().any(|node| {
            // SAFETY: G4, as in `pop`.
            wanted(node) && !unsafe { &*node.waiter }.word.is_claimed()
        })
    }

    /// The nodes, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Node> {
        // SAFETY: G4, nodes in the queue are alive.
        std::iter::successors(unsafe { self.head.as_ref() }, |node| unsafe {
            node.next.get().as_ref()
        })
    }
}

#[inline]
fn claim(node: &Node) -> Option<Claim> {
    // SAFETY: G4, the node was in a queue, so its waiter is there; nobody but the claimer lets it go.
    let asleep = match unsafe { &*node.waiter }.word.claim(node.case) {
        Found::Over => return None,
        Found::Awake => 0,
        Found::Asleep(who) => who,
    };
    Some(Claim {
        waiter: node.waiter,
        case: node.case,
        asleep,
    })
}

/// Who is to be woken once the locks are dropped; in the order in which they were claimed.
#[must_use = "the woken must be woken"]
pub(crate) struct WakeList {
    /// The first one, apart: mostly there is no other.
    first: usize,
    /// The others, linked through their waiters.
    head: *const Waiter,
    tail: *const Waiter,
}

impl WakeList {
    pub(crate) const fn new() -> WakeList {
        WakeList {
            first: 0,
            head: ptr::null(),
            tail: ptr::null(),
        }
    }

    /// Whether nobody is to be woken.
    pub(crate) fn is_empty(&self) -> bool {
        self.first == 0
    }

    #[inline]
    fn push(&mut self, waiter: &Waiter, asleep: usize) {
        if self.first == 0 {
            self.first = asleep;
            return;
        }
        waiter.asleep.set(asleep);
        // SAFETY: G4, those in the list sleep until `wake` wakes them.
        match unsafe { self.tail.as_ref() } {
            Some(tail) => tail.next.set(waiter),
            None => self.head = waiter,
        }
        self.tail = waiter;
    }

    /// Wakes them. Without locks; inside or outside the runtime.
    #[inline]
    pub(crate) fn wake(self) {
        if self.first != 0 {
            self.wake_in(&enter());
        }
    }

    /// As [`WakeList::wake`], from inside.
    #[inline]
    pub(crate) fn wake_in(self, rt: &Entered) {
        let list = std::mem::ManuallyDrop::new(self);
        if list.first != 0 {
            wake_one(rt, list.first);
        }
        if !list.head.is_null() {
            list.wake_others(rt);
        }
    }

    /// As [`WakeList::wake_in`]; this runtime's goroutines are made Runnable and queued by the caller.
    pub(crate) fn wake_into(self, rt: &Entered, sched: &Sched, due: &mut GQueue) {
        let list = std::mem::ManuallyDrop::new(self);
        let mut wake = |who: usize| {
            // SAFETY: GF, G4: as in `wake_one`.
            match unsafe { Ptr::<G>::from_raw(who as *mut G) } {
                Some(g) if who & THREAD == 0 && ptr::eq(g.sched(), sched) => {
                    if !sched.dead.load(Relaxed) {
                        g.status.transition(Status::Waiting, Status::Runnable);
                        due.push_back(g);
                    }
                }
                _ => wake_one(rt, who),
            }
        };
        if list.first != 0 {
            wake(list.first);
        }
        let mut at = list.head;
        // SAFETY: G4, as in `wake_others`.
        while let Some(waiter) = unsafe { at.as_ref() } {
            at = waiter.next.get();
            wake(waiter.asleep.get());
        }
    }

    #[cold]
    fn wake_others(&self, rt: &Entered) {
        let mut at = self.head;
        // SAFETY: G4, as above; the next one is read before this one is woken.
        while let Some(waiter) = unsafe { at.as_ref() } {
            at = waiter.next.get();
            wake_one(rt, waiter.asleep.get());
        }
    }
}

/// Whoever was claimed must be woken, whichever way the claimer leaves.
impl Drop for WakeList {
    #[inline]
    fn drop(&mut self) {
        if self.first != 0 {
            std::mem::replace(self, WakeList::new()).wake_late();
        }
    }
}

impl WakeList {
    #[cold]
    #[inline(never)]
    fn wake_late(self) {
        self.wake();
    }
}

#[inline]
fn wake_one(rt: &Entered, who: usize) {
    if who & THREAD != 0 {
        // SAFETY: the sleeper's note lives until it is woken, which only the claimer does.
        unsafe { &*((who & !THREAD) as *const Note) }.wakeup();
    // SAFETY: GF, G4: a parked G; the claim made its wake-up ours.
    } else if let Some(g) = unsafe { Ptr::from_raw(who as *mut G) } {
        ready_in(rt, g);
    }
}
