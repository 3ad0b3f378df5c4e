//! `select!` and `select_biased!`.
//!
//! `__select!` reads one arm per step into a list of arms, then writes the whole select in one more
//! step. So 32 arms and a default need 36 levels of expansion. An arm in the list is
//!
//! ```text
//!  [0 recv receiver recv_case_for (r)  () (msg) { body }]
//!  [1 send sender   send_case_for (s) (m) (res) { body }]
//! ```
//!
//! its place, the operation, the functions that begin it, the channel, the message if there is one,
//! the pattern and the body. The place stands for three things: the arm's element of the tuple of
//! channels, its case, and the `index` of the selected operation.
//!
//! The result is a `match` on the tuple of references to the channels. So temporaries among them
//! live until the end of the bodies, and nothing is evaluated twice. No closure is around the
//! bodies, so `break`, `?` and `return` work in them. The bodies may move or drop the channels, for
//! the references are not used after the operation.
//!
//! If no rule takes the next arm, `@wrong` finds the mistake in it.

use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};

use super::internal::{CaseFor, RoomOf, SelectWait};
use super::{Receiver, RecvError, SendError, Sender};
use crate::chan::select::Uncompleted;
use crate::chan::select_case::Case;
use crate::chan::select_handle::Promise;
use crate::chan::select_run::{SelectRun, pick, try_recv};
use crate::chan::value_slot::Either;

/// The channel of a `recv` arm, through any references and smart pointers.
#[doc(hidden)]
#[inline]
pub fn receiver<T>(r: &Receiver<T>) -> &Receiver<T> {
    r
}

/// The channel of a `send` arm, likewise.
#[doc(hidden)]
#[inline]
pub fn sender<T>(s: &Sender<T>) -> &Sender<T> {
    s
}

/// The room of a `select!` with one more `recv` arm: its message fits as well.
#[doc(hidden)]
#[inline]
pub fn room_for_recv<T, R>(_: &Receiver<T>, room: RoomOf<R>) -> RoomOf<Either<T, R>> {
    room.or()
}

/// The room of a `select!` with one more `send` arm: the same.
#[doc(hidden)]
#[inline]
pub fn room_for_send<T, R>(_: &Sender<T>, room: RoomOf<R>) -> RoomOf<R> {
    room
}

/// The result of a select. It has no destructor, which would keep the channels borrowed in the
/// bodies: the arm that is taken asks for the operation.
#[doc(hidden)]
pub struct Chosen<'a, 'r> {
    index: Option<usize>,
    how: How<'a, 'r>,
}

enum How<'a, 'r> {
    /// A receive that is done: the value is in the room, or the channel has ended.
    Received(
        Case<'a>,
        Result<*mut u8, RecvError>,
        PhantomData<&'r mut ()>,
    ),
    /// A send that is to be completed.
    Send(ManuallyDrop<Uncompleted<'a>>),
    Default,
}

/// Waits for one of the cases.
#[doc(hidden)]
#[inline]
pub fn choose<'a, 'r, R, const N: usize>(
    cases: &[CaseFor<'a, R>; N],
    is_biased: bool,
    wait: SelectWait,
    room: &'r mut MaybeUninit<R>,
) -> Chosen<'a, 'r> {
    let cases = CaseFor::cases(cases);
    let room = room.as_mut_ptr().cast::<u8>();
    let picked = pick(cases, is_biased);
    let first = cases.get(picked).filter(|case| !case.is_send);
    if let Some(case) = first
        // SAFETY: a value of each receive fits into an `R`. Only `recv_case_for` makes a receive of
        // a `select!`, and asserts that when it is compiled.
        && let Some(got) = unsafe { try_recv(case, room) }
    {
        return Chosen {
            index: Some(picked),
            how: How::Received(*case, got.map(|()| room), PhantomData),
        };
    }
    // SAFETY: a value of each receive fits into an `R`. Only `recv_case_for` makes a receive of a
    // `select!`, and asserts that when it is compiled. The result borrows the room.
    let run = unsafe { SelectRun::new(cases, is_biased, room) };
    let picked = first.is_none().then_some(picked);
    match run.run::<N>(picked, wait) {
        None => Chosen {
            index: None,
            how: How::Default,
        },
        Some(chosen) if cases[chosen.at].is_send => Chosen {
            index: Some(chosen.at),
            how: How::Send(ManuallyDrop::new(Uncompleted::new(cases, chosen))),
        },
        Some(chosen) => Chosen {
            index: Some(chosen.at),
            how: How::Received(
                cases[chosen.at],
                match chosen.promise {
                    Promise::Value => Ok(room),
                    _ => Err(RecvError),
                },
                PhantomData,
            ),
        },
    }
}

impl<'a> Chosen<'a, '_> {
    /// Which case it is; None: the default.
    #[inline]
    pub fn index(&self) -> Option<usize> {
        self.index
    }

    /// Completes a receive.
    #[inline]
    pub fn recv<T>(self, r: &Receiver<T>) -> Result<T, RecvError> {
        match self.how {
            How::Received(case, got, _) if case.is_of(r.chan) => {
                // SAFETY: D1, the receive has put a value of this channel's type there. It is taken
                // once.
                got.map(|room| unsafe { room.cast::<T>().read() })
            }
            _ => no_such_arm(),
        }
    }

    /// The send that is to be completed.
    #[inline]
    pub fn begin_send(self) -> ChosenSend<'a> {
        match self.how {
            How::Send(operation) => ChosenSend(ManuallyDrop::into_inner(operation)),
            _ => no_such_arm(),
        }
    }
}

/// A send that is to be completed. It is given up if its message unwinds.
#[doc(hidden)]
pub struct ChosenSend<'a>(Uncompleted<'a>);

impl ChosenSend<'_> {
    /// Completes the send.
    #[inline]
    pub fn send<T>(mut self, s: &Sender<T>, msg: T) -> Result<(), SendError<T>> {
        self.0.send(s, msg)
    }
}

impl Drop for ChosenSend<'_> {
    #[inline]
    fn drop(&mut self) {
        // A send has no value in the room. The cases of a `select!` stay in its frame, so this is
        // the goroutine or thread that has the handles.
        self.0.give_up(std::ptr::null_mut, || true);
    }
}

/// The index of an arm that a select does not have.
#[doc(hidden)]
#[cold]
pub fn no_such_arm() -> ! {
    unreachable!("gosched: a select chose an arm that it does not have")
}

/// Waits until one of several channel operations can proceed, does it, and runs its arm.
///
/// ```
/// use gosched::chan::{select, unbounded};
///
/// let (s1, r1) = unbounded();
/// let (s2, r2) = unbounded();
/// s1.send(10).unwrap();
///
/// // Both could be done at once: one of the two is, at random.
/// select! {
///     recv(r1) -> msg => assert_eq!(msg, Ok(10)),
///     send(s2, 20) -> res => {
///         assert_eq!(res, Ok(()));
///         assert_eq!(r2.recv(), Ok(20));
///     }
/// }
/// ```
///
/// | arm | is taken when |
/// |---|---|
/// | `recv(r) -> msg => …` | there is a message, or there never will be |
/// | `send(s, value) -> res => …` | there is room or a receiver, or there never will be |
/// | `default => …` | no other arm can be taken at once |
/// | `default(timeout) => …` | no other arm could be taken for that long |
///
/// `msg` is what [`Receiver::recv`] returns, `res` what [`Sender::send`] returns. The timeout is a
/// [`Duration`](std::time::Duration).
///
/// Arms stand in any order. Commas separate them; the comma may be left out after a body in braces.
/// There are at most 32 arms and one `default`. If several arms can be taken, one of them is, at
/// random, all with the same chance; [`select_biased!`](crate::select_biased) takes the first.
/// `default` is right about all channels at one moment: it is not taken if some other arm could
/// have been taken throughout.
///
/// Blocks the goroutine, or the plain thread it is called on, unless there is a `default`.
///
/// # What is evaluated when
/// The channels are any expressions of type [`Receiver`] or [`Sender`], or references, boxes and
/// the like that lead there. They are evaluated once, in the order of the arms, before anything is
/// done. The timeout is evaluated after them. The message of a `send` is evaluated when its arm has
/// been chosen, and only then, while all the channels are still borrowed. Patterns must match every
/// value, as in a `let`. A receiver, or a place in the buffer, waits for the message meanwhile. It
/// is let go if the evaluation unwinds, or if the goroutine's runtime is dropped. A goroutine that
/// still runs then sends its message as [`Sender::send`] does. If the evaluation never ends the
/// receiver or the place waits for ever.
///
/// The value of the arm that is taken is the value of the `select!`. `break`, `continue`, `return`
/// and `?` work in bodies:
///
/// ```
/// use std::time::Duration;
/// use gosched::chan::{Receiver, RecvError, never, select, tick, unbounded};
///
/// fn sum(numbers: Receiver<i32>, stop: Receiver<()>) -> Result<i32, RecvError> {
///     let tick = tick(Duration::from_secs(3600));
///     let mut sum = 0;
///     loop {
///         sum += select! {
///             recv(numbers) -> n => n?,
///             recv(stop) -> _ => return Ok(sum),
///             recv(tick) -> _ => continue,
///         };
///     }
/// }
///
/// # gosched::run(|| {
/// let (s, r) = unbounded();
/// s.send(1).unwrap();
/// s.send(2).unwrap();
/// drop(s);
/// assert_eq!(sum(r, never()), Err(RecvError));
/// # });
/// ```
///
/// A timeout for the whole select, and an arm that is there or not:
///
/// ```
/// use std::time::Duration;
/// use gosched::chan::{Receiver, never, select, unbounded};
///
/// let (_s, r) = unbounded::<i32>();
/// let other: Option<Receiver<i32>> = None;
///
/// let got = select! {
///     recv(r) -> msg => msg.ok(),
///     recv(other.as_ref().unwrap_or(&never())) -> msg => msg.ok(),
///     default(Duration::from_millis(1)) => None,
/// };
/// assert_eq!(got, None);
/// ```
///
/// [`Select`](crate::chan::Select) is for a number of operations that is known only at run time.
///
/// [`Receiver`]: crate::chan::Receiver
/// [`Receiver::recv`]: crate::chan::Receiver::recv
/// [`Sender`]: crate::chan::Sender
/// [`Sender::send`]: crate::chan::Sender::send
#[macro_export]
macro_rules! select {
    ($($arms:tt)*) => {
        $crate::__select!(@begin false $($arms)*)
    };
}

/// As [`select!`](crate::select), but of several arms that can be taken at once it takes the first.
/// It blocks as `select!` does.
///
/// ```
/// use gosched::chan::{select_biased, unbounded};
///
/// let (s1, urgent) = unbounded();
/// let (s2, other) = unbounded();
/// for n in 0..3 {
///     s1.send(n).unwrap();
///     s2.send(n + 10).unwrap();
/// }
/// let mut seen = Vec::new();
/// for _ in 0..4 {
///     seen.push(select_biased! {
///         recv(urgent) -> n => n.unwrap(),
///         recv(other) -> n => n.unwrap(),
///     });
///     if seen.len() == 3 {
///         drop(s1.send(7));
///     }
/// }
/// assert_eq!(seen, [0, 1, 2, 7]);
/// ```
#[macro_export]
macro_rules! select_biased {
    ($($arms:tt)*) => {
        $crate::__select!(@begin true $($arms)*)
    };
}

/// crossbeam-channel's tests reach behind its `select!` by this name. The caller has a `const
/// _IS_BIASED`.
#[doc(hidden)]
#[macro_export]
macro_rules! __crossbeam_channel_internal {
    ($($arms:tt)*) => {
        $crate::__select!(@begin _IS_BIASED $($arms)*)
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __select {
    // @begin: is it biased, the arms.
    (@begin $biased:tt) => {
        ::core::compile_error!("empty `select!` block: it takes at least one arm, as in `recv(r) -> msg => …`")
    };
    (@begin $biased:tt $($arms:tt)+) => {
        $crate::__select!(@arms $biased
            (0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
            () () $($arms)+)
    };

    // @arms: is it biased, places left, arms so far, the default so far, what is still to be read.
    (@arms $biased:tt $places:tt $done:tt $default:tt) => {
        $crate::__select!(@write $biased $done $default)
    };

    // A body may be a block with a comma, an expression with a comma, a block without one, or the
    // last expression.
    (@arms $biased:tt ($i:tt $($places:tt)*) ($($done:tt)*) $default:tt
        recv($r:expr $(,)?) -> $res:pat => { $($body:tt)* }, $($rest:tt)*) => {
        $crate::__select!(@arms $biased ($($places)*)
            ($($done)* [$i recv receiver recv_case_for ($r) () ($res) { $($body)* }]) $default $($rest)*)
    };
    (@arms $biased:tt ($i:tt $($places:tt)*) ($($done:tt)*) $default:tt
        recv($r:expr $(,)?) -> $res:pat => $body:expr, $($rest:tt)*) => {
        $crate::__select!(@arms $biased ($($places)*)
            ($($done)* [$i recv receiver recv_case_for ($r) () ($res) { $body }]) $default $($rest)*)
    };
    (@arms $biased:tt ($i:tt $($places:tt)*) ($($done:tt)*) $default:tt
        recv($r:expr $(,)?) -> $res:pat => { $($body:tt)* } $($rest:tt)*) => {
        $crate::__select!(@arms $biased ($($places)*)
            ($($done)* [$i recv receiver recv_case_for ($r) () ($res) { $($body)* }]) $default $($rest)*)
    };
    (@arms $biased:tt ($i:tt $($places:tt)*) ($($done:tt)*) $default:tt
        recv($r:expr $(,)?) -> $res:pat => $body:expr) => {
        $crate::__select!(@arms $biased ($($places)*)
            ($($done)* [$i recv receiver recv_case_for ($r) () ($res) { $body }]) $default)
    };

    (@arms $biased:tt ($i:tt $($places:tt)*) ($($done:tt)*) $default:tt
        send($s:expr, $msg:expr $(,)?) -> $res:pat => { $($body:tt)* }, $($rest:tt)*) => {
        $crate::__select!(@arms $biased ($($places)*)
            ($($done)* [$i send sender send_case_for ($s) ($msg) ($res) { $($body)* }]) $default $($rest)*)
    };
    (@arms $biased:tt ($i:tt $($places:tt)*) ($($done:tt)*) $default:tt
        send($s:expr, $msg:expr $(,)?) -> $res:pat => $body:expr, $($rest:tt)*) => {
        $crate::__select!(@arms $biased ($($places)*)
            ($($done)* [$i send sender send_case_for ($s) ($msg) ($res) { $body }]) $default $($rest)*)
    };
    (@arms $biased:tt ($i:tt $($places:tt)*) ($($done:tt)*) $default:tt
        send($s:expr, $msg:expr $(,)?) -> $res:pat => { $($body:tt)* } $($rest:tt)*) => {
        $crate::__select!(@arms $biased ($($places)*)
            ($($done)* [$i send sender send_case_for ($s) ($msg) ($res) { $($body)* }]) $default $($rest)*)
    };
    (@arms $biased:tt ($i:tt $($places:tt)*) ($($done:tt)*) $default:tt
        send($s:expr, $msg:expr $(,)?) -> $res:pat => $body:expr) => {
        $crate::__select!(@arms $biased ($($places)*)
            ($($done)* [$i send sender send_case_for ($s) ($msg) ($res) { $body }]) $default)
    };

    (@arms $biased:tt $places:tt $done:tt $default:tt default => $($rest:tt)*) => {
        $crate::__select!(@arms $biased $places $done $default default() => $($rest)*)
    };
    (@arms $biased:tt $places:tt $done:tt ()
        default($($timeout:expr $(,)?)?) => { $($body:tt)* }, $($rest:tt)*) => {
        $crate::__select!(@arms $biased $places $done (($($timeout)?) { $($body)* }) $($rest)*)
    };
    (@arms $biased:tt $places:tt $done:tt ()
        default($($timeout:expr $(,)?)?) => $body:expr, $($rest:tt)*) => {
        $crate::__select!(@arms $biased $places $done (($($timeout)?) { $body }) $($rest)*)
    };
    (@arms $biased:tt $places:tt $done:tt ()
        default($($timeout:expr $(,)?)?) => { $($body:tt)* } $($rest:tt)*) => {
        $crate::__select!(@arms $biased $places $done (($($timeout)?) { $($body)* }) $($rest)*)
    };
    (@arms $biased:tt $places:tt $done:tt ()
        default($($timeout:expr $(,)?)?) => $body:expr) => {
        $crate::__select!(@arms $biased $places $done (($($timeout)?) { $body }))
    };

    (@arms $biased:tt $places:tt $done:tt ($($default:tt)+) default $($rest:tt)*) => {
        ::core::compile_error!("a `select!` has one `default` at most")
    };
    (@arms $biased:tt () $done:tt $default:tt recv $($rest:tt)*) => {
        ::core::compile_error!("a `select!` has 32 operations at most: use `Select` for more")
    };
    (@arms $biased:tt () $done:tt $default:tt send $($rest:tt)*) => {
        ::core::compile_error!("a `select!` has 32 operations at most: use `Select` for more")
    };
    (@arms $biased:tt $places:tt $done:tt $default:tt $($wrong:tt)+) => {
        $crate::__select!(@wrong $($wrong)+)
    };

    // @write: is it biased, the arms, the default. A single receiver needs no select.
    (@write $biased:tt ([0 recv $($recv:tt)*]) $default:tt) => {
        $crate::__select!(@write_recv [$($recv)*] $default)
    };
    (@write $biased:tt () (() $body:tt)) => {
        $body
    };
    (@write $biased:tt $arms:tt ()) => {
        $crate::__select!(@write_all $biased $arms ($crate::chan::internal::SelectWait::Forever)
            { $crate::chan::internal::no_such_arm() })
    };
    (@write $biased:tt $arms:tt (() $body:tt)) => {
        $crate::__select!(@write_all $biased $arms ($crate::chan::internal::SelectWait::Not) $body)
    };
    (@write $biased:tt $arms:tt (($timeout:expr) $body:tt)) => {
        $crate::__select!(@write_all $biased $arms ($crate::chan::internal::SelectWait::For($timeout)) $body)
    };

    (@write_recv [$receiver:ident $case:ident ($r:expr) () ($res:pat) $body:tt] ()) => {{
        match &$r {
            arm => {
                let res = $crate::chan::internal::receiver(arm).recv();
                let $res = res;
                $body
            }
        }
    }};
    (@write_recv [$receiver:ident $case:ident ($r:expr) () ($res:pat) $body:tt] (() $default:tt)) => {{
        match &$r {
            arm => match $crate::chan::internal::receiver(arm).try_recv() {
                ::core::result::Result::Err($crate::chan::TryRecvError::Empty) => $default,
                res => {
                    let res = res.map_err(|_| $crate::chan::RecvError);
                    let $res = res;
                    $body
                }
            },
        }
    }};
    (@write_recv [$receiver:ident $case:ident ($r:expr) () ($res:pat) $body:tt] (($timeout:expr) $default:tt)) => {{
        match &$r {
            arm => match $crate::chan::internal::receiver(arm).recv_timeout($timeout) {
                ::core::result::Result::Err($crate::chan::RecvTimeoutError::Timeout) => $default,
                res => {
                    let res = res.map_err(|_| $crate::chan::RecvError);
                    let $res = res;
                    $body
                }
            },
        }
    }};

    (@write_all $biased:tt
        ($([$i:tt $op:ident $channel:ident $case:ident ($chan:expr) ($($msg:expr)?) ($res:pat) $body:tt])*)
        ($wait:expr) $default:tt
    ) => {{
        match ($(&$chan,)*) {
            arms => {
                let arms = ($($crate::chan::internal::$channel(arms.$i),)*);
                let room = $crate::chan::internal::no_room();
                $(let room = $crate::__select!(@room $op (arms.$i) room);)*
                let mut value = room.make();
                let chosen = $crate::chan::internal::choose(
                    &[$($crate::chan::internal::$case(arms.$i, room)),*],
                    $biased,
                    $wait,
                    &mut value,
                );
                match chosen.index() {
                    $(::core::option::Option::Some($i) => {
                        let res = $crate::__select!(@complete $op chosen (arms.$i) $($msg)?);
                        let $res = res;
                        $body
                    })*
                    ::core::option::Option::Some(_) => $crate::chan::internal::no_such_arm(),
                    ::core::option::Option::None => $default,
                }
            }
        }
    }};

    // @room: room for the message of one more arm.
    (@room recv ($r:expr) $room:ident) => { $crate::chan::internal::room_for_recv($r, $room) };
    (@room send ($s:expr) $room:ident) => { $crate::chan::internal::room_for_send($s, $room) };

    (@complete recv $chosen:ident ($r:expr)) => { $chosen.recv($r) };
    // The operation comes first: it is given up if the message unwinds.
    (@complete send $chosen:ident ($s:expr) $msg:expr) => { $chosen.begin_send().send($s, $msg) };

    // @wrong: the arm that no rule takes. First its name, then its arguments, then the rest.
    (@wrong recv) => { $crate::__select!(@no_args recv) };
    (@wrong send) => { $crate::__select!(@no_args send) };
    (@wrong recv => $($rest:tt)*) => { $crate::__select!(@no_args recv) };
    (@wrong send => $($rest:tt)*) => { $crate::__select!(@no_args send) };
    (@wrong recv -> $($rest:tt)*) => { $crate::__select!(@no_args recv) };
    (@wrong send -> $($rest:tt)*) => { $crate::__select!(@no_args send) };
    (@wrong recv($r:expr $(,)?) $($rest:tt)*) => { $crate::__select!(@after recv $($rest)*) };
    (@wrong send($s:expr, $msg:expr $(,)?) $($rest:tt)*) => { $crate::__select!(@after send $($rest)*) };
    (@wrong recv($($args:tt)*) $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("invalid argument list in `recv(", ::core::stringify!($($args)*),
            ")`: it takes a receiver, as in `recv(r)`"))
    };
    (@wrong send($($args:tt)*) $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("invalid argument list in `send(", ::core::stringify!($($args)*),
            ")`: it takes a sender and a message, as in `send(s, msg)`"))
    };
    (@wrong recv $found:tt $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("expected an argument list after `recv`, found `",
            ::core::stringify!($found), "`"))
    };
    (@wrong send $found:tt $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("expected an argument list after `send`, found `",
            ::core::stringify!($found), "`"))
    };
    (@wrong default) => { $crate::__select!(@no_arrow default) };
    (@wrong default($($timeout:expr $(,)?)?) $($rest:tt)*) => { $crate::__select!(@after_default $($rest)*) };
    (@wrong default($($args:tt)*) $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("invalid argument list in `default(", ::core::stringify!($($args)*),
            ")`: it takes a timeout or nothing"))
    };
    (@wrong default -> $($rest:tt)*) => { $crate::__select!(@after_default -> $($rest)*) };
    (@wrong default $found:tt $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("expected an argument list or `=>` after `default`, found `",
            ::core::stringify!($found), "`"))
    };
    (@wrong ; $($rest:tt)*) => {
        ::core::compile_error!("expected `,` or nothing after the `}` of an arm, found `;`")
    };
    (@wrong $found:tt $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("expected one of `recv`, `send`, or `default`, found `",
            ::core::stringify!($found), "`"))
    };

    (@no_args $op:ident) => {
        ::core::compile_error!(::core::concat!("missing argument list after `", ::core::stringify!($op), "`"))
    };
    (@no_arrow $op:ident) => {
        ::core::compile_error!(::core::concat!("missing `=>` after `", ::core::stringify!($op), "`"))
    };

    // @after: what stands after the arguments of `recv` or `send`.
    (@after $op:ident) => {
        ::core::compile_error!(::core::concat!("missing `->` and a pattern after `", ::core::stringify!($op), "(…)`"))
    };
    (@after $op:ident => $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("expected `->` and a pattern after `", ::core::stringify!($op),
            "(…)`, found `=>`"))
    };
    (@after $op:ident ->) => { ::core::compile_error!("missing pattern after `->`") };
    (@after $op:ident -> => $($rest:tt)*) => { ::core::compile_error!("missing pattern after `->`") };
    (@after $op:ident -> $res:tt -> $($rest:tt)*) => {
        ::core::compile_error!("expected `=>` after the pattern, found `->`")
    };
    (@after $op:ident -> $res:pat => $($body:tt)*) => { $crate::__select!(@body $($body)*) };
    (@after $op:ident -> $($res:tt)+) => {
        ::core::compile_error!(::core::concat!("expected a pattern and `=>` after `->`, found `",
            ::core::stringify!($($res)+), "`"))
    };
    (@after $op:ident $found:tt $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("expected `->` after `", ::core::stringify!($op), "(…)`, found `",
            ::core::stringify!($found), "`"))
    };

    (@after_default) => { $crate::__select!(@no_arrow default) };
    (@after_default => $($body:tt)*) => { $crate::__select!(@body $($body)*) };
    (@after_default $found:tt $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("expected `=>` after `default`, found `",
            ::core::stringify!($found), "`"))
    };

    // @body: what stands after the `=>`.
    (@body) => { ::core::compile_error!("expected an expression after `=>`") };
    (@body , $($rest:tt)*) => { ::core::compile_error!("expected an expression after `=>`, found `,`") };
    (@body recv $args:tt -> $($rest:tt)*) => {
        ::core::compile_error!("expected an expression after `=>`, found another `recv` arm")
    };
    (@body send $args:tt -> $($rest:tt)*) => {
        ::core::compile_error!("expected an expression after `=>`, found another `send` arm")
    };
    (@body default => $($rest:tt)*) => {
        ::core::compile_error!("expected an expression after `=>`, found a `default` arm")
    };
    (@body $body:expr ; $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("expected `,` after `", ::core::stringify!($body), "`, found `;`"))
    };
    (@body $first:tt $($rest:tt)*) => {
        ::core::compile_error!(::core::concat!("expected `,` after the expression that begins with `",
            ::core::stringify!($first), "`: only a block in braces goes without"))
    };

    ($($anything:tt)*) => {
        ::core::compile_error!("`__select!` is for `select!` alone")
    };
}
