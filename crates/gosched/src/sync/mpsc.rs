//! Channels with the API of [`std::sync::mpsc`]: many senders, one receiver.
//!
//! std's channels block the thread. An operation that waits here blocks only its goroutine. A
//! program that uses std's channels compiles after `use std::sync::mpsc` has become `use
//! gosched::sync::mpsc`. On a plain thread the operations block the thread, as std's do.
//!
//! ```
//! use gosched::sync::mpsc;
//! use gosched::thread;
//!
//! gosched::run(|| {
//!     let (sender, receiver) = mpsc::channel();
//!     for id in 0..10 {
//!         let sender = sender.clone();
//!         thread::spawn(move || sender.send(id).unwrap());
//!     }
//!     drop(sender);
//!     assert_eq!(receiver.iter().sum::<i32>(), 45);
//! });
//! ```
//!
//! These are [`gosched::chan`](crate::chan)'s channels under std's names: the waiters, the order of
//! messages and the cost are the same. `chan` also has several receivers, `select!`, closing, and
//! deadlines for senders. The errors are std's own types.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::RefUnwindSafe;
use std::time::Duration;

use crate::chan;

#[doc(no_inline)]
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};

/// Creates a channel with room for any number of messages.
///
/// A send never waits. Never blocks. See [`std::sync::mpsc::channel`].
///
/// ```
/// use gosched::sync::mpsc::channel;
///
/// gosched::run(|| {
///     let (sender, receiver) = channel();
///     gosched::go(move || sender.send("hello").unwrap());
///     assert_eq!(receiver.recv(), Ok("hello"));
/// });
/// ```
#[must_use]
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = chan::unbounded();
    (Sender { inner: sender }, Receiver::of(receiver))
}

/// Creates a channel with room for `bound` messages.
///
/// A send waits while the channel is full. With `bound` 0 there is no room: each send waits until
/// the receiver takes the message. Never blocks. See [`std::sync::mpsc::sync_channel`].
///
/// # Panics
/// If there is no memory for so many messages.
///
/// ```
/// use gosched::sync::mpsc::sync_channel;
///
/// gosched::run(|| {
///     let (sender, receiver) = sync_channel(1);
///     sender.send(1).unwrap(); // there is room
///     gosched::go(move || sender.send(2).unwrap()); // waits until the receiver has taken 1
///     assert_eq!(receiver.recv(), Ok(1));
///     assert_eq!(receiver.recv(), Ok(2));
/// });
/// ```
#[must_use]
#[track_caller]
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let (sender, receiver) = chan::bounded(bound);
    (SyncSender { inner: sender }, Receiver::of(receiver))
}

/// The sending side of a [`channel`].
///
/// Clones send into the same channel. When the last one is dropped, the receiver gets the messages
/// that are left, and then [`RecvError`]. See [`std::sync::mpsc::Sender`], and the example of
/// [`channel`].
pub struct Sender<T> {
    inner: chan::Sender<T>,
}

impl<T> Sender<T> {
    /// Sends a message.
    ///
    /// The result `Ok` does not mean that the message is received: the receiver may be dropped
    /// later. Never blocks.
    ///
    /// # Errors
    /// The message comes back if the receiver has been dropped.
    ///
    /// ```
    /// use gosched::sync::mpsc::{SendError, channel};
    ///
    /// let (sender, receiver) = channel();
    /// assert_eq!(sender.send(1), Ok(()));
    /// drop(receiver);
    /// assert_eq!(sender.send(2), Err(SendError(2)));
    /// ```
    #[inline]
    pub fn send(&self, t: T) -> Result<(), SendError<T>> {
        self.inner.send(t).map_err(send_error)
    }
}

/// The sending side of a [`sync_channel`].
///
/// Clones send into the same channel. When the last one is dropped, the receiver gets the messages
/// that are left, and then [`RecvError`]. See [`std::sync::mpsc::SyncSender`], and the example of
/// [`sync_channel`].
pub struct SyncSender<T> {
    inner: chan::Sender<T>,
}

impl<T> SyncSender<T> {
    /// Sends a message, waiting while the channel is full.
    ///
    /// In a channel of bound 0 it waits until the receiver takes the message. Blocks the calling
    /// goroutine or plain thread.
    ///
    /// # Errors
    /// The message comes back if the receiver has been dropped, before the call or during it.
    ///
    /// ```
    /// use gosched::sync::mpsc::{SendError, sync_channel};
    ///
    /// gosched::run(|| {
    ///     let (sender, receiver) = sync_channel(0);
    ///     gosched::go(move || assert_eq!(receiver.recv(), Ok(1)));
    ///     assert_eq!(sender.send(1), Ok(()));
    ///     assert_eq!(sender.send(2), Err(SendError(2)));
    /// });
    /// ```
    #[inline]
    pub fn send(&self, t: T) -> Result<(), SendError<T>> {
        self.inner.send(t).map_err(send_error)
    }

    /// Sends a message if that is possible without waiting.
    ///
    /// In a channel of bound 0 it is possible only while the receiver waits. Never blocks.
    ///
    /// # Errors
    /// The message comes back if there is no room, or if the receiver has been dropped.
    ///
    /// ```
    /// use gosched::sync::mpsc::{TrySendError, sync_channel};
    ///
    /// let (sender, receiver) = sync_channel(1);
    /// assert_eq!(sender.try_send(1), Ok(()));
    /// assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    /// drop(receiver);
    /// assert_eq!(sender.try_send(3), Err(TrySendError::Disconnected(3)));
    /// ```
    #[inline]
    pub fn try_send(&self, t: T) -> Result<(), TrySendError<T>> {
        self.inner.try_send(t).map_err(|error| match error {
            chan::TrySendError::Full(t) => TrySendError::Full(t),
            chan::TrySendError::Disconnected(t) => TrySendError::Disconnected(t),
        })
    }
}

fn send_error<T>(chan::SendError(t): chan::SendError<T>) -> SendError<T> {
    SendError(t)
}

/// The receiving side of a [`channel`] or a [`sync_channel`].
///
/// There is one, and one goroutine or thread at a time uses it: it is `Send` but not `Sync`.
/// Dropping it drops the messages in the channel. Later sends fail. See
/// [`std::sync::mpsc::Receiver`].
///
/// ```
/// use gosched::sync::mpsc::channel;
///
/// gosched::run(|| {
///     let (sender, receiver) = channel();
///     sender.send(6).unwrap();
///     sender.send(7).unwrap();
///     drop(sender);
///     assert_eq!(receiver.into_iter().product::<i32>(), 42);
/// });
/// ```
///
/// ```compile_fail,E0277
/// # use gosched::sync::mpsc::channel;
/// let (_sender, receiver) = channel::<i32>();
/// std::thread::scope(|scope| {
///     scope.spawn(|| receiver.recv()); // shares the receiver
/// });
/// ```
pub struct Receiver<T> {
    inner: chan::Receiver<T>,
    is_not_sync: PhantomData<Cell<()>>,
}

// As std's: the cell is there only for what it is not.
impl<T> RefUnwindSafe for Receiver<T> {}

impl<T> Receiver<T> {
    fn of(inner: chan::Receiver<T>) -> Receiver<T> {
        Receiver {
            inner,
            is_not_sync: PhantomData,
        }
    }

    /// Receives a message if that is possible without waiting.
    ///
    /// Never blocks.
    ///
    /// # Errors
    /// [`Empty`](TryRecvError::Empty) if there is no message now,
    /// [`Disconnected`](TryRecvError::Disconnected) if no message will come any more.
    ///
    /// ```
    /// use gosched::sync::mpsc::{TryRecvError, channel};
    ///
    /// let (sender, receiver) = channel();
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    /// sender.send(1).unwrap();
    /// drop(sender);
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
    /// ```
    #[inline]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.inner.try_recv().map_err(|error| match error {
            chan::TryRecvError::Empty => TryRecvError::Empty,
            chan::TryRecvError::Disconnected => TryRecvError::Disconnected,
        })
    }

    /// Receives a message, waiting for one.
    ///
    /// Blocks the calling goroutine or plain thread.
    ///
    /// # Errors
    /// If the channel is empty and all senders have been dropped, before the call or during it.
    ///
    /// ```
    /// use gosched::sync::mpsc::{RecvError, channel};
    ///
    /// gosched::run(|| {
    ///     let (sender, receiver) = channel();
    ///     gosched::go(move || sender.send(1).unwrap());
    ///     assert_eq!(receiver.recv(), Ok(1));
    ///     assert_eq!(receiver.recv(), Err(RecvError));
    /// });
    /// ```
    #[inline]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.inner.recv().map_err(|chan::RecvError| RecvError)
    }

    /// As [`recv`](Receiver::recv), but waits for at most `timeout`.
    ///
    /// `Duration::MAX` means no timeout. A message that is there is received even if the timeout is
    /// zero. Blocks the calling goroutine or plain thread.
    ///
    /// # Errors
    /// [`Timeout`](RecvTimeoutError::Timeout) after the timeout,
    /// [`Disconnected`](RecvTimeoutError::Disconnected) if no message will come any more.
    ///
    /// ```
    /// use gosched::sync::mpsc::{RecvTimeoutError, channel};
    /// use std::time::Duration;
    ///
    /// let soon = Duration::from_millis(1);
    /// let (sender, receiver) = channel::<i32>();
    /// assert_eq!(receiver.recv_timeout(soon), Err(RecvTimeoutError::Timeout));
    /// drop(sender);
    /// assert_eq!(receiver.recv_timeout(soon), Err(RecvTimeoutError::Disconnected));
    /// ```
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.inner
            .recv_timeout(timeout)
            .map_err(|error| match error {
                chan::RecvTimeoutError::Timeout => RecvTimeoutError::Timeout,
                chan::RecvTimeoutError::Disconnected => RecvTimeoutError::Disconnected,
            })
    }

    /// Returns an iterator over the messages that ends when no message will come any more.
    ///
    /// Its `next` blocks the calling goroutine or plain thread; creating it never blocks. See the
    /// example of [`Iter`].
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { rx: self }
    }

    /// Returns an iterator over the messages that are there now.
    ///
    /// Neither this nor its `next` blocks. See the example of [`TryIter`].
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter { rx: self }
    }
}

/// An iterator over the messages of a [`Receiver`], which [`Receiver::iter`] returns.
///
/// It ends when no message will come any more. `next` blocks the calling goroutine or plain thread.
///
/// ```
/// use gosched::sync::mpsc::channel;
///
/// gosched::run(|| {
///     let (sender, receiver) = channel();
///     gosched::go(move || (1..=3).for_each(|n| sender.send(n).unwrap()));
///     let mut sum = 0;
///     for n in &receiver {
///         sum += n;
///     }
///     assert_eq!(sum, 6);
///     assert_eq!(receiver.iter().next(), None);
/// });
/// ```
#[derive(Debug)]
pub struct Iter<'a, T> {
    rx: &'a Receiver<T>,
}

/// An iterator over the messages that are there now, which [`Receiver::try_iter`] returns.
///
/// `next` never blocks. It may return a message after it has returned `None`.
///
/// ```
/// let (sender, receiver) = gosched::sync::mpsc::channel();
/// sender.send(1).unwrap();
/// sender.send(2).unwrap();
/// let mut now = receiver.try_iter();
/// assert_eq!(now.by_ref().collect::<Vec<_>>(), [1, 2]);
/// sender.send(3).unwrap();
/// assert_eq!(now.next(), Some(3));
/// ```
#[derive(Debug)]
pub struct TryIter<'a, T> {
    rx: &'a Receiver<T>,
}

/// As [`Iter`], but it owns the [`Receiver`]. A `for` loop over a receiver creates it.
///
/// `next` blocks the calling goroutine or plain thread.
///
/// ```
/// use gosched::sync::mpsc::sync_channel;
///
/// gosched::run(|| {
///     let (sender, receiver) = sync_channel(0);
///     gosched::go(move || (1..=3).for_each(|n| sender.send(n).unwrap()));
///     assert_eq!(receiver.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
/// });
/// ```
#[derive(Debug)]
pub struct IntoIter<T> {
    rx: Receiver<T>,
}

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.rx.recv().ok()
    }
}

impl<T> Iterator for TryIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.rx.try_recv().ok()
    }
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.rx.recv().ok()
    }
}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter { rx: self }
    }
}

/// The clone sends into the same channel.
impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender {
            inner: self.inner.clone(),
        }
    }
}

/// The clone sends into the same channel.
impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> SyncSender<T> {
        SyncSender {
            inner: self.inner.clone(),
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for SyncSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncSender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
