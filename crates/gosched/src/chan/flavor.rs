//! [`Flavor`]: what is particular to one flavour of channel.
//!
//! A flavour is a type with a file of its own. It holds what the channel has besides its header: a
//! buffer, or the moment at which the clock sends. Everything else is written once, for any
//! flavour, as methods of [`Channel`]. So the compiler makes a copy of it for each flavour, without
//! branches on the flavour. The one place that branches is `any`.
//!
//! | flavour | type | file | made by |
//! |---|---|---|---|
//! | bounded | `Ring` | `bounded.rs` (its buffer: `ring.rs`) | `bounded(n)` |
//! | unbounded | `List` | `unbounded.rs` (its buffer: `list.rs`) | `unbounded()` |
//! | without capacity | `Zero` | `zero.rs` | `bounded(0)`, the end of a `Context` |
//! | of the clock | `Clock` | `timer.rs` | `after`, `at`, `tick`, `Timer`, `Ticker` |
//!
//! A function here that takes the channel's queues is called under the channel's lock, inside the
//! runtime. The others are called without the lock.

use std::alloc::Layout;

use crate::base::fatal::throw;
use crate::chan::blocking::Slow;
use crate::chan::core::{ChanQueues, Channel};
use crate::chan::ring::{No, ReservedPlace};
use crate::chan::select_handle::{Polled, Promise};
use crate::chan::zero::Took;
use crate::sched::park::Entered;
use crate::sched::waiting::waitq::{QueueEnd, WaitNode, WakeList};

/// Which flavour a channel is, in its header. `any` alone compares it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FlavorTag {
    Bounded,
    Unbounded,
    Zero,
    Clock,
}

/// What a receiver does that has the lock and is about to wait.
pub(super) enum BeforeWait {
    /// It queues itself at this end. It sleeps until this moment at most: then the channel itself
    /// has something for it.
    Queue(QueueEnd, u64),
    /// It does not wait in the queue: it has a value, or the promise of one.
    Took(Took),
    /// It does not wait.
    Leave(Slow),
}

/// One flavour of channel.
pub(super) trait Flavor: Sized {
    /// What the channel carries.
    type Value;

    const TAG: FlavorTag;

    /// Whether values lie in a buffer that senders and receivers use without the lock.
    const HAS_BUFFER: bool;

    /// Whether a waiter that has just queued itself may be served at once. Not if everything
    /// happens under the lock.
    const SETTLES: bool = true;

    /// Whether values come from the clock.
    const IS_CLOCK: bool = false;

    /// The memory that the flavour has besides itself. It lies behind the flavour, in the channel's
    /// one allocation. It is the same as long as the flavour lives.
    fn more_memory(&self) -> Layout {
        Layout::new::<()>()
    }

    /// Moves the value at `from` into the buffer, if that needs no second look. False: it was not
    /// done, for whatever reason. Inside the runtime.
    ///
    /// # Safety
    /// `from` is readable as a value that the caller gives away if true is returned.
    #[inline]
    unsafe fn send_at_once(&self, _from: *const Self::Value) -> bool {
        false
    }

    /// Moves a value from the buffer to `to`, likewise. Inside the runtime.
    ///
    /// # Safety
    /// `to` is writable as a value; it is initialised if true is returned.
    #[inline]
    unsafe fn recv_at_once(&self, _to: *mut Self::Value) -> bool {
        false
    }

    /// Sends without waiting. Outside the runtime.
    ///
    /// # Safety
    /// `from` is a value that the caller forgets on success.
    unsafe fn try_send(chan: &Channel<Self>, from: *mut Self::Value) -> Result<(), No>;

    /// Receives without waiting. Outside the runtime.
    ///
    /// # Safety
    /// `to` is a place for a value; it is initialised on success.
    unsafe fn try_recv(chan: &Channel<Self>, to: *mut Self::Value) -> Result<(), No>;

    /// Whether a receive that may wait tries without the lock first. Not if others wait already,
    /// for they come first.
    #[inline]
    fn tries_recv(chan: &Channel<Self>) -> bool {
        Self::HAS_BUFFER && !chan.header.has_receivers_waiting()
    }

    /// Sends under the lock, if that is the flavour's way. False: the sender waits.
    ///
    /// # Safety
    /// As for [`Flavor::try_send`]; true is success.
    #[inline]
    unsafe fn send_locked(
        _chan: &Channel<Self>,
        _q: &mut ChanQueues,
        _from: *mut Self::Value,
        _wake: &mut WakeList,
    ) -> bool {
        false
    }

    /// What a receiver does that is about to wait with `node`, at the end `at` of the queue.
    ///
    /// # Safety
    /// `to` is a place for a value and the `elem` of the node, which is in no queue.
    #[inline]
    unsafe fn before_wait(
        _chan: &Channel<Self>,
        _q: &mut ChanQueues,
        _to: *mut Self::Value,
        _node: &WaitNode<'_>,
        at: QueueEnd,
        _wake: &mut WakeList,
    ) -> BeforeWait {
        BeforeWait::Queue(at, u64::MAX)
    }

    /// Serves waiters, as far as the buffer allows.
    #[inline]
    fn settle(_chan: &Channel<Self>, _q: &mut ChanQueues, _wake: &mut WakeList) {}

    /// Ends all sends. False: the channel was closed already, or cannot be closed. Inside the
    /// runtime.
    fn close(&self) -> bool;

    fn len(chan: &Channel<Self>) -> usize;

    fn is_full(chan: &Channel<Self>) -> bool {
        Self::capacity(chan) == Some(Self::len(chan))
    }

    /// None: unbounded.
    fn capacity(chan: &Channel<Self>) -> Option<usize>;

    // Channels that have something for receivers by themselves, at some moment.

    /// The moment (monotonic ns) at which the channel itself has something; `u64::MAX`: never.
    #[inline]
    fn next_due(&self) -> u64 {
        u64::MAX
    }

    /// Until when a select that queues itself with `node` may sleep for the channel's own sake.
    #[inline]
    fn turn(chan: &Channel<Self>, _q: &mut ChanQueues, _node: &WaitNode<'_>) -> u64 {
        chan.flavor.next_due()
    }

    /// A receiver has left the queue, or has taken a value.
    #[inline]
    fn look_after(_chan: &Channel<Self>, _q: &mut ChanQueues, _wake: &mut WakeList) {}

    /// Takes what is due for a receiver whose wait the channel has ended. False: there is nothing,
    /// or other receivers got it. Outside the runtime.
    ///
    /// # Safety
    /// `node` waited in the channel's queue until now. `to` is a place for a value; it is
    /// initialised if true is returned.
    #[inline]
    unsafe fn take_in_turn(
        _chan: &Channel<Self>,
        _node: &WaitNode<'_>,
        _to: *mut Self::Value,
    ) -> bool {
        false
    }

    /// Sets the clock to another moment, or stops it. Returns whether a value was still to come or
    /// to be received.
    fn set_clock(_chan: &Channel<Self>, _when_ns: Option<u64>, _period_ns: u64) -> bool {
        false
    }

    // Selects.

    /// Changes whenever what a select would find changes without the lock.
    #[inline]
    fn version(&self) -> (usize, usize) {
        (0, 0)
    }

    /// The promise of a send, if there is one now. Inside the runtime.
    fn promise(chan: &Channel<Self>, rt: &Entered) -> Option<Promise>;

    /// As [`Flavor::promise`], with the lock held.
    fn promise_locked(
        chan: &Channel<Self>,
        q: &mut ChanQueues,
        wake: &mut WakeList,
    ) -> Option<Promise>;

    /// Receives with the lock held; no receiver that comes first waits.
    ///
    /// # Safety
    /// - `to` is a place for a value, and the `elem` of `promised`. It is initialised if a value is
    ///   returned.
    /// - No node of the waiter of `promised` is in a queue.
    /// - After [`Polled::Promised`] the caller waits for the value, and queues no node of the
    ///   waiter.
    unsafe fn recv_locked(
        chan: &Channel<Self>,
        q: &mut ChanQueues,
        to: *mut Self::Value,
        promised: &WaitNode<'_>,
        wake: &mut WakeList,
    ) -> Result<Polled, No>;

    /// Whether a send or a receive would not have to wait.
    fn is_ready(chan: &Channel<Self>, q: &ChanQueues, is_send: bool) -> bool;

    /// Fills a place in the buffer. Inside the runtime; the caller then looks for waiting
    /// receivers.
    ///
    /// # Safety
    /// `from` is readable as a value that the caller gives away. The place was promised to the
    /// caller, and is filled or given up once.
    unsafe fn fill(&self, _place: ReservedPlace, _from: *const Self::Value) {
        no_place();
    }

    /// Gives up a place in the buffer. Inside the runtime; the caller then looks for waiters.
    fn void(&self, _place: ReservedPlace) {
        no_place();
    }

    /// Whether a place in the buffer is promised. The caller has the only reference.
    fn has_reserved(&self) -> bool {
        false
    }
}

#[cold]
fn no_place() -> ! {
    throw("a place in a channel that has no buffer")
}
