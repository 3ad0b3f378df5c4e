//! A channel: its header, the waiters of both sides, and its flavour.
//!
//! Values pass through the buffer without a lock while no thread waits. A sender or receiver that
//! must wait queues itself under the channel's lock and *settles*: while the buffer has something
//! for the first waiting receiver, or room for the first waiting sender, that waiter is served.
//! Waiters are served in order. Each is claimed first, for its select, its timeout or its runtime
//! may be faster; then it is given its value. A thread that moves a value past the buffer reads
//! afterwards whether there are waiters, and settles too. A later sender or receiver does not pass
//! the waiters, not even to try. So a waiter gets its value from the thread that made it possible,
//! and a later one never takes it (Go's direct hand-off). An operation that was under way already
//! when the waiter queued itself may be faster by one value.
//!
//! Two races, four fences:
//! ```text
//!            one side                     the other side
//!  settle/1  a sender moves `tail`,       a receiver sets `recv_waits`,
//!            then reads `recv_waits`      then reads `tail`
//!  settle/2  a receiver moves `head`,     a sender sets `send_waits`,
//!            then reads `send_waits`      then reads `head`
//! ```
//! With a full barrier between the two steps on both sides, one of the two sees the other.
//!
//! A channel without capacity has no buffer: everything happens under the lock, and the value goes
//! from stack to stack.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};

use super::any::Chan;
use super::flavor::{Flavor, FlavorTag};
use super::returned;
use super::ring::ReservedPlace;
use crate::base::lock::{Lock, Rank};
use crate::chan::snapshot::ChanSnapshot;
use crate::sched::model::g::WaitReason;
use crate::sched::waiting::on::On;
use crate::sched::waiting::waitq::{WaitKind, WaitNode, WaitQueue, WakeList};
use crate::shim::{AtomicBool, AtomicU32, AtomicUsize, Relaxed};

pub(super) static RECV: WaitKind =
    WaitKind::new(WaitReason::ChanReceive).passing_on(returned::pass_on_received);
pub(super) static SEND: WaitKind = WaitKind::new(WaitReason::ChanSend);
/// Waits for a select's sender that has been chosen and is about to evaluate its message.
pub(super) static HANDSHAKE: WaitKind =
    WaitKind::always(WaitReason::ChanReceive).passing_on(returned::pass_on_received);

/// What a node asks for, and what it got: in `WaitNode::word`.
pub(super) mod word {
    /// A value at `elem`, to be taken or written.
    pub(in crate::chan) const VALUE: usize = 0;
    /// A select's sender: a place in the buffer, or a receiver to give the value to later.
    pub(in crate::chan) const PLACE: usize = 1;
    /// To know that it would not have to wait.
    pub(in crate::chan) const READY: usize = 2;

    /// The value was moved.
    pub(in crate::chan) const MOVED: usize = 16;
    pub(in crate::chan) const CLOSED: usize = 17;
    /// Things have changed: look again.
    pub(in crate::chan) const AGAIN: usize = 18;
    /// A receiver waits at `elem` for the value: its own node.
    pub(in crate::chan) const PEER: usize = 19;
    /// A place in the buffer is reserved; its number is added.
    pub(in crate::chan) const RESERVED: usize = 32;
}

/// The waiters, under the channel's lock.
pub(super) struct ChanQueues {
    pub(super) sendq: WaitQueue,
    pub(super) recvq: WaitQueue,
    /// Values that were taken back from receivers that never run again (`returned`). They come
    /// before everything else that there is to receive.
    pub(super) returned: WaitQueue,
    pub(super) is_closed: bool,
}

/// What every channel has, whatever it carries.
pub(super) struct ChanHeader {
    pub(super) queues: Lock<ChanQueues>,
    /// Whether the queues have waiters, for threads that use the buffer without the lock. A value
    /// that was taken back counts as a receiver that waits: a later receiver then looks under the
    /// lock.
    pub(super) recv_waits: AtomicBool,
    pub(super) send_waits: AtomicBool,
    /// How many values were taken back and wait for a receiver.
    pub(super) returned: AtomicU32,
    pub(super) senders: AtomicUsize,
    pub(super) receivers: AtomicUsize,
    /// One side is gone for good; the other frees the channel.
    pub(super) is_half_gone: AtomicBool,
    pub(super) flavor: FlavorTag,
    pub(super) ending: Ending,
    pub(super) vtable: &'static ChanVtable,
}

/// Operations on a channel of which only the header is known.
///
/// Each takes the header of a channel whose values have the type that the vtable was made for. A
/// handle keeps that channel alive.
pub(super) struct ChanVtable {
    /// How dumps see the channel: [`Chan::see`].
    pub(super) see: unsafe fn(*const ChanHeader) -> ChanSnapshot,
    /// Takes back what was given to a goroutine that never runs again: [`Chan::take_back`].
    pub(super) take_back: unsafe fn(*const ChanHeader, Option<&WaitNode<'_>>),
    /// Gives up the place of a select's send whose goroutine never runs again:
    /// [`Chan::refuse_open_place`].
    pub(super) refuse_place: unsafe fn(*const ChanHeader, ReservedPlace),
}

/// What is special about the end of a channel. Two words: an enum would take three.
#[derive(Clone, Copy)]
pub(super) struct Ending {
    tell: Option<fn(usize)>,
    whom: usize,
}

impl Ending {
    pub(super) const USUAL: Ending = Ending {
        tell: None,
        whom: 0,
    };

    /// Receivers cannot close it.
    pub(super) const SENDERS_ONLY: Ending = Ending {
        tell: None,
        whom: 1,
    };

    /// A thread that closes it, or drops the last receiver, calls `tell(whom)`.
    pub(super) fn told(tell: fn(usize), whom: usize) -> Ending {
        let tell = Some(tell);
        Ending { tell, whom }
    }

    pub(super) fn is_for_receivers(self) -> bool {
        self.tell.is_some() || self.whom == 0
    }

    /// The channel was closed. Without locks.
    pub(super) fn tell(self) {
        if let Some(tell) = self.tell {
            tell(self.whom);
        }
    }
}

/// A channel of a known flavour. Its handles have it as a [`Chan`].
#[repr(C)] // the header comes first: a pointer to it is a pointer to the channel
pub(super) struct Channel<F> {
    pub(super) header: ChanHeader,
    pub(super) flavor: F,
}

impl<F: Flavor> Channel<F> {
    /// A channel with one receiver and so many senders, in one allocation. Its flavour needs `more`
    /// memory besides itself: `make` makes the flavour with that memory. None: there is no memory
    /// for the channel, and no flavour was made.
    ///
    /// # Safety
    /// [`Flavor::more_memory`] of the flavour is `more`.
    pub(super) unsafe fn allocate(
        more: Layout,
        make: impl FnOnce(NonNull<u8>) -> F,
        senders: usize,
        ending: Ending,
    ) -> Option<NonNull<Chan<F::Value>>> {
        let (layout, more_at) = Channel::<F>::layout(more)?;
        // SAFETY: the size is not zero: there is a header.
        let at = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: the layout has `more` memory there.
        let flavor = make(unsafe { at.byte_add(more_at) });
        debug_assert_eq!(flavor.more_memory(), more);
        let chan = at.cast::<Channel<F>>();
        // SAFETY: the memory was just allocated, and a channel fits.
        unsafe {
            chan.write(Channel {
                header: ChanHeader::new::<F>(senders, ending),
                flavor,
            });
        }
        chan.expose_provenance(); // of the whole channel: see `Chan::of`
        Some(chan.cast())
    }

    /// A channel whose flavour needs no memory besides itself. Without memory it ends the process,
    /// as a box does.
    pub(super) fn allocate_small(
        flavor: F,
        senders: usize,
        ending: Ending,
    ) -> NonNull<Chan<F::Value>> {
        let more = flavor.more_memory();
        // SAFETY: `more` is what this flavour says.
        let chan = unsafe { Channel::allocate(more, |_| flavor, senders, ending) };
        chan.unwrap_or_else(|| handle_alloc_error(Layout::new::<Channel<F>>()))
    }

    /// The layout of a channel whose flavour needs `more` memory, and where that memory begins.
    /// None: it does not fit into any memory.
    fn layout(more: Layout) -> Option<(Layout, usize)> {
        Layout::new::<Channel<F>>().extend(more).ok()
    }

    /// Drops the channel and frees its memory.
    ///
    /// # Safety
    /// [`Channel::allocate`] made it, and nothing refers to it any more.
    pub(super) unsafe fn free(at: NonNull<Channel<F>>) {
        struct Memory(NonNull<u8>, Layout);
        impl Drop for Memory {
            fn drop(&mut self) {
                // SAFETY: `allocate` allocated it with this layout: its caller promised that
                // `more_memory` returns the same. The channel in it is gone.
                unsafe { dealloc(self.0.as_ptr(), self.1) };
            }
        }
        // SAFETY: the channel is there, as the caller promises.
        let more = unsafe { &(*at.as_ptr()).flavor }.more_memory();
        let Some((layout, _)) = Channel::<F>::layout(more) else {
            unreachable!("it was allocated")
        };
        let _memory = Memory(at.cast(), layout); // freed also if a value's destructor unwinds
        // SAFETY: nothing refers to the channel any more, as the caller promises.
        unsafe { at.drop_in_place() };
    }
}

impl ChanHeader {
    fn new<F: Flavor>(senders: usize, ending: Ending) -> ChanHeader {
        ChanHeader {
            queues: Lock::new(
                Rank::Chan,
                ChanQueues {
                    sendq: WaitQueue::new(),
                    recvq: WaitQueue::new(),
                    returned: WaitQueue::new(),
                    is_closed: false,
                },
            ),
            recv_waits: AtomicBool::new(false),
            send_waits: AtomicBool::new(false),
            returned: AtomicU32::new(0),
            senders: AtomicUsize::new(senders),
            receivers: AtomicUsize::new(1),
            is_half_gone: AtomicBool::new(senders == 0),
            flavor: F::TAG,
            ending,
            vtable: &Chan::<F::Value>::VTABLE,
        }
    }

    /// Mirrors the queues for threads that use the buffer without the lock. Under the lock.
    #[inline]
    pub(super) fn note_queues(&self, q: &ChanQueues) {
        let recv_waits = !(q.recvq.is_empty() && q.returned.is_empty());
        self.recv_waits.store(recv_waits, Relaxed);
        self.send_waits.store(!q.sendq.is_empty(), Relaxed);
    }

    /// Whether a receiver waits, or a value was taken back.
    #[inline]
    pub(super) fn has_receivers_waiting(&self) -> bool {
        self.recv_waits.load(Relaxed)
    }

    #[inline]
    pub(super) fn has_senders_waiting(&self) -> bool {
        self.send_waits.load(Relaxed)
    }

    /// How many values were taken back and wait for a receiver.
    pub(super) fn returned(&self) -> usize {
        self.returned.load(Relaxed) as usize
    }

    /// What a waiter stores of this channel.
    pub(super) fn on(&self) -> On {
        On {
            object: ptr::from_ref(self).addr(),
            cases: 1,
            ..On::NOTHING
        }
    }

    /// Wakes every receiver to look again. Under the lock.
    pub(super) fn look_again(&self, q: &mut ChanQueues, wake: &mut WakeList) {
        while let Some(node) = q.recvq.pop() {
            node.word.set(word::AGAIN);
            node.finish(wake);
        }
        self.note_queues(q);
    }
}
