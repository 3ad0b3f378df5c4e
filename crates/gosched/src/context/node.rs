//! The tree behind [`Context`](crate::context::Context): children reference their parent, and each
//! parent lists its children.
//!
//! A cancellation must reach all descendants, so the parent needs the list. Deadlines do not need
//! it: a child's deadline is the earlier of its own and its parent's, and each check compares it
//! with the clock.
//!
//! `cancel` ends the node, takes its children out of the list, a few at a time, and ends them the
//! same way. The nodes that are still to be ended form a list through the nodes themselves. So
//! `cancel` needs neither memory nor stack, however deep or wide the tree is.
//!
//! ```text
//!  state               meaning                                      next
//!  0                   no end has been observed                     CANCELED, DEADLINE | CLOSED
//!  CANCELED            ended; the channel is not closed yet         CANCELED | CLOSED
//!  CANCELED | CLOSED   ended                                        –
//!  DEADLINE | CLOSED   the deadline has passed; the channel closes  –
//!                      at the deadline by itself
//! ```
//!
//! A node in its parent's list is alive: it is freed only after it has left the list, under the
//! parent's lock. Its reference count may be zero already, while its last reference is being
//! dropped. `try_retain` skips such a node.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicUsize, fence};
use std::time::Instant;

use crate::base::lock::{Lock, Rank};
use crate::chan::Closing;
use crate::context::ContextError;
use crate::sched::model::m::PreemptOff;
use crate::sched::park::{enter, no_preempt};
use crate::sys;

const CANCELED: u8 = 1;
const DEADLINE: u8 = 2;
const CLOSED: u8 = 4;

/// Children taken out of the list under one hold of its lock.
const TAKE_MAX: usize = 64;

/// A context that can end.
pub(super) struct Node {
    refs: AtomicUsize,
    /// None: the background context.
    parent: Option<NodeRef>,
    /// The earliest deadline from here to the root.
    pub(super) deadline: Option<Instant>,
    state: AtomicU8,
    /// The channel that is closed at the end. It has the deadline on the monotonic clock, which
    /// decides.
    pub(super) done: Closing,
    children: Lock<Children>,
    /// The links of the parent's list of children, under the parent's lock. After that, `next` is
    /// the link of `Rest`.
    next: Cell<*const Node>,
    prev: Cell<*const Node>,
    is_child: Cell<bool>,
}

/// The first child of a node.
struct Children(*const Node);

// SAFETY: D9: children are reached only under the lock, and leave the list before they are freed.
unsafe impl Send for Children {}

/// A counted reference to a node.
pub(super) struct NodeRef(NonNull<Node>);

// SAFETY: D1: all mutable fields of a node are atomic, or accessed under the parent's lock. Once
// the node is out of the parent's list, only the `cancel` that took it out accesses its link.
unsafe impl Send for NodeRef {}
// SAFETY: D1: all mutable fields of a node are atomic, or accessed under the parent's lock. Once
// the node is out of the parent's list, only the `cancel` that took it out accesses its link.
unsafe impl Sync for NodeRef {}

impl Node {
    /// Creates a child of `parent`, with an own deadline if given.
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
        let node = Box::new(Node {
            refs: AtomicUsize::new(1),
            parent: parent.cloned(),
            deadline,
            state: AtomicU8::new(if is_over { DEADLINE | CLOSED } else { 0 }),
            done: Closing::new(deadline_ns),
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

    /// Returns why the node has ended, if it has.
    pub(super) fn err(&self) -> Option<ContextError> {
        // ORDER: Acquire; pairs with the AcqRel of `set` and `end`, and with the Release of CLOSED.
        let mut state = self.state.load(Acquire);
        if state == 0 {
            if !sys::has_passed(self.done.closes_at()) {
                return None;
            }
            state = self.set(DEADLINE | CLOSED);
        }
        if state & CLOSED == 0 {
            self.done.close(); // before `err` returns a reason, the channel is closed
        }
        Some(match state & !CLOSED {
            CANCELED => ContextError::Canceled,
            _ => ContextError::DeadlineExceeded,
        })
    }

    /// Ends the node unless it has ended; returns its state afterwards.
    fn set(&self, state: u8) -> u8 {
        // ORDER: AcqRel; the first store decides, and later callers see what preceded it.
        match self.state.compare_exchange(0, state, AcqRel, Acquire) {
            Ok(_) => state,
            Err(earlier) => earlier,
        }
    }

    /// Ends the node and all its descendants.
    pub(super) fn cancel(&self) {
        // Only `rest` lists the nodes to be ended, so no preemption until it is empty (D2).
        let _whole = no_preempt(PreemptOff::HalfDone);
        let now = sys::monotonic_ns();
        let mut rest = Rest(ptr::null());
        self.end(now, &mut rest);
        while let Some(node) = rest.pop() {
            node.end(now, &mut rest);
        }
    }

    /// Ends the node and moves its children to `rest`.
    fn end(&self, now: u64, rest: &mut Rest) {
        if self.done.closes_at() <= now {
            self.set(DEADLINE | CLOSED); // the deadline of all descendants has passed too
            return;
        }
        if self
            .state
            .compare_exchange(0, CANCELED, AcqRel, Relaxed)
            .is_err()
        {
            return;
        }
        self.done.close();
        self.state.fetch_or(CLOSED, Release);
        while self.take_children(rest) {}
    }

    /// Moves some children to `rest`, if they still have references. False: the list is empty and
    /// stays so, because the node has ended.
    fn take_children(&self, rest: &mut Rest) -> bool {
        let _rt = enter();
        let mut children = self.children.lock();
        for _ in 0..TAKE_MAX {
            // SAFETY: a node in the list is alive (see the module's head).
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

    /// Adds a new child to the list. False: this node has been cancelled already.
    fn adopt(&self, child: &Node) -> bool {
        let _rt = enter();
        let mut children = self.children.lock();
        // ORDER: Relaxed; `end` sets CANCELED before it takes the lock. So it is seen here, or
        // `end` sees the child.
        if self.state.load(Relaxed) & CANCELED != 0 {
            return false;
        }
        children.add(child);
        true
    }

    /// Leaves the parent's list, if the node is in it. The node has no references.
    fn leave(&self) {
        if let Some(parent) = &self.parent {
            let _rt = enter();
            let mut children = parent.children.lock();
            if self.is_child.get() {
                children.remove(self);
            }
        }
    }

    /// Adds a reference, unless the last one is gone.
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
        // SAFETY: a node in the list is alive (see the module's head).
        if let Some(next) = unsafe { self.0.as_ref() } {
            next.prev.set(child);
        }
        self.0 = child;
    }

    fn remove(&mut self, child: &Node) {
        debug_assert!(child.is_child.get());
        child.is_child.set(false);
        let (prev, next) = (child.prev.get(), child.next.get());
        // SAFETY: neighbours in the list are alive (see the module's head).
        match unsafe { prev.as_ref() } {
            Some(prev) => prev.next.set(next),
            None => self.0 = next,
        }
        // SAFETY: neighbours in the list are alive (see the module's head).
        if let Some(next) = unsafe { next.as_ref() } {
            next.prev.set(prev);
        }
    }
}

/// Nodes that are still to be ended, each with a reference, linked through `next`. They have left
/// their parents' lists, so this list alone uses the link.
struct Rest(*const Node);

impl Rest {
    fn push(&mut self, node: &Node) {
        node.next.set(self.0);
        self.0 = node;
    }

    fn pop(&mut self) -> Option<NodeRef> {
        let node = NonNull::new(self.0.cast_mut())?;
        // SAFETY: every pushed node came with a reference.
        self.0 = unsafe { node.as_ref() }.next.get();
        Some(NodeRef(node))
    }
}

impl NodeRef {
    /// Drops the reference; returns the node if it was the last one.
    ///
    /// # Safety
    /// Called once, and the reference is not used afterwards.
    unsafe fn release(&self) -> Option<Box<Node>> {
        // ORDER: Release; pairs with the Acquire fence of the last release: all uses precede the
        // end.
        if self.refs.fetch_sub(1, Release) != 1 {
            return None;
        }
        fence(Acquire);
        self.leave();
        // SAFETY: `child_of` made it from a box. No reference is left, and the parent's list no
        // longer has it.
        Some(unsafe { Box::from_raw(self.0.as_ptr()) })
    }
}

impl Deref for NodeRef {
    type Target = Node;
    fn deref(&self) -> &Node {
        // SAFETY: D1: the reference keeps the node alive.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for NodeRef {
    fn clone(&self) -> NodeRef {
        // Leaked clones must not overflow the count.
        if self.refs.fetch_add(1, Relaxed) > isize::MAX as usize {
            std::process::abort();
        }
        NodeRef(self.0)
    }
}

impl Drop for NodeRef {
    /// The last reference to a node drops its reference to the parent, and so on. A loop, because a
    /// chain may be long.
    fn drop(&mut self) {
        // SAFETY: the reference is being dropped, so it is not used again.
        let mut last = unsafe { self.release() };
        while let Some(mut node) = last {
            let parent = node.parent.take().map(ManuallyDrop::new);
            drop(node);
            // SAFETY: the reference was taken out of the node and is never dropped itself.
            last = parent.and_then(|parent| unsafe { parent.release() });
        }
    }
}
