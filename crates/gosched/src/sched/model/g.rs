//! G: a goroutine's control block. It outlives the closure that it runs, and it borrows its stack
//! (D3).
//!
//! The block has the goroutine's status (`gstatus`), saved stack pointer and identity. It has the
//! closure until the first run, and later what the goroutine waits for. All-zero memory is a valid
//! G in state Idle, so new blocks come straight from the kernel (`gblock`).
//!
//! Fields that several threads write are atomics. A `Word` belongs to the thread that the status
//! names: the spawner while Dead, the M while Running, that M's g0 while the goroutine parks.

use std::ffi::c_void;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64};

use crate::base::closure::{Fitting, Room, Stored, Table};
use crate::sched::model::current::assert_user_context;
use crate::sched::model::gstatus::{Status, StatusWord};
use crate::sched::model::opens::{OpenSend, OpenSends};
use crate::sched::model::ptr::{AtomicRef, Gp, Home, Mp};
use crate::sched::model::timer::{NOWHERE, TimerWord};
pub(crate) use crate::sched::model::wait_reason::WaitReason;
use crate::sched::model::word::{Plain, Word};
use crate::stack::Stack;

/// In `G::started`.
pub(crate) const STARTED: u8 = 1;
pub(crate) const ENDING: u8 = 2;

/// A goroutine's control block.
#[repr(C, align(64))]
pub(crate) struct G {
    // This line is what switching, queueing and waking touch.
    pub(crate) status: StatusWord,
    wait_reason: AtomicU8,
    /// The size class of its stack.
    pub(crate) class: Word<u8>,
    /// Asked to unwind at its next wait (`shutdown`).
    pub(crate) cancelled: AtomicU8,
    /// [`STARTED`]: it has a stack of its own. [`ENDING`]: its closure has returned, and its
    /// thread-locals are being destroyed.
    pub(crate) started: AtomicU8,
    /// The stack pointer while it does not run.
    pub(crate) sp: Word<usize>,
    /// Link of the one run queue or free list it is on (G3).
    pub(crate) schedlink: AtomicRef<G>,
    /// The M that runs it (G2). While Runnable: the M on whose thread it waits for a P, if any
    /// (D7).
    pub(crate) m: AtomicRef<crate::sched::model::m::M>,
    /// The M it is locked to (M6).
    pub(crate) lockedm: AtomicRef<crate::sched::model::m::M>,
    /// Its runtime.
    pub(crate) home: Word<*const Home>,
    /// The bounds of its stack; 0 when it has none. Before its first run, on the global queue, the
    /// bottom is its stamp there (`global_queue`).
    pub(crate) stack_lo: Word<usize>,
    pub(crate) stack_hi: Word<usize>,

    // Its identity.
    pub(crate) id: AtomicU64,
    pub(crate) parent: AtomicU64,
    pub(crate) site: Word<Option<&'static Location<'static>>>,
    /// Its thread handle (`sched/waiting/handle.rs`), null until it is needed. The G owns one
    /// reference.
    pub(crate) handle: AtomicPtr<()>,
    /// Its timer (`timers`): the deadline or the claim, the P whose heap it is in, its slot there.
    pub(crate) timer: Word<TimerWord>,
    pub(crate) timer_p: AtomicU32,
    pub(crate) timer_slot: Word<u32>,
    /// The coarse clock (ms) when it began to wait.
    pub(crate) wait_since: AtomicU32,
    /// The value of `wait_since`, plus one, of the wait in which its stack was last trimmed.
    pub(crate) shrunk_at: AtomicU32,
    /// Nested `lock_os_thread` calls, and the runtime's own lock of a goroutine that unwinds.
    pub(crate) locked_ext: Word<u32>,
    pub(crate) locked_int: Word<u8>,
    /// Its place in the global queue before a batch took it into a ring (`global`). The holder of
    /// its queue writes this.
    pub(crate) senior: Word<Senior>,
    /// Nested `blocking` calls.
    pub(crate) calls: Word<u16>,
    /// While Waiting: how to withdraw it (a `WaitOps`, or null), and what it waits on.
    pub(in crate::sched) wait_way: Word<*const ()>,
    pub(in crate::sched) wait_arg: Word<*const c_void>,

    /// The closure's table until the first run; after that its open sends.
    task: OpenSends,
    /// The closure; after that, room for the record of one open send.
    data: Room,
}

/// Whether a goroutine in a P's ring was in the global queue before. An overflow of the ring puts
/// such a *senior* goroutine back to the head of its order there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Senior {
    /// Zero: a new G's memory is zeroed.
    No = 0,
    /// It was among those that had yielded. Ahead of woken ones it would make them wait.
    Yielded,
    /// It was in another list. The goroutine itself tells which.
    Other,
}

// SAFETY: a `u8`: no padding, and `Send`.
unsafe impl Plain for Senior {}

/// A closure that never runs, moved out of its G. Its drop drops the closure, in user context.
pub(crate) struct Unrun {
    _closure: Stored<Room>,
}

impl Drop for Unrun {
    fn drop(&mut self) {
        assert_user_context();
    }
}

/// A closure on its way into a G. It is Send: it runs on another goroutine, and the thread that
/// drops the runtime may drop it.
pub(crate) struct Task<F>(Fitting<F>);

impl<F: FnOnce() + Send> Task<F> {
    #[inline]
    pub(crate) fn new(f: F) -> Task<F>
    where
        F: 'static,
    {
        Task(Fitting::new(f))
    }

    /// A closure that may borrow.
    ///
    /// # Safety
    /// What `F` borrows outlives the goroutine that gets the task, or the goroutine is abandoned
    /// before it ends (D2).
    #[inline]
    pub(crate) unsafe fn borrowing(f: F) -> Task<F> {
        Task(Fitting::new(f))
    }
}

impl G {
    /// Stores the closure.
    ///
    /// # Safety
    /// The G is Dead and only the caller has it. Its closure slot is empty.
    #[inline]
    pub(crate) unsafe fn set_task<F: FnOnce()>(&self, task: Task<F>) {
        // SAFETY: D3, only the caller has the G, so no other code uses the room.
        let table = unsafe { self.data.put(task.0) };
        let word = ptr::from_ref(table).cast_mut().cast();
        // ORDER: Relaxed; the spawner owns the G, and the queue's Release hands it on.
        self.task.word().store(word, Relaxed);
    }

    /// Takes the closure. None: it was taken before.
    ///
    /// # Safety
    /// The goroutine has not run its closure, and the caller owns the G: it is the goroutine
    /// itself, or no other thread can start the goroutine any more (D3).
    pub(crate) unsafe fn take_task(&self) -> Option<Stored<&Room>> {
        // ORDER: Relaxed; the caller owns the G.
        let word = self.task.word().load(Relaxed);
        self.task.word().store(ptr::null_mut(), Relaxed);
        // SAFETY: D3, before the first run the word is null or the table of the closure in `data`
        // (`set_task`), and both are the caller's. `Task` guarantees that the closure is Send and
        // that its borrows are alive.
        unsafe { Some(Stored::new(word.cast::<Table>().as_ref()?, &self.data)) }
    }

    /// Its open sends: chosen by a select and not completed. For any goroutine, started or not.
    #[inline]
    pub(crate) fn opens(&self) -> &OpenSends {
        &self.task
    }

    /// Room for the record of one open send, while the goroutine runs and the room is unused.
    #[inline]
    pub(crate) fn open_slot(&self) -> NonNull<OpenSend> {
        const { assert!(size_of::<OpenSend>() <= size_of::<Room>()) };
        const { assert!(align_of::<OpenSend>() <= align_of::<Room>()) };
        NonNull::from(&self.data).cast()
    }

    /// Moves out the closure of a goroutine that never runs.
    ///
    /// # Safety
    /// The caller owns the G: no other thread uses its closure or its open sends (D3).
    pub(crate) unsafe fn take_unrun(&self) -> Option<Unrun> {
        if self.task.is_list() {
            return None;
        }
        // SAFETY: the caller owns the G. The word is no list of open sends, so the goroutine has
        // not run.
        let closure = unsafe { self.take_task() }?;
        Some(Unrun {
            _closure: closure.move_out(),
        })
    }

    #[inline]
    pub(crate) fn set_waiting(&self, reason: WaitReason, now_ms: u32) {
        self.wait_reason.store(reason as u8, Relaxed);
        self.wait_since.store(now_ms, Relaxed);
    }

    /// It becomes Runnable, and not by the end of a wait.
    #[inline]
    pub(crate) fn set_not_waiting(&self) {
        self.wait_reason.store(WaitReason::None as u8, Relaxed);
    }

    /// The address of what it waits on, for dumps.
    pub(crate) fn wait_address(&self) -> usize {
        self.wait_arg.get() as usize
    }

    pub(crate) fn wait_reason(&self) -> WaitReason {
        WaitReason::from_u8(self.wait_reason.load(Relaxed))
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    #[inline]
    pub(crate) fn stack(&self) -> Option<Stack> {
        (self.stack_hi.get() != 0)
            .then(|| Stack::from_parts(self.stack_lo.get(), self.stack_hi.get(), self.class.get()))
    }

    /// Whether `sp` is in the goroutine's slot. If not, the goroutine has gone to a stack of its
    /// own, which the runtime does not know.
    #[inline]
    pub(crate) fn is_own_stack(&self, sp: usize) -> bool {
        self.stack().is_some_and(|stack| stack.contains(sp))
    }

    #[inline]
    pub(crate) fn set_stack(&self, stack: Option<Stack>) {
        self.stack_lo.set(stack.map_or(0, |s| s.lo));
        self.stack_hi.set(stack.map_or(0, |s| s.hi));
    }

    /// The M on whose thread it waits for a P. For a goroutine that is off the queues, or being
    /// dequeued.
    #[inline]
    pub(crate) fn boundm(&self) -> Option<Mp> {
        // ORDER: Acquire; pairs with the Release in `drop_g`.
        self.m.load(Acquire)
    }

    /// The M that alone may run it, if any. Under the same condition as [`G::boundm`].
    #[inline]
    pub(crate) fn owner(&self) -> Option<Mp> {
        self.lockedm.load(Relaxed).or_else(|| self.boundm())
    }

    #[inline]
    pub(crate) fn has_started(&self) -> bool {
        self.started.load(Relaxed) != 0
    }

    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed) != 0
    }

    /// Whether it must unwind at its next wait. Not while its thread-locals are destroyed: no
    /// unwinding may leave that.
    #[inline]
    pub(crate) fn must_unwind(&self) -> bool {
        self.is_cancelled() && self.started.load(Relaxed) != ENDING
    }
}

/// A first-in-first-out queue of Gs, linked through `schedlink`.
pub(crate) struct GQueue {
    head: Option<Gp>,
    tail: Option<Gp>,
    len: usize,
}

impl GQueue {
    pub(crate) const fn new() -> GQueue {
        GQueue {
            head: None,
            tail: None,
            len: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<Gp> {
        self.head
    }

    #[inline]
    pub(crate) fn push_back(&mut self, g: Gp) {
        g.schedlink.store(None, Relaxed);
        match self.tail {
            Some(tail) => tail.schedlink.store(Some(g), Relaxed),
            None => self.head = Some(g),
        }
        self.tail = Some(g);
        self.len += 1;
    }

    pub(crate) fn push_front(&mut self, g: Gp) {
        g.schedlink.store(self.head, Relaxed);
        self.head = Some(g);
        if self.tail.is_none() {
            self.tail = Some(g);
        }
        self.len += 1;
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<Gp> {
        let g = self.head?;
        self.head = g.schedlink.load(Relaxed);
        if self.head.is_none() {
            self.tail = None;
        }
        g.schedlink.store(None, Relaxed);
        self.len -= 1;
        Some(g)
    }

    pub(crate) fn append(&mut self, other: &mut GQueue) {
        let Some(first) = other.head else { return };
        match self.tail {
            Some(tail) => tail.schedlink.store(Some(first), Relaxed),
            None => self.head = Some(first),
        }
        self.tail = other.tail;
        self.len += other.len;
        *other = GQueue::new();
    }

    /// The members, for checks. The caller holds the lock that guards the queue.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Gp> + '_ {
        std::iter::successors(self.head, |g| g.schedlink.load(Relaxed))
    }
}

const _: () = assert!(size_of::<G>() == 192, "D3: a G is three cache lines");

impl G {
    /// Idle → Dead: gives zeroed memory its identity.
    pub(crate) fn init(&self, home: *const Home) {
        self.home.set(home);
        self.timer_p.store(NOWHERE, Relaxed);
        self.handle.store(ptr::null_mut(), Relaxed);
        self.status.transition(Status::Idle, Status::Dead);
    }
}
