//! The flavour of `after`, `at`, `tick`, `time::Timer` and `time::Ticker`: values come from the
//! clock.
//!
//! No thread and no timer runs for the channel. A receiver compares the deadline with the clock. A
//! receiver that waits sleeps until a deadline. A `set` wakes the receivers that wait: they compare
//! again. There is room for one value, as in Go. A tick goes to a receiver that waits. Without one
//! it fills the room. If the room is filled the tick is missed. No code runs at the moment of a
//! tick, so receivers account for ticks afterwards: a receiver that waited takes one tick; a
//! receiver that did not takes one and drops the missed ones. So a timer without a receiver costs
//! nothing. A timer that is stopped or reset has no stale value (Go ≥ 1.23): a value that was not
//! received never existed.
//!
//! Each receiver in the queue sleeps until a tick of its own, in queue order (`WaitNode::due`). So
//! a tick wakes one receiver, however many wait. Invariant: the first receiver in the queue sleeps
//! no longer than until the next tick. A receiver that leaves without a tick breaks it: by a
//! timeout, by another case of its select, or with its runtime. So does a receiver that takes a
//! value. Therefore each of them calls `look_after` when it leaves. `look_after` wakes the first
//! receiver with `AGAIN` if that one sleeps for too long. A receiver woken with `AGAIN` either
//! queues itself first, or calls `look_after` before it leaves.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use super::Receiver;
use super::core::{ChanHeader, ChanQueues, Channel, word};
use super::flavor::{BeforeWait, Flavor, FlavorTag};
use super::ring::No;
use crate::chan::select_handle::{Polled, Promise};
use crate::sched::park::{Entered, enter};
use crate::sched::waiting::waitq::{QueueEnd, WaitNode, WakeList};
use crate::sys;

/// The moment at which the next value is due. A value is made from its moment.
pub(super) struct Clock<T> {
    /// Monotonic ns; `u64::MAX`: never. Changes under the channel's lock.
    when: AtomicU64,
    /// Whether a value is still to come or to be received. It may be set to a moment that never
    /// comes. Under the lock.
    is_set: AtomicBool,
    /// 0: once.
    period_ns: AtomicU64,
    make: fn(Instant) -> T,
}

impl<T> Receiver<T> {
    /// Sets a receiver of the clock to another moment, or stops it. Returns whether a value was
    /// still to come or to be received.
    pub(crate) fn set_clock(&self, when_ns: Option<u64>, period_ns: u64) -> bool {
        self.chan()
            .is_some_and(|chan| chan.set_clock(when_ns, period_ns))
    }
}

impl<T> Flavor for Clock<T> {
    type Value = T;
    const TAG: FlavorTag = FlavorTag::Clock;
    const HAS_BUFFER: bool = false;
    const IS_CLOCK: bool = true;

    unsafe fn try_send(_chan: &Channel<Self>, _from: *mut T) -> Result<(), No> {
        Err(No::Closed)
    }

    #[inline]
    unsafe fn try_recv(chan: &Channel<Self>, to: *mut T) -> Result<(), No> {
        if chan.header.returned() > 0 {
            let _rt = enter();
            let mut q = chan.header.queues.lock();
            // SAFETY: `to` is a place for a value, as the caller promises.
            if unsafe { chan.take_returned(&mut q, to) } {
                drop(q);
                chan.look_after_leaving();
                return Ok(());
            }
        }
        // SAFETY: `to` is a place for a value, as the caller promises.
        unsafe { to.write(chan.flavor.take(&chan.header)?) };
        Ok(())
    }

    #[inline]
    fn tries_recv(_chan: &Channel<Self>) -> bool {
        true
    }

    #[inline]
    unsafe fn before_wait(
        chan: &Channel<Self>,
        q: &mut ChanQueues,
        _to: *mut T,
        node: &WaitNode<'_>,
        at: QueueEnd,
        _wake: &mut WakeList,
    ) -> BeforeWait {
        let (at, due) = chan.flavor.queue_up(q, node, at);
        BeforeWait::Queue(at, due)
    }

    fn close(&self) -> bool {
        false
    }

    fn len(chan: &Channel<Self>) -> usize {
        usize::from(sys::has_passed(chan.flavor.when()) || chan.header.returned() > 0)
    }

    fn capacity(_chan: &Channel<Self>) -> Option<usize> {
        Some(1)
    }

    #[inline]
    fn next_due(&self) -> u64 {
        self.when()
    }

    #[inline]
    fn turn(chan: &Channel<Self>, q: &mut ChanQueues, node: &WaitNode<'_>) -> u64 {
        let due = chan.flavor.turn(q);
        node.due.set(due);
        due
    }

    #[inline]
    fn look_after(chan: &Channel<Self>, q: &mut ChanQueues, wake: &mut WakeList) {
        chan.flavor.look_after(&chan.header, q, wake);
    }

    unsafe fn take_in_turn(chan: &Channel<Self>, node: &WaitNode<'_>, to: *mut T) -> bool {
        // SAFETY: the node waited here until now, and `to` is a place for a value, as the caller
        // promises.
        unsafe { chan.flavor.take_in_turn(&chan.header, node, to) }
    }

    fn set_clock(chan: &Channel<Self>, when_ns: Option<u64>, period_ns: u64) -> bool {
        chan.flavor.set(&chan.header, when_ns, period_ns)
    }

    fn promise(_chan: &Channel<Self>, _rt: &Entered) -> Option<Promise> {
        None
    }

    fn promise_locked(
        _chan: &Channel<Self>,
        _q: &mut ChanQueues,
        _wake: &mut WakeList,
    ) -> Option<Promise> {
        None
    }

    unsafe fn recv_locked(
        chan: &Channel<Self>,
        q: &mut ChanQueues,
        to: *mut T,
        _promised: &WaitNode<'_>,
        wake: &mut WakeList,
    ) -> Result<Polled, No> {
        let clock = &chan.flavor;
        let when = match clock.when() {
            u64::MAX => None,
            _ => clock.take_due(&chan.header, q, sys::monotonic_ns(), wake),
        };
        clock.look_after(&chan.header, q, wake);
        let when = when.ok_or(No::NotNow)?;
        // SAFETY: `to` is a place for a value, as the caller promises. The value is an instant, or
        // made from one without user code.
        unsafe { to.write(clock.value(when)) };
        Ok(Polled::Now(Promise::Value))
    }

    fn is_ready(chan: &Channel<Self>, _q: &ChanQueues, _is_send: bool) -> bool {
        sys::has_passed(chan.flavor.when())
    }
}

impl<T> Clock<T> {
    pub(super) fn new(when: u64, period_ns: u64, make: fn(Instant) -> T) -> Clock<T> {
        sys::instant_of(0); // sets up the conversion of moments now, not under a lock
        Clock {
            when: AtomicU64::new(when),
            is_set: AtomicBool::new(true),
            period_ns: AtomicU64::new(period_ns),
            make,
        }
    }

    #[inline]
    fn when(&self) -> u64 {
        self.when.load(SeqCst)
    }

    /// The value, if it is due: one receiver gets it. Outside the runtime.
    fn take(&self, header: &ChanHeader) -> Result<T, No> {
        if self.when() == u64::MAX {
            return Err(No::NotNow);
        }
        let now = sys::monotonic_ns();
        if self.when() > now {
            return Err(No::NotNow);
        }
        let mut wake = WakeList::new();
        let when = {
            let _rt = enter();
            let mut q = header.queues.lock();
            let when = self.take_due(header, &mut q, now, &mut wake);
            self.look_after(header, &mut q, &mut wake);
            drop(q);
            wake.wake();
            when
        };
        when.map(|when| self.value(when)).ok_or(No::NotNow)
    }

    /// The moment of the value, if it is due, for a receiver that did not wait. Receivers that wait
    /// are served before it. Missed ticks are dropped, the phase is kept. Under the lock.
    fn take_due(
        &self,
        header: &ChanHeader,
        q: &mut ChanQueues,
        now: u64,
        wake: &mut WakeList,
    ) -> Option<u64> {
        // A receiver whose time is over may be about to take its value: the ticks after it are not
        // missed.
        let is_awaited = !q.recvq.is_empty();
        self.serve(header, q, now, wake);
        let when = self.when();
        if when > now {
            return None;
        }
        self.advance(when, if is_awaited { when } else { now });
        Some(when)
    }

    /// Gives waiting receivers what is due. A tick is theirs from the moment at which it was due,
    /// however late the receiver gets it: so this makes no tick a missed one. Under the lock.
    fn serve(&self, header: &ChanHeader, q: &mut ChanQueues, now: u64, wake: &mut WakeList) {
        while self.when() <= now
            && let Some(node) = q.recvq.pop()
        {
            if node.word.get() == word::VALUE {
                let when = self.when();
                self.advance(when, when);
                // SAFETY: D1, a waiting receiver's `elem` is a place for a T, and it is claimed, so
                // it waits. The value is an instant, or made from one without user code.
                unsafe { node.elem.get().cast::<T>().write(self.value(when)) };
                node.word.set(word::MOVED);
            }
            node.finish(wake); // a receiver that only wants to know is woken
        }
        header.note_queues(q);
    }

    /// Until when a new receiver may sleep: until the next tick if no receiver in the queue wakes
    /// for that one, else until the tick after that of the last receiver. Under the lock, before
    /// the receiver is queued.
    fn turn(&self, q: &mut ChanQueues) -> u64 {
        let when = self.when();
        let period = match self.period_ns.load(Relaxed) {
            0 => u64::MAX,
            period => period,
        };
        match self.is_looked_for(q) {
            true => q
                .recvq
                .last()
                .map_or(when, |last| when.max(last.due.get().saturating_add(period))),
            false => when,
        }
    }

    /// Where a receiver queues itself with `node`, and until when it may sleep. A receiver that was
    /// woken to look again comes `at` the front, if it sleeps until the next tick. Under the lock.
    #[cold]
    fn queue_up(&self, q: &mut ChanQueues, node: &WaitNode<'_>, at: QueueEnd) -> (QueueEnd, u64) {
        let due = self.turn(q);
        node.due.set(due);
        let is_told = at == QueueEnd::Front;
        (QueueEnd::front_if(is_told && due <= self.when()), due)
    }

    /// Whether the first receiver in the queue wakes by the time the next value is due. Under the
    /// lock.
    fn is_looked_for(&self, q: &mut ChanQueues) -> bool {
        let first = q.recvq.first();
        first.is_some_and(|first| first.due.get() <= self.when())
    }

    /// A receiver has left, or has taken a value: wakes the first receiver in the queue if that one
    /// sleeps past the next value. Under the lock.
    fn look_after(&self, header: &ChanHeader, q: &mut ChanQueues, wake: &mut WakeList) {
        if !self.is_looked_for(q)
            && let Some(node) = q.recvq.pop()
        {
            node.word.set(word::AGAIN);
            node.finish(wake);
            header.note_queues(q);
        }
    }

    /// Takes the value of `when`; the next one is the first after `from`. Under the lock.
    fn advance(&self, when: u64, from: u64) {
        let next = match self.period_ns.load(Relaxed) {
            0 => {
                self.is_set.store(false, Relaxed);
                u64::MAX
            }
            period => when.saturating_add(period.saturating_mul(1 + (from - when) / period)),
        };
        self.when.store(next, SeqCst);
    }

    /// Ends the wait of a receiver whose time has come: it leaves the queue and gets what is due,
    /// as the receivers behind it do. Outside the runtime. False: other receivers were faster.
    ///
    /// # Safety
    /// `node` waited in the channel's queue until now. `to` is a place for a `T`; it is initialised
    /// if true is returned.
    unsafe fn take_in_turn(&self, header: &ChanHeader, node: &WaitNode<'_>, to: *mut T) -> bool {
        let mut wake = WakeList::new();
        let _rt = enter();
        let mut q = header.queues.lock();
        q.recvq.remove(node);
        let (now, when) = (sys::monotonic_ns(), self.when());
        let is_due = when <= now;
        if is_due {
            self.advance(when, when);
            // SAFETY: `to` is a place for a value, as the caller promises. The value is made as in
            // `serve`.
            unsafe { to.write(self.value(when)) };
        }
        self.serve(header, &mut q, now, &mut wake);
        self.look_after(header, &mut q, &mut wake);
        drop(q);
        wake.wake();
        is_due
    }

    /// The value of a moment.
    fn value(&self, when: u64) -> T {
        (self.make)(sys::instant_of(when))
    }

    /// Sets the clock to another moment, or stops it. Returns whether a value was still to come or
    /// to be received.
    fn set(&self, header: &ChanHeader, when: Option<u64>, period_ns: u64) -> bool {
        let _rt = enter();
        let mut q = header.queues.lock();
        let was_returned = header.forget_returned(&mut q);
        let was_set = self.is_set.swap(when.is_some(), Relaxed) || was_returned;
        self.when.store(when.unwrap_or(u64::MAX), SeqCst);
        self.period_ns.store(period_ns, Relaxed);
        let mut wake = WakeList::new();
        header.look_again(&mut q, &mut wake);
        drop(q);
        wake.wake();
        was_set
    }
}
