//! What dumps and the leak check see of a channel while a goroutine waits on it.
//!
//! A goroutine that waits borrows its handles, so a thread that holds the goroutine asleep finds
//! the channels there. Nothing is locked or allocated: the world may be stopped while a stopped
//! thread holds a channel's lock (D9). The numbers are those of one moment.

use std::{ptr, slice};

use crate::chan::core::{ChanHeader, Channel};
use crate::chan::flavor::Flavor;
use crate::chan::select_case::Case;
use crate::chan::select_handle::SelectHandle;
use crate::sched::model::g::WaitReason;
use crate::sched::model::wait_reason::WaitClass;
use crate::sched::waiting::on::On;
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
    /// Values come from the clock.
    pub(crate) is_clock: bool,
}

/// An operation that a goroutine waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Operation {
    pub(crate) is_send: bool,
    /// None: a channel on which nothing ever happens.
    pub(crate) channel: Option<ChanSnapshot>,
    /// The address of the handle that is used for it; 0: unknown.
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
    // SAFETY: the vtable is the one for the type of this channel's values, and the caller keeps the
    // channel.
    unsafe { (header.vtable.see)(header) }
}

/// Calls `f` for each operation that a goroutine waits for; nothing if it waits for no channel.
///
/// # Safety
/// `on` was set by a waiter that waits for `reason` and is held asleep.
pub(crate) unsafe fn each_operation(reason: WaitReason, on: &On, mut f: impl FnMut(Operation)) {
    match reason.class() {
        class @ (WaitClass::Receive | WaitClass::Send) if on.cases > 0 => f(Operation {
            is_send: class == WaitClass::Send,
            // SAFETY: the waiter of a single operation stored its channel's header. It borrows a
            // handle of the channel, and is held asleep.
            channel: unsafe { ptr::with_exposed_provenance::<ChanHeader>(on.object).as_ref() }
                .map(see),
            handle: 0,
        }),
        WaitClass::Select if !on.cases_at.is_null() => {
            // SAFETY: a select stored its cases, which it borrows until it has returned. It is held
            // asleep.
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
