//! The end of a channel: it is closed, its handles go, the values left in it are dropped, and its
//! memory is freed.

use std::ptr::{self, NonNull};

use crate::chan::core::{ChanHeader, Channel, word};
use crate::chan::flavor::Flavor;
use crate::sched::park::enter;
use crate::sched::waiting::waitq::WakeList;
use crate::shim::{AcqRel, AtomicUsize, Relaxed, SeqCst};

impl<F: Flavor> Channel<F> {
    /// Ends all sends. False: the channel was closed already, or its flavor cannot be closed.
    pub(super) fn close(&self) -> bool {
        let mut wake = WakeList::new();
        {
            let _rt = enter();
            // A thread that sees a closed buffer may close the channel as well, before this one has
            // the lock. The buffer decides which of them is the first.
            if !self.flavor.close() {
                return false;
            }
            let mut q = self.header.queues.lock();
            if std::mem::replace(&mut q.is_closed, true) {
                return false;
            }
            self.settle(&mut q, &mut wake);
            while let Some(node) = q.sendq.pop() {
                node.word.set(word::CLOSED);
                node.finish(&mut wake);
            }
            // Receivers look again: a select's sender may have a place in the buffer that it has
            // yet to fill.
            self.header.look_again(&mut q, &mut wake);
            drop(q);
            wake.wake();
        }
        self.header.ending.tell();
        true
    }

    /// # Safety
    /// The last sender is gone. Called once, by the thread that dropped it.
    pub(super) unsafe fn last_sender_gone(this: NonNull<Channel<F>>) {
        // SAFETY: the senders' side keeps the channel until it is half gone.
        unsafe { this.as_ref() }.close();
        // SAFETY: no sender is left.
        unsafe { Channel::half_gone(this) };
    }

    /// # Safety
    /// The last receiver is gone. Called once, by the thread that dropped it.
    pub(super) unsafe fn last_receiver_gone(this: NonNull<Channel<F>>) {
        // SAFETY: the receivers' side keeps the channel until it is half gone.
        let chan = unsafe { this.as_ref() };
        chan.close();
        let unwound = Unwound(&chan.header);
        chan.drain();
        std::mem::forget(unwound);
        // SAFETY: no receiver is left.
        unsafe { Channel::half_gone(this) };
    }

    /// Drops the values that are left, because no receiver will take them. The destructors are user
    /// code and may use this channel.
    fn drain(&self) {
        if F::HAS_BUFFER {
            while self.try_recv().is_ok() {}
        }
        self.drop_returned();
    }

    /// Called after a select's place in the buffer was filled or given up. The last receiver may
    /// have gone meanwhile, and the place kept it from draining the buffer.
    pub(super) fn drain_if_deserted(&self) {
        // ORDER: SeqCst; the place was filled before. Meets the count in `Chan::release_receiver`,
        // which comes before its drain.
        if self.header.receivers.load(SeqCst) == 0 {
            self.drain();
        }
    }

    /// # Safety
    /// One side has no handle left and never will. Called once for each side.
    unsafe fn half_gone(this: NonNull<Channel<F>>) {
        // SAFETY: this side keeps the channel until the swap below.
        let chan = unsafe { this.as_ref() };
        let was = chan.header.is_half_gone.swap(true, AcqRel);
        // A place may be promised to an operation that was forgotten: a drop of its runtime will
        // look for it there (`open`). Then the channel stays. If both sides are gone this thread
        // has the only reference (D1).
        if was && !chan.flavor.has_reserved() {
            let at = ptr::with_exposed_provenance_mut::<Channel<F>>(this.as_ptr().addr());
            // SAFETY: `Channel::allocate` made it and exposed the provenance of all of it. `this` is
            // not null. Both sides are gone.
            unsafe { Channel::free(NonNull::new_unchecked(at)) };
        }
    }
}

/// The receivers' side goes while the destructor of a value unwinds. If no other handle is left the
/// channel stays for ever: the destructor of the next value might unwind as well, and that would
/// end the process.
struct Unwound<'a>(&'a ChanHeader);

impl Drop for Unwound<'_> {
    fn drop(&mut self) {
        // ORDER: as in `half_gone`.
        self.0.is_half_gone.swap(true, AcqRel);
    }
}

impl ChanHeader {
    #[inline]
    pub(super) fn retain_sender(&self) {
        retain(&self.senders);
    }

    #[inline]
    pub(super) fn retain_receiver(&self) {
        retain(&self.receivers);
    }
}

fn retain(count: &AtomicUsize) {
    // A program that forgets handles in a loop must not wrap the count.
    if count.fetch_add(1, Relaxed) > isize::MAX as usize {
        std::process::abort();
    }
}
