//! The cases of a select, and how long it may wait.

use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use crate::chan::any::Chan;
use crate::chan::select_handle::SelectHandle;
use crate::chan::value_slot::RoomOf;
use crate::chan::{Receiver, Sender};
use crate::sched::waiting::waitq::Waiter;
use crate::sys;

/// One case of a select: a channel, and whether it sends or receives.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// None: a channel on which nothing ever happens.
    pub(super) chan: Option<&'a dyn SelectHandle>,
    /// The user's handle, by its address.
    pub(super) handle: *const (),
    pub(super) is_send: bool,
}

/// A case of a `select!`. The value of a receive fits into an `R`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct CaseFor<'a, R> {
    case: Case<'a>,
    room: RoomOf<R>,
}

impl<'a, R> CaseFor<'a, R> {
    /// The cases without the type of the room.
    #[inline]
    pub(super) fn cases<'c>(cases: &'c [CaseFor<'a, R>]) -> &'c [Case<'a>] {
        // SAFETY: a `CaseFor` is a `Case`: its other field has no size.
        unsafe { &*(&raw const *cases as *const [Case<'a>]) }
    }
}

impl Case<'_> {
    /// Whether it is a case of this channel. A channel carries values of one type.
    pub(super) fn is_of<T>(&self, chan: Option<NonNull<Chan<T>>>) -> bool {
        let own = self.chan.map(|own| ptr::from_ref(own).cast::<()>());
        own == chan.map(|chan| chan.as_ptr().cast_const().cast())
    }
}

/// How long a select may wait.
#[derive(Clone, Copy, Debug)]
pub enum SelectWait {
    /// Until a case can proceed.
    Forever,
    /// Not at all.
    Not,
    /// For so long.
    For(Duration),
    /// Until this moment.
    Until(Instant),
}

impl SelectWait {
    pub(super) fn deadline(self) -> u64 {
        match self {
            SelectWait::Forever | SelectWait::Not => u64::MAX,
            SelectWait::For(duration) => sys::deadline_after(duration),
            SelectWait::Until(instant) => sys::deadline_of(instant),
        }
    }
}

/// A receive as a case of a `select!`.
#[inline]
pub fn recv_case_for<T, R>(receiver: &Receiver<T>, room: RoomOf<R>) -> CaseFor<'_, R> {
    const { RoomOf::<R>::assert_fits::<T>() };
    CaseFor {
        case: recv_case(receiver),
        room,
    }
}

/// A send as a case of a `select!`.
#[inline]
pub fn send_case_for<T, R>(sender: &Sender<T>, room: RoomOf<R>) -> CaseFor<'_, R> {
    CaseFor {
        case: send_case(sender),
        room,
    }
}

/// A receive as a case.
#[inline]
pub(super) fn recv_case<T>(receiver: &Receiver<T>) -> Case<'_> {
    Case {
        // SAFETY: D1, the handle keeps its channel alive.
        chan: receiver
            .chan
            .map(|chan| unsafe { chan.as_ref() } as &dyn SelectHandle),
        handle: ptr::from_ref(receiver).cast(),
        is_send: false,
    }
}

/// A send as a case.
#[inline]
pub(super) fn send_case<T>(sender: &Sender<T>) -> Case<'_> {
    Case {
        // SAFETY: D1, the handle keeps its channel alive.
        chan: Some(unsafe { sender.chan.as_ref() }),
        handle: ptr::from_ref(sender).cast(),
        is_send: true,
    }
}

/// The cases of a select; each node has the number of its case.
///
/// # Safety
/// The waiter is a select's that sleeps or was abandoned.
pub(super) unsafe fn cases_of(waiter: &Waiter) -> &[Case<'_>] {
    let on = waiter.on.get();
    // SAFETY: `SelectRun::under_locks` stored the cases (`SelectRun::on`) before the select slept.
    // The select borrows them while it sleeps, and for ever if it was abandoned.
    unsafe { std::slice::from_raw_parts(on.cases_at.cast(), on.cases as usize) }
}
