//! The flavour of `bounded(0)`: a value goes from the sender's stack to the receiver's, under the
//! lock.
//!
//! A select's sender has no value yet when its case is chosen: user code evaluates the message
//! after that. So the two shake hands. The one of them that waits is claimed. Then the receiver
//! waits until the select's operation is completed or given up. No timeout and no shutdown ends
//! that wait, for the sender has the place that the value goes to.

use std::marker::PhantomData;
use std::ops::DerefMut;
use std::ptr;

use crate::chan::Receiver;
use crate::chan::any::Chan;
use crate::chan::blocking::Slow;
use crate::chan::core::{ChanHeader, ChanQueues, Channel, HANDSHAKE, word};
use crate::chan::flavor::{BeforeWait, Flavor, FlavorTag};
use crate::chan::ring::No;
use crate::chan::select_handle::{Polled, Promise, SelectHandle};
use crate::sched::park::{Entered, enter};
use crate::sched::waiting::waitq::{ClaimedWaiter, Outcome, QueueEnd, WaitNode, Waiter, WakeList};
use crate::sys;

/// No buffer.
pub(super) struct Zero<T> {
    /// The channel is closed by itself at this moment (monotonic ns; `u64::MAX`: never).
    closes_at: u64,
    values: PhantomData<fn(T) -> T>,
}

impl<T> Zero<T> {
    pub(super) fn new(closes_at: u64) -> Zero<T> {
        Zero {
            closes_at,
            values: PhantomData,
        }
    }

    fn has_expired(&self) -> bool {
        sys::has_passed(self.closes_at)
    }
}

/// Both sides of a channel without messages: the end of a context. The channel is closed by itself
/// at some moment, if it is not closed earlier. One word, where a pair of handles takes two.
pub(crate) struct Closing {
    /// A reference of the senders' side belongs to it.
    receiver: Receiver<()>,
}

impl Closing {
    /// `closes_at`: monotonic ns; `u64::MAX`: never.
    pub(crate) fn new(closes_at: u64) -> Closing {
        // SAFETY: D1, a new channel has one reference for each side. `drop` gives back the one of
        // the senders.
        let receiver = unsafe { Receiver::new(Chan::closing_at(closes_at)) };
        Closing { receiver }
    }

    pub(crate) fn receiver(&self) -> &Receiver<()> {
        &self.receiver
    }

    /// When the channel is closed by itself (monotonic ns; `u64::MAX`: never).
    pub(crate) fn closes_at(&self) -> u64 {
        self.receiver
            .chan()
            .map_or(u64::MAX, SelectHandle::next_due)
    }

    pub(crate) fn close(&self) {
        self.receiver.chan().map(Chan::close);
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(chan) = self.receiver.chan {
            // SAFETY: `new` kept a sender's reference, which nothing uses after this.
            unsafe { Chan::release_sender(chan) };
        }
    }
}

/// What a receiver found in the queue of senders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Took {
    /// A value, now its own.
    Value,
    /// A select's sender, which will write to the receiver's node.
    Promise,
}

impl Took {
    /// Waits for the value if it was a promise. Without locks. The receiver has been inside the
    /// runtime since it took.
    #[inline]
    pub(super) fn after_handshake(
        self,
        rt: Entered,
        header: &ChanHeader,
        waiter: &Waiter,
        node: &WaitNode<'_>,
    ) -> Slow {
        if self == Took::Value {
            return Slow::Moved;
        }
        waiter.on.set(header.on());
        let outcome = waiter.wait_in(rt, &HANDSHAKE, u64::MAX);
        debug_assert_eq!(outcome, Outcome::Case(0));
        match node.word.get() {
            word::MOVED => Slow::Moved,
            _ => Slow::Again,
        }
    }
}

impl<T> Channel<Zero<T>> {
    /// Gives the value to the first waiting receiver. False: there is none. Under the lock.
    ///
    /// # Safety
    /// `from` is a value that the caller forgets if it was given.
    #[inline]
    unsafe fn give(&self, q: &mut ChanQueues, from: *const T, wake: &mut WakeList) -> bool {
        let Some(node) = next_receiver(q, wake) else {
            return false;
        };
        // SAFETY: a waiting receiver's `elem` is a place for a T; it is claimed, so it waits.
        unsafe {
            node.elem
                .get()
                .cast::<T>()
                .copy_from_nonoverlapping(from, 1)
        };
        node.word.set(word::MOVED);
        node.finish(wake);
        true
    }

    /// Takes from the first waiting sender. After a promise the caller drops the lock and calls
    /// [`Took::after_handshake`]. Under the lock.
    ///
    /// # Safety
    /// `to` is a place for a `T` and the `elem` of `node`, which is in no queue.
    #[inline]
    unsafe fn take(
        &self,
        q: &mut ChanQueues,
        to: *mut T,
        node: &WaitNode<'_>,
        wake: &mut WakeList,
    ) -> Option<Took> {
        // SAFETY: `to` is a place for a value, as the caller promises.
        if unsafe { self.take_returned(q, to) } {
            return Some(Took::Value);
        }
        loop {
            let sender = q.sendq.pop()?;
            let took = match sender.word.get() {
                word::VALUE => {
                    // SAFETY: a waiting sender's `elem` is its value, which it forgets if the word
                    // is MOVED.
                    unsafe { to.copy_from_nonoverlapping(sender.elem.get().cast(), 1) };
                    sender.word.set(word::MOVED);
                    Some(Took::Value)
                }
                word::PLACE => {
                    sender.word.set(word::PEER);
                    sender.elem.set(ptr::from_ref(node).cast_mut().cast());
                    Some(Took::Promise)
                }
                _ => None,
            };
            sender.finish(wake);
            if took.is_some() {
                return took;
            }
        }
    }
}

/// Claims the first receiver that takes a value. Receivers before it that only wait for the channel
/// to be ready are woken. Under the lock.
#[inline(always)]
fn next_receiver(q: &mut ChanQueues, wake: &mut WakeList) -> Option<ClaimedWaiter> {
    loop {
        let node = q.recvq.pop()?;
        if node.word.get() == word::VALUE {
            return Some(node);
        }
        node.finish(wake);
    }
}

/// The promise of a select's send: a receiver that waits. Under the lock, which is dropped.
fn claim_receiver(
    mut q: impl DerefMut<Target = ChanQueues>,
    wake: &mut WakeList,
) -> Option<Promise> {
    if q.is_closed {
        return Some(Promise::Closed);
    }
    next_receiver(&mut q, wake).map(Promise::Claimed)
}

impl<T> Flavor for Zero<T> {
    type Value = T;
    const TAG: FlavorTag = FlavorTag::Zero;
    const HAS_BUFFER: bool = false;
    const SETTLES: bool = false;

    unsafe fn try_send(chan: &Channel<Self>, from: *mut T) -> Result<(), No> {
        let mut wake = WakeList::new();
        let rt = enter();
        let mut q = chan.header.queues.lock();
        if q.is_closed {
            return Err(No::Closed);
        }
        // SAFETY: `from` is a value that the caller forgets on success, as it promises.
        let given = unsafe { chan.give(&mut q, from, &mut wake) };
        drop(q);
        wake.wake_in(&rt);
        if given { Ok(()) } else { Err(No::NotNow) }
    }

    unsafe fn try_recv(chan: &Channel<Self>, to: *mut T) -> Result<(), No> {
        let waiter = Waiter::new();
        let node = WaitNode::new(&waiter, 0);
        node.elem.set(to.cast());
        let mut wake = WakeList::new();
        let rt = enter();
        let mut q = chan.header.queues.lock();
        // SAFETY: `to` is a place for a value, as the caller promises, and the new node's `elem`.
        let took = unsafe { chan.take(&mut q, to, &node, &mut wake) };
        let is_closed = q.is_closed;
        drop(q);
        wake.wake_in(&rt);
        let took = match took {
            Some(took) => took,
            None if is_closed || chan.flavor.has_expired() => return Err(No::Closed),
            None => return Err(No::NotNow),
        };
        match took.after_handshake(rt, &chan.header, &waiter, &node) {
            Slow::Moved => Ok(()),
            _ => Err(No::NotNow),
        }
    }

    #[inline]
    unsafe fn send_locked(
        chan: &Channel<Self>,
        q: &mut ChanQueues,
        from: *mut T,
        wake: &mut WakeList,
    ) -> bool {
        // SAFETY: `from` is a value that the caller forgets on success, as it promises.
        unsafe { chan.give(q, from, wake) }
    }

    #[inline]
    unsafe fn before_wait(
        chan: &Channel<Self>,
        q: &mut ChanQueues,
        to: *mut T,
        node: &WaitNode<'_>,
        at: QueueEnd,
        wake: &mut WakeList,
    ) -> BeforeWait {
        if !(q.sendq.is_empty() && q.returned.is_empty())
            // SAFETY: `to` is a place for a value and the `elem` of the node, as the caller
            // promises.
            && let Some(took) = unsafe { chan.take(q, to, node, wake) }
        {
            return BeforeWait::Took(took);
        }
        let closes_at = chan.flavor.closes_at;
        match q.is_closed || sys::has_passed(closes_at) {
            true => BeforeWait::Leave(Slow::Closed),
            false => BeforeWait::Queue(at, closes_at),
        }
    }

    fn close(&self) -> bool {
        true
    }

    fn len(_chan: &Channel<Self>) -> usize {
        0
    }

    fn capacity(_chan: &Channel<Self>) -> Option<usize> {
        Some(0)
    }

    #[inline]
    fn next_due(&self) -> u64 {
        self.closes_at
    }

    fn promise(chan: &Channel<Self>, rt: &Entered) -> Option<Promise> {
        let mut wake = WakeList::new();
        let promise = claim_receiver(chan.header.queues.lock(), &mut wake);
        wake.wake_in(rt);
        promise
    }

    fn promise_locked(
        _chan: &Channel<Self>,
        q: &mut ChanQueues,
        wake: &mut WakeList,
    ) -> Option<Promise> {
        claim_receiver(q, wake)
    }

    unsafe fn recv_locked(
        chan: &Channel<Self>,
        q: &mut ChanQueues,
        to: *mut T,
        promised: &WaitNode<'_>,
        wake: &mut WakeList,
    ) -> Result<Polled, No> {
        // SAFETY: `to` is a place for a value and the `elem` of `promised`, as the caller promises.
        // The select's own nodes are in no queue yet, so it does not meet itself.
        match unsafe { chan.take(q, to, promised, wake) } {
            Some(Took::Value) => Ok(Polled::Now(Promise::Value)),
            Some(Took::Promise) => Ok(Polled::Promised),
            None if q.is_closed || chan.flavor.has_expired() => Err(No::Closed),
            None => Err(No::NotNow),
        }
    }

    fn is_ready(chan: &Channel<Self>, q: &ChanQueues, is_send: bool) -> bool {
        let wants_more = |node: &WaitNode<'_>| node.word.get() != word::READY;
        match is_send {
            true => q.is_closed || q.recvq.has(wants_more),
            false => q.is_closed || q.sendq.has(wants_more) || chan.flavor.has_expired(),
        }
    }
}
