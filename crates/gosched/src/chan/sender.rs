//! The sending side of a channel.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::any::Chan;
use super::blocking::Slow;
use super::err::{SendError, SendTimeoutError, TrySendError};
use crate::sys;

/// The sending side of a channel. Clones send into the same channel. When the last one is dropped
/// the receivers get what is left, then [`RecvError`](super::RecvError).
///
/// Only [`send`](Sender::send), [`send_timeout`](Sender::send_timeout) and
/// [`send_deadline`](Sender::send_deadline) block.
///
/// ```
/// # gosched::run(|| {
/// let (s1, r) = gosched::chan::unbounded();
/// let s2 = s1.clone();
/// gosched::go(move || s1.send(1).unwrap());
/// gosched::go(move || s2.send(2).unwrap());
/// assert_eq!(r.iter().sum::<i32>(), 3);
/// # });
/// ```
pub struct Sender<T> {
    pub(super) chan: NonNull<Chan<T>>,
    /// A `Sender<&'static str>` must not pass for a `Sender<&'a str>`: the receiver would get a
    /// value that does not live long enough.
    invariant: PhantomData<fn(T) -> T>,
}

// SAFETY: D1, U10: any number of threads may use a channel at a time. It hands each value from one
// thread to another, so `T: Send` is enough.
unsafe impl<T: Send> Send for Sender<T> {}
// SAFETY: D1, U10: a shared handle sends values, from any thread, which `T: Send` allows.
unsafe impl<T: Send> Sync for Sender<T> {}

impl<T> UnwindSafe for Sender<T> {}
impl<T> RefUnwindSafe for Sender<T> {}

impl<T> Sender<T> {
    /// # Safety
    /// The caller gives away a sender's reference to the channel.
    pub(super) unsafe fn new(chan: NonNull<Chan<T>>) -> Sender<T> {
        Sender {
            chan,
            invariant: PhantomData,
        }
    }

    #[inline]
    pub(super) fn chan(&self) -> &Chan<T> {
        // SAFETY: D1, the handle owns a reference.
        unsafe { self.chan.as_ref() }
    }

    /// Sends without waiting. Into a channel of capacity 0 it sends only if a receiver waits there
    /// right now.
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// The message comes back if there is no room, or if the channel is closed or has no receivers.
    ///
    /// ```
    /// use gosched::chan::{TrySendError, bounded};
    ///
    /// let (s, r) = bounded(1);
    /// assert_eq!(s.try_send(1), Ok(()));
    /// assert_eq!(s.try_send(2), Err(TrySendError::Full(2)));
    /// assert_eq!(r.recv(), Ok(1));
    /// ```
    #[inline]
    pub fn try_send(&self, msg: T) -> Result<(), TrySendError<T>> {
        self.chan().try_send(msg)
    }

    /// Sends; waits for room, or for a receiver on a channel of capacity 0. Senders that wait are
    /// served in order.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// The message comes back if the channel is closed or has no receivers, at the start or while
    /// this call waits.
    ///
    /// ```
    /// use gosched::chan::{SendError, bounded};
    ///
    /// # gosched::run(|| {
    /// let (s, r) = bounded(0);
    /// let receiver = gosched::thread::spawn(move || r.recv());
    /// assert_eq!(s.send(1), Ok(()));
    /// assert_eq!(receiver.join().unwrap(), Ok(1));
    /// assert_eq!(s.send(2), Err(SendError(2))); // its receiver is gone
    /// # });
    /// ```
    #[inline]
    pub fn send(&self, msg: T) -> Result<(), SendError<T>> {
        let mut msg = ManuallyDrop::new(msg);
        let from: *mut T = &raw mut *msg;
        // SAFETY: D1, the value is forgotten here if it was moved.
        let is_sent = unsafe {
            self.chan().send_now(from) || self.chan().send_from(from, u64::MAX) == Slow::Moved
        };
        match is_sent {
            true => Ok(()),
            false => Err(SendError(ManuallyDrop::into_inner(msg))),
        }
    }

    /// As [`send`](Sender::send), waiting for `timeout` at most. `Duration::MAX` is for ever.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// The message comes back if the time is over, or if the channel is closed or has no receivers.
    ///
    /// ```
    /// use std::time::Duration;
    /// use gosched::chan::{SendTimeoutError, bounded};
    ///
    /// let (s, _r) = bounded(1);
    /// let timeout = Duration::from_millis(1);
    /// assert_eq!(s.send_timeout(1, timeout), Ok(()));
    /// assert_eq!(s.send_timeout(2, timeout), Err(SendTimeoutError::Timeout(2)));
    /// ```
    pub fn send_timeout(&self, msg: T, timeout: Duration) -> Result<(), SendTimeoutError<T>> {
        self.chan().send(msg, sys::deadline_after(timeout))
    }

    /// As [`send`](Sender::send), waiting until `deadline` at most.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// The message comes back if the time is over, or if the channel is closed or has no receivers.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use gosched::chan::{SendTimeoutError, bounded};
    ///
    /// let (s, _r) = bounded(1);
    /// let deadline = Instant::now() + Duration::from_millis(1);
    /// assert_eq!(s.send_deadline(1, deadline), Ok(()));
    /// assert_eq!(s.send_deadline(2, deadline), Err(SendTimeoutError::Timeout(2)));
    /// ```
    pub fn send_deadline(&self, msg: T, deadline: Instant) -> Result<(), SendTimeoutError<T>> {
        self.chan().send(msg, sys::deadline_of(deadline))
    }

    /// Closes the channel for all its senders and receivers. Returns true the first time.
    ///
    /// Blocks nothing. Senders get their message back in an error, both those that wait and later
    /// ones. Receivers get what is in the channel, then [`RecvError`](super::RecvError).
    ///
    /// ```
    /// use gosched::chan::{RecvError, SendError, bounded};
    ///
    /// let (s, r) = bounded(2);
    /// s.send(1).unwrap();
    /// assert!(s.close());
    /// assert_eq!(s.send(2), Err(SendError(2)));
    /// assert_eq!(r.recv(), Ok(1));
    /// assert_eq!(r.recv(), Err(RecvError));
    /// assert!(!s.close());
    /// ```
    pub fn close(&self) -> bool {
        self.chan().close()
    }

    /// Whether no message is in the channel; always so for capacity 0.
    ///
    /// ```
    /// let (s, _r) = gosched::chan::unbounded();
    /// assert!(s.is_empty());
    /// s.send(1).unwrap();
    /// assert!(!s.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.chan().is_empty()
    }

    /// Whether there is no room; always so for capacity 0, never for an unbounded channel.
    ///
    /// ```
    /// let (s, _r) = gosched::chan::bounded(1);
    /// assert!(!s.is_full());
    /// s.send(1).unwrap();
    /// assert!(s.is_full());
    /// ```
    pub fn is_full(&self) -> bool {
        self.chan().is_full()
    }

    /// How many messages are in the channel.
    ///
    /// ```
    /// let (s, _r) = gosched::chan::unbounded();
    /// s.send(1).unwrap();
    /// s.send(2).unwrap();
    /// assert_eq!(s.len(), 2);
    /// ```
    pub fn len(&self) -> usize {
        self.chan().len()
    }

    /// How many messages there is room for; None for an unbounded channel.
    ///
    /// ```
    /// use gosched::chan::{bounded, unbounded};
    ///
    /// assert_eq!(bounded::<i32>(5).0.capacity(), Some(5));
    /// assert_eq!(unbounded::<i32>().0.capacity(), None);
    /// ```
    pub fn capacity(&self) -> Option<usize> {
        self.chan().capacity()
    }

    /// Whether both send into the same channel.
    ///
    /// ```
    /// use gosched::chan::unbounded;
    ///
    /// let (s, _r) = unbounded::<i32>();
    /// assert!(s.same_channel(&s.clone()));
    /// assert!(!s.same_channel(&unbounded().0));
    /// ```
    pub fn same_channel(&self, other: &Sender<T>) -> bool {
        self.chan == other.chan
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.chan().retain_sender();
        // SAFETY: D1, the new handle owns the reference that was just taken.
        unsafe { Sender::new(self.chan) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // SAFETY: D1, the handle's own reference, which is not used any more.
        unsafe { Chan::release_sender(self.chan) };
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("Sender { .. }")
    }
}
