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

use std::cell::Cell;
use std::num::NonZero;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};

use crate::base::note::Note;
use crate::sched::model::g::G;
use crate::sched::model::ptr::Gp;
use crate::sched::park::ready;
use crate::sched::waiting::sleeper::Sleeper;
use crate::sched::waiting::wait_slot::{Awaiter, WaitSlot, enter_to_wake};

/// In `G::handle`: a thread is taking a reference, for a few instructions.
const HELD: usize = 1;

const EMPTY: usize = 0;
const TOKEN: usize = 1;

/// The operations that differ between a bare handle and a packet.
pub(crate) struct InnerVtable {
    /// Frees the allocation; the last reference is gone.
    pub(crate) free: unsafe fn(NonNull<Inner>),
    /// The goroutine will never have a result: wakes the joining goroutine or thread. Returns a
    /// task that awaits the result, which the caller must wake.
    pub(crate) give_up: unsafe fn(NonNull<Inner>) -> Option<Arc<Awaiter>>,
    /// Reports the goroutine's fate to its scope, if any.
    pub(crate) tell_scope: unsafe fn(NonNull<Inner>, Fate),
    /// The slot in which the end of its scope is waited for. Null if the goroutine is in no scope,
    /// or has left it.
    pub(crate) scope: unsafe fn(NonNull<Inner>) -> *const WaitSlot,
}

/// The fate of a goroutine after the drop of its runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The goroutine runs, or its closure still exists. It may yet leave its scope.
    Open,
    /// The goroutine never ran, and its closure is dropped. A scope need not wait for it.
    NeverRan,
    /// The goroutine waits for ever. Other goroutines may still use, through it, what it borrows.
    /// So its scope can never end.
    Lost,
}

impl G {
    /// Its `Inner`, without a reference: for the goroutine itself, or while the goroutine cannot
    /// end (the world is stopped).
    #[inline]
    pub(crate) fn inner(&self) -> Option<NonNull<Inner>> {
        // ORDER: Acquire; pairs with the Release that stored the pointer (`identify`,
        // `share_inner`, `thread`).
        NonNull::new(self.handle.load(Acquire).map_addr(|a| a & !HELD).cast())
    }

    /// A reference to its `Inner`, for another thread at any time. Inside the runtime.
    pub(crate) fn share_inner(&self) -> Option<NonNull<Inner>> {
        let inner = self.hold_inner(|inner| inner.map_addr(|a| a | HELD))?;
        // SAFETY: D3, while HELD is set the goroutine cannot give its own reference up.
        unsafe { inner.as_ref() }.retain();
        // ORDER: Release; pairs with the Acquire of a thread that waits for the bit.
        self.handle.store(inner.as_ptr().cast(), Release);
        Some(inner)
    }

    /// Takes the G's own reference, for the thread that ends the goroutine. Inside the runtime.
    pub(crate) fn take_inner(&self) -> Option<NonNull<Inner>> {
        self.hold_inner(|_| ptr::null_mut())
    }

    /// Replaces the word once HELD is clear; returns the old pointer.
    fn hold_inner(&self, next: impl Fn(*mut ()) -> *mut ()) -> Option<NonNull<Inner>> {
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
                return Some(inner.cast());
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
    /// Boxed twice: names are rare, and the handle then needs one word instead of two.
    name: Option<Box<Box<str>>>,
    vtable: &'static InnerVtable,
}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

static BARE: InnerVtable = InnerVtable {
    free: |inner| {
        // SAFETY: `bare` made it from a box, and the last reference is gone.
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    },
    give_up: |_| None,
    tell_scope: |_, _| {},
    scope: |_| ptr::null(),
};

impl Inner {
    /// Makes the state with one reference, for the caller.
    pub(crate) fn new(name: Option<Box<str>>, vtable: &'static InnerVtable) -> Inner {
        Inner {
            refs: AtomicUsize::new(1),
            token: AtomicUsize::new(EMPTY),
            runtime: AtomicU32::new(0),
            flags: AtomicU8::new(0),
            is_in_scope: AtomicBool::new(false),
            is_stack_lent: AtomicBool::new(false),
            id: AtomicU64::new(0),
            name: name.map(Box::new),
            vtable,
        }
    }

    /// Allocates the state of a handle without a packet, with one reference.
    pub(crate) fn bare(name: Option<Box<str>>) -> NonNull<Inner> {
        NonNull::from(Box::leak(Box::new(Inner::new(name, &BARE))))
    }

    /// Allocates the state of a plain thread's handle.
    pub(crate) fn for_thread() -> NonNull<Inner> {
        let name = std::thread::current().name().map(Box::from);
        let inner = Inner::bare(name);
        let id = NEXT_THREAD.fetch_add(1, Relaxed);
        // SAFETY: just allocated, and `inner` is its only reference.
        unsafe { inner.as_ref() }.id.store(id, Relaxed);
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
        self.name.as_ref().map(|name| &***name)
    }

    pub(crate) fn retain(&self) {
        self.refs.fetch_add(1, Relaxed);
    }

    /// Drops a reference, and frees the state with the last one.
    ///
    /// # Safety
    /// The caller owned a reference and does not use it again.
    #[inline]
    pub(crate) unsafe fn release(inner: NonNull<Inner>) {
        // SAFETY: the caller owns a reference and does not use it again; the closure calls its
        // argument.
        unsafe { Inner::release_with(inner, |free| free()) };
    }

    /// As [`Inner::release`], but the last reference is freed through `with`.
    ///
    /// # Safety
    /// The caller owned a reference and does not use it again; `with` calls its argument.
    #[inline]
    pub(crate) unsafe fn release_with(inner: NonNull<Inner>, with: impl FnOnce(&mut dyn FnMut())) {
        // SAFETY: the caller's reference keeps it alive.
        let this = unsafe { inner.as_ref() };
        // ORDER: Release; pairs with the Acquire fence of the last release, as in every reference
        // count.
        if this.refs.fetch_sub(1, Release) == 1 {
            fence(Acquire);
            let free = this.vtable.free;
            // SAFETY: this was the last reference.
            with(&mut || unsafe { free(inner) });
        }
    }

    /// The goroutine will never have a result. Returns a task that awaits the result, which the
    /// caller must wake in user context.
    ///
    /// # Safety
    /// The caller has a reference.
    #[must_use = "the awaiting task must be woken"]
    pub(crate) unsafe fn give_up(inner: NonNull<Inner>) -> Option<Arc<Awaiter>> {
        // SAFETY: the caller's reference keeps it alive.
        unsafe { (inner.as_ref().vtable.give_up)(inner) }
    }

    /// Reports the goroutine's fate to its scope, if any, after a drop of the runtime.
    ///
    /// # Safety
    /// The caller has a reference. `NeverRan` is passed only for a goroutine that has not run and
    /// never will.
    pub(crate) unsafe fn tell_scope(inner: NonNull<Inner>, fate: Fate) {
        // SAFETY: the caller's reference keeps it alive, and the caller guarantees the fate.
        unsafe { (inner.as_ref().vtable.tell_scope)(inner, fate) };
    }

    /// The slot in which the end of its scope is waited for. Null if the goroutine is in no scope,
    /// or has left it.
    ///
    /// # Safety
    /// An existing reference keeps `inner` alive.
    pub(crate) unsafe fn scope(inner: NonNull<Inner>) -> *const WaitSlot {
        // SAFETY: the caller guarantees that a reference keeps `inner` alive.
        unsafe { (inner.as_ref().vtable.scope)(inner) }
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

/// A plain thread's reference to its own handle, kept while the thread lives.
pub(crate) struct OwnInner(Cell<Option<NonNull<Inner>>>);

impl OwnInner {
    pub(crate) const fn new() -> OwnInner {
        OwnInner(Cell::new(None))
    }

    pub(crate) fn get(&self) -> NonNull<Inner> {
        if let Some(inner) = self.0.get() {
            return inner;
        }
        let inner = Inner::for_thread();
        self.0.set(Some(inner));
        inner
    }
}

impl Drop for OwnInner {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            // SAFETY: the thread's own reference, which is not used again.
            unsafe { Inner::release(inner) };
        }
    }
}
