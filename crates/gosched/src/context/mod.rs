//! Cancellation and deadlines that propagate down a tree, as Go's `context` package.
//!
//! A caller can thus stop all work that it started, across goroutines and libraries. This file has
//! the public API; `node` has the tree.

mod node;

use std::error::Error;
use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::{Duration, Instant};

use node::{Node, NodeRef};

use crate::chan::{self, Receiver};

/// A signal that work should stop: it was cancelled, or its deadline has passed.
///
/// A function that starts work makes a child of its own context, with [`with_cancel`],
/// [`with_timeout`] or [`with_deadline`], and passes the child on. When a context ends, all its
/// descendants end too. Its parents and siblings do not. The work checks [`err`] now and then, or
/// waits on [`done`] together with its other waits.
///
/// Clones are handles of the same context. A child keeps its parents alive. A context without
/// handles and children is freed, also if it was never cancelled. A context owns no goroutine,
/// thread or timer: it costs only its memory. It works on goroutines and plain threads, with or
/// without a runtime.
///
/// ```
/// use std::time::Duration;
/// use gosched::chan::{self, Receiver};
/// use gosched::context::{Context, ContextError};
///
/// /// Adds up the numbers, until the context is done.
/// fn sum(ctx: &Context, numbers: &Receiver<u32>) -> Result<u32, ContextError> {
///     let mut sum = 0;
///     loop {
///         chan::select! {
///             recv(numbers) -> number => match number {
///                 Ok(number) => sum += number,
///                 Err(_) => return Ok(sum),
///             },
///             recv(ctx.done()) -> _ => return Err(ctx.err().unwrap()),
///         }
///     }
/// }
///
/// gosched::run(|| {
///     let server = Context::background().with_cancel();
///     let request = server.with_timeout(Duration::from_millis(10));
///     let (s, r) = chan::unbounded();
///     s.send(1).unwrap();
///     assert_eq!(sum(&request, &r), Err(ContextError::DeadlineExceeded));
///
///     let request = server.with_timeout(Duration::from_secs(3600));
///     gosched::go(move || server.cancel());
///     assert_eq!(sum(&request, &r), Err(ContextError::Canceled));
/// });
/// ```
///
/// [`with_cancel`]: Context::with_cancel
/// [`with_timeout`]: Context::with_timeout
/// [`with_deadline`]: Context::with_deadline
/// [`err`]: Context::err
/// [`done`]: Context::done
#[derive(Clone)]
pub struct Context {
    /// None: the background context.
    node: Option<NodeRef>,
}

impl UnwindSafe for Context {}
impl RefUnwindSafe for Context {}

impl Context {
    /// Returns the root context, which never ends.
    ///
    /// Never blocks.
    ///
    /// ```
    /// use gosched::context::Context;
    ///
    /// const ROOT: Context = Context::background();
    /// ROOT.cancel(); // has no effect
    /// assert_eq!(ROOT.err(), None);
    /// ```
    #[must_use]
    pub const fn background() -> Context {
        Context { node: None }
    }

    /// Creates a child that ends when it is cancelled, or when this context ends.
    ///
    /// Never blocks.
    ///
    /// ```
    /// use gosched::context::{Context, ContextError};
    ///
    /// let parent = Context::background().with_cancel();
    /// let [one, other] = [parent.with_cancel(), parent.with_cancel()];
    /// one.cancel();
    /// assert_eq!(one.err(), Some(ContextError::Canceled));
    /// assert_eq!(other.err(), None);
    /// parent.cancel();
    /// assert_eq!(other.err(), Some(ContextError::Canceled));
    /// assert_eq!(parent.with_cancel().err(), Some(ContextError::Canceled));
    /// ```
    #[must_use = "a context without handles ends nothing"]
    pub fn with_cancel(&self) -> Context {
        self.child(None)
    }

    /// Creates a child that also ends after `timeout`.
    ///
    /// It ends after `timeout`, when it is cancelled, or when this context ends, whichever is
    /// first. `Duration::MAX` means no timeout. Never blocks.
    ///
    /// ```
    /// use std::time::Duration;
    /// use gosched::context::{Context, ContextError};
    ///
    /// let ctx = Context::background().with_timeout(Duration::from_millis(5));
    /// assert!(ctx.done().recv().is_err()); // waits for the end
    /// assert_eq!(ctx.err(), Some(ContextError::DeadlineExceeded));
    /// ```
    #[must_use = "a context without handles ends nothing"]
    pub fn with_timeout(&self, timeout: Duration) -> Context {
        self.child(Instant::now().checked_add(timeout))
    }

    /// Creates a child that also ends at `deadline`.
    ///
    /// It ends at `deadline`, when it is cancelled, or when this context ends, whichever is first.
    /// A deadline after the parent's has no effect. Never blocks.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use gosched::context::{Context, ContextError};
    ///
    /// let now = Instant::now();
    /// let parent = Context::background().with_deadline(now + Duration::from_secs(60));
    /// let child = parent.with_deadline(now + Duration::from_secs(3600));
    /// assert_eq!(child.deadline(), parent.deadline());
    /// assert_eq!(parent.with_deadline(now).err(), Some(ContextError::DeadlineExceeded));
    /// ```
    #[must_use = "a context without handles ends nothing"]
    pub fn with_deadline(&self, deadline: Instant) -> Context {
        self.child(Some(deadline))
    }

    fn child(&self, deadline: Option<Instant>) -> Context {
        Context {
            node: Some(Node::child_of(self.node.as_ref(), deadline)),
        }
    }

    /// Cancels the context and all its descendants.
    ///
    /// Their [`err`](Context::err) then returns [`Canceled`](ContextError::Canceled), and all waits
    /// on [`done`](Context::done) end. A context that has ended, or the background context, is not
    /// changed.
    ///
    /// The cost is proportional to the number of descendants. The goroutine is not preempted
    /// meanwhile. Never blocks: if another call already cancels the context, this returns before
    /// that call has finished.
    ///
    /// ```
    /// # gosched::run(|| {
    /// let ctx = gosched::context::Context::background().with_cancel();
    /// let waiter = {
    ///     let ctx = ctx.clone();
    ///     gosched::thread::spawn(move || ctx.done().recv().is_err())
    /// };
    /// ctx.cancel();
    /// assert!(waiter.join().unwrap());
    /// # });
    /// ```
    pub fn cancel(&self) {
        if let Some(node) = &self.node {
            node.cancel();
        }
    }

    /// Returns why the context has ended, or `None` while it has not.
    ///
    /// The first reason stays. If this returns a reason, [`done`](Context::done) is closed, and
    /// vice versa. Never blocks. See the example of [`Context`].
    #[must_use]
    pub fn err(&self) -> Option<ContextError> {
        self.node.as_ref()?.err()
    }

    /// Returns a channel without messages that is closed when the context ends.
    ///
    /// A receive then fails, and is ready in a [`select!`](crate::select). The channel of the
    /// background context never closes. Receivers cannot close it.
    ///
    /// This never blocks. Receiving from the channel blocks the calling goroutine or plain thread.
    /// Clones of the channel do not keep the context alive. Without handles nothing could end the
    /// context, so these clones then find the channel closed.
    ///
    /// ```
    /// use gosched::chan::TryRecvError;
    /// use gosched::context::Context;
    ///
    /// let ctx = Context::background().with_cancel();
    /// assert_eq!(ctx.done().try_recv(), Err(TryRecvError::Empty));
    /// ctx.cancel();
    /// assert_eq!(ctx.done().try_recv(), Err(TryRecvError::Disconnected));
    /// ```
    #[must_use]
    pub fn done(&self) -> &Receiver<()> {
        static NEVER: Receiver<()> = chan::never();
        match &self.node {
            Some(node) => node.done.receiver(),
            None => &NEVER,
        }
    }

    /// Whether the context may end. Only the background context never does.
    pub(crate) fn may_end(&self) -> bool {
        self.node.is_some()
    }

    /// Returns the earliest deadline from this context to the root, if any.
    ///
    /// Never blocks. See the example of [`with_deadline`](Context::with_deadline).
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.node.as_ref()?.deadline
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            None => f.pad("Context(background)"),
            Some(_) => f
                .debug_struct("Context")
                .field("err", &self.err())
                .field("deadline", &self.deadline())
                .finish(),
        }
    }
}

/// The reason why a [`Context`] has ended.
///
/// ```
/// use gosched::context::ContextError;
///
/// assert_eq!(ContextError::Canceled.to_string(), "context canceled");
/// assert_eq!(ContextError::DeadlineExceeded.to_string(), "context deadline exceeded");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContextError {
    /// [`Context::cancel`] was called on the context or an ancestor.
    Canceled,
    /// The deadline has passed.
    DeadlineExceeded,
}

impl fmt::Display for ContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ContextError::Canceled => "context canceled",
            ContextError::DeadlineExceeded => "context deadline exceeded",
        })
    }
}

impl Error for ContextError {}

/// The error of an operation that its context has ended.
///
/// The kind is [`TimedOut`](io::ErrorKind::TimedOut) after the deadline, else
/// [`Other`](io::ErrorKind::Other). The reason is in the error.
///
/// ```
/// use gosched::context::ContextError;
/// use std::io;
///
/// let error = io::Error::from(ContextError::Canceled);
/// let reason = error.get_ref().and_then(|inner| inner.downcast_ref());
/// assert_eq!(reason, Some(&ContextError::Canceled));
/// assert_eq!(io::Error::from(ContextError::DeadlineExceeded).kind(), io::ErrorKind::TimedOut);
/// ```
impl From<ContextError> for io::Error {
    fn from(reason: ContextError) -> io::Error {
        let kind = match reason {
            ContextError::Canceled => io::ErrorKind::Other,
            ContextError::DeadlineExceeded => io::ErrorKind::TimedOut,
        };
        io::Error::new(kind, reason)
    }
}
