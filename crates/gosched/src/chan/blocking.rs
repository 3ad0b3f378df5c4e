//! Sends and receives that may wait, on a channel of any flavour.
//!
//! Each tries without the lock first. Then it takes the lock, queues itself, settles, and sleeps
//! until its node or its deadline ends the wait. A waiter that is woken with `AGAIN` starts over,
//! first in the queue.

use std::mem::MaybeUninit;

use super::core::{ChanQueues, Channel, RECV, SEND, word};
use super::err::{SendTimeoutError, TryRecvError, TrySendError};
use super::flavor::{BeforeWait, Flavor};
use super::ring::No;
use crate::sched::park::{Entered, enter};
use crate::sched::waiting::waitq::{Outcome, QueueEnd, WaitNode, WaitQueue, Waiter, WakeList};
use crate::thread::park::check_cancelled;

/// How an operation ended that may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slow {
    Moved,
    Closed,
    TimedOut,
    Cancelled,
    Again,
}

/// What has happened to an operation that must wait (again).
#[derive(Clone, Copy)]
struct WaitHistory {
    /// It was woken to look again: it comes first.
    has_waited: bool,
    /// It was asked to unwind and could not. It is not asked again.
    is_told: bool,
}

impl WaitHistory {
    const FIRST: WaitHistory = WaitHistory {
        has_waited: false,
        is_told: false,
    };

    /// Whether the goroutine is to unwind before it waits.
    #[inline]
    fn must_unwind(self, rt: &Entered) -> bool {
        rt.g().is_some_and(|g| g.must_unwind()) && !self.is_told
    }
}

/// A value that is dropped if its sender unwinds.
struct DropGuard<T>(*mut T);

impl<T> Drop for DropGuard<T> {
    fn drop(&mut self) {
        // SAFETY: D1, made while the value had not been moved, forgotten otherwise.
        unsafe { self.0.drop_in_place() };
    }
}

impl<F: Flavor> Channel<F> {
    /// Sends, waiting until the deadline at most.
    pub(super) fn send(
        &self,
        msg: F::Value,
        deadline_ns: u64,
    ) -> Result<(), SendTimeoutError<F::Value>> {
        let mut msg = MaybeUninit::new(msg);
        // SAFETY: D1, the value is there until it has been moved.
        let sent = unsafe { self.send_from(msg.as_mut_ptr(), deadline_ns) };
        // SAFETY: D1, read only if it was not moved.
        let back = || unsafe { msg.assume_init_read() };
        match sent {
            Slow::TimedOut => Err(SendTimeoutError::Timeout(back())),
            Slow::Closed => Err(SendTimeoutError::Disconnected(back())),
            _ => Ok(()),
        }
    }

    /// The common case of a send: no sender waits, and there is room.
    ///
    /// # Safety
    /// `from` is a value that the caller forgets if true is returned.
    #[inline]
    pub(super) unsafe fn send_now(&self, from: *const F::Value) -> bool {
        if !F::HAS_BUFFER {
            return false;
        }
        let _rt = enter();
        // SAFETY: `from` is a value that the caller forgets on success, as it promises.
        let sent = !self.header.has_senders_waiting() && unsafe { self.flavor.send_at_once(from) };
        if sent {
            self.serve_receivers();
        }
        sent
    }

    /// The common case of a receive: no receiver waits, and there is a value.
    ///
    /// # Safety
    /// `to` is a place for a value; it is initialised if true is returned.
    #[inline]
    pub(super) unsafe fn recv_now(&self, to: *mut F::Value) -> bool {
        if !F::HAS_BUFFER {
            return false;
        }
        let _rt = enter();
        // SAFETY: `to` is a place for a value, as the caller promises.
        let received =
            !self.header.has_receivers_waiting() && unsafe { self.flavor.recv_at_once(to) };
        if received {
            self.serve_senders();
        }
        received
    }

    /// How a send ended: moved, closed, or timed out.
    ///
    /// # Safety
    /// `from` is a value that the caller forgets if it was moved, or if this unwinds.
    #[inline]
    pub(super) unsafe fn send_from(&self, from: *mut F::Value, deadline_ns: u64) -> Slow {
        let mut history = WaitHistory::FIRST;
        loop {
            if F::HAS_BUFFER && !self.header.has_senders_waiting() {
                // SAFETY: `from` is a value that the caller forgets on success, as it promises.
                match unsafe { F::try_send(self, from) } {
                    Ok(()) => return Slow::Moved,
                    Err(No::Closed) => return Slow::Closed,
                    Err(No::NotNow) => {}
                }
            }
            // SAFETY: `from` is a value until it has been moved; then the loop is left.
            match unsafe { self.send_slow(from, deadline_ns, history) } {
                Slow::Again => history.has_waited = true,
                Slow::Cancelled => {
                    let guard = DropGuard(from);
                    check_cancelled();
                    std::mem::forget(guard);
                    history.is_told = true;
                }
                ended => return ended,
            }
        }
    }

    /// # Safety
    /// `from` is a value that the caller forgets if it was moved.
    #[inline]
    unsafe fn send_slow(
        &self,
        from: *mut F::Value,
        deadline_ns: u64,
        history: WaitHistory,
    ) -> Slow {
        let rt = enter();
        if history.must_unwind(&rt) {
            return Slow::Cancelled;
        }
        let mut wake = WakeList::new();
        let mut q = self.header.queues.lock();
        if q.is_closed {
            return Slow::Closed;
        }
        // SAFETY: `from` is a value that the caller forgets on success, as it promises.
        if unsafe { F::send_locked(self, &mut q, from, &mut wake) } {
            drop(q);
            wake.wake_in(&rt);
            return Slow::Moved;
        }
        let waiter = Waiter::new();
        let node = WaitNode::new(&waiter, 0);
        node.elem.set(from.cast());
        waiter.on.set(self.header.on());
        // SAFETY: G4, `finish_wait` takes the node out before this frame ends.
        unsafe { q.sendq.push(&node, QueueEnd::front_if(history.has_waited)) };
        self.settle_queued(&mut q, &mut wake);
        drop(q);
        wake.wake_in(&rt);
        let outcome = waiter.wait_in(rt, &SEND, deadline_ns);
        self.finish_wait(outcome, &node, |q| &mut q.sendq)
    }

    #[inline]
    pub(super) fn try_send(&self, msg: F::Value) -> Result<(), TrySendError<F::Value>> {
        let mut msg = MaybeUninit::new(msg);
        // SAFETY: D1, the value is there; it is read again only if it was not moved.
        let sent = unsafe { F::try_send(self, msg.as_mut_ptr()) };
        // SAFETY: D1, read only if it was not moved.
        let back = || unsafe { msg.assume_init_read() };
        sent.map_err(|no| match no {
            No::NotNow => TrySendError::Full(back()),
            No::Closed => TrySendError::Disconnected(back()),
        })
    }

    /// How a receive ended: moved, closed, or timed out.
    ///
    /// # Safety
    /// `to` is a place for a value; it is initialised if `Moved` is returned.
    #[inline]
    pub(super) unsafe fn recv_to(&self, to: *mut F::Value, deadline_ns: u64) -> Slow {
        let mut history = WaitHistory::FIRST;
        loop {
            if F::tries_recv(self) {
                // SAFETY: `to` is a place for a value, as the caller promises.
                match unsafe { F::try_recv(self, to) } {
                    Ok(()) => return Slow::Moved,
                    Err(No::Closed) => return Slow::Closed,
                    Err(No::NotNow) => {}
                }
            }
            // SAFETY: `to` is a place for a value, as the caller promises.
            match unsafe { self.recv_slow(to, deadline_ns, history) } {
                Slow::Again => history.has_waited = true,
                Slow::Cancelled => {
                    self.look_after_leaving();
                    check_cancelled();
                    history.is_told = true;
                }
                ended => return ended,
            }
        }
    }

    /// # Safety
    /// `to` is a place for a value; it is initialised if `Moved` is returned.
    #[inline]
    unsafe fn recv_slow(&self, to: *mut F::Value, deadline_ns: u64, history: WaitHistory) -> Slow {
        let waiter = Waiter::new();
        let node = WaitNode::new(&waiter, 0);
        node.elem.set(to.cast());
        let rt = enter();
        if history.must_unwind(&rt) {
            return Slow::Cancelled;
        }
        let mut wake = WakeList::new();
        let mut q = self.header.queues.lock();
        let end = QueueEnd::front_if(history.has_waited);
        // SAFETY: `to` is a place for a value, as the caller promises, and the new node's `elem`.
        let (at, due) = match unsafe { F::before_wait(self, &mut q, to, &node, end, &mut wake) } {
            BeforeWait::Queue(at, due) => (at, due),
            BeforeWait::Took(took) => {
                drop(q);
                wake.wake_in(&rt);
                return took.after_handshake(rt, &self.header, &waiter, &node);
            }
            BeforeWait::Leave(slow) => return slow,
        };
        waiter.on.set(self.header.on());
        // SAFETY: G4, `finish_wait` takes the node out before this frame ends.
        unsafe { q.recvq.push(&node, at) };
        self.settle_queued(&mut q, &mut wake);
        drop(q);
        wake.wake_in(&rt);
        let outcome = waiter.wait_in(rt, &RECV, deadline_ns.min(due));
        if outcome == Outcome::TimedOut && due <= deadline_ns {
            // SAFETY: `to` is a place for a value, as the caller promises. The node waited here
            // until now.
            return unsafe { self.take_due(&node, to, due, deadline_ns) };
        }
        self.finish_wait(outcome, &node, |q| &mut q.recvq)
    }

    /// A receiver's wait ended at `due`, the moment at which the channel has something by itself.
    ///
    /// # Safety
    /// `to` is a place for a value; it is initialised if `Moved` is returned. The node waited here
    /// until now.
    #[cold]
    unsafe fn take_due(
        &self,
        node: &WaitNode<'_>,
        to: *mut F::Value,
        due: u64,
        deadline_ns: u64,
    ) -> Slow {
        // SAFETY: the node waited here and `to` is a place for a value, as the caller promises.
        if unsafe { F::take_in_turn(self, node, to) } {
            return Slow::Moved;
        }
        match self.finish_wait(Outcome::TimedOut, node, |q| &mut q.recvq) {
            // The channel's time is over, not the caller's.
            Slow::TimedOut if due < deadline_ns => Slow::Again,
            slow => slow,
        }
    }

    /// After a wait: takes the node out of its queue, and returns what it got.
    #[inline]
    fn finish_wait(
        &self,
        outcome: Outcome,
        node: &WaitNode<'_>,
        queue: fn(&mut ChanQueues) -> &mut WaitQueue,
    ) -> Slow {
        if let Outcome::Case(_) = outcome {
            return match node.word.get() {
                word::MOVED => Slow::Moved,
                word::CLOSED => Slow::Closed,
                _ => Slow::Again,
            };
        }
        self.unqueue(node, queue);
        match outcome {
            Outcome::TimedOut => Slow::TimedOut,
            _ => Slow::Cancelled,
        }
    }

    /// Takes a node out of its queue after a timeout or a request to unwind.
    #[cold]
    #[inline(never)]
    fn unqueue(&self, node: &WaitNode<'_>, queue: fn(&mut ChanQueues) -> &mut WaitQueue) {
        let mut wake = WakeList::new();
        let rt = enter();
        let mut q = self.header.queues.lock();
        queue(&mut q).remove(node);
        self.header.note_queues(&q);
        F::look_after(self, &mut q, &mut wake);
        drop(q);
        wake.wake_in(&rt);
    }

    #[inline]
    pub(super) fn try_recv(&self) -> Result<F::Value, TryRecvError> {
        let mut to = MaybeUninit::<F::Value>::uninit();
        // SAFETY: a place for a value.
        match unsafe { F::try_recv(self, to.as_mut_ptr()) } {
            // SAFETY: success initialises it.
            Ok(()) => Ok(unsafe { to.assume_init() }),
            Err(No::NotNow) => Err(TryRecvError::Empty),
            Err(No::Closed) => Err(TryRecvError::Disconnected),
        }
    }

    /// Whether a new sender must let waiting senders go first. Serves the waiters that it can.
    #[inline]
    pub(super) fn is_behind_senders(&self) -> bool {
        self.header.has_senders_waiting() && {
            self.serve();
            self.header.has_senders_waiting()
        }
    }

    /// What a receiver that comes now gets, if others go first or a value was taken back. None: it
    /// takes from the buffer. Inside the runtime.
    ///
    /// # Safety
    /// `to` is a place for a value; it is initialised if `Some(Ok)` is returned.
    #[inline]
    pub(super) unsafe fn recv_behind(&self, to: *mut F::Value) -> Option<Result<(), No>> {
        if !self.header.has_receivers_waiting() {
            return None;
        }
        // SAFETY: `to` is a place for a value, as the caller promises.
        unsafe { self.recv_behind_slow(to) }
    }

    /// A receiver has left without a value, so without the lock: see [`Flavor::look_after`].
    #[cold]
    #[inline(never)]
    pub(super) fn look_after_leaving(&self) {
        if F::IS_CLOCK {
            let mut wake = WakeList::new();
            let rt = enter();
            let mut q = self.header.queues.lock();
            F::look_after(self, &mut q, &mut wake);
            drop(q);
            wake.wake_in(&rt);
        }
    }
}
