//! The flavour of `bounded(n)`: a [`Ring`] of `n` slots.

use std::alloc::Layout;

use crate::chan::core::{ChanQueues, Channel, word};
use crate::chan::flavor::{Flavor, FlavorTag};
use crate::chan::ring::{No, ReservedPlace, Ring};
use crate::chan::select_handle::{Polled, Promise};
use crate::chan::serve::settle_receivers;
use crate::sched::park::{Entered, enter};
use crate::sched::waiting::waitq::{WaitNode, WakeList};

impl<T> Flavor for Ring<T> {
    type Value = T;
    const TAG: FlavorTag = FlavorTag::Bounded;
    const HAS_BUFFER: bool = true;

    fn more_memory(&self) -> Layout {
        self.slots_layout()
    }

    #[inline]
    unsafe fn send_at_once(&self, from: *const T) -> bool {
        // SAFETY: `from` is a value that the caller forgets on success, as it promises.
        unsafe { self.push_at_once(from) }
    }

    #[inline]
    unsafe fn recv_at_once(&self, to: *mut T) -> bool {
        // SAFETY: `to` is a place for a value, as the caller promises.
        unsafe { self.pop_at_once(to) }
    }

    #[inline]
    unsafe fn try_send(chan: &Channel<Self>, from: *mut T) -> Result<(), No> {
        let _rt = enter();
        if chan.is_behind_senders() {
            return Err(No::NotNow);
        }
        // SAFETY: `from` is a value that the caller forgets on success, as it promises.
        unsafe { chan.flavor.push(from)? };
        chan.serve_receivers();
        Ok(())
    }

    #[inline]
    unsafe fn try_recv(chan: &Channel<Self>, to: *mut T) -> Result<(), No> {
        let _rt = enter();
        // SAFETY: `to` is a place for a value, as the caller promises.
        if let Some(got) = unsafe { chan.recv_behind(to) } {
            return got;
        }
        // SAFETY: `to` is a place for a value, as the caller promises.
        unsafe { chan.flavor.pop(to)? };
        chan.serve_senders();
        Ok(())
    }

    fn settle(chan: &Channel<Self>, q: &mut ChanQueues, wake: &mut WakeList) {
        let ring = &chan.flavor;
        while settle_receivers(
            q,
            wake,
            || ring.is_ready_to_pop(),
            |to| {
                // SAFETY: a waiting receiver's `elem` is a place for a T.
                unsafe { ring.pop(to) }
            },
        ) | settle_senders(q, wake, ring)
        {}
    }

    fn close(&self) -> bool {
        Ring::close(self)
    }

    fn len(chan: &Channel<Self>) -> usize {
        chan.flavor.len() + chan.header.returned()
    }

    fn is_full(chan: &Channel<Self>) -> bool {
        chan.flavor.len() == chan.flavor.capacity()
    }

    fn capacity(chan: &Channel<Self>) -> Option<usize> {
        Some(chan.flavor.capacity())
    }

    fn version(&self) -> (usize, usize) {
        Ring::version(self)
    }

    fn promise(chan: &Channel<Self>, _rt: &Entered) -> Option<Promise> {
        match chan.is_behind_senders() {
            true => None,
            false => reserve(&chan.flavor),
        }
    }

    fn promise_locked(
        chan: &Channel<Self>,
        q: &mut ChanQueues,
        wake: &mut WakeList,
    ) -> Option<Promise> {
        if !q.sendq.is_empty() {
            chan.settle_queued(q, wake);
            if !q.sendq.is_empty() {
                return None; // they come first
            }
        }
        reserve(&chan.flavor)
    }

    unsafe fn recv_locked(
        chan: &Channel<Self>,
        q: &mut ChanQueues,
        to: *mut T,
        _promised: &WaitNode<'_>,
        wake: &mut WakeList,
    ) -> Result<Polled, No> {
        // SAFETY: `to` is a place for a value, as the caller promises.
        unsafe { chan.flavor.pop(to)? };
        chan.settle_queued(q, wake);
        Ok(Polled::Now(Promise::Value))
    }

    fn is_ready(chan: &Channel<Self>, _q: &ChanQueues, is_send: bool) -> bool {
        match is_send {
            true => chan.flavor.is_ready_to_push(),
            false => chan.flavor.is_ready_to_pop(),
        }
    }

    unsafe fn fill(&self, place: ReservedPlace, from: *const T) {
        // SAFETY: the place is the caller's and `from` a value that it gives away, as it promises.
        unsafe { Ring::fill(self, place, from) };
    }

    fn void(&self, place: ReservedPlace) {
        Ring::void(self, place);
    }

    fn has_reserved(&self) -> bool {
        Ring::has_reserved(self)
    }
}

/// A place in the ring, for a select's send.
fn reserve<T>(ring: &Ring<T>) -> Option<Promise> {
    match ring.reserve() {
        Ok(place) => Some(Promise::Place(place)),
        Err(No::Closed) => Some(Promise::Closed),
        Err(No::NotNow) => None,
    }
}

/// Takes from waiting senders what the ring has room for. Returns whether one of them moved its
/// value.
fn settle_senders<T>(q: &mut ChanQueues, wake: &mut WakeList, ring: &Ring<T>) -> bool {
    let mut any = false;
    while !q.sendq.is_empty() && !ring.is_closed() && ring.is_ready_to_push() {
        let Some(node) = q.sendq.pop() else {
            break;
        };
        let got = match node.word.get() {
            // SAFETY: a waiting sender's `elem` is its value, which it forgets if the word is
            // MOVED.
            word::VALUE => unsafe { ring.push(node.elem.get().cast()) }.map(|()| word::MOVED),
            word::PLACE => ring.reserve().map(|place| word::RESERVED + place.0),
            _ => Ok(word::READY),
        };
        let got = got.unwrap_or_else(|no| match no {
            No::Closed => word::CLOSED,
            No::NotNow => word::AGAIN,
        });
        any |= got == word::MOVED;
        node.word.set(got);
        node.finish(wake);
    }
    any
}
