//! G: a goroutine's control block. It outlives the closure that it runs, and it borrows its stack
//! (D3).
//!
//! The block has the goroutine's status (`gstatus`), saved stack pointer and identity. It has the
//! closure until the first run, and later what the goroutine waits for. All-zero memory is a valid
//! G in state Idle, so new blocks come straight from the kernel (`gblock`).
//!
//! Fields that several threads write are atomics. A `Word` belongs to the thread that the status
//! names: the spawner while Dead, the M while Running, that M's g0 while the goroutine parks.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64};

use crate::sched::model::current::assert_user_context;
use crate::sched::model::gstatus::{Status, StatusWord};
use crate::sched::model::opens::{OpenSend, OpenSends};
use crate::sched::model::ptr::{AtomicRef, Gp, Home, Mp};
use crate::sched::model::timer::{NOWHERE, TimerWord};
pub(crate) use crate::sched::model::wait_reason::WaitReason;
use crate::sched::model::word::Word;
use crate::stack::Stack;

/// The largest closure that fits into the G itself, in words.
const INLINE_WORDS: usize = 5;

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
    /// It is in a P's ring and was in the global queue before (`global`). An overflow puts it back
    /// at the head. The holder of its queue writes this.
    pub(crate) is_senior: Word<bool>,
    /// Nested `blocking` calls.
    pub(crate) calls: Word<u16>,
    /// While Waiting: how to withdraw it (a `WaitOps`, or null), and what it waits on.
    pub(in crate::sched) wait_way: Word<*const ()>,
    pub(crate) wait_arg: Word<*const c_void>,

    /// The closure's table until the first run; after that its open sends.
    task: OpenSends,
    /// The closure; after that, room for the record of one open send.
    data: Storage,
}

struct Storage(UnsafeCell<[MaybeUninit<u64>; INLINE_WORDS]>);

// SAFETY: only the owner of the G uses it: the spawner, the goroutine, or the thread that ends the
// goroutine (`set_task`, `take_task`, `take_unrun`, `open_slot`).
unsafe impl Sync for Storage {}

pub(crate) struct TaskVtable {
    /// Moves the closure out and runs it, once, on the goroutine's stack, outside the runtime.
    pub(crate) run: unsafe fn(*mut u8),
    pub(crate) drop: unsafe fn(*mut u8),
}

/// A closure that never runs, moved out of its G. Its drop drops the closure, in user context.
pub(crate) struct Unrun {
    vtable: &'static TaskVtable,
    data: [MaybeUninit<u64>; INLINE_WORDS],
}

impl Drop for Unrun {
    fn drop(&mut self) {
        assert_user_context();
        // SAFETY: D3, `take_unrun` moved the closure here, and it has not run.
        unsafe { (self.vtable.drop)(self.data.as_mut_ptr().cast()) };
    }
}

struct Vtables<F>(F);

impl<F: FnOnce()> Vtables<F> {
    const TABLE: TaskVtable = TaskVtable {
        // The caller passes the closure's only copy and does not use it again (`take_task`,
        // `Unrun`).
        run: |data| {
            // SAFETY: D3, `put` wrote an F to this place, and it is read once.
            let f = unsafe { data.cast::<F>().read() };
            f();
        },
        drop: |data| {
            // SAFETY: D3, `put` wrote an F to this place, and it was not run.
            unsafe { data.cast::<F>().drop_in_place() };
        },
    };
    const FITS: bool = size_of::<F>() <= INLINE_WORDS * 8 && align_of::<F>() <= align_of::<u64>();
}

/// A closure on its way into a G. A large one is boxed beforehand, so storing it cannot fail and
/// needs no allocator inside the runtime (D9). It is Send: it runs on another goroutine, and the
/// thread that drops the runtime may drop it.
pub(crate) struct Task<F>(Closure<F>);

enum Closure<F> {
    Inline(F),
    Boxed(Box<F>),
}

impl<F: FnOnce() + Send> Task<F> {
    #[inline]
    pub(crate) fn new(f: F) -> Task<F>
    where
        F: 'static,
    {
        // SAFETY: a 'static closure borrows nothing that can be freed.
        unsafe { Task::borrowing(f) }
    }

    /// A closure that may borrow.
    ///
    /// # Safety
    /// What `F` borrows outlives the goroutine that gets the task, or the goroutine is abandoned
    /// before it ends (D2).
    #[inline]
    pub(crate) unsafe fn borrowing(f: F) -> Task<F> {
        Task(if Vtables::<F>::FITS {
            Closure::Inline(f)
        } else {
            Closure::Boxed(Box::new(f))
        })
    }
}

impl G {
    /// Stores the closure.
    ///
    /// # Safety
    /// The G is Dead and only the caller has it. Its closure slot is empty.
    #[inline]
    pub(crate) unsafe fn set_task<F: FnOnce()>(&self, task: Task<F>) {
        match task.0 {
            // SAFETY: the caller has the G alone, and `Task` checked that F fits (`FITS`).
            Closure::Inline(f) => unsafe { self.put(f) },
            Closure::Boxed(f) => {
                let unboxed = move || {
                    // The box is freed before the closure runs: the closure's last step ends the
                    // goroutine's thread-locals, and an allocator may have some.
                    let f = { *{ f } };
                    f();
                };
                // SAFETY: the caller has the G alone, and a closure that captures a box is a word.
                unsafe { self.put(unboxed) };
            }
        }
    }

    /// # Safety
    /// As for [`G::set_task`], and `F` fits into the slot.
    #[inline]
    unsafe fn put<F: FnOnce()>(&self, f: F) {
        const { assert!(align_of::<Storage>() >= align_of::<u64>()) };
        // SAFETY: D3, the slot is the caller's, and F fits in size and alignment.
        unsafe { self.data.0.get().cast::<F>().write(f) };
        self.put_table(&Vtables::<F>::TABLE);
    }

    /// Takes the closure. The caller runs or drops it, once.
    pub(crate) fn take_task(&self) -> Option<(&'static TaskVtable, *mut u8)> {
        self.take_table().map(|vt| (vt, self.data.0.get().cast()))
    }

    #[inline]
    fn put_table(&self, vtable: &'static TaskVtable) {
        let word = ptr::from_ref(vtable).cast_mut().cast();
        // ORDER: Relaxed; the spawner owns the G, and the queue's Release hands it on.
        self.task.word().store(word, Relaxed);
    }

    #[inline]
    fn take_table(&self) -> Option<&'static TaskVtable> {
        // ORDER: Relaxed; the caller owns the G.
        let word = self.task.word().load(Relaxed);
        self.task.word().store(ptr::null_mut(), Relaxed);
        // SAFETY: D3, before the first run the word is null or what `put_table` stored;
        // `take_unrun` excludes a list of open sends.
        unsafe { word.cast::<TaskVtable>().as_ref() }
    }

    /// Its open sends: chosen by a select and not completed. For any goroutine, started or not.
    #[inline]
    pub(crate) fn opens(&self) -> &OpenSends {
        &self.task
    }

    /// Room for the record of one open send, while the goroutine runs and the room is unused.
    #[inline]
    pub(crate) fn open_slot(&self) -> NonNull<OpenSend> {
        const { assert!(size_of::<OpenSend>() <= INLINE_WORDS * 8) };
        const { assert!(align_of::<OpenSend>() <= align_of::<u64>()) };
        // SAFETY: the address of a field is not null.
        unsafe { NonNull::new_unchecked(self.data.0.get().cast()) }
    }

    /// Moves out the closure of a goroutine that never runs. The caller owns the G.
    pub(crate) fn take_unrun(&self) -> Option<Unrun> {
        if self.task.is_list() {
            return None;
        }
        self.take_table().map(|vtable| Unrun {
            vtable,
            // SAFETY: D3, the caller owns the slot. The table is gone, so the slot's copy is not
            // used again.
            data: unsafe { *self.data.0.get() },
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
