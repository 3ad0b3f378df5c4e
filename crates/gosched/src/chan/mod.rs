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
//! A program that uses crossbeam-channel compiles after `use crossbeam_channel::…` has become `use
//! gosched::chan::…`. Then an operation that waits blocks its goroutine, and the thread runs
//! another one. On a plain thread it blocks the thread, as before.
//!
//! | made by | room for | |
//! |---|---|---|
//! | [`bounded(n)`](bounded) | `n` messages | a sender waits while it is full |
//! | [`bounded(0)`](bounded) | none | the message goes from the sender's stack to the receiver's |
//! | [`unbounded()`](unbounded) | any number | a sender never waits |
//! | [`after`], [`at`], [`tick`] | one | the clock sends |
//! | [`never()`] | none | no message ever comes |
//!
//! **Order.** Messages of one sender arrive in the order in which they were sent. Operations that
//! wait are served first come, first served: a message goes to the receiver that has waited
//! longest, and no later receiver can take it.
//!
//! **The end.** A channel ends when the last [`Sender`] or the last [`Receiver`] is dropped, or
//! when [`close`](Sender::close) is called on either side. From then on senders get their message
//! back in an error, senders that wait included. Receivers get what is still in the channel, then
//! an error.
//!
//! **Memory.** What a sender did before it sent happens before what the receiver of the message
//! does after it received. What a receiver did before it received from a channel of capacity n
//! happens before the end of the send that comes n messages later.
//!
//! **Several at once.** [`select!`](crate::select) waits for the first of several operations.
//! [`Select`] does so for a number of operations that is known only at run time.
//!
//! **Allocations.** Making a channel allocates once: 120 bytes without room for messages, 144 if
//! the clock sends, else 384 and the room. An unbounded channel allocates blocks as messages come.
//! Sends and receives on other channels allocate nothing. A `select!` allocates nothing for itself,
//! with two exceptions. With a send it allocates a small record if it is part of the message of
//! another select's send, or if its goroutine still runs while its runtime is dropped.
//!
//! Deadlines are exact to the clock and never early. They may be as far away as `Duration` goes:
//! `Duration::MAX` is for ever.

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
pub(crate) use self::zero::Closing;
#[doc(hidden)]
pub use crate::__crossbeam_channel_internal as crossbeam_channel_internal;
pub use crate::{select, select_biased};

/// What the macros expand to.
#[doc(hidden)]
pub mod internal {
    pub use super::macros::{
        Chosen, choose, no_such_arm, receiver, room_for_recv, room_for_send, sender,
    };
    pub use crate::chan::select_case::{CaseFor, SelectWait, recv_case_for, send_case_for};
    pub use crate::chan::value_slot::{RoomOf, no_room};
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

/// Makes a channel with room for `cap` messages. Without room (`cap` 0) a sender waits for a
/// receiver, and a receiver for a sender.
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
    pair(Chan::bounded(cap, Ending::USUAL))
}

/// As [`bounded`]. `tell(whom)` is called once, by the thread that closes the channel or drops its
/// last receiver.
pub(crate) fn watched<T>(cap: usize, tell: fn(usize), whom: usize) -> (Sender<T>, Receiver<T>) {
    pair(Chan::bounded(cap, Ending::told(tell, whom)))
}

fn pair<T>(chan: std::ptr::NonNull<Chan<T>>) -> (Sender<T>, Receiver<T>) {
    // SAFETY: D1, a new channel has one reference for each side.
    unsafe { (Sender::new(chan), Receiver::new(chan)) }
}

/// Makes a receiver that gets one message: the [`Instant`] `duration` from now, once that moment
/// has come.
///
/// Making it blocks nothing. It costs nothing while no receiver waits on it. After `Duration::MAX`
/// no message ever comes.
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

/// Makes a receiver that gets one message: `when`, once that moment has come.
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
/// Making it blocks nothing. There is room for one message. A tick goes to a receiver that waits,
/// if there is one, however late that one runs. Otherwise it fills the room. If the room is filled
/// the tick is missed. Later ticks come at the times at which they would have come anyway.
/// crossbeam's `tick` counts the next period from the moment at which a message is received
/// instead.
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
    // A period of 0 is over at once.
    let period_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    clock(sys::deadline_after(duration), period_ns.max(1))
}

/// A receiver of the clock whose time can be changed.
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

/// Makes a receiver that never gets a message and does not end. In a [`select!`](crate::select) it
/// stands for an arm that is not there.
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
