//! The errors of channel operations.
//!
//! Names, conversions and texts are crossbeam-channel's, so that programs and their logs stay as
//! they are. An error of a send holds the message, of any type. Its `Debug` shows that there is a
//! message, not its content, in quotes as crossbeam-channel does.

use std::error::Error;
use std::fmt;

/// [`send`](super::Sender::send) failed: the channel is closed or has no receivers. The message
/// comes back.
///
/// None of its methods blocks.
///
/// ```
/// use gosched::chan::{SendError, unbounded};
///
/// let (s, r) = unbounded();
/// drop(r);
/// assert_eq!(s.send("hello"), Err(SendError("hello")));
/// ```
#[derive(PartialEq, Eq, Clone, Copy)]
pub struct SendError<T>(pub T);

/// [`try_send`](super::Sender::try_send) failed. The message comes back.
///
/// None of its methods blocks.
///
/// ```
/// use gosched::chan::{TrySendError, bounded};
///
/// let (s, r) = bounded(1);
/// assert_eq!(s.try_send(1), Ok(()));
/// assert_eq!(s.try_send(2), Err(TrySendError::Full(2)));
/// drop(r);
/// assert_eq!(s.try_send(3), Err(TrySendError::Disconnected(3)));
/// ```
#[derive(PartialEq, Eq, Clone, Copy)]
pub enum TrySendError<T> {
    /// There is no room; on a channel of capacity 0, no receiver waits for a message.
    Full(T),
    /// The channel is closed or has no receivers.
    Disconnected(T),
}

/// [`send_timeout`](super::Sender::send_timeout) or [`send_deadline`](super::Sender::send_deadline)
/// failed. The message comes back.
///
/// None of its methods blocks.
///
/// ```
/// use std::time::Duration;
/// use gosched::chan::{SendTimeoutError, bounded};
///
/// let (s, r) = bounded(0);
/// let soon = Duration::from_millis(1);
/// assert_eq!(s.send_timeout(1, soon), Err(SendTimeoutError::Timeout(1)));
/// drop(r);
/// assert_eq!(s.send_timeout(2, soon), Err(SendTimeoutError::Disconnected(2)));
/// ```
#[derive(PartialEq, Eq, Clone, Copy)]
pub enum SendTimeoutError<T> {
    /// The time was over before there was room, or before there was a receiver on a channel of
    /// capacity 0.
    Timeout(T),
    /// The channel is closed or has no receivers.
    Disconnected(T),
}

/// [`recv`](super::Receiver::recv) failed: the channel is empty, and closed or without senders.
///
/// ```
/// use gosched::chan::{RecvError, unbounded};
///
/// let (s, r) = unbounded::<i32>();
/// drop(s);
/// assert_eq!(r.recv(), Err(RecvError));
/// ```
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub struct RecvError;

/// [`try_recv`](super::Receiver::try_recv) failed.
///
/// None of its methods blocks.
///
/// ```
/// use gosched::chan::{TryRecvError, unbounded};
///
/// let (s, r) = unbounded::<i32>();
/// assert_eq!(r.try_recv(), Err(TryRecvError::Empty));
/// drop(s);
/// assert_eq!(r.try_recv(), Err(TryRecvError::Disconnected));
/// ```
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub enum TryRecvError {
    /// There is no message; on a channel of capacity 0, no sender waits to send one.
    Empty,
    /// The channel is empty, and closed or without senders.
    Disconnected,
}

/// [`recv_timeout`](super::Receiver::recv_timeout) or
/// [`recv_deadline`](super::Receiver::recv_deadline) failed.
///
/// None of its methods blocks.
///
/// ```
/// use std::time::Duration;
/// use gosched::chan::{RecvTimeoutError, unbounded};
///
/// let (s, r) = unbounded::<i32>();
/// let soon = Duration::from_millis(1);
/// assert_eq!(r.recv_timeout(soon), Err(RecvTimeoutError::Timeout));
/// drop(s);
/// assert_eq!(r.recv_timeout(soon), Err(RecvTimeoutError::Disconnected));
/// ```
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub enum RecvTimeoutError {
    /// The time was over before there was a message.
    Timeout,
    /// The channel is empty, and closed or without senders.
    Disconnected,
}

/// [`try_select`](super::Select::try_select) failed: every operation would block.
///
/// ```
/// use gosched::chan::{Select, bounded};
///
/// let (_s, r) = bounded::<i32>(1);
/// let mut select = Select::new();
/// select.recv(&r);
/// assert!(select.try_select().is_err());
/// ```
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub struct TrySelectError;

/// [`select_timeout`](super::Select::select_timeout) or
/// [`select_deadline`](super::Select::select_deadline) failed: no operation could proceed in time.
///
/// ```
/// use std::time::Duration;
/// use gosched::chan::{Select, bounded};
///
/// let (_s, r) = bounded::<i32>(1);
/// let mut select = Select::new();
/// select.recv(&r);
/// assert!(select.select_timeout(Duration::from_millis(1)).is_err());
/// ```
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub struct SelectTimeoutError;

/// [`try_ready`](super::Select::try_ready) failed: every operation would block.
///
/// ```
/// use gosched::chan::{Select, TryReadyError, bounded};
///
/// let (_s, r) = bounded::<i32>(1);
/// let mut select = Select::new();
/// select.recv(&r);
/// assert_eq!(select.try_ready(), Err(TryReadyError));
/// ```
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub struct TryReadyError;

/// [`ready_timeout`](super::Select::ready_timeout) or
/// [`ready_deadline`](super::Select::ready_deadline) failed: no operation could proceed in time.
///
/// ```
/// use std::time::Duration;
/// use gosched::chan::{ReadyTimeoutError, Select, bounded};
///
/// let (_s, r) = bounded::<i32>(1);
/// let mut select = Select::new();
/// select.recv(&r);
/// assert_eq!(select.ready_timeout(Duration::from_millis(1)), Err(ReadyTimeoutError));
/// ```
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub struct ReadyTimeoutError;

// What the texts share.
const SEND_DISCONNECTED: &str = "sending on a disconnected channel";
const RECV_DISCONNECTED: &str = "receiving on an empty and disconnected channel";
const WOULD_BLOCK: &str = "all operations in select would block";
const SELECT_TIMED_OUT: &str = "timed out waiting on select";

impl<T> SendError<T> {
    /// The message.
    ///
    /// ```
    /// use gosched::chan::unbounded;
    ///
    /// let (s, r) = unbounded();
    /// drop(r);
    /// assert_eq!(s.send("hello").unwrap_err().into_inner(), "hello");
    /// ```
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> TrySendError<T> {
    /// The message.
    ///
    /// ```
    /// use gosched::chan::bounded;
    ///
    /// let (s, _r) = bounded(0);
    /// assert_eq!(s.try_send("hello").unwrap_err().into_inner(), "hello");
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            TrySendError::Full(msg) | TrySendError::Disconnected(msg) => msg,
        }
    }

    /// Whether there was no room.
    ///
    /// ```
    /// let (s, _r) = gosched::chan::bounded(0);
    /// assert!(s.try_send(1).unwrap_err().is_full());
    /// ```
    pub fn is_full(&self) -> bool {
        matches!(self, TrySendError::Full(_))
    }

    /// Whether the channel is closed or has no receivers.
    ///
    /// ```
    /// let (s, r) = gosched::chan::bounded(0);
    /// drop(r);
    /// assert!(s.try_send(1).unwrap_err().is_disconnected());
    /// ```
    pub fn is_disconnected(&self) -> bool {
        matches!(self, TrySendError::Disconnected(_))
    }
}

impl<T> SendTimeoutError<T> {
    /// The message.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (s, _r) = gosched::chan::bounded(0);
    /// let error = s.send_timeout("hello", Duration::from_millis(1)).unwrap_err();
    /// assert_eq!(error.into_inner(), "hello");
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            SendTimeoutError::Timeout(msg) | SendTimeoutError::Disconnected(msg) => msg,
        }
    }

    /// Whether the time was over.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (s, _r) = gosched::chan::bounded(0);
    /// assert!(s.send_timeout(1, Duration::from_millis(1)).unwrap_err().is_timeout());
    /// ```
    pub fn is_timeout(&self) -> bool {
        matches!(self, SendTimeoutError::Timeout(_))
    }

    /// Whether the channel is closed or has no receivers.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (s, r) = gosched::chan::bounded(0);
    /// drop(r);
    /// assert!(s.send_timeout(1, Duration::MAX).unwrap_err().is_disconnected());
    /// ```
    pub fn is_disconnected(&self) -> bool {
        matches!(self, SendTimeoutError::Disconnected(_))
    }
}

impl TryRecvError {
    /// Whether there was no message.
    ///
    /// ```
    /// let (_s, r) = gosched::chan::unbounded::<i32>();
    /// assert!(r.try_recv().unwrap_err().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        matches!(self, TryRecvError::Empty)
    }

    /// Whether the channel is empty, and closed or without senders.
    ///
    /// ```
    /// let (s, r) = gosched::chan::unbounded::<i32>();
    /// drop(s);
    /// assert!(r.try_recv().unwrap_err().is_disconnected());
    /// ```
    pub fn is_disconnected(&self) -> bool {
        matches!(self, TryRecvError::Disconnected)
    }
}

impl RecvTimeoutError {
    /// Whether the time was over.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (_s, r) = gosched::chan::unbounded::<i32>();
    /// assert!(r.recv_timeout(Duration::from_millis(1)).unwrap_err().is_timeout());
    /// ```
    pub fn is_timeout(&self) -> bool {
        matches!(self, RecvTimeoutError::Timeout)
    }

    /// Whether the channel is empty, and closed or without senders.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (s, r) = gosched::chan::unbounded::<i32>();
    /// drop(s);
    /// assert!(r.recv_timeout(Duration::MAX).unwrap_err().is_disconnected());
    /// ```
    pub fn is_disconnected(&self) -> bool {
        matches!(self, RecvTimeoutError::Disconnected)
    }
}

impl<T> From<SendError<T>> for TrySendError<T> {
    fn from(SendError(msg): SendError<T>) -> TrySendError<T> {
        TrySendError::Disconnected(msg)
    }
}

impl<T> From<SendError<T>> for SendTimeoutError<T> {
    fn from(SendError(msg): SendError<T>) -> SendTimeoutError<T> {
        SendTimeoutError::Disconnected(msg)
    }
}

impl From<RecvError> for TryRecvError {
    fn from(RecvError: RecvError) -> TryRecvError {
        TryRecvError::Disconnected
    }
}

impl From<RecvError> for RecvTimeoutError {
    fn from(RecvError: RecvError) -> RecvTimeoutError {
        RecvTimeoutError::Disconnected
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt("SendError(..)", f)
    }
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            TrySendError::Full(_) => "Full(..)",
            TrySendError::Disconnected(_) => "Disconnected(..)",
        };
        fmt::Debug::fmt(name, f)
    }
}

impl<T> fmt::Debug for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt("SendTimeoutError(..)", f)
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(SEND_DISCONNECTED)
    }
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TrySendError::Full(_) => "sending on a full channel",
            TrySendError::Disconnected(_) => SEND_DISCONNECTED,
        })
    }
}

impl<T> fmt::Display for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SendTimeoutError::Timeout(_) => "timed out waiting on send operation",
            SendTimeoutError::Disconnected(_) => SEND_DISCONNECTED,
        })
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(RECV_DISCONNECTED)
    }
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TryRecvError::Empty => "receiving on an empty channel",
            TryRecvError::Disconnected => RECV_DISCONNECTED,
        })
    }
}

impl fmt::Display for RecvTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RecvTimeoutError::Timeout => "timed out waiting on receive operation",
            RecvTimeoutError::Disconnected => "channel is empty and disconnected",
        })
    }
}

impl fmt::Display for TrySelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(WOULD_BLOCK)
    }
}

impl fmt::Display for SelectTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(SELECT_TIMED_OUT)
    }
}

impl fmt::Display for TryReadyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(WOULD_BLOCK)
    }
}

impl fmt::Display for ReadyTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(SELECT_TIMED_OUT)
    }
}

impl<T: Send> Error for SendError<T> {}
impl<T: Send> Error for TrySendError<T> {}
impl<T: Send> Error for SendTimeoutError<T> {}
impl Error for RecvError {}
impl Error for TryRecvError {}
impl Error for RecvTimeoutError {}
impl Error for TrySelectError {}
impl Error for SelectTimeoutError {}
impl Error for TryReadyError {}
impl Error for ReadyTimeoutError {}
