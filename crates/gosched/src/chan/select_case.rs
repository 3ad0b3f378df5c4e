//! The cases of a select, and how long it may wait.

use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use crate::chan::any::Chan;
use crate::chan::select_handle::SelectHandle;
use crate::chan::value_slot::SmallSlot;
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
    /// A receive whose value fits into a [`SmallSlot`].
    is_small: bool,
}

impl Case<'_> {
    /// Whether `select_run::try_small` takes it.
    #[inline]
    pub(super) fn is_small(&self) -> bool {
        self.is_small
    }

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

/// A receive as a case.
#[inline]
pub fn recv_case<T>(receiver: &Receiver<T>) -> Case<'_> {
    Case {
        // SAFETY: D1, the handle keeps its channel alive.
        chan: receiver
            .chan
            .map(|chan| unsafe { chan.as_ref() } as &dyn SelectHandle),
        handle: ptr::from_ref(receiver).cast(),
        is_send: false,
        is_small: SmallSlot::fits::<T>(),
    }
}

/// A send as a case.
#[inline]
pub fn send_case<T>(sender: &Sender<T>) -> Case<'_> {
    Case {
        // SAFETY: D1, the handle keeps its channel alive.
        chan: Some(unsafe { sender.chan.as_ref() }),
        handle: ptr::from_ref(sender).cast(),
        is_send: true,
        is_small: false,
    }
}

/// The cases of a select; each node has the number of its case.
///
/// # Safety
/// The waiter is a select's that sleeps or was abandoned.
pub(super) unsafe fn cases_of(waiter: &Waiter) -> &[Case<'_>] {
    let on = waiter.on.get();
    // SAFETY: `SelectRun::wait` stored the cases, which the select borrows while it sleeps, and for
    // ever if it was abandoned.
    unsafe { std::slice::from_raw_parts(on.cases_at.cast(), on.cases as usize) }
}
