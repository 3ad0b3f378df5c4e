//! What a select needs of a channel, whatever it carries.

use std::alloc::Layout;

use crate::chan::core::{Chan, ChanHeader, ChanQueues, Flavor, word};
use crate::chan::open::Open;
use crate::chan::ring::{No, ReservedPlace};
use crate::chan::zero::Took;
use crate::sched::park::{Entered, enter};
use crate::sched::waitq::{ClaimedWaiter, WaitNode, WakeList};
use crate::sys;

/// What a select's case has when it is chosen. A send has yet to be completed.
pub(super) enum Promise {
    /// A receive: its value is in the value slot.
    Value,
    /// The channel is closed.
    Closed,
    /// The case would not have to wait: that was all that was asked.
    Ready,
    /// A send that always has room.
    Room,
    /// A send's place in the buffer.
    ReservedPlace(ReservedPlace),
    /// A send's receiver, claimed: it waits where it is.
    Claimed(&'static WaitNode, ClaimedWaiter),
    /// A send's receiver, which has claimed this select and waits for the value alone.
    Receiver(*const WaitNode),
}

impl Promise {
    /// The receiver that this promise is to, to be completed or refused.
    pub(super) fn receiver(self) -> Option<(&'static WaitNode, ClaimedWaiter)> {
        match self {
            Promise::Claimed(node, claim) => Some((node, claim)),
            Promise::Receiver(node) => {
                // SAFETY: G4, the receiver waits through everything until its node is claimed, which only this does.
                let node = unsafe { &*node };
                node.claim().map(|claim| (node, claim))
            }
            _ => None,
        }
    }
}

/// A look at a case with its lock held.
pub(super) enum Polled {
    Now(Promise),
    /// A receive whose sender has yet to evaluate its message: it will write to the node that it was given.
    Promised,
}

/// A channel as a select sees it.
pub(super) trait SelectHandle {
    fn header(&self) -> &ChanHeader;

    /// The layout of its values.
    fn layout(&self) -> Layout;

    /// Drops a value that nobody took.
    ///
    /// # Safety
    /// `at` is a value of the channel's type that nobody uses afterwards.
    unsafe fn drop_value(&self, at: *mut u8);

    /// When the channel itself has something for receivers.
    fn next_due(&self) -> u64;

    /// Changes whenever what a select would find changes without the lock.
    fn version(&self) -> (usize, usize);

    /// Receives into `to` if that can be done now.
    ///
    /// # Safety
    /// `to` is room for a value.
    unsafe fn poll_recv(&self, to: *mut u8) -> Result<(), No>;

    /// The promise of a send, if that can be had now. Inside the runtime, without locks.
    fn poll_send(&self, rt: &Entered) -> Option<Promise>;

    /// As [`SelectHandle::poll_recv`], with the channel's lock held.
    ///
    /// # Safety
    /// As there; the lock is held by `lock_of_several`; `promised` is the node of a waiter of its own.
    unsafe fn poll_recv_locked(
        &self,
        to: *mut u8,
        promised: &WaitNode,
        wake: &mut WakeList,
    ) -> Option<Polled>;

    /// As [`SelectHandle::poll_send`], with the channel's lock held.
    ///
    /// # Safety
    /// The lock is held by `lock_of_several`.
    unsafe fn poll_send_locked(&self, wake: &mut WakeList) -> Option<Promise>;

    /// Receives what the channel itself has for a select whose wait it has ended. Outside the runtime. False: others were faster.
    ///
    /// # Safety
    /// `to` is room for a value, initialised if true is returned; `node` waited in the channel's queue until now.
    unsafe fn recv_in_turn(&self, node: &WaitNode, to: *mut u8) -> bool;

    /// Whether the case would not have to wait.
    fn is_ready(&self, is_send: bool) -> bool;

    /// As [`SelectHandle::is_ready`], with the channel's lock held.
    ///
    /// # Safety
    /// The lock is held by `lock_of_several`.
    unsafe fn is_ready_locked(&self, is_send: bool) -> bool;

    /// Until when a select that queues itself with `node` may sleep for the channel's own sake.
    /// Under the lock.
    fn turn(&self, q: &mut ChanQueues, node: &WaitNode) -> u64;

    /// A select that waited for the clock has left. Under the lock.
    fn look_after(&self, q: &mut ChanQueues, wake: &mut WakeList);

    /// A select that was woken to look again leaves. Without locks.
    fn look_after_leaving(&self);

    /// Serves whoever waits, after somebody was queued. Under the lock.
    fn settle_queued(&self, q: &mut ChanQueues, wake: &mut WakeList);

    /// Refuses what was promised to a send that will not be completed, unless a drop has done so.
    /// Outside the runtime. `may_drop`: the caller may drop values of the channel, which need not
    /// be Send.
    fn refuse(&self, promise: Promise, open: Option<Open>, may_drop: bool);
}

impl<T> SelectHandle for Chan<T> {
    fn header(&self) -> &ChanHeader {
        &self.header
    }

    fn layout(&self) -> Layout {
        Layout::new::<T>()
    }

    unsafe fn drop_value(&self, at: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { at.cast::<T>().drop_in_place() };
    }

    fn next_due(&self) -> u64 {
        Chan::next_due(self)
    }

    fn version(&self) -> (usize, usize) {
        match &self.flavor {
            Flavor::Array(ring) => ring.version(),
            Flavor::List(list) => list.version(),
            Flavor::Zero { .. } | Flavor::Clock(_) => (0, 0),
        }
    }

    unsafe fn poll_recv(&self, to: *mut u8) -> Result<(), No> {
        // SAFETY: by the caller's promise.
        match unsafe { self.recv_now(to.cast()) } {
            true => Ok(()),
            // SAFETY: as above.
            false => unsafe { self.try_recv_to(to.cast()) },
        }
    }

    fn poll_send(&self, rt: &Entered) -> Option<Promise> {
        if let Flavor::Zero { .. } = self.flavor {
            let mut wake = WakeList::new();
            let q = self.header.queues.lock();
            let promise = self.promise_of_zero(q, &mut wake);
            wake.wake_in(rt);
            return promise;
        }
        if self.is_behind_senders() {
            return None;
        }
        self.promise_of_buffer()
    }

    unsafe fn poll_recv_locked(
        &self,
        to: *mut u8,
        promised: &WaitNode,
        wake: &mut WakeList,
    ) -> Option<Polled> {
        // SAFETY: by the caller's promise.
        let q = unsafe { self.header.queues.get_held() };
        // SAFETY: as above.
        let got = unsafe { self.recv_locked(q, to.cast(), promised, wake) };
        match got {
            Ok(polled) => Some(polled),
            Err(No::Closed) => Some(Polled::Now(Promise::Closed)),
            Err(No::NotNow) => None,
        }
    }

    unsafe fn poll_send_locked(&self, wake: &mut WakeList) -> Option<Promise> {
        // SAFETY: by the caller's promise.
        let q = unsafe { self.header.queues.get_held() };
        if let Flavor::Zero { .. } = self.flavor {
            return self.promise_of_zero(q, wake);
        }
        if !q.sendq.is_empty() {
            self.settle_queued(q, wake);
        }
        if q.sendq.is_empty() {
            self.promise_of_buffer()
        } else {
            None // they come first
        }
    }

    unsafe fn recv_in_turn(&self, node: &WaitNode, to: *mut u8) -> bool {
        let Flavor::Clock(clock) = &self.flavor else {
            return false;
        };
        // SAFETY: by the caller's promise.
        unsafe { clock.take_in_turn(&self.header, node, to.cast()) }
    }

    fn is_ready(&self, is_send: bool) -> bool {
        let _rt = enter();
        let q = self.header.queues.lock();
        self.would_not_wait(&q, is_send)
    }

    unsafe fn is_ready_locked(&self, is_send: bool) -> bool {
        // SAFETY: by the caller's promise.
        self.would_not_wait(unsafe { self.header.queues.get_held() }, is_send)
    }

    fn turn(&self, q: &mut ChanQueues, node: &WaitNode) -> u64 {
        Chan::turn(self, q, node)
    }

    fn look_after(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        Chan::look_after(self, q, wake);
    }

    fn look_after_leaving(&self) {
        Chan::look_after_leaving(self);
    }

    fn settle_queued(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        Chan::settle_queued(self, q, wake);
    }

    fn refuse(&self, promise: Promise, open: Option<Open>, may_drop: bool) {
        let mut wake = WakeList::new();
        let is_place = matches!(promise, Promise::ReservedPlace(_));
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
}

impl<T> Chan<T> {
    /// Gives up a place in the buffer, or tells the receiver to look again. Inside the runtime, without locks.
    pub(super) fn refuse_promise(&self, promise: Promise, wake: &mut WakeList) {
        match (promise, &self.flavor) {
            (Promise::ReservedPlace(place), Flavor::Array(ring)) => {
                ring.void(place);
                self.serve();
            }
            (promise, _) => {
                if let Some((node, claim)) = promise.receiver() {
                    node.word.set(word::AGAIN);
                    claim.finish(wake);
                }
            }
        }
    }

    /// # Safety
    /// As for [`SelectHandle::poll_recv_locked`].
    unsafe fn recv_locked(
        &self,
        q: &mut ChanQueues,
        to: *mut T,
        promised: &WaitNode,
        wake: &mut WakeList,
    ) -> Result<Polled, No> {
        if self.has_buffer() && !q.recvq.is_empty() {
            self.settle_queued(q, wake);
            if !q.recvq.is_empty() {
                return Err(No::NotNow); // they come first
            }
        }
        // SAFETY: by the caller's promise.
        if unsafe { self.take_returned(q, to) } {
            return Ok(Polled::Now(Promise::Value));
        }
        match &self.flavor {
            Flavor::Array(ring) => {
                // SAFETY: as above.
                unsafe { ring.pop(to)? };
                self.settle_queued(q, wake);
            }
            Flavor::List(list) => {
                let mut emptied = crate::chan::list::Emptied::new();
                // SAFETY: as above.
                let popped = unsafe { list.pop(to, &mut emptied) };
                list.keep(emptied);
                popped?;
            }
            Flavor::Zero { .. } => {
                // SAFETY: as above. The select's own nodes are in no queue yet: it does not meet itself.
                match unsafe { self.take(q, to, promised, wake) } {
                    Some(Took::Value) => {}
                    Some(Took::Promise) => return Ok(Polled::Promised),
                    None if q.is_closed || self.has_expired() => return Err(No::Closed),
                    None => return Err(No::NotNow),
                }
            }
            Flavor::Clock(clock) => {
                let when = match clock.when() {
                    u64::MAX => None,
                    _ => clock.take_due(&self.header, q, sys::monotonic_ns(), wake),
                };
                clock.look_after(&self.header, q, wake);
                let when = when.ok_or(No::NotNow)?;
                // SAFETY: as above. The value is an instant, or made from one without the user's doing.
                unsafe { to.write(clock.value(when)) };
            }
        }
        Ok(Polled::Now(Promise::Value))
    }

    /// Under the lock.
    fn promise_of_zero(
        &self,
        mut q: impl std::ops::DerefMut<Target = ChanQueues>,
        wake: &mut WakeList,
    ) -> Option<Promise> {
        if q.is_closed {
            return Some(Promise::Closed);
        }
        let (node, claim) = self.next_receiver(&mut q, wake)?;
        Some(Promise::Claimed(node, claim))
    }

    fn promise_of_buffer(&self) -> Option<Promise> {
        match &self.flavor {
            Flavor::Array(ring) => match ring.reserve() {
                Ok(place) => Some(Promise::ReservedPlace(place)),
                Err(No::Closed) => Some(Promise::Closed),
                Err(No::NotNow) => None,
            },
            Flavor::List(list) if list.is_closed() => Some(Promise::Closed),
            Flavor::List(_) => Some(Promise::Room),
            Flavor::Zero { .. } | Flavor::Clock(_) => None,
        }
    }

    /// Under the lock.
    fn would_not_wait(&self, q: &ChanQueues, is_send: bool) -> bool {
        let wants_more = |node: &WaitNode| node.word.get() != word::READY;
        match (&self.flavor, is_send) {
            (_, false) if !q.returned.is_empty() => true,
            (Flavor::Array(ring), true) => ring.is_ready_to_push(),
            (Flavor::Array(ring), false) => ring.is_ready_to_pop(),
            (Flavor::List(_), true) => true,
            (Flavor::List(list), false) => list.is_ready_to_pop(),
            (Flavor::Zero { .. }, true) => q.is_closed || q.recvq.has(wants_more),
            (Flavor::Zero { .. }, false) => {
                q.is_closed || q.sendq.has(wants_more) || self.has_expired()
            }
            (Flavor::Clock(clock), _) => sys::has_passed(clock.when()),
        }
    }

    /// Completes the send of a select's case. If a drop has refused its promise, the goroutine
    /// still runs in a dropped runtime; it sends like any other.
    pub(super) fn complete_send(
        &self,
        promise: Promise,
        open: Option<Open>,
        msg: T,
    ) -> Result<(), T> {
        let mut wake = WakeList::new();
        match (promise, &self.flavor) {
            (Promise::Closed, _) => return Err(msg),
            (Promise::Room, _) => {
                return self
                    .try_send(msg)
                    .map_err(crate::chan::err::TrySendError::into_inner);
            }
            (Promise::ReservedPlace(place), Flavor::Array(ring)) => {
                let rt = enter();
                if open.as_ref().is_some_and(|open| !open.close()) {
                    drop(rt);
                    return self.send_anew(msg);
                }
                let msg = std::mem::ManuallyDrop::new(msg);
                // SAFETY: D1, the place is this operation's, filled once; the value is forgotten here.
                unsafe { ring.fill(place, &raw const *msg) };
                self.serve_receivers();
                drop(rt);
                self.drain_if_deserted();
            }
            (promise, _) => {
                let rt = enter();
                if open.as_ref().is_some_and(|open| !open.close()) {
                    drop(rt);
                    return self.send_anew(msg);
                }
                let Some((node, claim)) = promise.receiver() else {
                    crate::base::fatal::throw("a select's receiver was claimed by somebody else")
                };
                let msg = std::mem::ManuallyDrop::new(msg);
                // SAFETY: D1, the receiver waits with room for a T at `elem`; the value is forgotten here.
                unsafe {
                    node.elem
                        .get()
                        .cast::<T>()
                        .copy_from_nonoverlapping(&raw const *msg, 1)
                };
                node.word.set(word::MOVED);
                claim.finish(&mut wake);
                wake.wake_in(&rt);
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn send_anew(&self, msg: T) -> Result<(), T> {
        self.send(msg, u64::MAX)
            .map_err(crate::chan::err::SendTimeoutError::into_inner)
    }
}
