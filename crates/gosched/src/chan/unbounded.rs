//! The flavour of `unbounded()`: a [`List`] of blocks.
//!
//! Blocks are allocated and freed outside the runtime (D9). A block that is emptied inside it is
//! kept in the list for a later call from outside.

use crate::chan::core::{ChanQueues, Channel};
use crate::chan::flavor::{Flavor, FlavorTag};
use crate::chan::list::{Emptied, List, NoPush};
use crate::chan::ring::No;
use crate::chan::select_handle::{Polled, Promise};
use crate::chan::serve::settle_receivers;
use crate::sched::park::{Entered, enter};
use crate::sched::waiting::waitq::{WaitNode, WakeList};

impl<T> Flavor for List<T> {
    type Value = T;
    const TAG: FlavorTag = FlavorTag::Unbounded;
    const HAS_BUFFER: bool = true;

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

    unsafe fn try_send(chan: &Channel<Self>, from: *mut T) -> Result<(), No> {
        let list = &chan.flavor;
        let mut spare = list.spare();
        loop {
            let pushed = {
                let _rt = enter();
                // SAFETY: `from` is a value that the caller forgets on success, as it promises.
                let pushed = unsafe { list.push(from, &mut spare) };
                if pushed.is_ok() {
                    chan.serve_receivers();
                }
                pushed
            };
            match pushed {
                Ok(()) => return Ok(()),
                Err(NoPush::Closed) => return Err(No::Closed),
                Err(NoPush::NeedsBlock) => spare = Some(list.fetch_spare()),
            }
        }
    }

    #[inline]
    unsafe fn try_recv(chan: &Channel<Self>, to: *mut T) -> Result<(), No> {
        let mut emptied = Emptied::new();
        let popped = {
            let _rt = enter();
            // SAFETY: `to` is a place for a value, as the caller promises.
            if let Some(got) = unsafe { chan.recv_behind(to) } {
                return got;
            }
            // SAFETY: `to` is a place for a value, as the caller promises.
            unsafe { chan.flavor.pop(to, &mut emptied) }
        };
        chan.flavor.recycle(emptied);
        popped
    }

    fn settle(chan: &Channel<Self>, q: &mut ChanQueues, wake: &mut WakeList) {
        let list = &chan.flavor;
        let mut emptied = Emptied::new();
        settle_receivers(
            q,
            wake,
            || list.is_ready_to_pop(),
            |to| {
                // SAFETY: a waiting receiver's `elem` is a place for a T.
                unsafe { list.pop(to, &mut emptied) }
            },
        );
        list.keep(emptied);
    }

    fn close(&self) -> bool {
        List::close(self)
    }

    fn len(chan: &Channel<Self>) -> usize {
        chan.flavor.len() + chan.header.returned()
    }

    fn capacity(_chan: &Channel<Self>) -> Option<usize> {
        None
    }

    fn version(&self) -> (usize, usize) {
        List::version(self)
    }

    fn promise(chan: &Channel<Self>, _rt: &Entered) -> Option<Promise> {
        match chan.is_behind_senders() {
            true => None,
            false => Some(room(&chan.flavor)),
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
        Some(room(&chan.flavor))
    }

    unsafe fn recv_locked(
        chan: &Channel<Self>,
        _q: &mut ChanQueues,
        to: *mut T,
        _promised: &WaitNode<'_>,
        _wake: &mut WakeList,
    ) -> Result<Polled, No> {
        let mut emptied = Emptied::new();
        // SAFETY: `to` is a place for a value, as the caller promises.
        let popped = unsafe { chan.flavor.pop(to, &mut emptied) };
        chan.flavor.keep(emptied);
        popped.map(|()| Polled::Now(Promise::Value))
    }

    fn is_ready(chan: &Channel<Self>, _q: &ChanQueues, is_send: bool) -> bool {
        is_send || chan.flavor.is_ready_to_pop()
    }
}

/// The promise of a select's send: there is always room.
fn room<T>(list: &List<T>) -> Promise {
    match list.is_closed() {
        true => Promise::Closed,
        false => Promise::Room,
    }
}
