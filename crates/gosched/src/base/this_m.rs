//! What the floors below the scheduler ask of the M that this thread is.
//!
//! The lock checks its ranks against what the M holds. A fatal error, and code that takes such a
//! lock in user context, must be inside the runtime. The M is on a floor above, so the scheduler
//! supplies the answers as a table of functions. It sets the table before its first M begins; until
//! then no thread is an M. This is one of the callbacks that ARCHITECTURE.md lists.

use std::ptr::NonNull;
use std::sync::atomic::AtomicPtr;
#[cfg(debug_assertions)]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// An M, for code that knows only its address.
pub(crate) type AnyM = NonNull<()>;

/// The answers of the scheduler.
pub(crate) struct Answers {
    /// Enters the runtime; returns the M of this thread then. None: this thread is no M.
    pub(crate) enter: fn() -> Option<AnyM>,
    /// Leaves the runtime. The argument is what `enter` returned, and this thread is still that M.
    pub(crate) leave: unsafe fn(AnyM),
    /// What the M of this thread knows of locks. None: this thread is no M.
    #[cfg(debug_assertions)]
    pub(crate) locks: fn() -> Option<Locks>,
}

/// What an M knows of the internal locks.
#[cfg(debug_assertions)]
pub(crate) struct Locks {
    /// The ranks that the M holds. Ms are never freed.
    pub(crate) held: &'static AtomicU32,
    /// Whether the M is inside the runtime.
    pub(crate) is_inside: bool,
}

static ANSWERS: AtomicPtr<Answers> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the answers; before the first M begins.
pub(crate) fn set(answers: &'static Answers) {
    // ORDER: Release; pairs with the Acquire in `answers`.
    ANSWERS.store(std::ptr::from_ref(answers).cast_mut(), Release);
}

fn answers() -> Option<&'static Answers> {
    // SAFETY: `set` stores only addresses of statics.
    // ORDER: Acquire; pairs with the Release in `set`.
    unsafe { ANSWERS.load(Acquire).as_ref() }
}

/// Being inside the runtime, until dropped. No switch happens meanwhile.
pub(crate) struct InRuntime(Option<(AnyM, unsafe fn(AnyM))>);

/// Enters the runtime; on a thread that is no M it does nothing, but in a fork's child it refuses.
pub(crate) fn enter() -> InRuntime {
    InRuntime(answers().and_then(|answers| Some(((answers.enter)()?, answers.leave))))
}

impl Drop for InRuntime {
    fn drop(&mut self) {
        if let Some((m, leave)) = self.0 {
            // SAFETY: `enter` returned this M to this thread, and no switch came between.
            unsafe { leave(m) };
        }
    }
}

/// What the M of this thread knows of locks; None: this thread is no M.
#[cfg(debug_assertions)]
pub(crate) fn locks() -> Option<Locks> {
    answers().and_then(|answers| (answers.locks)())
}
