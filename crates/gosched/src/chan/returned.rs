//! Values that come back: a receiver was given one, and its runtime was dropped before it ran again
//! (D2).
//!
//! The value stays where it was put: in the frame of the receiver, which is never freed. The
//! receiver's node goes into the channel's queue `returned`. Receivers take from there before they
//! take from the buffer or from a sender. A select's sender that never runs again gives back what
//! it was promised: its place in the buffer, or the receiver that waits for it.

use std::mem::MaybeUninit;

use super::core::{ChanHeader, ChanQueues, Channel, word};
use super::flavor::Flavor;
use super::ring::{No, ReservedPlace};
use crate::chan::select_case::cases_of;
use crate::chan::select_handle::Promise;
use crate::sched::park::enter;
use crate::sched::waiting::waitq::{QueueEnd, WaitNode, Waiter, WakeList};
use crate::shim::Relaxed;

/// A receiver of one channel never runs again.
///
/// # Safety
/// As for `waitq::PassOn`.
pub(super) unsafe fn pass_on_received(waiter: &Waiter, by: Option<&WaitNode<'_>>) {
    let header = std::ptr::with_exposed_provenance::<ChanHeader>(waiter.on.get().object);
    // Nothing was given on a channel on which nothing ever happens.
    if !header.is_null() {
        // SAFETY: D2, the abandoned receiver holds a handle, so the channel is there. The node was
        // in its queue and lies on the abandoned stack.
        unsafe { ((*header).vtable.take_back)(header, by) };
    }
}

/// A select never runs again.
///
/// # Safety
/// As for `waitq::PassOn`.
pub(super) unsafe fn pass_on_selected(waiter: &Waiter, by: Option<&WaitNode<'_>>) {
    // SAFETY: D2, the waiter is a select's, and its cases lie on the abandoned stack.
    for (at, case) in unsafe { cases_of(waiter) }.iter().enumerate() {
        let by = by.filter(|node| node.case() == at);
        if let Some(chan) = case.chan
            && (by.is_some() || !case.is_send)
        {
            // SAFETY: D2, the node was queued on this case's channel, and lies on the abandoned
            // stack.
            unsafe { chan.take_back(by) };
        }
    }
}

impl ChanHeader {
    /// Drops the values of the clock that were taken back: they are of the past. Returns whether
    /// there was one. Under the lock.
    pub(super) fn forget_returned(&self, q: &mut ChanQueues) -> bool {
        let mut was_there = false;
        while q.returned.take_first().is_some() {
            was_there = true; // nothing to drop: it is an instant
        }
        self.returned.store(0, Relaxed);
        self.note_queues(q);
        was_there
    }
}

impl<F: Flavor> Channel<F> {
    /// Takes back what the owner of the node was given: `SelectHandle::take_back`.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn take_back(&self, node: Option<&WaitNode<'_>>) {
        match node.map(|node| (node, node.word.get())) {
            // A select's sender never gets this word.
            // SAFETY: the node stays, as the caller promises, and was popped to get this word.
            Some((node, word::MOVED)) => unsafe { self.put_back(node) },
            Some((node, word::PEER)) => {
                self.refuse_inside(Promise::Receiver(node.elem.get().cast()));
            }
            Some((_, place)) if place >= word::RESERVED => {
                self.refuse_inside(Promise::Place(ReservedPlace(place - word::RESERVED)));
            }
            _ => self.look_after_leaving(), // it was given nothing but the news
        }
    }

    /// Refuses what was promised to a select's sender. A value that no receiver will take stays in
    /// the buffer: destructors do not run inside the runtime (D9).
    pub(super) fn refuse_inside(&self, promise: Promise) {
        let mut wake = WakeList::new();
        let rt = enter();
        self.refuse_promise(promise, &mut wake);
        wake.wake_in(&rt);
    }

    /// Puts the value at the node's `elem` back into the channel.
    ///
    /// # Safety
    /// The node is in no queue, and stays for ever.
    unsafe fn put_back(&self, node: &WaitNode<'_>) {
        let mut wake = WakeList::new();
        let rt = enter();
        let mut q = self.header.queues.lock();
        // SAFETY: G4, the node is in no queue, and stays for ever (see above).
        unsafe { q.returned.push(node, QueueEnd::Back) };
        self.header.returned.store(q.returned.len() as u32, Relaxed);
        self.settle_returned(&mut q, &mut wake);
        self.header.note_queues(&q);
        drop(q);
        wake.wake_in(&rt);
    }

    /// Gives waiting receivers what was taken back. Under the lock.
    #[cold]
    pub(super) fn settle_returned(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        while !q.returned.is_empty()
            && let Some(node) = q.recvq.pop()
        {
            if node.word.get() == word::VALUE {
                // SAFETY: a waiting receiver's `elem` is a place for a value.
                unsafe { self.take_returned(q, node.elem.get().cast()) };
                node.word.set(word::MOVED);
            }
            node.finish(wake);
        }
        F::look_after(self, q, wake);
    }

    /// Takes a value that was taken back. False: there is none. Under the lock.
    ///
    /// # Safety
    /// `to` is a place for a value; it is initialised if true is returned.
    #[inline]
    pub(super) unsafe fn take_returned(&self, q: &mut ChanQueues, to: *mut F::Value) -> bool {
        // SAFETY: `to` is a place for a value, as the caller promises.
        !q.returned.is_empty() && unsafe { self.take_returned_slow(q, to) }
    }

    #[cold]
    #[inline(never)]
    unsafe fn take_returned_slow(&self, q: &mut ChanQueues, to: *mut F::Value) -> bool {
        let Some(value) = q.returned.take_first() else {
            return false;
        };
        // SAFETY: D1, the value was moved to `elem` for a receiver that never sees it. The node
        // leaves the queue with it.
        unsafe { to.copy_from_nonoverlapping(value.cast(), 1) };
        self.header.returned.store(q.returned.len() as u32, Relaxed);
        self.header.note_queues(q);
        true
    }

    /// As [`Channel::recv_behind`], if a receiver waits or a value was taken back.
    ///
    /// # Safety
    /// `to` is a place for a value; it is initialised if `Some(Ok)` is returned.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn recv_behind_slow(&self, to: *mut F::Value) -> Option<Result<(), No>> {
        self.serve();
        let mut q = self.header.queues.lock();
        // SAFETY: `to` is a place for a value, as the caller promises.
        if unsafe { self.take_returned(&mut q, to) } {
            return Some(Ok(()));
        }
        let is_behind = !q.recvq.is_empty();
        is_behind.then_some(Err(No::NotNow))
    }

    /// Drops the values that no receiver will take. In user context: their destructors run.
    pub(super) fn drop_returned(&self) {
        let mut to = MaybeUninit::<F::Value>::uninit();
        loop {
            let got = {
                let _rt = enter();
                let mut q = self.header.queues.lock();
                // SAFETY: `to` is a place for a value.
                unsafe { self.take_returned(&mut q, to.as_mut_ptr()) }
            };
            match got {
                // SAFETY: a value was just moved there.
                true => unsafe { to.assume_init_drop() },
                false => return,
            }
        }
    }
}
