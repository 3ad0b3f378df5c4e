//! Cancellation and deadlines that pass down a tree, as Go's `context`.
//!
//! The tree is in `node`; here is what a program sees of it.

mod node;

use std::error::Error;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::{Duration, Instant};

use node::{Node, NodeRef};

use crate::chan::{self, Receiver};

/// Says when work is to stop: it was cancelled, or its time is over.
///
/// Whoever starts work for somebody makes a child of the context that it was given itself, with [`with_cancel`],
/// [`with_timeout`] or [`with_deadline`], and passes that on. When a context ends, everything below it ends too, and nothing
/// above or beside. The work looks at [`err`] now and then, or waits on [`done`] together with whatever else it waits for.
///
/// Clones are handles of the same context. A child holds on to its parents; a context whose last handle is dropped, that has no
/// children and was not cancelled, leaves nothing behind. No goroutine, thread or timer belongs to a context: it costs its
/// memory. It can be used from goroutines and plain threads, with or without a runtime.
///
/// ```
/// use std::time::Duration;
/// use gosched::chan::{self, Receiver};
/// use gosched::context::{Context, ContextError};
///
/// /// Adds up what comes, until somebody has enough.
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
    /// None: the background.
    node: Option<NodeRef>,
}

impl UnwindSafe for Context {}
impl RefUnwindSafe for Context {}

impl Context {
    /// The root of all: it never ends.
    ///
    /// Blocks nothing.
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

    /// A child that ends when it is cancelled, or when this context ends.
    ///
    /// Blocks nothing.
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
    #[must_use = "a context that nobody holds ends nothing"]
    pub fn with_cancel(&self) -> Context {
        self.child(None)
    }

    /// A child that ends after `timeout`, when it is cancelled, or when this context ends, whatever comes first. `Duration::MAX`
    /// is for ever.
    ///
    /// Blocks nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use gosched::context::{Context, ContextError};
    ///
    /// let ctx = Context::background().with_timeout(Duration::from_millis(5));
    /// assert!(ctx.done().recv().is_err()); // waits for the end
    /// assert_eq!(ctx.err(), Some(ContextError::DeadlineExceeded));
    /// ```
    #[must_use = "a context that nobody holds ends nothing"]
    pub fn with_timeout(&self, timeout: Duration) -> Context {
        self.child(Instant::now().checked_add(timeout))
    }

    /// A child that ends at `deadline`, when it is cancelled, or when this context ends, whatever comes first. One that is later
    /// than the parent's has no effect.
    ///
    /// Blocks nothing.
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
    #[must_use = "a context that nobody holds ends nothing"]
    pub fn with_deadline(&self, deadline: Instant) -> Context {
        self.child(Some(deadline))
    }

    fn child(&self, deadline: Option<Instant>) -> Context {
        Context {
            node: Some(Node::child_of(self.node.as_ref(), deadline)),
        }
    }

    /// Ends the context and everything below it: [`err`](Context::err) says [`Canceled`](ContextError::Canceled) there from now
    /// on, and all who wait on [`done`](Context::done) are woken. Does nothing to a context that has ended, or to the background.
    ///
    /// The cost is that of the contexts below; meanwhile the goroutine is not preempted. Nothing
    /// here blocks: if somebody else is at it already, this returns before they are through.
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

    /// Why the context has ended; None while it has not. The first reason stays. Once this says something, [`done`](Context::done)
    /// is closed, and the other way round.
    ///
    /// Blocks nothing. See the example of [`Context`].
    #[must_use]
    pub fn err(&self) -> Option<ContextError> {
        self.node.as_ref()?.err()
    }

    /// A channel without messages that is closed when the context ends: a receive fails then, and is ready in a
    /// [`select!`](crate::select). The background's never is.
    ///
    /// To get it blocks nothing; to receive from it blocks the goroutine, or the plain thread it is done on. Its receivers cannot
    /// close it. Clones of it do not keep the context: when its last handle is dropped nobody could end it any more, so they find
    /// it closed.
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
            Some(node) => &node.done,
            None => &NEVER,
        }
    }

    /// When the context ends at the latest: the earliest deadline from here to the root, if there is any.
    ///
    /// Blocks nothing. See the example of [`with_deadline`](Context::with_deadline).
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

/// Why a [`Context`] has ended.
///
/// ```
/// use gosched::context::ContextError;
///
/// assert_eq!(ContextError::Canceled.to_string(), "context canceled");
/// assert_eq!(ContextError::DeadlineExceeded.to_string(), "context deadline exceeded");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContextError {
    /// Somebody called [`Context::cancel`] on it or on one above.
    Canceled,
    /// Its deadline has passed.
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
