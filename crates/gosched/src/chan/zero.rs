//! Channels without capacity: a value goes from the sender's stack to the receiver's, under the lock.
//!
//! A select's sender has no value yet when its case is chosen: the message is evaluated after that, by user code. So the two
//! shake hands: whoever of the two waits is claimed, and the receiver then waits (through everything: somebody knows where its
//! value goes) until the select's operation is completed or given up.

use std::ptr;

use super::core::{Chan, ChanHeader, ChanQueues, Flavor, HANDSHAKE, Slow, word};
use super::ring::No;
use crate::sched::park::{Entered, enter};
use crate::sched::waitq::{ClaimedWaiter, Outcome, WaitNode, Waiter, WakeList};
use crate::sys;

/// What a receiver found in the queue of senders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Took {
    /// A value, now its own.
    Value,
    /// A select's sender, which will write to the receiver's node.
    Promise,
}

impl Took {
    /// The receiver has what it took, after waiting for it if it was a promise. Without locks. It has been inside the runtime
    /// since it took.
    #[inline]
    pub(super) fn after_handshake(
        self,
        rt: Entered,
        header: &ChanHeader,
        waiter: &Waiter,
        node: &WaitNode,
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

impl<T> Chan<T> {
    /// Gives the value to the first waiting receiver; false: there is none. Under the lock.
    ///
    /// # Safety
    /// `from` is a value that the caller forgets if it was given.
    #[inline]
    pub(super) unsafe fn give(
        &self,
        q: &mut ChanQueues,
        from: *const T,
        wake: &mut WakeList,
    ) -> bool {
        let Some((node, claim)) = self.next_receiver(q, wake) else {
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
        claim.finish(wake);
        true
    }

    /// Claims the first receiver that wants a value. Those who want to know only are told. Under the lock.
    #[inline]
    pub(super) fn next_receiver<'a>(
        &self,
        q: &mut ChanQueues,
        wake: &mut WakeList,
    ) -> Option<(&'a WaitNode, ClaimedWaiter)> {
        loop {
            let (node, claim) = q.recvq.pop()?;
            if node.word.get() == word::VALUE {
                return Some((node, claim));
            }
            claim.finish(wake);
        }
    }

    /// Takes from the first waiting sender. After a promise the lock is dropped and [`Took::after_handshake`] waits.
    /// Under the lock.
    ///
    /// # Safety
    /// `to` is a place for a `T` and the `elem` of `node`, which waits on `waiter` and is in no queue.
    #[inline]
    pub(super) unsafe fn take(
        &self,
        q: &mut ChanQueues,
        to: *mut T,
        node: &WaitNode,
        wake: &mut WakeList,
    ) -> Option<Took> {
        // SAFETY: by the caller's promise.
        if unsafe { self.take_returned(q, to) } {
            return Some(Took::Value);
        }
        loop {
            let (sender, claim) = q.sendq.pop()?;
            let took = match sender.word.get() {
                word::VALUE => {
                    // SAFETY: a waiting sender's `elem` is its value, which it forgets when told that it was moved.
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
            claim.finish(wake);
            if took.is_some() {
                return took;
            }
        }
    }

    /// # Safety
    /// `from` is a value that the caller forgets if it was moved.
    pub(super) unsafe fn try_give(&self, from: *const T) -> Result<(), No> {
        let mut wake = WakeList::new();
        let rt = enter();
        let mut q = self.header.queues.lock();
        if q.is_closed {
            return Err(No::Closed);
        }
        // SAFETY: by the caller's promise.
        let given = unsafe { self.give(&mut q, from, &mut wake) };
        drop(q);
        wake.wake_in(&rt);
        if given { Ok(()) } else { Err(No::NotNow) }
    }

    /// # Safety
    /// `to` is a place for a `T`; initialised on success.
    pub(super) unsafe fn try_take(&self, to: *mut T) -> Result<(), No> {
        let waiter = Waiter::new();
        let node = WaitNode::new(&waiter, 0);
        node.elem.set(to.cast());
        let mut wake = WakeList::new();
        let rt = enter();
        let mut q = self.header.queues.lock();
        // SAFETY: by the caller's promise.
        let took = unsafe { self.take(&mut q, to, &node, &mut wake) };
        let is_closed = q.is_closed;
        drop(q);
        wake.wake_in(&rt);
        let took = match took {
            Some(took) => took,
            None if is_closed || self.has_expired() => return Err(No::Closed),
            None => return Err(No::NotNow),
        };
        match took.after_handshake(rt, &self.header, &waiter, &node) {
            Slow::Moved => Ok(()),
            _ => Err(No::NotNow),
        }
    }

    pub(super) fn has_expired(&self) -> bool {
        matches!(&self.flavor, Flavor::Zero { closes_at } if sys::has_passed(*closes_at))
    }
}
