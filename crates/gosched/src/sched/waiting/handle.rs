//! The state behind a [`Thread`](crate::thread::Thread) handle: identity, park token, references.
//!
//! The goroutine, its join handle and all thread handles share one allocation. For a joinable
//! goroutine that allocation is the packet of its result, which begins with an `Inner`. The
//! reference count is our own so that both kinds can share it.
//!
//! The park token:
//! ```text
//!  word     meaning                  next
//!  EMPTY    no token, none parked    TOKEN (unpark), sleeper (park)
//!  TOKEN    the next park returns    EMPTY (park)
//!  sleeper  parked: a G, or a note   EMPTY (unpark, timeout or withdrawal; it owns the wake-up)
//! ```

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};

use crate::base::note::Note;
use crate::base::once_box::OnceBox;
use crate::sched::model::g::G;
use crate::sched::model::ptr::Gp;
use crate::sched::park::ready;
use crate::sched::waiting::sleeper::Sleeper;
use crate::sched::waiting::wait_slot::{Awaiter, WaitSlot, enter_to_wake};

/// In `G::handle`: a thread is taking a reference, for a few instructions.
const HELD: usize = 1;

const EMPTY: usize = 0;
const TOKEN: usize = 1;

/// An allocation that begins with an `Inner`: a bare handle, or the packet of a result.
///
/// # Safety
/// - The type is `repr(C)`, and its first field is an `Inner` of `Inner::new::<Self>`.
/// - Any thread may use it through a shared reference, and may drop it.
/// - It may be used and dropped after the end of what it borrows.
pub(crate) unsafe trait Whole {
    /// The goroutine will never have a result: wakes the joining goroutine or thread. Returns a
    /// task that awaits the result, which the caller must wake.
    fn give_up(&self) -> Option<Arc<Awaiter>> {
        None
    }

    /// Reports the goroutine's fate to its scope, if any.
    fn tell_scope(&self, _fate: Fate) {}

    /// The slot in which the end of its scope is waited for. Null if the goroutine is in no scope,
    /// or has left it.
    fn scope(&self) -> *const WaitSlot {
        ptr::null()
    }
}

/// A handle without a packet.
#[repr(C)]
struct Bare(Inner);

// SAFETY: `Inner::bare` makes the field with `Inner::new::<Bare>`. It consists of atomics and an
// immutable name, and borrows nothing.
unsafe impl Whole for Bare {}

type View<'a> = dyn FnMut(*const (dyn Whole + '_)) + 'a;

/// The type of the allocation behind an `Inner`.
struct Kind {
    /// Frees the allocation; the last reference is gone.
    free: unsafe fn(NonNull<Inner>),
    /// Calls the function with the address of the allocation.
    view: fn(NonNull<Inner>, &mut View<'_>),
}

struct KindOf<W>(PhantomData<W>);

impl<W: Whole> KindOf<W> {
    const KIND: Kind = Kind {
        free: |inner| {
            // SAFETY: `InnerRef::new` leaked a box of this type, and the last reference is gone.
            drop(unsafe { Box::from_raw(inner.cast::<W>().as_ptr()) });
        },
        view: |inner, f| f(inner.cast::<W>().as_ptr()),
    };
}

/// The fate of a goroutine after the drop of its runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The goroutine runs, or its closure still exists. It may yet leave its scope.
    Open,
    /// The goroutine never ran, and its closure is dropped. A scope need not wait for it.
    NeverRan(NeverRan),
    /// The goroutine waits for ever. Other goroutines may still use, through it, what it borrows.
    /// So its scope can never end.
    Lost,
}

/// Evidence that a goroutine has not run and never will.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeverRan(());

impl NeverRan {
    /// # Safety
    /// This is passed only to the handle of a goroutine that has not run and never will.
    pub(crate) unsafe fn new() -> NeverRan {
        NeverRan(())
    }
}

impl G {
    /// Its `Inner`, without a reference: for the goroutine itself, or while the goroutine cannot
    /// end (the world is stopped).
    #[inline]
    pub(crate) fn inner(&self) -> Option<NonNull<Inner>> {
        // ORDER: Acquire; pairs with the Release that stored the pointer (`put_inner`,
        // `share_inner`).
        NonNull::new(self.handle.load(Acquire).map_addr(|a| a & !HELD).cast())
    }

    /// Stores the G's own reference. By the owner of the G, which has none: another thread that
    /// asks for it meanwhile finds null.
    #[inline]
    pub(crate) fn put_inner(&self, inner: Option<InnerRef>) {
        let inner = inner.map_or(ptr::null_mut(), |inner| inner.into_raw().as_ptr());
        // ORDER: Release; pairs with the Acquire in `G::inner`.
        self.handle.store(inner.cast(), Release);
    }

    /// A reference to its `Inner`, for another thread at any time. Inside the runtime.
    pub(crate) fn share_inner(&self) -> Option<InnerRef> {
        let own = self.hold_inner(|inner| inner.map_addr(|a| a | HELD))?;
        let shared = own.clone();
        // ORDER: Release; pairs with the Acquire of a thread that waits for the bit.
        self.handle.store(own.into_raw().as_ptr().cast(), Release);
        Some(shared)
    }

    /// Takes the G's own reference, for the thread that ends the goroutine. Inside the runtime.
    pub(crate) fn take_inner(&self) -> Option<InnerRef> {
        self.hold_inner(|_| ptr::null_mut())
    }

    /// Replaces the word by null or by a word with HELD, once HELD is clear. Returns the G's own
    /// reference, which the caller drops or puts back.
    fn hold_inner(&self, next: impl Fn(*mut ()) -> *mut ()) -> Option<InnerRef> {
        loop {
            let word = self.handle.load(Acquire);
            if word.addr() & HELD != 0 {
                std::hint::spin_loop();
                continue;
            }
            let inner = NonNull::new(word)?;
            // ORDER: AcqRel; pairs with the Release of the thread that stored the word, and with
            // the next holder's Acquire.
            let swapped = self
                .handle
                .compare_exchange(word, next(word), AcqRel, Acquire);
            if swapped.is_ok() {
                // SAFETY: D3, the word was the G's own reference (`put_inner`). The swap took
                // it: a thread that finds HELD or null gets none.
                return Some(unsafe { InnerRef::from_raw(inner.cast()) });
            }
        }
    }

    /// Its name, for dumps. Under the same condition as [`G::inner`].
    pub(crate) fn name(&self) -> Option<&str> {
        // SAFETY: G2/D3, the G holds a reference to its `Inner` until it ends.
        self.inner()
            .and_then(|inner| unsafe { inner.as_ref() }.name())
    }
}

#[repr(C)]
pub(crate) struct Inner {
    refs: AtomicUsize,
    token: AtomicUsize,
    runtime: AtomicU32,
    /// Flags of the packet. They are here because this fills padding.
    pub(crate) flags: AtomicU8,
    /// Other goroutines may use what lies on this goroutine's stack: while a scope is open, and
    /// permanently.
    is_in_scope: AtomicBool,
    is_stack_lent: AtomicBool,
    id: AtomicU64,
    /// Boxed twice: names are rare, and the handle then needs one word instead of two. Given at the
    /// start, or once later.
    name: OnceBox<Box<str>>,
    kind: &'static Kind,
}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

impl Inner {
    /// Makes the state for an allocation of type `W`, with one reference ([`InnerRef::new`]).
    pub(crate) fn new<W: Whole>(name: Option<Box<str>>) -> Inner {
        Inner {
            refs: AtomicUsize::new(1),
            token: AtomicUsize::new(EMPTY),
            runtime: AtomicU32::new(0),
            flags: AtomicU8::new(0),
            is_in_scope: AtomicBool::new(false),
            is_stack_lent: AtomicBool::new(false),
            id: AtomicU64::new(0),
            name: OnceBox::from(name.map(Box::new)),
            kind: &KindOf::<W>::KIND,
        }
    }

    /// Allocates the state of a handle without a packet, with one reference.
    pub(crate) fn bare(name: Option<Box<str>>) -> InnerRef {
        InnerRef::new(Bare(Inner::new::<Bare>(name)))
    }

    /// Allocates the state of a plain thread's handle.
    pub(crate) fn for_thread() -> InnerRef {
        let name = std::thread::current().name().map(Box::from);
        let inner = Inner::bare(name);
        let id = NEXT_THREAD.fetch_add(1, Relaxed);
        inner.id.store(id, Relaxed);
        inner
    }

    /// Stores the goroutine's identity. Called once, before the goroutine starts.
    pub(crate) fn set_goroutine(&self, runtime: u32, id: u64) {
        self.runtime.store(runtime, Relaxed);
        self.id.store(id, Relaxed);
    }

    /// Returns the numbers of the runtime (0 for a plain thread) and of the goroutine or thread.
    pub(crate) fn identity(&self) -> (u32, NonZero<u64>) {
        let Some(id) = NonZero::new(self.id.load(Relaxed)) else {
            crate::base::fatal::throw("a thread handle without an identity")
        };
        (self.runtime.load(Relaxed), id)
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.get().map(|name| &**name)
    }

    /// Names a goroutine that has no name.
    pub(crate) fn set_name(&self, name: &str) {
        if self.name.get().is_none() {
            self.name.set_if_none(Box::new(name.into()));
        }
    }

    /// The number of references. If only the goroutine itself has one, only the goroutine can make
    /// a second.
    pub(crate) fn refs(&self) -> usize {
        self.refs.load(Relaxed)
    }

    /// From now on other goroutines may have references to what lies on this goroutine's stack.
    pub(crate) fn lend_stack(&self) {
        self.is_stack_lent.store(true, Relaxed);
    }

    /// Marks the goroutine's stack as shared while a scope is open. Returns the mark before, which
    /// the end of the scope restores.
    pub(crate) fn set_in_scope(&self, is_in: bool) -> bool {
        self.is_in_scope.swap(is_in, Relaxed)
    }

    /// Whether other goroutines may use what lies on the goroutine's stack.
    pub(crate) fn is_stack_lent(&self) -> bool {
        self.is_in_scope.load(Relaxed) || self.is_stack_lent.load(Relaxed)
    }

    pub(crate) fn take_token(&self) -> bool {
        // ORDER: Acquire; pairs with the Release of `unpark`.
        self.token.load(Relaxed) == TOKEN
            && self
                .token
                .compare_exchange(TOKEN, EMPTY, Acquire, Relaxed)
                .is_ok()
    }

    fn commit(&self, sleeper: &Sleeper) -> bool {
        // ORDER: AcqRel; publishes the waiter to `unpark`, or sees what preceded its token.
        match self
            .token
            .compare_exchange(EMPTY, sleeper.word(), AcqRel, Acquire)
        {
            Ok(_) => true,
            Err(_) => {
                // A swap, not a store: an `unpark` that comes now either is seen here or leaves its
                // token.
                let taken = self.token.swap(EMPTY, AcqRel);
                debug_assert_eq!(taken, TOKEN);
                false
            }
        }
    }

    fn withdraw(&self, sleeper: &Sleeper) -> bool {
        // ORDER: AcqRel; pairs with `commit` and `unpark`: the swap that removes the waiter owns
        // its wake-up.
        self.token
            .compare_exchange(sleeper.word(), EMPTY, AcqRel, Acquire)
            .is_ok()
    }

    /// Registers the parking goroutine `g`. False: there was a token, and it is used up.
    pub(crate) fn commit_g(&self, g: Gp) -> bool {
        self.commit(&Sleeper::goroutine(g))
    }

    /// Removes `g`. True: the caller owns its wake-up.
    pub(crate) fn withdraw_g(&self, g: Gp) -> bool {
        self.withdraw(&Sleeper::goroutine(g))
    }

    /// Parks a plain thread until a token is available or the deadline passes.
    pub(crate) fn park_thread(&self, deadline_ns: u64) {
        let note = Note::new();
        // SAFETY: the note stays in this frame until the token's word has refused the sleeper,
        // until it was withdrawn from the word, or until it was woken.
        let me = unsafe { Sleeper::thread(&note) };
        if self.commit(&me) && !note.sleep_until(deadline_ns) && !self.withdraw(&me) {
            note.sleep(); // an unpark has removed the waiter and still accesses the note
        }
    }

    /// Stores a token, or wakes the parked goroutine or thread.
    pub(crate) fn unpark(&self) {
        let mut word = self.token.load(Relaxed);
        // ORDER: AcqRel; pairs with the Acquire of `take_token` and of `commit`.
        if (word == EMPTY || word == TOKEN)
            && self
                .token
                .compare_exchange(word, TOKEN, AcqRel, Relaxed)
                .is_ok()
        {
            return;
        }
        let _rt = enter_to_wake();
        loop {
            let next = if word == EMPTY || word == TOKEN {
                TOKEN
            } else {
                EMPTY
            };
            // ORDER: AcqRel; the parked side sees what preceded the unpark, and this side sees the
            // waiter.
            match self
                .token
                .compare_exchange_weak(word, next, AcqRel, Relaxed)
            {
                Ok(_) => break,
                Err(found) => word = found,
            }
        }
        match word {
            EMPTY | TOKEN => {}
            sleeper => {
                // SAFETY: `commit` stored the sleeper, and the swap made it this thread's.
                if let Some(sleeper) = unsafe { Sleeper::from_word(sleeper) } {
                    sleeper.wake(ready);
                }
            }
        }
    }
}

/// A counted reference to an `Inner`. The last one frees the allocation that the `Inner` begins.
pub(crate) struct InnerRef(NonNull<Inner>);

// SAFETY: D1, the count is atomic, and any thread may use and drop the allocation (`Whole`).
unsafe impl Send for InnerRef {}
// SAFETY: D1, `&InnerRef` leads to a `&Inner`, a `&dyn Whole` and a new reference. Any thread may
// use these (`Whole`).
unsafe impl Sync for InnerRef {}

impl InnerRef {
    /// Allocates `whole`, whose `Inner` is made with one reference.
    pub(crate) fn new<W: Whole>(whole: W) -> InnerRef {
        InnerRef(NonNull::from(Box::leak(Box::new(whole))).cast())
    }

    /// Takes over a reference.
    ///
    /// # Safety
    /// [`InnerRef::into_raw`] returned the pointer, and the caller owns that reference.
    #[inline]
    pub(crate) unsafe fn from_raw(inner: NonNull<Inner>) -> InnerRef {
        InnerRef(inner)
    }

    /// Uses the reference of another owner.
    ///
    /// # Safety
    /// [`InnerRef::into_raw`] returned the pointer, and its owner keeps that reference while the
    /// result is in use.
    #[inline]
    pub(crate) unsafe fn borrowed(inner: NonNull<Inner>) -> ManuallyDrop<InnerRef> {
        ManuallyDrop::new(InnerRef(inner))
    }

    /// Gives up ownership without dropping the reference.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<Inner> {
        ManuallyDrop::new(self).0
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> NonNull<Inner> {
        self.0
    }

    /// Drops the reference. If it was the last one, returns the right to free the allocation.
    #[inline]
    pub(crate) fn into_last(self) -> Option<LastInner> {
        ManuallyDrop::new(self).release()
    }

    #[inline]
    fn release(&self) -> Option<LastInner> {
        // ORDER: Release; pairs with the Acquire fence of the last release, as in every reference
        // count.
        (self.refs.fetch_sub(1, Release) == 1).then(|| {
            fence(Acquire);
            LastInner(self.0)
        })
    }

    /// The goroutine will never have a result. Returns a task that awaits the result, which the
    /// caller must wake in user context.
    #[must_use = "the awaiting task must be woken"]
    pub(crate) fn give_up(&self) -> Option<Arc<Awaiter>> {
        let mut awaiter = None;
        self.view(&mut |whole| awaiter = whole.give_up());
        awaiter
    }

    /// Reports the goroutine's fate to its scope, if any, after a drop of the runtime.
    pub(crate) fn tell_scope(&self, fate: Fate) {
        self.view(&mut |whole| whole.tell_scope(fate));
    }

    /// The slot in which the end of its scope is waited for. Null if the goroutine is in no scope,
    /// or has left it.
    pub(crate) fn scope(&self) -> *const WaitSlot {
        let mut slot = ptr::null();
        self.view(&mut |whole| slot = whole.scope());
        slot
    }

    /// Calls `f` with the whole allocation.
    fn view(&self, f: &mut dyn FnMut(&dyn Whole)) {
        (self.kind.view)(self.0, &mut |whole| {
            // SAFETY: this reference keeps the allocation alive. `Inner::new` stored the `Kind` of
            // its type (`Whole`).
            f(unsafe { &*whole });
        });
    }
}

impl Deref for InnerRef {
    type Target = Inner;
    #[inline]
    fn deref(&self) -> &Inner {
        // SAFETY: this reference is counted, or another owner keeps its counted reference meanwhile
        // (`borrowed`). So the `Inner` is alive.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for InnerRef {
    #[inline]
    fn clone(&self) -> InnerRef {
        self.refs.fetch_add(1, Relaxed);
        InnerRef(self.0)
    }
}

impl Drop for InnerRef {
    #[inline]
    fn drop(&mut self) {
        drop(self.release());
    }
}

/// The right to free an allocation whose references are all gone. Its drop frees.
pub(crate) struct LastInner(NonNull<Inner>);

impl Drop for LastInner {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: only `InnerRef::release` makes this, once, when the last reference is gone. The
        // `Kind` is that of the allocation's type (`Whole`).
        unsafe { (self.0.as_ref().kind.free)(self.0) };
    }
}
