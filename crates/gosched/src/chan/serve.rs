//! Serving those who wait, in order, as far as the buffer allows (`core` has the protocol).

use crate::chan::core::{Chan, ChanQueues, Flavor, word};
use crate::chan::list::Emptied;
use crate::chan::ring::{No, Ring};
use crate::sched::park::enter;
use crate::sched::waitq::WakeList;
use crate::shim::{Relaxed, SeqCst, fence};

impl<T> Chan<T> {
    /// After a value went into the buffer.
    #[inline]
    pub(super) fn serve_receivers(&self) {
        // ORDER: the buffer's fence (settle/1) comes before; meets the one in `settle_queued`.
        if self.header.recv_waits.load(Relaxed) {
            self.serve();
        }
    }

    /// After a value came out of the buffer.
    #[inline]
    pub(super) fn serve_senders(&self) {
        // ORDER: the buffer's fence (settle/2) comes before; meets the one in `settle_queued`.
        if self.header.send_waits.load(Relaxed) {
            self.serve();
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn serve(&self) {
        let mut emptied = Emptied::new();
        let mut wake = WakeList::new();
        {
            let _rt = enter();
            let mut q = self.header.queues.lock();
            self.settle(&mut q, &mut wake, &mut emptied);
            drop(q);
            wake.wake();
        }
        self.free_later(emptied);
    }

    /// Somebody has just queued itself: what came before its place in the queue was visible is settled now.
    #[inline]
    pub(super) fn settle_queued(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        // Without a buffer there is nothing to settle.
        if !self.is_zero() {
            self.settle_buffer(q, wake);
        }
    }

    #[inline(never)]
    fn settle_buffer(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        self.header.note_queues(q);
        // FENCE: settle/1, settle/2 — the marks before the look at the buffer; meets the one after its move.
        fence(SeqCst);
        let mut emptied = Emptied::new();
        self.settle(q, wake, &mut emptied);
        self.free_later(emptied);
    }

    /// Emptied blocks wait for a call from outside the runtime: freeing is not for the inside (D9).
    pub(super) fn free_later(&self, emptied: Emptied<T>) {
        if let Flavor::List(list) = &self.flavor {
            list.keep(emptied);
        }
    }

    /// Serves whoever waits, as far as the buffer allows.
    pub(super) fn settle(&self, q: &mut ChanQueues, wake: &mut WakeList, emptied: &mut Emptied<T>) {
        if !q.returned.is_empty() {
            self.settle_returned(q, wake);
        }
        match &self.flavor {
            Flavor::Array(ring) => {
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
            Flavor::List(list) => {
                settle_receivers(
                    q,
                    wake,
                    || list.is_ready_to_pop(),
                    |to| {
                        // SAFETY: as above.
                        unsafe { list.pop(to, emptied) }
                    },
                );
            }
            Flavor::Zero { .. } | Flavor::Clock(_) => {}
        }
        self.header.note_queues(q);
    }
}

/// Gives waiting receivers what the buffer has; whether anybody got anything.
fn settle_receivers<T>(
    q: &mut ChanQueues,
    wake: &mut WakeList,
    is_ready: impl Fn() -> bool,
    mut pop: impl FnMut(*mut T) -> Result<(), No>,
) -> bool {
    let mut any = false;
    while !q.recvq.is_empty() && is_ready() {
        let Some((node, claim)) = q.recvq.pop() else {
            break;
        };
        if node.word.get() == word::VALUE {
            // Somebody who did not see the queue may have been faster: then this one looks again, as the first.
            let got = match pop(node.elem.get().cast()) {
                Ok(()) => word::MOVED,
                Err(No::Closed) => word::CLOSED,
                Err(No::NotNow) => word::AGAIN,
            };
            node.word.set(got);
            any |= got == word::MOVED;
        }
        claim.finish(wake);
    }
    any
}

/// Takes from waiting senders what the ring has room for; whether anybody got rid of anything.
fn settle_senders<T>(q: &mut ChanQueues, wake: &mut WakeList, ring: &Ring<T>) -> bool {
    let mut any = false;
    while !q.sendq.is_empty() && !ring.is_closed() && ring.is_ready_to_push() {
        let Some((node, claim)) = q.sendq.pop() else {
            break;
        };
        let got = match node.word.get() {
            // SAFETY: a waiting sender's `elem` is its value, which it forgets when told that it was moved.
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
        claim.finish(wake);
    }
    any
}
