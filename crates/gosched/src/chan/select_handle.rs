//! What a select needs of a channel, whatever it carries: the trait, and its methods for any
//! flavour.

use std::alloc::Layout;
use std::mem::ManuallyDrop;

use crate::base::fatal::throw;
use crate::chan::core::{ChanHeader, ChanQueues, Channel, word};
use crate::chan::err::{SendTimeoutError, TrySendError};
use crate::chan::flavor::Flavor;
use crate::chan::open::Open;
use crate::chan::ring::{No, ReservedPlace};
use crate::chan::snapshot::ChanSnapshot;
use crate::sched::park::{Entered, enter};
use crate::sched::waiting::waitq::{ClaimedWaiter, NodePtr, WaitNode, WakeList};

/// What a select's case has when it is chosen. A send has yet to be completed.
pub(super) enum Promise {
    /// A receive: its value is in the room that the caller gave for it.
    Value,
    /// The channel is closed.
    Closed,
    /// The case would not have to wait, and nothing else was asked.
    Ready,
    /// A send that always has room.
    Room,
    /// A send's place in the buffer.
    Place(ReservedPlace),
    /// A send's receiver, claimed. It waits until the claim is finished.
    Claimed(ClaimedWaiter),
    /// A send's receiver, which has claimed this select and waits for the value only.
    Receiver(*mut WaitNode<'static>),
}

impl Promise {
    /// The receiver that the promise is about, to be given a value or refused.
    pub(super) fn receiver(self) -> Option<ClaimedWaiter> {
        match self {
            Promise::Claimed(node) => Some(node),
            Promise::Receiver(node) => {
                // SAFETY: G4, no timeout and no shutdown ends the receiver's wait before its node
                // is claimed, which only this does.
                let node = unsafe { NodePtr::from_raw(node) };
                node.and_then(ClaimedWaiter::claim)
            }
            _ => None,
        }
    }
}

/// What a try with the lock held found.
pub(super) enum Polled {
    Now(Promise),
    /// A receive whose sender has yet to evaluate its message. The sender will write to the node
    /// that it was given.
    Promised,
}

/// A channel as a select sees it.
pub(super) trait SelectHandle {
    fn header(&self) -> &ChanHeader;

    /// The layout of its values.
    fn layout(&self) -> Layout;

    /// Drops a value that no receiver took.
    ///
    /// # Safety
    /// `at` is a value of the channel's type that no code uses afterwards.
    unsafe fn drop_value(&self, at: *mut u8);

    /// When the channel itself has something for receivers (monotonic ns; `u64::MAX`: never).
    fn next_due(&self) -> u64;

    /// Changes whenever what a select would find changes without the lock.
    fn version(&self) -> (usize, usize);

    /// Receives into `to` if that can be done now.
    ///
    /// # Safety
    /// `to` is room for a value; it is initialised on success.
    unsafe fn poll_recv(&self, to: *mut u8) -> Result<(), No>;

    /// The promise of a send, if there is one now. Inside the runtime, without locks.
    fn poll_send(&self, rt: &Entered) -> Option<Promise>;

    /// As [`SelectHandle::poll_recv`], with the channel's lock held.
    ///
    /// # Safety
    /// - `to` is room for a value, and the `elem` of `promised`.
    /// - `lock_of_several` took the lock, and it is held.
    /// - No node of the waiter of `promised` is in a queue.
    /// - After [`Polled::Promised`] the caller waits for the value, and tries no other case: the
    ///   sender has the node, and ends the wait with it.
    unsafe fn poll_recv_locked(
        &self,
        to: *mut u8,
        promised: &WaitNode<'_>,
        wake: &mut WakeList,
    ) -> Option<Polled>;

    /// As [`SelectHandle::poll_send`], with the channel's lock held.
    ///
    /// # Safety
    /// `lock_of_several` took the lock, and it is held.
    unsafe fn poll_send_locked(&self, wake: &mut WakeList) -> Option<Promise>;

    /// Receives what the channel itself has for a select whose wait it has ended. Outside the
    /// runtime. False: other receivers were faster.
    ///
    /// # Safety
    /// `to` is room for a value; it is initialised if true is returned. `node` waited in the
    /// channel's queue until now.
    unsafe fn recv_in_turn(&self, node: &WaitNode<'_>, to: *mut u8) -> bool;

    /// Whether the case would not have to wait.
    fn is_ready(&self, is_send: bool) -> bool;

    /// As [`SelectHandle::is_ready`], with the channel's lock held.
    ///
    /// # Safety
    /// `lock_of_several` took the lock, and it is held.
    unsafe fn is_ready_locked(&self, is_send: bool) -> bool;

    /// Until when a select that queues itself with `node` may sleep for the channel's own sake.
    /// Under the lock.
    fn turn(&self, q: &mut ChanQueues, node: &WaitNode<'_>) -> u64;

    /// A select that waited for the clock has left. Under the lock.
    fn look_after(&self, q: &mut ChanQueues, wake: &mut WakeList);

    /// A select that was woken to look again leaves. Without locks.
    fn look_after_leaving(&self);

    /// Serves waiters, after one was queued. Under the lock.
    fn settle_queued(&self, q: &mut ChanQueues, wake: &mut WakeList);

    /// Refuses what was promised to a send that will not be completed, unless a drop has done so.
    /// Outside the runtime. `may_drop`: the caller may drop values of the channel, which need not
    /// be Send.
    fn refuse(&self, promise: Promise, open: Option<Open>, may_drop: bool);

    /// Takes back what the owner of the node was given, and gives it to the next waiter. None: it
    /// was given nothing here. Inside the runtime, without locks.
    ///
    /// # Safety
    /// The node was in one of this channel's queues, and was ended for a goroutine that was
    /// abandoned: it stays for ever (D2).
    unsafe fn take_back(&self, node: Option<&WaitNode<'_>>);

    fn snapshot(&self) -> ChanSnapshot;
}

impl<F: Flavor> Channel<F> {
    /// # Safety
    /// As for [`SelectHandle::poll_recv`].
    #[inline]
    pub(super) unsafe fn poll_recv(&self, to: *mut F::Value) -> Result<(), No> {
        // SAFETY: `to` is a place for a value, as the caller promises.
        match unsafe { self.recv_now(to) } {
            true => Ok(()),
            // SAFETY: `to` is a place for a value, as the caller promises.
            false => unsafe { F::try_recv(self, to) },
        }
    }

    /// # Safety
    /// As for [`SelectHandle::poll_recv_locked`].
    pub(super) unsafe fn poll_recv_locked(
        &self,
        to: *mut F::Value,
        promised: &WaitNode<'_>,
        wake: &mut WakeList,
    ) -> Option<Polled> {
        // SAFETY: the caller holds the lock, as it promises.
        let q = unsafe { self.header.queues.get_held() };
        // SAFETY: `to` is a place for a value and the `elem` of `promised`, as the caller promises.
        match unsafe { self.recv_locked(q, to, promised, wake) } {
            Ok(polled) => Some(polled),
            Err(No::Closed) => Some(Polled::Now(Promise::Closed)),
            Err(No::NotNow) => None,
        }
    }

    /// # Safety
    /// As for [`Flavor::recv_locked`].
    unsafe fn recv_locked(
        &self,
        q: &mut ChanQueues,
        to: *mut F::Value,
        promised: &WaitNode<'_>,
        wake: &mut WakeList,
    ) -> Result<Polled, No> {
        if F::HAS_BUFFER && !q.recvq.is_empty() {
            self.settle_queued(q, wake);
            if !q.recvq.is_empty() {
                return Err(No::NotNow); // they come first
            }
        }
        // SAFETY: `to` is a place for a value, as the caller promises.
        if unsafe { self.take_returned(q, to) } {
            return Ok(Polled::Now(Promise::Value));
        }
        // SAFETY: `to` is a place for a value and the `elem` of `promised`, as the caller promises.
        unsafe { F::recv_locked(self, q, to, promised, wake) }
    }

    pub(super) fn is_ready(&self, is_send: bool) -> bool {
        let _rt = enter();
        let q = self.header.queues.lock();
        self.would_not_wait(&q, is_send)
    }

    /// Under the lock.
    pub(super) fn would_not_wait(&self, q: &ChanQueues, is_send: bool) -> bool {
        !is_send && !q.returned.is_empty() || F::is_ready(self, q, is_send)
    }

    pub(super) fn refuse(&self, promise: Promise, open: Option<Open>, may_drop: bool) {
        let mut wake = WakeList::new();
        let is_place = matches!(promise, Promise::Place(_));
        let rt = enter();
        if open.as_ref().is_some_and(|open| !open.close()) {
            return;
        }
        self.refuse_promise(promise, &mut wake);
        wake.wake_in(&rt);
        drop(rt);
        if is_place && may_drop {
            self.drain_if_deserted(); // else the last sender frees what is left, with the channel
        }
    }

    /// Gives up a place in the buffer, or wakes the receiver to look again. Inside the runtime,
    /// without locks.
    pub(super) fn refuse_promise(&self, promise: Promise, wake: &mut WakeList) {
        if let Promise::Place(place) = promise {
            self.flavor.void(place);
            self.serve();
        } else if let Some(node) = promise.receiver() {
            node.word.set(word::AGAIN);
            node.finish(wake);
        }
    }

    /// Completes the send of a select's case. If a drop has refused its promise, the goroutine
    /// still runs in a dropped runtime: then it sends like any other.
    pub(super) fn complete_send(
        &self,
        promise: Promise,
        open: Option<Open>,
        msg: F::Value,
    ) -> Result<(), F::Value> {
        match promise {
            Promise::Closed => return Err(msg),
            Promise::Room => return self.try_send(msg).map_err(TrySendError::into_inner),
            _ => {}
        }
        let mut wake = WakeList::new();
        let rt = enter();
        if open.as_ref().is_some_and(|open| !open.close()) {
            drop(rt);
            return self.send_anew(msg);
        }
        let msg = ManuallyDrop::new(msg);
        if let Promise::Place(place) = promise {
            // SAFETY: D1, the place is this operation's, filled once; the value is forgotten here.
            unsafe { self.flavor.fill(place, &raw const *msg) };
            self.serve_receivers();
            drop(rt);
            self.drain_if_deserted();
            return Ok(());
        }
        let Some(node) = promise.receiver() else {
            throw("a select's receiver was claimed by somebody else")
        };
        // SAFETY: D1, the receiver waits with room for a value at `elem`; the value is forgotten
        // here.
        unsafe {
            node.elem
                .get()
                .cast::<F::Value>()
                .copy_from_nonoverlapping(&raw const *msg, 1)
        };
        node.word.set(word::MOVED);
        node.finish(&mut wake);
        wake.wake_in(&rt);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn send_anew(&self, msg: F::Value) -> Result<(), F::Value> {
        self.send(msg, u64::MAX)
            .map_err(SendTimeoutError::into_inner)
    }
}
