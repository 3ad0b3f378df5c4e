//! Serving the waiters of a channel in order, as far as its buffer allows (`core` has the
//! protocol).

use crate::chan::core::{ChanQueues, Channel, word};
use crate::chan::flavor::Flavor;
use crate::chan::ring::No;
use crate::sched::park::enter;
use crate::sched::waiting::waitq::WakeList;
use crate::shim::{Relaxed, SeqCst, fence};

impl<F: Flavor> Channel<F> {
    /// After a value went into the buffer.
    #[inline]
    pub(super) fn serve_receivers(&self) {
        // ORDER: the buffer's fence (settle/1) comes before; meets the one in `settle_buffer`.
        if self.header.recv_waits.load(Relaxed) {
            self.serve();
        }
    }

    /// After a value came out of the buffer.
    #[inline]
    pub(super) fn serve_senders(&self) {
        // ORDER: the buffer's fence (settle/2) comes before; meets the one in `settle_buffer`.
        if self.header.send_waits.load(Relaxed) {
            self.serve();
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn serve(&self) {
        let mut wake = WakeList::new();
        let _rt = enter();
        let mut q = self.header.queues.lock();
        self.settle(&mut q, &mut wake);
        drop(q);
        wake.wake();
    }

    /// A waiter has just queued itself. What went past the buffer before its place in the queue was
    /// visible is settled now. Under the lock.
    #[inline]
    pub(super) fn settle_queued(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        if F::SETTLES {
            self.settle_buffer(q, wake);
        }
    }

    #[inline(never)]
    fn settle_buffer(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        self.header.note_queues(q);
        // FENCE: settle/1, settle/2 — the marks before the look at the buffer; meets the one after
        // its move.
        fence(SeqCst);
        self.settle(q, wake);
    }

    /// Serves waiters, as far as the buffer allows. Under the lock.
    pub(super) fn settle(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        if !q.returned.is_empty() {
            self.settle_returned(q, wake);
        }
        F::settle(self, q, wake);
        self.header.note_queues(q);
    }
}

/// Gives waiting receivers what the buffer has. Returns whether one of them got a value.
pub(super) fn settle_receivers<T>(
    q: &mut ChanQueues,
    wake: &mut WakeList,
    is_ready: impl Fn() -> bool,
    mut pop: impl FnMut(*mut T) -> Result<(), No>,
) -> bool {
    let mut any = false;
    while !q.recvq.is_empty() && is_ready() {
        let Some(node) = q.recvq.pop() else {
            break;
        };
        if node.word.get() == word::VALUE {
            // A receiver that did not see the queue may have been faster. Then this one looks
            // again, as the first in the queue.
            let got = match pop(node.elem.get().cast()) {
                Ok(()) => word::MOVED,
                Err(No::Closed) => word::CLOSED,
                Err(No::NotNow) => word::AGAIN,
            };
            node.word.set(got);
            any |= got == word::MOVED;
        }
        node.finish(wake);
    }
    any
}
