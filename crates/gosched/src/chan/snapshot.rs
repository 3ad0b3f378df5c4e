//! What others see of a channel while somebody waits on it: dumps, and the leak check.
//!
//! A goroutine that waits borrows its handles, so whoever holds it asleep finds the channels there. Nothing is locked or
//! allocated: the world may be stopped, with a channel's lock in the hands of somebody who is (D9). The numbers are those of
//! one moment.

use std::{ptr, slice};

use crate::chan::core::{ChanHeader, Channel};
use crate::chan::flavor::Flavor;
use crate::chan::select_case::Case;
use crate::chan::select_handle::SelectHandle;
use crate::sched::model::g::WaitReason;
use crate::sched::waitq::On;
use crate::shim::Relaxed;

/// A channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChanSnapshot {
    pub(crate) address: usize,
    /// None: unbounded.
    pub(crate) capacity: Option<usize>,
    /// Values in it.
    pub(crate) len: usize,
    /// Handles of each side.
    pub(crate) senders: usize,
    pub(crate) receivers: usize,
    /// Its values come from the clock.
    pub(crate) is_clock: bool,
}

/// An operation that somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Operation {
    pub(crate) is_send: bool,
    /// None: nothing ever happens there.
    pub(crate) channel: Option<ChanSnapshot>,
    /// Where the handle lies that is used for it; 0: not told.
    pub(crate) handle: usize,
}

impl<F: Flavor> Channel<F> {
    pub(super) fn snapshot(&self) -> ChanSnapshot {
        ChanSnapshot {
            address: ptr::from_ref(&self.header).addr(),
            capacity: F::capacity(self),
            len: F::len(self),
            senders: self.header.senders.load(Relaxed),
            receivers: self.header.receivers.load(Relaxed),
            is_clock: F::IS_CLOCK,
        }
    }
}

fn see(header: &ChanHeader) -> ChanSnapshot {
    // SAFETY: the header says how its own channel is seen.
    unsafe { (header.vtable.see)(header) }
}

/// Calls `f` for each operation that a goroutine waits for; nothing if it waits for no channel.
///
/// # Safety
/// `on` was set by a waiter that waits for `reason` and is held asleep.
pub(crate) unsafe fn each_operation(reason: WaitReason, on: &On, mut f: impl FnMut(Operation)) {
    match reason {
        WaitReason::ChanReceive | WaitReason::ChanSend if on.cases > 0 => f(Operation {
            is_send: reason == WaitReason::ChanSend,
            // SAFETY: by the caller's promise: what such a waiter says that it waits on is its channel's header.
            channel: unsafe { ptr::with_exposed_provenance::<ChanHeader>(on.object).as_ref() }
                .map(see),
            handle: 0,
        }),
        WaitReason::Select if !on.cases_at.is_null() => {
            // SAFETY: as above; a select's are its cases, which it borrows until it has returned.
            let cases =
                unsafe { slice::from_raw_parts(on.cases_at.cast::<Case<'_>>(), on.cases as usize) };
            for case in cases {
                f(Operation {
                    is_send: case.is_send,
                    channel: case.chan.map(SelectHandle::snapshot),
                    handle: case.handle.addr(),
                });
            }
        }
        _ => {}
    }
}
