//! [`Chan`]: a channel of any flavour, as its handles have it.
//!
//! This is the one place that branches on the flavour.
//! A handle is a thin pointer to the channel's header, which begins every [`Channel`] and holds its
//! flavour. Each method here branches on that and calls the method of the [`Channel`]. The
//! alternatives are in docs/decisions/012-channels.md.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::time::Instant;

use super::blocking::Slow;
use super::core::{ChanHeader, ChanQueues, ChanVtable, Channel, Ending};
use super::err::{RecvTimeoutError, SendTimeoutError, TryRecvError, TrySendError};
use super::flavor::{Flavor, FlavorTag};
use super::list::List;
use super::open::Open;
use super::ring::{NewRing, No, ReservedPlace, Ring};
use super::select_handle::{Polled, Promise, SelectHandle};
use super::snapshot::ChanSnapshot;
use super::timer::Clock;
use super::zero::Zero;
use crate::sched::park::Entered;
use crate::sched::waiting::waitq::{WaitNode, WakeList};
use crate::shim::{AcqRel, SeqCst};

/// A channel of `T`s, whatever its flavour.
#[repr(transparent)]
pub(crate) struct Chan<T> {
    pub(super) header: ChanHeader,
    /// Invariant: values go in and come out.
    values: PhantomData<fn(T) -> T>,
}

/// Calls a method of the channel, which is a `&Channel<F>` with its flavour `F`.
macro_rules! dispatch {
    ($any:expr, $chan:ident => $call:expr) => {{
        let any: &Chan<T> = $any;
        match any.header.flavor {
            FlavorTag::Bounded => {
                // SAFETY: the header has the tag of this flavour.
                let $chan = unsafe { any.of::<Ring<T>>() };
                $call
            }
            FlavorTag::Unbounded => {
                // SAFETY: the header has the tag of this flavour.
                let $chan = unsafe { any.of::<List<T>>() };
                $call
            }
            FlavorTag::Zero => {
                // SAFETY: the header has the tag of this flavour.
                let $chan = unsafe { any.of::<Zero<T>>() };
                $call
            }
            FlavorTag::Clock => {
                // SAFETY: the header has the tag of this flavour.
                let $chan = unsafe { any.of::<Clock<T>>() };
                $call
            }
        }
    }};
}

impl<T> Chan<T> {
    pub(super) const VTABLE: ChanVtable = ChanVtable {
        see: Chan::<T>::see,
        take_back: Chan::<T>::take_back,
        refuse_place: Chan::<T>::refuse_open_place,
    };

    /// The channel with its flavour.
    ///
    /// # Safety
    /// The channel has the flavour `F`.
    #[inline]
    unsafe fn of<F: Flavor<Value = T>>(&self) -> &Channel<F> {
        debug_assert_eq!(self.header.flavor, F::TAG);
        // SAFETY: `Channel::allocate` made the channel, with this flavour as the caller promises,
        // and exposed the provenance of all of it. Its header begins it, so the addresses agree.
        unsafe { &*ptr::with_exposed_provenance::<Channel<F>>(ptr::from_ref(self).addr()) }
    }

    /// The channel of which `header` is the header.
    ///
    /// # Safety
    /// It is a channel of `T`s, and stays while the result is used.
    unsafe fn of_header<'a>(header: *const ChanHeader) -> &'a Chan<T> {
        // SAFETY: a `Chan` is its header, which the caller keeps, as it promises.
        unsafe { &*header.cast::<Chan<T>>() }
    }

    #[track_caller]
    pub(super) fn bounded(cap: usize, ending: Ending) -> NonNull<Chan<T>> {
        if cap == 0 {
            return Channel::allocate_small(Zero::new(u64::MAX), 1, ending);
        }
        let made = NewRing::new(cap).and_then(|ring| {
            let slots = ring.slots_layout();
            // SAFETY: `allocate` gives `make` memory of this layout, which stays as long as the
            // channel. The ring has the same layout.
            unsafe { Channel::allocate(slots, |at| ring.place(at), 1, ending) }
        });
        let Some(chan) = made else {
            panic!(
                "gosched::chan::bounded({cap}): a buffer of that size does not fit into memory; \
                 use a smaller capacity, or unbounded()"
            );
        };
        chan
    }

    pub(super) fn unbounded() -> NonNull<Chan<T>> {
        Channel::allocate_small(List::new(), 1, Ending::USUAL)
    }

    /// One receiver, no sender: the clock sends.
    pub(super) fn timer(when_ns: u64, period_ns: u64, make: fn(Instant) -> T) -> NonNull<Chan<T>> {
        Channel::allocate_small(Clock::new(when_ns, period_ns, make), 0, Ending::USUAL)
    }

    /// Carries nothing. It is closed at this moment, if its sender does not close it earlier.
    pub(super) fn closing_at(closes_at: u64) -> NonNull<Chan<T>> {
        Channel::allocate_small(Zero::new(closes_at), 1, Ending::SENDERS_ONLY)
    }

    /// Sends, waiting until the deadline at most.
    pub(super) fn send(&self, msg: T, deadline_ns: u64) -> Result<(), SendTimeoutError<T>> {
        dispatch!(self, chan => chan.send(msg, deadline_ns))
    }

    /// The common case of a send in line: no sender waits, and there is room.
    ///
    /// # Safety
    /// `from` is a value that the caller forgets if true is returned.
    #[inline]
    pub(super) unsafe fn send_now(&self, from: *const T) -> bool {
        // SAFETY: `from` is a value that the caller forgets on success, as it promises.
        dispatch!(self, chan => unsafe { chan.send_now(from) })
    }

    /// The common case of a receive in line: no receiver waits, and there is a value.
    ///
    /// # Safety
    /// `to` is a place for a `T`; it is initialised if true is returned.
    #[inline]
    pub(super) unsafe fn recv_now(&self, to: *mut T) -> bool {
        // SAFETY: `to` is a place for a value, as the caller promises.
        dispatch!(self, chan => unsafe { chan.recv_now(to) })
    }

    /// How a send ended: moved, closed, or timed out.
    ///
    /// # Safety
    /// `from` is a value that the caller forgets if it was moved, or if this unwinds.
    #[inline(never)]
    pub(super) unsafe fn send_from(&self, from: *mut T, deadline_ns: u64) -> Slow {
        // SAFETY: `from` is a value that the caller forgets on success, as it promises.
        dispatch!(self, chan => unsafe { chan.send_from(from, deadline_ns) })
    }

    /// How a receive ended: moved, closed, or timed out.
    ///
    /// # Safety
    /// `to` is a place for a `T`; it is initialised if `Moved` is returned.
    #[inline(never)]
    pub(super) unsafe fn recv_to(&self, to: *mut T, deadline_ns: u64) -> Slow {
        // SAFETY: `to` is a place for a value, as the caller promises.
        dispatch!(self, chan => unsafe { chan.recv_to(to, deadline_ns) })
    }

    pub(super) fn try_send(&self, msg: T) -> Result<(), TrySendError<T>> {
        dispatch!(self, chan => chan.try_send(msg))
    }

    /// Receives, waiting until the deadline at most.
    pub(super) fn recv(&self, deadline_ns: u64) -> Result<T, RecvTimeoutError> {
        let mut to = MaybeUninit::<T>::uninit();
        // SAFETY: `to` is a place for a T, which `Moved` means is initialised.
        unsafe {
            match self.recv_to(to.as_mut_ptr(), deadline_ns) {
                Slow::Moved => Ok(to.assume_init()),
                Slow::TimedOut => Err(RecvTimeoutError::Timeout),
                _ => Err(RecvTimeoutError::Disconnected),
            }
        }
    }

    pub(super) fn try_recv(&self) -> Result<T, TryRecvError> {
        dispatch!(self, chan => chan.try_recv())
    }

    /// Completes the send of a select's case.
    pub(super) fn complete_send(
        &self,
        promise: Promise,
        open: Option<Open>,
        msg: T,
    ) -> Result<(), T> {
        dispatch!(self, chan => chan.complete_send(promise, open, msg))
    }

    /// Sets a channel of the clock to another moment, or stops it. Returns whether a value was
    /// still to come or to be received.
    pub(super) fn set_clock(&self, when_ns: Option<u64>, period_ns: u64) -> bool {
        dispatch!(self, chan => Flavor::set_clock(chan, when_ns, period_ns))
    }

    /// Ends all sends. False: the channel was closed already, or its flavor cannot be closed.
    pub(super) fn close(&self) -> bool {
        dispatch!(self, chan => chan.close())
    }

    /// As [`Chan::close`], for a receiver.
    pub(super) fn close_by_receiver(&self) -> bool {
        self.header.ending.is_for_receivers() && self.close()
    }

    pub(super) fn len(&self) -> usize {
        dispatch!(self, chan => Flavor::len(chan))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_full(&self) -> bool {
        dispatch!(self, chan => Flavor::is_full(chan))
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        dispatch!(self, chan => Flavor::capacity(chan))
    }

    #[inline]
    pub(super) fn retain_sender(&self) {
        self.header.retain_sender();
    }

    #[inline]
    pub(super) fn retain_receiver(&self) {
        self.header.retain_receiver();
    }

    /// # Safety
    /// The caller owned a sender's reference and uses it no more.
    pub(super) unsafe fn release_sender(this: NonNull<Chan<T>>) {
        // SAFETY: the caller's reference keeps the channel until it is given back here.
        let chan = unsafe { this.as_ref() };
        // ORDER: AcqRel; what other threads did with their handles comes before the end.
        if chan.header.senders.fetch_sub(1, AcqRel) == 1 {
            // SAFETY: no sender is left, and this is the thread that dropped the last one.
            dispatch!(chan, chan => unsafe { Channel::last_sender_gone(NonNull::from(chan)) });
        }
    }

    /// # Safety
    /// The caller owned a receiver's reference and uses it no more.
    pub(super) unsafe fn release_receiver(this: NonNull<Chan<T>>) {
        // SAFETY: the caller's reference keeps the channel until it is given back here.
        let chan = unsafe { this.as_ref() };
        // ORDER: as in `release_sender`, and SeqCst for `drain_if_deserted`.
        if chan.header.receivers.fetch_sub(1, SeqCst) == 1 {
            // SAFETY: no receiver is left, and this is the thread that dropped the last one.
            dispatch!(chan, chan => unsafe { Channel::last_receiver_gone(NonNull::from(chan)) });
        }
    }

    unsafe fn see(header: *const ChanHeader) -> ChanSnapshot {
        // SAFETY: the vtable's promise: a channel of `T`s that a handle keeps.
        unsafe { Chan::<T>::of_header(header) }.snapshot()
    }

    unsafe fn take_back(header: *const ChanHeader, node: Option<&WaitNode<'_>>) {
        // SAFETY: the vtable's promise: a channel of `T`s that a handle keeps.
        let chan = unsafe { Chan::<T>::of_header(header) };
        // SAFETY: the vtable's promise: the node was in a queue of this channel, and stays.
        unsafe { SelectHandle::take_back(chan, node) };
    }

    unsafe fn refuse_open_place(header: *const ChanHeader, place: ReservedPlace) {
        // SAFETY: the vtable's promise: a channel of `T`s that a handle or the place keeps.
        let chan = unsafe { Chan::<T>::of_header(header) };
        dispatch!(chan, chan => chan.refuse_open_place(place));
    }
}

impl<T> SelectHandle for Chan<T> {
    fn header(&self) -> &ChanHeader {
        &self.header
    }

    fn layout(&self) -> Layout {
        Layout::new::<T>()
    }

    unsafe fn drop_value(&self, at: *mut u8) {
        // SAFETY: `at` is a T that no code uses afterwards, as the caller promises.
        unsafe { at.cast::<T>().drop_in_place() };
    }

    fn next_due(&self) -> u64 {
        dispatch!(self, chan => chan.flavor.next_due())
    }

    fn version(&self) -> (usize, usize) {
        dispatch!(self, chan => Flavor::version(&chan.flavor))
    }

    unsafe fn poll_recv(&self, to: *mut u8) -> Result<(), No> {
        // SAFETY: `to` is room for a T, as the caller promises.
        dispatch!(self, chan => unsafe { chan.poll_recv(to.cast()) })
    }

    fn poll_send(&self, rt: &Entered) -> Option<Promise> {
        dispatch!(self, chan => Flavor::promise(chan, rt))
    }

    unsafe fn poll_recv_locked(
        &self,
        to: *mut u8,
        promised: &WaitNode<'_>,
        wake: &mut WakeList,
    ) -> Option<Polled> {
        // SAFETY: the caller holds the lock, and `to` is room for a T, as it promises.
        dispatch!(self, chan => unsafe { chan.poll_recv_locked(to.cast(), promised, wake) })
    }

    unsafe fn poll_send_locked(&self, wake: &mut WakeList) -> Option<Promise> {
        // SAFETY: the caller holds the lock, as it promises.
        let q = unsafe { self.header.queues.get_held() };
        dispatch!(self, chan => Flavor::promise_locked(chan, q, wake))
    }

    unsafe fn recv_in_turn(&self, node: &WaitNode<'_>, to: *mut u8) -> bool {
        // SAFETY: the node waited here, and `to` is room for a T, as the caller promises.
        dispatch!(self, chan => unsafe { Flavor::take_in_turn(chan, node, to.cast()) })
    }

    fn is_ready(&self, is_send: bool) -> bool {
        dispatch!(self, chan => chan.is_ready(is_send))
    }

    unsafe fn is_ready_locked(&self, is_send: bool) -> bool {
        // SAFETY: the caller holds the lock, as it promises.
        let q = unsafe { self.header.queues.get_held() };
        dispatch!(self, chan => chan.would_not_wait(q, is_send))
    }

    fn turn(&self, q: &mut ChanQueues, node: &WaitNode<'_>) -> u64 {
        dispatch!(self, chan => Flavor::turn(chan, q, node))
    }

    fn look_after(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        dispatch!(self, chan => Flavor::look_after(chan, q, wake));
    }

    fn look_after_leaving(&self) {
        dispatch!(self, chan => chan.look_after_leaving());
    }

    fn settle_queued(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        dispatch!(self, chan => chan.settle_queued(q, wake));
    }

    fn refuse(&self, promise: Promise, open: Option<Open>, may_drop: bool) {
        dispatch!(self, chan => chan.refuse(promise, open, may_drop));
    }

    unsafe fn take_back(&self, node: Option<&WaitNode<'_>>) {
        // SAFETY: the node was in a queue of this channel, and stays (see the trait).
        dispatch!(self, chan => unsafe { chan.take_back(node) });
    }

    fn snapshot(&self) -> ChanSnapshot {
        dispatch!(self, chan => chan.snapshot())
    }
}
