//! A channel: who holds its two sides, its buffer, and who waits.
//!
//! Values pass through the buffer without a lock as long as nobody waits. Who must wait queues itself under the channel's lock
//! and *settles*: as long as the buffer has something for the first waiting receiver, or room for the first waiting sender, they
//! are served, in order; each is claimed first (its select, its timeout or its runtime may be faster), then given its value.
//! Whoever moves a value past the buffer looks afterwards whether anybody waits, and settles too. Whoever comes while others wait
//! does not pass them, be it only to try. So a waiter gets its value from the one who made it possible, and a later one never takes
//! it (Go's direct hand-off); one who was under way already when the other queued itself may be faster by one.
//!
//! Two races, four fences:
//! ```text
//!  settle/1  a sender moves `tail`,  then looks at `recv_waits` | a receiver sets `recv_waits`, then looks at `tail`
//!  settle/2  a receiver moves `head`, then looks at `send_waits` | a sender sets `send_waits`,   then looks at `head`
//! ```
//! With a full barrier between the two steps on both sides one of the two sees the other.
//!
//! A channel without capacity has no buffer: everything happens under the lock, and the value goes from stack to stack.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::time::Instant;

use super::err::{RecvTimeoutError, SendTimeoutError, TryRecvError, TrySendError};
use super::list::{Emptied, List, NoPush};
use super::returned;
use super::ring::{No, ReservedPlace, Ring};
use super::timer::Clock;
use crate::base::lock::{Lock, Rank};
use crate::chan::snapshot::ChanSnapshot;
use crate::sched::model::g::WaitReason;
use crate::sched::park::{Entered, enter};
use crate::sched::waitq::{On, Outcome, QueueEnd, WaitKind, WaitNode, WaitQueue, Waiter, WakeList};
use crate::shim::{AtomicBool, AtomicU32, AtomicUsize, Relaxed};
use crate::sys;
use crate::thread::park::check_cancelled;

pub(super) static RECV: WaitKind =
    WaitKind::new(WaitReason::ChanReceive).passing_on(returned::pass_on_received);
pub(super) static SEND: WaitKind = WaitKind::new(WaitReason::ChanSend);
/// Waits for a select's sender that has been chosen and is about to evaluate its message.
pub(super) static HANDSHAKE: WaitKind =
    WaitKind::always(WaitReason::ChanReceive).passing_on(returned::pass_on_received);

/// What a node wants, and what it got: in `WaitNode::word`.
pub(super) mod word {
    /// A value at `elem`, to be taken or written.
    pub(in crate::chan) const VALUE: usize = 0;
    /// A select's sender: a place in the buffer, or somebody to give the value to later.
    pub(in crate::chan) const PLACE: usize = 1;
    /// To know that it would not have to wait.
    pub(in crate::chan) const READY: usize = 2;

    /// The value was moved.
    pub(in crate::chan) const MOVED: usize = 16;
    pub(in crate::chan) const CLOSED: usize = 17;
    /// Things have changed: look again.
    pub(in crate::chan) const AGAIN: usize = 18;
    /// A receiver waits at `elem` for the value: its own node.
    pub(in crate::chan) const PEER: usize = 19;
    /// A place in the buffer is reserved; its number is added.
    pub(in crate::chan) const RESERVED: usize = 32;
}

/// Who waits, under the channel's lock.
pub(super) struct ChanQueues {
    pub(super) sendq: WaitQueue,
    pub(super) recvq: WaitQueue,
    /// Values that were taken back from receivers that never go on (`returned`); first among what there is to receive.
    pub(super) returned: WaitQueue,
    pub(super) is_closed: bool,
}

/// What every channel has, whatever it carries.
pub(super) struct ChanHeader {
    pub(super) queues: Lock<ChanQueues>,
    /// Whether the queues have anybody in them, for those who pass the buffer without the lock. A value that was taken back
    /// counts as a receiver that waits: whoever comes looks under the lock.
    pub(super) recv_waits: AtomicBool,
    pub(super) send_waits: AtomicBool,
    /// How many values were taken back and wait for a receiver.
    pub(super) returned: AtomicU32,
    pub(super) senders: AtomicUsize,
    pub(super) receivers: AtomicUsize,
    /// One side is gone for good; the other frees the channel.
    pub(super) is_half_gone: AtomicBool,
    pub(super) ending: Ending,
    /// How dumps see the channel: [`Chan::see`].
    pub(super) see: unsafe fn(*const ChanHeader) -> ChanSnapshot,
    /// What becomes of a node that was ended for a goroutine that never goes on, and of a wait that
    /// ended otherwise: [`Chan::take_back`].
    pub(super) take_back: unsafe fn(*const ChanHeader, Option<&WaitNode>),
    /// What becomes of the place of a select's send whose goroutine never goes on:
    /// [`Chan::refuse_open_place`].
    pub(super) refuse_place: unsafe fn(*const ChanHeader, ReservedPlace),
}

/// What is special about the end of a channel.
#[derive(Clone, Copy)]
pub(super) enum Ending {
    Usual,
    /// Whoever closes it, or drops the last receiver, tells somebody.
    Told(fn(usize), usize),
    /// Receivers cannot close it.
    SendersOnly,
}

pub(super) enum Flavor<T> {
    Array(Ring<T>),
    List(List<T>),
    /// No buffer. Closed by itself when its time comes (`u64::MAX`: never).
    Zero {
        closes_at: u64,
    },
    /// Values made from the clock.
    Clock(Clock<T>),
}

/// A channel.
pub(crate) struct Chan<T> {
    pub(super) header: ChanHeader,
    pub(super) flavor: Flavor<T>,
}

impl<T> Chan<T> {
    fn new(flavor: Flavor<T>, senders: usize) -> NonNull<Chan<T>> {
        Chan::with_ending(flavor, senders, Ending::Usual)
    }

    fn with_ending(flavor: Flavor<T>, senders: usize, ending: Ending) -> NonNull<Chan<T>> {
        let chan = Chan {
            header: ChanHeader {
                queues: Lock::new(
                    Rank::Chan,
                    ChanQueues {
                        sendq: WaitQueue::new(),
                        recvq: WaitQueue::new(),
                        returned: WaitQueue::new(),
                        is_closed: false,
                    },
                ),
                recv_waits: AtomicBool::new(false),
                send_waits: AtomicBool::new(false),
                returned: AtomicU32::new(0),
                senders: AtomicUsize::new(senders),
                receivers: AtomicUsize::new(1),
                is_half_gone: AtomicBool::new(senders == 0),
                ending,
                see: Chan::<T>::see,
                take_back: Chan::<T>::take_back,
                refuse_place: Chan::<T>::refuse_open_place,
            },
            flavor,
        };
        NonNull::from(Box::leak(Box::new(chan)))
    }

    #[track_caller]
    pub(super) fn bounded(cap: usize, ending: Ending) -> NonNull<Chan<T>> {
        if cap == 0 {
            let closes_at = u64::MAX;
            return Chan::with_ending(Flavor::Zero { closes_at }, 1, ending);
        }
        let Some(ring) = Ring::new(cap) else {
            panic!(
                "gosched::chan::bounded({cap}): a buffer of that size does not fit into memory; \
                 use a smaller capacity, or unbounded()"
            );
        };
        Chan::with_ending(Flavor::Array(ring), 1, ending)
    }

    pub(super) fn unbounded() -> NonNull<Chan<T>> {
        Chan::new(Flavor::List(List::new()), 1)
    }

    /// One receiver, no sender: the clock sends.
    pub(super) fn timer(when_ns: u64, period_ns: u64, make: fn(Instant) -> T) -> NonNull<Chan<T>> {
        Chan::new(Flavor::Clock(Clock::new(when_ns, period_ns, make)), 0)
    }

    /// Carries nothing; closed at some time, if its sender does not close it earlier.
    pub(super) fn closing_at(closes_at: u64) -> NonNull<Chan<T>> {
        Chan::with_ending(Flavor::Zero { closes_at }, 1, Ending::SendersOnly)
    }

    /// Sends, waiting until the deadline at most.
    pub(super) fn send(&self, msg: T, deadline_ns: u64) -> Result<(), SendTimeoutError<T>> {
        let mut msg = MaybeUninit::new(msg);
        // SAFETY: D1, the value is there until it has been moved.
        let sent = unsafe { self.send_from(msg.as_mut_ptr(), deadline_ns) };
        // SAFETY: D1, read only where it was not moved.
        let back = || unsafe { msg.assume_init_read() };
        match sent {
            Slow::TimedOut => Err(SendTimeoutError::Timeout(back())),
            Slow::Closed => Err(SendTimeoutError::Disconnected(back())),
            _ => Ok(()),
        }
    }

    /// The common case in line: nobody waits, and there is room.
    ///
    /// # Safety
    /// `from` is a value that the caller forgets if it was moved, which is what true says.
    #[inline]
    pub(super) unsafe fn send_now(&self, from: *const T) -> bool {
        if !self.has_buffer() {
            return false;
        }
        let _rt = enter();
        let sent = !self.header.send_waits.load(Relaxed)
            && match &self.flavor {
                // SAFETY: by the caller's promise.
                Flavor::Array(ring) => unsafe { ring.push_at_once(from) },
                // SAFETY: as above.
                Flavor::List(list) => unsafe { list.push_at_once(from) },
                Flavor::Zero { .. } | Flavor::Clock(_) => false,
            };
        if sent {
            self.serve_receivers();
        }
        sent
    }

    /// The common case in line: nobody waits, and there is a value.
    ///
    /// # Safety
    /// `to` is a place for a `T`, initialised if true is returned.
    #[inline]
    pub(super) unsafe fn recv_now(&self, to: *mut T) -> bool {
        if !self.has_buffer() {
            return false;
        }
        let _rt = enter();
        let received = !self.header.recv_waits.load(Relaxed)
            && match &self.flavor {
                // SAFETY: by the caller's promise.
                Flavor::Array(ring) => unsafe { ring.pop_at_once(to) },
                // SAFETY: as above.
                Flavor::List(list) => unsafe { list.pop_at_once(to) },
                Flavor::Zero { .. } | Flavor::Clock(_) => false,
            };
        if received {
            self.serve_senders();
        }
        received
    }

    /// How a send ended: moved, closed, or timed out.
    ///
    /// # Safety
    /// `from` is a value that the caller forgets if it was moved, or if this unwinds.
    #[inline(never)]
    pub(super) unsafe fn send_from(&self, from: *mut T, deadline_ns: u64) -> Slow {
        let mut turn = WaitHistory::FIRST;
        loop {
            if self.has_buffer() && !self.header.send_waits.load(Relaxed) {
                // SAFETY: by the caller's promise.
                match unsafe { self.try_send_from(from) } {
                    Ok(()) => return Slow::Moved,
                    Err(No::Closed) => return Slow::Closed,
                    Err(No::NotNow) => {}
                }
            }
            // SAFETY: as above; once the value has been moved the loop is left.
            match unsafe { self.send_slow(from, deadline_ns, turn) } {
                Slow::Again => turn.has_waited = true,
                Slow::Cancelled => {
                    let guard = DropGuard(from);
                    check_cancelled();
                    std::mem::forget(guard);
                    turn.is_told = true;
                }
                ended => return ended,
            }
        }
    }

    /// # Safety
    /// `from` is a value that the caller forgets if it was moved.
    #[inline]
    unsafe fn send_slow(&self, from: *mut T, deadline_ns: u64, turn: WaitHistory) -> Slow {
        let rt = enter();
        if turn.must_unwind(&rt) {
            return Slow::Cancelled;
        }
        let mut wake = WakeList::new();
        let mut q = self.header.queues.lock();
        if q.is_closed {
            return Slow::Closed;
        }
        // SAFETY: by the caller's promise.
        if self.is_zero() && unsafe { self.give(&mut q, from, &mut wake) } {
            drop(q);
            wake.wake_in(&rt);
            return Slow::Moved;
        }
        let waiter = Waiter::new();
        let node = WaitNode::new(&waiter, 0);
        node.elem.set(from.cast());
        waiter.on.set(self.header.on());
        // SAFETY: G4, `finish_wait` takes the node out before this frame ends.
        unsafe { q.sendq.push(&node, QueueEnd::front_if(turn.has_waited)) };
        self.settle_queued(&mut q, &mut wake);
        drop(q);
        wake.wake_in(&rt);
        let outcome = waiter.wait_in(rt, &SEND, deadline_ns);
        self.finish_wait(outcome, &node, |q| &mut q.sendq)
    }

    pub(super) fn try_send(&self, msg: T) -> Result<(), TrySendError<T>> {
        let mut msg = MaybeUninit::new(msg);
        // SAFETY: D1, the value is there; it is read again only if it was not moved.
        match unsafe { self.try_send_from(msg.as_mut_ptr()) } {
            Ok(()) => Ok(()),
            // SAFETY: as above.
            Err(No::NotNow) => Err(TrySendError::Full(unsafe { msg.assume_init_read() })),
            // SAFETY: as above.
            Err(No::Closed) => Err(TrySendError::Disconnected(unsafe {
                msg.assume_init_read()
            })),
        }
    }

    /// # Safety
    /// `from` is a value that the caller forgets if it was moved.
    #[inline]
    unsafe fn try_send_from(&self, from: *mut T) -> Result<(), No> {
        match &self.flavor {
            Flavor::Array(ring) => {
                let _rt = enter();
                if self.is_behind_senders() {
                    return Err(No::NotNow);
                }
                // SAFETY: by the caller's promise.
                unsafe { ring.push(from)? };
                self.serve_receivers();
                Ok(())
            }
            // SAFETY: as above.
            Flavor::List(list) => unsafe { self.push_list(list, from) },
            // SAFETY: as above.
            Flavor::Zero { .. } => unsafe { self.try_give(from) },
            Flavor::Clock(_) => Err(No::Closed),
        }
    }

    /// # Safety
    /// As for [`Chan::try_send_from`].
    unsafe fn push_list(&self, list: &List<T>, from: *mut T) -> Result<(), No> {
        let mut spare = list.spare();
        loop {
            let pushed = {
                let _rt = enter();
                // SAFETY: by the caller's promise.
                let pushed = unsafe { list.push(from, &mut spare) };
                if pushed.is_ok() {
                    self.serve_receivers();
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

    /// Receives, waiting until the deadline at most.
    pub(super) fn recv(&self, deadline_ns: u64) -> Result<T, RecvTimeoutError> {
        let mut to = MaybeUninit::<T>::uninit();
        // SAFETY: `to` is a place for a T, initialised where that is said.
        unsafe {
            match self.recv_to(to.as_mut_ptr(), deadline_ns) {
                Slow::Moved => Ok(to.assume_init()),
                Slow::TimedOut => Err(RecvTimeoutError::Timeout),
                _ => Err(RecvTimeoutError::Disconnected),
            }
        }
    }

    /// How a receive ended: moved, closed, or timed out.
    ///
    /// # Safety
    /// `to` is a place for a `T`, initialised if `Moved` is returned.
    #[inline(never)]
    pub(super) unsafe fn recv_to(&self, to: *mut T, deadline_ns: u64) -> Slow {
        let mut turn = WaitHistory::FIRST;
        loop {
            if self.is_clock() || self.has_buffer() && !self.header.recv_waits.load(Relaxed) {
                // SAFETY: by the caller's promise.
                match unsafe { self.try_recv_to(to) } {
                    Ok(()) => return Slow::Moved,
                    Err(No::Closed) => return Slow::Closed,
                    Err(No::NotNow) => {}
                }
            }
            // SAFETY: as above.
            match unsafe { self.recv_slow(to, deadline_ns, turn) } {
                Slow::Again => turn.has_waited = true,
                Slow::Cancelled => {
                    self.look_after_leaving();
                    check_cancelled();
                    turn.is_told = true;
                }
                ended => return ended,
            }
        }
    }

    /// # Safety
    /// `to` is a place for a `T`, initialised if `Moved` is returned.
    #[inline]
    unsafe fn recv_slow(&self, to: *mut T, deadline_ns: u64, turn: WaitHistory) -> Slow {
        let (mut own, mut is_first) = (self.next_due(), turn.has_waited);
        let waiter = Waiter::new();
        let node = WaitNode::new(&waiter, 0);
        node.elem.set(to.cast());
        let rt = enter();
        if turn.must_unwind(&rt) {
            return Slow::Cancelled;
        }
        let mut wake = WakeList::new();
        let mut q = self.header.queues.lock();
        if self.is_zero() {
            if !(q.sendq.is_empty() && q.returned.is_empty())
                // SAFETY: by the caller's promise.
                && let Some(took) = unsafe { self.take(&mut q, to, &node, &mut wake) }
            {
                drop(q);
                wake.wake_in(&rt);
                return took.after_handshake(rt, &self.header, &waiter, &node);
            }
            if q.is_closed || sys::has_passed(own) {
                return Slow::Closed;
            }
        } else if let Flavor::Clock(clock) = &self.flavor {
            if clock.when() != own {
                return Slow::Again;
            }
            (own, is_first) = clock.queue_up(&mut q, &node, is_first);
        }
        waiter.on.set(self.header.on());
        // SAFETY: G4, `finish_wait` takes the node out before this frame ends.
        unsafe { q.recvq.push(&node, QueueEnd::front_if(is_first)) };
        self.settle_queued(&mut q, &mut wake);
        drop(q);
        wake.wake_in(&rt);
        let outcome = waiter.wait_in(rt, &RECV, deadline_ns.min(own));
        if outcome == Outcome::TimedOut && own <= deadline_ns {
            // SAFETY: by the caller's promise; the node waited here until now.
            return unsafe { self.take_due(&node, to, own, deadline_ns) };
        }
        self.finish_wait(outcome, &node, |q| &mut q.recvq)
    }

    /// After a wait: the node comes out of its queue, and what it got is told.
    #[inline]
    fn finish_wait(
        &self,
        outcome: Outcome,
        node: &WaitNode,
        queue: fn(&mut ChanQueues) -> &mut WaitQueue,
    ) -> Slow {
        if let Outcome::Case(_) = outcome {
            return match node.word.get() {
                word::MOVED => Slow::Moved,
                word::CLOSED => Slow::Closed,
                _ => Slow::Again,
            };
        }
        self.unqueue(node, queue);
        match outcome {
            Outcome::TimedOut => Slow::TimedOut,
            _ => Slow::Cancelled,
        }
    }

    /// Takes a node out of its queue after a timeout or a request to unwind.
    #[cold]
    #[inline(never)]
    fn unqueue(&self, node: &WaitNode, queue: fn(&mut ChanQueues) -> &mut WaitQueue) {
        let mut wake = WakeList::new();
        let rt = enter();
        let mut q = self.header.queues.lock();
        queue(&mut q).remove(node);
        self.header.note_queues(&q);
        self.look_after(&mut q, &mut wake);
        drop(q);
        wake.wake_in(&rt);
    }

    pub(super) fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut to = MaybeUninit::<T>::uninit();
        // SAFETY: a place for a T, initialised where that is said.
        match unsafe { self.try_recv_to(to.as_mut_ptr()) } {
            // SAFETY: as above.
            Ok(()) => Ok(unsafe { to.assume_init() }),
            Err(No::NotNow) => Err(TryRecvError::Empty),
            Err(No::Closed) => Err(TryRecvError::Disconnected),
        }
    }

    /// # Safety
    /// `to` is a place for a `T`; initialised on success.
    #[inline]
    pub(super) unsafe fn try_recv_to(&self, to: *mut T) -> Result<(), No> {
        match &self.flavor {
            Flavor::Array(ring) => {
                let _rt = enter();
                // SAFETY: by the caller's promise.
                if let Some(got) = unsafe { self.recv_behind(to) } {
                    return got;
                }
                // SAFETY: as above.
                unsafe { ring.pop(to)? };
                self.serve_senders();
                Ok(())
            }
            Flavor::List(list) => {
                let mut emptied = Emptied::new();
                let popped = {
                    let _rt = enter();
                    // SAFETY: as above.
                    if let Some(got) = unsafe { self.recv_behind(to) } {
                        return got;
                    }
                    // SAFETY: as above.
                    unsafe { list.pop(to, &mut emptied) }
                };
                list.recycle(emptied);
                popped
            }
            // SAFETY: as above.
            Flavor::Zero { .. } => unsafe { self.try_take(to) },
            Flavor::Clock(clock) => {
                if self.header.returned() > 0 {
                    let _rt = enter();
                    let mut q = self.header.queues.lock();
                    // SAFETY: as above.
                    if unsafe { self.take_returned(&mut q, to) } {
                        drop(q);
                        self.look_after_leaving();
                        return Ok(());
                    }
                }
                // SAFETY: as above.
                unsafe { to.write(clock.take(&self.header)?) };
                Ok(())
            }
        }
    }

    /// A receiver's wait ended at `own`, the moment at which the channel has a value of its own.
    ///
    /// # Safety
    /// `to` is a place for a `T`, initialised if it was moved; the node waited here until now.
    #[cold]
    unsafe fn take_due(&self, node: &WaitNode, to: *mut T, own: u64, deadline_ns: u64) -> Slow {
        if let Flavor::Clock(clock) = &self.flavor
            // SAFETY: by the caller's promise.
            && unsafe { clock.take_in_turn(&self.header, node, to) }
        {
            return Slow::Moved;
        }
        match self.finish_wait(Outcome::TimedOut, node, |q| &mut q.recvq) {
            Slow::TimedOut if own < deadline_ns => Slow::Again, // its own time, not the caller's
            slow => slow,
        }
    }

    /// Whether a sender that comes now must let others go first. Those that can be served are.
    #[inline]
    pub(super) fn is_behind_senders(&self) -> bool {
        let waits = &self.header.send_waits;
        waits.load(Relaxed) && {
            self.serve();
            waits.load(Relaxed)
        }
    }

    /// What a receiver that comes now gets, if others go first or a value was taken back; None: it takes from the buffer. Inside
    /// the runtime.
    ///
    /// # Safety
    /// `to` is a place for a `T`; initialised if `Some(Ok)` is returned.
    #[inline]
    unsafe fn recv_behind(&self, to: *mut T) -> Option<Result<(), No>> {
        if !self.header.recv_waits.load(Relaxed) {
            return None;
        }
        // SAFETY: by the caller's promise.
        unsafe { self.recv_behind_slow(to) }
    }

    #[inline]
    pub(super) fn has_buffer(&self) -> bool {
        matches!(self.flavor, Flavor::Array(_) | Flavor::List(_))
    }

    #[inline]
    fn is_clock(&self) -> bool {
        matches!(self.flavor, Flavor::Clock(_))
    }

    #[inline]
    pub(super) fn is_zero(&self) -> bool {
        matches!(self.flavor, Flavor::Zero { .. })
    }

    /// When the channel itself has something, without anybody's doing.
    #[inline]
    pub(super) fn next_due(&self) -> u64 {
        match &self.flavor {
            Flavor::Zero { closes_at } => *closes_at,
            Flavor::Clock(clock) => clock.when(),
            _ => u64::MAX,
        }
    }

    pub(super) fn len(&self) -> usize {
        match &self.flavor {
            Flavor::Array(ring) => ring.len() + self.header.returned(),
            Flavor::List(list) => list.len() + self.header.returned(),
            Flavor::Zero { .. } => 0,
            Flavor::Clock(clock) => {
                usize::from(sys::has_passed(clock.when()) || self.header.returned() > 0)
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_full(&self) -> bool {
        match &self.flavor {
            Flavor::List(_) => false,
            Flavor::Array(ring) => ring.len() == ring.capacity(),
            _ => self.capacity() == Some(self.len()),
        }
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        match &self.flavor {
            Flavor::Array(ring) => Some(ring.capacity()),
            Flavor::List(_) => None,
            Flavor::Zero { .. } => Some(0),
            Flavor::Clock(_) => Some(1),
        }
    }

    /// How many handles each side has.
    pub(super) fn handles(&self) -> (usize, usize) {
        (
            self.header.senders.load(Relaxed),
            self.header.receivers.load(Relaxed),
        )
    }
}

/// A value that is dropped if its sender unwinds.
struct DropGuard<T>(*mut T);

impl<T> Drop for DropGuard<T> {
    fn drop(&mut self) {
        // SAFETY: D1, made while the value had not been moved, forgotten otherwise.
        unsafe { self.0.drop_in_place() };
    }
}

/// How the slow way ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slow {
    Moved,
    Closed,
    TimedOut,
    Cancelled,
    Again,
}

/// What one who must wait has behind it.
#[derive(Clone, Copy)]
struct WaitHistory {
    /// It was woken to look again: it comes first.
    has_waited: bool,
    /// It was asked to unwind and could not. Nobody asks again.
    is_told: bool,
}

impl WaitHistory {
    const FIRST: WaitHistory = WaitHistory {
        has_waited: false,
        is_told: false,
    };

    /// Whether the goroutine is to unwind before it waits.
    #[inline]
    fn must_unwind(self, rt: &Entered) -> bool {
        rt.g().is_some_and(|g| g.must_unwind()) && !self.is_told
    }
}

impl ChanHeader {
    /// Mirrors the queues for those who pass the buffer without the lock. Under the lock.
    #[inline]
    pub(super) fn note_queues(&self, q: &ChanQueues) {
        let recv_waits = !(q.recvq.is_empty() && q.returned.is_empty());
        self.recv_waits.store(recv_waits, Relaxed);
        self.send_waits.store(!q.sendq.is_empty(), Relaxed);
    }

    /// How many values were taken back and wait for a receiver.
    fn returned(&self) -> usize {
        self.returned.load(Relaxed) as usize
    }

    /// What a waiter says of this channel.
    pub(super) fn on(&self) -> On {
        On {
            object: ptr::from_ref(self).expose_provenance(),
            cases: 1,
            ..On::NOTHING
        }
    }

    /// Wakes every receiver to look again.
    pub(super) fn look_again(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        while let Some((node, claim)) = q.recvq.pop() {
            node.word.set(word::AGAIN);
            claim.finish(wake);
        }
        self.note_queues(q);
    }
}
