//! What a [`Thread`](super::Thread) handle points to: identity, the park token, and how it is freed.
//!
//! One allocation serves the handle and, for a goroutine that can be joined, the packet that its result travels in
//! (the packet begins with an `Inner`). The count is our own so that both can share it.
//!
//! The park token:
//! ```text
//!  word     meaning                     next
//!  EMPTY    no token, nobody parked     TOKEN (unpark), sleeper (park)
//!  TOKEN    the next park returns       EMPTY (park)
//!  sleeper  parked: a G, or a note      EMPTY (unpark, timeout or withdrawal: that one owns the wake-up)
//! ```

use std::cell::Cell;
use std::num::NonZero;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};

use super::ThreadId;
use crate::base::note::Note;
use crate::sched::model::ptr::Gp;
use crate::sched::model::sleeper::Sleeper;
use crate::sched::park::ready;
use crate::sched::wait::{Awaiter, WaitSlot, enter_to_wake};

const EMPTY: usize = 0;
const TOKEN: usize = 1;

/// What differs between a bare handle and a packet.
pub(crate) struct InnerVtable {
    /// Frees the allocation; the last reference is gone.
    pub(crate) free: unsafe fn(NonNull<Inner>),
    /// Its goroutine will not answer: whoever joins learns it; a task that awaits it is the caller's to wake.
    pub(crate) give_up: unsafe fn(NonNull<Inner>) -> Option<Arc<Awaiter>>,
    /// Any scope that the goroutine is in learns its fate.
    pub(crate) tell_scope: unsafe fn(NonNull<Inner>, Fate),
    /// The slot of whoever waits for its scope to end; null if it is in none, or has left it.
    pub(crate) scope: unsafe fn(NonNull<Inner>) -> *const WaitSlot,
}

/// What becomes of a goroutine whose runtime is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It runs, or its closure is still there: it may yet leave its scope.
    Open,
    /// It never ran, and its closure is gone: a scope need not wait for it.
    NeverRan,
    /// It waits for ever. What it borrows may still be in use, through it, by others: its scope can never end.
    Lost,
}

/// Shared state of a thread handle.
#[repr(C)]
pub(crate) struct Inner {
    refs: AtomicUsize,
    token: AtomicUsize,
    runtime: AtomicU32,
    /// The packet's; here because there is room.
    pub(super) flags: AtomicU8,
    /// Others may use what lies on the goroutine's stack: during a scope, and for good.
    is_in_scope: AtomicBool,
    is_stack_lent: AtomicBool,
    id: AtomicU64,
    /// Boxed twice: a name is rare, a word in every handle is not.
    name: Option<Box<Box<str>>>,
    vtable: &'static InnerVtable,
}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

static BARE: InnerVtable = InnerVtable {
    free: |inner| {
        // SAFETY: made by `bare` from a box; the last reference is gone.
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    },
    give_up: |_| None,
    tell_scope: |_, _| {},
    scope: |_| ptr::null(),
};

impl Inner {
    /// With one reference, for the caller.
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

    /// A handle's state without a packet, with one reference.
    pub(crate) fn bare(name: Option<Box<str>>) -> NonNull<Inner> {
        NonNull::from(Box::leak(Box::new(Inner::new(name, &BARE))))
    }

    /// The state of a plain thread's handle.
    pub(crate) fn for_thread() -> NonNull<Inner> {
        let name = std::thread::current().name().map(Box::from);
        let inner = Inner::bare(name);
        let id = NEXT_THREAD.fetch_add(1, Relaxed);
        // SAFETY: just made.
        unsafe { inner.as_ref() }.id.store(id, Relaxed);
        inner
    }

    /// Says which goroutine it is; once, before the goroutine starts.
    pub(crate) fn set_goroutine(&self, runtime: u32, id: u64) {
        self.runtime.store(runtime, Relaxed);
        self.id.store(id, Relaxed);
    }

    /// Which goroutine or plain thread it is.
    pub(crate) fn identity(&self) -> ThreadId {
        let Some(id) = NonZero::new(self.id.load(Relaxed)) else {
            crate::base::fatal::throw("a thread handle without an identity")
        };
        ThreadId {
            runtime: self.runtime.load(Relaxed),
            id,
        }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_ref().map(|name| &***name)
    }

    pub(crate) fn retain(&self) {
        self.refs.fetch_add(1, Relaxed);
    }

    /// # Safety
    /// The caller owned a reference and uses it no more.
    #[inline]
    pub(crate) unsafe fn release(inner: NonNull<Inner>) {
        // SAFETY: by the caller's promise.
        unsafe { Inner::release_with(inner, |free| free()) };
    }

    /// As [`Inner::release`]; the last one has the state freed through `with`.
    ///
    /// # Safety
    /// As for [`Inner::release`]; `with` calls what it is given.
    #[inline]
    pub(crate) unsafe fn release_with(inner: NonNull<Inner>, with: impl FnOnce(&mut dyn FnMut())) {
        // SAFETY: by the caller's reference.
        let this = unsafe { inner.as_ref() };
        // ORDER: Release; pairs with the Acquire fence of the last one, as in every reference count.
        if this.refs.fetch_sub(1, Release) == 1 {
            fence(Acquire);
            let free = this.vtable.free;
            // SAFETY: the last reference.
            with(&mut || unsafe { free(inner) });
        }
    }

    /// Its runtime is gone and its goroutine will not answer a join. A task that awaits it is the caller's to wake, in user
    /// context.
    ///
    /// # Safety
    /// The caller has a reference.
    #[must_use = "who awaits must be woken"]
    pub(crate) unsafe fn give_up(inner: NonNull<Inner>) -> Option<Arc<Awaiter>> {
        // SAFETY: by the caller's promise.
        unsafe { (inner.as_ref().vtable.give_up)(inner) }
    }

    /// Its runtime is gone: its scope, if it is in one, learns what becomes of its goroutine.
    ///
    /// # Safety
    /// The caller has a reference; `NeverRan` is said only of a goroutine that has not run and never will.
    pub(crate) unsafe fn tell_scope(inner: NonNull<Inner>, fate: Fate) {
        // SAFETY: by the caller's promise.
        unsafe { (inner.as_ref().vtable.tell_scope)(inner, fate) };
    }

    /// The slot of whoever waits for its scope to end; null if it is in none, or has left it.
    ///
    /// # Safety
    /// Somebody's reference keeps `inner` alive.
    pub(crate) unsafe fn scope(inner: NonNull<Inner>) -> *const WaitSlot {
        // SAFETY: by the caller's promise.
        unsafe { (inner.as_ref().vtable.scope)(inner) }
    }

    /// How many references there are. One that its goroutine alone has cannot become two behind its back.
    pub(crate) fn refs(&self) -> usize {
        self.refs.load(Relaxed)
    }

    /// Others may be given references to what lies on the goroutine's stack, from now on.
    pub(super) fn lend_stack(&self) {
        self.is_stack_lent.store(true, Relaxed);
    }

    /// The same for as long as a scope is open; returns whether one is already, for when it ends.
    pub(super) fn set_in_scope(&self, is_in: bool) -> bool {
        self.is_in_scope.swap(is_in, Relaxed)
    }

    /// Whether others may use what lies on the goroutine's stack.
    pub(crate) fn is_stack_lent(&self) -> bool {
        self.is_in_scope.load(Relaxed) || self.is_stack_lent.load(Relaxed)
    }

    /// Takes the token if there is one.
    pub(crate) fn take_token(&self) -> bool {
        // ORDER: Acquire; pairs with the Release of `unpark`.
        self.token.load(Relaxed) == TOKEN
            && self
                .token
                .compare_exchange(TOKEN, EMPTY, Acquire, Relaxed)
                .is_ok()
    }

    fn commit(&self, sleeper: &Sleeper) -> bool {
        // ORDER: AcqRel; publishes the waiter to `unpark`, or sees what came before its token.
        match self
            .token
            .compare_exchange(EMPTY, sleeper.word(), AcqRel, Acquire)
        {
            Ok(_) => true,
            Err(_) => {
                // A swap, not a store: a second token that arrives now must be seen, or stay.
                let taken = self.token.swap(EMPTY, AcqRel);
                debug_assert_eq!(taken, TOKEN);
                false
            }
        }
    }

    fn withdraw(&self, sleeper: &Sleeper) -> bool {
        // ORDER: AcqRel; whoever swaps the waiter out owns its wake-up.
        self.token
            .compare_exchange(sleeper.word(), EMPTY, AcqRel, Acquire)
            .is_ok()
    }

    /// The parked goroutine `g` waits here from now on; false: there was a token, now used up.
    pub(crate) fn commit_g(&self, g: Gp) -> bool {
        self.commit(&Sleeper::goroutine(g))
    }

    /// Takes `g` back; true: its wake-up is the caller's.
    pub(crate) fn withdraw_g(&self, g: Gp) -> bool {
        self.withdraw(&Sleeper::goroutine(g))
    }

    /// Parks a plain thread until a token comes or the deadline passes.
    pub(crate) fn park_thread(&self, deadline_ns: u64) {
        let note = Note::new();
        // SAFETY: the note stays in this frame until the token's word has refused the sleeper, until it
        // was taken back out of it, or until it was woken.
        let me = unsafe { Sleeper::thread(&note) };
        if self.commit(&me) && !note.sleep_until(deadline_ns) && !self.withdraw(&me) {
            note.sleep(); // the unparker has the sleeper and will touch the note
        }
    }

    /// Leaves a token, or wakes whoever is parked.
    pub(crate) fn unpark(&self) {
        let mut word = self.token.load(Relaxed);
        // ORDER: AcqRel; as below.
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
            // ORDER: AcqRel; what the unparker did before is seen by the parked; the waiter is published.
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

/// A plain thread's own handle, kept while the thread lives.
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
            // SAFETY: the thread's own reference.
            unsafe { Inner::release(inner) };
        }
    }
}
