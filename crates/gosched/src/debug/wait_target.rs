//! What a goroutine waits on, in the words of a dump: the channels, the lock, and who holds it.
//!
//! Copied while the goroutine is held asleep, from the `Waiter` on its stack; numbers and addresses only (D9).

use std::fmt;

use crate::chan::snapshot;
use crate::chan::snapshot::{ChanSnapshot, Operation};
use crate::sched::model::g::WaitReason;
use crate::sched::model::ptr::Gp;
use crate::sched::park::WaitArg;
use crate::sched::waitq::Waiter;
use crate::sync::owner;
use crate::sys::PageVec;

/// Cases of one select that a dump shows.
const CASES_MAX: usize = 16;

/// One thing that a goroutine waits on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Operation(Operation),
    /// So many more operations.
    More(usize),
    /// The number of an open socket.
    Descriptor(usize),
    /// A lock or the like, and its holder where that is known: (runtime, goroutine).
    Lock {
        what: &'static str,
        address: usize,
        holder: Option<(u32, u64)>,
    },
}

/// The waiter of a goroutine that waits in queues.
///
/// # Safety
/// `g` is held asleep: by the Scan bit over Waiting or Leaked, or in a stopped world. The reference is good until it is let go.
pub(super) unsafe fn waiter_of<'a>(g: Gp) -> Option<&'a Waiter> {
    let is_waiter = g.wait_ops.get()?.arg == WaitArg::Waiter;
    // SAFETY: PK, G6: the argument of such a wait lies on the stack of `g`, which does not go on.
    is_waiter.then(|| unsafe { &*g.wait_arg.get().cast::<Waiter>() })
}

/// Notes what `g` waits on, as far as there is memory; returns how many cases its wait has.
///
/// # Safety
/// As for [`waiter_of`].
pub(super) unsafe fn collect(g: Gp, targets: &mut PageVec<Target>) -> u32 {
    // SAFETY: by the caller's promise.
    let Some(waiter) = (unsafe { waiter_of(g) }) else {
        return 0;
    };
    let (reason, on) = (g.wait_reason(), waiter.on.get());
    let mut shown = 0;
    let mut add = |target| shown += usize::from(targets.push(target).is_ok());
    let mut operations = 0;
    // SAFETY: by the caller's promise.
    unsafe {
        snapshot::each_operation(reason, &on, |operation| {
            operations += 1;
            if operations <= CASES_MAX {
                add(Target::Operation(operation));
            }
        });
    }
    if operations > CASES_MAX {
        add(Target::More(operations - CASES_MAX));
    }
    if matches!(reason, WaitReason::IoRead | WaitReason::IoWrite) {
        add(Target::Descriptor(on.object));
    }
    if let Some(what) = lock_word(reason)
        && on.object != 0
    {
        add(Target::Lock {
            what,
            address: on.object,
            // SAFETY: by the caller's promise: what is waited on is there.
            holder: unsafe { owner::named_in(on.holder) },
        });
    }
    on.cases
}

/// What is waited on, if it is none of the channels.
fn lock_word(reason: WaitReason) -> Option<&'static str> {
    Some(match reason {
        WaitReason::Mutex => "mutex",
        WaitReason::RwLockRead | WaitReason::RwLockWrite => "rwlock",
        WaitReason::Condvar => "condvar",
        WaitReason::Once => "once",
        WaitReason::Barrier => "barrier",
        WaitReason::WaitGroup => "wait group",
        WaitReason::Semaphore => "semaphore",
        _ => return None,
    })
}

impl Target {
    /// The goroutine of `runtime` that holds it.
    pub(super) fn holder_in(self, runtime: u32) -> Option<u64> {
        match self {
            Target::Lock {
                holder: Some((of, id)),
                ..
            } if of == runtime => Some(id),
            _ => None,
        }
    }

    /// As a line of a dump of `runtime`.
    pub(super) fn line(self, runtime: u32) -> Line {
        Line(self, runtime)
    }
}

/// See [`Target::line`].
pub(super) struct Line(Target, u32);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line(target, runtime) = self;
        match target {
            Target::Operation(operation) => fmt_operation(operation, f),
            Target::More(n) => write!(f, "...{n} more cases..."),
            Target::Descriptor(fd) => write!(f, "waits on descriptor {fd}"),
            Target::Lock {
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
        Target::Operation(operation).line(1).to_string()
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
        let lock = |holder| Target::Lock {
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
