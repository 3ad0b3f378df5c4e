//! What a goroutine waits on, in the words of a dump: the channels, or the lock and its holder.
//!
//! It is copied from the `Waiter` on the goroutine's stack while the goroutine is held asleep. Only
//! numbers and addresses are copied, so nothing is allocated (D9).

use std::fmt;

use crate::chan::snapshot;
use crate::chan::snapshot::{ChanSnapshot, Operation};
use crate::sched::model::ptr::Gp;
use crate::sched::model::wait_reason::WaitClass;
use crate::sched::waiting::owner;
use crate::sched::waiting::wait_ops::WaitView;
use crate::sched::waiting::waitq::Waiter;
use crate::sys::PageVec;

/// The most cases of one select that a dump shows.
const CASES_MAX: usize = 16;

/// One thing that a goroutine waits on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitTarget {
    Operation(Operation),
    /// So many more operations, which are not shown.
    More(usize),
    /// The number of an open socket.
    Descriptor(usize),
    /// A lock or another object of `sync`, and its holder where that is known: (runtime,
    /// goroutine).
    Lock {
        what: &'static str,
        address: usize,
        holder: Option<(u32, u64)>,
    },
}

/// The waiter of a goroutine that waits in queues.
///
/// # Safety
/// `g` is held asleep, by the Scan bit over Waiting or Leaked or by a stopped world, for as long as
/// the reference is used.
unsafe fn waiter_of<'a>(g: Gp) -> Option<&'a Waiter> {
    // SAFETY: the caller promises that `g` stays asleep, so it does not return from its wait.
    match unsafe { g.wait() }?.view() {
        WaitView::Waiter(waiter) => Some(waiter),
        _ => None,
    }
}

/// Adds what `g` waits on to `targets`, as far as there is memory; returns how many cases its wait
/// has.
///
/// # Safety
/// As for [`waiter_of`].
pub(super) unsafe fn collect(g: Gp, targets: &mut PageVec<WaitTarget>) -> u32 {
    // SAFETY: G6, the caller promises that `g` is held asleep until this function returns.
    let Some(waiter) = (unsafe { waiter_of(g) }) else {
        return 0;
    };
    let (reason, on) = (g.wait_reason(), waiter.on.get());
    let mut shown = 0;
    let mut add = |target| shown += usize::from(targets.push(target).is_ok());
    let mut operations = 0;
    // SAFETY: G6, `on` was set by the waiter of `g`, and the caller promises that `g` is held
    // asleep.
    unsafe {
        snapshot::each_operation(reason, &on, |operation| {
            operations += 1;
            if operations <= CASES_MAX {
                add(WaitTarget::Operation(operation));
            }
        });
    }
    if operations > CASES_MAX {
        add(WaitTarget::More(operations - CASES_MAX));
    }
    match reason.class() {
        WaitClass::Descriptor => add(WaitTarget::Descriptor(on.object)),
        WaitClass::Object(what) if on.object != 0 => add(WaitTarget::Lock {
            what,
            address: on.object,
            // SAFETY: G6, the caller promises that `g` is held asleep, and a waiter keeps alive
            // what it waits on.
            holder: unsafe { owner::named_in(on.holder) },
        }),
        _ => {}
    }
    on.cases
}

impl WaitTarget {
    /// The goroutine that holds the lock, if it belongs to `runtime`.
    pub(super) fn holder_in(self, runtime: u32) -> Option<u64> {
        match self {
            WaitTarget::Lock {
                holder: Some((of, id)),
                ..
            } if of == runtime => Some(id),
            _ => None,
        }
    }

    /// The line in a dump of `runtime`.
    pub(super) fn line(self, runtime: u32) -> TargetLine {
        TargetLine(self, runtime)
    }
}

/// See [`WaitTarget::line`].
pub(super) struct TargetLine(WaitTarget, u32);

impl fmt::Display for TargetLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TargetLine(target, runtime) = self;
        match target {
            WaitTarget::Operation(operation) => fmt_operation(operation, f),
            WaitTarget::More(n) => write!(f, "...{n} more cases..."),
            WaitTarget::Descriptor(fd) => write!(f, "waits on descriptor {fd}"),
            WaitTarget::Lock {
                what,
                address,
                holder,
            } => {
                write!(f, "waits on {what} {address:#x}")?;
                match holder {
                    None => Ok(()),
                    Some((of, id)) if of == runtime => write!(f, ", held by goroutine {id}"),
                    Some((of, id)) => write!(f, ", held by goroutine {id} of runtime {of}"),
                }
            }
        }
    }
}

fn fmt_operation(operation: &Operation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let verb = match operation.is_send {
        true => "send to",
        false => "receive from",
    };
    let Some(seen) = operation.channel else {
        return write!(f, "waits to {verb} no channel (never)");
    };
    if seen.is_clock {
        return write!(f, "waits to {verb} timer {:#x}", seen.address);
    }
    write!(f, "waits to {verb} channel {:#x} (", seen.address)?;
    fmt_channel(&seen, f)?;
    f.write_str(")")
}

/// `capacity 3, 0 queued, 2 senders, 1 receiver`
fn fmt_channel(seen: &ChanSnapshot, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match seen.capacity {
        Some(capacity) => write!(f, "capacity {capacity}")?,
        None => f.write_str("unbounded")?,
    }
    if seen.capacity != Some(0) {
        write!(f, ", {} queued", seen.len)?;
    }
    for (n, word) in [(seen.senders, "sender"), (seen.receivers, "receiver")] {
        let plural = if n == 1 { "" } else { "s" };
        write!(f, ", {n} {word}{plural}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFERED: ChanSnapshot = ChanSnapshot {
        address: 0x7f00,
        capacity: Some(3),
        len: 0,
        senders: 2,
        receivers: 1,
        is_clock: false,
    };

    fn line(is_send: bool, channel: Option<ChanSnapshot>) -> String {
        let operation = Operation {
            is_send,
            channel,
            handle: 0,
        };
        WaitTarget::Operation(operation).line(1).to_string()
    }

    #[test]
    fn channels_are_told_with_their_numbers() {
        assert_eq!(
            line(false, Some(BUFFERED)),
            "waits to receive from channel 0x7f00 (capacity 3, 0 queued, 2 senders, 1 receiver)"
        );
        let rendezvous = ChanSnapshot {
            capacity: Some(0),
            senders: 1,
            receivers: 0,
            ..BUFFERED
        };
        assert_eq!(
            line(true, Some(rendezvous)),
            "waits to send to channel 0x7f00 (capacity 0, 1 sender, 0 receivers)"
        );
        let unbounded = ChanSnapshot {
            capacity: None,
            ..BUFFERED
        };
        assert_eq!(
            line(false, Some(unbounded)),
            "waits to receive from channel 0x7f00 (unbounded, 0 queued, 2 senders, 1 receiver)"
        );
        let clock = ChanSnapshot {
            is_clock: true,
            ..BUFFERED
        };
        assert_eq!(
            line(false, Some(clock)),
            "waits to receive from timer 0x7f00"
        );
        assert_eq!(
            line(false, None),
            "waits to receive from no channel (never)"
        );
    }

    #[test]
    fn locks_are_told_with_their_holder() {
        let lock = |holder| WaitTarget::Lock {
            what: "mutex",
            address: 0x7f00,
            holder,
        };
        let text = |holder| lock(holder).line(1).to_string();
        assert_eq!(text(None), "waits on mutex 0x7f00");
        assert_eq!(
            text(Some((1, 7))),
            "waits on mutex 0x7f00, held by goroutine 7"
        );
        assert_eq!(
            text(Some((2, 7))),
            "waits on mutex 0x7f00, held by goroutine 7 of runtime 2"
        );
        assert_eq!(lock(Some((1, 7))).holder_in(1), Some(7));
        assert_eq!(lock(Some((2, 7))).holder_in(1), None);
    }
}
