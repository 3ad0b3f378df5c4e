//! Channels, as crossbeam-channel's, for goroutines and plain threads in any mixture.
//!
//! ```
//! use gosched::chan::bounded;
//!
//! gosched::run(|| {
//!     let (s, r) = bounded(0);
//!     gosched::go(move || {
//!         for n in 1..=3 {
//!             s.send(n).unwrap();
//!         }
//!     });
//!     assert_eq!(r.iter().collect::<Vec<_>>(), [1, 2, 3]);
//! });
//! ```
//!
//! A program that uses crossbeam-channel compiles after `use crossbeam_channel::…` has become `use gosched::chan::…`. What waits is
//! then the goroutine, and the thread goes on with another one; on a plain thread the thread waits, as before.
//!
//! | made by | room for | |
//! |---|---|---|
//! | [`bounded(n)`](bounded) | `n` messages | a sender waits while it is full |
//! | [`bounded(0)`](bounded) | none | sender and receiver meet: the message goes from one's stack to the other's |
//! | [`unbounded()`](unbounded) | any number | a sender never waits |
//! | [`after`], [`at`], [`tick`] | one | the clock sends |
//! | [`never()`] | none | nobody sends |
//!
//! **Order.** Messages of one sender arrive in the order in which they were sent. Those who wait are served first come, first
//! served: a message goes to the receiver that has waited longest, and nobody who comes later can take it from there.
//!
//! **The end.** A channel ends when the last [`Sender`] or the last [`Receiver`] is dropped, or when somebody calls
//! [`close`](Sender::close) on either side. From then on senders get their message back in an error, those that wait included;
//! receivers get what is still in the channel, then an error.
//!
//! **Memory.** What a sender did before it sent is seen by who receives the message, and what a receiver did before it received
//! from a channel of capacity n is seen by who sends n messages later.
//!
//! **Several at once.** [`select!`](crate::select) waits for the first of several operations, [`Select`] does so for a number of
//! them that is known only when the program runs.
//!
//! Deadlines are exact to the clock, never early, and may be as far away as `Duration` goes: `Duration::MAX` is for ever.

mod any;
mod blocking;
mod bounded;
mod close;
mod core;
mod err;
mod flavor;
mod iter;
mod list;
mod macros;
mod open;
mod receiver;
mod returned;
mod ring;
mod select;
mod select_case;
mod select_handle;
mod select_locks;
mod select_run;
mod sender;
mod serve;
pub(crate) mod snapshot;
mod timer;
mod unbounded;
mod value_slot;
mod zero;

use std::time::{Duration, Instant};

use self::any::Chan;
use self::core::Ending;
use crate::sys;

pub use self::err::{
    ReadyTimeoutError, RecvError, RecvTimeoutError, SelectTimeoutError, SendError,
    SendTimeoutError, TryReadyError, TryRecvError, TrySelectError, TrySendError,
};
pub use self::iter::{IntoIter, Iter, TryIter};
pub use self::receiver::Receiver;
pub use self::select::{Select, SelectedOperation};
pub use self::sender::Sender;
#[doc(hidden)]
pub use crate::__crossbeam_channel_internal as crossbeam_channel_internal;
pub use crate::{select, select_biased};

/// What the macros write.
#[doc(hidden)]
pub mod internal {
    pub use super::macros::{Chosen, choose, no_such_arm, receiver, sender};
    pub use crate::chan::select_case::{Case, SelectWait, recv_case, send_case};
    pub use crate::chan::value_slot::SmallSlot;
}

/// Makes a channel with room for any number of messages.
///
/// Blocks nothing.
///
/// ```
/// # gosched::run(|| {
/// let (s, r) = gosched::chan::unbounded();
/// gosched::go(move || s.send((1..=20).product::<u64>()).unwrap());
/// assert_eq!(r.recv(), Ok(2_432_902_008_176_640_000));
/// # });
/// ```
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    pair(Chan::unbounded())
}

/// A channel without messages that is closed by itself at a moment (`u64::MAX`: never), if not earlier.
pub(crate) fn closing_at(closes_at_ns: u64) -> (Sender<()>, Receiver<()>) {
    pair(Chan::closing_at(closes_at_ns))
}

/// Makes a channel with room for `cap` messages. With no room at all (`cap` 0) a sender waits for a receiver and the other way round.
///
/// Making it blocks nothing.
///
/// ```
/// # gosched::run(|| {
/// let (s, r) = gosched::chan::bounded(1);
/// s.send(1).unwrap(); // there is room
/// let sender = gosched::thread::spawn(move || s.send(2)); // waits until there is some again
/// assert_eq!(r.recv(), Ok(1));
/// assert_eq!(r.recv(), Ok(2));
/// assert_eq!(sender.join().unwrap(), Ok(()));
/// # });
/// ```
///
/// Sender and receiver meet:
///
/// ```
/// # gosched::run(|| {
/// let (s, r) = gosched::chan::bounded(0);
/// gosched::go(move || s.send("here you are").unwrap());
/// assert_eq!(r.recv(), Ok("here you are"));
/// # });
/// ```
///
/// # Panics
/// If there is no memory for so many messages.
#[track_caller]
pub fn bounded<T>(cap: usize) -> (Sender<T>, Receiver<T>) {
    pair(Chan::bounded(cap, Ending::Usual))
}

/// As [`bounded`]; `tell(whom)` is called once, when the channel is closed or has lost its receivers, by whoever did that.
pub(crate) fn watched<T>(cap: usize, tell: fn(usize), whom: usize) -> (Sender<T>, Receiver<T>) {
    pair(Chan::bounded(cap, Ending::Told(tell, whom)))
}

fn pair<T>(chan: std::ptr::NonNull<Chan<T>>) -> (Sender<T>, Receiver<T>) {
    // SAFETY: D1, a new channel has one reference for each side.
    unsafe { (Sender::new(chan), Receiver::new(chan)) }
}

/// Makes a receiver that gets one message: the [`Instant`] `duration` from now, as soon as that has come.
///
/// Making it blocks nothing, and it costs nothing while nobody waits on it. After `Duration::MAX` nothing ever comes.
///
/// ```
/// use std::time::{Duration, Instant};
/// use gosched::chan::{after, select, unbounded};
///
/// let (_s, r) = unbounded::<i32>();
/// let start = Instant::now();
/// let timeout = Duration::from_millis(10);
/// select! {
///     recv(r) -> msg => panic!("{msg:?}"),
///     recv(after(timeout)) -> when => assert!(when.unwrap() >= start + timeout),
/// }
/// assert!(start.elapsed() >= timeout);
/// ```
pub fn after(duration: Duration) -> Receiver<Instant> {
    clock(sys::deadline_after(duration), 0)
}

/// Makes a receiver that gets one message: `when`, as soon as that has come.
///
/// Making it blocks nothing.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// let when = Instant::now() + Duration::from_millis(10);
/// assert_eq!(gosched::chan::at(when).recv(), Ok(when));
/// assert!(Instant::now() >= when);
/// ```
pub fn at(when: Instant) -> Receiver<Instant> {
    clock(sys::deadline_of(when), 0)
}

/// Makes a receiver that gets a message every `duration`: the [`Instant`] at which it was due.
///
/// Making it blocks nothing. There is room for one message. A tick goes to a receiver that waits, if there is one, however late that
/// runs; otherwise it fills the room, or is missed if the room is filled. Those that follow come at the times at which they would
/// have come anyway. crossbeam's `tick` counts the next period from the moment at which a message is received instead.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// let start = Instant::now();
/// let ticks = gosched::chan::tick(Duration::from_millis(5));
/// for n in 1..=3 {
///     assert!(ticks.recv().unwrap() >= start + n * Duration::from_millis(5));
/// }
/// assert!(start.elapsed() >= Duration::from_millis(15));
/// ```
pub fn tick(duration: Duration) -> Receiver<Instant> {
    // A period of 0 is one that is over at once.
    let period_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    clock(sys::deadline_after(duration), period_ns.max(1))
}

/// A receiver of the clock's whose time can be changed.
pub(crate) fn resettable(when_ns: u64, period_ns: u64) -> Receiver<Instant> {
    // SAFETY: D1, a new channel of the clock has one receiver.
    unsafe { Receiver::new(Chan::timer(when_ns, period_ns, |when| when)) }
}

fn clock(when_ns: u64, period_ns: u64) -> Receiver<Instant> {
    if when_ns == u64::MAX {
        return never();
    }
    resettable(when_ns, period_ns)
}

/// Makes a receiver that never gets a message and does not end: an arm of a [`select!`](crate::select) that is not there.
///
/// Making it blocks nothing.
///
/// ```
/// use std::time::Duration;
/// use gosched::chan::{after, never, select, unbounded};
///
/// let (s, r) = unbounded();
/// s.send(1).unwrap();
/// let timeout: Option<Duration> = None;
/// select! {
///     recv(r) -> msg => assert_eq!(msg, Ok(1)),
///     recv(timeout.map(after).unwrap_or_else(never)) -> _ => panic!("too late"),
/// }
/// ```
pub const fn never<T>() -> Receiver<T> {
    Receiver { chan: None }
}
