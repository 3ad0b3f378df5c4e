//! The end of a channel: it is closed, its handles go, what nobody will take is dropped, and its memory is freed.

use std::ptr::NonNull;

use crate::chan::core::{Chan, Ending, Flavor, word};
use crate::chan::list::Emptied;
use crate::sched::park::enter;
use crate::sched::waitq::WakeList;
use crate::shim::{AcqRel, AtomicUsize, Relaxed, SeqCst};

impl<T> Chan<T> {
    /// No more sends; false: it was closed already, or is one that cannot be closed.
    pub(super) fn close(&self) -> bool {
        let mut wake = WakeList::new();
        let mut emptied = Emptied::new();
        {
            let _rt = enter();
            // Who sees a closed buffer may close the channel as well, before this one has the lock: the buffer says who was first.
            let is_first = match &self.flavor {
                Flavor::Array(ring) => ring.close(),
                Flavor::List(list) => list.close(),
                Flavor::Zero { .. } => true,
                Flavor::Clock(_) => false,
            };
            if !is_first {
                return false;
            }
            let mut q = self.header.queues.lock();
            if std::mem::replace(&mut q.is_closed, true) {
                return false;
            }
            self.settle(&mut q, &mut wake, &mut emptied);
            while let Some((node, claim)) = q.sendq.pop() {
                node.word.set(word::CLOSED);
                claim.finish(&mut wake);
            }
            // Receivers look again: a select's sender may have a place in the buffer that it has yet to fill.
            self.header.look_again(&mut q, &mut wake);
            drop(q);
            wake.wake();
        }
        self.free_later(emptied);
        if let Ending::Told(tell, whom) = self.header.ending {
            tell(whom);
        }
        true
    }

    /// As [`Chan::close`], for a receiver.
    pub(super) fn close_by_receiver(&self) -> bool {
        !matches!(self.header.ending, Ending::SendersOnly) && self.close()
    }

    #[inline]
    pub(super) fn retain_sender(&self) {
        retain(&self.header.senders);
    }

    #[inline]
    pub(super) fn retain_receiver(&self) {
        retain(&self.header.receivers);
    }

    /// # Safety
    /// The caller owned a sender's reference and uses it no more.
    pub(super) unsafe fn release_sender(this: NonNull<Chan<T>>) {
        // SAFETY: by the caller's reference.
        let chan = unsafe { this.as_ref() };
        // ORDER: AcqRel; what the others did with their handles comes before the end.
        if chan.header.senders.fetch_sub(1, AcqRel) == 1 {
            chan.close();
            // SAFETY: no sender is left.
            unsafe { Chan::half_gone(this) };
        }
    }

    /// # Safety
    /// The caller owned a receiver's reference and uses it no more.
    pub(super) unsafe fn release_receiver(this: NonNull<Chan<T>>) {
        // SAFETY: by the caller's reference.
        let chan = unsafe { this.as_ref() };
        // ORDER: as above, and SeqCst for `drain_if_deserted`.
        if chan.header.receivers.fetch_sub(1, SeqCst) == 1 {
            chan.close();
            let unwound = Unwound(this);
            chan.drain();
            std::mem::forget(unwound);
            // SAFETY: no receiver is left.
            unsafe { Chan::half_gone(this) };
        }
    }

    /// Nobody will take what is left. Its destructors are user code, and may use this very channel.
    fn drain(&self) {
        if self.has_buffer() {
            while self.try_recv().is_ok() {}
        }
        self.drop_returned();
    }

    /// After a select's place in the buffer was filled or given up: the last receiver went while it was in the way.
    pub(super) fn drain_if_deserted(&self) {
        // ORDER: SeqCst; the place was filled before; meets the count in `release_receiver`, which comes before its look.
        if self.header.receivers.load(SeqCst) == 0 {
            self.drain();
        }
    }

    fn has_promised_place(&self) -> bool {
        matches!(&self.flavor, Flavor::Array(ring) if ring.has_reserved())
    }

    /// # Safety
    /// One side has no handle left and never will; called once for each side.
    unsafe fn half_gone(this: NonNull<Chan<T>>) {
        // SAFETY: the other side may still use it, nobody frees it before the swap.
        let was = unsafe { this.as_ref() }
            .header
            .is_half_gone
            .swap(true, AcqRel);
        // A place may be promised to an operation that was forgotten: a drop of its runtime will
        // look for it there (`open`). The channel stays.
        // SAFETY: D1, both sides are gone, so this thread has the only reference.
        if was && !unsafe { this.as_ref() }.has_promised_place() {
            // SAFETY: made from a box; both sides are gone.
            drop(unsafe { Box::from_raw(this.as_ptr()) });
        }
    }
}

/// The receivers' side goes while the destructor of a value unwinds. If nobody else is left the channel stays for ever: the
/// destructor of the next value might unwind, too, and that would end the process.
struct Unwound<T>(NonNull<Chan<T>>);

impl<T> Drop for Unwound<T> {
    fn drop(&mut self) {
        // SAFETY: D1, made by the last receiver; nobody frees the channel before the swap.
        let chan = unsafe { self.0.as_ref() };
        // ORDER: as in `half_gone`.
        chan.header.is_half_gone.swap(true, AcqRel);
    }
}

fn retain(count: &AtomicUsize) {
    // A program that forgets handles in a loop must not wrap the count.
    if count.fetch_add(1, Relaxed) > isize::MAX as usize {
        std::process::abort();
    }
}
