//! The receiving side of a channel.
//!
//! The receiver that [`never`](super::never) makes has no channel behind it.

use std::fmt;
use std::mem::MaybeUninit;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::any::Chan;
use super::blocking::Slow;
use super::core::RECV;
use super::err::{RecvError, RecvTimeoutError, TryRecvError};
use super::iter::{Iter, TryIter};
use crate::sched::waiting::on::On;
use crate::sched::waiting::waitq::{Outcome, Waiter};
use crate::sys;
use crate::thread::park::check_cancelled;

/// The receiving side of a channel. Clones receive from the same channel; each message goes to one
/// of them. When the last one is dropped the messages in the channel are dropped, and senders get
/// theirs back.
///
/// Only [`recv`](Receiver::recv), [`recv_timeout`](Receiver::recv_timeout),
/// [`recv_deadline`](Receiver::recv_deadline) and the iterator of [`iter`](Receiver::iter) block.
///
/// ```
/// # gosched::run(|| {
/// let (s, r1) = gosched::chan::bounded(0);
/// let r2 = r1.clone();
/// let one = gosched::thread::spawn(move || r1.recv().unwrap());
/// let other = gosched::thread::spawn(move || r2.recv().unwrap());
/// s.send(1).unwrap();
/// s.send(2).unwrap();
/// assert_eq!(one.join().unwrap() + other.join().unwrap(), 3);
/// # });
/// ```
pub struct Receiver<T> {
    /// None: nothing ever comes.
    pub(super) chan: Option<NonNull<Chan<T>>>,
}

// SAFETY: D1, U10: any number of threads may use a channel at a time. It hands each value from one
// thread to another, so `T: Send` is enough.
unsafe impl<T: Send> Send for Receiver<T> {}
// SAFETY: D1, U10: a shared handle receives values, on any thread, which `T: Send` allows.
unsafe impl<T: Send> Sync for Receiver<T> {}

impl<T> UnwindSafe for Receiver<T> {}
impl<T> RefUnwindSafe for Receiver<T> {}

/// Waits until the deadline, on a receiver without a channel.
#[cold]
fn wait_in_vain(deadline_ns: u64) {
    loop {
        check_cancelled();
        let waiter = Waiter::new();
        waiter.on.set(On::NEVER);
        if waiter.wait(&RECV, deadline_ns) == Outcome::TimedOut {
            return;
        }
    }
}

impl<T> Receiver<T> {
    /// # Safety
    /// The caller gives away a receiver's reference to the channel.
    pub(super) unsafe fn new(chan: NonNull<Chan<T>>) -> Receiver<T> {
        Receiver { chan: Some(chan) }
    }

    /// None: nothing ever comes.
    #[inline]
    pub(super) fn chan(&self) -> Option<&Chan<T>> {
        // SAFETY: D1, the handle owns a reference.
        self.chan.map(|chan| unsafe { chan.as_ref() })
    }

    fn recv_until(&self, deadline_ns: u64) -> Result<T, RecvTimeoutError> {
        match self.chan() {
            Some(chan) => chan.recv(deadline_ns),
            None => {
                wait_in_vain(deadline_ns);
                Err(RecvTimeoutError::Timeout)
            }
        }
    }

    /// Receives without waiting. From a channel of capacity 0 it receives only if a sender waits
    /// there right now.
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// If there is no message; [`Disconnected`](TryRecvError::Disconnected) if there will never be
    /// one.
    ///
    /// ```
    /// use gosched::chan::{TryRecvError, unbounded};
    ///
    /// let (s, r) = unbounded();
    /// assert_eq!(r.try_recv(), Err(TryRecvError::Empty));
    /// s.send(5).unwrap();
    /// drop(s);
    /// assert_eq!(r.try_recv(), Ok(5));
    /// assert_eq!(r.try_recv(), Err(TryRecvError::Disconnected));
    /// ```
    #[inline]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        match self.chan() {
            Some(chan) => chan.try_recv(),
            None => Err(TryRecvError::Empty),
        }
    }

    /// Receives; waits for a message. Receivers that wait are served in order.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// If the channel is empty, and closed or without senders, at the start or while this call
    /// waits.
    ///
    /// ```
    /// use gosched::chan::{RecvError, unbounded};
    ///
    /// # gosched::run(|| {
    /// let (s, r) = unbounded();
    /// gosched::go(move || s.send(5).unwrap());
    /// assert_eq!(r.recv(), Ok(5));
    /// assert_eq!(r.recv(), Err(RecvError)); // its sender is gone
    /// # });
    /// ```
    #[inline]
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut to = MaybeUninit::<T>::uninit();
        let Some(chan) = self.chan() else {
            wait_in_vain(u64::MAX);
            return Err(RecvError);
        };
        // SAFETY: D1, `to` is a place for a T. It is initialised if the first call returns true, or
        // the second one `Moved`.
        unsafe {
            let to_ptr = to.as_mut_ptr();
            match chan.recv_now(to_ptr) || chan.recv_to(to_ptr, u64::MAX) == Slow::Moved {
                true => Ok(to.assume_init()),
                false => Err(RecvError),
            }
        }
    }

    /// As [`recv`](Receiver::recv), waiting for `timeout` at most. `Duration::MAX` is for ever.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// If the time is over, or the channel is empty, and closed or without senders.
    ///
    /// ```
    /// use std::time::Duration;
    /// use gosched::chan::{RecvTimeoutError, unbounded};
    ///
    /// let (_s, r) = unbounded::<i32>();
    /// assert_eq!(r.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
    /// ```
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.recv_until(sys::deadline_after(timeout))
    }

    /// As [`recv`](Receiver::recv), waiting until `deadline` at most.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// If the time is over, or the channel is empty, and closed or without senders.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use gosched::chan::{RecvTimeoutError, unbounded};
    ///
    /// let (_s, r) = unbounded::<i32>();
    /// let deadline = Instant::now() + Duration::from_millis(1);
    /// assert_eq!(r.recv_deadline(deadline), Err(RecvTimeoutError::Timeout));
    /// assert!(Instant::now() >= deadline);
    /// ```
    pub fn recv_deadline(&self, deadline: Instant) -> Result<T, RecvTimeoutError> {
        self.recv_until(sys::deadline_of(deadline))
    }

    /// Closes the channel for all its senders and receivers. Returns true the first time. It does
    /// nothing to [`after`](super::after), [`at`](super::at), [`tick`](super::tick) and
    /// [`never`](super::never), and returns false for them.
    ///
    /// Blocks nothing. Senders get their message back in an error, both those that wait and later
    /// ones. Receivers get what is in the channel, then [`RecvError`].
    ///
    /// ```
    /// use gosched::chan::{RecvError, SendError, never, unbounded};
    ///
    /// let (s, r) = unbounded();
    /// s.send(1).unwrap();
    /// assert!(r.close());
    /// assert_eq!(s.send(2), Err(SendError(2)));
    /// assert_eq!(r.recv(), Ok(1));
    /// assert_eq!(r.recv(), Err(RecvError));
    /// assert!(!r.close());
    /// assert!(!never::<i32>().close());
    /// ```
    pub fn close(&self) -> bool {
        self.chan().is_some_and(Chan::close_by_receiver)
    }

    /// Whether no message is in the channel; always so for capacity 0.
    ///
    /// ```
    /// let (s, r) = gosched::chan::unbounded();
    /// assert!(r.is_empty());
    /// s.send(1).unwrap();
    /// assert!(!r.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.chan().is_none_or(Chan::is_empty)
    }

    /// Whether there is no room; always so for capacity 0, never for an unbounded channel.
    ///
    /// ```
    /// let (s, r) = gosched::chan::bounded(1);
    /// assert!(!r.is_full());
    /// s.send(1).unwrap();
    /// assert!(r.is_full());
    /// ```
    pub fn is_full(&self) -> bool {
        self.chan().is_none_or(Chan::is_full)
    }

    /// How many messages are in the channel.
    ///
    /// ```
    /// let (s, r) = gosched::chan::unbounded();
    /// s.send(1).unwrap();
    /// s.send(2).unwrap();
    /// assert_eq!(r.len(), 2);
    /// ```
    pub fn len(&self) -> usize {
        self.chan().map_or(0, Chan::len)
    }

    /// How many messages there is room for; None for an unbounded channel.
    ///
    /// ```
    /// use gosched::chan::{bounded, never, unbounded};
    ///
    /// assert_eq!(bounded::<i32>(5).1.capacity(), Some(5));
    /// assert_eq!(unbounded::<i32>().1.capacity(), None);
    /// assert_eq!(never::<i32>().capacity(), Some(0));
    /// ```
    pub fn capacity(&self) -> Option<usize> {
        self.chan().map_or(Some(0), Chan::capacity)
    }

    /// Receives until the channel is empty, and closed or without senders; see [`Iter`].
    ///
    /// Making it blocks nothing; its `next` blocks the goroutine, or the plain thread it is called
    /// on.
    ///
    /// ```
    /// let (s, r) = gosched::chan::unbounded();
    /// s.send(1).unwrap();
    /// s.send(2).unwrap();
    /// drop(s); // without this the loop would wait for more
    /// assert_eq!(r.iter().collect::<Vec<_>>(), [1, 2]);
    /// ```
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { receiver: self }
    }

    /// Receives what is there now, without waiting; see [`TryIter`].
    ///
    /// Blocks nothing.
    ///
    /// ```
    /// let (s, r) = gosched::chan::unbounded();
    /// s.send(1).unwrap();
    /// s.send(2).unwrap();
    /// assert_eq!(r.try_iter().collect::<Vec<_>>(), [1, 2]);
    /// ```
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter { receiver: self }
    }

    /// Whether both receive from the same channel.
    ///
    /// ```
    /// use gosched::chan::{never, unbounded};
    ///
    /// let (_s, r) = unbounded::<i32>();
    /// assert!(r.same_channel(&r.clone()));
    /// assert!(!r.same_channel(&unbounded().1));
    /// assert!(never::<i32>().same_channel(&never()));
    /// ```
    pub fn same_channel(&self, other: &Receiver<T>) -> bool {
        self.chan == other.chan
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        if let Some(chan) = self.chan() {
            chan.retain_receiver();
        }
        Receiver { chan: self.chan }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if let Some(chan) = self.chan {
            // SAFETY: D1, the handle's own reference, which is not used any more.
            unsafe { Chan::release_receiver(chan) };
        }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("Receiver { .. }")
    }
}
