//! The tree behind [`Context`](crate::context::Context): a child holds its parent, a parent knows its children.
//!
//! Deadlines need no tree: a child's is the earlier of its own and its parent's, and whoever looks compares it with the clock. Only
//! a cancellation goes down. Who cancels ends the node, takes its children out of its list, a few at a time, and ends them the
//! same way. What is yet to be ended hangs on a list through the nodes themselves: however deep or wide the tree is,
//! cancelling needs neither memory nor stack.
//!
//! ```text
//!  state                   meaning                                          next
//!  0                       not ended, as far as anybody has seen            CANCELED, DEADLINE | CLOSED
//!  CANCELED                ended; the channel is about to be closed         CANCELED | CLOSED
//!  CANCELED | CLOSED       ended                                            –
//!  DEADLINE | CLOSED       the deadline was seen to have passed, at which   –
//!                          the channel closes by itself
//! ```
//!
//! A node in its parent's list is there: it is freed only after it has left the list, under the parent's lock. It may be on its
//! way out, with no reference left; who finds it so leaves it alone.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicUsize, fence};
use std::time::Instant;

use crate::base::lock::{Lock, Rank};
use crate::chan::{self, Receiver, Sender};
use crate::context::ContextError;
use crate::sched::model::m::PreemptOff;
use crate::sched::park::{enter, no_preempt};
use crate::sys;

const CANCELED: u8 = 1;
const DEADLINE: u8 = 2;
const CLOSED: u8 = 4;

/// Children taken out of a list in one hold of its lock.
const TAKE_MAX: usize = 64;

/// A context that can end.
pub(super) struct Node {
    refs: AtomicUsize,
    /// None: the background.
    parent: Option<NodeRef>,
    /// The earliest one from here to the root.
    pub(super) deadline: Option<Instant>,
    /// The same, on the clock that decides; `u64::MAX`: there is none.
    deadline_ns: u64,
    state: AtomicU8,
    sender: Sender<()>,
    pub(super) done: Receiver<()>,
    children: Lock<Children>,
    /// Its place among its parent's children, under the parent's lock; or the next one to be ended, whoever ends them.
    next: Cell<*const Node>,
    prev: Cell<*const Node>,
    is_child: Cell<bool>,
}

/// The first of a node's children.
struct Children(*const Node);

// SAFETY: D9, children are reached only under the lock, and leave the list before they go.
unsafe impl Send for Children {}

/// A reference that keeps the node.
pub(super) struct NodeRef(NonNull<Node>);

// SAFETY: D1, what changes is atomic, under the parent's lock, or with whoever took the node out of its parent's list.
unsafe impl Send for NodeRef {}
// SAFETY: as above.
unsafe impl Sync for NodeRef {}

impl Node {
    /// A child of `parent`, with a deadline of its own or none.
    pub(super) fn child_of(parent: Option<&NodeRef>, own: Option<Instant>) -> NodeRef {
        let deadline = match (own, parent.and_then(|parent| parent.deadline)) {
            (Some(own), Some(earlier)) => Some(own.min(earlier)),
            (own, inherited) => own.or(inherited),
        };
        let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
        let deadline_ns = match deadline {
            Some(_) if is_over => 0,
            Some(deadline) => sys::deadline_of(deadline),
            None => u64::MAX,
        };
        let (sender, done) = chan::closing_at(deadline_ns);
        let node = Box::new(Node {
            refs: AtomicUsize::new(1),
            parent: parent.cloned(),
            deadline,
            deadline_ns,
            state: AtomicU8::new(if is_over { DEADLINE | CLOSED } else { 0 }),
            sender,
            done,
            children: Lock::new(Rank::Context, Children(ptr::null())),
            next: Cell::new(ptr::null()),
            prev: Cell::new(ptr::null()),
            is_child: Cell::new(false),
        });
        let node = NodeRef(NonNull::from(Box::leak(node)));
        if let Some(parent) = parent
            && !is_over
            && !parent.adopt(&node)
        {
            node.cancel();
        }
        node
    }

    /// Why it has ended, if it has.
    pub(super) fn err(&self) -> Option<ContextError> {
        // ORDER: Acquire; pairs with those who set it.
        let mut state = self.state.load(Acquire);
        if state == 0 {
            if !sys::has_passed(self.deadline_ns) {
                return None;
            }
            state = self.set(DEADLINE | CLOSED);
        }
        if state & CLOSED == 0 {
            self.sender.close(); // who has seen the end finds it in the channel, too
        }
        Some(match state & !CLOSED {
            CANCELED => ContextError::Canceled,
            _ => ContextError::DeadlineExceeded,
        })
    }

    /// Ends it, unless it has ended; the state that it has then.
    fn set(&self, state: u8) -> u8 {
        // ORDER: AcqRel; the first one decides, the others see what it did before.
        match self.state.compare_exchange(0, state, AcqRel, Acquire) {
            Ok(_) => state,
            Err(earlier) => earlier,
        }
    }

    /// Ends it and everything below.
    pub(super) fn cancel(&self) {
        // Only `rest` lists what is left to be ended: no preemption until it is empty (D2).
        let _whole = no_preempt(PreemptOff::HalfDone);
        let now = sys::monotonic_ns();
        let mut rest = Rest(ptr::null());
        self.end(now, &mut rest);
        while let Some(node) = rest.pop() {
            node.end(now, &mut rest);
        }
    }

    /// Ends it; its children are yet to be ended.
    fn end(&self, now: u64, rest: &mut Rest) {
        if self.deadline_ns <= now {
            self.set(DEADLINE | CLOSED); // as all below it have
            return;
        }
        if self
            .state
            .compare_exchange(0, CANCELED, AcqRel, Relaxed)
            .is_err()
        {
            return;
        }
        self.sender.close();
        self.state.fetch_or(CLOSED, Release);
        while self.take_children(rest) {}
    }

    /// Some of the children, those that somebody still holds; false: there are no more, and none will come. It has ended.
    fn take_children(&self, rest: &mut Rest) -> bool {
        let _rt = enter();
        let mut children = self.children.lock();
        for _ in 0..TAKE_MAX {
            // SAFETY: a node in the list is there.
            let Some(child) = (unsafe { children.0.as_ref() }) else {
                return false;
            };
            children.remove(child);
            if child.try_retain() {
                rest.push(child);
            }
        }
        true
    }

    /// Takes a new child into the list; false: too late, this has been cancelled.
    fn adopt(&self, child: &Node) -> bool {
        let _rt = enter();
        let mut children = self.children.lock();
        // ORDER: Relaxed; who cancels sets it before taking the lock, so it is seen here or the child is seen there.
        if self.state.load(Relaxed) & CANCELED != 0 {
            return false;
        }
        children.add(child);
        true
    }

    /// Leaves the parent's list, if it is in there. Nobody holds it any more.
    fn leave(&self) {
        if let Some(parent) = &self.parent {
            let _rt = enter();
            let mut children = parent.children.lock();
            if self.is_child.get() {
                children.remove(self);
            }
        }
    }

    /// A reference, unless the last one is gone.
    fn try_retain(&self) -> bool {
        self.refs
            .fetch_update(Relaxed, Relaxed, |refs| (refs != 0).then_some(refs + 1))
            .is_ok()
    }
}

impl Children {
    fn add(&mut self, child: &Node) {
        debug_assert!(!child.is_child.get());
        child.is_child.set(true);
        child.prev.set(ptr::null());
        child.next.set(self.0);
        // SAFETY: a node in the list is there.
        if let Some(next) = unsafe { self.0.as_ref() } {
            next.prev.set(child);
        }
        self.0 = child;
    }

    fn remove(&mut self, child: &Node) {
        debug_assert!(child.is_child.get());
        child.is_child.set(false);
        let (prev, next) = (child.prev.get(), child.next.get());
        // SAFETY: neighbours in the list are there.
        match unsafe { prev.as_ref() } {
            Some(prev) => prev.next.set(next),
            None => self.0 = next,
        }
        // SAFETY: as above.
        if let Some(next) = unsafe { next.as_ref() } {
            next.prev.set(prev);
        }
    }
}

/// Nodes that are yet to be ended, each with a reference, linked through `next`. They have been taken out of their parents' lists,
/// and nobody else puts them anywhere.
struct Rest(*const Node);

impl Rest {
    fn push(&mut self, node: &Node) {
        node.next.set(self.0);
        self.0 = node;
    }

    fn pop(&mut self) -> Option<NodeRef> {
        let node = NonNull::new(self.0.cast_mut())?;
        // SAFETY: what was pushed came with a reference.
        self.0 = unsafe { node.as_ref() }.next.get();
        Some(NodeRef(node))
    }
}

impl NodeRef {
    /// Gives the reference up; the node, if it was the last.
    ///
    /// # Safety
    /// Called once, and the reference is not used afterwards.
    unsafe fn release(&self) -> Option<Box<Node>> {
        // ORDER: Release, and Acquire by the last one: what others did with it comes before the end.
        if self.refs.fetch_sub(1, Release) != 1 {
            return None;
        }
        fence(Acquire);
        self.leave();
        // SAFETY: made from a box; no reference is left, and nobody finds it any more.
        Some(unsafe { Box::from_raw(self.0.as_ptr()) })
    }
}

impl Deref for NodeRef {
    type Target = Node;
    fn deref(&self) -> &Node {
        // SAFETY: D1, the reference keeps it.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for NodeRef {
    fn clone(&self) -> NodeRef {
        // A program that forgets handles in a loop must not wrap the count.
        if self.refs.fetch_add(1, Relaxed) > isize::MAX as usize {
            std::process::abort();
        }
        NodeRef(self.0)
    }
}

impl Drop for NodeRef {
    /// With the last reference to a node that to its parent goes, and so on: in a loop, for a chain may be long.
    fn drop(&mut self) {
        // SAFETY: the reference is dropped.
        let mut last = unsafe { self.release() };
        while let Some(mut node) = last {
            let parent = node.parent.take().map(ManuallyDrop::new);
            drop(node);
            // SAFETY: taken out above, and not dropped.
            last = parent.and_then(|parent| unsafe { parent.release() });
        }
    }
}
