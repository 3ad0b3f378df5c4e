//! The record of a select's open send: by it a drop of the runtime finds what the send was
//! promised, and refuses it (D2; the protocol is in `sched/model/opens.rs`).
//!
//! The first record of a goroutine lies in its G, further ones lie on the heap. A record stays in
//! its place for as long as its operation lasts. A plain thread needs no record: it is never
//! abandoned.
//!
//! Why the channel is alive when a drop refuses a promise:
//! - An operation borrows its channel. An abandoned goroutine keeps its handle. A goroutine that
//!   still runs waits until the drop has finished with the list.
//! - A forgotten operation (`mem::forget`) borrows nothing. A claimed receiver waits until the
//!   promise is kept or refused, and has a handle of its own. A channel with a reserved place is
//!   not freed (`Channel::half_gone`). The drop takes a sender's reference, if one is left, before
//!   it gives the place up.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use super::core::{ChanHeader, Channel, word};
use super::flavor::Flavor;
use super::ring::ReservedPlace;
use crate::chan::select_handle::Promise;
use crate::sched::model::current::current_g;
use crate::sched::model::opens::OpenSend;
use crate::sched::model::ptr::Gp;
use crate::sched::park::{Entered, enter};
use crate::sched::waiting::waitq::{ClaimedWaiter, NodePtr, WakeList};
use crate::shim::{AcqRel, Relaxed};

/// Room for the record of a send that may be chosen. It is made before that, for the runtime does
/// not allocate.
pub(super) struct SpareRecord(Option<Box<MaybeUninit<OpenSend>>>);

impl SpareRecord {
    /// In user context. The room in the G is for the only open send of a goroutine. On a dead
    /// runtime every record is boxed: a refused record in the G and a new one would have the same
    /// address.
    #[inline]
    pub(super) fn new() -> SpareRecord {
        match current_g() {
            Some(g) if !g.opens().is_empty() || g.sched().is_dead() => {
                SpareRecord(Some(Box::new_uninit()))
            }
            _ => SpareRecord(None),
        }
    }

    /// The send has been promised something: from now on a drop of the runtime refuses that. Called
    /// without locks, before the goroutine leaves the runtime in which it got the promise.
    #[inline]
    pub(super) fn open(
        &mut self,
        rt: &Entered,
        header: &ChanHeader,
        promise: &Promise,
    ) -> Option<Open> {
        let record = match promise {
            Promise::Place(place) => {
                OpenSend::new(refuse_place, ptr::from_ref(header).cast(), place.0)
            }
            Promise::Claimed(claim) => {
                OpenSend::new(refuse_claimed, claim.node_at().cast(), claim.asleep())
            }
            Promise::Receiver(node) => OpenSend::new(refuse_receiver, node.cast(), 0),
            _ => return None,
        };
        let g = rt.g()?;
        let (at, is_boxed) = match self.0.take() {
            Some(at) => (NonNull::from(Box::leak(at)).cast(), true),
            None => (g.open_slot(), false),
        };
        debug_assert!(is_boxed || g.opens().is_empty(), "two records in one place");
        // SAFETY: the room is this record's alone: the list is empty, or the room was just made.
        // The room stays until the record is closed, or for ever.
        unsafe {
            at.write(record);
            g.opens().add(at.as_ref());
        }
        Some(Open { g, at, is_boxed })
    }
}

/// The record of an open send.
pub(super) struct Open {
    g: Gp,
    at: NonNull<OpenSend>,
    is_boxed: bool,
}

impl Open {
    /// The owner is about to keep or refuse the promise. False: a drop has refused it. Called once,
    /// without locks, before the owner leaves the runtime in which it keeps the promise.
    #[inline]
    #[must_use = "what was refused must not be kept"]
    pub(super) fn close(&self) -> bool {
        // SAFETY: `SpareRecord::open` added the record, and it is closed once. The goroutine runs,
        // so its G is its own.
        unsafe { self.g.opens().remove(self.at.as_ref()) }
    }
}

impl Drop for Open {
    /// In user context, after [`Open::close`].
    #[inline]
    fn drop(&mut self) {
        if self.is_boxed {
            // SAFETY: `SpareRecord::new` boxed the room. The record is out of the list, so this is
            // the only reference.
            drop(unsafe { Box::from_raw(self.at.as_ptr()) });
        }
    }
}

unsafe fn refuse_place(record: &OpenSend) {
    let header = record.object.cast::<ChanHeader>();
    // SAFETY: D2, the place is promised still, so the channel is there (see the module's text).
    unsafe { ((*header).vtable.refuse_place)(header, ReservedPlace(record.number)) };
}

unsafe fn refuse_claimed(record: &OpenSend) {
    // SAFETY: G4, the receiver waits until its claim is finished, which only this does.
    let Some(node) = (unsafe { NodePtr::from_raw(record.object.cast_mut().cast()) }) else {
        return;
    };
    // SAFETY: the claim was the goroutine's, which will not finish it: the drop has taken its
    // record.
    look_again(unsafe { ClaimedWaiter::again(node, record.number) });
}

unsafe fn refuse_receiver(record: &OpenSend) {
    let promise = Promise::Receiver(record.object.cast_mut().cast());
    if let Some(node) = promise.receiver() {
        look_again(node);
    }
}

fn look_again(node: ClaimedWaiter) {
    let mut wake = WakeList::new();
    let rt = enter();
    node.word.set(word::AGAIN);
    node.finish(&mut wake);
    wake.wake_in(&rt);
}

impl<F: Flavor> Channel<F> {
    /// Gives up the place of an open send that is never completed: its runtime is dropped. Inside
    /// the runtime, without locks.
    pub(super) fn refuse_open_place(&self, place: ReservedPlace) {
        if !self.retain_living_sender() {
            return; // the operation was forgotten and every sender is gone: the channel stays
        }
        self.refuse_inside(Promise::Place(place));
        // ORDER: as in `Chan::release_sender`.
        if self.header.senders.fetch_sub(1, AcqRel) == 1 {
            // The handles were forgotten as well. The channel is not freed: values are not dropped
            // here (D9).
            self.close();
        }
    }

    /// Adds a sender's reference if there is one. The reference keeps the channel alive.
    fn retain_living_sender(&self) -> bool {
        let senders = &self.header.senders;
        let mut count = senders.load(Relaxed);
        loop {
            if count == 0 {
                return false;
            }
            // ORDER: Relaxed; as in `retain`.
            match senders.compare_exchange_weak(count, count + 1, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(found) => count = found,
            }
        }
    }
}
